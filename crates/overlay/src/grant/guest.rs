//! The secrets with which the holder of a ticket uses its maker's relay.
//!
//! The guest secret is derive(ticket's secret ‖ relay's key). A public share id and a hash follow from it, and the
//! ticket's maker registers both at the relay. The holder opens a session to the relay with the share id and the hash
//! as its credential, as with a ticket. So a stranger gets no session, the relay learns neither the ticket's secret nor
//! the guest secret, and one relay's knowledge is useless at another.

use anabranch_secure::secret::derive;
use anabranch_secure::{PublicKey, ShareId, TicketSecret};
use zeroize::Zeroizing;

/// A secret that the maker and the holder of a ticket share for one relay.
pub struct GuestSecret(Zeroizing<[u8; 32]>);

impl GuestSecret {
    /// Derives the secret from a ticket for a relay.
    pub fn new(ticket: &TicketSecret, relay: &PublicKey) -> Self {
        Self(derive("anabranch 2026 guest secret", &[ticket.expose(), relay.as_bytes()]))
    }

    /// The share id that a guest names when it opens a session to the relay.
    pub fn share(&self) -> ShareId {
        ShareId(u64::from_be_bytes(*derive("anabranch 2026 guest share", &[self.0.as_slice()])))
    }

    /// The hash that the ticket's maker registers, and that admits the guest.
    pub fn hash(&self) -> TicketSecret {
        TicketSecret::from_random(*derive("anabranch 2026 guest hash", &[self.0.as_slice()]))
    }
}
