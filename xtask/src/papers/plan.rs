//! The experiments, read from `xtask/papers.toml`.

use serde::Deserialize;

/// All experiments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    paper: Vec<Paper>,
    pub(super) networks: Vec<Networks>,
}

/// A paper and its experiments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paper {
    pub(super) name: String,
    #[serde(rename = "experiment")]
    pub(super) experiments: Vec<Experiment>,
}

/// An experiment for a figure or a table: a sweep of a scenario, and the metrics to show.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Experiment {
    /// The name of its results and charts.
    pub(super) name: String,
    /// Its heading.
    pub(super) about: String,
    pub(super) scenario: String,
    /// The values of `sim sweep --set`.
    #[serde(default)]
    pub(super) set: Vec<String>,
    pub(super) seeds: String,
    /// Patterns of the metrics in its table; the first is also drawn.
    pub(super) metrics: Vec<String>,
}

/// A grid of random networks.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Networks {
    /// The name of its results and chart.
    pub(super) name: String,
    /// Its heading.
    pub(super) about: String,
    /// The arguments of `anabranch sim run`.
    pub(super) words: Vec<String>,
}

impl Plan {
    pub(super) fn read() -> Result<Self, String> {
        toml::from_str(include_str!("../../papers.toml")).map_err(|error| format!("papers.toml: {error}"))
    }

    pub(super) fn papers(&self) -> &[Paper] {
        &self.paper
    }

    /// The experiments of all papers.
    pub(super) fn experiments(&self) -> impl Iterator<Item = &Experiment> {
        self.paper.iter().flat_map(|paper| &paper.experiments)
    }
}
