//! Granted relays that are measured, move, die or come late: clients still get their paths.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::RelaySettings;
use anabranch_net::Pid;
use anabranch_node::{Entry, GrantWanted, Grants, NodeSession, Peer, RelayConnection, Wanted};
use anabranch_overlay::relay::Target;
use anabranch_secure::RelayHint;
use tokio::time::timeout;

use crate::common::controllers::{Controllers, WANTED, controller, session};
use crate::common::{address, carry, key, node, route, through_relays, until, until_within};

/// Restarts a relay, at a port that differs from its former one in these bits.
async fn elsewhere(controllers: &Controllers, seed: u8, (former, bits): (SocketAddr, u16)) -> RelayService {
    let settings = RelaySettings { port: former.port() ^ bits, ..controllers.relay_settings(seed) };
    RelayService::start(key(seed), &settings).await.expect("a relay")
}

/// A client that asks for figures may measure the relay for a minute, and can still use it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_just_measured_a_relay_gets_paths_there_at_once() {
    let controllers = controller(70, (&[71], 72), 600).await;
    let relay = controllers.relay(71).await;
    let (client, server) = (node(72).await, node(73).await);
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let asking = anabranch_node::Controllers::new(client.clone(), controllers.hints.clone());
    asking.figures(vec![relay.node()], None).await.expect("figures");
    // The relay learns who measures it from a heartbeat, one every two seconds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    let served = async {
        let session = RelayConnection::open(&client, &hint, &Entry::Member(grants)).await?;
        let target = Target::Address { address: address(&server), key: Some(server.node()) };
        session.allocate(Wanted { target, out: Pid(1), back: Pid(2) }).await.map(drop)
    };
    assert_eq!(timeout(Duration::from_secs(20), served).await, Ok(Ok(())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_relay_that_moves_is_found_by_running_sessions_and_new_ones() {
    let controllers = controller(80, (&[81], 82), 600).await;
    let relay = controllers.relay(81).await;
    let (client, server) = (node(82).await, node(83).await);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grants");
    let grants = controllers.grants(&client, &file).await.unwrap();
    let (here, there, _paths) = session(&client, &server, &grants).await;
    until("a path through the relay", || through_relays(&here).len() == 1).await;
    let former = relay.addresses()[0];
    relay.close().await;
    until("the path is gone", || through_relays(&here).is_empty()).await;
    let (moved, begin) = (elsewhere(&controllers, 81, (former, 1)).await, Instant::now());
    until("the path is back", || through_relays(&here).len() == 1).await;
    println!("back after {:.1} s", begin.elapsed().as_secs_f64());
    carry(&here, &there, 100_000).await;
    assert_eq!(grants.relays()[0].addresses, moved.addresses());
    let kept = controllers.grants(&client, &file).await.unwrap();
    assert_eq!(kept.relays()[0].addresses, moved.addresses(), "what is kept is of use");
}

#[tokio::test(flavor = "multi_thread")]
async fn instead_of_a_granted_relay_that_is_gone_another_one_is_used_and_one_that_comes_late_too() {
    let controllers = controller(90, (&[91, 92, 93], 94), 600).await;
    let first = controllers.relay(91).await;
    let (client, server) = (node(94).await, node(95).await);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grants");
    assert_eq!(controllers.grants(&client, &file).await.unwrap().relays().len(), 1, "there is one only");
    let _second = controllers.relay(92).await;
    let grants = controllers.grants(&client, &file).await.unwrap();
    assert_eq!(grants.relays().len(), 2, "fewer were kept than are wanted");
    let (here, there, _paths) = session(&client, &server, &grants).await;
    until("a path through each relay", || through_relays(&here).len() == 2).await;
    // Replaced grants count until they end.
    let mut settings = controllers.settings.clone();
    let quota = settings.policy.clients.get_mut(&client.node()).unwrap();
    (quota.grants, quota.limits.pids) = (3, 64);
    controllers.running[0].reload(&settings);
    let third = controllers.relay(93).await;
    let lost = first.node();
    first.close().await;
    let through =
        || through_relays(&here).iter().flat_map(|path| here.relays(&path.route)).collect::<Vec<_>>();
    until("a path through the third", || through().contains(&third.node())).await;
    assert!(!through().contains(&lost));
    carry(&here, &there, 100_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_was_kept_for_fewer_relays_is_used_where_the_quota_has_no_room_for_another() {
    let controllers = controller(128, (&[129], 130), 600).await;
    let mut settings = controllers.settings.clone();
    settings.policy.clients.get_mut(&key(130).public()).unwrap().grants = 1;
    controllers.running[0].reload(&settings);
    let _relay = controllers.relay(129).await;
    let client = node(130).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grants");
    let few = GrantWanted { relays: (1, 1), ..WANTED };
    drop(Grants::obtain(&client, &controllers.hints, few, Some(file.clone())).await.unwrap());
    let kept = controllers.grants(&client, &file).await.unwrap();
    assert_eq!(kept.relays().len(), 1);
}

/// Ends the relay like `kill -9`: the controller does not notice, and takes its successor for a second machine with
/// the key for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_granted_relay_that_is_killed_and_comes_back_at_another_port_is_found_again() {
    let controllers = controller(100, (&[101], 102), 600).await;
    let mut relay = controllers.relay(101).await;
    let (client, server) = (node(102).await, node(103).await);
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let (here, there, _paths) = session(&client, &server, &grants).await;
    until("a path through the relay", || through_relays(&here).len() == 1).await;
    // The session with the former relay would be given up after 20 s, of which 3 may have passed; the new one is
    // found before. A busy machine may be late.
    for bits in [1, 2, 4] {
        let former = relay.addresses()[0];
        relay.kill();
        let begin = Instant::now();
        relay = elsewhere(&controllers, 101, (former, bits)).await;
        carry(&here, &there, 100_000).await;
        let found = || grants.relays()[0].addresses == relay.addresses() && relay.status().flows == 1;
        while !found() {
            assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", relay.status());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = begin.elapsed();
        println!("back after {:.1} s", took.as_secs_f64());
        until("the path is back", || through_relays(&here).len() == 1).await;
        carry(&here, &there, 100_000).await;
        if took < Duration::from_secs(16) {
            return;
        }
    }
    panic!("never found before the session was given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_a_grant_opens_is_not_added_a_second_time_by_hand() {
    let controllers = controller(110, (&[111], 112), 600).await;
    let relay = controllers.relay(111).await;
    let (client, server) = (node(112).await, node(113).await);
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let (here, _there, paths) = session(&client, &server, &grants).await;
    let running = NodeSession::new(&client, &here, &[], &Peer::default()).beside(paths);
    until("a path through the relay", || through_relays(&here).len() == 1).await;
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    let refused = running.add(&route(&[&hint])).await.unwrap_err();
    let which = format!(
        "granted by a controller, or one of those to choose from: path {}",
        through_relays(&here)[0].id.0
    );
    assert!(refused.contains(&which), "{refused}");
    relay.kill();
    // An idle path misses nothing; it ends with the session to the relay, which may be silent for 20 s.
    until_within(Duration::from_secs(40), "the path is gone", || through_relays(&here).is_empty()).await;
    let refused = running.add(&route(&[&hint])).await.unwrap_err();
    assert!(refused.contains("is kept already"), "{refused}");
}
