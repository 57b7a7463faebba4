//! The paths of running sessions: rules for their use, and requests to list and change them.

mod caps;
mod control;
mod rules;
mod session;

pub use caps::{LastingCap, caps_directory, has_lasting_cap, keep_caps, settle_caps};
pub use control::{RunningSessions, SessionPath};
pub use rules::{
    LeaveOutTable, RuleTable, parse_rule, parse_rules, parse_terms, read_rules, read_tables,
    warn_of_idle_rules, warn_of_rules_beyond,
};
pub use session::{CapStatus, NodeSession, PathStatus};
