use super::*;
use crate::grant::{Grant, GrantSigner, open};

fn denied(result: Result<Approved, ControlError>) -> Denied {
    match result {
        Err(ControlError::Denied(denied)) => denied,
        other => panic!("not denied: {other:?}"),
    }
}

#[test]
fn a_client_gets_a_grant_for_relays_in_different_places_that_relays_take() {
    let world = World::new(3);
    let approved = world.allocate(1, ask(START, 1, 2, limits(4, 20))).unwrap();
    assert_eq!(approved.grant().relays.len(), 2);
    let signer = GrantSigner::from_random([9; 32]);
    let bytes = approved.sign(&signer).unwrap();
    assert_eq!(&open(&bytes, &[signer.public()]).unwrap(), approved.grant());
    let places: Vec<Location> = approved.grant().relays.iter().map(|relay| place(&world, relay)).collect();
    assert_ne!(places[0], places[1]);
}

fn place(world: &World, relay: &PublicKey) -> Location {
    let directory = world.directory.lock().unwrap();
    let (_, view) = directory.relays().find(|(key, _)| *key == relay).unwrap();
    view.record.offer.as_ref().unwrap().place.clone()
}

#[test]
fn asking_again_gives_the_same_grant_and_reserves_nothing_more() {
    let world = World::new(1);
    let first = world.allocate(1, ask(START, 1, 1, limits(4, 20))).unwrap();
    let again = world.allocate(1, ask(START, 1, 1, limits(8, 40))).unwrap();
    assert_eq!(first, again);
    assert_eq!(world.relay(100).reserved(world.wall).pids, 4);
    let other = world.allocate(1, ask(START, 2, 1, limits(4, 20))).unwrap();
    assert_ne!(first.grant().id, other.grant().id);
}

#[test]
fn an_unlisted_key_gets_no_grant() {
    let world = World::new(1);
    assert_eq!(denied(world.allocate(2, ask(START, 1, 1, limits(1, 1)))), Denied::NotListed);
    let result = run(register(&world.controller(), world.wall, key(99), &offer("fra", 1, 1)));
    assert_eq!(result, Err(Denied::RelayNotListed.into()));
}

#[test]
fn a_quota_counts_all_grants_of_a_key_until_no_relay_accepts_them() {
    let mut world = World::new(2);
    world.allocate(1, ask(START, 1, 1, limits(8, 40))).unwrap();
    world.allocate(1, ask(START, 2, 1, limits(8, 40))).unwrap();
    let over = denied(world.allocate(1, ask(START, 3, 1, limits(1, 1))));
    let room = Room::In { seconds: 601 + HOLD, client: key(1) };
    assert_eq!(over, Denied::Quota { what: "PIDs", allowed: 16, used: 16, room });
    assert!(matches!(
        denied(world.allocate(1, ask(START, 4, 4, limits(1, 1)))),
        Denied::Quota { what: "relays in a grant", room: Room::Never, .. }
    ));
    world.pass(601);
    assert!(matches!(
        denied(world.allocate(1, ask(world.wall.0, 5, 1, limits(8, 40)))),
        Denied::Quota { what: "PIDs", room: Room::In { seconds: HOLD, .. }, .. }
    ));
    world.pass(HOLD);
    world.allocate(1, ask(world.wall.0, 6, 1, limits(8, 40))).unwrap();
}

#[test]
fn short_grants_that_follow_each_other_do_not_add_up_at_a_relay() {
    let mut world = World::new(1);
    world.register(100, offer("fra", 1_000, 10_000)).unwrap();
    let short = |made, number| Ask { lifetime: 1, ..ask(made, number, 1, limits(16, 80)) };
    world.allocate(1, short(START, 1)).unwrap();
    for number in 2..12 {
        world.pass(2);
        let refused = denied(world.allocate(1, short(world.wall.0, number)));
        assert!(matches!(refused, Denied::Quota { .. }), "{refused:?}");
    }
}

#[test]
fn a_client_that_used_up_its_quota_learns_when_there_is_room_and_how_to_get_it_sooner() {
    let mut world = World::new(2);
    world.allocate(1, ask(START, 1, 1, limits(4, 10))).unwrap();
    world.pass(100);
    world.allocate(1, ask(START + 100, 2, 1, limits(8, 10))).unwrap();
    // The grant that ends first makes room for few PIDs; for more, both have to end.
    for (number, pids, time) in [(3, 6, "9 min 21 s"), (4, 10, "11 min 1 s")] {
        let told = denied(world.allocate(1, ask(START + 100, number, 1, limits(pids, 10)))).to_string();
        let revoke = format!("`anabranch controller revoke {}`", key(1));
        assert!(told.contains(&format!("there is room in {time}, ")) && told.contains(&revoke), "{told}");
    }
    world.pass(501 + HOLD);
    world.allocate(1, ask(world.wall.0, 5, 1, limits(6, 10))).unwrap();
}

#[test]
fn a_relay_is_filled_to_its_capacity_and_no_further() {
    let mut world = World::new(2);
    world.policy.others = Some(quota(9, 3, limits(100, 1_000)));
    for number in 0..10 {
        world.allocate(10 + number, ask(START, number, 1, limits(4, 10))).unwrap();
    }
    let full = denied(world.allocate(50, ask(START, 1, 1, limits(4, 10))));
    let out = LeftOut { full: 2, ..LeftOut::default() };
    assert_eq!(full, Denied::NoCapacity { wanted: 1, found: 0, out });
    for seed in [100, 101] {
        assert_eq!(world.relay(seed).reserved(world.wall), record::Reserved { pids: 20, rate: 50_000_000 });
    }
    world.pass(600 + HOLD + 60);
    world.allocate(50, ask(world.wall.0, 1, 1, limits(4, 10))).unwrap();
    assert_eq!(world.relay(100).reserved(world.wall).pids + world.relay(101).reserved(world.wall).pids, 4);
}

#[test]
fn what_another_controller_reserved_or_freed_is_seen() {
    let mut world = World::new(1);
    world.policy.others = Some(quota(9, 3, limits(100, 1_000)));
    // This controller's memory shows room; the other's never saw the grant.
    let memory = world.directory.lock().unwrap().clone();
    let approved = world.allocate(1, ask(START, 1, 1, limits(16, 10))).unwrap();
    let filled = std::mem::replace(&mut *world.directory.lock().unwrap(), memory);
    assert!(matches!(denied(world.allocate(2, ask(START, 1, 1, limits(8, 95)))), Denied::NoCapacity { .. }));
    run(give_back(&world.store, world.wall, key(1), approved.grant().id)).unwrap();
    run(confirm(&world.store, world.wall, key(100), &[approved.grant().id])).unwrap();
    *world.directory.lock().unwrap() = filled;
    let approved = world.allocate(2, ask(START, 2, 1, limits(8, 95))).unwrap();
    assert_eq!(approved.grant().limits, limits(8, 95));
}

#[test]
fn where_no_relay_has_room_for_as_many_paths_as_were_asked_for_fewer_are_granted() {
    let mut world = World::new(1);
    world.policy.others = Some(quota(9, 3, limits(100, 1_000)));
    let granted = |number| {
        let approved = world.allocate(2, ask(START, number, 1, limits(32, 1)))?;
        Ok::<u32, ControlError>(approved.grant().limits.pids)
    };
    // There are 20 PIDs.
    assert_eq!([granted(1), granted(2)], [Ok(16), Ok(4)]);
    assert_eq!(world.relay(100).reserved(world.wall).pids, 20);
    let full = LeftOut { full: 1, ..LeftOut::default() };
    assert_eq!(granted(3), Err(Denied::NoCapacity { wanted: 1, found: 0, out: full }.into()));
}

#[test]
fn no_client_gets_fewer_paths_while_a_relay_has_room_for_more() {
    let mut world = World::new(1);
    world.policy.others = Some(quota(9, 3, limits(100, 1_000)));
    world.policy.relays.insert(key(101));
    world.register(101, offer("lon", 64, 100)).unwrap();
    let grant = world.allocate(2, Ask { least: 1, ..ask(START, 1, 2, limits(32, 1)) }).unwrap();
    assert_eq!((grant.grant().limits.pids, &grant.grant().relays[..]), (32, &[key(101)][..]));
}

#[test]
fn a_client_that_gives_many_grants_back_leaves_places_to_others() {
    let mut world = World::new(1);
    world.policy.clients.insert(key(2), quota(4, 3, limits(16, 80)));
    let give_one_back = |client: u8, made: u64, number: u8| {
        let id = world.allocate(client, ask(made, number, 1, limits(2, 1))).unwrap().grant().id;
        let given = run(give_back(&world.store, world.wall, key(client), id));
        run(confirm(&world.store, world.wall, key(100), &[id])).unwrap();
        given
    };
    for number in 0..=255 {
        give_one_back(1, START, number).unwrap();
    }
    assert_eq!(give_one_back(1, START - 1, 0), Err(Denied::TooManyRequests.into()));
    for number in 0..16 {
        give_one_back(2, START, number).unwrap();
    }
    assert_eq!(give_one_back(2, START, 16), Err(Denied::TooManyRequests.into()));
}

#[test]
fn a_grant_given_back_keeps_its_place_until_the_relay_has_heard_of_it() {
    let mut world = World::new(1);
    let approved = world.allocate(1, ask(START, 1, 1, limits(16, 80))).unwrap();
    let id = approved.grant().id;
    assert_eq!(run(give_back(&world.store, world.wall, key(2), id)), Err(Denied::NoSuchGrant.into()));
    run(give_back(&world.store, world.wall, key(1), id)).unwrap();
    assert_eq!(run(taken_back(&world.store, key(100))), Ok(vec![id]));
    assert!(matches!(denied(world.allocate(1, ask(START, 2, 1, limits(16, 80)))), Denied::NoCapacity { .. }));
    assert_eq!(denied(world.allocate(1, ask(START, 1, 1, limits(16, 80)))), Denied::RequestOver);
    run(confirm(&world.store, world.wall, key(100), &[id, id])).unwrap();
    run(confirm(&world.store, world.wall, key(100), &[id])).unwrap();
    world.allocate(1, ask(START, 3, 1, limits(16, 80))).unwrap();
    // A restarted relay gets the revocation again, until the grant has expired.
    assert_eq!(run(taken_back(&world.store, key(100))), Ok(vec![id]));
    world.pass(600 + HOLD + 1);
    run(confirm(&world.store, world.wall, key(100), &[])).unwrap();
    world.allocate(1, ask(world.wall.0, 4, 1, limits(1, 1))).unwrap();
    assert_eq!(run(taken_back(&world.store, key(100))), Ok(vec![]));
}

#[test]
fn a_client_that_takes_fewer_relays_gets_those_there_are() {
    let world = World::new(2);
    let some = Ask { least: 1, ..ask(START, 1, 3, limits(4, 20)) };
    assert_eq!(world.allocate(1, some).unwrap().grant().relays.len(), 2);
    let all = Ask { least: 3, ..ask(START, 2, 3, limits(4, 20)) };
    let out = LeftOut::default();
    assert_eq!(denied(world.allocate(1, all)), Denied::NoCapacity { wanted: 3, found: 2, out });
}

#[test]
fn a_client_that_gets_no_relay_learns_why_and_what_to_do() {
    let mut world = World::new(2);
    world.policy.relays.extend([key(102), key(103)]);
    world.allocate(1, ask(START, 1, 2, limits(16, 80))).unwrap();
    let told = |world: &World, number, least| {
        denied(world.allocate(1, ask(world.wall.0, number, least, limits(1, 80)))).to_string()
    };
    let full = told(&world, 2, 1);
    assert!(full.starts_with("1 relay with room is needed, and there is none: "), "{full}");
    assert!(full.contains("2 were not heard for 10 s, 2 have not as many paths"), "{full}");
    assert!(full.contains("`anabranch controller status`"), "{full}");
    let drained = Load { draining: true, ..Load::default() };
    world.directory.lock().unwrap().hear(world.now, (key(100), 7), drained).unwrap();
    let drained = told(&world, 3, 2);
    assert!(drained.starts_with("2 relays with room are needed, and there is none: "), "{drained}");
    assert!(drained.contains("2 were not heard for 10 s, 1 is drained, 1 has not as"), "{drained}");
}

#[test]
fn a_client_that_asks_for_as_much_as_it_may_have_gets_its_quota_and_without_one_a_share() {
    let mut world = World::new(1);
    let all = Limits { pids: u32::MAX, rate: Rate::from_bits(u64::MAX), ..limits(0, 0) };
    let granted = world.allocate(1, ask(START, 1, 1, all)).unwrap();
    assert_eq!(granted.grant().limits, limits(16, 80));
    world.policy.others = Some(quota(1, 1, Limits { pids: 2, ..all }));
    let granted = world.allocate(2, ask(START, 1, 1, all)).unwrap();
    assert_eq!(granted.grant().limits.rate.as_bits(), u64::MAX);
    assert_eq!(world.relay(100).reserved(world.wall), record::Reserved { pids: 18, rate: 80_000_000 });
}

#[test]
fn a_renewed_grant_is_the_same_one_with_a_later_end_and_takes_no_more_room() {
    let mut world = World::new(1);
    let first = world.allocate(1, ask(START, 1, 1, limits(16, 80))).unwrap();
    let id = first.grant().id;
    let renewed = |world: &World, client, lifetime| {
        run(renew(&world.controller(), world.wall, key(client), id, lifetime))
    };
    for seconds in [300, 600] {
        world.pass(seconds);
        let later = renewed(&world, 1, 600).unwrap();
        let expected = Grant {
            issued: world.wall,
            not_before: world.wall,
            not_after: UnixTime(world.wall.0 + 600),
            ..first.grant().clone()
        };
        assert_eq!(later.grant(), &expected);
        assert_eq!(world.relay(100).reserved(world.wall), record::Reserved { pids: 16, rate: 80_000_000 });
    }
    assert_eq!(renewed(&world, 1, 10).unwrap().grant().not_after.0, world.wall.0 + 600, "never sooner");
    assert_eq!(renewed(&world, 2, 600), Err(Denied::NotListed.into()));
    world.policy.clients.insert(key(1), quota(4, 3, limits(8, 80)));
    assert!(matches!(renewed(&world, 1, 900), Err(ControlError::Denied(Denied::Quota { what: "PIDs", .. }))));
    world.policy.clients.insert(key(1), quota(4, 3, limits(16, 80)));
    world.pass(601);
    assert_eq!(renewed(&world, 1, 600), Err(Denied::NoSuchGrant.into()), "it is over");
    world.pass(HOLD + 60);
    world.allocate(1, ask(world.wall.0, 2, 1, limits(16, 80))).unwrap();
}

#[test]
fn requests_out_of_their_time_are_refused() {
    let mut world = World::new(1);
    assert_eq!(denied(world.allocate(1, ask(START - 601, 1, 1, limits(1, 1)))), Denied::RequestTime(601));
    assert_eq!(denied(world.allocate(1, ask(START + 31, 1, 1, limits(1, 1)))), Denied::RequestTime(31));
    let held = ask(START, 1, 1, limits(1, 1));
    world.allocate(1, held.clone()).unwrap();
    world.pass(590);
    world.allocate(1, held.clone()).unwrap();
    for seconds in [11, 30, 30, 30, 600] {
        world.pass(seconds);
        let why = denied(world.allocate(1, held.clone()));
        assert!(matches!(why, Denied::RequestOver | Denied::RequestTime(_)), "{why:?}");
    }
}

#[test]
fn a_controller_whose_clock_is_behind_the_others_decides_nothing() {
    let mut world = World::new(1);
    world.allocate(1, ask(START, 1, 1, limits(1, 1))).unwrap();
    world.wall = UnixTime(START - MAX_SKEW);
    world.allocate(1, ask(START, 2, 1, limits(1, 1))).unwrap();
    world.wall = UnixTime(START - MAX_SKEW - 1);
    assert_eq!(denied(world.allocate(1, ask(world.wall.0, 3, 1, limits(1, 1)))), Denied::ClockBehind(31));
}

#[test]
fn a_second_machine_with_a_relays_key_is_refused_with_the_reason() {
    let mut world = World::new(1);
    let hear = |world: &World, instance| {
        world.directory.lock().unwrap().hear(world.now, (key(100), instance), Load::default())
    };
    let why = hear(&world, 8).unwrap_err();
    assert_eq!(why, Denied::KeyInUse("203.0.113.7:4600".into()));
    assert!(why.to_string().contains("anabranch keys new"), "{why}");
    // The first relay leaves, or falls silent.
    world.directory.lock().unwrap().forget(&key(100), (8, world.now));
    hear(&world, 8).unwrap_err();
    world.directory.lock().unwrap().forget(&key(100), (7, world.now));
    hear(&world, 8).unwrap();
    world.now += SILENT;
    hear(&world, 9).unwrap();
}

#[test]
fn a_session_that_ends_late_does_not_take_a_relay_away_that_has_another() {
    let mut world = World::new(1);
    let before = world.now;
    world.pass(5);
    world.directory.lock().unwrap().forget(&key(100), (7, before));
    world.allocate(1, ask(world.wall.0, 1, 1, limits(1, 1))).unwrap();
    world.directory.lock().unwrap().forget(&key(100), (7, world.now));
    assert!(matches!(
        denied(world.allocate(1, ask(world.wall.0, 2, 1, limits(1, 1)))),
        Denied::NoCapacity { .. }
    ));
}

#[test]
fn a_relay_that_crashed_takes_its_own_place_again_at_once_but_no_place_is_taken_to_and_fro() {
    let world = World::new(1);
    let mut directory = world.directory.lock().unwrap();
    let at = directory.relay(&key(100)).unwrap().record.offer.clone().unwrap().addresses;
    let other = ["203.0.113.99:4600".parse().unwrap()];
    let denied = |result: Result<(), Denied>| matches!(result, Err(Denied::KeyInUse(_)));
    assert!(denied(directory.begin(world.now, (key(100), 8), &other)), "another machine");
    directory.begin(world.now, (key(100), 8), &at).unwrap();
    directory.hear(world.now, (key(100), 8), Load::default()).unwrap();
    // The first instance was still alive, on another machine with the same addresses.
    assert!(denied(directory.hear(world.now, (key(100), 7), Load::default())));
    assert!(denied(directory.begin(world.now, (key(100), 7), &at)));
}

#[test]
fn relays_that_are_silent_or_draining_get_no_grants() {
    let mut world = World::new(2);
    let load = Load { draining: true, ..Load::default() };
    world.directory.lock().unwrap().hear(world.now, (key(100), 7), load).unwrap();
    let approved = world.allocate(1, ask(START, 1, 1, limits(1, 1))).unwrap();
    assert_eq!(approved.grant().relays, [key(101)]);
    world.now += SILENT;
    assert!(matches!(denied(world.allocate(1, ask(START, 2, 1, limits(1, 1)))), Denied::NoCapacity { .. }));
}

#[test]
fn a_record_that_no_controller_wrote_is_reported_and_left_alone() {
    let world = World::new(1);
    for bytes in [b"\xff\xfe".to_vec(), br#"{"version":9,"touched":0,"grants":{},"answered":{}}"#.to_vec()] {
        let mut transaction = Transaction::default();
        transaction.writes.push((client_key(&key(1)), Some(bytes.clone())));
        run(world.store.commit(&transaction)).unwrap();
        let result = world.allocate(1, ask(START, 1, 1, limits(1, 1)));
        assert!(matches!(result, Err(ControlError::Store(StoreError::Damaged(_)))), "{result:?}");
        assert_eq!(run(world.store.get(&[client_key(&key(1))])).unwrap()[0].value, bytes);
    }
}

#[test]
fn long_grants_take_few_steps_in_a_relays_record() {
    let mut world = World::new(1);
    world.policy.relays.insert(key(100));
    world.register(100, offer("fra", 1 << 40, 1 << 30)).unwrap();
    world.policy.others = Some(Quota { lifetime: 31 * 86_400, ..quota(9, 1, limits(100, 1_000)) });
    for number in 0..2_000_u64 {
        let request = RequestId { made: world.wall, random: number.to_be_bytes() };
        let lifetime = [60, 3_600, 86_400, 31 * 86_400][number as usize % 4];
        let ask = Ask { request, relays: 1, least: 1, limits: limits(1, 1), lifetime };
        world.allocate(2 + (number % 250) as u8, ask).unwrap();
        world.pass(3);
    }
    assert!(world.relay(100).steps.len() < 250, "{}", world.relay(100).steps.len());
}

#[test]
fn one_leader_at_a_time_sweeps_what_is_over() {
    let mut world = World::new(1);
    world.allocate(1, ask(START, 1, 1, limits(1, 1))).unwrap();
    let first = run(lead(&world.store, world.wall, (&key(200), 10))).unwrap().unwrap();
    let other = run(lead(&world.store, world.wall, (&key(201), 10))).unwrap().unwrap_err();
    assert_eq!(other.node, key(200).to_string());
    world.pass(2_000);
    let second = run(lead(&world.store, world.wall, (&key(201), 10))).unwrap().unwrap();
    assert_eq!(run(sweep(&world.store, world.wall, first)).unwrap(), Swept { seen: 2, cleaned: 0 });
    assert_eq!(run(sweep(&world.store, world.wall, second)).unwrap(), Swept { seen: 2, cleaned: 2 });
    assert_eq!(world.relay(100).len(), (0, 0));
    assert_eq!(run(sweep(&world.store, world.wall, second)).unwrap(), Swept { seen: 1, cleaned: 0 });
    let again = run(lead(&world.store, world.wall, (&key(201), 10))).unwrap().unwrap();
    assert_ne!(again, second);
}

#[test]
fn a_dead_leader_with_a_clock_far_ahead_does_not_keep_others_from_sweeping() {
    let world = World::new(1);
    let until = |ahead: u64| {
        run(lead(&world.store, UnixTime(world.wall.0 + ahead), (&key(200), 10))).unwrap().unwrap();
        run(lead(&world.store, world.wall, (&key(201), 10))).unwrap()
    };
    assert!(until(MAX_SKEW).is_err(), "as far ahead as clocks may be");
    assert!(until(MAX_SKEW + 1).is_ok());
}

#[test]
fn a_grant_of_nothing_is_refused() {
    let world = World::new(1);
    let none = Limits { rate: Rate::ZERO, ..limits(1, 1) };
    for limits in [none, limits(0, 1), Limits { bytes: 0, ..limits(1, 1) }] {
        let refused = world.allocate(1, ask(START, 1, 1, limits));
        assert!(matches!(refused, Err(ControlError::Denied(Denied::Malformed(_)))), "{refused:?}");
    }
}
