//! An experiment for a figure or a table.

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
