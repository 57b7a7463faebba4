//! Tickets that stay good when a server is started again: they follow from its key.

use anabranch_net::{NodeKey, ShareId, TicketSecret};
use anabranch_node::TicketShare;

/// The share that the ticket of this name opens. `purpose` keeps a ticket for one service from opening another.
pub fn share(purpose: &'static str, key: &NodeKey, name: &str) -> TicketShare {
    let mut hasher = blake3::Hasher::new_derive_key(purpose);
    hasher.update(key.to_file_text().as_bytes()).update(name.as_bytes());
    let (mut id, mut secret) = ([0; 8], [0; 16]);
    let mut output = hasher.finalize_xof();
    output.fill(&mut id);
    output.fill(&mut secret);
    TicketShare::stored(ShareId(u64::from_be_bytes(id)), TicketSecret::from_random(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticket_stays_good_and_another_name_key_or_purpose_makes_another_ticket() {
        let key = NodeKey::from_random([9; 32]);
        let first = share("one", &key, "usual");
        assert_eq!(first.id, share("one", &key, "usual").id);
        assert_ne!(first.id, share("one", &key, "newer").id);
        assert_ne!(first.id, share("other", &key, "usual").id);
        assert_ne!(first.id, share("one", &NodeKey::from_random([8; 32]), "usual").id);
    }
}
