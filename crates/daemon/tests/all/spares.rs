//! Paths through chosen relays, some of which other paths already use.

use crate::common::network::network;
use crate::common::{through_relays, until};
use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_link::{LinkConfig, bdp_bytes};
use anabranch_net::{PathInfo, Rate, Span};
use anabranch_node::{RelayPaths, RelayRoute};
use anabranch_secure::RelayHint;

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_fails_is_replaced_also_when_another_through_its_relay_is_well() {
    let network = network(130, 2, 10.0).await;
    let (here, _there) = network.join().await;
    // Another path to the first relay, named by hand.
    let (rate, rtt) = (Rate::from_mbit(10.0), Span::from_millis(20));
    let link = LinkConfig::fixed(rate, rtt / 2, bdp_bytes(rate, rtt) * 4);
    let relay = network.relays[0].addresses()[0];
    let other = Emulation::start(&[EmulatedPath::symmetric(relay, link)]).unwrap();
    let hint = RelayHint { node: network.relays[0].node(), addresses: other.addresses().to_vec() };
    let _named = RelayPaths::keep(&network.client, &here, &[RelayRoute(vec![hint.into()])], &network.peer());
    until("the path that was named", || through_relays(&here).len() == 1).await;
    let _chosen = RelayPaths::choose(&network.client, &here, &network.routes, (&network.peer(), 1));
    until("the path that was chosen", || through_relays(&here).len() == 2).await;
    let leads_to = |path: &PathInfo, relay: usize| here.relays(&path.route) == [network.relays[relay].node()];
    assert!(through_relays(&here).iter().all(|path| leads_to(path, 0)), "both through the first");
    network.emulation.set_down(0, true);
    until("a path through the second", || through_relays(&here).iter().any(|path| leads_to(path, 1))).await;
}
