//! Protected datagrams: copies, parity that follows the loss, and the cost of both.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use anabranch_engine::{
    Config, DatagramMode, DatagramSource, PathView, Protection, Pulled, SchedulerKind, Session, SessionStats,
    SessionView,
};
use anabranch_link::LossModel;
use anabranch_sim::{App, CLIENT, CableConfig, Idle, Pair, SERVER};
use anabranch_wire::{DatagramFrame, Span, Time};
use bytes::Bytes;

const CLASS: u8 = 5;
const PAUSE: Span = Span::from_millis(5);

fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

fn at(millis: u64) -> Time {
    Time::ZERO + ms(millis)
}

/// Sends a datagram of about 600 bytes every five milliseconds; each starts with its number.
struct Source {
    next: Time,
    until: Time,
    sent: u32,
}

impl Source {
    fn new() -> Self {
        Self { next: at(100), until: Time::ZERO, sent: 0 }
    }
}

impl App<Bytes> for Source {
    fn poll(&mut self, now: Time, session: &mut Session<Bytes>) {
        while session.poll_event().is_some() {}
        while self.next <= now && self.next < self.until {
            let mut data = vec![self.sent as u8; 600 + self.sent as usize % 50];
            data[..4].copy_from_slice(&self.sent.to_be_bytes());
            session
                .send_datagram(DatagramFrame { class: CLASS, flow: 9, data: data.into() })
                .expect("it fits");
            self.sent += 1;
            self.next += PAUSE;
        }
    }
}

/// Receives datagrams and checks their content.
#[derive(Default)]
struct Taker {
    numbers: Vec<u32>,
}

impl App<Bytes> for Taker {
    fn poll(&mut self, _: Time, session: &mut Session<Bytes>) {
        while session.poll_event().is_some() {}
        while let Some((_, DatagramFrame { class, flow, data })) = session.recv_datagram() {
            let number = u32::from_be_bytes(*data.first_chunk().expect("a number"));
            assert_eq!((class, flow, data.len()), (CLASS, 9, 600 + number as usize % 50));
            assert!(data[4..].iter().all(|byte| *byte == number as u8));
            self.numbers.push(number);
        }
    }
}

struct World {
    pair: Pair<Bytes>,
    source: Source,
    taker: Taker,
}

impl World {
    fn new(mode: DatagramMode, protection: Protection, cables: usize) -> Self {
        let mut config = Config::default();
        config.datagrams.protection = protection;
        config.datagrams.modes[usize::from(CLASS)] = mode;
        let cables = vec![CableConfig::new(20.0, ms(20), 2.0); cables];
        let mut pair = Pair::new([config, Config::default()], &cables, 7);
        pair.establish(&mut [&mut Idle, &mut Idle]);
        pair.run(at(100), &mut [&mut Idle, &mut Idle]);
        Self { pair, source: Source::new(), taker: Taker::default() }
    }

    /// A world whose server wants datagrams in order; the second path delays them by `later` milliseconds.
    fn in_order(later: u64, ordered_classes: u16) -> Self {
        let config = Config { scheduler: SchedulerKind::RoundRobin, ..Config::default() };
        let mut server = Config::default();
        server.datagrams.ordered_classes = ordered_classes;
        let cables = [CableConfig::new(20.0, ms(20), 2.0), CableConfig::new(20.0, ms(20 + 2 * later), 2.0)];
        let mut pair = Pair::new([config, server], &cables, 7);
        pair.establish(&mut [&mut Idle, &mut Idle]);
        pair.run(at(300), &mut [&mut Idle, &mut Idle]);
        Self { pair, source: Source { next: at(300), ..Source::new() }, taker: Taker::default() }
    }

    fn set_loss(&mut self, cable: usize, loss: f64) {
        self.pair.link(cable, 0).set_loss(LossModel::Bernoulli(loss));
    }

    fn run(&mut self, until: u64) -> SessionStats {
        self.source.until = at(until);
        while self.pair.now < at(until) {
            let next = self.pair.now + ms(1);
            self.pair.run(next, &mut [&mut self.source, &mut self.taker]);
        }
        self.pair.session(CLIENT).stats()
    }

    /// The share of the datagrams that arrived; each must arrive once.
    fn delivered(&mut self) -> f64 {
        // The last datagrams need time to arrive and to be repaired.
        let end = self.pair.now + ms(500);
        self.pair.run(end, &mut [&mut self.source, &mut self.taker]);
        let mut numbers = self.taker.numbers.clone();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), self.taker.numbers.len(), "a datagram came twice");
        numbers.len() as f64 / f64::from(self.source.sent)
    }
}

fn protected(cables: usize) -> World {
    World::new(DatagramMode::Protected, Protection::default(), cables)
}

#[test]
fn what_is_lost_on_the_way_comes_back_from_parity() {
    let mut lost = [0.0; 2];
    for (place, mode) in [DatagramMode::Once, DatagramMode::Protected].into_iter().enumerate() {
        let mut world = World::new(mode, Protection::default(), 2);
        (0..2).for_each(|cable| world.set_loss(cable, 0.03));
        world.run(20_100);
        lost[place] = 1.0 - world.delivered();
    }
    assert!((0.025..0.035).contains(&lost[0]), "{lost:?}");
    assert!(lost[1] < 0.0015, "{lost:?}");
}

#[test]
fn parity_comes_with_the_loss_and_goes_with_it() {
    let mut world = protected(2);
    let quiet = world.run(5_100);
    assert_eq!((quiet.spares_sent, quiet.datagrams_sent), (0, 1000));
    world.set_loss(0, 0.05);
    world.set_loss(1, 0.05);
    let begun = world.run(7_100);
    let lossy = world.run(17_100);
    // A timer closes blocks of four datagrams, with two pieces of parity each.
    let share = (lossy.spares_sent - begun.spares_sent) as f64 / 2_000.0;
    assert!((0.3..0.55).contains(&share), "{share}");
    world.set_loss(0, 0.0);
    world.set_loss(1, 0.0);
    let ended = world.run(32_100);
    let after = world.run(42_100);
    assert_eq!(after.spares_sent, ended.spares_sent, "nothing is lost any more");
    assert!(world.delivered() > 0.99);
    assert_eq!(world.pair.session(SERVER).stats().datagrams_repeated, 0);
}

#[test]
fn parity_keeps_to_the_most_whatever_is_lost() {
    let mut world = protected(2);
    (0..2).for_each(|cable| world.set_loss(cable, 0.4));
    let before = world.run(5_100);
    let after = world.run(10_100);
    let (sent, spares) =
        (after.datagrams_sent - before.datagrams_sent, after.spares_sent - before.spares_sent);
    assert!(spares as f64 <= 0.5 * sent as f64 + 8.0, "{spares} for {sent}");
}

#[test]
fn redundant_datagrams_outlive_a_path_without_a_gap_and_come_once() {
    let mut world = World::new(DatagramMode::Redundant, Protection::default(), 2);
    world.run(1_100);
    world.pair.set_down(0, true);
    let stats = world.run(3_100);
    assert_eq!(world.delivered(), 1.0);
    assert!(stats.spares_sent >= 200, "{stats:?}");
    let far = world.pair.session(SERVER).stats();
    assert_eq!(far.datagrams_received, 600);
    assert!(far.datagrams_repeated >= 190, "{far:?}");
}

#[test]
fn a_class_can_be_told_to_do_otherwise_on_the_way() {
    let mut world = protected(2);
    (0..2).for_each(|cable| world.set_loss(cable, 0.05));
    for (round, mode) in
        [DatagramMode::Redundant, DatagramMode::Once, DatagramMode::Protected].iter().enumerate()
    {
        world.run(3_103 + 3_001 * round as u64);
        world.pair.session(CLIENT).set_datagram_mode(CLASS, *mode);
    }
    world.run(20_000);
    let delivered = world.delivered();
    assert!((0.98..0.995).contains(&delivered), "{delivered}: only what went once is lost");
}

#[test]
fn parity_for_a_whole_path_mends_its_loss_without_a_gap() {
    let outlive = Protection { outlive_path: true, most: 1.0, ..Protection::default() };
    let mut delivered = [0.0; 2];
    for (place, protection) in [Protection::default(), outlive].into_iter().enumerate() {
        let mut world = World::new(DatagramMode::Protected, protection, 3);
        world.run(2_100);
        let paths = world.pair.session(CLIENT).paths();
        let busiest = paths.iter().max_by_key(|path| path.stats.bytes_sent).expect("a path");
        world.pair.set_down(busiest.route.socket as usize, true);
        world.run(4_100);
        delivered[place] = world.delivered();
    }
    assert!(delivered[0] < 0.995 && delivered[1] == 1.0, "{delivered:?}");
}

#[test]
fn a_receiver_that_asks_for_order_gets_it_from_paths_of_unlike_delay() {
    for (ordered, waits) in [(0, false), (1 << CLASS, true)] {
        let mut world = World::in_order(25, ordered);
        world.run(5_300);
        assert_eq!(world.delivered(), 1.0);
        assert_eq!(world.taker.numbers.is_sorted(), waits);
        let stats = world.pair.session(SERVER).stats();
        assert_eq!(stats.datagrams_reordered > 400, waits, "{stats:?}");
        assert_eq!((stats.gaps_timed_out, stats.gaps_overflowed), (0, 0), "nothing was lost");
    }
}

#[test]
fn a_loss_holds_up_what_is_wanted_in_order_for_a_while_and_no_longer() {
    let mut world = World::in_order(10, 1 << CLASS);
    (0..2).for_each(|cable| world.set_loss(cable, 0.02));
    world.run(10_300);
    let delivered = world.delivered();
    assert!((0.97..0.99).contains(&delivered), "{delivered}");
    assert!(world.taker.numbers.is_sorted());
    let stats = world.pair.session(SERVER).stats();
    assert!(stats.gaps_timed_out + stats.gaps_overflowed >= 20, "{stats:?}");
}

/// Numbered datagrams that wait outside the session: even ones for the first path, odd ones for the last.
struct Waiting {
    numbers: Arc<Mutex<VecDeque<u32>>>,
}

impl DatagramSource<Bytes> for Waiting {
    fn is_waiting(&self) -> bool {
        !self.numbers.lock().unwrap().is_empty()
    }

    fn next(&mut self, _: &SessionView, paths: &[PathView]) -> Pulled<Bytes> {
        let mut numbers = self.numbers.lock().unwrap();
        let wanted = |number: u32| if number.is_multiple_of(2) { paths.first() } else { paths.last() };
        let index = numbers.iter().position(|number| wanted(*number).is_some_and(|path| path.budget > 1_000));
        let Some(number) = index.and_then(|index| numbers.remove(index)) else {
            return Pulled::Wait(Time::NEVER);
        };
        let mut data = vec![number as u8; 600 + number as usize % 50];
        data[..4].copy_from_slice(&number.to_be_bytes());
        let path = wanted(number).expect("it was found above").id;
        Pulled::Send { path, datagram: DatagramFrame { class: CLASS, flow: 9, data: data.into() } }
    }
}

#[test]
fn a_source_keeps_its_datagrams_until_their_path_has_room() {
    let mut world = World::in_order(0, 0);
    let numbers = Arc::new(Mutex::new((0..2_000).collect::<VecDeque<u32>>()));
    world.pair.session(CLIENT).set_datagram_source(Box::new(Waiting { numbers: numbers.clone() }));
    world.pair.run(at(310), &mut [&mut Idle, &mut world.taker]);
    let left = numbers.lock().unwrap().len();
    assert!((1_000..2_000).contains(&left), "{left} still wait: windows and pacing hold them back");
    world.pair.run(at(1_500), &mut [&mut Idle, &mut world.taker]);
    assert_eq!(numbers.lock().unwrap().len(), 0);
    // The first slow start may overflow the links' queues.
    let arrived = world.taker.numbers.len();
    assert!(arrived > 1_700, "{arrived} arrived");
    for parity in [0, 1] {
        let one_path: Vec<u32> =
            world.taker.numbers.iter().copied().filter(|number| number % 2 == parity).collect();
        assert!(one_path.is_sorted(), "each path keeps the order of its datagrams");
    }
}
