//! A network of the fairness grid: how it is drawn from its number, and its plan.

use std::fmt;

use anabranch_cc::RuleKind;
use anabranch_engine::Config;
use anabranch_link::{LinkConfig, RandomDrop};
use anabranch_wire::{Rate, Span, Time};

use anabranch_sim::chance::{Chance, seed_of};
use anabranch_sim::network::{FlowPlan, PathPlan, Plan};

/// The kind of these seeds, which separates them from other seeds.
const KIND: u64 = 0x6661_6972;
/// The round-trip time by which queue lengths are measured.
const USUAL_RTT: Span = Span::from_millis(60);
/// Rate of links that are not bottlenecks.
const WIDE: f64 = 1000.0;
/// Bytes of IPv4 and UDP headers on each packet.
const OVERHEAD: u32 = 28;
/// When sessions begin; background TCPs begin at random before.
pub(super) const START: Span = Span::from_secs(3);

/// A link that is shared with background TCPs.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottleneck {
    /// Its rate in Mbit/s.
    pub mbit: f64,
    /// Length of its queue in bandwidth–delay products of 60 ms.
    pub bdp: f64,
    /// Round-trip times without queues of the background TCPs, in milliseconds.
    pub neighbours: Vec<f64>,
    /// Their window rule: reno or cubic.
    pub rule: RuleKind,
}

/// A path of the session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FairPath {
    /// Index of the bottleneck that it crosses.
    pub bottleneck: usize,
    /// Its round-trip time without queues, in milliseconds.
    pub rtt_ms: f64,
}

/// A network in which paths share all, some or none of their bottlenecks: a function of its number alone.
#[derive(Clone, Debug, PartialEq)]
pub struct FairCell {
    pub number: u64,
    /// One or more.
    pub bottlenecks: Vec<Bottleneck>,
    /// Two or three.
    pub paths: Vec<FairPath>,
    /// The session's window rule; the default unless chosen.
    pub rule: RuleKind,
}

impl FairCell {
    /// Draws the cell with this number.
    ///
    /// In turn, all paths share one bottleneck, two of three do, or none do. Bottlenecks have 10 to 50 Mbit/s, queues of
    /// 0.5 to 2 bandwidth–delay products of 60 ms, and one to four TCPs, all reno or all cubic. Round-trip times are 20 to
    /// 120 ms.
    pub fn draw(number: u64) -> Self {
        let mut chance = Chance::new(seed_of(number, KIND, 0));
        let some = 2 + chance.below(2);
        let crossed: Vec<usize> = match number % 3 {
            0 => vec![0; some],
            1 => vec![0, 0, 1],
            _ => (0..some).collect(),
        };
        let rtt = |chance: &mut Chance| chance.between(20.0, 120.0);
        let bottleneck = |chance: &mut Chance| Bottleneck {
            mbit: chance.scaled(10.0, 50.0),
            bdp: chance.scaled(0.5, 2.0),
            neighbours: (0..=chance.below(4)).map(|_| rtt(chance)).collect(),
            rule: if (number / 3).is_multiple_of(2) { RuleKind::Reno } else { RuleKind::Cubic },
        };
        let count = crossed.iter().max().map_or(1, |last| last + 1);
        let bottlenecks = (0..count).map(|_| bottleneck(&mut chance)).collect();
        let mut paths: Vec<FairPath> =
            crossed.into_iter().map(|bottleneck| FairPath { bottleneck, rtt_ms: rtt(&mut chance) }).collect();
        chance.shuffle(&mut paths);
        Self { number, bottlenecks, paths, rule: Config::default().cc.rule }
    }

    /// Whether these two paths cross the same bottleneck.
    pub fn shares(&self, a: usize, b: usize) -> bool {
        self.paths[a].bottleneck == self.paths[b].bottleneck
    }

    /// The paths that cross a bottleneck, by index.
    pub fn crossing(&self, bottleneck: usize) -> impl Iterator<Item = usize> {
        (0..self.paths.len()).filter(move |path| self.paths[*path].bottleneck == bottleneck)
    }

    /// The network with a session over these paths as its first flow, and the neighbours.
    pub(super) fn plan(&self, paths: &[usize], (seed, end): (u64, Time)) -> Plan {
        let mut chance = Chance::new(seed_of(seed, KIND, self.number + 1));
        let mut plan = Plan { seed, links: Vec::new(), ..Plan::default() };
        plan.links.extend(self.bottlenecks.iter().map(Bottleneck::link));
        let mut route = |bottleneck: usize, rtt_ms: f64| {
            let half = Span::from_secs_f64(rtt_ms / 2e3);
            let access = plan.links.len() as u32;
            plan.links.extend([wide(half), wide(half)]);
            PathPlan { forward: vec![access, bottleneck as u32], back: vec![access + 1] }
        };
        let session: Vec<PathPlan> =
            paths.iter().map(|path| route(self.paths[*path].bottleneck, self.paths[*path].rtt_ms)).collect();
        let mut config = Config::default();
        config.cc.rule = self.rule;
        let mut flows = vec![FlowPlan::bulk(session, config, (Time::ZERO + START, end))];
        for (index, bottleneck) in self.bottlenecks.iter().enumerate() {
            for rtt_ms in &bottleneck.neighbours {
                let mut config = Config::tcp();
                config.cc.rule = bottleneck.rule;
                let start = Time::ZERO + START.mul_f64(chance.unit());
                flows.push(FlowPlan::bulk(vec![route(index, *rtt_ms)], config, (start, end)));
            }
        }
        plan.flows = flows;
        plan
    }
}

fn wide(delay: Span) -> LinkConfig {
    let rate = Rate::from_mbit(WIDE);
    LinkConfig { overhead: OVERHEAD, ..LinkConfig::fixed(rate, delay, rate.bytes_in(USUAL_RTT)) }
}

impl Bottleneck {
    fn link(&self) -> LinkConfig {
        let rate = Rate::from_mbit(self.mbit);
        let queue = (rate.bytes_in(USUAL_RTT) as f64 * self.bdp) as u64;
        let mut link = LinkConfig { overhead: OVERHEAD, ..LinkConfig::fixed(rate, Span::ZERO, queue) };
        // Avoids phase effects between regular senders.
        link.queue.random_drop = Some(RandomDrop { places: 5 * 1500, probability: 0.1 });
        link
    }
}

impl fmt::Display for FairCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, bottleneck) in self.bottlenecks.iter().enumerate() {
            let Bottleneck { mbit, bdp, neighbours, rule } = bottleneck;
            let separator = if index > 0 { "; " } else { "" };
            write!(
                f,
                "{separator}{mbit:.1} Mbit/s {bdp:.1} BDP with {} {rule}, crossed by",
                neighbours.len()
            )?;
            for path in self.crossing(index) {
                write!(f, " {:.0} ms", self.paths[path].rtt_ms)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_cells_shares_all_a_third_some_and_a_third_nothing() {
        for number in 0..60 {
            let cell = FairCell::draw(number);
            let pairs = (0..cell.paths.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
            let (shared, apart): (Vec<_>, Vec<_>) = pairs.partition(|(a, b)| cell.shares(*a, *b));
            match number % 3 {
                0 => assert!(!shared.is_empty() && apart.is_empty(), "{cell}"),
                1 => assert_eq!((shared.len(), apart.len()), (1, 2), "{cell}"),
                _ => assert!(shared.is_empty() && !apart.is_empty(), "{cell}"),
            }
        }
        assert_eq!(FairCell::draw(7), FairCell::draw(7));
    }
}
