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
//! | `record` | the records of clients and relays |
//! | `directory` | relays as this controller sees them now; the choice among them |
//! | `policy` | quotas of client keys, and which keys may be relays |
//! | `allocate` | grants: allocated, renewed, given back, revoked, confirmed |
//! | `register` | a relay's offer |
//! | `sweep` | the leader's work |
//! | `message` | messages between controllers and nodes |

mod allocate;
mod directory;
pub mod message;
mod policy;
mod record;
mod register;
pub mod store;
mod sweep;
#[cfg(test)]
mod tests;

use std::fmt;

use anabranch_secure::PublicKey;
use anabranch_wire::Span;

pub use allocate::{
    Approved, Ask, RequestId, allocate, confirm, give_back, held_by, renew, revoke, taken_back,
};
pub use directory::{Directory, Load, RelayView, SILENT};
pub use policy::{Policy, Quota};
pub use record::{ClientRecord, Location, Offer, RelayRecord};
pub use register::{load_relays, register};
pub use store::{Commit, Entry, MemoryStore, PAGE, Revision, Store, StoreError, Transaction};
pub use sweep::{Leader, Swept, lead, sweep};

use crate::grant::UnixTime;

/// How far the clocks of two machines may differ, in seconds.
pub const MAX_SKEW: u64 = 30;
/// How long a grant keeps its reservation at a relay after its end, in seconds: the relay accepts it 30 s longer
/// ([`WallClock::tolerance`](crate::grant::WallClock::tolerance)), by a clock that may be behind.
pub const HOLD: u64 = 30 + MAX_SKEW;
/// Oldest request that is accepted, in seconds.
pub const REQUEST_AGE: u64 = 600;
/// How often a decision is tried again after conflicts.
const ATTEMPTS: usize = 64;

/// Why a controller refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The configuration does not list the client.
    #[error("this key has no quota here: have the controller's operator list it")]
    NotListed,
    /// The configuration does not list the relay.
    #[error("this relay is not listed here: have the controller's operator list its key")]
    RelayNotListed,
    /// It exceeds the quota.
    #[error("the quota allows {allowed} {what}, and {used} are in use: {room}")]
    Quota {
        /// The resource.
        what: &'static str,
        /// The quota.
        allowed: u64,
        /// The amount in use.
        used: u64,
        /// When more is available.
        room: Room,
    },
    /// Too many requests in a short time.
    #[error("too many requests in {REQUEST_AGE} s: wait, and keep the grants you have")]
    TooManyRequests,
    /// Too few relays are available or have room.
    #[error(
        "{} with room {} needed, and {}: {out}",
        relays((*wanted).into()), if *wanted == 1 { "is" } else { "are" }, there_are((*found).into())
    )]
    NoCapacity {
        /// Relays requested.
        wanted: u8,
        /// Relays found.
        found: u8,
        /// The other listed relays.
        out: LeftOut,
    },
    /// The request is too old, or from the future.
    #[error(
        "the request was made {} away from the controller's time: are the clocks right?",
        Span::from_secs(*.0).in_words()
    )]
    RequestTime(u64),
    /// The grant of this request has expired or was revoked.
    #[error("the grant of this request is over: make a new request")]
    RequestOver,
    /// The request is invalid.
    #[error("{0}")]
    Malformed(&'static str),
    /// Another controller has written a later time.
    #[error(
        "this controller's clock is {behind} behind another's: set it right; if it is right, the other's is or was ahead: set that one right, and wait for {behind}, or let the controllers begin with an empty store",
        behind = Span::from_secs(*.0).in_words()
    )]
    ClockBehind(u64),
    /// Another machine with this relay's key is alive.
    #[error(
        "a relay with this key was heard at {0} in the last {seconds} s: if that was this one before it was restarted at another address, it is let in when the earlier one is no longer heard; if it is another machine, two must not share a key: make a new one with `anabranch keys new`",
        seconds = SILENT.as_micros() / 1_000_000
    )]
    KeyInUse(String),
    /// The client has no such grant.
    #[error("there is no such grant")]
    NoSuchGrant,
    /// Too many conflicts with other controllers.
    #[error("too many controllers decide at the same time: try again")]
    Busy,
}

/// When a used-up quota has room again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Never: the request exceeds the quota by itself.
    Never,
    /// When grants end, in this many seconds, or earlier if they are revoked.
    In {
        /// Seconds.
        seconds: u64,
        /// The client that has these grants.
        client: PublicKey,
    },
}

/// Listed relays that a grant cannot have, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Silent.
    pub silent: usize,
    /// Draining: they accept no new paths.
    pub drained: usize,
    /// Full: too few paths or too little rate is left, or was ever there.
    pub full: usize,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { silent, drained, full } = *self;
        let seconds = SILENT.as_micros() / 1_000_000;
        let was = |count: usize| if count == 1 { "was" } else { "were" };
        let is = |count: usize| if count == 1 { "is" } else { "are" };
        let has = |count: usize| if count == 1 { "has" } else { "have" };
        let parts = [
            (silent, format!("{silent} {} not heard for {seconds} s", was(silent))),
            (drained, format!("{drained} {} drained", is(drained))),
            (full, format!("{full} {} not as many paths or as much rate left", has(full))),
        ];
        let why: Vec<String> =
            parts.into_iter().filter(|(count, _)| *count > 0).map(|(_, part)| part).collect();
        match &why[..] {
            [] => f.write_str("no other is listed here; have the controller's operator list more"),
            why => write!(
                f,
                "of those listed here, {}; try again later, or have the controller's operator look which, with `anabranch controller status`",
                why.join(", ")
            ),
        }
    }
}

fn relays(count: usize) -> String {
    if count == 1 { "1 relay".to_owned() } else { format!("{count} relays") }
}

fn there_are(count: usize) -> String {
    match count {
        0 => "there is none".to_owned(),
        1 => "there is 1".to_owned(),
        count => format!("there are {count}"),
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("ask for less, or have the controller's operator allow more"),
            Self::In { seconds, client } => write!(
                f,
                "there is room in {}, when grants end that are not renewed, or once the controller's operator takes them back with `anabranch controller revoke {client}`",
                Span::from_secs(*seconds).in_words()
            ),
        }
    }
}

/// Why a decision failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The request is refused.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn client_key(client: &PublicKey) -> String {
    format!("client/{client}")
}

fn relay_key(relay: &PublicKey) -> String {
    format!("relay/{relay}")
}

/// Refuses to decide by a clock that is behind another controller's. A controller with a store of its own follows its
/// clock back.
fn check_clock(store: &impl Store, now: UnixTime, touched: UnixTime) -> Result<(), Denied> {
    let behind = touched.0.saturating_sub(now.0);
    if behind > MAX_SKEW && store.is_shared() { Err(Denied::ClockBehind(behind)) } else { Ok(()) }
}
