//! What a ticket opens at the sender's relay.
//!
//! Guest secret = derive(ticket's secret ‖ relay's key). From it follow a share id, public, and a hash. The sender
//! registers both at the relay; the holder of the ticket opens a session to the relay with the share id and
//! the hash as its credential, just as with a ticket. So a stranger gets no session, the relay never learns the
//! ticket's secret nor the guest secret, and what one relay knows is of no use at another.

use anabranch_secure::{PublicKey, ShareId, TicketSecret};
use zeroize::Zeroizing;

/// What both the maker and the holder of a ticket know about one relay.
pub struct GuestSecret(Zeroizing<[u8; 32]>);

impl GuestSecret {
    /// The secret that follows from a ticket for a relay.
    #[must_use]
    pub fn new(ticket: &TicketSecret, relay: &PublicKey) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("anabranch 2026 guest secret");
        hasher.update(ticket.expose());
        hasher.update(relay.as_bytes());
        Self(Zeroizing::new(*hasher.finalize().as_bytes()))
    }

    /// The share that a guest names when it opens its session to the relay.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn share(&self) -> ShareId {
        let hash = blake3::derive_key("anabranch 2026 guest share", self.0.as_slice());
        ShareId(u64::from_be_bytes(hash[..8].try_into().expect("8 of 32 bytes")))
    }

    /// The hash that the sender registers, and that lets the guest in.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn hash(&self) -> TicketSecret {
        let hash = Zeroizing::new(blake3::derive_key("anabranch 2026 guest hash", self.0.as_slice()));
        TicketSecret::from_random(hash[..16].try_into().expect("16 of 32 bytes"))
    }
}
