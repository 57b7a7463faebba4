//! Types that hold a secret do not print it.

use anabranch_net::{EndpointConfig, NodeKey, ResetKey, ShareId, Target, TicketSecret, Verdict};
use anabranch_node::Entry;
use anabranch_overlay::grant::GrantSigner;
use anabranch_overlay::relay::{Admission, Request};

#[test]
fn nothing_that_holds_a_secret_shows_it_when_it_is_printed() {
    let secret = || TicketSecret::from_random([0xa7; 16]);
    let node = NodeKey::from_random([0xa7; 32]);
    let mut target = Target::new(node.public(), Vec::new());
    target.credential = Some((ShareId(1), secret()));
    let mut config = EndpointConfig::new(node.clone());
    config.reset_key = Some(ResetKey::from_random([0xa7; 32]));
    let signer = GrantSigner::from_random([0xa7; 32]);
    let shown = [
        format!("{target:#?} {target:?}"),
        format!("{config:#?} {config:?}"),
        format!("{:?}", config.reset_key),
        format!("{node:?} {signer:?}"),
        format!("{:?}", Entry::Guest(secret())),
        format!("{:?}", Verdict::Accept { secret: Some(secret()) }),
        format!("{:?}", Admission::Guest(secret())),
        format!("{:?}", Request::Host { share: ShareId(1), hash: secret(), flows: 1 }),
    ];
    for text in shown {
        let plain = text.to_lowercase().replace([' ', '\n', ','], "");
        assert!(!plain.contains("a7a7") && !plain.contains("167167"), "{text}");
    }
}
