//! What a session's handshake needs while it lasts, and for late copies of its messages.

use anabranch_engine::Route;
use anabranch_secure::{Cookie, InitId, Initiator};
use anabranch_wire::Params;

/// What the handshake still needs.
pub(crate) enum Handshake {
    /// The client's side.
    Client(Box<Dialing>),
    /// The server's.
    Answered {
        /// Body of the INIT ACK.
        body: Vec<u8>,
        /// The client's parameters.
        params: Params,
        /// Which INIT it was.
        init: InitId,
    },
    /// The client has its answer; the same one may come over other routes.
    Greeted {
        /// Body of the INIT ACK.
        body: Box<[u8]>,
        /// The server's parameters.
        params: Params,
    },
    /// Over: late copies of its messages are of no use any more.
    Done {
        /// Which INIT a server's began with.
        init: Option<InitId>,
    },
}

/// A client's handshake.
pub(crate) struct Dialing {
    pub(crate) initiator: Initiator,
    /// Got for each candidate.
    pub(crate) cookies: Vec<(Route, Cookie)>,
}

impl Handshake {
    /// Ends it; gives the INIT that a server's began with.
    pub(crate) fn finish(&mut self) -> Option<InitId> {
        match std::mem::replace(self, Self::Done { init: None }) {
            Self::Answered { init, .. } => Some(init),
            Self::Done { init } => init,
            Self::Client(_) | Self::Greeted { .. } => None,
        }
    }
}
