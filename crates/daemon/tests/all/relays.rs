//! Paths through relays, with real sockets on loopback.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::{
    address, carry, carry_through, config, ip, join, keep, key, node, relay, restart, route, settings,
    through_relays, until,
};
use anabranch_daemon::relay::RelayService;
use anabranch_net::{PathId, PathRules, PathUse, Pid, Session, Target, TicketSecret};
use anabranch_node::{
    Dial, Entry, Grants, Hosting, Node, NodeSession, Peer, RelayChain, RelayError, RelayPaths, RelayRoute,
    parse_rule,
};
use anabranch_secure::RelayHint;
use tokio::runtime::Handle;

/// Has both ends use the first path only if no other works.
async fn spare_the_direct_path(here: &Session, there: &Session) {
    here.set_path_use(PathId::FIRST, PathUse::Backup).unwrap();
    let spared =
        || there.paths().iter().any(|path| path.id == PathId::FIRST && path.usage == PathUse::Backup);
    until("the direct path is spared", spared).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_through_a_relay_carries_data_by_itself_both_ways() {
    let (client, server) = (node(2).await, node(3).await);
    let (relay, hint) = relay(4, &[2]).await;
    let (here, there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &[&hint]).await;
    spare_the_direct_path(&here, &there).await;
    let forwarded = || relay.status().forwarded_bytes;
    carry_through(&here, &there, 2_000_000, forwarded).await;
    carry_through(&there, &here, 2_000_000, forwarded).await;
    let status = relay.status();
    assert_eq!((status.sessions, status.flows), (1, 1));
    let seen = there.paths().iter().any(|path| path.route.remote == hint.addresses[0]);
    assert!(seen, "the server sees the relay");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_one_behind_the_other_carry_a_path() {
    let (client, server) = (node(12).await, node(13).await);
    let (near, near_hint) = relay(14, &[12]).await;
    let (far, far_hint) = relay(15, &[12]).await;
    let (here, there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &[&near_hint, &far_hint]).await;
    assert_eq!(here.relays(&through_relays(&here)[0].route), [near.node(), far.node()]);
    spare_the_direct_path(&here, &there).await;
    let forwarded = || near.status().forwarded_bytes.min(far.status().forwarded_bytes);
    carry_through(&here, &there, 1_000_000, forwarded).await;
    carry_through(&there, &here, 1_000_000, forwarded).await;
    assert!(there.paths().iter().any(|path| path.route.remote == far_hint.addresses[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_relay_of_a_chain_is_reached_at_the_first_of_its_addresses_that_answers() {
    let (client, server) = (node(170).await, node(171).await);
    let (_near, near_hint) = relay(172, &[170]).await;
    let (far, mut far_hint) = relay(173, &[170]).await;
    // Nothing answers there, and the near relay has no IPv6 address.
    far_hint.addresses.splice(0..0, [SocketAddr::new(ip(174), 9), "[::1]:9".parse().unwrap()]);
    let (here, _there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &[&near_hint, &far_hint]).await;
    assert!(far.status().flows > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_may_lead_through_four_relays_one_behind_the_other() {
    let (client, server) = (node(45).await, node(46).await);
    let (mut services, mut hints) = (Vec::new(), Vec::new());
    for seed in 47..51 {
        let (service, hint) = relay(seed, &[45]).await;
        services.push(service);
        hints.push(hint);
    }
    let (here, there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &hints.iter().collect::<Vec<_>>()).await;
    here.set_path_use(PathId::FIRST, PathUse::Backup).unwrap();
    let forwarded = || services.iter().map(|service| service.status().forwarded_bytes).min().unwrap();
    carry_through(&here, &there, 200_000, forwarded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_be_reached_is_met_at_its_relay_by_holders_of_its_ticket_only() {
    let (client, server) = (node(22).await, node(23).await);
    // Only the server is listed.
    let (relay, hint) = relay(24, &[23]).await;
    let secret = TicketSecret::from_random([9; 16]);
    let mut hosting = Hosting::at(&server, hint.clone().into(), &Grants::default(), secret.clone());
    hosting.registered().await.unwrap();
    // This address does not answer.
    let dial = |secret: &TicketSecret| {
        let dial = Dial::node(server.node(), vec!["127.0.0.29:9".parse().unwrap()]);
        dial.guest_of(vec![hint.clone()], secret.clone())
    };
    let stranger = TicketSecret::from_random([8; 16]);
    let quick = || anabranch_net::Config { connect_timeout: anabranch_net::Span::from_secs(3), ..config() };
    assert!(Node::over(client.clone(), quick()).dial(&dial(&stranger)).await.is_err());
    let (client, dial) = (Node::over(client, config()), dial(&secret));
    let (dialed, there) = tokio::join!(client.dial(&dial), server.accept());
    let (here, there) = (dialed.unwrap().session().clone(), there.unwrap());
    carry(&here, &there, 500_000).await;
    carry(&there, &here, 500_000).await;
    assert!(relay.status().forwarded_bytes > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_was_named_is_not_added_again_with_more_addresses() {
    let (client, server) = (node(60).await, node(61).await);
    let (_relay, hint) = relay(62, &[60]).await;
    let (here, _there) = join(&client, &server, 2).await;
    let running = NodeSession::new(&client, &here, &[route(&[&hint])], &Peer::default());
    until("a path through the relay", || through_relays(&here).len() == 1).await;
    let mut addresses = hint.addresses.clone();
    addresses.insert(0, "192.0.2.1:4600".parse().unwrap());
    let again = route(&[&RelayHint { addresses, ..hint }]);
    let refused = running.add(&again).await.unwrap_err();
    assert!(refused.contains("kept already, named or added before: path"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_ways_to_one_relay_the_one_that_was_meant_is_removed_and_added() {
    let (client, server) = (node(63).await, node(64).await);
    let mut settings = settings(65, &[63]);
    settings.addresses = vec![ip(65), ip(66)];
    let relay = RelayService::start(key(65), &settings).await.unwrap();
    let entries = relay.addresses();
    let ways = [0, 1].map(|at| route(&[&RelayHint { node: relay.node(), addresses: vec![entries[at]] }]));
    let (here, _there) = join(&client, &server, 4).await;
    let running = NodeSession::new(&client, &here, &ways, &Peer::default());
    let to = |entry: SocketAddr| {
        let path = through_relays(&here).into_iter().find(|path| path.route.remote == entry);
        path.map(|path| path.id)
    };
    until("a path by each address", || to(entries[0]).is_some() && to(entries[1]).is_some()).await;
    let [first, second] = [0, 1].map(|at| to(entries[at]).unwrap());
    let mut twice = String::new();
    for _ in 0..100 {
        twice = running.add(&ways[1]).await.unwrap_err();
        // Its keeper learns of the path a moment after the session.
        if !twice.ends_with("at the moment") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(twice.ends_with(&format!("path {}", second.0)), "{twice}");

    running.remove(second.0).unwrap();
    running.add(&ways[1]).await.unwrap();
    assert!(to(entries[1]).is_some_and(|path| path != second), "`add` returns once the path is open");
    assert_eq!(to(entries[0]), Some(first), "the other one was left alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_add_the_same_path_at_the_same_moment_one_is_refused() {
    let (client, server) = (node(67).await, node(68).await);
    let (here, _there) = join(&client, &server, 1).await;
    let running = NodeSession::new(&client, &here, &[], &Peer::default());
    // This address does not answer, so an addition that is not refused at once waits for its path.
    let waits = |way: &RelayRoute, start: &Barrier, runtime: &Handle| {
        let _in_runtime = runtime.enter();
        start.wait();
        let mut context = Context::from_waker(Waker::noop());
        pin!(running.add(way)).poll(&mut context).is_pending()
    };
    let (start, runtime) = (Barrier::new(2), Handle::current());
    for port in 1..=200 {
        let hint = RelayHint { node: key(69).public(), addresses: vec![SocketAddr::new(ip(69), port)] };
        let way = route(&[&hint]);
        let [first, second] = std::thread::scope(|scope| {
            let both = [0, 1].map(|_| scope.spawn(|| waits(&way, &start, &runtime)));
            both.map(|thread| thread.join().unwrap())
        });
        assert!(first != second, "both waited, or none did");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_hop_that_does_not_answer_is_named() {
    let client = node(117).await;
    let (_relay, hint) = relay(118, &[117]).await;
    let chain = RelayChain::open(&client, &[hint], &Entry::default()).await.unwrap();
    // This address does not answer.
    let nobody = SocketAddr::new(ip(119), 9);
    let prepared = chain.prepare(Some((nobody, key(119).public())), (Pid(7), client.new_pid()), None).await;
    assert_eq!(prepared.err(), Some(RelayError::Unanswered(nobody)));
}

/// The client gives up while the relay asks a next hop that does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_given_up_while_it_is_opened_leaves_its_place() {
    let (client, server) = (node(157).await, node(158).await);
    let (relay, hint) = relay(159, &[157]).await;
    let mut target = Target::new(server.node(), vec![address(&server)]);
    target.relayed = 1;
    let few = anabranch_net::Config { max_paths: 2, ..config() };
    let (here, there) = tokio::join!(client.connect(&target, few), server.accept());
    let (here, _there) = (here.unwrap(), there.unwrap());
    until("the direct path", || here.paths().len() == 1).await;
    let nobody = Peer { addresses: vec![SocketAddr::new(ip(160), 9)], entry: Entry::default() };
    let given_up = RelayPaths::keep(&client, &here, &[route(&[&hint])], &nobody);
    until("the relay asks", || relay.status().flows == 1).await;
    drop(given_up);
    let _paths = keep((&client, &server), &here, &[&hint]).await;
}

/// This thread runs all tasks, so that none hears the events before there are too many.
#[tokio::test]
async fn a_path_whose_end_is_lost_among_many_events_opens_again() {
    let (client, server) = (node(205).await, node(207).await);
    let (_relay, hint) = relay(208, &[205]).await;
    let (here, _there) = join(&client, &server, 2).await;
    let _paths = keep((&client, &server), &here, &[&hint]).await;
    here.close_path(through_relays(&here)[0].id);
    for rule in ["*=backup", "*=primary"].iter().cycle().take(1_000) {
        here.set_path_rules(PathRules::new(vec![parse_rule(rule).unwrap()])).unwrap();
    }
    until("it is open again", || through_relays(&here).len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_never_opened_is_taken_back_by_its_relay_and_may_be_added_again() {
    let (client, server) = (node(161).await, node(162).await);
    // One relay does not list the client, and there is no relay at the other's address.
    let (refusing, hint) = relay(163, &[]).await;
    let silent = RelayHint { node: key(164).public(), addresses: vec![SocketAddr::new(ip(164), 9)] };
    let (here, there) = join(&client, &server, 1).await;
    let running = NodeSession::new(&client, &here, &[], &Peer::default());
    for (way, is_refused) in [(route(&[&hint]), true), (route(&[&silent]), false)] {
        let unknown = running.take_back(&way).await.unwrap_err();
        assert!(unknown.contains("no path through") && unknown.contains("named or added"), "{unknown}");
        let (adding, other) = (running.clone(), way.clone());
        let adding = tokio::spawn(async move { adding.add(&other).await });
        if is_refused {
            let why = adding.await.unwrap().unwrap_err();
            assert!(why.contains("`path remove`"), "{why}");
            // The hint includes the key to list.
            assert!(why.contains("`[[user]]`") && why.contains(&client.node().to_string()), "{why}");
            running.take_back(&way).await.unwrap();
        } else {
            let taken_back = async {
                while running.take_back(&way).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), taken_back).await.expect("it is known");
            let why = adding.await.unwrap().unwrap_err();
            assert!(why.contains("was taken back"), "{why}");
        }
        assert!(running.take_back(&way).await.is_err(), "once");
    }
    refusing.close().await;
    let mut listing = settings(163, &[161]);
    listing.port = hint.addresses[0].port();
    let _relay = restart(163, &listing).await;
    running.add(&route(&[&hint])).await.unwrap();
    // The same request closes an open path.
    running.take_back(&route(&[&hint])).await.unwrap();
    until("it is closed", || through_relays(&here).is_empty()).await;
    carry(&here, &there, 100_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_path_that_is_open_is_not_removed_by_hand() {
    let (client, server) = (node(26).await, node(27).await);
    let (_relay, hint) = relay(28, &[26]).await;
    let (here, there) = join(&client, &server, 1).await;
    // Without an address of the peer, the direct path's address is used.
    let running = NodeSession::new(&client, &here, &[route(&[&hint])], &Peer::default());
    until("a path through the relay", || through_relays(&here).len() == 1).await;
    running.set("0=never").unwrap();
    let closed = || here.paths().iter().all(|path| path.id != PathId::FIRST);
    until("the direct path is closed", closed).await;
    let refused = running.remove(through_relays(&here)[0].id.0).unwrap_err();
    assert!(refused.contains("the only one that is open"), "{refused}");
    let refused = running.take_back(&route(&[&hint])).await.unwrap_err();
    assert!(refused.contains("the only one that is open"), "{refused}");
    carry(&here, &there, 500_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_restarted_carries_again_by_itself() {
    let (client, server) = (node(32).await, node(33).await);
    let (relay, hint) = relay(34, &[32]).await;
    let (here, there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &[&hint]).await;
    relay.close().await;
    until("the path is gone", || through_relays(&here).is_empty()).await;
    carry(&here, &there, 100_000).await;
    let mut again = settings(34, &[32]);
    again.port = hint.addresses[0].port();
    let restarted = restart(34, &again).await;
    until("it is back", || through_relays(&here).len() == 1).await;
    carry(&here, &there, 1_000_000).await;
    assert_eq!(restarted.status().flows, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_drains_lets_paths_end_and_sessions_move_on() {
    let (client, server) = (node(42).await, node(43).await);
    let (relay, hint) = relay(44, &[42]).await;
    let (here, there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &[&hint]).await;
    relay.drain(anabranch_net::Span::from_millis(200));
    relay.drained().await;
    assert!(relay.status().draining && relay.status().flows == 0);
    carry(&here, &there, 100_000).await;
    until("the path is gone", || through_relays(&here).is_empty()).await;
}
