//! Data that should not wait behind a bulk stream's own queue: small messages, and datagrams of an urgent class.

use std::collections::VecDeque;

use anabranch_engine::{Config, Read, Session};
use anabranch_sim::{App, CableConfig, Pair, Sender};
use anabranch_wire::{Length, Span, StreamId, Time};

/// Between two messages.
const PAUSE: Span = Span::from_millis(20);
const MESSAGE: usize = 64;

/// A stream without end, and a message at intervals on another one.
struct Talker {
    bulk: Sender,
    messages: Option<StreamId>,
    pause: Span,
    next: Time,
    sent: VecDeque<Time>,
}

impl App<Length> for Talker {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        self.bulk.poll(now, session);
        if !session.state().carries_data() || now < self.next {
            return;
        }
        self.next = now + self.pause;
        let stream = *self.messages.get_or_insert_with(|| session.open_stream().unwrap());
        if session.write(stream, &mut Length(MESSAGE)) == Ok(MESSAGE) {
            self.sent.push_back(now);
        }
    }
}

/// Reads all streams, and records when each message arrives on the second.
#[derive(Default)]
struct Listener {
    streams: Vec<StreamId>,
    bytes: [usize; 2],
    messages: Vec<Time>,
}

impl App<Length> for Listener {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        while session.poll_event().is_some() {}
        while let Some(stream) = session.accept_stream() {
            self.streams.push(stream);
        }
        for (stream, bytes) in self.streams.iter().zip(&mut self.bytes) {
            while let Ok(Read::Data(data)) = session.read(*stream, usize::MAX) {
                *bytes += data.0;
            }
        }
        self.messages.resize(self.bytes[1] / MESSAGE, now);
    }
}

impl Talker {
    fn new() -> Self {
        Self::with_pause(PAUSE)
    }

    fn with_pause(pause: Span) -> Self {
        let bulk = Sender::new(u64::MAX);
        Self { bulk, messages: None, pause, next: Time::ZERO, sent: VecDeque::new() }
    }
}

fn run_until(pair: &mut Pair<Length>, (talker, listener): (&mut Talker, &mut Listener), until: Time) {
    while pair.now < until {
        pair.run(pair.now + Span::from_millis(1), &mut [talker, listener]);
    }
}

/// Three paths of 50, 30 and 20 Mbit/s whose queues hold 50 ms.
fn three_cables(rtt: Span) -> [CableConfig; 3] {
    [50.0, 30.0, 20.0].map(|mbit| {
        let mut cable = CableConfig::new(mbit, rtt, 1.0);
        for link in &mut cable.links {
            *link = anabranch_link::LinkConfig {
                overhead: link.overhead,
                ..anabranch_link::LinkConfig::fixed(
                    anabranch_wire::Rate::from_mbit(mbit),
                    rtt / 2,
                    (mbit * 6_250.0) as u64,
                )
            };
        }
        cable
    })
}

#[test]
fn small_messages_do_not_wait_behind_a_bulk_stream() {
    for rtt in [Span::from_millis(1), Span::from_millis(20)] {
        let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &three_cables(rtt), 3);
        let (mut talker, mut listener) = (Talker::new(), Listener::default());
        pair.establish(&mut [&mut talker, &mut listener]);
        let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
        run_until(&mut pair, (&mut talker, &mut listener), at(5));
        let (before, from) = (listener.bytes[0], listener.messages.len());
        run_until(&mut pair, (&mut talker, &mut listener), at(35));
        let mut delays: Vec<Span> = talker
            .sent
            .iter()
            .zip(&listener.messages)
            .skip(from)
            .map(|(sent, arrived)| arrived.since(*sent))
            .collect();
        delays.sort();
        let (median, late) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
        let mbit = (listener.bytes[0] - before) as f64 * 8e-6 / 30.0;
        assert!(
            median <= rtt / 2 + Span::from_millis(5) && late <= rtt / 2 + Span::from_millis(20),
            "{rtt}: {median}, {late}"
        );
        assert!(mbit > 0.95 * 97.0, "{mbit} Mbit/s");
    }
}

#[test]
fn a_message_each_second_does_not_wait_behind_a_bulk_stream() {
    let rtt = Span::from_millis(1);
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &three_cables(rtt), 3);
    let (mut talker, mut listener) = (Talker::with_pause(Span::from_secs(1)), Listener::default());
    pair.establish(&mut [&mut talker, &mut listener]);
    let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
    run_until(&mut pair, (&mut talker, &mut listener), at(65));
    let delays = talker.sent.iter().zip(&listener.messages).skip(5);
    let mut delays: Vec<Span> = delays.map(|(sent, arrived)| arrived.since(*sent)).collect();
    delays.sort();
    assert!(delays[delays.len() * 3 / 4] <= Span::from_millis(10), "{}", delays[delays.len() * 3 / 4]);
}

#[test]
fn a_delay_of_another_origin_does_not_slow_bulk_data_next_to_messages() {
    let cable = || CableConfig::new(20.0, Span::from_millis(4), 4.0);
    for cables in [vec![cable()], vec![cable(), cable()]] {
        let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &cables, 3);
        let (mut talker, mut listener) = (Talker::new(), Listener::default());
        pair.establish(&mut [&mut talker, &mut listener]);
        let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
        run_until(&mut pair, (&mut talker, &mut listener), at(4));
        for index in 0..cables.len() {
            (0..2).for_each(|direction| pair.link(index, direction).set_delay(Span::from_millis(25)));
        }
        run_until(&mut pair, (&mut talker, &mut listener), at(6));
        let before = listener.bytes[0];
        run_until(&mut pair, (&mut talker, &mut listener), at(16));
        let mbit = (listener.bytes[0] - before) as f64 * 8e-7;
        assert!(mbit > 17.0 * cables.len() as f64, "{mbit:.1} Mbit/s over {} cables", cables.len());
    }
}

#[test]
fn a_path_whose_foreign_delay_ends_is_calm_again() {
    let cable = CableConfig::new(20.0, Span::from_millis(4), 10.0);
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &[cable], 3);
    let (mut talker, mut listener) = (Talker::new(), Listener::default());
    pair.establish(&mut [&mut talker, &mut listener]);
    let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
    for (until, delay) in [(4, 30), (6, 2)] {
        run_until(&mut pair, (&mut talker, &mut listener), at(until));
        (0..2).for_each(|direction| pair.link(0, direction).set_delay(Span::from_millis(delay)));
    }
    run_until(&mut pair, (&mut talker, &mut listener), at(28));
    let from = listener.messages.len();
    run_until(&mut pair, (&mut talker, &mut listener), at(38));
    let delays = talker.sent.iter().zip(&listener.messages).skip(from);
    let mut delays: Vec<Span> = delays.map(|(sent, arrived)| arrived.since(*sent)).collect();
    delays.sort();
    assert!(delays[delays.len() / 2] <= Span::from_millis(8), "{}", delays[delays.len() / 2]);
}

#[test]
fn a_path_stays_calm_through_a_moment_of_delay() {
    let cable = CableConfig::new(20.0, Span::from_millis(4), 10.0);
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &[cable], 3);
    let (mut talker, mut listener) = (Talker::new(), Listener::default());
    pair.establish(&mut [&mut talker, &mut listener]);
    let at = |millis: u64| Time::ZERO + Span::from_millis(millis);
    for (until, delay) in [(4_000, 60), (4_150, 2)] {
        run_until(&mut pair, (&mut talker, &mut listener), at(until));
        (0..2).for_each(|direction| pair.link(0, direction).set_delay(Span::from_millis(delay)));
    }
    run_until(&mut pair, (&mut talker, &mut listener), at(5_000));
    let from = listener.messages.len();
    run_until(&mut pair, (&mut talker, &mut listener), at(15_000));
    let delays = talker.sent.iter().zip(&listener.messages).skip(from);
    let mut delays: Vec<Span> = delays.map(|(sent, arrived)| arrived.since(*sent)).collect();
    delays.sort();
    assert!(delays[delays.len() * 95 / 100] <= Span::from_millis(10), "{}", delays[delays.len() * 95 / 100]);
}

#[test]
fn an_overflow_path_joins_although_the_primary_one_keeps_its_queue_short() {
    let rule = anabranch_engine::PathRule {
        pattern: "cable1".parse().unwrap(),
        terms: anabranch_engine::Terms { priority: "overflow".parse().unwrap(), ..Default::default() },
    };
    let client = Config { rules: anabranch_engine::PathRules::new(vec![rule]), ..Config::default() };
    let cables = [(); 2].map(|()| CableConfig::new(20.0, Span::from_millis(20), 1.0));
    let mut pair: Pair<Length> = Pair::new([client, Config::default()], &cables, 3);
    let (mut talker, mut listener) = (Talker::new(), Listener::default());
    pair.establish(&mut [&mut talker, &mut listener]);
    let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
    run_until(&mut pair, (&mut talker, &mut listener), at(4));
    let before = listener.bytes[0];
    run_until(&mut pair, (&mut talker, &mut listener), at(10));
    let mbit = (listener.bytes[0] - before) as f64 * 8e-6 / 6.0;
    assert!(mbit > 34.0, "{mbit:.1} Mbit/s");
}
