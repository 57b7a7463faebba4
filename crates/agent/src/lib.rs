//! The path agent: decides which paths of a session to open and to close.
//!
//! Pure: time, addresses and path states come in as values. The driver over real sockets and the simulator carry out its
//! decisions.

//!
//! | which | by |
//! |---|---|
//! | direct paths, and when to try again | [`Direct`] |
//! | pairs of addresses worth a path | [`plan_routes`] |
//! | addresses that may be sent anything | [`may_try`] |
//! | attempts at addresses without proof | [`ProbeBudget`] |
//! | relays of many candidates | [`RelayChoice`], by what paths can carry ([`Capacity`]) |
//! | when to try a relay again | [`Retry`] |

mod budget;
mod capacity;
mod direct;
mod permission;
mod plan;
mod relays;
mod retry;

pub use budget::ProbeBudget;
pub use capacity::Capacity;
pub use direct::{Action, Direct, View};
pub use permission::{Named, Permission, Reaches, may_try};
pub use plan::{LocalAddress, plan_routes};
pub use relays::{Candidate, GivenUp, HEAD_START, RelayAction, RelayChoice};
pub use retry::Retry;
