//! Grants, quotas, guests, consent that lapses, draining.

use super::*;
use crate::grant::GuestSecret;

#[test]
fn a_grant_opens_the_relay_and_showing_it_twice_adds_nothing() {
    let mut world = World::new();
    let session = world.open(1, 5, "203.0.113.5:1000");
    assert_eq!(world.allocate(session, "198.51.99.7:1", Pid(1)), Err(Refused::NotGranted));
    let bytes = signer().sign(&grant(1, 5)).unwrap();
    let granted = Reply::Granted { id: GrantId([1; 16]), limits: limits(8, 1_000.0) };
    for _ in 0..2 {
        let replies = world.ask(session, Request::Show { grant: bytes.clone() });
        assert_eq!(replies.as_slice(), std::slice::from_ref(&granted));
    }
    for number in 1..=4 {
        world.ready(session, "198.51.99.7:1", Pid(number));
    }
    assert_eq!(world.allocate(session, "198.51.99.7:1", Pid(9)), Err(Refused::TooManyPids));
    // Another grant adds its own.
    world.ask(session, Request::Show { grant: signer().sign(&grant(2, 5)).unwrap() });
    assert!(world.allocate(session, "198.51.99.7:1", Pid(9)).is_ok());
}

#[test]
fn a_renewed_grant_adds_nothing_but_time_and_its_paths_outlive_its_first_end() {
    let mut world = World::new();
    let session = world.open(1, 5, "203.0.113.5:1000");
    let show = |grant: &Grant| Request::Show { grant: signer().sign(grant).unwrap() };
    let first = grant(1, 5);
    let renewed = Grant { not_after: UnixTime(first.not_after.0 + 3_600), ..first.clone() };
    let granted = Reply::Granted { id: GrantId([1; 16]), limits: limits(8, 1_000.0) };
    assert_eq!(world.ask(session, show(&first)), std::slice::from_ref(&granted));
    let (_, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    // The later end counts, in whichever order they are shown.
    for shown in [&renewed, &first] {
        assert_eq!(world.ask(session, show(shown)), std::slice::from_ref(&granted));
    }
    let later = Heartbeat { time: UnixTime(first.not_after.0 + 31), revoked: vec![] };
    world.relay.handle_heartbeat(world.now, &key(200), &later);
    assert_eq!(world.replies(session), []);
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some());
    let end = Heartbeat { time: UnixTime(renewed.not_after.0 + 31), revoked: vec![] };
    world.relay.handle_heartbeat(world.now, &key(200), &end);
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_none());
}

#[test]
fn bytes_used_of_a_grant_stay_used_when_its_client_comes_back_or_the_relay_restarts() {
    let few = Grant { limits: Limits { bytes: 350, ..limits(8, 1_000.0) }, ..grant(1, 5) };
    let bytes = signer().sign(&few).unwrap();
    let left = |replies: &[Reply]| match replies {
        [Reply::Granted { limits, .. }] => limits.bytes,
        other => panic!("{other:?}"),
    };
    let mut world = World::new();
    let session = world.open(1, 5, "203.0.113.5:1000");
    assert_eq!(left(&world.ask(session, Request::Show { grant: bytes.clone() })), 350);
    let (flow, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    for _ in 0..3 {
        assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some());
    }
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_none(), "50 bytes are left");
    assert_eq!(world.relay.stats().dropped.quota, 1);
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::QuotaUsed }]);
    assert_eq!(world.allocate(session, "198.51.99.7:1", Pid(1)), Err(Refused::QuotaUsed));
    world.relay.handle_session_closed(session);
    let session = world.open(2, 5, "203.0.113.5:1000");
    assert_eq!(left(&world.ask(session, Request::Show { grant: bytes.clone() })), 0, "the rest is of no use");

    let mut restarted = World::new();
    restarted.relay.restore_usage(world.relay.usage());
    let session = restarted.open(1, 5, "203.0.113.5:1000");
    assert_eq!(left(&restarted.ask(session, Request::Show { grant: bytes })), 0);
}

#[test]
fn an_ended_or_revoked_grant_takes_its_flows_with_it() {
    for revoked in [false, true] {
        let mut world = World::new();
        let session = world.open(1, 5, "203.0.113.5:1000");
        world.ask(session, Request::Show { grant: signer().sign(&grant(1, 5)).unwrap() });
        let (flow, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
        let heartbeat = if revoked {
            Heartbeat { time: UnixTime(WALL + 10), revoked: vec![GrantId([1; 16])] }
        } else {
            Heartbeat { time: UnixTime(WALL + 3_600 + 31), revoked: vec![] }
        };
        world.relay.handle_heartbeat(world.now, &key(200), &heartbeat);
        assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::GrantEnded }]);
        assert_eq!(world.packet(hop("203.0.113.5:1000"), pid), None);
        let why = if revoked { Refused::GrantRevoked } else { Refused::GrantExpired };
        let again = world.ask(session, Request::Show { grant: signer().sign(&grant(1, 5)).unwrap() });
        assert_eq!(again, [Reply::Refused { request: 0, why }]);
    }
}

#[test]
fn a_controllers_clock_that_leaps_ends_no_path_and_has_nothing_forgotten_however_long_it_lasts() {
    let mut world = World::new();
    let says = |world: &mut World, ahead: u64, revoked: Vec<GrantId>| {
        let passed = world.now.since(Time::ZERO).as_nanos() / 1_000_000_000;
        let heartbeat = Heartbeat { time: UnixTime(WALL + passed + ahead), revoked };
        world.relay.handle_heartbeat(world.now, &key(200), &heartbeat).clock
    };
    let session = world.open(1, 5, "203.0.113.5:1000");
    world.ask(session, Request::Show { grant: signer().sign(&grant(1, 5)).unwrap() });
    says(&mut world, 0, vec![GrantId([2; 16])]);
    let (flow, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some());
    world.now += Span::from_secs(20);
    for _ in 0..4 {
        assert_eq!(says(&mut world, 7_200, vec![]), ClockVerdict::Apart(7_200));
        world.now += Span::from_secs(2);
    }
    assert_eq!(world.replies(session), []);
    // The leap lasts and is adopted: grants in use go on, new ones are judged by the new time.
    let far = 100 * 86_400;
    for _ in 0..200 {
        says(&mut world, far, vec![]);
        world.now += Span::from_secs(2);
    }
    assert_eq!(world.replies(session), []);
    let late = world.ask(session, Request::Show { grant: signer().sign(&grant(3, 5)).unwrap() });
    assert_eq!(late, [Reply::Refused { request: 0, why: Refused::GrantExpired }]);
    let used = world.relay.usage();
    assert!(used.len() == 2 && used[0].bytes > 0 && used[1].revoked, "{used:?}");
    // The leap is over; usage was remembered, and the grant ends when it would have.
    let end = Time::ZERO + Span::from_secs(3_600 + 30);
    while world.now <= end {
        says(&mut world, 0, vec![]);
        assert_eq!(world.replies(session), [], "{:?}", world.now);
        world.now += Span::from_secs(2);
    }
    says(&mut world, 0, vec![]);
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::GrantEnded }]);
    assert_eq!(world.relay.usage().len(), 2);
    // By the right time both are forgotten after their end.
    world.now += Span::from_secs(4_000);
    says(&mut world, 0, vec![]);
    world.now += Span::from_secs(3_600);
    says(&mut world, 0, vec![]);
    assert_eq!(world.relay.usage().iter().filter(|known| !known.revoked).count(), 0);
}

#[test]
fn a_controllers_clock_that_was_ahead_and_is_set_right_prolongs_no_grant() {
    let mut world = World::new();
    let ahead = 86_400;
    let says = |world: &mut World, ahead: u64| {
        let passed = world.now.since(Time::ZERO).as_nanos() / 1_000_000_000;
        let heartbeat = Heartbeat { time: UnixTime(WALL + passed + ahead), revoked: vec![] };
        world.relay.handle_heartbeat(world.now, &key(200), &heartbeat);
    };
    says(&mut world, ahead);
    world.now += Span::from_secs(20);
    let session = world.open(1, 5, "203.0.113.5:1000");
    let first = grant(1, 5);
    let signed_ahead = Grant {
        not_before: UnixTime(first.not_before.0 + ahead),
        not_after: UnixTime(first.not_after.0 + ahead),
        ..first.clone()
    };
    world.ask(session, Request::Show { grant: signer().sign(&signed_ahead).unwrap() });
    let (flow, _, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    let until = |world: &mut World, seconds: u64| {
        while world.now < Time::ZERO + Span::from_secs(seconds) {
            world.now += Span::from_secs(2);
            says(world, 0);
        }
        !world.replies(session).contains(&Reply::Flow { flow, state: FlowState::GrantEnded })
    };
    assert!(until(&mut world, 3_600), "for as long as it was good");
    // Renewed by the right time, it lasts longer.
    let renewed = Grant { not_after: UnixTime(first.not_after.0 + 60), ..first };
    world.ask(session, Request::Show { grant: signer().sign(&renewed).unwrap() });
    assert!(until(&mut world, 3_680));
    assert!(!until(&mut world, 3_700), "and no longer");
}

#[test]
fn a_revocation_outlives_a_restart_of_the_relay() {
    let mut world = World::new();
    let heartbeat = Heartbeat { time: UnixTime(WALL + 10), revoked: vec![GrantId([1; 16])] };
    world.relay.handle_heartbeat(world.now, &key(200), &heartbeat);
    let mut restarted = World::new();
    restarted.relay.restore_usage(world.relay.usage());
    let session = restarted.open(1, 5, "203.0.113.5:1000");
    let shown = restarted.ask(session, Request::Show { grant: signer().sign(&grant(1, 5)).unwrap() });
    assert_eq!(shown, [Reply::Refused { request: 0, why: Refused::GrantRevoked }]);
}

#[test]
fn a_relay_that_can_remember_no_more_grants_still_remembers_revocations_and_confirms_no_others() {
    let mut world = World::new();
    let id = |number: u32| {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        GrantId(id)
    };
    let until = UnixTime(WALL + 3_600);
    let known = |number| GrantUse { grant: id(number), bytes: 0, until, revoked: false };
    world.relay.restore_usage((0..65_536).map(known));
    let mut remembered = 0;
    for part in 0..20 {
        let revoked: Vec<GrantId> = (0..1_000).map(|number| id(100_000 + part * 1_000 + number)).collect();
        let heard =
            world.relay.handle_heartbeat(world.now, &key(200), &Heartbeat { time: UnixTime(WALL), revoked });
        remembered += heard.remembered.len();
    }
    assert_eq!(remembered, 16_384, "as many as fit next to the grants");
    // A known grant is always marked.
    let heartbeat = Heartbeat { time: UnixTime(WALL), revoked: vec![id(7), id(200_000)] };
    assert_eq!(world.relay.handle_heartbeat(world.now, &key(200), &heartbeat).remembered, [id(7)]);
    let revoked = world.relay.usage().iter().filter(|known| known.revoked).count();
    assert_eq!(revoked, 16_384 + 1);
}

#[test]
fn consent_is_renewed_every_30_s_and_lapses_after_60() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (flow, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    for _ in 0..10 {
        world.wait(Span::from_secs(30));
        assert_eq!(world.relay.stats().dropped.no_consent, 0);
        assert_eq!(world.consent(session, &[Pid(1)]), []);
    }
    // From now on the next hop does not answer.
    world.wait(Span::from_secs(59));
    assert!(world.sent().len() >= 3);
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some());
    world.wait(Span::from_secs(1));
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::NoConsent }]);
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_none());
    assert_eq!(world.relay.stats().flows, 0);
}

#[test]
fn the_holder_of_a_ticket_reaches_its_maker_only_and_on_its_quota() {
    let mut world = World::new();
    let host = world.open(1, 1, "203.0.113.5:1000");
    let secret = GuestSecret::new(&TicketSecret::from_random([3; 16]), &key(100));
    assert_eq!(world.relay.authorize(&key(60), Some(secret.share())), Admission::Refused);
    let register = Request::Host { share: secret.share(), hash: secret.hash(), flows: 2 };
    assert_eq!(world.ask(host, register), [Reply::Hosting { share: secret.share() }]);
    assert_eq!(world.relay.authorize(&key(60), Some(secret.share())), Admission::Guest(secret.hash()));

    let (guest, address) = (SessionId(2), hop("192.88.1.1:5"));
    world.relay.handle_session_opened(world.now, guest, as_guest(60, secret.share()));
    world.relay.handle_session_path(guest, PathId(0), Some(address));
    world.ask(guest, Request::Hello { version: 1 });
    assert_eq!(world.allocate(guest, "198.51.99.7:1", Pid(1)), Err(Refused::NotGranted), "only the host");
    let to_host = Request::Allocate {
        request: 1,
        via: PathId(0),
        target: Target::Host,
        out: Pid::HANDSHAKE,
        back: BACK,
    };
    let [Reply::Allocated { forward, back, flow, .. }, Reply::Flow { state: FlowState::Ready, .. }] =
        world.ask(guest, to_host.clone())[..]
    else {
        panic!()
    };
    assert!(world.sent().is_empty(), "the host has agreed already");
    let mut init = datagram(Kind::Init, forward, 1, 1_200);
    assert_eq!(world.run(address, &mut init, 1_200)[0].to, hop("203.0.113.5:1000"));
    let mut ack = datagram(Kind::InitAck, back, 1, 1_200);
    assert_eq!(world.run(hop("203.0.113.5:1000"), &mut ack, 1_200)[0].to, address);

    assert_eq!(world.ask(guest, to_host.clone()).len(), 2);
    let too_many = [Reply::Refused { request: 1, why: Refused::TooManyPids }];
    assert_eq!(world.ask(guest, to_host.clone()), too_many);
    world.ask(guest, Request::Release { flow });
    assert_eq!(world.ask(guest, to_host).len(), 2);
    // A host that moves is followed; one that leaves ends its guests' flows.
    world.relay.handle_session_path(host, PathId(0), Some(hop("203.0.113.6:1")));
    world.relay.handle_session_closed(host);
    assert_eq!(world.replies(guest).len(), 2);
    assert_eq!(
        (world.relay.stats().flows, world.relay.authorize(&key(60), Some(secret.share()))),
        (0, Admission::Refused)
    );
}

#[test]
fn a_guest_leaves_for_its_host_at_the_address_of_the_relay_where_it_comes() {
    let mut world = World::new();
    let at = |socket, address: &str| Hop { socket, ..hop(address) };
    let host = world.open(1, 1, "203.0.113.5:1000");
    world.relay.handle_session_path(host, PathId(2), Some(at(1, "203.0.113.5:2000")));
    let secret = GuestSecret::new(&TicketSecret::from_random([3; 16]), &key(100));
    world.ask(host, Request::Host { share: secret.share(), hash: secret.hash(), flows: 9 });
    let guest = SessionId(2);
    world.relay.handle_session_opened(world.now, guest, as_guest(60, secret.share()));
    let from = [0, 1, 7].map(|socket| at(socket, "192.88.1.1:5"));
    for (path, hop) in from.into_iter().enumerate() {
        world.relay.handle_session_path(guest, PathId(path as u32), Some(hop));
    }
    world.ask(guest, Request::Hello { version: 1 });
    // No path of the host comes to the last address, so its paths take turns.
    for (path, port) in [(1, 2000), (0, 1000), (0, 1000), (1, 2000), (2, 1000), (2, 2000)] {
        let (target, out, back) = (Target::Host, Pid::HANDSHAKE, BACK);
        let request = Request::Allocate { request: 1, via: PathId(path), target, out, back };
        let allocated = world.ask(guest, request);
        let Reply::Allocated { forward, .. } = allocated[0] else { panic!("{allocated:?}") };
        let mut init = datagram(Kind::Init, forward, 1, 1_200);
        let sent = world.run(from[path as usize], &mut init, 1_200);
        assert_eq!(sent[0].to.address.port(), port, "path {path}");
    }
}

#[test]
fn a_host_that_registers_anothers_share_later_gets_no_guests_of_the_first() {
    let mut world = World::new();
    let (share, hash) = (ShareId(5), TicketSecret::from_random([1; 16]));
    let register = || Request::Host { share, hash: hash.clone(), flows: 2 };
    let first = world.open(1, 1, "203.0.113.5:1000");
    let other = world.open(2, 2, "203.0.113.6:1000");
    world.ask(first, register());
    assert_eq!(world.ask(other, register()), [Reply::Refused { request: 0, why: Refused::ShareTaken }]);
    let guest = SessionId(3);
    world.relay.handle_session_opened(world.now, guest, as_guest(60, share));
    world.relay.handle_session_path(guest, PathId(0), Some(hop("192.88.1.1:5")));
    world.ask(guest, Request::Hello { version: 1 });
    world.relay.handle_session_closed(first);
    assert_eq!(world.ask(other, register()), [Reply::Hosting { share }]);
    let request =
        Request::Allocate { request: 1, via: PathId(0), target: Target::Host, out: Pid(0), back: BACK };
    assert_eq!(world.ask(guest, request.clone()), [Reply::Refused { request: 1, why: Refused::NoHost }]);
    // The first host returns and opens a second session.
    world.ask(other, Request::Unhost { share });
    let again = world.open(4, 1, "203.0.113.7:1000");
    world.ask(again, register());
    assert_eq!(world.ask(guest, request).len(), 2);
}

#[test]
fn when_the_later_of_two_sessions_that_host_a_share_ends_the_earlier_one_hosts_it_again() {
    let mut world = World::new();
    let (share, hash) = (ShareId(5), TicketSecret::from_random([1; 16]));
    let first = world.open(1, 1, "203.0.113.5:1000");
    let second = world.open(2, 1, "203.0.113.6:1000");
    for session in [first, second] {
        let register = Request::Host { share, hash: hash.clone(), flows: 2 };
        assert_eq!(world.ask(session, register), [Reply::Hosting { share }]);
    }
    world.relay.handle_session_closed(second);
    let guest = SessionId(3);
    world.relay.handle_session_opened(world.now, guest, as_guest(60, share));
    world.relay.handle_session_path(guest, PathId(0), Some(hop("192.88.1.1:5")));
    world.ask(guest, Request::Hello { version: 1 });
    let request =
        Request::Allocate { request: 1, via: PathId(0), target: Target::Host, out: Pid(0), back: BACK };
    assert_eq!(world.ask(guest, request).len(), 2);
    world.relay.handle_session_closed(first);
    assert_eq!(world.relay.authorize(&key(60), Some(share)), Admission::Refused);
}

#[test]
fn a_drained_relay_takes_nothing_new_tells_everybody_and_is_empty_in_the_end() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (flow, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    let until = world.now + Span::from_secs(30);
    world.relay.drain(world.now, until);
    assert_eq!(world.replies(session), [Reply::Draining { seconds: 30 }]);
    assert_eq!(world.allocate(session, "198.51.99.7:1", Pid(2)), Err(Refused::Draining));
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some() && !world.relay.is_drained());
    world.wait(Span::from_secs(30));
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::Drained }]);
    assert!(world.relay.is_drained());
    // A later client learns that waiting is useless.
    let later = SessionId(2);
    world.relay.handle_session_opened(world.now, later, Newcomer::new(key(2), None));
    assert_eq!(world.replies(later), [Reply::Draining { seconds: 0 }]);
    assert!(world.relay.is_draining());
}

#[test]
fn sessions_that_may_not_use_the_relay_are_closed_and_their_accounts_forgotten() {
    let mut world = World::new();
    let stranger = world.open(1, 5, "203.0.113.5:1000");
    let member = world.open(2, 1, "203.0.113.6:1000");
    world.wait(Span::from_secs(11));
    assert_eq!(
        (world.relay.poll_close(), world.relay.poll_close()),
        (Some((stranger, Dismissal::NoBusiness)), None)
    );
    for session in [stranger, member] {
        world.relay.handle_session_closed(session);
    }
    assert_eq!(world.relay.stats().sessions, 0);
    assert_eq!(
        World::with(|config| config.controllers.clear()).relay.authorize(&key(5), None),
        Admission::Refused
    );
}

#[test]
fn another_version_and_a_request_before_the_greeting_are_refused() {
    let mut world = World::new();
    let session = SessionId(1);
    world.relay.handle_session_opened(world.now, session, Newcomer::new(key(1), None));
    let refused = |why| Reply::Refused { request: 0, why };
    assert_eq!(world.ask(session, Request::Release { flow: FlowId(0) }), [refused(Refused::NoHello)]);
    let hello = Reply::Hello { version: RELAY_VERSION };
    assert_eq!(world.ask(session, Request::Hello { version: 9 }), [hello, refused(Refused::Version)]);
}

#[test]
fn a_new_configuration_ends_what_it_does_not_allow_and_nothing_else() {
    let mut world = World::with(|config| config.next_hops.allow = vec!["10.0.0.0/8".parse().unwrap()]);
    let (kept, gone) = (world.open(1, 1, "203.0.113.5:1000"), world.open(2, 2, "203.0.113.6:1000"));
    let (_, stays, _) = world.ready(kept, "198.51.99.7:1", Pid(1));
    let (private, ..) = world.ready(kept, "10.0.0.7:1", Pid(2));
    let (unlisted, ..) = world.ready(gone, "198.51.99.7:1", Pid(3));
    assert!(world.packet(hop("203.0.113.5:1000"), stays).is_some());
    let mut config = world.relay.config.clone();
    config.listed = [(key(1), Limits { bytes: 250, ..limits(4, 10.0) }), (key(3), limits(4, 10.0))].into();
    config.next_hops.allow.clear();
    world.relay.reconfigure(world.now, config);
    let ended = [
        (kept, Reply::Flow { flow: private, state: FlowState::Denied }),
        (gone, Reply::Flow { flow: unlisted, state: FlowState::Denied }),
    ];
    assert_eq!([world.relay.poll_reply().unwrap(), world.relay.poll_reply().unwrap()], ended);
    assert_eq!(world.relay.poll_reply(), None);
    let stats = world.relay.keys();
    let of = |byte| stats.iter().find(|stats| stats.key == key(byte)).unwrap();
    assert_eq!((of(1).flows, of(1).limits.unwrap().bytes), (1, 150), "what was used stays used");
    assert_eq!((of(2).flows, of(2).limits, of(3).sessions), (0, None, 0));
    assert!(world.packet(hop("203.0.113.5:1000"), stays).is_some());
    assert!(world.packet(hop("203.0.113.5:1000"), stays).is_none(), "50 bytes are left");
}

#[test]
fn a_next_hop_is_reached_by_the_socket_of_its_network_until_that_is_gone() {
    let exits = vec![
        exit(0, "192.0.2.1", &["192.0.2.0/24", "0.0.0.0/0"]),
        exit(1, "9.9.9.1", &["9.9.9.0/24", "9.9.0.0/16"]),
    ];
    let mut world = World::with(|config| config.exits = exits.clone());
    let session = world.open(1, 1, "203.0.113.5:1000");
    let mut flows = Vec::new();
    for next in ["8.8.8.8:1", "9.9.9.9:1", "9.9.7.7:1"] {
        flows.push(world.allocate(session, next, Pid(1)).unwrap().0);
    }
    let sockets: Vec<u32> = world.sent().iter().map(|sent| sent.to.socket).collect();
    assert_eq!(sockets, [0, 1, 1]);
    assert_eq!(world.allocate(session, "[2606:4700::1]:1", Pid(1)), Err(Refused::NoExit));
    let left = RelayConfig { exits: exits[..1].to_vec(), ..world.relay.config().clone() };
    world.relay.reconfigure(world.now, left);
    let over = |flow| Reply::Flow { flow, state: FlowState::PathGone };
    assert_eq!(world.replies(session), [over(flows[1]), over(flows[2])]);
}

#[test]
fn bytes_used_stay_used_of_a_grant_that_is_shown_renewed_in_another_session() {
    let day = 86_400;
    let first = grant(1, 5);
    let few = Grant {
        limits: Limits { bytes: 350, ..limits(8, 1_000.0) },
        not_after: UnixTime(first.not_before.0 + day),
        ..first
    };
    let renewed = Grant { not_after: UnixTime(few.not_after.0 + day / 2), ..few.clone() };
    let show = |grant: &Grant| Request::Show { grant: signer().sign(grant).unwrap() };
    let left = |replies: &[Reply]| match replies {
        [Reply::Granted { limits, .. }] => limits.bytes,
        other => panic!("{other:?}"),
    };
    let mut world = World::new();
    let beat = |world: &mut World| {
        let passed = world.now.since(Time::ZERO).as_nanos() / 1_000_000_000;
        let heartbeat = Heartbeat { time: UnixTime(WALL + passed), revoked: vec![] };
        world.relay.handle_heartbeat(world.now, &key(200), &heartbeat);
    };
    beat(&mut world);
    let session = world.open(1, 5, "203.0.113.5:1000");
    assert_eq!(left(&world.ask(session, show(&few))), 350);
    let (_, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    for _ in 0..3 {
        assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some());
    }
    world.relay.handle_session_closed(session);
    let session = world.open(2, 5, "203.0.113.5:1000");
    assert_eq!(left(&world.ask(session, show(&renewed))), 50);
    // Later than the first end by more than an expired grant is remembered.
    while world.now < Time::ZERO + Span::from_secs(day + 6_000) {
        world.now += Span::from_secs(20);
        beat(&mut world);
    }
    world.relay.handle_session_closed(session);
    let session = world.open(3, 5, "203.0.113.5:1000");
    assert_eq!(left(&world.ask(session, show(&renewed))), 50);
}

fn closed(world: &mut World) -> Vec<(SessionId, Dismissal)> {
    std::iter::from_fn(|| world.relay.poll_close()).collect()
}

#[test]
fn grants_of_a_controller_that_the_configuration_no_longer_names_end_with_their_paths() {
    let mut world = World::new();
    let session = world.open(1, 5, "203.0.113.5:1000");
    let bytes = signer().sign(&grant(1, 5)).unwrap();
    world.ask(session, Request::Show { grant: bytes.clone() });
    let (flow, ..) = world.ready(session, "198.51.99.7:1", Pid(1));
    let same = world.relay.config().clone();
    world.relay.reconfigure(world.now, same.clone());
    assert_eq!(world.replies(session), []);
    world.relay.reconfigure(world.now, RelayConfig { controllers: Vec::new(), ..same });
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::GrantEnded }]);
    let refused = Reply::Refused { request: 0, why: Refused::GrantSignature };
    assert_eq!(world.ask(session, Request::Show { grant: bytes }), [refused]);
}

#[test]
fn a_removed_user_loses_its_paths_at_once_and_its_sessions_soon_with_the_reason() {
    let mut world = World::new();
    let (gone, stays) = (world.open(1, 1, "203.0.113.5:1000"), world.open(2, 2, "203.0.113.6:1000"));
    let (flow, ..) = world.ready(gone, "198.51.99.7:1", Pid(1));
    world.wait(Span::from_secs(30));
    let mut config = world.relay.config.clone();
    config.listed.remove(&key(1));
    world.relay.reconfigure(world.now, config);
    assert_eq!(world.replies(gone), [Reply::Flow { flow, state: FlowState::Denied }]);
    assert_eq!((world.relay.stats().flows, closed(&mut world)), (0, vec![]), "it may still show a grant");
    world.wait(Span::from_secs(11));
    assert_eq!(closed(&mut world), [(gone, Dismissal::Ended(Ended::Unlisted))]);
    assert!(world.relay.clients.contains_key(&stays));
}

#[test]
fn a_removed_user_that_shows_a_grant_in_time_keeps_its_session() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let mut config = world.relay.config.clone();
    config.listed.remove(&key(1));
    world.relay.reconfigure(world.now, config);
    let grant = signer().sign(&grant(1, 1)).unwrap();
    assert!(matches!(world.ask(session, Request::Show { grant })[..], [Reply::Granted { .. }]));
    world.wait(Span::from_secs(30));
    assert_eq!(closed(&mut world), []);
}

#[test]
fn a_grant_that_expires_or_is_revoked_ends_the_paths_and_then_the_session_with_the_reason() {
    for why in [Ended::Expired, Ended::Revoked] {
        let mut world = World::new();
        let session = world.open(1, 5, "203.0.113.5:1000");
        let short = Grant { not_after: UnixTime(WALL + 20), ..grant(1, 5) };
        let shown = if why == Ended::Expired { short } else { grant(1, 5) };
        world.ask(session, Request::Show { grant: signer().sign(&shown).unwrap() });
        let (flow, ..) = world.ready(session, "198.51.99.7:1", Pid(1));
        let passed = if why == Ended::Expired { 55 } else { 0 };
        let revoked = if why == Ended::Revoked { vec![GrantId([1; 16])] } else { vec![] };
        world.now += Span::from_secs(passed);
        let heartbeat = Heartbeat { time: UnixTime(WALL + passed), revoked };
        world.relay.handle_heartbeat(world.now, &key(200), &heartbeat);
        assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::GrantEnded }]);
        assert_eq!(closed(&mut world), [], "it may show another");
        world.wait(Span::from_secs(11));
        assert_eq!(closed(&mut world), [(session, Dismissal::Ended(why))]);
    }
}

#[test]
fn bytes_of_a_listed_user_stay_used_over_a_restart() {
    let few = |config: &mut RelayConfig| {
        config.listed = [(key(1), Limits { bytes: 350, ..limits(8, 1_000.0) })].into();
    };
    let mut world = World::with(few);
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (_, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    for _ in 0..3 {
        assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some());
    }
    let used = world.relay.listed_usage();
    assert_eq!(used, [ListedUse { key: key(1), bytes: 300 }]);
    let mut restarted = World::with(few);
    restarted.relay.restore_listed_usage(used.iter().copied().chain([ListedUse { key: key(9), bytes: 7 }]));
    assert_eq!(restarted.relay.keys()[0].limits.unwrap().bytes, 50);
    assert_eq!(restarted.relay.listed_usage(), used);
}
