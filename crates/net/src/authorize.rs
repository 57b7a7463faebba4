//! Who may open a session with this endpoint: nobody, until the application says otherwise.

use anabranch_secure::{PublicKey, Refusal, ShareId, TicketSecret};

/// What becomes of a session that somebody asks for.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Let in. A peer that shows a ticket must know its secret, which is given here; one that shows none
    /// is let in by its key.
    Accept {
        /// The secret of the share that the peer named; `None` when it named none.
        secret: Option<TicketSecret>,
    },
    /// Kept out, and told why.
    Refuse(Refusal),
    /// Kept out without a word.
    Ignore,
}

/// Decides who may open a session, and what they may use it for is then the application's business
/// ([`Session::peer`](crate::Session::peer), [`Session::share`](crate::Session::share)).
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
    /// Judges a peer, whose key is proven, and the share whose ticket it claims to hold. Called once for
    /// each session asked for; it must not block.
    fn authorize(&self, peer: &PublicKey, share: Option<ShareId>) -> Verdict;
}

impl<F: Fn(&PublicKey, Option<ShareId>) -> Verdict + Send + Sync + 'static> Authorize for F {
    fn authorize(&self, peer: &PublicKey, share: Option<ShareId>) -> Verdict {
        self(peer, share)
    }
}

/// Lets nobody in: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenyAll;

impl Authorize for DenyAll {
    fn authorize(&self, _peer: &PublicKey, share: Option<ShareId>) -> Verdict {
        Verdict::Refuse(if share.is_some() { Refusal::TicketNotValid } else { Refusal::NotAuthorised })
    }
}
