//! Sessions whose only path leads through a relay that is restarted, killed or drained.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    address, carry, config, ip, join, keep, key, node, relay, restart, route, settings, through_relays,
    until, until_within,
};
use anabranch_daemon::relay::RelayService;
use anabranch_net::{
    Addresses, CloseReason, Config, Endpoint, PathId, PathInfo, PathRules, PathState, PathUse, Session, Span,
    TicketSecret,
};
use anabranch_node::{Dial, Grants, Hosting, Node, NodeSession, Peer, parse_rule};
use anabranch_secure::RelayHint;

/// Longest standstill of a session whose relay is restarted at once: the ends probe a relay after 3 s of silence, then
/// reconnect. A busy machine adds some.
const STANDSTILL: Duration = Duration::from_secs(15);

fn rules(words: &[&str]) -> PathRules {
    PathRules::new(words.iter().map(|word| parse_rule(word).unwrap()).collect())
}

/// Restarts a relay, as soon as its port is free.
async fn again(seed: u8, users: &[u8], hint: &RelayHint) -> RelayService {
    let mut settings = settings(seed, users);
    settings.port = hint.addresses[0].port();
    restart(seed, &settings).await
}

/// Sends while both ends live; counts the bytes received.
async fn flow(from: &Session, to: &Session) -> Arc<AtomicUsize> {
    let (arrived, from, to) = (Arc::<AtomicUsize>::default(), from.clone(), to.clone());
    let count = arrived.clone();
    tokio::spawn(async move {
        let mut stream = from.open_stream().await.unwrap();
        while stream.write_chunk(vec![1; 10_000].into()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    tokio::spawn(async move {
        let mut stream = to.accept_stream().await.unwrap();
        while let Ok(Some(part)) = stream.read_chunk(1 << 20).await {
            count.fetch_add(part.len(), Ordering::Relaxed);
        }
    });
    arrived
}

/// Time until this many more bytes have arrived.
async fn standstill(arrived: &AtomicUsize) -> Duration {
    let (begin, before) = (Instant::now(), arrived.load(Ordering::Relaxed));
    until("it goes on", || arrived.load(Ordering::Relaxed) > before + 1_000_000).await;
    begin.elapsed()
}

/// The paths that are not being closed. The server tries direct ones, which the client's rules refuse.
fn open(session: &Session) -> Vec<PathInfo> {
    let mut paths = session.paths();
    paths.retain(|path| path.state != PathState::Closing);
    paths
}

/// A session with the maker of a ticket whose direct addresses do not answer.
async fn meet(
    client: &Arc<Endpoint>,
    server: &Endpoint,
    (relays, secret): (&[RelayHint], &TicketSecret),
) -> (NodeSession, Session) {
    let dial = Dial::node(server.node(), vec!["127.0.0.29:9".parse().unwrap()]);
    let dial = dial.guest_of(relays.to_vec(), secret.clone());
    // The ends exchange their addresses, and would find each other on loopback.
    let config = Config { rules: rules(&["relay:*=primary", "*=never"]), ..config() };
    let client = Node::over(client.clone(), config);
    let accept = async { Ok(server.accept().await.expect("it takes sessions")) };
    // A failed connection ends the wait for the other end.
    tokio::try_join!(client.dial(&dial), accept).expect("a session")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_meeting_over_one_relay_goes_on_when_that_is_restarted_or_killed() {
    let (client, server) = (node(190).await, node(191).await);
    let (relay, hint) = relay(192, &[191]).await;
    let secret = TicketSecret::from_random([9; 16]);
    let mut hosting = Hosting::at(&server, hint.clone().into(), &Grants::default(), secret.clone());
    hosting.registered().await.unwrap();
    let (running, there) = meet(&client, &server, (std::slice::from_ref(&hint), &secret)).await;
    let here = running.session().clone();
    let arrived = flow(&there, &here).await;
    standstill(&arrived).await;
    let only = open(&here);
    assert!(only.len() == 1 && !here.relays(&only[0].route).is_empty(), "{only:?}");

    relay.close().await;
    let relay = again(192, &[191], &hint).await;
    let took = standstill(&arrived).await;
    assert!(took < STANDSTILL, "{took:?} after it was restarted");
    relay.kill();
    let _relay = again(192, &[191], &hint).await;
    let took = standstill(&arrived).await;
    assert!(took < STANDSTILL, "{took:?} after it was killed");
    until("what the relay forgot is closed", || open(&here).len() == 1).await;
    // The path counts like one named by hand.
    let refused = running.remove(through_relays(&here)[0].id.0).unwrap_err();
    assert!(refused.contains("the only one that is open"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_sessions_through_several_relays_only_the_first_stays() {
    let (client, server) = (node(181).await, node(182).await);
    let (first, second) = (relay(183, &[182]).await, relay(184, &[182]).await);
    let relays = [first.1.clone(), second.1.clone()];
    let secret = TicketSecret::from_random([9; 16]);
    let mut hosting = Vec::new();
    for hint in &relays {
        let mut at = Hosting::at(&server, hint.clone().into(), &Grants::default(), secret.clone());
        at.registered().await.unwrap();
        hosting.push(at);
    }
    let before = server.stats().sessions;
    let (mut running, mut accepted) = (Vec::new(), Vec::new());
    for number in 1..=5 {
        running.push(meet(&client, &server, (&relays, &secret)).await);
        // A later session exists; the silent first one would end only after 10 s.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let is_over = || server.stats().sessions == before + number;
        until_within(Duration::from_secs(8), "the others are over", is_over).await;
        // At this end either session may be the first.
        while let Ok(Some(other)) = tokio::time::timeout(Duration::ZERO, server.accept()).await {
            accepted.push(other);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_forwards_until_the_session_has_nothing_to_say_any_more() {
    let (client, server) = (node(186).await, node(187).await);
    let (relay, hint) = relay(188, &[187]).await;
    let secret = TicketSecret::from_random([9; 16]);
    let mut hosting = Hosting::at(&server, hint.clone().into(), &Grants::default(), secret.clone());
    hosting.registered().await.unwrap();
    let (running, there) = meet(&client, &server, (std::slice::from_ref(&hint), &secret)).await;
    let here = running.session();
    carry(here, &there, 10_000).await;
    assert_eq!(relay.status().flows, 1);
    here.close().await;
    until("the flow is given back", || relay.status().flows == 0).await;
    // The last answer may be lost; it is repeated on request.
    let forgotten = tokio::time::timeout(Duration::ZERO, here.forgotten());
    assert!(forgotten.await.is_ok(), "it was given back while the session lingered");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_closes_parts_from_its_relays_last() {
    for client_closes in [true, false] {
        let (client, server) = (node(185).await, node(189).await);
        let (_relay, hint) = relay(199, &[189]).await;
        let secret = TicketSecret::from_random([9; 16]);
        let mut hosting = Hosting::at(&server, hint.clone().into(), &Grants::default(), secret.clone());
        hosting.registered().await.unwrap();
        let (running, there) = meet(&client, &server, (std::slice::from_ref(&hint), &secret)).await;
        let (closes, hears) = if client_closes { (&*client, &there) } else { (&*server, running.session()) };
        let (_, reason) = tokio::join!(closes.close(), hears.closed());
        assert_eq!(reason, CloseReason::Finished, "the client closes: {client_closes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_only_relay_is_drained_waits_for_another_path() {
    let (client, server) = (node(193).await, node(194).await);
    let (relay, hint) = relay(195, &[193]).await;
    let (here, there) = join(&client, &server, 2).await;
    let running = NodeSession::new(&client, &here, &[route(&[&hint])], &Peer::default());
    until("a path through the relay", || through_relays(&here).len() == 1).await;
    running.set("0=never").unwrap();
    until("the direct path is closed", || here.paths().iter().all(|path| path.id != PathId::FIRST)).await;
    let drained = through_relays(&here)[0].id;

    relay.drain(Span::from_millis(100));
    relay.drained().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((here.close_reason(), there.close_reason()), (None, None));
    let refused = running.remove(drained.0).unwrap_err();
    assert!(refused.contains("the only one that is open"), "{refused}");
    // It refuses paths until it is restarted; then the remaining one is closed.
    relay.close().await;
    let relay = again(195, &[193], &hint).await;
    carry(&here, &there, 500_000).await;
    let is_gone = |path| here.paths().iter().all(|other| other.id != path);
    until("the drained path is closed", || is_gone(drained)).await;

    // The direct path serves as well.
    let drained = through_relays(&here)[0].id;
    relay.drain(Span::from_millis(100));
    relay.drained().await;
    here.set_path_rules(rules(&["*=primary"])).unwrap();
    carry(&there, &here, 500_000).await;
    until("the drained path is closed", || is_gone(drained)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_kept_no_longer_carries_on_until_another_one_works() {
    let (client, server) = (node(196).await, node(197).await);
    let (_relay, hint) = relay(198, &[196]).await;
    let (here, there) = join(&client, &server, 2).await;
    let paths = keep((&client, &server), &here, &[&hint]).await;
    here.set_path_rules(rules(&["relay:*=primary", "*=never"])).unwrap();
    until("the direct path is closed", || here.paths().iter().all(|path| path.id != PathId::FIRST)).await;
    drop(paths);
    tokio::time::sleep(Duration::from_millis(200)).await;
    carry(&here, &there, 500_000).await;
    here.set_path_rules(rules(&["*=primary"])).unwrap();
    until("only the direct path is left", || here.paths().len() == 1 && through_relays(&here).is_empty())
        .await;
    carry(&here, &there, 500_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_through_any_of_the_relays_of_which_one_is_used_at_a_time() {
    let server = node(144).await;
    let (relay, hint) = relay(145, &[143]).await;
    let silent = RelayHint { node: key(146).public(), addresses: vec!["127.0.0.146:9".parse().unwrap()] };
    let client = Node::builder().key(key(143)).addresses(Addresses::Exactly(vec![ip(143)]));
    let client = client.relays(vec![route(&[&silent]), route(&[&hint])]).start().await.unwrap();
    let dial = Dial::node(server.node(), vec![address(&server)]).relays_at_once(1);
    let dial = dial.path_rules(rules(&["relay:*=primary", "*=never"]));
    let accept = async { Ok(server.accept().await.expect("it takes sessions")) };
    let (running, there) = tokio::try_join!(client.dial(&dial), accept).unwrap();
    let here = running.session();
    carry(here, &there, 100_000).await;
    assert_eq!(here.relays(&open(here)[0].route), [relay.node()]);
    // The path on which the session began is the one in use.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((open(here).len(), relay.status().flows), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_address_of_a_relay_is_tried_next_to_pinned_paths() {
    let server = node(137).await;
    let mut settings = settings(135, &[134]);
    settings.addresses = vec![ip(135), ip(136)];
    let relay = RelayService::start(key(135), &settings).await.unwrap();
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    let client = Node::builder().key(key(134)).addresses(Addresses::Exactly(vec![ip(134)]));
    let client = client.relays(vec![route(&[&hint])]).start().await.unwrap();
    let dial = Dial::node(server.node(), vec![address(&server)]).pins(vec![(ip(134), address(&server))]);
    let accept = async { Ok(server.accept().await.expect("it takes sessions")) };
    let (running, there) = tokio::try_join!(client.dial(&dial), accept).unwrap();
    let here = running.session();
    here.set_path_use(PathId::FIRST, PathUse::Backup).unwrap();
    let _arrived = flow(here, &there).await;
    until("a path at each address", || through_relays(here).len() == 2).await;
}
