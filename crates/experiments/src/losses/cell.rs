//! A network of the loss grid: how it is drawn from its number, and its plan.

use std::fmt;

use anabranch_cc::RuleKind;
use anabranch_engine::Config;
use anabranch_link::{LinkConfig, LossModel, RandomDrop};
use anabranch_wire::{Rate, Span, Time};

use anabranch_sim::chance::{Chance, seed_of};
use anabranch_sim::network::{FlowPlan, PathPlan, Plan};

/// The kind of these seeds, which separates them from other seeds.
const KIND: u64 = 0x6c6f_7373;
/// Bytes of IPv4 and UDP headers on each packet.
const OVERHEAD: u32 = 28;
/// The queue of a policer: what exceeds its rate is lost, almost without delay.
const POLICER: u64 = 4 * 1500;
/// When the session begins; neighbours begin at random before.
const START: Span = Span::from_secs(3);

/// A path and its bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossPath {
    /// The bottleneck's rate in Mbit/s.
    pub mbit: f64,
    /// Round-trip time without queues, in milliseconds.
    pub rtt_ms: f64,
    /// Share of packets lost on the wire.
    pub loss: f64,
    /// Mean length of a burst of losses in packets; 1 for independent losses.
    pub burst: f64,
    /// Length of the queue in bandwidth–delay products; `None` for a policer.
    pub bdp: Option<f64>,
}

/// A session's paths and its neighbours: a function of its number alone.
#[derive(Clone, Debug, PartialEq)]
pub struct LossCell {
    pub number: u64,
    /// One to three.
    pub paths: Vec<LossPath>,
    /// The rule of a background TCP on each bottleneck, if there is one.
    pub neighbour: Option<RuleKind>,
}

impl LossCell {
    /// Draws the cell with this number.
    ///
    /// Rates are 2 to 50 Mbit/s, round-trip times 5 to 600 ms, queues 0.25 to 20 bandwidth–delay products, all uniform on a
    /// logarithmic scale. One bottleneck in eight is a policer. A third of the paths loses nothing on the wire, a third
    /// 0.01 to 5 % of single packets, and a third as much in bursts of two to eight. Every second cell has neighbours.
    pub fn draw(number: u64) -> Self {
        let mut chance = Chance::new(seed_of(number, KIND, 0));
        let count = 1 + chance.below(3);
        let path = |_| {
            let (mbit, rtt_ms) = (chance.scaled(2.0, 50.0), chance.scaled(5.0, 600.0));
            let kind = chance.below(3);
            let loss = if kind == 0 { 0.0 } else { chance.scaled(0.0001, 0.05) };
            let burst = if kind == 2 { chance.between(2.0, 8.0) } else { 1.0 };
            let bdp = (chance.below(8) > 0).then(|| chance.scaled(0.25, 20.0));
            LossPath { mbit, rtt_ms, loss, burst, bdp }
        };
        let paths = (0..count).map(path).collect();
        let neighbour = match number % 4 {
            1 => Some(RuleKind::Cubic),
            3 => Some(RuleKind::Reno),
            _ => None,
        };
        Self { number, paths, neighbour }
    }

    /// The network with a session of this rule as its first flow, and the neighbours.
    pub(super) fn plan(&self, rule: RuleKind, (seed, end): (u64, Time)) -> Plan {
        let mut chance = Chance::new(seed_of(seed, KIND, self.number + 1));
        let mut plan = Plan { seed, links: Vec::new(), ..Plan::default() };
        let mut config = Config::default();
        config.cc.rule = rule;
        let mut paths = Vec::new();
        let mut neighbours = Vec::new();
        for path in &self.paths {
            let first = plan.links.len() as u32;
            let half = Span::from_secs_f64(path.rtt_ms / 2e3);
            plan.links.extend([path.bottleneck(half), back(half)]);
            paths.push(PathPlan { forward: vec![first], back: vec![first + 1] });
            if let Some(rule) = self.neighbour {
                let mut config = Config::tcp();
                config.cc.rule = rule;
                let start = Time::ZERO + START.mul_f64(chance.unit());
                let path = PathPlan { forward: vec![first], back: vec![first + 1] };
                neighbours.push(FlowPlan::bulk(vec![path], config, (start, end)));
            }
        }
        plan.flows = vec![FlowPlan::bulk(paths, config, (Time::ZERO + START, end))];
        plan.flows.extend(neighbours);
        plan
    }
}

impl LossPath {
    fn bottleneck(&self, delay: Span) -> LinkConfig {
        let rate = Rate::from_mbit(self.mbit);
        let product = rate.bytes_in(Span::from_secs_f64(self.rtt_ms / 1e3)) as f64;
        let queue = self.bdp.map_or(POLICER, |bdp| ((product * bdp) as u64).max(2 * POLICER));
        let mut link = LinkConfig { overhead: OVERHEAD, ..LinkConfig::fixed(rate, delay, queue) };
        // Avoids phase effects between regular senders.
        link.queue.random_drop = self.bdp.map(|_| RandomDrop { places: 3 * 1500, probability: 0.1 });
        link.loss = match self.loss {
            0.0 => LossModel::None,
            loss if self.burst > 1.0 => LossModel::bursts(loss, self.burst),
            loss => LossModel::Bernoulli(loss),
        };
        link
    }
}

fn back(delay: Span) -> LinkConfig {
    let rate = Rate::from_mbit(1000.0);
    LinkConfig { overhead: OVERHEAD, ..LinkConfig::fixed(rate, delay, rate.bytes_in(Span::from_millis(100))) }
}

impl fmt::Display for LossCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.neighbour {
            Some(rule) => write!(f, "next to {rule}")?,
            None => write!(f, "alone")?,
        }
        for LossPath { mbit, rtt_ms, loss, burst, bdp } in &self.paths {
            write!(f, "; {mbit:.1} Mbit/s {rtt_ms:.0} ms {:.2} %", loss * 100.0)?;
            if *burst > 1.0 {
                write!(f, " in bursts of {burst:.0}")?;
            }
            match bdp {
                Some(bdp) => write!(f, " {bdp:.2} BDP")?,
                None => write!(f, " policed")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cover_what_the_grid_promises() {
        let cells: Vec<LossCell> = (0..300).map(LossCell::draw).collect();
        let paths: Vec<LossPath> = cells.iter().flat_map(|cell| cell.paths.clone()).collect();
        let share = |of: fn(&LossPath) -> bool| {
            paths.iter().filter(|path| of(path)).count() as f64 / paths.len() as f64
        };
        assert!((0.25..0.42).contains(&share(|path| path.loss == 0.0)));
        assert!((0.25..0.42).contains(&share(|path| path.burst > 1.0)));
        assert!((0.08..0.18).contains(&share(|path| path.bdp.is_none())));
        assert_eq!(cells.iter().filter(|cell| cell.neighbour.is_some()).count(), 150);
        assert_eq!(LossCell::draw(7), LossCell::draw(7));
    }
}
