//! The outcome of a step.

/// How much a step did, or why it failed.
pub type Outcome = Result<Done, String>;

/// How much of a step was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    All,
    /// Some checks were impossible here, with the reason.
    Skipped(String),
}
