//! The path agent: decides which paths of a session to open and to close.
//!
//! Pure: the time and everything the agent knows of machine and peer come in as values. The driver over real sockets and
//! the simulator carry out what it decides.

mod budget;
mod permission;

pub use budget::ProbeBudget;
pub use permission::{Named, Permission, Reaches, may_try};
