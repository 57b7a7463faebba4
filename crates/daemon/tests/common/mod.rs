//! Nodes and relays on loopback addresses of their own.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod controllers;
pub mod network;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{RelaySettings, User};
use anabranch_net::{
    Addresses, Endpoint, EndpointConfig, Event, NodeKey, PathChange, PathInfo, PathState, PublicKey, Session,
    ShareId, Target, Verdict,
};
use anabranch_node::{Entry, Peer, RelayPaths, RelayRoute};
use anabranch_secure::RelayHint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

pub fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

pub fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// A node that admits every peer.
pub async fn node(seed: u8) -> Arc<Endpoint> {
    let config = EndpointConfig::new(key(seed))
        .addresses(Addresses::Exactly(vec![ip(seed)]))
        .session(config())
        .authorize(|_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None });
    Arc::new(Endpoint::bind(config).await.expect("a node on loopback"))
}

pub fn address(endpoint: &Endpoint) -> SocketAddr {
    endpoint.local_addresses()[0]
}

/// Settings of a relay at `127.0.0.seed` that lists these nodes.
pub fn settings(seed: u8, users: &[u8]) -> RelaySettings {
    RelaySettings::local(ip(seed), users.iter().map(|user| User::new("user", key(*user).public())).collect())
}

pub async fn relay(seed: u8, users: &[u8]) -> (RelayService, RelayHint) {
    let relay = RelayService::start(key(seed), &settings(seed, users)).await.expect("a relay on loopback");
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    (relay, hint)
}

pub fn route(hints: &[&RelayHint]) -> RelayRoute {
    RelayRoute(hints.iter().map(|hint| (*hint).clone().into()).collect())
}

/// Keeps a path through these relays, one behind the other, and waits until it is open.
pub async fn keep(ends: (&Arc<Endpoint>, &Endpoint), here: &Session, chain: &[&RelayHint]) -> RelayPaths {
    let peer = Peer { addresses: vec![address(ends.1)], entry: Entry::default() };
    let paths = RelayPaths::keep(ends.0, here, &[route(chain)], &peer);
    until("a path through the relays", || through_relays(here).len() == 1).await;
    paths
}

/// A session whose only direct path is the one between the two nodes' addresses.
pub async fn join(client: &Endpoint, server: &Endpoint, relayed: u32) -> (Session, Session) {
    let mut target = Target::new(server.node(), vec![address(server)]);
    target.pins = vec![(address(client).ip(), address(server))];
    target.relayed = relayed;
    let accept = async { Ok(server.accept().await.expect("it takes sessions")) };
    // A failed connection ends the wait for the other end.
    tokio::try_join!(client.connect(&target, config()), accept).expect("a session")
}

pub fn config() -> anabranch_net::Config {
    anabranch_net::Config { max_paths: 64, ..anabranch_net::Config::default() }
}

pub fn through_relays(session: &Session) -> Vec<PathInfo> {
    let usable = |path: &PathInfo| path.state == PathState::Active && !session.relays(&path.route).is_empty();
    session.paths().into_iter().filter(usable).collect()
}

/// Counts how often a session doubts one of its paths. On a busy machine acknowledgements are late, and other paths
/// take over for a moment, as they should.
pub fn doubts(session: &Session) -> Arc<AtomicUsize> {
    let (mut events, count) = (session.events(), Arc::<AtomicUsize>::default());
    let counted = count.clone();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if let Event::Path { change: PathChange::Suspect | PathChange::Failed, .. } = event {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    count
}

/// Waits until a condition holds, 20 s at most.
pub async fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(Duration::from_secs(20), what, is_so).await;
}

/// Waits until a condition holds, for `limit` at most.
pub async fn until_within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(limit, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Carries bytes of which all pass the relays, as `forwarded` counts them. Only a doubted path, which a busy machine may
/// cause, is a reason to carry them once more.
pub async fn carry_through(from: &Session, to: &Session, len: usize, forwarded: impl Fn() -> u64) {
    let doubted = [doubts(from), doubts(to)];
    let doubts = || doubted.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>();
    for _ in 0..5 {
        let before = (forwarded(), doubts());
        carry(from, to, len).await;
        let passed = forwarded() - before.0;
        if passed > len as u64 {
            return;
        }
        // The events of the session may be late.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(doubts() > before.1, "only {passed} of {len} bytes passed, although no path was doubted");
    }
    panic!("a path is doubted all the time");
}

/// Starts a relay, as soon as its port is free.
pub async fn restart(seed: u8, settings: &RelaySettings) -> RelayService {
    loop {
        match RelayService::start(key(seed), settings).await {
            Ok(relay) => return relay,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Sends bytes from one end to the other and compares them.
pub async fn carry(from: &Session, to: &Session, len: usize) {
    let data: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
    let expected = data.clone();
    let send = async {
        let mut stream = from.open_stream().await.unwrap();
        stream.write_all(&data).await.unwrap();
        stream.shutdown().await.unwrap();
        stream
    };
    let receive = async {
        let mut stream = to.accept_stream().await.unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).await.unwrap();
        got
    };
    let both = async { tokio::join!(send, receive) };
    let (_, got) = timeout(Duration::from_secs(60), both).await.expect("the bytes arrive");
    assert!(got == expected, "what arrived is not what was sent");
}
