//! Why a controller refuses a request, in words for the user.

use std::fmt;

use anabranch_secure::PublicKey;
use anabranch_wire::Span;

use super::store::StoreError;
use super::{REQUEST_AGE, SILENT};

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
    /// Too many keys that are not listed ask for grants.
    #[error(
        "too many unlisted keys ask for grants: try again in a minute, or have the controller's operator list this one"
    )]
    Crowded,
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
        seconds: u64,
        /// The client that has these grants.
        client: PublicKey,
    },
}

/// Listed relays that a grant cannot have, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
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
