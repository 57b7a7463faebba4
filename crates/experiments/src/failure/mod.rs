//! Failures of a path: a path breaks and is repaired, and the session continues (mTCP §3.5 [M12, M13]).
//!
//! A [`Case`] is a network of two to four paths, drawn from a number. One path breaks in one of seven ways and is repaired
//! six seconds later. An [`Outcome`] has the longest gap in delivery after the break, the delivered share of the other
//! paths' rate, and the rate of the path after its repair.

mod run;

use std::fmt;

use anabranch_cc::RuleKind;
use anabranch_engine::Config;
use anabranch_wire::Span;

use crate::scenario::Metrics;
use anabranch_sim::Spent;
use anabranch_sim::chance::{Chance, seed_of};

/// The kind of these seeds, which separates them from other seeds.
const KIND: u64 = 0x6661_696c;

/// Earliest and latest time of the break by default, in seconds after the start.
pub const MOMENTS: (f64, f64) = (0.3, 6.0);

/// The share of a rate that the session has to reach.
const LEAST_SHARE: f64 = 0.8;

/// How a path breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Nothing passes in either direction.
    Silence,
    /// Data does not arrive; acknowledgements would.
    OneWay,
    /// Data arrives; acknowledgements do not.
    OneWayBack,
    /// 30 % of the packets are lost, both ways.
    Loss,
    /// A hundredth of the rate is left.
    Rate,
    /// The round-trip time is 20 times as long.
    Delay,
    /// Silent for half of each second.
    Flapping,
}

impl Break {
    /// All kinds, in the order in which cases take turns.
    pub const ALL: [Self; 7] =
        [Self::Silence, Self::OneWay, Self::OneWayBack, Self::Loss, Self::Rate, Self::Delay, Self::Flapping];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silence => "silence",
            Self::OneWay => "one_way",
            Self::OneWayBack => "one_way_back",
            Self::Loss => "loss",
            Self::Rate => "rate",
            Self::Delay => "delay",
            Self::Flapping => "flapping",
        }
    }
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Silence => "silence",
            Self::OneWay => "silence towards the receiver",
            Self::OneWayBack => "silence towards the sender",
            Self::Loss => "loss of 30 %",
            Self::Rate => "a hundredth of the rate",
            Self::Delay => "20 times the delay",
            Self::Flapping => "flapping",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CasePath {
    /// Bottleneck rate in Mbit/s.
    pub mbit: f64,
    /// Round-trip time without queues.
    pub rtt: Span,
    /// Length of the queue in bandwidth–delay products.
    pub bdp: f64,
}

/// A network in which one path breaks: a function of its number alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub number: u64,
    /// Two to four.
    pub paths: Vec<CasePath>,
    /// Index of the path that breaks.
    pub broken: usize,
    pub how: Break,
    /// When it breaks, after the start.
    pub after: Span,
    /// The session's window rule; the default unless chosen.
    pub rule: RuleKind,
}

/// The result of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The longest time without delivery after the break; for a redundant stream, only until the repair.
    pub gap: Span,
    /// The allowed gap: three times the longest smoothed round-trip time in use at the break, at least 200 ms. A path
    /// that is not in use yet counts with its later round-trip time. For a redundant stream, see
    /// [`Case::run_redundant`].
    pub allowed: Span,
    /// The goodput from the end of the allowed gap until the repair, as a share of the other paths' rate.
    pub living_share: f64,
    /// The rate of the repaired path after two seconds or ten round trips, as a share of its full rate.
    pub restored_share: f64,
    /// Bytes sent during the whole run, needed and not.
    pub spent: Spent,
}

impl Case {
    /// Draws the case with this number: rates of 5 to 60 Mbit/s, round-trip times of 5 to 200 ms, queues of 0.5 to 2
    /// bandwidth–delay products, and a break within [`MOMENTS`].
    pub fn draw(number: u64) -> Self {
        Self::draw_within(number, MOMENTS)
    }

    /// The same with a break between these moments, in seconds after the start.
    pub fn draw_within(number: u64, (from, to): (f64, f64)) -> Self {
        let mut chance = Chance::new(seed_of(number, KIND, 0));
        let mut path = |_| CasePath {
            mbit: chance.scaled(5.0, 60.0),
            rtt: Span::from_secs_f64(chance.scaled(0.005, 0.2)),
            bdp: chance.scaled(0.5, 2.0),
        };
        let count = 2 + (number / Break::ALL.len() as u64 % 3) as usize;
        let paths: Vec<CasePath> = (0..count).map(&mut path).collect();
        let broken = chance.below(count);
        let how = Break::ALL[(number % Break::ALL.len() as u64) as usize];
        let after = Span::from_secs_f64(chance.between(from, to));
        Self { number, paths, broken, how, after, rule: Config::default().cc.rule }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {:.1} s", self.how, self.after.as_secs_f64())?;
        for (index, path) in self.paths.iter().enumerate() {
            let mark = if index == self.broken { " (breaks)" } else { "" };
            write!(f, "; {:.1} Mbit/s {} {:.1} BDP{mark}", path.mbit, path.rtt, path.bdp)?;
        }
        Ok(())
    }
}

/// The metrics of the sweep.
///
/// `cases`; `clean`, the cases without a violation; the violations `gaps`, `slow` and `unrestored`, in all and for each kind
/// of break; `redundancy`, the share of bytes that were sent without need.
pub fn metrics(runs: &[(Case, Outcome)]) -> Metrics {
    let mut metrics = Metrics::new();
    for (_, outcome) in runs {
        *metrics.entry("clean".to_owned()).or_default() += f64::from(outcome.is_clean());
    }
    metrics.insert("cases".to_owned(), runs.len() as f64);
    let spent: Spent = runs.iter().map(|(_, outcome)| outcome.spent).sum();
    metrics.insert("redundancy".to_owned(), spent.share());
    for (case, outcome) in runs {
        let broken =
            [("gaps", outcome.paused()), ("slow", outcome.slow()), ("unrestored", outcome.unrestored())];
        for (name, broken) in broken {
            let broken = f64::from(broken);
            *metrics.entry(name.to_owned()).or_default() += broken;
            *metrics.entry(format!("{}.{name}", case.how.name())).or_default() += broken;
        }
    }
    metrics
}

impl Outcome {
    /// Whether it violates no bound.
    pub fn is_clean(&self) -> bool {
        !(self.paused() || self.slow() || self.unrestored())
    }

    fn paused(&self) -> bool {
        self.gap > self.allowed
    }

    fn slow(&self) -> bool {
        self.living_share < LEAST_SHARE
    }

    fn unrestored(&self) -> bool {
        self.restored_share < LEAST_SHARE
    }
}
