//! Granted relays that are asked about, move, die or come late: clients get their paths all the same.

mod common;

use std::time::Duration;

use anabranch_daemon::client::{Entry, RelayConnection, Wanted};
use anabranch_daemon::controller::asking;
use anabranch_net::Pid;
use anabranch_overlay::relay::Target;
use anabranch_secure::RelayHint;
use tokio::time::timeout;

use common::controllers::controller;
use common::{address, node};

/// Who asks for figures may measure the relay for a minute, and is its client all the same.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_just_asked_how_far_a_relay_is_gets_paths_there_at_once() {
    let controllers = controller(70, (&[71], 72), 600).await;
    let relay = controllers.relay(71).await;
    let (client, server) = (node(72).await, node(73).await);
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let asking = asking::Controllers::new(client.clone(), controllers.hints.clone());
    asking.figures(vec![relay.node()], None).await.expect("figures");
    // The relay is told who measures it with a heartbeat, of which there is one every two seconds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    let served = async {
        let session = RelayConnection::open(&client, &hint, &Entry::Member(grants)).await?;
        let target = Target::Address { address: address(&server), key: Some(server.node()) };
        session.allocate(Wanted { target, out: Pid(1), back: Pid(2) }).await.map(drop)
    };
    assert_eq!(timeout(Duration::from_secs(5), served).await, Ok(Ok(())));
}
