//! The experiments for each figure and table of the papers, and our own comparisons.

use super::{mpmtp, mtcp, nsdi11, ours, psmc, safire};

/// An experiment: a sweep of a scenario, and the metrics to show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experiment {
    /// The name of its results and charts.
    pub(super) name: &'static str,
    /// Its heading.
    pub(super) about: &'static str,
    pub(super) scenario: &'static str,
    /// The values of `sim sweep --set`.
    pub(super) set: &'static [&'static str],
    pub(super) seeds: &'static str,
    /// Patterns of the metrics in its table; the first is also drawn.
    pub(super) metrics: &'static [&'static str],
}

pub(super) const PAPERS: [(&str, &[Experiment]); 6] = [
    ("MPTCP congestion control (NSDI 2011)", nsdi11::EXPERIMENTS),
    ("mTCP (USENIX ATC 2004)", mtcp::EXPERIMENTS),
    ("MPMTP-AR", mpmtp::EXPERIMENTS),
    ("PSMC", psmc::EXPERIMENTS),
    ("SAFIRE", safire::EXPERIMENTS),
    ("Ours", ours::EXPERIMENTS),
];

pub(super) fn experiments() -> impl Iterator<Item = &'static Experiment> {
    PAPERS.iter().flat_map(|(_, experiments)| experiments.iter())
}
