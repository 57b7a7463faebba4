//! The path agent: decides which paths of a session to open and close.
//!
//! It is pure: time, addresses and path states are values. The driver over sockets and the simulator carry out its
//! decisions.
//!
//! | decision | module |
//! |---|---|
//! | direct paths, and when to retry them | [`Direct`] |
//! | pairs of addresses worth a path | [`plan_routes`] |
//! | addresses to which packets may be sent | [`may_try`] |
//! | number of attempts at unproven addresses | [`ProbeBudget`] |
//! | relays in use, of many candidates | [`RelayChoice`], with estimates by [`Capacity`] |
//! | the address at which a path enters its relay | [`EntryChoice`] |
//! | when to retry a relay | [`Retry`] |

mod budget;
mod capacity;
mod direct;
mod entries;
mod permission;
mod plan;
mod relays;
mod retry;

pub use budget::ProbeBudget;
pub use capacity::Capacity;
pub use direct::{Action, Direct, View};
pub use entries::{Entries, EntryAction, EntryChoice, MOST_ENTRIES};
pub use permission::{Named, Permission, Reaches, may_try};
pub use plan::{LocalAddress, plan_routes};
pub use relays::{Candidate, GivenUp, HEAD_START, RelayAction, RelayChoice};
pub use retry::Retry;
