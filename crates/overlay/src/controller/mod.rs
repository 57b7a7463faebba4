//! The controller: registers relays and grants their use to clients.
//!
//! Several controllers share one [`Store`] and keep no other important state. Each decision is one transaction that
//! compares the revisions of all records it read: a client's record (its grants and answered requests) and the record
//! of every relay in the grant (its reservations). If another controller commits first, the transaction conflicts, and
//! the controller reads and decides again. So there are no locks, and a controller that dies leaves nothing to clean
//! up.
//!
//! ```text
//!  request ─▶ read client, relays ─▶ fits? ─▶ commit if unchanged ─▶ Approved ─▶ sign ─▶ grant
//!                  ▲                              │ conflict
//!                  └──────────────────────────────┘
//! ```
//! - **Once.** A request carries an id with its time. The grant's id follows from client and request; the client's
//!   record answers a repeated request with the same grant. A request is forgotten only when it is too old to be
//!   accepted.
//! - **Signed last.** Only an [`Approved`] can be signed, and only a committed transaction, or the record of one,
//!   makes an [`Approved`].
//! - **Capacity.** A relay's record sums reservations by their end. Expired ones stop counting without being removed.
//!   A reservation counts [`HOLD`] seconds longer than its grant, so that no relay whose clock is within [`MAX_SKEW`]
//!   still accepts the grant when it ends.
//! - **Renewed.** A renewed grant is the same one with a later end. Its reservations move to that end in one
//!   transaction, so nothing is reserved twice.
//! - **Revoked.** A released or revoked grant keeps its reservation at a relay until that relay has confirmed it.
//!
//! Liveness and load are each controller's own memory ([`Directory`]); measurements are never stored. One controller
//! at a time, the leader, sweeps expired records. Its term is a record with an end, and every sweep compares that
//! record's revision too. A second leader would do no harm.
//!
//! | module | what |
//! |---|---|
//! | `store` | the store trait, and a store in memory |
//! | `ask` | a client's request for a grant |
//! | `denied` | why a request is refused |
//! | `parts` | what each decision uses |
//! | `record` | the records of clients and relays |
//! | `directory` | relays as this controller sees them now; the choice among them |
//! | `policy` | quotas of client keys, and which keys may be relays |
//! | `allocate` | grants: allocated, renewed, given back, revoked, confirmed |
//! | `register` | a relay's offer |
//! | `sweep` | the leader's work |
//! | `message` | messages between controllers and nodes |

mod allocate;
mod ask;
mod denied;
mod directory;
pub mod message;
mod parts;
mod policy;
mod record;
mod register;
pub mod store;
mod sweep;
#[cfg(test)]
mod tests;

use anabranch_wire::Span;

pub use allocate::{Approved, allocate, confirm, give_back, held_by, renew, revoke, taken_back};
pub use ask::{Ask, RequestId};
pub use denied::{ControlError, Denied, LeftOut, Room};
pub use directory::{Directory, Load, RelayView};
pub use parts::{Clocks, Controller};
pub use policy::{Policy, Quota};
pub use record::{ClientRecord, Location, Offer, RelayRecord};
pub use register::{load_relays, register};
pub use store::{Commit, Entry, MemoryStore, PAGE, Revision, Store, StoreError, Transaction};
pub use sweep::{Leader, Swept, lead, sweep, unlisted};

/// How far the clocks of two machines may differ, in seconds.
pub const MAX_SKEW: u64 = 30;
/// How long a grant keeps its reservation at a relay after its end, in seconds: the relay accepts it 30 s longer
/// ([`WallClock::tolerance`](crate::grant::WallClock::tolerance)), by a clock that may be behind.
pub const HOLD: u64 = 30 + MAX_SKEW;
/// Oldest request that is accepted, in seconds.
pub const REQUEST_AGE: u64 = 600;
/// A relay that is silent for this long counts as gone.
pub const SILENT: Span = Span::from_secs(10);
/// How often a decision is tried again after conflicts.
const ATTEMPTS: usize = 64;
