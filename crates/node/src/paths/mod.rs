//! The paths of running sessions: rules for their use, and how people and programs list and change them.

mod rules;
mod running;
mod sessions;

pub use rules::{parse_rule, parse_rules, parse_terms};
pub use running::{CapStatus, PathStatus, RunningPaths};
pub use sessions::{RunningSessions, SessionPath};
