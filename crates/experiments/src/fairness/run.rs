//! Runs a cell with a seed: a session over each path alone, then over all together.

use anabranch_wire::{Span, Time};

use super::FairCell;
use super::cell::START;
use anabranch_sim::Spent;
use anabranch_sim::network::Network;

/// How often verdicts are sampled.
const LOOK: Span = Span::from_secs(1);
/// The early and the late interval, from the start of the session.
const EARLY: (Span, Span) = (Span::from_secs(2), Span::from_secs(12));
const LATE: (Span, Span) = (Span::from_secs(50), Span::from_secs(110));
/// The time by which groups count as found.
pub(super) const IN_TIME: Span = Span::from_secs(30);

/// The result of one seed. Rates are in Mbit/s: early ones before a detector can decide, late ones after.
#[derive(Clone, Debug, PartialEq)]
pub struct FairRun {
    /// For each path: a session over it alone, early and late.
    pub singles: Vec<[f64; 2]>,
    /// For each path: its share of the session over all, early and late.
    pub parts: Vec<[f64; 2]>,
    /// Pairs of paths that share a bottleneck, and those of them that were in one group 30 s after the start.
    pub shared: (usize, usize),
    /// Pairs that do not share a bottleneck, and those of them that were in one group at any time.
    pub apart: (usize, usize),
    /// Bytes sent over all paths together, needed and not.
    pub spent: Spent,
}

/// Bytes that arrived on each path, and each path's group.
fn look(network: &Network, paths: usize) -> (Vec<u64>, Vec<Option<u32>>) {
    let (mut bytes, mut groups) = (vec![0; paths], vec![None; paths]);
    for path in network.paths(0, true) {
        bytes[path.route.socket as usize] += path.stats.data_received;
    }
    for path in network.paths(0, false) {
        groups[path.route.socket as usize] = Some(path.group);
    }
    (bytes, groups)
}

/// Runs a session over these paths of a cell; `see` gets the groups each second. Returns the bytes that arrived on each
/// path, and the bytes sent.
fn carry(
    cell: &FairCell,
    paths: &[usize],
    seed: u64,
    see: &mut dyn FnMut(Span, &[Option<u32>]),
) -> (Vec<[f64; 2]>, Spent) {
    let end = Time::ZERO + START + LATE.1;
    let mut network = Network::new(cell.plan(paths, (seed, end + LOOK)));
    let mut rates = vec![[0.0; 2]; paths.len()];
    let mut since = Span::ZERO;
    let mut before = [vec![0; paths.len()], vec![0; paths.len()]];
    while since < LATE.1 {
        since += LOOK;
        network.run(Time::ZERO + START + since);
        let (bytes, groups) = look(&network, paths.len());
        see(since, &groups);
        for (when, (from, until)) in [EARLY, LATE].into_iter().enumerate() {
            if since == from {
                before[when].clone_from(&bytes);
            } else if since == until {
                let seconds = until.saturating_sub(from).as_secs_f64();
                for (path, rate) in rates.iter_mut().enumerate() {
                    rate[when] = (bytes[path] - before[when][path]) as f64 * 8e-6 / seconds;
                }
            }
        }
    }
    let spent = Spent::of((network.flow(0).client, &network.paths(0, false)), &network.paths(0, true));
    (rates, spent)
}

impl FairCell {
    /// Runs the cell with a seed, which decides when neighbours begin and what queues drop.
    pub fn run(&self, seed: u64) -> FairRun {
        let count = self.paths.len();
        let alone = |path: usize| carry(self, &[path], seed, &mut |_, _| {}).0[0];
        let singles = (0..count).map(alone).collect();
        let all: Vec<usize> = (0..count).collect();
        let pairs: Vec<(usize, usize)> = (0..count).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
        let mut joined_in_time = vec![false; pairs.len()];
        let mut joined = vec![false; pairs.len()];
        let mut see = |since: Span, groups: &[Option<u32>]| {
            for (index, (a, b)) in pairs.iter().enumerate() {
                let together = groups[*a].is_some() && groups[*a] == groups[*b];
                joined[index] |= together;
                if since == IN_TIME {
                    joined_in_time[index] = together;
                }
            }
        };
        let (parts, spent) = carry(self, &all, seed, &mut see);
        let count = |of: &[bool], shared: bool| {
            let alike = pairs.iter().zip(of).filter(|((a, b), _)| self.shares(*a, *b) == shared);
            alike.fold((0, 0), |(all, yes), (_, of)| (all + 1, yes + usize::from(*of)))
        };
        FairRun { singles, parts, shared: count(&joined_in_time, true), apart: count(&joined, false), spent }
    }
}
