//! The controller: which relays there are, who may use how much of them, and grants that say so (R1, design §10).
//!
//! Several controllers share one [`Store`] and keep nothing else that matters. Each decision is one transaction that compares
//! the revisions of all it read: a client's record (what it holds, and which requests were answered) and the record
//! of every relay in the grant (what is reserved there). Whoever comes second finds a conflict, reads again and decides
//! again. So there are no locks, and nothing is left to tidy up when a controller dies at any point.
//!
//! ```text
//!  request ─▶ read client, relays ─▶ fits? ─▶ commit if unchanged ─▶ Approved ─▶ sign ─▶ grant
//!                  ▲                              │ conflict
//!                  └──────────────────────────────┘
//! ```
//! - **Once.** A request carries an id with the time it was made. The grant's name follows from client and id; the
//!   client's record answers a repeated request with the same grant. An id is forgotten only when it is too old to be taken.
//! - **Signed last.** Only an [`Approved`] can be signed, and only a committed transaction, or a record of one,
//!   makes an [`Approved`].
//! - **Capacity.** A relay's record adds up what is reserved by when it ends. What is over counts no more, without anybody
//!   having to remove it; it counts [`HOLD`] seconds longer than the grant lasts, so that no clock within [`MAX_SKEW`] of
//!   the others still takes the grant.
//! - **Renewed.** A client that needs a grant for longer gets the same one with a later end: its places move to that end in
//!   one transaction, so nothing is ever reserved twice for it.
//! - **Taken back.** A released or revoked grant keeps its place at a relay until that relay said that it heard of it.
//!
//! What changes by itself (who is alive, how loaded) is each controller's own memory ([`Directory`]): measurements are never
//! stored. One controller at a time, the leader, sweeps what has expired; its term is a record with an end, and every
//! sweep compares that record's revision too. A second leader would do no harm.
//!
//! | module | what |
//! |---|---|
//! | `store` | the store trait, and a store in memory |
//! | `record` | what is kept of a client and of a relay |
//! | `directory` | relays as this controller sees them now; the choice among them |
//! | `policy` | quotas of client keys, and which keys may be relays |
//! | `allocate` | grants: given, renewed, given back, revoked, confirmed |
//! | `register` | a relay's record: what it offers |
//! | `sweep` | the leader's work |
//! | `message` | what relays and clients say to a controller |

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
pub use record::{ClientRecord, Offer, Place, RelayRecord};
pub use register::{load_relays, register};
pub use store::{Commit, Entry, MemoryStore, PAGE, Revision, Store, StoreError, Transaction};
pub use sweep::{Leader, Swept, lead, sweep};

use crate::grant::UnixTime;

/// How far the clocks of two machines may be apart, in seconds.
pub const MAX_SKEW: u64 = 30;
/// How long a grant keeps its place at a relay after its end, in seconds: the relay takes it 30 s longer
/// ([`WallClock::tolerance`](crate::grant::WallClock::tolerance)), by a clock that may be behind.
pub const HOLD: u64 = 30 + MAX_SKEW;
/// How old a request may be, in seconds.
pub const REQUEST_AGE: u64 = 600;
/// How often a decision is tried again when others were faster.
const ATTEMPTS: usize = 64;

/// Why a controller says no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Nobody listed the key.
    #[error("this key has no quota here: have the controller's operator list it")]
    NotListed,
    /// Nobody listed the relay.
    #[error("this relay is not listed here: have the controller's operator list its key")]
    RelayNotListed,
    /// More than the quota.
    #[error("the quota allows {allowed} {what}, and {used} are in use: {room}")]
    Quota {
        /// Of what.
        what: &'static str,
        /// How much.
        allowed: u64,
        /// How much is taken.
        used: u64,
        /// When there is more.
        room: Room,
    },
    /// Too many requests in a short time.
    #[error("too many requests in {REQUEST_AGE} s: wait, and keep the grants you have")]
    TooManyRequests,
    /// Too few relays have room, or are there.
    #[error(
        "{} with room {} needed, and {}: {out}",
        relays((*wanted).into()), if *wanted == 1 { "is" } else { "are" }, there_are((*found).into())
    )]
    NoCapacity {
        /// As asked for.
        wanted: u8,
        /// As found.
        found: u8,
        /// Those that there are beside.
        out: LeftOut,
    },
    /// The request is old, or from the future.
    #[error(
        "the request was made {} away from the controller's time: are the clocks right?",
        Span::from_secs(*.0).in_words()
    )]
    RequestTime(u64),
    /// The grant of this request is over or was taken back.
    #[error("the grant of this request is over: make a new request")]
    RequestOver,
    /// The request makes no sense.
    #[error("{0}")]
    Malformed(&'static str),
    /// Another controller has written a later time.
    #[error(
        "this controller's clock is {behind} behind another's: set it right; if it is right, the other's is or was ahead: set that one right, and wait for {behind}, or let the controllers begin with an empty store",
        behind = Span::from_secs(*.0).in_words()
    )]
    ClockBehind(u64),
    /// A relay of this key is alive already.
    #[error(
        "a relay with this key was heard at {0} in the last {seconds} s: if that was this one before it was restarted at another address, it is let in when the earlier one is no longer heard; if it is another machine, two must not share a key: make a new one with `anabranch keys new`",
        seconds = SILENT.as_micros() / 1_000_000
    )]
    KeyInUse(String),
    /// The client holds no such grant.
    #[error("there is no such grant")]
    NoSuchGrant,
    /// Others were faster too often.
    #[error("too many controllers decide at the same time: try again")]
    Busy,
}

/// When a quota that is used up has room again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// However little is in use, more was asked for.
    Never,
    /// When grants end, in so many seconds; or before, when they are taken back.
    In {
        /// Seconds.
        seconds: u64,
        /// Whose grants.
        client: PublicKey,
    },
}

/// Relays that are listed and were not to be had for a grant, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Not heard, or not lately.
    pub silent: usize,
    /// Drained: they take no paths.
    pub drained: usize,
    /// Others' grants leave too few paths there, or too little rate; or they never had as much.
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

/// Why something was not decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// It was: no.
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

/// Refuses to decide by a clock that others have left behind. A controller that has its store to itself goes back with its clock.
fn check_clock(store: &impl Store, now: UnixTime, touched: UnixTime) -> Result<(), Denied> {
    let behind = touched.0.saturating_sub(now.0);
    if behind > MAX_SKEW && store.is_shared() { Err(Denied::ClockBehind(behind)) } else { Ok(()) }
}
