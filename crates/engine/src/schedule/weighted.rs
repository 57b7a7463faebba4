//! Weighted round robin, by current rates or rates of past windows (PSMC §III.B [T3], SAFIRE [S5]).
//!
//! With every packet, each path with room earns its weight. The path with the most credit sends the packet and pays the
//! sum of all weights. Over time, packets have the ratio of the weights and are evenly spread.

use anabranch_wire::{PathId, Span, Time};

use super::scheduler::{Decision, Item, PathView, Scheduler, SessionView, open};

/// The credit that each path has earned.
#[derive(Clone, Debug, Default)]
struct Turns(Vec<(PathId, f64)>);

impl Turns {
    /// The path that sends next, among paths with their weights.
    fn next(&mut self, weights: impl Iterator<Item = (PathId, f64)> + Clone) -> Option<PathId> {
        self.0.retain(|(known, _)| weights.clone().any(|(path, _)| path == *known));
        let mut all = 0.0;
        for (path, weight) in weights {
            all += weight;
            match self.0.iter_mut().find(|(known, _)| *known == path) {
                Some((_, earned)) => *earned += weight,
                None => self.0.push((path, weight)),
            }
        }
        let most = self.0.iter_mut().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
        most.1 -= all;
        Some(most.0)
    }
}

/// Sends one packet on `path`.
fn one_packet(path: Option<PathId>, paths: &[PathView]) -> Decision {
    let found = path.and_then(|id| paths.iter().find(|path| path.id == id));
    found.map_or(Decision::Wait(Time::NEVER), |path| Decision::Send { path: path.id, run: path.mtu })
}

/// Packets in the ratio of the paths' rates.
#[derive(Clone, Debug, Default)]
pub struct Weighted(Turns);

impl Scheduler for Weighted {
    fn pick(&mut self, _: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        let weights = open(paths).map(|path| (path.id, path.rate.as_bits() as f64));
        one_packet(self.0.next(weights), paths)
    }
}

/// How long rates are measured before the ratio is updated.
const WINDOW: Span = Span::from_millis(500);
/// The part of a path's rate that is used; the rest keeps ratios from oscillating.
const USED: f64 = 0.95;

/// PSMC's Algorithm 1 [T3]: the ratio of the bandwidths measured over the last two observation windows, minus some
/// headroom; 1 : 1 before there are two.
#[derive(Clone, Debug, Default)]
pub struct Adaptive {
    turns: Turns,
    ends_at: Time,
    /// For each path: bytes sent at the start of the window, and bits a second of the last two.
    measured: Vec<Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    path: PathId,
    bytes: u64,
    since: Time,
    rates: [Option<f64>; 2],
}

impl Measured {
    fn weight(&self, all: f64) -> f64 {
        // A path without traffic shows no rate: it keeps a trickle to show one.
        match self.rates {
            [Some(last), Some(before)] => USED * ((last + before) / 2.0).max(all * 0.01),
            _ => 1.0,
        }
    }
}

impl Adaptive {
    fn observe(&mut self, now: Time, paths: &[PathView]) {
        if now < self.ends_at {
            return;
        }
        self.ends_at = now + WINDOW;
        let known = std::mem::take(&mut self.measured);
        for path in paths {
            let before = known.iter().find(|known| known.path == path.id);
            let rates = before.map_or([None, None], |before| {
                let sent = path.bytes_sent.saturating_sub(before.bytes) as f64;
                [Some(sent * 8.0 / now.since(before.since).as_secs_f64().max(1e-3)), before.rates[0]]
            });
            self.measured.push(Measured { path: path.id, bytes: path.bytes_sent, since: now, rates });
        }
    }

    /// Whether all paths were measured for two windows, so that ratios can be compared.
    fn is_informed(&self) -> bool {
        self.measured.iter().all(|one| one.rates.iter().all(Option::is_some))
    }
}

impl Scheduler for Adaptive {
    fn pick(&mut self, session: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        self.observe(session.now, paths);
        let informed = self.is_informed();
        let all: f64 = self.measured.iter().filter_map(|one| one.rates[0]).sum();
        let measured = &self.measured;
        let weight = |path: &PathView| {
            let known = measured.iter().find(|one| one.path == path.id);
            (path.id, known.filter(|_| informed).map_or(1.0, |one| one.weight(all)).max(1e-9))
        };
        one_packet(self.turns.next(open(paths).map(weight)), paths)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Rate;

    use super::*;
    use crate::schedule::tests_support::{item, session, view};

    /// How many of a hundred packets each path gets.
    fn shares(scheduler: &mut dyn Scheduler, now: Time, paths: &mut [PathView]) -> Vec<usize> {
        let mut counts = vec![0; paths.len()];
        for _ in 0..100 {
            let view = SessionView { now, ..session() };
            let Decision::Send { path, .. } = scheduler.pick(&view, paths, &item()) else { panic!("waits") };
            let index = paths.iter().position(|known| known.id == path).unwrap();
            counts[index] += 1;
            paths[index].bytes_sent += 1400;
        }
        counts
    }

    #[test]
    fn weighted_sends_in_the_ratio_of_the_rates_and_in_turns() {
        let mut paths = [view(0, 100_000), view(1, 100_000)];
        (paths[0].rate, paths[1].rate) = (Rate::from_mbit(30.0), Rate::from_mbit(10.0));
        assert_eq!(shares(&mut Weighted::default(), Time::ZERO, &mut paths), [75, 25]);
    }

    #[test]
    fn adaptive_begins_evenly_and_follows_the_rates_of_two_windows() {
        let mut paths = [view(0, 100_000), view(1, 100_000)];
        let mut adaptive = Adaptive::default();
        let at = |windows: u64| Time::ZERO + WINDOW * windows;
        assert_eq!(shares(&mut adaptive, at(0), &mut paths), [50, 50]);
        // From here on the second path's window allows a quarter as much.
        for window in 1..6 {
            let before = [paths[0].bytes_sent, paths[1].bytes_sent];
            shares(&mut adaptive, at(window), &mut paths);
            (paths[0].bytes_sent, paths[1].bytes_sent) = (before[0] + 400_000, before[1] + 100_000);
        }
        assert_eq!(shares(&mut adaptive, at(6), &mut paths), [80, 20]);
    }
}
