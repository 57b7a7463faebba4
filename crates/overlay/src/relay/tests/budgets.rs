//! One key, one source and one guest never exceed their share, and the largest consumer yields first.

use super::*;
use crate::admission::{Full, SESSIONS_PER_KEY, SESSIONS_PER_SOURCE, SessionLimits};

fn closed(world: &mut World) -> Vec<(SessionId, Dismissal)> {
    std::iter::from_fn(|| world.relay.poll_close()).collect()
}

fn open(world: &mut World, number: u64, client: u8, address: &str) -> SessionId {
    let newcomer = Newcomer::new(key(client), Some(hop(address).address.ip()));
    world.relay.handle_session_opened(world.now, SessionId(number), newcomer);
    world.relay.handle_session_path(SessionId(number), PathId(0), Some(hop(address)));
    SessionId(number)
}

#[test]
fn a_listed_key_has_its_share_of_sessions_and_no_more() {
    let mut world = World::new();
    let per_key = SESSIONS_PER_KEY as u64;
    for number in 0..per_key {
        assert_eq!(world.relay.authorize(&key(1), None), Admission::ByKey);
        open(&mut world, number, 1, &format!("203.0.113.{number}:1000"));
    }
    assert_eq!(world.relay.authorize(&key(1), None), Admission::Busy);
    assert_eq!(world.relay.authorize(&key(2), None), Admission::ByKey, "others have theirs");
    // Handshakes that were answered before are confirmed now.
    for number in per_key..20_000 {
        open(&mut world, number, 1, "203.0.113.5:1000");
    }
    let dismissed = closed(&mut world);
    assert_eq!(dismissed.len() as u64, 20_000 - per_key);
    let full = Dismissal::Full(Full::Key(SESSIONS_PER_KEY));
    assert!(dismissed.iter().all(|(session, why)| session.0 >= per_key && *why == full));
    assert_eq!(world.relay.stats().sessions, SESSIONS_PER_KEY);
    world.relay.handle_session_closed(SessionId(0));
    assert_eq!(world.relay.authorize(&key(1), None), Admission::ByKey);
}

#[test]
fn a_source_has_its_share_of_sessions_whatever_keys_it_uses() {
    let mut world = World::with(|config| {
        config.listed = (1..=50).map(|client| (key(client), limits(8, 10.0))).collect();
    });
    for number in 0..SESSIONS_PER_SOURCE as u64 {
        open(&mut world, number, 1 + (number % 50) as u8, "[2606:4700::1]:5");
    }
    assert_eq!(closed(&mut world), []);
    let next = open(&mut world, 9_000, 50, "[2606:4700::2]:5");
    assert_eq!(closed(&mut world), [(next, Dismissal::Full(Full::Source(SESSIONS_PER_SOURCE)))]);
    open(&mut world, 9_001, 50, "[2606:4700:0:1::2]:5");
    assert_eq!(closed(&mut world), []);
}

#[test]
fn a_full_relay_ends_an_idle_session_of_the_largest_consumer_for_a_newcomer() {
    let mut world = World::with(|config| {
        config.sessions = SessionLimits { total: 8, per_key: 8, per_source: 8 };
    });
    let busy = world.open(0, 1, "203.0.113.5:1000");
    world.ready(busy, "198.51.99.7:1", Pid(1));
    for number in 1..8 {
        open(&mut world, number, 1, "203.0.113.5:1000");
    }
    let newcomer = open(&mut world, 8, 2, "203.0.113.6:1000");
    assert_eq!(closed(&mut world), [(SessionId(1), Dismissal::GaveWay)], "the oldest that carries nothing");
    world.relay.handle_session_closed(SessionId(1));
    let greedy = open(&mut world, 9, 1, "203.0.113.5:1000");
    assert_eq!(closed(&mut world), [(greedy, Dismissal::Full(Full::Total(8)))]);
    assert!(world.relay.clients.contains_key(&newcomer));
}

#[test]
fn a_session_of_a_measurer_counts_and_lasts_until_it_asks_for_something_that_it_may_not() {
    let mut world = World::new();
    let measurer = Newcomer { measures: true, ..Newcomer::new(key(5), Some([192, 0, 2, 1].into())) };
    for number in 0..SESSIONS_PER_KEY as u64 {
        world.relay.handle_session_opened(world.now, SessionId(number), measurer);
    }
    assert_eq!(world.relay.authorize(&key(5), None), Admission::Busy);
    world.wait(Span::from_secs(60));
    assert_eq!(closed(&mut world), []);
    world.ask(SessionId(0), Request::Hello { version: RELAY_VERSION });
    world.wait(Span::from_secs(11));
    assert_eq!(closed(&mut world), [(SessionId(0), Dismissal::NoBusiness)]);
}

#[test]
fn a_full_table_takes_from_the_key_with_most_paths_unless_the_newcomer_has_as_many() {
    let mut world = World::with(|config| config.most_flows = 10);
    let (large, small) = (world.open(1, 1, "203.0.113.5:1000"), world.open(2, 2, "203.0.113.6:1000"));
    let mut flows: Vec<FlowId> =
        (0..10).map(|out| world.ready(large, "198.51.99.7:1", Pid(1 + out)).0).collect();
    for out in 0..5 {
        let target = Target::Address { address: "198.51.99.8:1".parse().unwrap(), key: None };
        let request =
            Request::Allocate { request: 1, via: PathId(0), target, out: Pid(50 + out), back: BACK };
        world.relay.handle_request(world.now, small, request, None);
        let flow = flows.pop().unwrap();
        let state = FlowState::Denied;
        assert_eq!(world.relay.poll_reply(), Some((large, Reply::Flow { flow, state })), "its newest");
        assert!(matches!(world.relay.poll_reply(), Some((to, Reply::Allocated { .. })) if to == small));
    }
    for session in [small, large] {
        assert_eq!(world.allocate(session, "198.51.99.7:1", Pid(99)), Err(Refused::TableFull));
    }
}

fn host(flows: u32, pids: u32) -> (World, ShareId) {
    let mut world = World::with(|config| config.listed = [(key(1), limits(pids, 10.0))].into());
    let (share, hash) = (ShareId(3), TicketSecret::from_random([1; 16]));
    let host = world.open(1, 1, "203.0.113.5:1000");
    world.ask(host, Request::Host { share, hash, flows });
    (world, share)
}

fn guest(world: &mut World, number: u64, byte: u8, share: ShareId, address: &str) -> SessionId {
    let newcomer =
        Newcomer { share: Some(share), ..Newcomer::new(key(byte), Some(hop(address).address.ip())) };
    world.relay.handle_session_opened(world.now, SessionId(number), newcomer);
    world.relay.handle_session_path(SessionId(number), PathId(0), Some(hop(address)));
    world.ask(SessionId(number), Request::Hello { version: RELAY_VERSION });
    SessionId(number)
}

#[test]
fn sessions_that_take_over_each_others_shares_register_no_more_of_them() {
    let mut world = World::new();
    let sessions = [world.open(1, 1, "203.0.113.5:1000"), world.open(2, 1, "203.0.113.5:1001")];
    for share in 0..1_000 {
        for session in sessions {
            let hash = TicketSecret::from_random([1; 16]);
            world.ask(session, Request::Host { share: ShareId(share), hash, flows: 1 });
        }
    }
    assert_eq!(world.relay.shares.len(), 16);
    world.relay.handle_session_closed(sessions[1]);
    let hash = TicketSecret::from_random([1; 16]);
    let known = Request::Host { share: ShareId(0), hash: hash.clone(), flows: 1 };
    assert_eq!(world.ask(sessions[0], known), [Reply::Hosting { share: ShareId(0) }]);
    let further = Request::Host { share: ShareId(99), hash, flows: 1 };
    assert_eq!(world.ask(sessions[0], further), [Reply::Refused { request: 0, why: Refused::TooManyShares }]);
}

/// Allocates flows to the host until one is refused; ended flows of others are ignored.
fn take(world: &mut World, guest: SessionId) -> usize {
    let target = Target::Host;
    (0..)
        .take_while(|out| {
            let request =
                Request::Allocate { request: 1, via: PathId(0), target, out: Pid(1 + out), back: BACK };
            world.relay.handle_request(world.now, guest, request, None);
            let replies: Vec<_> = std::iter::from_fn(|| world.relay.poll_reply()).collect();
            replies.iter().any(|(to, reply)| *to == guest && matches!(reply, Reply::Allocated { .. }))
        })
        .count()
}

#[test]
fn a_guest_has_eight_of_its_hosts_paths_over_all_its_sessions() {
    let (mut world, share) = host(64, 128);
    let first = guest(&mut world, 2, 60, share, "192.88.1.1:5");
    assert_eq!(take(&mut world, first), 8);
    let second = guest(&mut world, 3, 60, share, "192.88.1.2:5");
    assert_eq!(take(&mut world, second), 0);
    let other = guest(&mut world, 4, 61, share, "192.88.1.2:5");
    assert_eq!(take(&mut world, other), 8);
}

#[test]
fn guests_of_one_source_that_took_all_paths_of_a_host_give_some_back_for_others() {
    for (flows, pids) in [(16, 128), (64, 32)] {
        let (mut world, share) = host(flows, pids);
        for number in 0..2 {
            let hoarder = guest(&mut world, 2 + number, 60 + number as u8, share, "192.88.1.1:5");
            assert_eq!(take(&mut world, hoarder), 8);
        }
        let honest = guest(&mut world, 9, 70, share, "192.88.2.1:5");
        assert_eq!(take(&mut world, honest), 8, "half of what there is");
        let third = guest(&mut world, 10, 71, share, "192.88.1.1:5");
        assert_eq!(take(&mut world, third), 0, "its source has as many as any other");
        assert_eq!(world.relay.stats().flows, 16);
    }
}

#[test]
fn guests_of_all_networks_of_one_ipv6_site_give_some_back_for_others() {
    let (mut world, share) = host(16, 128);
    for number in 0..16 {
        let address = format!("[2606:4700:0:{number:x}::1]:5");
        let hoarder = guest(&mut world, 20 + number, 60 + number as u8, share, &address);
        let request =
            Request::Allocate { request: 1, via: PathId(0), target: Target::Host, out: Pid(1), back: BACK };
        assert_eq!(world.ask(hoarder, request).len(), 2);
    }
    let honest = guest(&mut world, 9, 90, share, "192.88.2.1:5");
    assert_eq!(take(&mut world, honest), 8, "half of what there is");
    let neighbour = guest(&mut world, 10, 91, share, "[2606:4700:0:99::1]:5");
    assert_eq!(take(&mut world, neighbour), 0, "its site has as many as any other");
}

#[test]
fn no_guest_yields_to_another_while_the_relay_is_drained() {
    let (mut world, share) = host(16, 128);
    for number in 0..2 {
        let early = guest(&mut world, 2 + number, 60 + number as u8, share, "192.88.1.1:5");
        assert_eq!(take(&mut world, early), 8);
    }
    let late = guest(&mut world, 9, 70, share, "192.88.2.1:5");
    world.relay.drain(world.now, world.now + Span::from_secs(5));
    for _ in 0..10 {
        assert_eq!(take(&mut world, late), 0);
    }
    assert_eq!(world.relay.stats().flows, 16);
}
