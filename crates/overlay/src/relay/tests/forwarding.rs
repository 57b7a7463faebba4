//! The fast path: rewriting, runs, and sources.

use super::*;

#[test]
fn packets_go_both_ways_under_the_right_pids_and_from_the_right_addresses_only() {
    let mut world = World::new();
    let (client, next) = (hop("203.0.113.5:1000"), hop("198.51.99.7:2000"));
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (_, forward, back) = world.ready(session, "198.51.99.7:2000", Pid(42));
    let (to, header) = world.packet(client, forward).unwrap();
    assert_eq!((to, header.pid, header.hop_limit, header.tos, header.fsn), (next, Pid(42), 3, 3, 77));
    let (to, header) = world.packet(next, back).unwrap();
    assert_eq!((to, header.pid), (client, BACK));
    for (from, pid) in [(next, forward), (client, back), (hop("203.0.113.5:1001"), forward)] {
        assert_eq!(world.packet(from, pid), None);
    }
    assert_eq!(world.relay.stats().dropped.wrong_source, 3);
    assert_eq!(world.relay.stats().forwarded, Tally { packets: 2, bytes: 200 });
}

#[test]
fn a_run_of_one_pid_leaves_as_one_run_and_a_mixed_one_in_parts() {
    let mut world = World::new();
    let client = hop("203.0.113.5:1000");
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (_, first, _) = world.ready(session, "198.51.99.7:2000", Pid(42));
    let (_, second, _) = world.ready(session, "198.51.99.8:2000", Pid(43));
    let pids = [first, first, first, second, second, Pid(666), first, first];
    let mut bytes: Vec<u8> = pids.iter().flat_map(|pid| datagram(Kind::Data, *pid, 4, 200)).collect();
    bytes.truncate(bytes.len() - 50);
    let out = world.run(client, &mut bytes, 200);
    let parts: Vec<_> =
        out.iter().map(|forward| (forward.range.clone(), forward.stride, forward.ecn)).collect();
    assert_eq!(parts, [(0..600, 200, 2), (600..1000, 200, 2), (1200..1550, 200, 2)]);
    for forward in &out {
        for packet in bytes[forward.range.clone()].chunks(forward.stride) {
            let header = Header::decode(packet).unwrap().0;
            assert_eq!(
                header.pid,
                if forward.to.address.ip().to_string().ends_with('7') { Pid(42) } else { Pid(43) }
            );
        }
    }
    assert_eq!(world.relay.stats().dropped.unknown_pid, 1);
}

#[test]
fn broken_spent_and_oversized_packets_are_dropped_and_their_neighbours_are_not() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (_, pid, _) = world.ready(session, "198.51.99.7:2000", Pid(42));
    let good = || datagram(Kind::Data, pid, 1, 200);
    let mut broken = good();
    broken[9] ^= 1;
    let parts = [
        good(),
        broken,
        good(),
        datagram(Kind::Data, pid, 0, 200),
        datagram(Kind::Data, pid, 5, 200),
        good(),
    ];
    let mut bytes = parts.concat();
    let out = world.run(hop("203.0.113.5:1000"), &mut bytes, 200);
    assert_eq!(
        out.iter().map(|forward| forward.range.clone()).collect::<Vec<_>>(),
        [0..200, 400..600, 1000..1200]
    );
    let dropped = world.relay.stats().dropped;
    assert_eq!((dropped.malformed, dropped.hop_limit), (1, 2));
    let mut long = datagram(Kind::Data, pid, 4, 1_473);
    assert!(world.run(hop("203.0.113.5:1000"), &mut long, 1_473).is_empty());
    assert_eq!(world.relay.stats().dropped.too_long, 1);
}

#[test]
fn how_long_a_packet_may_be_is_a_matter_of_the_interface_that_it_leaves_by() {
    let mut world = World::with(|config| {
        config.exits = vec![exit(0, "192.0.2.1", &["0.0.0.0/0"]), exit(1, "10.0.0.1", &["198.51.99.0/24"])];
        config.exits[1].largest = 1_252;
    });
    let (client, session) = (hop("203.0.113.5:1000"), world.open(1, 1, "203.0.113.5:1000"));
    let (_, wide, _) = world.ready(session, "198.41.0.4:2000", Pid(42));
    let (_, narrow, back) = world.ready(session, "198.51.99.7:2000", Pid(43));
    let mut passes = |from, pid, len| {
        let mut bytes = datagram(Kind::Data, pid, 4, len);
        !world.run(from, &mut bytes, len).is_empty()
    };
    assert!(passes(client, wide, 1_472) && !passes(client, wide, 1_473));
    assert!(passes(client, narrow, 1_252) && !passes(client, narrow, 1_253));
    let next = Hop { socket: 1, address: "198.51.99.7:2000".parse().unwrap() };
    assert!(passes(next, back, 1_472), "return packets leave by the other");
    assert_eq!(world.relay.stats().dropped.too_long, 2);
}

#[test]
fn before_there_is_a_pid_only_first_handshake_messages_pass_and_after_that_only_data() {
    let mut world = World::new();
    let (client, next) = (hop("203.0.113.5:1000"), hop("198.51.99.7:2000"));
    let session = world.open(1, 1, "203.0.113.5:1000");
    let target = Target::Address { address: next.address, key: Some(key(50)) };
    let request = Request::Allocate { request: 5, via: PathId(0), target, out: Pid::HANDSHAKE, back: BACK };
    let [Reply::Allocated { flow, forward, back, .. }] = world.ask(session, request)[..] else { panic!() };
    // The relay asks the next hop by its key, and the next hop agrees to receive handshakes.
    let asked = world.sent();
    let mut answer = answer_challenge(&asked[0].datagram, |_| false, Some(&key(50))).unwrap();
    world.run(next, &mut answer, 64);
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::Ready }]);
    let send = |world: &mut World, from, kind, pid| {
        let mut bytes = datagram(kind, pid, 4, 100);
        let out = world.run(from, &mut bytes, 100);
        (!out.is_empty()).then(|| Header::decode(&bytes).unwrap().0.pid)
    };
    assert_eq!(send(&mut world, client, Kind::Init, forward), Some(Pid::HANDSHAKE));
    assert_eq!(send(&mut world, client, Kind::Data, forward), None);
    for kind in [Kind::Cookie, Kind::InitAck, Kind::Data] {
        assert_eq!(send(&mut world, next, kind, back), Some(BACK));
    }
    assert_eq!(send(&mut world, next, Kind::Init, back), None);
    // Now the far end's PID is known.
    assert_eq!(world.ask(session, Request::Redirect { flow, out: Pid(9), back: Pid(0) }), []);
    assert_eq!(send(&mut world, client, Kind::Data, forward), None, "not before the next hop agreed");
    assert_eq!(world.consent(session, &[Pid(9)]), [Reply::Flow { flow, state: FlowState::Ready }]);
    assert_eq!(send(&mut world, client, Kind::Data, forward), Some(Pid(9)));
    // As through the first of two relays, to the session behind the second.
    assert_eq!(send(&mut world, client, Kind::Init, forward), Some(Pid(9)));
}

#[test]
fn two_relays_in_a_row_agree_with_each_other_and_carry_packets_both_ways() {
    let mut near = World::new();
    let mut far = World::with(|config| config.key = key(101));
    let (client, near_hop, far_hop) = (hop("203.0.113.5:1000"), hop("198.51.99.1:9"), hop("198.51.99.2:9"));
    let server = hop("192.88.1.9:3000");
    let at_near = near.open(1, 1, "203.0.113.5:1000");
    let at_far = far.open(1, 1, "198.51.99.1:9");
    // Allocated from the far end, which issues the PIDs; the return path is filled in afterwards.
    let (far_flow, far_forward, far_back) = far.ready(at_far, "192.88.1.9:3000", Pid(70));
    let (_, near_forward, near_back) = near.allocate(at_near, "198.51.99.2:9", far_forward).unwrap();
    assert_eq!(far.ask(at_far, Request::Redirect { flow: far_flow, out: Pid(70), back: near_back }), []);
    let asked = near.sent();
    assert_eq!(asked[0].to, far_hop);
    let mut question = asked[0].datagram.to_vec();
    assert!(far.run(hop("198.51.99.66:9"), &mut question.clone(), 64).is_empty());
    assert!(far.sent().is_empty(), "a stranger's question about the PID is not answered");
    far.run(near_hop, &mut question, 64);
    let mut answer = far.sent().remove(0).datagram;
    near.run(far_hop, &mut answer, 64);
    assert!(matches!(near.replies(at_near)[..], [Reply::Flow { state: FlowState::Ready, .. }]));

    let mut bytes = datagram(Kind::Data, near_forward, 2, 100);
    assert_eq!(near.run(client, &mut bytes, 100)[0].to, far_hop);
    assert_eq!(far.run(near_hop, &mut bytes, 100)[0].to, server);
    assert_eq!(Header::decode(&bytes).unwrap().0.pid, Pid(70));
    let mut bytes = datagram(Kind::Data, far_back, 2, 100);
    assert_eq!(far.run(server, &mut bytes, 100)[0].to, near_hop);
    assert_eq!(near.run(far_hop, &mut bytes, 100)[0].to, client);
    assert_eq!(Header::decode(&bytes).unwrap().0.pid, BACK);
}

#[test]
fn a_client_that_moves_keeps_its_flows_and_its_old_address_carries_nothing() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (flow, forward, back) = world.ready(session, "198.51.99.7:2000", Pid(42));
    let moved = hop("203.0.113.99:7777");
    world.relay.handle_session_path(session, PathId(0), Some(moved));
    assert_eq!(world.packet(hop("203.0.113.5:1000"), forward), None);
    assert_eq!(world.packet(moved, forward).unwrap().0, hop("198.51.99.7:2000"));
    assert_eq!(world.packet(hop("198.51.99.7:2000"), back).unwrap().0, moved);
    world.relay.handle_session_path(session, PathId(0), None);
    assert_eq!(world.replies(session), [Reply::Flow { flow, state: FlowState::PathGone }]);
    assert_eq!(world.packet(moved, forward), None);
}

#[test]
fn a_congested_relay_sends_on_what_waited_when_it_may() {
    let mut world = World::with(|config| config.rate = Some(Rate::from_mbit(8.0)));
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (_, pid, _) = world.ready(session, "198.51.99.7:2000", Pid(42));
    let mut bytes = [datagram(Kind::Data, pid, 4, 1_000)].concat().repeat(10);
    // Ten packets take 10 ms at this rate, so none passes at once.
    assert!(world.run(hop("203.0.113.5:1000"), &mut bytes, 1_000).is_empty());
    let mut sent = world.sent();
    assert!((2..=4).contains(&sent.len()), "{}", sent.len());
    while sent.len() < 10 {
        let due = world.relay.poll_timeout().unwrap();
        assert!(due <= world.now + Span::from_millis(12));
        world.now = world.now.max(due);
        sent.extend(world.sent());
    }
    assert!(
        sent.iter()
            .all(|packet| Header::decode(&packet.datagram).unwrap().0.pid == Pid(42) && packet.ecn == 2)
    );
    assert_eq!(world.relay.stats().forwarded, Tally { packets: 10, bytes: 10_000 });
}

#[test]
fn a_reset_goes_back_under_the_pid_that_its_receiver_uses_and_only_from_the_next_hop() {
    let mut world = World::new();
    let session = world.open(1, 1, "203.0.113.5:1000");
    let (_, forward, back) = world.ready(session, "198.51.99.7:1", Pid(1));
    let (client, next, stranger) = (hop("203.0.113.5:1000"), hop("198.51.99.7:1"), hop("192.88.1.1:1"));
    let mut reset = |from, pid| {
        let mut bytes = datagram(Kind::Reset, pid, 4, 32);
        let out = world.run(from, &mut bytes, 32);
        out.first().map(|sent| (sent.to, Header::decode(&bytes).unwrap().0.pid))
    };
    assert_eq!(reset(next, Pid(1)), Some((client, forward)));
    assert_eq!(reset(client, BACK), Some((next, back)));
    assert_eq!(reset(stranger, Pid(1)), None);
    assert_eq!(reset(next, Pid(2)), None);
    (0..1000).for_each(|_| assert_eq!(reset(stranger, Pid(1)), None));
    assert_eq!(reset(next, Pid(1)), Some((client, forward)), "after a flood from elsewhere");
}
