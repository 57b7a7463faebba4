//! Strangers and dishonest clients: nothing is forwarded, amplified or stored for them.

use anabranch_secure::consent::{Question, challenge};
use anabranch_wire::TAG_LEN;
use proptest::prelude::*;

use super::*;

#[test]
fn grants_forged_stolen_elsewhere_or_out_of_time_open_nothing() {
    let mut world = World::new();
    let session = world.open(1, 5, "203.0.113.5:1000");
    let sign = |grant: &Grant| signer().sign(grant).unwrap();
    let mut changed = sign(&grant(1, 5));
    changed[60] ^= 1;
    let early = Grant { not_before: UnixTime(WALL + 400), ..grant(1, 5) };
    let late = Grant { not_before: UnixTime(WALL - 5_000), not_after: UnixTime(WALL - 400), ..grant(1, 5) };
    let cases = [
        (changed, Refused::GrantSignature),
        (GrantSigner::from_random([98; 32]).sign(&grant(1, 5)).unwrap(), Refused::GrantSignature),
        (sign(&grant(1, 6)), Refused::GrantOtherClient),
        (sign(&Grant { relays: vec![key(101)], ..grant(1, 5) }), Refused::GrantOtherRelay),
        (sign(&early), Refused::GrantNotYet),
        (sign(&late), Refused::GrantExpired),
        (vec![1; 40], Refused::GrantMalformed),
    ];
    for (grant, why) in cases {
        assert_eq!(world.ask(session, Request::Show { grant }), [Reply::Refused { request: 0, why }]);
    }
    assert_eq!(world.allocate(session, "198.51.99.7:1", Pid(1)), Err(Refused::NotGranted));
}

#[test]
fn a_relay_that_lives_in_the_past_learns_from_a_new_grant_that_an_old_one_is_over() {
    let mut world = World::new();
    let old = signer().sign(&grant(1, 5)).unwrap();
    let year = 365 * 86_400;
    let new = Grant {
        issued: UnixTime(WALL + year),
        not_before: UnixTime(WALL + year),
        not_after: UnixTime(WALL + year + 9),
        ..grant(2, 6)
    };
    let session = world.open(1, 6, "203.0.113.6:1");
    assert!(matches!(
        world.ask(session, Request::Show { grant: signer().sign(&new).unwrap() })[..],
        [Reply::Granted { .. }]
    ));
    world.relay.handle_session_closed(session);
    let session = world.open(2, 5, "203.0.113.5:1");
    assert_eq!(
        world.ask(session, Request::Show { grant: old }),
        [Reply::Refused { request: 0, why: Refused::GrantExpired }]
    );
}

#[test]
fn forbidden_next_hops_are_refused() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let denied = [
        "127.0.0.1:1",
        "10.0.0.1:1",
        "172.16.3.4:1",
        "192.168.1.1:1",
        "169.254.1.1:1",
        "100.64.0.1:1",
        "0.0.0.0:1",
        "224.0.0.1:1",
        "255.255.255.255:1",
        "240.0.0.1:1",
        "192.0.2.1:1",
        "8.8.8.8:0",
        "[::1]:1",
        "[::]:1",
        "[fe80::1]:1",
        "[fc00::1]:1",
        "[ff02::1]:1",
        "[::ffff:127.0.0.1]:1",
        "[::ffff:10.0.0.1]:1",
        "[2002:a00:1::1]:1",
        "[2001:db8::1]:1",
        "[64:ff9b::a00:1]:1",
    ];
    for address in denied {
        assert_eq!(world.allocate(session, address, Pid(1)), Err(Refused::NextHopDenied), "{address}");
    }
    assert!(world.sent().is_empty(), "and they hear nothing");
    for address in ["8.8.8.8:1", "[2606:4700::1]:1", "[::ffff:8.8.8.8]:1"] {
        assert!(world.allocate(session, address, Pid(1)).is_ok(), "{address}");
    }
    let sent_to: Vec<String> = world.sent().iter().map(|sent| sent.to.address.to_string()).collect();
    assert_eq!(sent_to, ["8.8.8.8:1", "[2606:4700::1]:1", "8.8.8.8:1"]);
    let mut lab = World::with(|config| {
        config.next_hops.allow = vec!["10.0.0.0/8".parse().unwrap(), "224.0.0.0/4".parse().unwrap()];
        config.next_hops.deny = vec!["10.9.0.0/16".parse().unwrap()];
        config.next_hops.own = vec!["10.0.0.5:9".parse().unwrap()];
    });
    let session = lab.open(1, 1, "10.0.0.1:1");
    assert!(lab.allocate(session, "10.0.0.2:1", Pid(1)).is_ok());
    for (address, why) in [
        ("10.9.0.1:1", Refused::NextHopExcluded),
        ("10.0.0.5:9", Refused::NextHopOwn),
        ("224.0.0.1:1", Refused::NextHopDenied),
    ] {
        assert_eq!(lab.allocate(session, address, Pid(1)), Err(why), "{address}");
    }
}

#[test]
fn a_next_hop_that_did_not_agree_is_sent_three_small_questions_and_nothing_else() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (flow, pid, _) = world.allocate(session, "8.8.8.8:53", Pid(1)).unwrap();
    let mut sent = Vec::new();
    for _ in 0..200 {
        assert_eq!(world.run(hop("203.0.113.5:1000"), &mut datagram(Kind::Data, pid, 4, 1_400), 1_400), []);
        sent.extend(world.sent());
        world.wait(Span::from_millis(50));
    }
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|packet| packet.datagram.len() == CHALLENGE_LEN));
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::NoConsent }]);
    assert_eq!(world.relay.stats().forwarded, Tally::default());
}

#[test]
fn resets_reach_only_next_hops_that_agreed_and_are_no_longer_than_a_token() {
    let mut world = World::new();
    let (client, next) = (hop("203.0.113.5:1000"), hop("198.51.99.7:2000"));
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (flow, ..) = world.allocate(session, "198.51.99.7:2000", Pid(42)).unwrap();
    let asked = world.sent();
    let passes = |world: &mut World, from, pid, len| {
        world.now += Span::from_secs(1);
        !world.run(from, &mut datagram(Kind::Reset, pid, 4, len), len).is_empty()
    };
    assert!(!passes(&mut world, client, BACK, 32), "before the next hop has agreed");
    let mut answer = answer_challenge(&asked[0].datagram, |_| true, None).unwrap();
    world.run(next, &mut answer, 64);
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::Ready }]);
    for (from, pid) in [(client, BACK), (next, Pid(42))] {
        assert!(passes(&mut world, from, pid, 32) && !passes(&mut world, from, pid, 33));
    }
    world.ask(session, Request::Redirect { flow, out: Pid(43), back: Pid(0) });
    assert!(!passes(&mut world, client, BACK, 32), "asked about another PID");
    let dropped = world.relay.stats().dropped;
    assert_eq!((dropped.no_consent, dropped.too_long), (2, 2));
}

#[test]
fn the_number_of_questions_to_next_hops_that_a_client_causes_is_bounded() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (mut requests, mut asked) = (0, 0);
    let first = world.allocate(session, "8.8.8.8:53", Pid(1)).unwrap().0;
    for round in 0..10_000u64 {
        requests += 1;
        if round % 2 == 0 {
            world.ask(session, Request::Redirect { flow: first, out: Pid(2 + round), back: Pid(0) });
        } else if let Ok((flow, ..)) = world.allocate(session, "8.8.4.4:53", Pid(1)) {
            world.ask(session, Request::Release { flow });
        }
        world.now += Span::from_millis(1);
        asked += world.sent().len();
    }
    // 128 at once and 8 a second.
    assert!(asked <= 128 + 80 + 2, "{asked} questions for {requests} requests");
    let mut pending = 0;
    world.wait(Span::from_secs(30));
    world.replies(session);
    while world.allocate(session, "8.8.4.4:53", Pid(1)).is_ok() {
        pending += 1;
    }
    assert_eq!(pending, 64);
}

#[test]
fn questions_without_end_leave_few_answers_waiting() {
    let mut world = World::new();
    let question = challenge(Pid::HANDSHAKE, Question { reference: 1, token: 2 }, Some(&key(100)));
    for _ in 0..5_000 {
        world.run(hop("198.51.99.9:1"), &mut question.clone(), 64);
    }
    assert_eq!(world.sent().len(), 1_024);
}

#[test]
fn unsolicited_answers_and_answers_from_elsewhere_are_ignored() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    world.allocate(session, "198.51.99.7:1", Pid(1)).unwrap();
    let question = world.sent().remove(0);
    let answer = answer_challenge(&question.datagram, |_| true, None).unwrap();
    world.run(hop("198.51.99.8:1"), &mut answer.clone(), 64);
    for bit in 128..answer.len() * 8 {
        let mut wrong = answer;
        wrong[bit / 8] ^= 1 << (bit % 8);
        world.run(question.to, &mut wrong, 64);
    }
    assert_eq!(world.replies(session), []);
    world.run(question.to, &mut answer.clone(), 64);
    assert_eq!(world.replies(session).len(), 1);
    // A replay has no effect: the next round has another token.
    world.wait(Span::from_secs(59));
    world.run(question.to, &mut answer.clone(), 64);
    world.wait(Span::from_secs(2));
    assert!(matches!(world.replies(session)[..], [Reply::Flow { state: FlowState::NoConsent, .. }]));
}

#[test]
fn a_loop_of_two_relays_ends_after_as_many_hops_as_a_chain_has() {
    let mut a = World::new();
    let mut b = World::with(|config| config.key = key(101));
    let (at_a, at_b) = (hop("198.51.99.1:9"), hop("198.51.99.2:9"));
    let (in_a, in_b) = (a.open(1, 1, "198.51.99.2:9"), b.open(1, 1, "198.51.99.1:9"));
    let (flow_a, pid_a, _) = a.allocate(in_a, "198.51.99.2:9", Pid(1)).unwrap();
    let (_, pid_b, _) = b.allocate(in_b, "198.51.99.1:9", pid_a).unwrap();
    a.ask(in_a, Request::Redirect { flow: flow_a, out: pid_b, back: Pid(0) });
    // Both agree, since each issued its PID for the other.
    for question in a.sent() {
        b.run(at_a, &mut question.datagram.to_vec(), 64);
    }
    for mut packet in b.sent() {
        a.run(at_b, &mut packet.datagram, 64);
    }
    for mut answer in a.sent() {
        b.run(at_a, &mut answer.datagram, 64);
    }
    let mut bytes = datagram(Kind::Data, pid_a, 4, 100);
    let mut hops = 0;
    while !if hops % 2 == 0 { a.run(at_b, &mut bytes, 100) } else { b.run(at_a, &mut bytes, 100) }.is_empty()
    {
        hops += 1;
    }
    assert_eq!(hops, 4);
    let mut eternal = datagram(Kind::Data, pid_a, 15, 100);
    assert!(a.run(at_b, &mut eternal, 100).is_empty());
}

#[test]
fn a_flood_of_guessed_pids_forwards_nothing_takes_no_memory_and_disturbs_no_honest_flow() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (_, pid, _) = world.ready(session, "198.51.99.7:1", Pid(1));
    let before = world.relay.stats();
    for guess in 0..100_000u64 {
        let guess = Pid(guess.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert!(world.run(hop("192.88.1.1:1"), &mut datagram(Kind::Data, guess, 4, 60), 60).is_empty());
    }
    let after = world.relay.stats();
    assert_eq!(after.dropped.unknown_pid, 100_000);
    assert_eq!(
        (after.forwarded, after.flows, after.waiting),
        (before.forwarded, before.flows, before.waiting)
    );
    // An overheard PID is useless at another address.
    assert_eq!(world.packet(hop("192.88.1.1:1"), pid), None);
    assert!(world.packet(hop("203.0.113.5:1000"), pid).is_some());
    assert!(world.sent().is_empty(), "nothing goes back to the flood");
}

#[test]
fn a_key_over_its_rate_takes_nothing_from_another() {
    let mut world = World::with(|config| {
        config.rate = Some(Rate::from_mbit(80.0));
        config.listed = [(key(1), limits(8, 1_000.0)), (key(2), limits(8, 1_000.0))].into();
    });
    let (greedy, honest) = (world.open(1, 1, "203.0.113.5:1"), world.open(2, 2, "203.0.113.6:1"));
    let (_, flood, _) = world.ready(greedy, "198.51.99.7:1", Pid(1));
    let (_, fair, _) = world.ready(honest, "198.51.99.7:1", Pid(2));
    let (mut arrived, mut offered) = (0, 0);
    for step in 0..5_000 {
        world.now += Span::from_micros(200);
        // The flood is four times the relay's rate, the honest key asks for 38 of 80 Mbit/s.
        world.run(hop("203.0.113.5:1"), &mut datagram(Kind::Data, flood, 4, 1_000).repeat(8), 1_000);
        let mut direct = 0;
        if step % 20 != 0 {
            offered += 1;
            direct = world.run(hop("203.0.113.6:1"), &mut datagram(Kind::Data, fair, 4, 950), 950).len();
        }
        arrived += direct;
        arrived += world.sent().iter().filter(|packet| packet.datagram.len() == 950).count();
    }
    assert!(arrived as f64 >= 0.98 * f64::from(offered), "{arrived} of {offered}");
}

proptest! {
    /// A relay never sends back more than it received, and only to addresses that agreed.
    #[test]
    fn arbitrary_datagrams_are_never_reflected_nor_amplified(
        packets in prop::collection::vec((0..8u8, 0..6u8, any::<[u8; 32]>(), 16..80usize, any::<bool>()), 1..60),
    ) {
        let mut world = World::new();
        let session = world.open(1, 1, "203.0.113.5:1000");
        let (_, forward, back) = world.ready(session, "198.51.99.7:1", Pid(1));
        let (client, next, stranger) = (hop("203.0.113.5:1000"), hop("198.51.99.7:1"), hop("192.88.1.1:1"));
        for (kind, pid, body, len, whole) in packets {
            let kinds = [Kind::Init, Kind::InitAck, Kind::Cookie, Kind::Data, Kind::Reset, Kind::RelayChallenge, Kind::RelayResponse];
            let kind = kinds[usize::from(kind) % 7];
            let pid = [forward, back, Pid(1), BACK, Pid::HANDSHAKE, Pid(u64::from(body[0]))][usize::from(pid)];
            let mut bytes = datagram(kind, pid, 1, len.max(16 + TAG_LEN));
            let end = bytes.len().min(48);
            bytes[16..end].copy_from_slice(&body[..end - 16]);
            if !whole {
                bytes[3] ^= 1;
            }
            let got = bytes.len();
            let out = world.run(stranger, &mut bytes, got);
            prop_assert!(out.is_empty());
            let sent: usize = world.sent().iter().map(|packet| packet.datagram.len()).sum();
            prop_assert_eq!(sent, 0);
            for (from, to) in [(client, next), (next, client)] {
                for forward in world.run(from, &mut bytes.clone(), got) {
                    prop_assert!(whole && forward.to == to && forward.range == (0..got));
                }
                for packet in world.sent() {
                    prop_assert!(packet.to == from && packet.datagram.len() < got);
                }
            }
        }
    }
}
