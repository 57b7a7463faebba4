//! An authenticated but malicious peer (`docs/explanation/security.md`). An allocator measures the memory that it can make a
//! session use. The session closes with the right error or copes.
//!
//! Two modules test acknowledgements and copies with a peer that is not malicious. They are here because each program
//! compiles the engine anew.

#[path = "hostile/acknowledgements.rs"]
mod acknowledgements;
#[path = "hostile/attacker.rs"]
mod attacker;
#[path = "hostile/relief.rs"]
mod relief;
#[path = "hostile/work.rs"]
mod work;

use anabranch_engine::{
    AckConfig, Config, Event, MemoryBudget, PathOrigin, PathRule, PathRules, PathState, Pattern, Priority,
    ProtocolError, Read, Route, State, Terms,
};
use anabranch_wire::{
    AckPath, AddressFrame, DatagramFrame, Frame, Fsn, KeyExchange, Params, ParityFrame, PathId, PathRate,
    PathStatus, PathUse, Pid, Rate, Report, Span, StreamId,
};
use attacker::{
    Meter, Victim, ack, challenge, elsewhere, highest, marked_frame, new_pid, params, parity_frame, route,
    stream_frame,
};
use bytes::Bytes;

const KIB: i64 = 1024;

#[test]
fn endless_gaps_in_the_numbers_cost_a_bounded_set_of_ranges() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    for packet in 1..200_000 {
        for sent in victim.say_as((0, packet * 2), route(), [Frame::Ping]) {
            let frames = &sent.message.packet().unwrap().frames;
            let ranges =
                frames.iter().map(|frame| if let Frame::Ack(ack) = frame { ack.ranges.len() } else { 0 });
            assert!(ranges.max().unwrap_or(0) <= 33);
        }
    }
    victim.assert_alive();
    assert!(meter.held() < 16 * KIB, "{}", meter.held());
}

#[test]
fn numbers_that_jump_to_the_end_of_the_space_do_no_harm() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    for power in 1..62 {
        victim.say_as((0, 1 << power), route(), [Frame::Ping]);
    }
    victim.say_as((0, (1 << 62) - 1), route(), [Frame::Ping]);
    victim.assert_alive();
    assert!(meter.held() < 16 * KIB, "{}", meter.held());
}

#[test]
fn every_other_byte_is_refused_when_it_costs_what_the_window_promised() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    let window = Config::default().memory.initial_window;
    for packet in 0..window / 400 {
        let frames = (0..200).map(|frame| stream_frame(0, packet * 400 + frame * 2 + 1, 1));
        victim.say(frames.filter(|_| packet < window / 400 - 1));
    }
    victim.assert_alive();
    assert!(victim.session.stats().packets_ignored > 1000);
    assert!(meter.held() < 2 * window as i64, "{}", meter.held());
    // Refused bytes are not acknowledged; sent again in order, they are accepted.
    victim.say([stream_frame(0, 0, 1000)]);
    assert!(matches!(victim.session.read(StreamId(0), 4000), Ok(Read::Data(data)) if data.len() == 1000));
}

#[test]
fn a_byte_and_a_piece_after_it_cost_what_the_window_promised() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    let window = Config::default().memory.initial_window;
    // Both are stored, as the larger one is no crumb; then a byte is missing.
    for pair in 0..window / 259 {
        let at = pair * 259 + 1;
        victim.say([stream_frame(0, at, 1), stream_frame(0, at + 1, 257)]);
    }
    victim.assert_alive();
    assert!(meter.held() < 2 * window as i64, "{} of {window}", meter.held());
}

#[test]
fn bytes_in_order_one_by_one_cost_little_more_than_the_bytes() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    let window = Config::default().memory.initial_window;
    for packet in 0..window / 200 {
        victim.say((0..200).map(|frame| stream_frame(0, packet * 200 + frame, 1)));
    }
    victim.assert_alive();
    assert_eq!(victim.session.stats().packets_ignored, 0);
    assert!(meter.held() < 2 * window as i64 + 64 * KIB, "{}", meter.held());
}

#[test]
fn bytes_beyond_the_credit_close_the_session() {
    let _turn = Meter::new();
    let window = Config::default().memory.initial_window;
    let mut victim = Victim::new();
    victim.say([stream_frame(0, window, 1)]);
    victim.assert_closed_for(ProtocolError::FlowControl);
    let mut victim = Victim::new();
    victim.say([stream_frame(0, window - 1, 1), stream_frame(4, 0, 1)]);
    victim.assert_closed_for(ProtocolError::FlowControl);
    let mut victim = Victim::new();
    victim.say([Frame::ResetStream { stream: StreamId(0), code: 0, final_size: window + 1 }]);
    victim.assert_closed_for(ProtocolError::FlowControl);
}

#[test]
fn a_stream_whose_end_moves_closes_the_session() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    let Frame::Stream(mut end) = stream_frame(0, 0, 10) else { unreachable!() };
    end.fin = true;
    victim.say([Frame::Stream(end), stream_frame(0, 10, 1)]);
    victim.assert_closed_for(ProtocolError::FinalSize);
}

#[test]
fn acknowledging_what_was_never_sent_closes_the_session() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    victim.say([ack(0, [0..1_000_000])]);
    victim.assert_closed_for(ProtocolError::AckOfUnsent);
    let mut victim = Victim::new();
    let stream = victim.session.open_stream().unwrap();
    victim.say([Frame::MaxStreamData { stream, limit: 1 << 40, received: 1 }]);
    victim.assert_closed_for(ProtocolError::AckOfUnsent);
}

/// Sends a bulk stream to a peer that acknowledges `ranges`, every millisecond.
fn bulk_to(victim: &mut Victim, rounds: u64, ranges: impl Fn(u64) -> Vec<std::ops::Range<u64>>) {
    let stream = victim.session.open_stream().unwrap();
    let mut top = 0;
    for _ in 0..rounds {
        // Small pieces: the rest of a large piece that is accepted in part would stay in memory.
        for _ in 0..64 {
            let mut data = Bytes::from(vec![0; 1 << 10]);
            let _ = victim.session.write(stream, &mut data);
        }
        top = highest(&victim.wait(Span::from_millis(1))).unwrap_or(top).max(top);
        top = highest(&victim.say([ack(0, ranges(top))])).unwrap_or(top).max(top);
        if victim.session.state() == State::Closed {
            return;
        }
        while victim.session.poll_event().is_some() {}
    }
}

#[test]
fn blind_acknowledgements_hit_a_number_that_was_skipped() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    bulk_to(&mut victim, 10_000, |top| vec![0..top + 1]);
    victim.assert_closed_for(ProtocolError::AckOfUnsent);
    let sent = victim.session.paths()[0].stats.packets_sent;
    assert!(sent < 2_000, "noticed after {sent} packets");
}

#[test]
fn floods_of_acknowledgements_of_every_other_packet_leave_a_bounded_scoreboard() {
    let meter = Meter::new();
    let config =
        Config { acks: AckConfig { skip_numbers: false, ..AckConfig::default() }, ..Config::default() };
    let mut victim = Victim::with(config, MemoryBudget::new(1 << 40));
    bulk_to(&mut victim, 20_000, |top| {
        let odd = top | 1;
        (0..64)
            .map(|range| odd.saturating_sub(range * 2))
            .filter(|n| *n > 0 && *n <= top)
            .map(|n| n..n + 1)
            .collect()
    });
    victim.assert_alive();
    let path = &victim.session.paths()[0];
    assert!(path.stats.packets_lost > 1000, "{:?}", path.stats);
    // Unacknowledged data of the application is its own; the rest is bookkeeping.
    assert!(meter.held() < 4096 * KIB, "{}", meter.held());
}

#[test]
fn a_peer_that_sends_and_never_acknowledges_costs_no_more_with_time() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    let stream = victim.session.open_stream().unwrap();
    let mut data = Bytes::from(vec![0; 30_000]);
    victim.session.write(stream, &mut data).unwrap();
    let held = |victim: &mut Victim, packets: u64| {
        for _ in 0..packets {
            victim.say([Frame::Ping]);
            victim.wait(Span::from_micros(100));
        }
        meter.held()
    };
    let early = held(&mut victim, 100_000);
    let late = held(&mut victim, 300_000);
    victim.assert_alive();
    assert!(late < early + 64 * KIB, "{early} then {late}");
}

#[test]
fn with_a_peer_that_accepts_nothing_the_application_soon_has_to_wait() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    victim.say([Frame::MaxData { limit: 1 << 61 }]);
    let mut written = 0;
    for _ in 0..1000 {
        let stream = victim.session.open_stream().unwrap();
        let mut data = Bytes::from(vec![0; 1 << 16]);
        written += victim.session.write(stream, &mut data).unwrap();
        victim.wait(Span::from_millis(10));
    }
    assert!(written < 1 << 19, "{written}");
}

#[test]
fn credit_that_shrinks_or_is_absurd_does_no_harm() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    let stream = victim.session.open_stream().unwrap();
    for limit in [(1 << 62) - 1, 0, 5] {
        victim.say([
            Frame::MaxData { limit },
            Frame::MaxStreamData { stream, limit, received: 0 },
            Frame::MaxStreams { limit },
        ]);
    }
    let mut data = Bytes::from(vec![0; 10_000]);
    victim.session.write(stream, &mut data).unwrap();
    assert!(!victim.wait(Span::from_millis(1)).is_empty());
    victim.assert_alive();
}

#[test]
fn a_byte_of_credit_at_a_time_for_ten_thousand_streams_costs_little() {
    let meter = Meter::new();
    let mut victim = Victim::offered(Params { initial_max_data: 0, ..params() });
    let mut streams = Vec::new();
    for _ in 0..10_000 {
        let stream = victim.session.open_stream().unwrap();
        victim.session.write(stream, &mut Bytes::from_static(&[0; 20])).unwrap();
        streams.push(stream);
    }
    let before = meter.held();
    for (index, stream) in streams.iter().cycle().take(100_000).enumerate() {
        let limit = index as u64;
        victim.say([Frame::MaxData { limit }, Frame::MaxStreamData { stream: *stream, limit, received: 0 }]);
    }
    victim.assert_alive();
    // At most a list entry for each stream.
    assert!(meter.held() < before + 192 * KIB, "{before} then {}", meter.held());
}

#[test]
fn more_streams_than_admitted_close_the_session() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    let most = Config::default().max_streams;
    for index in 0..most {
        victim.say([stream_frame(index * 2, 0, 1)]);
    }
    victim.assert_alive();
    victim.say([stream_frame(most * 2, 0, 1)]);
    victim.assert_closed_for(ProtocolError::StreamLimit);
    let mut victim = Victim::new();
    victim.say([stream_frame(1, 0, 1)]);
    victim.assert_closed_for(ProtocolError::StreamState);
}

#[test]
fn streams_opened_and_reset_count_until_the_application_has_seen_them() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    for index in 0..=Config::default().max_streams {
        let stream = StreamId(index * 2);
        victim.say([
            stream_frame(stream.0, 0, 1),
            Frame::StopSending { stream, code: 0 },
            Frame::ResetStream { stream, code: 0, final_size: 1 },
        ]);
    }
    victim.assert_closed_for(ProtocolError::StreamLimit);
}

/// Every event that a peer can cause at will, for an application that never fetches events.
#[test]
fn unfetched_events_do_not_pile_up() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    let stream = victim.session.open_stream().unwrap();
    for round in 0..50_000_u64 {
        let address = std::net::SocketAddr::from(([192, 0, 2, round as u8], round as u16));
        let sequence = round + 1;
        victim.say([
            Frame::ObservedAddress { path: PathId((round % 3) as u32), address },
            Frame::AddAddress(AddressFrame { id: round, address }),
            Frame::RemoveAddress { id: round },
            Frame::StopSending { stream, code: round },
            Frame::MaxStreams { limit: (1 << 60) + round },
            Frame::PathStatus(PathStatus { path: PathId(0), sequence, usage: PathUse::Backup }),
            Frame::AckPath(AckPath { sequence, path: Some(PathId(round as u32)) }),
            Frame::KeyExchange(KeyExchange { number: sequence, key: [round as u8; 32] }),
            Frame::Datagram(DatagramFrame { class: 0, flow: 0, data: Bytes::new() }),
        ]);
    }
    victim.assert_alive();
    assert!(meter.held() < 512 * KIB, "{}", meter.held());
}

#[test]
fn unread_datagrams_stay_within_the_budget() {
    let budget = MemoryBudget::new(2 << 20);
    let meter = Meter::new();
    let mut victim = Victim::with(Config::default(), budget.clone());
    for _ in 0..5_000 {
        let data = Bytes::from(vec![0; 60_000]);
        victim.say([Frame::Datagram(DatagramFrame { class: 0, flow: 0, data })]);
    }
    victim.assert_alive();
    assert!(meter.held() < 2200 * KIB, "{}", meter.held());
    assert!(victim.session.stats().datagrams_dropped > 4_900);
}

#[test]
fn of_unread_empty_datagrams_the_latest_few_are_kept() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    for flow in 0..50_000 {
        victim.say([Frame::Datagram(DatagramFrame { class: 0, flow, data: Bytes::new() })]);
    }
    victim.assert_alive();
    assert!(meter.held() < 256 * KIB, "{}", meter.held());
    let kept: Vec<_> =
        std::iter::from_fn(|| victim.session.recv_datagram()).map(|(_, kept)| kept.flow).collect();
    assert_eq!(kept.len(), 1024);
    assert_eq!(kept.last(), Some(&49_999));
}

#[test]
fn datagrams_longer_than_agreed_close_the_session() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    let data = Bytes::from(vec![0; 65_001]);
    victim.say([Frame::Datagram(DatagramFrame { class: 0, flow: 0, data })]);
    victim.assert_closed_for(ProtocolError::DatagramSize);
}

#[test]
fn paths_opened_and_abandoned_quickly_are_limited_in_number_and_rate() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    let most = Config::default().max_paths as usize;
    for id in (2..200_000).step_by(2) {
        let path = PathId(id);
        victim.say([new_pid(id, u64::from(id))]);
        victim.say_as((id, 0), route(), [Frame::Ping, Frame::PathAbandon { path, reason: 0 }]);
        assert!(victim.session.paths().len() <= 2 * most);
        if victim.session.state() == State::Closed {
            break;
        }
    }
    victim.assert_closed_for(ProtocolError::PathLimit);
    assert!(meter.held() < 256 * KIB, "{}", meter.held());
    assert!(victim.pids < 64, "{}", victim.pids);
}

#[test]
fn path_ids_abandoned_before_they_are_used_run_out_of_credit() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    for id in (2..2_000).step_by(2) {
        victim.say([Frame::PathAbandon { path: PathId(id), reason: 0 }]);
    }
    victim.assert_closed_for(ProtocolError::PathLimit);
    assert!(victim.pids < 32, "{}", victim.pids);
}

#[test]
fn pids_for_paths_far_ahead_are_refused() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    for id in 1..1_000 {
        victim.say([new_pid(id, 5)]);
    }
    victim.assert_closed_for(ProtocolError::PathLimit);
}

#[test]
fn of_false_addresses_32_are_reported_and_few_are_challenged_at_a_time() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    for id in 0..1_000_u64 {
        let address = std::net::SocketAddr::from(([203, 0, 113, 9], 1_000 + id as u16));
        victim.say([Frame::AddAddress(AddressFrame { id, address })]);
    }
    for id in (1..64).step_by(2) {
        victim.say([new_pid(id, u64::from(id))]);
    }
    let told: Vec<_> = std::iter::from_fn(|| victim.session.poll_event())
        .filter_map(|event| if let Event::PeerAddress { address, .. } = event { Some(address) } else { None })
        .collect();
    assert_eq!(told.len(), 32);
    // An application that tries them all, as soon as it may.
    let mut sent = Vec::new();
    for _ in 0..60 {
        for remote in &told {
            let _ = victim.session.open_path(victim.now, Route { socket: 0, remote: *remote });
        }
        let paths = victim.session.paths();
        let open =
            paths.iter().filter(|path| path.id != PathId::FIRST && path.state != PathState::Closing).count();
        assert!(open < Config::default().max_paths as usize, "{open}");
        sent.extend(victim.wait(Span::from_millis(100)));
    }
    let bytes_to = |remote| -> usize {
        sent.iter().filter(|sent| sent.route.remote == remote).map(|sent| sent.size).sum()
    };
    let challenged: Vec<_> = told.iter().map(|remote| bytes_to(*remote)).filter(|bytes| *bytes > 0).collect();
    // Each for at least five seconds, of which six have passed.
    let at_once = Config::default().max_paths as usize - 1;
    assert!((at_once..=2 * at_once).contains(&challenged.len()), "{challenged:?}");
    assert!(challenged.iter().all(|bytes| *bytes <= 10 * 48), "{challenged:?}");
}

#[test]
fn addresses_without_proof_are_sent_no_more_bytes_than_the_peer_sent() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    let mut reflected = 0;
    for id in (1..64).step_by(2) {
        victim.say([new_pid(id, u64::from(id))]);
    }
    // The peer sends next to nothing, and the application tries one third party after the other.
    for third in 0..200_u16 {
        let remote = std::net::SocketAddr::from(([203, 0, 113, 9], 1_000 + third));
        let _ = victim.session.open_path(victim.now, Route { socket: 0, remote });
        let sent = victim.wait(Span::from_millis(200));
        let small = sent.iter().filter(|sent| sent.route != route());
        small.clone().for_each(|sent| assert!(sent.size <= 48, "{sent:?}"));
        reflected += small.map(|sent| sent.size as u64).sum::<u64>();
        for path in victim.session.paths().iter().filter(|path| path.id != PathId::FIRST) {
            victim.session.close_path(victim.now, path.id, anabranch_engine::AbandonReason::Requested);
        }
    }
    assert!(reflected > 0, "nothing was tried, so the test shows nothing");
    assert!(reflected <= victim.bytes, "{reflected} bytes for {}", victim.bytes);
}

#[test]
fn a_packet_from_elsewhere_on_a_path_through_relays_gets_no_more_than_three_times_its_bytes() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    let path = PathId(1);
    victim.say([new_pid(path.0, 7)]);
    assert_eq!(victim.session.reserve_path().map(|reserved| reserved.id), Ok(path));
    let relay = Route { socket: 9, remote: "198.51.100.9:443".parse().unwrap() };
    victim.session.open_reserved(victim.now, path, (relay, Pid(77))).unwrap();
    let sent = victim.drain();
    victim.say_as((path.0, 0), relay, [Frame::PathResponse { token: challenge(&sent, relay) }]);
    assert_eq!(victim.session.paths()[1].state, PathState::Active);
    let before = victim.bytes;
    let mut sent = victim.say_as((path.0, 1), elsewhere(), [Frame::Ping]);
    let bytes = victim.bytes - before;
    sent.extend(victim.wait(Span::from_secs(2)));
    let reflected: u64 =
        sent.iter().filter(|sent| sent.route == elsewhere()).map(|sent| sent.size as u64).sum();
    assert!(reflected > 0 && reflected <= 3 * bytes, "{reflected} bytes for {bytes}");
}

#[test]
fn a_close_adds_nothing_to_what_addresses_without_proof_may_be_sent() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    for id in (1..16).step_by(2) {
        victim.say([new_pid(id, u64::from(id))]);
    }
    for third in 0..7_u16 {
        let remote = std::net::SocketAddr::from(([203, 0, 113, 9], 1_000 + third));
        let _ = victim.session.open_path(victim.now, Route { socket: 0, remote });
    }
    let mut sent = victim.drain();
    victim.session.abort(victim.now, 1, &"x".repeat(255));
    let last = victim.drain();
    let closes = |sent: &anabranch_engine::Transmit<Bytes>| {
        sent.message.packet().is_some_and(|packet| matches!(packet.frames[0], Frame::Close(_)))
    };
    assert!(last.iter().any(|sent| sent.route == route() && closes(sent)), "the peer is informed");
    sent.extend(last);
    let there = sent.iter().filter(|sent| sent.route != route());
    let reflected = there.map(|sent| sent.size as u64).sum::<u64>();
    assert!(reflected > 0, "nothing was tried, so the test shows nothing");
    assert!(reflected <= victim.bytes, "{reflected} bytes for {}", victim.bytes);
}

#[test]
fn floods_of_challenges_get_few_answers_and_never_three_times_the_bytes() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    victim.wait(Span::from_secs(1));
    let elsewhere = elsewhere();
    for number in 1..10_000_u64 {
        // As many as are answered at a time, too.
        let count = if number % 2 == 0 { 4 } else { 100 };
        let challenges = (0..count).map(|token| Frame::PathChallenge { token: token + number * 100 });
        let sent = victim.say_as((0, number), elsewhere, challenges);
        let there: usize = sent.iter().filter(|sent| sent.route == elsewhere).map(|sent| sent.size).sum();
        assert!(there <= 3 * (32 + 9 * count as usize), "{there}");
        assert!(sent.len() <= 8);
        if number % 50 == 0 {
            victim.wait(Span::from_millis(1));
        }
    }
    victim.assert_alive();
}

#[test]
fn a_flood_of_lying_reports_leaves_finite_numbers() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    for round in 0..50_000 {
        let highest_fsn = if round % 7 == 0 { Fsn((1 << 62) - 1) } else { Fsn(round) };
        let report = Report { path: PathId(0), bytes: 0, packets: 0, highest_fsn, highest_tsn: 0 };
        victim.say([Frame::Report(report)]);
    }
    victim.assert_alive();
    let reliability = victim.session.paths()[0].reliability;
    assert!((1e-3..=1.0).contains(&reliability), "{reliability}");
}

#[test]
fn false_marks_and_delays_slow_down_only_the_liar() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    let stream = victim.session.open_stream().unwrap();
    for round in 1..5_000_u64 {
        let mut data = Bytes::from(vec![0; 5_000]);
        let _ = victim.session.write(stream, &mut data);
        let sent = victim.wait(Span::from_millis(5));
        let Some(top) = highest(&sent) else { continue };
        let Frame::Ack(mut lie) = ack(0, [top..top + 1]) else { unreachable!() };
        lie.delay = Span::MAX;
        lie.ecn = Some(anabranch_wire::EcnCounts { ect0: 0, ect1: 0, ce: round << 40 });
        victim.say([Frame::Ack(lie)]);
    }
    victim.assert_alive();
    let path = &victim.session.paths()[0];
    assert!(path.rtt > Span::ZERO && path.window >= 2 * 1200, "{path:?}");
}

#[test]
fn repeated_goodbyes_change_nothing() {
    let meter = Meter::new();
    let mut victim = Victim::new();
    for _ in 0..50_000 {
        victim.say([Frame::Shutdown, Frame::ShutdownAck]);
    }
    assert!(meter.held() < 64 * KIB, "{}", meter.held());
}

#[test]
fn a_closed_session_answers_a_flood_ever_more_rarely() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    victim.session.abort(victim.now, 5, "enough");
    victim.drain();
    let answers: usize = (0..100_000).map(|_| victim.say([Frame::Ping]).len()).sum();
    assert!(answers <= 17, "{answers}");
}

/// Datagrams and parity of every class with blocks that are never completed: as much memory as they can use, and wide
/// windows.
fn fill_classes(victim: &mut Victim) {
    for class in 0..16 {
        let parity = (0..40).map(|block| parity_frame((class, (1 << 20) + block * 32), 0, 0));
        victim.say(parity.chain([marked_frame((class, 1_000), true, 0)]));
    }
    while victim.session.recv_datagram().is_some() {}
}

#[test]
fn datagrams_of_all_classes_and_their_parity_stay_within_the_budget_and_leave_little_behind() {
    for whole in [0, 1 << 20, 1 << 40] {
        let meter = Meter::new();
        let budget = MemoryBudget::new(whole);
        let mut victim = Victim::with(Config::default(), budget.clone());
        let (held, left) = (meter.held(), budget.left());
        fill_classes(&mut victim);
        let (more, taken) = (meter.held() - held, (left - budget.left()) as i64);
        // The test harness allocates some of it.
        assert!(more <= 2 * taken + 16 * KIB, "{more} bytes for {taken} of {whole}");
        victim.wait(Span::from_secs(2));
        let more = meter.held() - held;
        assert!(more <= 16 * KIB && budget.left() == left, "{more} bytes are left of {whole}");
        victim.assert_alive();
    }
}

#[test]
fn parity_restores_no_datagram_that_is_longer_than_one_may_be() {
    let _turn = Meter::new();
    let mut config = Config::default();
    config.datagrams.largest = 1_001;
    let mut victim = Victim::with(config, MemoryBudget::new(1 << 40));
    for (first, len) in [(0, 1_001_u16), (1, 1_002)] {
        let mut head = [0; 12];
        head[4..6].copy_from_slice(&len.to_be_bytes());
        let data = Bytes::from(vec![0; 1_002]);
        let piece = ParityFrame { class: 0, first, count: 1, parities: 1, index: 0, head, data };
        victim.say([Frame::Parity(piece)]);
    }
    let restored: Vec<_> = std::iter::from_fn(|| victim.session.recv_datagram()).collect();
    assert_eq!(restored.iter().map(|(_, datagram)| datagram.data.len()).collect::<Vec<_>>(), [1_001]);
}

const BUDGET: u64 = 448 << 20;

/// Up to ten thousand sessions of one endpoint, each filled by `fill` while the budget has room.
fn crowd(budget: &MemoryBudget, mut fill: impl FnMut(&mut Victim)) -> Vec<Victim> {
    let mut victims = Vec::new();
    while victims.len() < 10_000 && budget.has_room() {
        let mut victim = Victim::with(Config::default(), budget.clone());
        fill(&mut victim);
        victims.push(victim);
    }
    victims
}

/// Checks that the sessions hold at most `promised` bytes together and `each` kibibytes apart; returns that bound.
fn assert_bounded(victims: &[Victim], meter: &Meter, (promised, each): (i64, i64)) -> i64 {
    let most = promised + victims.len() as i64 * each * KIB;
    println!("{} sessions hold {} bytes, at most {most}", victims.len(), meter.held());
    assert!(meter.held() < most, "{}", meter.held());
    most
}

/// Each session uses all the memory it can. The budget covers the promised bytes; storing them in pieces costs as much again,
/// and each session a few kilobytes.
#[test]
fn ten_thousand_hostile_sessions_stay_within_the_budget_together() {
    let budget = MemoryBudget::new(BUDGET);
    let meter = Meter::new();
    let mut victims = crowd(&budget, |victim| {
        fill_classes(victim);
        victim.wait(Span::from_secs(2));
        for packet in 0..1000 {
            victim.say((0..200).map(|frame| stream_frame(0, 1 + packet * 400 + frame * 2, 1)));
            if victim.session.stats().packets_ignored > 0 || victim.session.state() == State::Closed {
                break;
            }
        }
        let data = Bytes::from(vec![0; 1_000]);
        victim.say([Frame::Datagram(DatagramFrame { class: 0, flow: 0, data })]);
    });
    assert_eq!(victims.len(), 10_000);
    let most = assert_bounded(&victims, &meter, (2 * BUDGET as i64, 12));
    // And all classes once more, with little left.
    victims.iter_mut().for_each(fill_classes);
    assert!(meter.held() < most, "{}", meter.held());
    drop(victims);
    assert_eq!(budget.left(), BUDGET);
}

/// The same with datagrams only, while there is memory for them.
#[test]
fn the_datagrams_of_ten_thousand_hostile_sessions_stay_within_the_budget_together() {
    let budget = MemoryBudget::new(BUDGET);
    let meter = Meter::new();
    let victims = crowd(&budget, fill_classes);
    assert_bounded(&victims, &meter, (2 * BUDGET as i64, 12));
    drop(victims);
    assert_eq!(budget.left(), BUDGET);
}

/// The same with streams: one byte on each of all that may be opened.
#[test]
fn the_streams_of_ten_thousand_hostile_sessions_stay_within_the_budget_together() {
    let budget = MemoryBudget::new(BUDGET);
    let meter = Meter::new();
    let victims = crowd(&budget, |victim| {
        for stream in 0..128 {
            victim.say([stream_frame(stream * 2, 0, 1)]);
        }
        assert_ne!(victim.session.state(), State::Closed);
    });
    assert_eq!(victims.len(), 10_000);
    assert_bounded(&victims, &meter, (BUDGET as i64, 16));
    drop(victims);
    assert_eq!(budget.left(), BUDGET);
}

/// The same with paths: as many as allowed, including those being abandoned, with as many gaps in their numbers as are
/// reported.
#[test]
fn the_paths_of_ten_thousand_hostile_sessions_stay_within_the_budget_together() {
    let budget = MemoryBudget::new(BUDGET);
    let meter = Meter::new();
    let mut taken = 0;
    let victims = crowd(&budget, |victim| {
        let before = budget.left();
        for id in (2..34).step_by(2) {
            victim.say([new_pid(id, u64::from(id))]);
            (1..34).for_each(|number| drop(victim.say_as((id, number * 2), route(), [Frame::Ping])));
            if id < 18 {
                victim.say([Frame::PathAbandon { path: PathId(id), reason: 0 }]);
            }
        }
        victim.assert_alive();
        taken += (before - budget.left()) as i64;
    });
    assert_eq!(victims.len(), 10_000);
    assert_bounded(&victims, &meter, (taken, 20));
    assert_eq!(victims[0].session.paths().len(), 16, "while there is much left");
    drop(victims);
    assert_eq!(budget.left(), BUDGET);
}

/// Every kind of frame that opens a stream counts it against the budget of all sessions.
#[test]
fn streams_count_against_the_budget_whatever_frame_opens_them() {
    let _turn = Meter::new();
    type Opening = fn(StreamId) -> Frame<Bytes>;
    let openings: [Opening; 4] = [
        |stream| stream_frame(stream.0, 0, 1),
        |stream| Frame::ResetStream { stream, code: 0, final_size: 0 },
        |stream| Frame::StopSending { stream, code: 0 },
        |stream| Frame::MaxStreamData { stream, limit: 1 << 20, received: 0 },
    ];
    for (kind, opening) in openings.into_iter().enumerate() {
        let budget = MemoryBudget::new(448 << 20);
        let mut victim = Victim::with(Config::default(), budget.clone());
        let mut open = |streams: std::ops::Range<u64>| {
            streams.for_each(|stream| drop(victim.say([opening(StreamId(stream * 2))])));
            budget.left()
        };
        let [few, many] = [open(0..8), open(8..40)];
        assert!(few - many >= 32 << 10, "frames of kind {kind}: {} bytes", few - many);
    }
}

#[test]
fn a_copy_of_the_first_packet_from_elsewhere_does_not_move_the_path() {
    let _turn = Meter::new();
    let elsewhere = elsewhere();
    let mut victim = Victim::unheard(Config::default());
    // Long enough to have a challenge of an address without proof allowed.
    let sent = victim.say_as((0, 0), elsewhere, [Frame::Ping, Frame::Padding(100)]);
    assert_eq!(victim.session.paths()[0].route, route());
    let there: Vec<_> = sent.iter().filter(|sent| sent.route == elsewhere).collect();
    let only_challenges = there.iter().all(|sent| {
        sent.message.packet().is_some_and(|packet| matches!(packet.frames[0], Frame::PathChallenge { .. }))
    });
    assert!(there.len() == 1 && only_challenges, "{there:?}");
}

#[test]
fn a_path_that_another_copy_of_init_wins_has_the_rules_of_its_own_route() {
    let _turn = Meter::new();
    let (own, limit) = (Route { socket: 1, ..route() }, Rate::from_bits(5_000_000));
    let terms = Terms { rate: Some(limit), ..Terms::default() };
    let rules = PathRules::new(vec![PathRule { pattern: "eth1".parse().unwrap(), terms }]);
    let mut victim = Victim::unheard(Config { rules, ..Config::default() });
    for (socket, interface) in [(route().socket, "eth1"), (own.socket, "eth2")] {
        let place = PathOrigin { interface: interface.to_owned(), ..PathOrigin::default() };
        victim.session.describe_socket(victim.now, socket, place);
    }
    assert_eq!(victim.session.paths()[0].rate_limit, Some(limit));
    victim.greet_from(own);
    victim.say_as((0, 0), own, [Frame::Ping]);
    let path = &victim.session.paths()[0];
    assert_eq!((path.route, path.rate_limit), (own, None));
}

#[test]
fn what_arrives_on_a_route_that_rules_forbid_is_ignored() {
    let _turn = Meter::new();
    let forbidden = Route { socket: 1, ..route() };
    let terms = Terms { priority: Priority::Never, ..Terms::default() };
    let rules = PathRules::new(vec![PathRule { pattern: "eth2".parse().unwrap(), terms }]);
    let mut victim = Victim::with(Config { rules, ..Config::default() }, MemoryBudget::new(1 << 40));
    for (socket, interface) in [(route().socket, "eth1"), (forbidden.socket, "eth2")] {
        let place = PathOrigin { interface: interface.to_owned(), ..PathOrigin::default() };
        victim.session.describe_socket(victim.now, socket, place);
    }
    let ignored = |victim: &Victim| victim.session.stats().packets_ignored;
    let before = ignored(&victim);
    victim.say_as((0, 100), forbidden, [Frame::Ping]);
    assert_eq!(ignored(&victim), before + 1);
    victim.say_as((0, 101), route(), [Frame::Ping]);
    assert_eq!(ignored(&victim), before + 1);
}

/// Its peer announced the address, and then used the path from its own.
#[test]
fn an_address_that_a_path_leaves_without_an_answer_is_not_proven() {
    let _turn = Meter::new();
    let mut victim = Victim::new();
    let path = PathId(1);
    victim.say([new_pid(path.0, 7)]);
    assert_eq!(victim.session.open_path(victim.now, elsewhere()), Ok(path));
    victim.drain();
    let own = Route { socket: 1, ..route() };
    let sent = victim.say_as((path.0, 0), own, [Frame::Ping]);
    victim.say_as((path.0, 1), own, [Frame::PathResponse { token: challenge(&sent, own) }]);
    assert_eq!(victim.session.paths()[1].route, own);
    assert!(!victim.session.is_proven(elsewhere().remote));
}

#[test]
fn a_path_on_which_the_peer_admits_nothing_is_not_kept_alive_without_pause() {
    let _turn = Meter::new();
    let config = Config { keep_alive: Some(Span::from_secs(2)), ..Config::default() };
    let mut victim = Victim::with(config, MemoryBudget::new(1 << 40));
    victim.say([Frame::Ping]);
    let last = highest(&victim.wait(Span::from_millis(20))).unwrap();
    victim.say([ack(0, [0..last + 1]), Frame::MaxPathData { path: PathId::FIRST, limit: 0 }]);
    while victim.session.state() == State::Established {
        let due = victim.session.poll_timeout().unwrap();
        assert!(due > victim.now, "due again at once");
        victim.now = due;
        victim.session.handle_timeout(due);
        victim.drain();
    }
}

#[test]
fn a_flood_of_rates_raises_no_limit_and_leaves_nothing_for_paths_that_no_one_opens() {
    let meter = Meter::new();
    let own = Rate::from_bits(5_000_000);
    let terms = Terms { rate: Some(own), ..Terms::default() };
    let rules = PathRules::new(vec![PathRule { pattern: Pattern::Any, terms }]);
    let mut victim = Victim::with(Config { rules, ..Config::default() }, MemoryBudget::new(1 << 40));
    let largest = (1 << 62) - 1;
    for number in 1..20_000 {
        let limit = |path, bits| Frame::MaxPathRate(PathRate { path: PathId(path), sequence: number, bits });
        victim.say([limit(0, 1 + number % 7), limit(number as u32, 1), limit(0, largest)]);
    }
    // Two rates with one number: the first one holds, and it is never less than a packet needs.
    let limit = |victim: &Victim| victim.session.paths()[0].rate_limit;
    assert_eq!(limit(&victim), Some(Rate::from_bits(1_000)));
    for (sequence, bits, now) in [(20_000, largest, own), (3, 1, own), (20_001, 0, own)] {
        victim.say([Frame::MaxPathRate(PathRate { path: PathId::FIRST, sequence, bits })]);
        assert_eq!(limit(&victim), Some(now), "{sequence}");
    }
    victim.assert_alive();
    assert!(meter.held() < 64 * KIB, "{}", meter.held());
}
