//! What a ticket opens at the sender's relay.
//!
//! Guest secret = derive(ticket's secret ‖ relay's key). From it follow a share id, public, and a hash. The sender
//! registers both at the relay; the holder of the ticket opens a session to the relay with the share id and
//! the hash as its credential, just as with a ticket. So a stranger gets no session, the relay never learns the
//! ticket's secret nor the guest secret, and what one relay knows is of no use at another.

use anabranch_secure::secret::derive;
use anabranch_secure::{PublicKey, ShareId, TicketSecret};
use zeroize::Zeroizing;

/// What both the maker and the holder of a ticket know about one relay.
pub struct GuestSecret(Zeroizing<[u8; 32]>);

impl GuestSecret {
    /// The secret that follows from a ticket for a relay.
    #[must_use]
    pub fn new(ticket: &TicketSecret, relay: &PublicKey) -> Self {
        Self(derive("anabranch 2026 guest secret", &[ticket.expose(), relay.as_bytes()]))
    }

    /// The share that a guest names when it opens its session to the relay.
    #[must_use]
    pub fn share(&self) -> ShareId {
        ShareId(u64::from_be_bytes(*derive("anabranch 2026 guest share", &[self.0.as_slice()])))
    }

    /// The hash that the sender registers, and that lets the guest in.
    #[must_use]
    pub fn hash(&self) -> TicketSecret {
        TicketSecret::from_random(*derive("anabranch 2026 guest hash", &[self.0.as_slice()]))
    }
}
