//! A session's handshake state: needed while it lasts, and for late copies of its messages.

use anabranch_engine::Route;
use anabranch_secure::{Cookie, InitId, Initiator};
use anabranch_wire::Params;

/// The state of a handshake.
pub(crate) enum Handshake {
    /// The client's side.
    Client(Box<Dialing>),
    /// The server's.
    Answered {
        /// Body of the INIT-ACK.
        body: Vec<u8>,
        /// The client's parameters.
        params: Params,
        /// The INIT that it answers.
        init: InitId,
    },
    /// The client has its answer. Copies of it may arrive over other routes.
    Greeted {
        /// Body of the INIT-ACK.
        body: Box<[u8]>,
        /// The server's parameters.
        params: Params,
    },
    /// Over; late copies of its messages are ignored.
    Done {
        /// The INIT, at a server.
        init: Option<InitId>,
    },
}

/// A client's handshake.
pub(crate) struct Dialing {
    pub(crate) initiator: Initiator,
    /// The cookies of the candidates.
    pub(crate) cookies: Vec<(Route, Cookie)>,
}

impl Handshake {
    /// Ends the handshake; returns the INIT, at a server.
    pub(crate) fn finish(&mut self) -> Option<InitId> {
        match std::mem::replace(self, Self::Done { init: None }) {
            Self::Answered { init, .. } => Some(init),
            Self::Done { init } => init,
            Self::Client(_) | Self::Greeted { .. } => None,
        }
    }
}
