//! Runs a cell with a seed, once with each rule.

use anabranch_cc::RuleKind;
use anabranch_wire::{Span, Time};

use super::{LossCell, RULES};
use anabranch_sim::network::Network;

/// When a session is measured, and how often its round trips are read.
const FROM: Time = Time::from_nanos(15_000_000_000);
const END: Time = Time::from_nanos(63_000_000_000);
const LOOK: Span = Span::from_millis(250);
/// The longest queue of a path alone: this, or this part of the round trip if that is more.
const QUEUE_MS: f64 = 25.0;
const QUEUE_PART: f64 = 0.25;

/// The results of a session. Rates are in Mbit/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// Its data that arrived.
    pub mbit: f64,
    /// The same of all neighbours together.
    pub neighbours: f64,
    /// The largest mean queueing delay of its paths, as a multiple of the bound.
    pub queue: f64,
    /// Share of its packets lost.
    pub lost: f64,
}

impl Carried {
    /// The mean of what one of the rules carried.
    pub(super) fn mean(runs: &[LossRun], rule: usize) -> Self {
        let mean = |of: fn(&Self) -> f64| {
            runs.iter().map(|run| of(&run.0[rule])).sum::<f64>() / runs.len().max(1) as f64
        };
        Self {
            mbit: mean(|carried| carried.mbit),
            neighbours: mean(|carried| carried.neighbours),
            queue: mean(|carried| carried.queue),
            lost: mean(|carried| carried.lost),
        }
    }
}

/// The result of one seed: what each of [`RULES`] carried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossRun(pub [Carried; 3]);

impl LossCell {
    /// Runs the cell with a seed, which decides which packets are lost and when neighbours begin.
    pub fn run(&self, seed: u64) -> LossRun {
        LossRun(RULES.map(|rule| self.carry(rule, seed)))
    }

    fn carry(&self, rule: RuleKind, seed: u64) -> Carried {
        let mut network = Network::new(self.plan(rule, (seed, END + LOOK)));
        network.run(FROM);
        let before = arrived(&network, self);
        let sent = |network: &Network| {
            let stats = network
                .paths(0, false)
                .into_iter()
                .map(|path| (path.stats.packets_sent, path.stats.packets_lost));
            stats.fold((0, 0), |sum, path| (sum.0 + path.0, sum.1 + path.1))
        };
        let sent_before = sent(&network);
        let mut delays = vec![(0.0, 0.0); self.paths.len()];
        let mut now = FROM;
        while now < END {
            now += LOOK;
            network.run(now);
            for path in network.paths(0, false) {
                let sum = &mut delays[path.route.socket as usize];
                let queue = path.rtt.as_millis_f64() - self.paths[path.route.socket as usize].rtt_ms;
                *sum = (sum.0 + queue.max(0.0), sum.1 + 1.0);
            }
        }
        let after = arrived(&network, self);
        let sent_after = sent(&network);
        let seconds = END.since(FROM).as_secs_f64();
        let rate = |index: usize| (after[index] - before[index]) as f64 * 8e-6 / seconds;
        let bound = |path: usize| (self.paths[path].rtt_ms * QUEUE_PART).max(QUEUE_MS);
        let queues =
            delays.iter().enumerate().map(|(path, (sum, count))| sum / f64::max(*count, 1.0) / bound(path));
        Carried {
            mbit: rate(0),
            neighbours: (1..after.len()).map(rate).sum(),
            queue: queues.fold(0.0, f64::max),
            lost: (sent_after.1 - sent_before.1) as f64 / (sent_after.0 - sent_before.0).max(1) as f64,
        }
    }
}

/// Bytes that arrived, of the session and of each neighbour.
fn arrived(network: &Network, cell: &LossCell) -> Vec<u64> {
    let neighbours = if cell.neighbour.is_some() { cell.paths.len() } else { 0 };
    (0..=neighbours).map(|flow| network.flow(flow).bytes).collect()
}
