//! Random operations on random links from a seed: packets are accounted for, time does not go back, and nothing comes out
//! before the link's deadline.
//!
//! A failure names its seed; `cargo test -p anabranch-link --test random` repeats it.

use std::sync::Arc;

use anabranch_link::{
    CodelConfig, Ecn, Jitter, JitterShape, Limit, Link, LinkConfig, LossModel, PlainLink, QueueModel,
    RandomDrop, RateModel, Reorder, Tally, Trace,
};
use anabranch_wire::{Rate, Span, Time};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Choices of a test run.
struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn span(&mut self, most_micros: u64) -> Span {
        Span::from_micros(self.below(most_micros + 1))
    }

    /// Often off, sometimes rare, sometimes frequent.
    fn probability(&mut self) -> f64 {
        [0.0, 0.0, 0.01, 0.3][self.below(4) as usize]
    }

    fn rate(&mut self) -> RateModel {
        match self.below(5) {
            0 => RateModel::Unlimited,
            1 => RateModel::Fixed(Rate::ZERO),
            2 => RateModel::Trace(Arc::new(Trace::parse("1\n1\n4\n9\n").unwrap())),
            _ => RateModel::Fixed(Rate::from_bits(1_000 + self.below(50_000_000))),
        }
    }

    fn loss(&mut self) -> LossModel {
        match self.below(3) {
            0 => LossModel::None,
            1 => LossModel::Bernoulli(self.probability()),
            _ => LossModel::bursts(self.probability(), 4.0),
        }
    }

    fn jitter(&mut self) -> Jitter {
        let shape = match self.below(3) {
            0 => JitterShape::None,
            1 => JitterShape::Uniform(self.span(20_000)),
            _ => JitterShape::Normal(self.span(5_000)),
        };
        Jitter { shape, overtakes: self.one_in(2) }
    }

    fn queue(&mut self) -> QueueModel {
        let limit = if self.one_in(2) {
            Limit::Packets(self.below(40) as u32)
        } else {
            Limit::Bytes(self.below(50_000))
        };
        QueueModel {
            limit,
            random_drop: self.one_in(2).then_some(RandomDrop { places: 5, probability: 0.1 }),
            codel: self.one_in(2).then(CodelConfig::default),
            mark_above: self.one_in(2).then_some(Limit::Packets(5)),
        }
    }

    fn config(&mut self) -> LinkConfig {
        let from = Time::ZERO + self.span(500_000);
        LinkConfig {
            rate: self.rate(),
            delay: self.span(50_000),
            jitter: self.jitter(),
            loss: self.loss(),
            queue: self.queue(),
            overhead: self.below(100) as u32,
            mtu: None,
            duplicate: self.probability(),
            corrupt: self.probability(),
            reorder: Reorder { probability: self.probability(), extra: self.span(10_000) },
            outages: vec![(from, from + self.span(100_000))],
            seed: self.below(u64::MAX),
        }
    }
}

/// A link under test and its counts so far.
struct Run {
    link: Link<u64>,
    now: Time,
    overtakes: bool,
    offered: u64,
    last_at: Time,
    last_item: Option<u64>,
    /// For how long the link was busy, and up to when.
    busy: (Span, Time),
}

impl Run {
    /// A link is busy for no longer than time passes.
    fn look(&mut self) {
        let (busy, now) = (self.link.busy(self.now), self.now);
        let (before, then) = std::mem::replace(&mut self.busy, (busy, now));
        assert!(busy >= before && busy.saturating_sub(before) <= now.since(then), "{before:?} to {busy:?}");
    }

    fn take(&mut self) {
        let announced = self.link.next_arrival();
        while let Some(packet) = self.link.pop(self.now) {
            assert!(announced.is_some_and(|at| at <= packet.at), "came before it was announced");
            assert!(packet.at <= self.now && packet.at >= self.last_at, "time went back");
            if !self.overtakes {
                assert!(self.last_item.is_none_or(|last| last <= packet.item), "overtook another");
            }
            (self.last_at, self.last_item) = (packet.at, Some(packet.item));
        }
    }

    fn step(&mut self, dice: &mut Dice) {
        if dice.one_in(4) {
            self.look();
        }
        match dice.below(40) {
            0 => self.link.set_rate(self.now, dice.rate()),
            1 => self.link.set_delay(self.now, dice.span(50_000)),
            2 => self.link.set_loss(self.now, dice.loss()),
            3 => self.link.set_down(self.now, dice.one_in(4)),
            4..=12 => self.now += dice.span(3_000),
            13..=16 => self.now = self.link.next_arrival().unwrap_or(self.now).max(self.now),
            17..=24 => self.take(),
            _ => {
                let ecn = [Ecn::NotCapable, Ecn::Capable, Ecn::Marked][dice.below(3) as usize];
                let _ = self.link.enqueue(self.now, dice.below(1500) as u32, self.offered, ecn);
                self.offered += 1;
            }
        }
    }

    /// Drains the link and checks that every packet is accounted for.
    fn finish(mut self) {
        self.link.set_down(self.now, false);
        self.link.set_rate(self.now, RateModel::Fixed(Rate::from_mbit(10.0)));
        while let Some(at) = self.link.next_arrival() {
            self.now = self.now.max(at);
            self.take();
        }
        let stats = *self.link.stats();
        assert_eq!((self.link.held_bytes(), self.link.backlog(self.now)), (0, (0, 0)));
        assert_eq!(stats.offered.packets, self.offered);
        assert_eq!(stats.offered.packets + stats.duplicated, stats.delivered.packets + stats.dropped.total());
    }
}

#[test]
fn after_any_operations_a_links_packets_are_accounted_for() {
    for seed in 0..3_000 {
        let outcome = std::panic::catch_unwind(|| {
            let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
            let config = dice.config();
            let overtakes = config.jitter.overtakes || config.reorder.probability > 0.0;
            let link = Link::new(config);
            let now = Time::ZERO;
            let busy = (Span::ZERO, now);
            let mut run = Run { link, now, overtakes, offered: 0, last_at: now, last_item: None, busy };
            (0..300).for_each(|_| run.step(&mut dice));
            run.finish();
        });
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

/// A link that can plan, and the same link with an outage in a day, which cannot.
#[test]
fn planned_journeys_equal_those_computed_step_by_step() {
    for seed in 0..3_000 {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
        let queue = QueueModel { codel: None, mark_above: None, ..dice.queue() };
        let (rate, delay, overhead) = (dice.rate(), dice.span(50_000), dice.below(100) as u32);
        let mtu = dice.one_in(4).then_some(1_000);
        let config = LinkConfig { rate, delay, queue, overhead, mtu, ..LinkConfig::default() };
        let day = Time::ZERO + Span::from_secs(86_400);
        let steps = LinkConfig { outages: vec![(day, day + Span::from_secs(1))], ..config.clone() };
        let (mut plans, mut steps) = (Link::new(config), Link::new(steps));
        let mut now = Time::ZERO;
        for item in 0..300 {
            match dice.below(60) {
                0 => {
                    let rate = dice.rate();
                    plans.set_rate(now, rate.clone());
                    steps.set_rate(now, rate);
                }
                1 => {
                    let delay = dice.span(50_000);
                    plans.set_delay(now, delay);
                    steps.set_delay(now, delay);
                }
                2 => assert_eq!(plans.backlog(now), steps.backlog(now), "seed {seed}"),
                3..=20 => now += dice.span(3_000),
                21..=24 => now = plans.next_arrival().unwrap_or(now).max(now),
                25..=36 => assert_eq!(plans.pop(now), steps.pop(now), "seed {seed}"),
                _ => {
                    let (size, ecn) = ([300, 1500][dice.below(2) as usize], Ecn::NotCapable);
                    let taken = plans.enqueue(now, size, item, ecn);
                    assert_eq!(taken, steps.enqueue(now, size, item, ecn), "seed {seed}");
                }
            }
            assert_eq!(plans.next_arrival(), steps.next_arrival(), "seed {seed}");
            if item % 16 == 0 {
                assert_eq!(plans.busy(now), steps.busy(now), "seed {seed}");
            }
        }
        now += Span::from_secs(10_000);
        assert_eq!(plans.backlog(now), steps.backlog(now), "seed {seed}");
        assert_eq!(plans.stats(), steps.stats(), "seed {seed}");
    }
}

/// The same packets over a link that holds them, and over one that only returns their arrivals.
#[test]
fn a_link_without_packets_gives_the_same_results_as_one_that_holds_them() {
    const LAST: u32 = 299;
    for seed in 0..1_000 {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
        let queue = QueueModel { codel: None, mark_above: None, ..dice.queue() };
        let rate = match dice.below(10) {
            0 => RateModel::Unlimited,
            _ => RateModel::Fixed(Rate::from_mbit(1.0 + dice.below(100) as f64)),
        };
        let (delay, mtu) = (dice.span(50_000), (dice.below(10) == 0).then_some(1_000));
        let config =
            LinkConfig { rate, delay, queue, mtu, overhead: dice.below(100) as u32, ..LinkConfig::default() };
        let (mut passes, mut holds) = (PlainLink::new(config.clone()).unwrap(), Link::new(config));
        let (mut now, mut expected, mut told) = (Time::ZERO, Vec::new(), Vec::new());
        for item in 0..=LAST {
            let size = [300, 1500][dice.below(2) as usize];
            let taken = passes.pass(now, size);
            told.extend(taken.map(|at| (at, item, size)));
            assert_eq!(taken.map(|_| ()), holds.enqueue(now, size, item, Ecn::NotCapable), "seed {seed}");
            if dice.below(4) == 0 {
                now += dice.span(3_000);
            }
            if item == LAST {
                now += Span::from_secs(10_000);
            }
            if item == LAST || dice.below(20) == 0 {
                expected.extend(std::iter::from_fn(|| holds.pop(now)).map(|packet| (packet.at, packet.item)));
                assert_eq!(passes.backlog(now), holds.backlog(now), "seed {seed}");
                let mut underway = Tally::default();
                told.iter().filter(|(at, ..)| *at > now).for_each(|(_, _, size)| underway.count(*size));
                assert_eq!(passes.stats(underway), *holds.stats(), "seed {seed}");
                let nanos = Span::from_nanos(told.len() as u64);
                let (least, most) = (passes.busy(now), holds.busy(now));
                assert!(
                    least <= most && most.saturating_sub(least) <= nanos,
                    "seed {seed}: {least:?} and {most:?}"
                );
            }
        }
        assert!(told.iter().map(|(at, item, _)| (*at, *item)).eq(expected), "seed {seed}");
    }
}
