//! Sessions that may not use the relay: a flood of them does not keep others out.

use super::*;

/// The key of a stranger, one of many.
fn one_of_many(number: u64) -> PublicKey {
    let mut random = [200; 32];
    random[..8].copy_from_slice(&number.to_be_bytes());
    NodeKey::from_random(random).public()
}

/// A stranger opens a session from an address; returns the sessions that are dismissed for it.
fn open(world: &mut World, number: u64, address: &str) -> Vec<(SessionId, Dismissal)> {
    let (session, address_ip) = (SessionId(number), hop(address).address.ip());
    world.relay.handle_session_opened(
        world.now,
        session,
        Newcomer::new(one_of_many(number), Some(address_ip)),
    );
    world.relay.handle_session_path(session, PathId(0), Some(hop(address)));
    std::iter::from_fn(|| world.relay.poll_close()).collect()
}

#[test]
fn one_source_that_fills_all_places_with_many_keys_loses_its_own_sessions() {
    let mut world = World::with(|config| config.most_strangers = 16);
    // An IPv6 network is one source.
    let flooder = |number: u64| format!("[2606:4700::{number:x}]:1");
    (100..116).for_each(|number| assert_eq!(open(&mut world, number, &flooder(number)), []));
    assert_eq!(world.relay.authorize(&key(5), None), Admission::ByKey);
    let honest = world.open(200, 5, "203.0.113.5:1000");
    assert_eq!(world.relay.poll_close(), Some((SessionId(100), Dismissal::GaveWay)));
    for number in 300..1_300 {
        let [(loser, Dismissal::GaveWay)] = open(&mut world, number, &flooder(number))[..] else { panic!() };
        assert_ne!(loser, honest);
    }
    let grant = signer().sign(&grant(1, 5)).unwrap();
    assert!(matches!(world.ask(honest, Request::Show { grant })[..], [Reply::Granted { .. }]));
    world.wait(Span::from_secs(11));
    let closed: Vec<_> = std::iter::from_fn(|| world.relay.poll_close()).collect();
    assert_eq!(closed.len(), 15, "each once");
    assert!(closed.iter().all(|(session, why)| *session != honest && *why == Dismissal::NoBusiness));
    world.wait(Span::from_secs(2));
    assert_eq!(world.relay.poll_close(), None);
}

#[test]
fn all_networks_of_one_ipv6_site_lose_their_own_sessions() {
    let mut world = World::with(|config| config.most_strangers = 16);
    let flooder = |number: u64| format!("[2606:4700:0:{number:x}::1]:1");
    (100..116).for_each(|number| assert_eq!(open(&mut world, number, &flooder(number)), []));
    let honest = world.open(200, 5, "203.0.113.5:1000");
    assert_eq!(world.relay.poll_close(), Some((SessionId(100), Dismissal::GaveWay)));
    for number in 300..1_300 {
        let [(loser, Dismissal::GaveWay)] = open(&mut world, number, &flooder(number))[..] else { panic!() };
        assert_ne!(loser, honest);
    }
}

#[test]
fn a_key_that_may_not_use_the_relay_has_no_address_tried_or_looked_up() {
    let mut world = World::with(|config| config.next_hops.allow = vec!["10.1.0.0/16".parse().unwrap()]);
    let may_probe =
        |world: &World, number, address: &str| world.relay.may_probe(&key(number), address.parse().unwrap());
    let stranger = world.open(1, 5, "203.0.113.5:1000");
    assert!(!may_probe(&world, 5, "8.8.8.8:9") && !world.relay.may_allocate(stranger));
    let grant = signer().sign(&grant(1, 5)).unwrap();
    assert!(matches!(world.ask(stranger, Request::Show { grant })[..], [Reply::Granted { .. }]));
    assert!(world.relay.may_allocate(stranger));
    for number in [1, 5] {
        assert!(may_probe(&world, number, "8.8.8.8:9") && may_probe(&world, number, "10.1.2.3:9"));
        for forbidden in ["10.2.0.1:9", "169.254.169.254:80", "127.0.0.1:9", "224.0.0.1:9", "198.18.0.1:9"] {
            assert!(!may_probe(&world, number, forbidden), "{forbidden}");
        }
    }
}

#[test]
fn of_many_sources_the_oldest_gives_way() {
    let mut world = World::with(|config| config.most_strangers = 16);
    let source = |number: u64| format!("198.51.{}.{}:1", number / 256, number % 256);
    (0..16).for_each(|number| assert_eq!(open(&mut world, number, &source(number)), []));
    for number in 16..100 {
        let oldest = (SessionId(number - 16), Dismissal::GaveWay);
        assert_eq!(open(&mut world, number, &source(number)), [oldest]);
    }
}

#[test]
fn a_key_that_may_not_use_the_relay_has_four_sessions_and_other_keys_have_theirs() {
    let mut world = World::new();
    for number in 1..=4 {
        assert_eq!(world.relay.authorize(&key(5), None), Admission::ByKey);
        world.open(number, 5, "203.0.113.5:1000");
    }
    assert_eq!(world.relay.authorize(&key(5), None), Admission::Busy);
    assert_eq!(world.relay.authorize(&key(6), None), Admission::ByKey);
    // These handshakes were answered before.
    world.open(5, 5, "203.0.113.5:1000");
    assert_eq!(world.relay.poll_close(), Some((SessionId(1), Dismissal::GaveWay)));
    // A session that shows a grant does so for all sessions of its key.
    let grant = signer().sign(&grant(1, 5)).unwrap();
    world.ask(SessionId(5), Request::Show { grant });
    assert_eq!(world.relay.authorize(&key(5), None), Admission::ByKey);
}

#[test]
fn a_guest_needs_a_place_until_it_has_a_flow() {
    let mut world = World::new();
    let (share, hash) = (ShareId(3), TicketSecret::from_random([1; 16]));
    let host = world.open(1, 1, "203.0.113.5:1000");
    world.ask(host, Request::Host { share, hash: hash.clone(), flows: 8 });
    for number in 2..6 {
        assert_eq!(world.relay.authorize(&key(60), Some(share)), Admission::Guest(hash.clone()));
        world.relay.handle_session_opened(world.now, SessionId(number), as_guest(60, share));
        world.relay.handle_session_path(SessionId(number), PathId(0), Some(hop("192.88.1.1:5")));
    }
    assert_eq!(world.relay.authorize(&key(60), Some(share)), Admission::Busy);
    world.ask(SessionId(2), Request::Hello { version: RELAY_VERSION });
    let request =
        Request::Allocate { request: 1, via: PathId(0), target: Target::Host, out: Pid(9), back: BACK };
    assert!(matches!(world.ask(SessionId(2), request)[..], [Reply::Allocated { .. }, ..]));
    assert_eq!(world.relay.authorize(&key(60), Some(share)), Admission::Guest(hash));
}

/// A host that takes eight flows, and its guest.
fn host_and_guest(world: &mut World) -> (SessionId, SessionId) {
    let (share, hash) = (ShareId(3), TicketSecret::from_random([1; 16]));
    let host = world.open(1, 1, "203.0.113.5:1000");
    world.ask(host, Request::Host { share, hash, flows: 8 });
    let guest = SessionId(2);
    world.relay.handle_session_opened(world.now, guest, as_guest(60, share));
    world.relay.handle_session_path(guest, PathId(0), Some(hop("192.88.1.1:5")));
    world.ask(guest, Request::Hello { version: RELAY_VERSION });
    (host, guest)
}

#[test]
fn a_guest_does_not_use_up_its_hosts_questions_to_next_hops() {
    let mut world = World::new();
    let (host, guest) = host_and_guest(&mut world);
    for out in 0..1_000 {
        let (via, target, out) = (PathId(0), Target::Host, Pid(out));
        let request = Request::Allocate { request: 1, via, target, out, back: BACK };
        let [Reply::Allocated { flow, .. }, ..] = world.ask(guest, request)[..] else { panic!("{out:?}") };
        world.ask(guest, Request::Release { flow });
    }
    assert!(world.allocate(host, "198.51.99.7:1", Pid(1)).is_ok());
}

#[test]
fn a_guest_whose_flow_has_ended_has_time_to_ask_for_another() {
    let mut world = World::new();
    let (_, guest) = host_and_guest(&mut world);
    let (via, target, out) = (PathId(0), Target::Host, Pid(9));
    let request = Request::Allocate { request: 1, via, target, out, back: BACK };
    let [Reply::Allocated { flow, .. }, ..] = world.ask(guest, request)[..] else { panic!("no flow") };
    world.wait(Span::from_secs(30));
    world.ask(guest, Request::Release { flow });
    world.wait(Span::from_secs(5));
    assert_eq!(world.relay.poll_close(), None);
    world.wait(Span::from_secs(8));
    assert_eq!(world.relay.poll_close(), Some((guest, Dismissal::NoBusiness)));
}
