//! Decides who may open a session with this endpoint; by default no one.

use anabranch_secure::{PublicKey, Refusal, ShareId, TicketSecret};

/// The answer to a peer that wants to open a session.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Accepted. A peer that shows a ticket must know its secret, which is given here. A peer without a ticket is
    /// accepted by its key.
    Accept {
        /// The secret of the share that the peer named; `None` if it named no share.
        secret: Option<TicketSecret>,
    },
    /// Refused, with the reason sent to the peer.
    Refuse(Refusal),
    /// Refused without an answer.
    Ignore,
}

/// Decides who may open a session. The application decides what a peer may do in it, by
/// [`Session::peer`](crate::Session::peer) and [`Session::share`](crate::Session::share).
///
/// Closures implement it:
/// ```
/// use anabranch_net::{Authorize, PublicKey, Refusal, ShareId, Verdict};
///
/// fn only(friend: PublicKey) -> impl Authorize {
///     move |peer: &PublicKey, _share: Option<ShareId>| {
///         if *peer == friend {
///             Verdict::Accept { secret: None }
///         } else {
///             Verdict::Refuse(Refusal::NotAuthorised)
///         }
///     }
/// }
/// ```
pub trait Authorize: Send + Sync + 'static {
    /// Judges a peer, whose key is proven, and the share whose ticket it claims to hold. Called once for each handshake;
    /// must not block.
    fn authorize(&self, peer: &PublicKey, share: Option<ShareId>) -> Verdict;
}

impl<F: Fn(&PublicKey, Option<ShareId>) -> Verdict + Send + Sync + 'static> Authorize for F {
    fn authorize(&self, peer: &PublicKey, share: Option<ShareId>) -> Verdict {
        self(peer, share)
    }
}

/// Refuses everyone; the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenyAll;

impl Authorize for DenyAll {
    fn authorize(&self, _peer: &PublicKey, share: Option<ShareId>) -> Verdict {
        Verdict::Refuse(if share.is_some() { Refusal::TicketNotValid } else { Refusal::NotAuthorised })
    }
}
