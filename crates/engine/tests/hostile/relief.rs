//! How much of a slow path's outstanding data a fast path may repeat.

use anabranch_engine::{AckConfig, Config, MemoryBudget, Route, SchedulerKind, Transmit};
use anabranch_wire::{Frame, PathId, Span, StreamId};
use bytes::Bytes;

use crate::attacker::{Meter, Victim, ack, route};

const SLOW: PathId = PathId(2);
/// Copies that a session may always send.
const ALLOWANCE: u64 = 48 << 10;
/// One copied byte is allowed for this many bytes sent for the first time.
const SHARE: u64 = 50;
/// The packet that reaches the bound may exceed it.
const PACKET: u64 = 1_500;
/// Round trips before there is much to send.
const ROUNDS: u64 = 20;
/// Bytes written in each of them: a few packets on either path.
const PORTION: usize = 6_000;

fn with_a_slow_second_path() -> Victim {
    with_second_path(true)
}

/// A session with a second path that takes 100 ms, and windows that hold everything written here. Useless paths are held
/// back if it `suspects`.
fn with_second_path(suspects: bool) -> Victim {
    let mut config = Config {
        scheduler: SchedulerKind::RoundRobin,
        acks: AckConfig { skip_numbers: false, ..AckConfig::default() },
        ..Config::default()
    };
    (config.cc.initial_window, config.cc.pacing) = (2_000, false);
    config.failure.suspect = suspects;
    Victim::with(config, MemoryBudget::new(1 << 40)).opening(SLOW, slow_route())
}

fn slow_route() -> Route {
    Route { socket: 1, ..route() }
}

/// The number of the last of these packets on a path.
fn last_over(sent: &[Transmit<Bytes>], path: PathId) -> Option<u64> {
    let packets = sent.iter().filter_map(|sent| sent.message.packet());
    packets.filter(|packet| packet.path == path).map(|packet| packet.fsn.0).max()
}

/// Acknowledges the fast path's packets at once until it sends no more.
fn answer_fast(victim: &mut Victim, mut sent: Vec<Transmit<Bytes>>) {
    while let Some(last) = last_over(&sent, PathId::FIRST) {
        victim.now += Span::from_micros(100);
        sent = victim.say([ack(PathId::FIRST.0, [0..last + 1])]);
    }
}

/// Transfers this many bytes over both paths, by 100 ms a round trip.
fn carry(victim: &mut Victim, stream: StreamId, bytes: usize) {
    victim.session.write(stream, &mut Bytes::from(vec![0; bytes])).unwrap();
    let mut sent = victim.drain();
    while let Some(last) = last_over(&sent, SLOW) {
        victim.now += Span::from_millis(100);
        let first = last_over(&sent, PathId::FIRST).unwrap();
        sent = victim.say([ack(PathId::FIRST.0, [0..first + 1]), ack(SLOW.0, [0..last + 1])]);
    }
}

/// The stream offsets at which these packets of a path begin.
fn offsets_over(sent: &[Transmit<Bytes>], path: PathId) -> Vec<u64> {
    let packets = sent.iter().filter_map(|sent| sent.message.packet()).filter(|packet| packet.path == path);
    let frames = packets.flat_map(|packet| &packet.frames);
    let data = frames.filter_map(|frame| match frame {
        Frame::Stream(data) => Some(data.offset),
        _ => None,
    });
    data.collect()
}

/// Bytes copied after both round-trip times are known and more bytes were written, of which the slow path acknowledges
/// nothing.
fn copied_of(bytes: usize) -> [u64; 2] {
    let mut victim = with_a_slow_second_path();
    let stream = victim.session.open_stream().unwrap();
    for round in 0..ROUNDS {
        victim.session.write(stream, &mut Bytes::from(vec![0; PORTION])).unwrap();
        let sent = victim.drain();
        let last = last_over(&sent, SLOW).unwrap();
        answer_fast(&mut victim, sent);
        victim.now += Span::from_millis(100);
        let sent = victim.say_as((SLOW.0, 2 + round), slow_route(), [ack(SLOW.0, [0..last + 1])]);
        answer_fast(&mut victim, sent);
    }
    let before = victim.session.stats().bytes_copied;
    victim.session.write(stream, &mut Bytes::from(vec![0; bytes])).unwrap();
    let sent = victim.drain();
    answer_fast(&mut victim, sent);
    let owed = victim.session.paths()[1].in_flight;
    assert!(owed > 500_000, "the slow path owes only {owed}");
    [before, victim.session.stats().bytes_copied]
}

#[test]
fn a_slow_paths_outstanding_data_is_repeated_up_to_an_allowance_and_a_share_of_the_bytes_sent() {
    let _turn = Meter::new();
    let portions = ROUNDS as usize * PORTION;
    for bytes in [1_200_000, 1_800_000] {
        let copied = copied_of(bytes);
        for (copied, sent) in copied.into_iter().zip([portions, portions + bytes]) {
            let most = ALLOWANCE + sent as u64 / SHARE;
            let bound = most..most + PACKET;
            assert!(bound.contains(&copied), "{copied} of {sent} were copied, the bound is {most}");
        }
    }
}

#[test]
fn the_end_of_the_data_is_repeated_newest_first_when_all_of_it_counts() {
    let _turn = Meter::new();
    let mut victim = with_a_slow_second_path();
    let stream = victim.session.open_stream().unwrap();
    carry(&mut victim, stream, 60_000);
    victim.session.write(stream, &mut Bytes::from(vec![0; 120_000])).unwrap();
    let sent = victim.drain();
    let carried = offsets_over(&sent, PathId::FIRST);
    let mut owed = offsets_over(&sent, SLOW);
    owed.retain(|offset| !carried.contains(offset));
    victim.now += Span::from_millis(100);
    let last = last_over(&sent, PathId::FIRST).unwrap();
    let copies = offsets_over(&victim.say([ack(PathId::FIRST.0, [0..last + 1])]), PathId::FIRST);
    assert!(copies.len() > 10, "{copies:?}");
    let newest: Vec<u64> = owed.into_iter().rev().take(copies.len()).collect();
    assert_eq!(copies, newest);
}

#[test]
fn deadlines_are_judged_again_when_the_path_gets_slower() {
    let _turn = Meter::new();
    let mut victim = with_second_path(false);
    let stream = victim.session.open_stream().unwrap();
    carry(&mut victim, stream, 1_200_000);
    victim.session.write(stream, &mut Bytes::from(vec![0; 480_000])).unwrap();
    let before = victim.session.stats().bytes_copied;
    let sent = victim.drain();
    let [first, slow] = [PathId::FIRST, SLOW].map(|path| last_over(&sent, path).unwrap());
    let owed = offsets_over(&sent, SLOW).len() as u64;
    victim.now += Span::from_millis(100);
    victim.say([ack(PathId::FIRST.0, [0..first + 1])]);
    let at_first = victim.session.stats().bytes_copied;
    assert_eq!(at_first, before, "the second path is to be done at this moment, too");
    for packet in 1..20 {
        victim.now += Span::from_millis(30);
        victim.say([ack(SLOW.0, [0..slow + 1 - owed + packet])]);
    }
    let copied = victim.session.stats().bytes_copied - before;
    assert!(copied > 10_000, "{copied} bytes were copied while the rate fell to a tenth");
}
