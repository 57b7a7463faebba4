//! Optional outputs of a run.

use anabranch_sim::network::Captured;

/// Outputs of a run in addition to its metrics. None of them changes the result.
#[derive(Default)]
pub struct Extras<'a> {
    /// Record values over time and distributions.
    pub course: bool,
    /// Called for every packet that a session sends or receives.
    pub trace: Option<&'a mut dyn FnMut(&Captured)>,
    /// Called from time to time with the share of simulated time that is over; the run ends early if it returns false.
    pub progress: Option<&'a mut dyn FnMut(f64) -> bool>,
}
