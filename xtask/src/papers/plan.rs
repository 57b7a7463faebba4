//! What is run for each figure and table of the papers, and for comparisons of ours.

use super::{mpmtp, mtcp, nsdi11, ours, psmc, safire};

/// One experiment: a sweep of a scenario, and what of its results is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experiment {
    /// The name of its results and drawings.
    pub(super) name: &'static str,
    /// What it shows, for its heading.
    pub(super) about: &'static str,
    pub(super) scenario: &'static str,
    /// What `sim sweep --set` is given.
    pub(super) set: &'static [&'static str],
    pub(super) seeds: &'static str,
    /// Patterns of the metrics that are told, the first of which is drawn too.
    pub(super) metrics: &'static [&'static str],
}

/// The papers, each with its experiments.
pub(super) const PAPERS: [(&str, &[Experiment]); 6] = [
    ("MPTCP congestion control (NSDI 2011)", nsdi11::EXPERIMENTS),
    ("mTCP (USENIX ATC 2004)", mtcp::EXPERIMENTS),
    ("MPMTP-AR", mpmtp::EXPERIMENTS),
    ("PSMC", psmc::EXPERIMENTS),
    ("SAFIRE", safire::EXPERIMENTS),
    ("Ours", ours::EXPERIMENTS),
];

/// All of all papers.
pub(super) fn experiments() -> impl Iterator<Item = &'static Experiment> {
    PAPERS.iter().flat_map(|(_, experiments)| experiments.iter())
}
