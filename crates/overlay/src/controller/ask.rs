//! A client's request for a grant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::MessageError;
use crate::grant::{Limits, UnixTime};

/// Identifies a client's request for a grant: its time, and random bytes of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    /// The time of the request by the client's clock.
    pub made: UnixTime,
    /// Random bytes, drawn for this request.
    pub random: [u8; 8],
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:016x}", self.made.0, u64::from_be_bytes(self.random))
    }
}

impl FromStr for RequestId {
    type Err = MessageError;

    fn from_str(text: &str) -> Result<Self, MessageError> {
        let wrong = MessageError::Invalid("request id");
        let (made, random) = text.split_once('-').filter(|(_, random)| random.len() == 16).ok_or(wrong)?;
        let number = |digits: &str| u64::from_str_radix(digits, 16).map_err(|_| wrong);
        let id = Self { made: UnixTime(number(made)?), random: number(random)?.to_be_bytes() };
        // An id has one text form; otherwise one request could be stored twice.
        if id.to_string() == text { Ok(id) } else { Err(wrong) }
    }
}

/// A request for a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Its id; repeated requests have the same one.
    #[serde(with = "super::message::text")]
    pub request: RequestId,
    /// Most relays.
    pub relays: u8,
    /// Fewest relays; with fewer the grant would be useless.
    pub least: u8,
    /// Limits at each relay, cut to the quota.
    #[serde(flatten)]
    pub limits: Limits,
    /// Lifetime in seconds.
    pub lifetime: u64,
}
