//! What sessions of a network believe of their paths, for who measures it.

use anabranch_engine::Verdict;
use anabranch_wire::PathId;

use super::Network;
use super::flow::CLIENT;

impl Network {
    /// What a flow's client believes of each two of its paths: whether they share a bottleneck.
    ///
    /// # Panics
    /// When the plan has no such flow.
    #[must_use]
    pub fn verdicts(&self, flow: usize) -> Vec<Verdict> {
        let Some(session) = &self.flows[flow].sessions[CLIENT] else { return Vec::new() };
        let paths: Vec<PathId> = session.paths().iter().map(|path| path.id).collect();
        let pairs =
            paths.iter().enumerate().flat_map(|(count, b)| paths[..count].iter().map(move |a| (*a, *b)));
        pairs.map(|(a, b)| session.shared_bottleneck(a, b)).collect()
    }
}
