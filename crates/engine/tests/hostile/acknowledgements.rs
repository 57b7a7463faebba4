//! When acknowledgements are sent that no data on their own path can carry.

use anabranch_engine::{
    AbandonReason, Arrival, Config, Coupling, Detector, Ecn, MemoryBudget, PathState, Route, Transmit,
};
use anabranch_wire::{ArrivalTime, Frame, Fsn, Message, Packet, Params, PathId, Span};
use bytes::Bytes;

use crate::attacker::{Meter, Victim, ack, challenge, highest, params, route, stream_frame};

const SECOND: PathId = PathId(2);

fn second_route() -> Route {
    Route { socket: 1, ..route() }
}

/// A session with a second path that answers after 100 ms.
fn with_a_slow_second_path() -> Victim {
    opening_a_second_path(Victim::new())
}

fn opening_a_second_path(victim: Victim) -> Victim {
    victim.opening(SECOND, second_route())
}

fn tells_of(sent: &Transmit<Bytes>, path: PathId) -> bool {
    let frames = &sent.message.packet().unwrap().frames;
    frames.iter().any(|frame| matches!(frame, Frame::Ack(ack) if ack.path == path))
}

#[test]
fn an_acknowledgement_does_not_wait_until_there_is_no_data_for_other_paths() {
    let _turn = Meter::new();
    let mut victim = with_a_slow_second_path();
    let stream = victim.session.open_stream().unwrap();
    victim.session.write(stream, &mut Bytes::from(vec![0; 200_000])).unwrap();
    let hear = |victim: &mut Victim, (path, number): (PathId, u64), frame| {
        let route = if path == SECOND { second_route() } else { route() };
        let packet = Packet { path, fsn: Fsn(number), frames: [frame].into_iter().collect() };
        let arrival = Arrival { route, size: 60, ecn: Ecn::NotEct, waited: Span::ZERO };
        victim.session.handle_message(victim.now, &arrival, Message::Packet(packet));
    };
    hear(&mut victim, (SECOND, 2), Frame::Ping);
    hear(&mut victim, (SECOND, 3), Frame::Ping);
    // The first path's window never fills, as every packet is acknowledged at once.
    for step in 0..50 {
        let sent = victim.session.poll_transmit(victim.now).expect("there is data");
        if tells_of(&sent, SECOND) {
            assert!(step > 5, "data in flight could have carried it");
            return;
        }
        let packet = sent.message.packet().unwrap();
        assert_eq!(packet.path, PathId::FIRST, "the slow path has nothing to gain");
        hear(&mut victim, (PathId::FIRST, 100 + step), ack(0, [packet.fsn.0..packet.fsn.0 + 1]));
        victim.now += Span::from_micros(100);
    }
    panic!("no acknowledgement for the second path in 5 ms");
}

/// A victim whose first path is suspected, because its data are not acknowledged.
fn with_a_suspected_path() -> Victim {
    let mut victim = with_a_slow_second_path();
    let stream = victim.session.open_stream().unwrap();
    victim.session.write(stream, &mut Bytes::from(vec![0; 2_000])).unwrap();
    victim.drain();
    for _ in 0..100 {
        if victim.session.paths()[0].state == PathState::Active {
            victim.wait(Span::from_millis(10));
        }
    }
    assert_eq!(victim.session.paths()[0].state, PathState::Suspect);
    victim
}

#[test]
fn a_suspected_path_that_still_receives_carries_every_other_acknowledgement() {
    let _turn = Meter::new();
    let mut victim = with_a_suspected_path();
    let mut over = [0_u32; 2];
    for piece in 0..40 {
        let sent = victim.say([stream_frame(0, piece * 1_000, 1_000)]);
        for packet in sent.iter().filter(|sent| piece >= 20 && tells_of(sent, PathId::FIRST)) {
            over[usize::from(packet.message.packet().unwrap().path == SECOND)] += 1;
        }
    }
    assert!(over[0].abs_diff(over[1]) <= 1 && over[0] >= 4, "{over:?}");
}

#[test]
fn a_suspected_path_is_probed_once_its_new_port_is_proven() {
    let _turn = Meter::new();
    let mut victim = with_a_suspected_path();
    let moved = Route { remote: "198.51.100.7:999".parse().unwrap(), ..route() };
    let sent = victim.say_as((0, 100), moved, [Frame::Ping]);
    let answer = Frame::PathResponse { token: challenge(&sent, moved) };
    let sent = victim.say_as((0, 101), moved, [answer]);
    let path = &victim.session.paths()[0];
    assert_eq!((path.route, path.state), (moved, PathState::Suspect));
    let is_probe = |sent: &Transmit<Bytes>| {
        let asks = |frame: &Frame<Bytes>| matches!(frame, Frame::Stream(_) | Frame::Ping);
        sent.route == moved && sent.message.packet().unwrap().frames.iter().any(asks)
    };
    assert!(sent.iter().any(is_probe), "{sent:?}");
}

/// The arrival times in the acknowledgements of two packets that arrive 3 ms apart in a session of one path or two, and
/// when the second packet arrived.
fn told_times(asked: bool, paths: usize) -> (Vec<Option<ArrivalTime>>, ArrivalTime) {
    let _turn = Meter::new();
    let mut victim = Victim::offered(Params { arrival_times: asked, ..params() });
    if paths == 2 {
        victim = opening_a_second_path(victim);
    }
    victim.say([Frame::Ping]);
    victim.now += Span::from_millis(3);
    let arrived = ArrivalTime::of(victim.now);
    let mut sent = victim.say([Frame::Ping]);
    sent.extend(victim.wait(Span::from_millis(40)));
    let frames = sent.iter().flat_map(|sent| &sent.message.packet().unwrap().frames);
    let times = frames.filter_map(|frame| if let Frame::Ack(ack) = frame { Some(ack.arrived) } else { None });
    (times.collect(), arrived)
}

#[test]
fn arrival_times_are_reported_on_request_and_only_with_two_paths() {
    let (told, arrived) = told_times(true, 2);
    assert!(!told.is_empty() && told.iter().all(|time| *time == Some(arrived)), "{told:?} {arrived:?}");
    for (asked, paths) in [(true, 1), (false, 1), (false, 2)] {
        let (told, _) = told_times(asked, paths);
        assert!(!told.is_empty() && told.iter().all(Option::is_none), "{asked} {paths}: {told:?}");
    }
}

#[test]
fn detectors_that_use_delays_request_arrival_times() {
    let _turn = Meter::new();
    let asks = |config| {
        let victim = Victim::with(config, MemoryBudget::new(1 << 40));
        victim.session.local_params().arrival_times
    };
    for (detector, name) in Detector::ALL {
        let config = Config { detector, ..Config::default() };
        assert_eq!(asks(config.clone()), detector != Detector::Losses, "{name}");
        assert!(!asks(Config { coupling: Coupling::Fixed, ..config }), "{name}: nothing is detected");
    }
    assert_eq!(Config::default().detector, Detector::Both);
}

#[test]
fn nothing_is_answered_on_a_path_that_was_given_up() {
    let _turn = Meter::new();
    let mut victim = with_a_slow_second_path();
    victim.session.close_path(victim.now, SECOND, AbandonReason::Requested);
    victim.drain();
    let sent = victim.say_as((SECOND.0, 2), second_route(), [Frame::PathChallenge { token: 5 }]);
    assert_eq!(victim.session.paths()[1].state, PathState::Closing);
    assert!(sent.iter().all(|sent| sent.message.packet().unwrap().path != SECOND), "{sent:?}");
}

/// MPMTP-AR §3.6 [R5].
#[test]
fn an_acknowledgement_leaves_although_the_data_bound_to_its_path_was_reset() {
    let _turn = Meter::new();
    let mut config = Config { early_binding: Some(1 << 20), ..Config::default() };
    (config.cc.initial_window, config.cc.pacing) = (2, false);
    let mut victim = Victim::with(config, MemoryBudget::new(1 << 40));
    let stream = victim.session.open_stream().unwrap();
    victim.session.write(stream, &mut Bytes::from(vec![0; 20_000])).unwrap();
    victim.drain();
    victim.session.reset(stream, 0).unwrap();
    let last = highest(&victim.drain()).expect("the reset leaves although the window is full");
    let mut sent = victim.say([ack(0, [0..last + 1]), Frame::Ping]);
    sent.extend(victim.wait(Span::from_millis(20)));
    assert!(sent.iter().any(|sent| tells_of(sent, PathId::FIRST)), "the PING is not acknowledged");
}
