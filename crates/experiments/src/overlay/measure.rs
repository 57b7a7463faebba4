//! Measures of an overlay: traffic, errors of estimates, reaction to failures, memory.

use anabranch_wire::{Rate, Span, Time};

use super::run::Runner;
use super::ways;
use crate::scenario::Metrics;

/// The interval over which peak traffic is measured.
const SPAN: Span = Span::from_secs(10);
/// Pairs of relays for which routes are chosen and estimates are checked.
const PAIRS: usize = 100;
const ESTIMATES: usize = 2_000;
/// The quantiles of errors.
const MIDDLE_AND_HIGH: [(&str, f64); 2] = [("p50", 0.5), ("p90", 0.9)];

/// Bytes that each relay sends for sensing.
pub(super) struct Traffic {
    since: Time,
    /// Probes and answers; reports to the controller.
    bytes: Vec<[u64; 2]>,
    /// When this interval began, the bytes sent in it, and the most of any interval.
    span: Vec<(Time, u64, u64)>,
}

impl Traffic {
    pub fn new(relays: usize) -> Self {
        Self { since: Time::ZERO, bytes: vec![[0; 2]; relays], span: vec![(Time::ZERO, 0, 0); relays] }
    }

    /// Counts from now on.
    pub fn begin(&mut self, now: Time) {
        *self = Self::new(self.bytes.len());
        self.since = now;
        self.span.iter_mut().for_each(|span| span.0 = now);
    }

    pub fn sent(&mut self, now: Time, relay: usize, bytes: u64, is_spread: bool) {
        self.bytes[relay][usize::from(is_spread)] += bytes;
        let (began, sent, most) = &mut self.span[relay];
        if now.since(*began) >= SPAN {
            (*began, *sent) = (now, 0);
        }
        *sent += bytes;
        *most = (*most).max(*sent);
    }

    pub fn metrics(&self, now: Time) -> Metrics {
        let mut metrics = Metrics::new();
        let passed = now.since(self.since).as_secs_f64();
        let mut put = |name: &str, bytes: Vec<u64>, seconds: f64| {
            let rates: Vec<f64> = sorted(bytes.into_iter().map(|bytes| bytes as f64 * 8e-3 / seconds));
            metrics.insert(format!("{name}_kbit_s.mean"), rates.iter().sum::<f64>() / rates.len() as f64);
            metrics.insert(format!("{name}_kbit_s.max"), rates.last().copied().unwrap_or(0.0));
        };
        put("probes", self.bytes.iter().map(|bytes| bytes[0]).collect(), passed);
        put("changes", self.bytes.iter().map(|bytes| bytes[1]).collect(), passed);
        put("sensing", self.bytes.iter().map(|bytes| bytes[0] + bytes[1]).collect(), passed);
        put("sensing_10s", self.span.iter().map(|span| span.2).collect(), SPAN.as_secs_f64());
        metrics
    }
}

/// A link that failed.
pub(super) struct Failure {
    from: usize,
    to: usize,
    at: Time,
    /// When the measuring relay, and when the controller, noticed.
    noticed: Option<Time>,
    known: Option<Time>,
}

impl Runner {
    /// A link that is measured fails.
    pub fn fail_some_link(&mut self) {
        let from = self.chance.below(self.world.len());
        let neighbours = self.neighbours(from);
        if neighbours.is_empty() {
            return;
        }
        let to = neighbours[self.chance.below(neighbours.len())];
        // A failure cuts both directions.
        let is_cut = |failure: &Failure| [[from, to], [to, from]].contains(&[failure.from, failure.to]);
        let again = self.failures.iter().any(is_cut);
        if !again {
            self.fail(from, to);
            self.failures.push(Failure { from, to, at: self.now, noticed: None, known: None });
        }
    }

    /// A relay found that a link is down; `down` are the other ends of all its links that it counts as down.
    pub fn note_down(&mut self, relay: usize, down: &[usize]) {
        let now = self.now;
        for failure in &mut self.failures {
            if failure.from == relay && down.contains(&failure.to) {
                failure.noticed.get_or_insert(now);
            }
        }
    }

    /// The failures that the controller has noticed.
    pub fn note_known(&mut self) {
        let (now, map) = (self.now, &self.map);
        for failure in self.failures.iter_mut().filter(|failure| failure.known.is_none()) {
            let figures = map.figures(now, failure.from, failure.to);
            if figures.is_some_and(|figures| figures.estimated.is_none() && figures.loss >= 1.0) {
                failure.known = Some(now);
            }
        }
    }

    /// Times from a failure until the measuring relay and the controller noticed it.
    pub fn judge_failures(&mut self, metrics: &mut Metrics) {
        let times = |known: fn(&Failure) -> Option<Time>| {
            let times = self.failures.iter().filter_map(|failure| Some(known(failure)?.since(failure.at)));
            sorted(times.map(|span| span.as_secs_f64()))
        };
        let (noticed, known) = (times(|failure| failure.noticed), times(|failure| failure.known));
        metrics.insert("failures".into(), self.failures.len() as f64);
        metrics.insert("failures_known".into(), known.len() as f64);
        for (name, times) in [("noticed_s", noticed), ("known_s", known)] {
            put(metrics, name, &times, [("p50", 0.5), ("max", 1.0)]);
        }
    }

    /// Errors of estimates, links wrongly considered down, and the quality of the chosen routes.
    pub fn judge_estimates(&mut self, metrics: &mut Metrics) {
        self.judge_rates(metrics);
        let (mut off, mut down, mut measured) = (Vec::new(), 0, 0);
        for _ in 0..ESTIMATES {
            let (from, to) = self.some_pair();
            let truth = self.world.between(from, to).rtt.as_secs_f64();
            let Some(figures) = self.map.figures(self.now, from, to) else { continue };
            if figures.estimated.is_some() {
                off.push((figures.rtt.as_secs_f64() / truth - 1.0).abs());
            }
        }
        for at in 0..self.map.len() {
            let links = self.map.node(at).map_or([0; 2], |node| node.links);
            measured += links[0];
            down += links[1];
        }
        let off = sorted(off.into_iter());
        put(metrics, "estimate_off", &off, MIDDLE_AND_HIGH);
        metrics.insert("links_measured".into(), measured as f64);
        metrics.insert("links_down_by_mistake".into(), f64::from(u32::try_from(down).unwrap_or(u32::MAX)));
        self.judge_ways(metrics);
    }

    /// Errors of capacities and of free capacities: of those measured by trains, and of those estimated.
    fn judge_rates(&mut self, metrics: &mut Metrics) {
        let off = |told: Rate, truth: Rate| (told.as_mbit() / truth.as_mbit() - 1.0).abs();
        let (mut capacity, mut left, mut estimated) = (Vec::new(), Vec::new(), Vec::new());
        for from in 0..self.world.len() {
            for to in self.neighbours(from) {
                let Some(figures) = self.map.figures(self.now, from, to) else { continue };
                let [rate, others] = self.world.between(from, to).rate;
                let free = Rate::from_bits(rate.as_bits() - others.as_bits());
                capacity.extend(figures.capacity.map(|told| off(told, rate)));
                left.extend(figures.available.map(|told| off(told, free)));
            }
        }
        for (from, to) in self.some_pairs() {
            let figures = self.map.figures(self.now, from, to).filter(|figures| figures.estimated.is_some());
            let told = figures.and_then(|figures| figures.capacity);
            estimated.extend(told.map(|told| off(told, self.world.between(from, to).rate[0])));
        }
        let all = [("capacity", capacity), ("available", left), ("capacity_estimate", estimated)];
        for (name, off) in all {
            let off = sorted(off.into_iter());
            metrics.insert(format!("{name}_known"), off.len() as f64);
            put(metrics, &format!("{name}_off"), &off, MIDDLE_AND_HIGH);
        }
    }

    /// Round-trip time of the chosen route over a relay, compared with the best one.
    fn judge_ways(&mut self, metrics: &mut Metrics) {
        let (mut looked, mut longer) = (0, Vec::new());
        for (from, to) in self.some_pairs() {
            let (found, count) = ways(&self.map, self.now, (from, to));
            looked += count;
            let truth = |relays: &[usize]| {
                let stops: Vec<usize> = [&[from], relays, &[to]].concat();
                let stretches = stops.windows(2).map(|ends| self.world.between(ends[0], ends[1]).rtt);
                stretches.fold(Span::ZERO, |sum, rtt| sum + rtt).as_secs_f64()
            };
            let others = (0..self.world.len()).filter(|relay| *relay != from && *relay != to);
            let best = others.map(|relay| truth(&[relay])).fold(f64::INFINITY, f64::min);
            // A node would measure the first five before it used them.
            let chosen = found.iter().take(5).map(|way| truth(&way.relays)).fold(f64::INFINITY, f64::min);
            // Between two relays there is no other to choose.
            if best.is_finite() {
                longer.push(chosen / best);
            }
        }
        let longer = sorted(longer.into_iter());
        put(metrics, "way_rtt_over_best", &longer, MIDDLE_AND_HIGH);
        metrics.insert("ways_looked_at".into(), looked as f64 / PAIRS as f64);
    }

    /// Memory of the controller.
    pub fn weigh(&self, metrics: &mut Metrics) {
        let bytes = self.map.memory() + self.mesh.memory();
        metrics.insert("controller_kb".into(), bytes as f64 / 1e3);
        metrics.insert("controller_bytes_a_relay".into(), bytes as f64 / self.world.len() as f64);
    }

    pub fn some_pairs(&mut self) -> Vec<(usize, usize)> {
        (0..PAIRS).map(|_| self.some_pair()).collect()
    }

    fn some_pair(&mut self) -> (usize, usize) {
        let count = self.world.len();
        let from = self.chance.below(count);
        (from, (from + 1 + self.chance.below(count - 1)) % count)
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Adds quantiles (nearest rank) of a sorted list. An empty list has none.
fn put(metrics: &mut Metrics, name: &str, sorted: &[f64], shares: [(&str, f64); 2]) {
    let last = sorted.len().saturating_sub(1);
    for (of, share) in shares {
        let value = sorted.get((last as f64 * share).round() as usize);
        metrics.extend(value.map(|value| (format!("{name}.{of}"), *value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::{OverlayConfig, World};

    #[test]
    fn a_relay_that_noticed_one_failure_has_not_noticed_another() {
        let config = OverlayConfig { relays: 3, neighbours: 2, failures: 0 };
        let mut runner = Runner::new(World::new(3, 1), config, 1);
        let failure = |to| Failure { from: 0, to, at: Time::ZERO, noticed: None, known: None };
        runner.failures.extend([failure(1), failure(2)]);
        runner.note_down(0, &[2]);
        let noticed: Vec<bool> = runner.failures.iter().map(|failure| failure.noticed.is_some()).collect();
        assert_eq!(noticed, [false, true]);
    }
}
