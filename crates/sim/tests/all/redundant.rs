//! Redundant streams: every path carries all of their data.

use anabranch_engine::{Config, Event, PathState, SchedulerKind, Session};
use anabranch_link::LossModel;
use anabranch_sim::{App, CLIENT, CableConfig, Pair, SERVER, Sender, Sink, Ticker};
use anabranch_wire::{Length, Span, StreamId, Time};

const PAUSE: Span = Span::from_millis(5);
/// Bytes every [`PAUSE`]: 1.6 Mbit/s.
const CHUNK: usize = 1000;

fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

fn at(millis: u64) -> Time {
    Time::ZERO + ms(millis)
}

fn pair(cables: &[CableConfig]) -> Pair<Length> {
    Pair::new([Config::default(), Config::default()], cables, 5)
}

/// Runs step by step, as a [`Ticker`] needs it.
fn run(pair: &mut Pair<Length>, until: u64, apps: &mut [&mut dyn App<Length>; 2]) {
    while pair.now < at(until) {
        let next = pair.now + ms(1);
        pair.run(next, apps);
    }
}

/// Bytes of data that the server received over the path of a cable: new ones and duplicates.
fn received(pair: &mut Pair<Length>, cable: u32) -> (u64, u64) {
    let paths = pair.session(SERVER).paths().into_iter();
    let of_it = paths.filter(|path| path.route.socket == cable).map(|path| path.stats);
    of_it.fold((0, 0), |sum, path| (sum.0 + path.data_received, sum.1 + path.data_duplicate))
}

/// Writes endlessly to two streams; the second is redundant.
#[derive(Default)]
struct Two {
    streams: Vec<StreamId>,
}

impl App<Length> for Two {
    fn poll(&mut self, _: Time, session: &mut Session<Length>) {
        while session.poll_event().is_some() {}
        while session.state().carries_data() && self.streams.len() < 2 {
            let stream = session.open_stream().expect("two streams are admitted");
            session.set_redundant(stream, self.streams.len() == 1).expect("it was just opened");
            self.streams.push(stream);
        }
        // The streams share the available room.
        let mut write =
            |stream: &StreamId| session.write(*stream, &mut Length(1_000)).is_ok_and(|taken| taken > 0);
        while !self.streams.is_empty() && self.streams.iter().all(&mut write) {}
        let turn = 1.min(self.streams.len());
        self.streams.rotate_left(turn);
    }
}

#[test]
fn a_path_that_dies_is_missed_for_no_longer_than_the_other_takes() {
    let mut pair = pair(&[CableConfig::new(20.0, ms(10), 2.0), CableConfig::new(10.0, ms(80), 2.0)]);
    let (mut ticker, mut sink) = (Ticker::new(CHUNK, PAUSE), Sink::default());
    pair.establish(&mut [&mut ticker, &mut sink]);
    run(&mut pair, 1_000, &mut [&mut ticker, &mut sink]);
    pair.set_down(0, true);
    run(&mut pair, 3_000, &mut [&mut ticker, &mut sink]);
    // The paths' delays differ by 35 ms, chunks are 5 ms apart, and a packet takes 1.2 ms.
    let gap = sink.longest_gap(at(900), at(2_900));
    assert!(gap <= ms(35 + 5 + 2), "{gap}");
    assert!(ticker.written - sink.received < 20 * CHUNK as u64, "{} behind", ticker.written - sink.received);
}

#[test]
fn what_waits_as_a_copy_when_a_path_dies_leaves_each_of_the_others_once() {
    let cables =
        [(60.0, 20), (40.0, 120), (40.0, 160)].map(|(mbit, rtt)| CableConfig::new(mbit, ms(rtt), 2.0));
    let mut pair = pair(&cables);
    // 16 Mbit/s: the windows of the slow paths are still too small for it at the break.
    let (mut ticker, mut sink) = (Ticker::new(10 * CHUNK, PAUSE), Sink::default());
    pair.establish(&mut [&mut ticker, &mut sink]);
    run(&mut pair, 450, &mut [&mut ticker, &mut sink]);
    let sent = |pair: &mut Pair<Length>, cable: u32| {
        let paths = pair.session(CLIENT).paths().into_iter();
        paths.filter(|path| path.route.socket == cable).map(|path| path.stats.data_sent).sum::<u64>()
    };
    let (arrived, before) = (sink.received, [1, 2].map(|cable| sent(&mut pair, cable)));
    pair.set_down(0, true);
    run(&mut pair, 2_500, &mut [&mut ticker, &mut sink]);
    // The last 10 ms of data were not acknowledged, and one chunk was in flight.
    let most = ticker.written - arrived + 3 * 10 * CHUNK as u64;
    for (cable, before) in [(1, before[0]), (2, before[1])] {
        let sent = sent(&mut pair, cable) - before;
        assert!(sent <= most, "{sent} bytes of {most} at most over cable {cable}");
    }
}

/// Writes like a [`Ticker`], to a stream that is not redundant.
#[derive(Default)]
struct Plain {
    stream: Option<StreamId>,
    next: Time,
}

impl App<Length> for Plain {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        while session.poll_event().is_some() {}
        if !session.state().carries_data() || now < self.next {
            return;
        }
        self.next = now + PAUSE;
        if self.stream.is_none() {
            self.stream = session.open_stream();
        }
        if let Some(stream) = self.stream {
            session.write(stream, &mut Length(CHUNK)).expect("it is open");
        }
    }
}

#[test]
fn what_one_path_lost_is_not_missing_either_where_the_scheduler_sends_all_on_every_path() {
    let config = Config { scheduler: SchedulerKind::Redundant, ..Config::default() };
    // Data lost on the first path takes long over the second.
    let mut cables = [CableConfig::new(20.0, ms(20), 2.0), CableConfig::new(20.0, ms(100), 2.0)];
    cables[0].links[0].loss = LossModel::Bernoulli(0.1);
    let mut pair: Pair<Length> = Pair::new([config.clone(), config], &cables, 5);
    let (mut plain, mut sink) = (Plain::default(), Sink::default());
    pair.establish(&mut [&mut plain, &mut sink]);
    run(&mut pair, 6_000, &mut [&mut plain, &mut sink]);
    let paths = pair.session(CLIENT).paths();
    let stats =
        |cable: u32| paths.iter().find(|path| path.route.socket == cable).expect("both are there").stats;
    let (lost, sent) = (stats(0).packets_lost, stats(1).data_sent);
    assert!(lost > 50, "{lost}");
    // Some bytes are still in flight.
    let most = sink.received + 30 * CHUNK as u64;
    assert!(sent < most, "{sent} bytes sent over the path that loses none, {} received", sink.received);
}

#[test]
fn both_paths_carry_all_of_it_and_losses_are_not_noticed() {
    let mut pair = pair(&[CableConfig::new(20.0, ms(20), 2.0), CableConfig::new(20.0, ms(20), 2.0)]);
    let (mut ticker, mut sink) = (Ticker::new(CHUNK, PAUSE), Sink::default());
    pair.establish(&mut [&mut ticker, &mut sink]);
    run(&mut pair, 500, &mut [&mut ticker, &mut sink]);
    for direction in 0..2 {
        pair.link(0, direction).set_loss(LossModel::Bernoulli(0.05));
    }
    run(&mut pair, 3_000, &mut [&mut ticker, &mut sink]);
    assert!(sink.longest_gap(at(500), at(3_000)) <= ms(7), "{}", sink.longest_gap(at(500), at(3_000)));
    let both = [received(&mut pair, 0), received(&mut pair, 1)];
    for (new, again) in both {
        assert!((new + again) as f64 > 0.9 * sink.received as f64, "{both:?} of {}", sink.received);
    }
    let copies = both[0].1 + both[1].1;
    assert!((copies as f64) < 1.1 * sink.received as f64, "{both:?} of {}", sink.received);
}

#[test]
fn a_slow_path_does_not_hold_a_redundant_stream_to_its_rate() {
    let mut pair = pair(&[CableConfig::new(20.0, ms(20), 1.0), CableConfig::new(1.0, ms(60), 1.0)]);
    let (mut sender, mut sink) = (Sender::new(u64::MAX).redundant(), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(at(8_000), &mut [&mut sender, &mut sink]);
    let rate = sink.mbit_s(at(2_000), at(8_000));
    assert!(rate > 0.9 * 20.0 * 1430.0 / 1500.0, "{rate:.2} Mbit/s");
}

#[test]
fn a_redundant_stream_leaves_others_their_turns() {
    let mut pair = pair(&[CableConfig::new(20.0, ms(20), 1.0), CableConfig::new(20.0, ms(30), 1.0)]);
    let (mut two, mut sink) = (Two::default(), Sink::default());
    pair.establish(&mut [&mut two, &mut sink]);
    pair.run(at(6_000), &mut [&mut two, &mut sink]);
    let (copies, all) = (received(&mut pair, 0).1 + received(&mut pair, 1).1, sink.received);
    // One stream's bytes use twice their share of the 40 Mbit/s.
    assert!(sink.mbit_s(at(2_000), at(6_000)) > 22.0, "{:.2} Mbit/s", sink.mbit_s(at(2_000), at(6_000)));
    let share = copies as f64 / all as f64;
    assert!((0.2..0.6).contains(&share), "{copies} bytes of {all} came again");
}

#[test]
fn a_stream_ends_although_the_path_that_took_its_end_is_dead() {
    let mut pair = pair(&[CableConfig::new(20.0, ms(10), 2.0), CableConfig::new(10.0, ms(40), 2.0)]);
    let (mut ticker, mut sink) = (Ticker::new(CHUNK, PAUSE), Sink::default());
    pair.establish(&mut [&mut ticker, &mut sink]);
    run(&mut pair, 1_000, &mut [&mut ticker, &mut sink]);
    pair.set_down(0, true);
    let mut idle = anabranch_sim::Idle;
    pair.session(CLIENT).finish(StreamId(0)).expect("it is open");
    pair.run(at(1_030), &mut [&mut idle, &mut sink]);
    assert!(sink.finished_at.is_some(), "the end is still on its way");
    // The stream was acknowledged twice and must end once.
    pair.run(at(3_000), &mut [&mut idle, &mut sink]);
    let ends = std::iter::from_fn(|| pair.session(CLIENT).poll_event());
    assert_eq!(ends.filter(|event| matches!(event, Event::StreamFinished(_))).count(), 1);
    assert!(pair.session(CLIENT).set_redundant(StreamId(0), false).is_err());
    assert_ne!(pair.session(CLIENT).paths()[0].state, PathState::Active);
}
