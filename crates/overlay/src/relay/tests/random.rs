//! Random operations of many clients. After each the relay's state is consistent, and after the last client it is
//! empty.

use rand::RngExt;

use super::*;
use crate::relay::flow::Consent;

fn check(relay: &mut Relay) {
    let mut of_clients = 0;
    for (session, client) in &relay.clients {
        of_clients += client.flows.len();
        for slot in &client.flows {
            assert_eq!(relay.table.at(*slot).unwrap().session, *session);
        }
    }
    assert_eq!(of_clients, relay.table.len());
    let (mut asked, mut hosted) = (0, 0);
    for slot in 0..relay.table.slot_count() {
        let Some(flow) = relay.table.at(slot) else { continue };
        match &flow.consent {
            Consent::Asked(question) => {
                asked += 1;
                assert!(relay.due.contains(&(question.due, slot)));
            }
            Consent::Host(..) => hosted += 1,
        }
    }
    assert_eq!(asked, relay.due.len());
    assert_eq!(hosted, relay.clients.values().map(|client| client.hosted.len()).sum::<usize>());
}

fn run(seed: u64) {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let mut world = World::with(|config| config.rate = Some(Rate::from_mbit(1.0)));
    let (mut next, mut flows, mut pids) = (0u64, Vec::new(), vec![Pid(1)]);
    let share = ShareId(5);
    for _ in 0..300 {
        let sessions: Vec<SessionId> = world.relay.clients.keys().copied().collect();
        let session =
            if sessions.is_empty() { SessionId(0) } else { sessions[rng.random_range(0..sessions.len())] };
        let pid = Pid(rng.random_range(0..4));
        let some_hop = hop(&format!("203.0.113.{}:1000", rng.random_range(1..5)));
        match rng.random_range(0..13) {
            0 | 1 => {
                next += 1;
                let guest = world.relay.shares.contains_key(&share) && rng.random_bool(0.5);
                let owner = Owner { key: key(rng.random_range(1..7)), address: Some(some_hop.address.ip()) };
                let newcomer =
                    Newcomer { owner, share: guest.then_some(share), measures: rng.random_bool(0.1) };
                world.relay.handle_session_opened(world.now, SessionId(next), newcomer);
                world.relay.handle_session_path(SessionId(next), PathId(0), Some(some_hop));
                world.relay.handle_request(world.now, SessionId(next), Request::Hello { version: 1 }, None);
            }
            2 => world.relay.handle_session_closed(session),
            3 => {
                let gone = rng.random_bool(0.3);
                world.relay.handle_session_path(session, PathId(0), (!gone).then_some(some_hop));
            }
            4..=6 => {
                let address = "198.51.99.7:1".parse().unwrap();
                let host = rng.random_bool(0.4);
                let target = if host { Target::Host } else { Target::Address { address, key: Some(key(9)) } };
                let request = Request::Allocate { request: 0, via: PathId(0), target, out: pid, back: BACK };
                world.relay.handle_request(world.now, session, request, None);
            }
            7 if !flows.is_empty() => {
                let flow = flows[rng.random_range(0..flows.len())];
                let release = Request::Release { flow };
                let redirect = Request::Redirect { flow, out: pid, back: Pid(0) };
                world.relay.handle_request(
                    world.now,
                    session,
                    if rng.random_bool(0.5) { release } else { redirect },
                    None,
                );
            }
            8 => {
                let hash = TicketSecret::from_random([1; 16]);
                world.relay.handle_request(world.now, session, Request::Host { share, hash, flows: 3 }, None);
            }
            9 => world.relay.handle_request(world.now, session, Request::Unhost { share }, None),
            10 => {
                let grant = signer().sign(&grant(rng.random_range(1..4), rng.random_range(1..7))).unwrap();
                world.relay.handle_request(world.now, session, Request::Show { grant }, None);
            }
            11 => {
                let revoked = if rng.random_bool(0.1) { vec![GrantId([2; 16])] } else { Vec::new() };
                let time = UnixTime(WALL + rng.random_range(0..4_000));
                world.relay.handle_heartbeat(world.now, &key(200), &Heartbeat { time, revoked });
            }
            _ => world.now += Span::from_millis(rng.random_range(0..20_000)),
        }
        world.relay.handle_timeout(world.now);
        for sent in world.sent() {
            let answer = answer_challenge(&sent.datagram, |pid| pid != Pid(3), Some(&key(9)));
            if let Some(mut answer) = answer.filter(|_| rng.random_bool(0.8)) {
                world.run(sent.to, &mut answer, 64);
            }
        }
        let mut bytes = datagram(Kind::Data, pids[rng.random_range(0..pids.len())], 4, 500).repeat(4);
        world.run(some_hop, &mut bytes, 500);
        while let Some((_, reply)) = world.relay.poll_reply() {
            if let Reply::Allocated { flow, forward, back, .. } = reply {
                flows.push(flow);
                pids.extend([forward, back]);
            }
        }
        check(&mut world.relay);
    }
    for session in world.relay.clients.keys().copied().collect::<Vec<_>>() {
        world.relay.handle_session_closed(session);
    }
    check(&mut world.relay);
    assert_eq!((world.relay.table.len(), world.relay.shares.len(), world.relay.due.len()), (0, 0, 0));
    let known: Vec<PublicKey> = world.relay.keys().iter().map(|stats| stats.key).collect();
    assert!(
        known.iter().all(|known| [key(1), key(2)].contains(known)),
        "accounts of guests and strangers are gone"
    );
}

#[test]
fn the_books_agree_after_any_operations_and_nothing_is_left_after_the_last_client() {
    for seed in 0..300 {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
