//! Grids of random networks: never slower than one path, fair, without a pause when a path fails.

/// A grid of networks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Networks {
    /// The name of its results and chart.
    pub(super) name: &'static str,
    /// Its heading on the page.
    pub(super) about: &'static str,
    /// The arguments of `anabranch sim run`.
    pub(super) words: &'static [&'static str],
}

pub(super) const NETWORKS: [Networks; 4] = [
    Networks { name: "grid", about: "Never slower than the best path: 500 networks", words: &["grid"] },
    Networks {
        name: "fairness",
        about: "Fair where bottlenecks are shared, whole where they are not",
        words: &["fairness", "--cells", "0..29", "--seeds", "1..4"],
    },
    Networks { name: "failures", about: "A path breaks: 1,000 networks", words: &["failures"] },
    Networks {
        name: "failures-redundant",
        about: "The same with a redundant stream",
        words: &["failures", "--redundant"],
    },
];
