//! How long usage of a grant is remembered, when its end moves or the clock is not reliable.

use super::*;

/// A grant of this lifetime in seconds.
fn lasting(seconds: u64) -> Grant {
    Grant { not_after: UnixTime(WALL + seconds), ..grant(1, 5) }
}

fn show(world: &mut World, session: SessionId, grant: &Grant) {
    let shown = world.ask(session, Request::Show { grant: signer().sign(grant).unwrap() });
    assert!(matches!(shown[..], [Reply::Granted { .. }]), "{shown:?}");
}

/// Sends a controller's time, `ahead` seconds fast, every minute until then; returns the replies to the client.
fn hear(world: &mut World, session: SessionId, (until, ahead): (u64, u64)) -> Vec<Reply> {
    while world.now < Time::ZERO + Span::from_secs(until) {
        world.now += Span::from_secs(60);
        let passed = world.now.since(Time::ZERO).as_nanos() / 1_000_000_000;
        let heartbeat = Heartbeat { time: UnixTime(WALL + passed + ahead), revoked: vec![] };
        world.relay.handle_heartbeat(world.now, &key(200), &heartbeat);
    }
    world.replies(session)
}

/// A path that has carried data on a grant.
fn used(world: &mut World, grant: &Grant) -> (SessionId, u64) {
    let session = world.open(1, 5, "203.0.113.5:1000");
    show(world, session, grant);
    let (_, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some());
    let bytes = world.relay.usage()[0].bytes;
    assert!(bytes > 0);
    (session, bytes)
}

#[test]
fn what_was_used_of_a_renewed_grant_is_remembered_to_its_new_end() {
    let mut world = World::new();
    let (session, bytes) = used(&mut world, &lasting(3_600));
    show(&mut world, session, &lasting(20_000));
    // Long after the first end: 600 s by the controllers' clock, and an hour.
    assert_eq!(hear(&mut world, session, (10_000, 0)), []);
    let known = world.relay.usage();
    assert_eq!((known[0].bytes, known[0].until), (bytes, UnixTime(WALL + 20_000)), "{known:?}");
}

#[test]
fn what_was_used_of_a_grant_is_remembered_when_its_end_moves_with_the_clock() {
    let mut world = World::new();
    let (session, bytes) = used(&mut world, &lasting(20_000));
    assert_eq!(hear(&mut world, session, (300, 0)), []);
    // The controllers' time leaps, and stays there.
    let ahead = 50 * 86_400;
    assert_eq!(hear(&mut world, session, (10_000, ahead)), []);
    let known = world.relay.usage();
    assert_eq!(known[0].bytes, bytes, "{known:?}");
    assert!(known[0].until > UnixTime(WALL + ahead), "{known:?}");
}

#[test]
fn a_clock_that_no_controller_confirmed_has_nothing_forgotten() {
    let mut world = World::new();
    let over = GrantUse { grant: GrantId([1; 16]), bytes: 7, until: UnixTime(WALL - 86_400), revoked: false };
    world.relay.restore_usage([over]);
    for _ in 0..300 {
        world.now += Span::from_secs(60);
        world.relay.handle_timeout(world.now);
    }
    assert_eq!(world.relay.usage(), [over]);
    // After a heartbeat, an expired grant is forgotten an hour later.
    let session = world.open(1, 5, "203.0.113.5:1000");
    assert_eq!(hear(&mut world, session, (18_000 + 3_700, 0)), []);
    assert_eq!(world.relay.usage(), []);
}

#[test]
fn grants_that_were_revoked_before_they_were_used_take_no_place_of_others() {
    let mut world = World::new();
    for part in 0..82_u128 {
        let revoked = (0..1_000_u128).map(|number| GrantId((part * 1_000 + number).to_be_bytes())).collect();
        let heartbeat = Heartbeat { time: UnixTime(WALL), revoked };
        world.relay.handle_heartbeat(world.now, &key(200), &heartbeat);
    }
    assert_eq!(world.relay.usage().len(), 16_384);
    let session = world.open(1, 5, "203.0.113.5:1000");
    show(&mut world, session, &lasting(3_600));
    assert_eq!(world.relay.usage().len(), 16_385);
}
