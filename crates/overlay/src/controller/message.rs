//! What relays and clients say to a controller, and its answers: one stream of a session, one answer to each request in
//! their order.
//!
//! A message is the length of its body (4 bytes, big-endian) and the body, JSON of at most [`MAX_BODY`] bytes: a few
//! a second at most, and people read them in traces. Fields that a later version adds are skipped by an older one.

use std::net::{IpAddr, SocketAddr};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span};
use serde::{Deserialize, Serialize};

use super::{Ask, ControlError, Denied, Load, Offer, RequestId};
use crate::MessageError;
use crate::grant::{GrantId, Limits};
use crate::sense::{Changes, Figures};

/// Version of the control protocol.
pub const CONTROL_VERSION: u16 = 1;
/// Longest body, in bytes.
pub const MAX_BODY: usize = 64 << 10;

const HEAD: usize = 4;

/// What is said to a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Request {
    /// The first message.
    Hello {
        /// Spoken by this side.
        version: u16,
    },
    /// A relay offers itself.
    Register {
        /// Drawn when its program started, to tell it from another machine with the same key.
        instance: u64,
        /// What it offers.
        offer: Offer,
    },
    /// A registered relay is alive.
    Heartbeat {
        /// What it does.
        load: Load,
        /// Grants that it was told of and does not take any more.
        #[serde(with = "texts")]
        confirmed: Vec<GrantId>,
        /// What the controller does not know yet of the links that it measures.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        links: Option<Changes>,
    },
    /// A client wants a grant.
    Allocate {
        /// The same when the same is asked again.
        #[serde(with = "text")]
        request: RequestId,
        /// How many relays at most.
        relays: u8,
        /// How many relays at least.
        least: u8,
        /// PIDs at each.
        pids: u32,
        /// In bit/s, at each.
        rate: u64,
        /// Bytes in all, at each.
        bytes: u64,
        /// Highest type of service.
        tos: u8,
        /// In seconds.
        lifetime: u64,
    },
    /// A client needs a grant for longer.
    Renew {
        /// Its name.
        #[serde(with = "text")]
        grant: GrantId,
        /// From now on, in seconds.
        lifetime: u64,
    },
    /// How far relays are from each other, and from the relay at an address.
    Figures {
        /// At most 16.
        #[serde(with = "texts")]
        relays: Vec<PublicKey>,
        /// That of another one.
        to: Option<IpAddr>,
        /// Only what is known is asked for: nothing is measured for the answer.
        #[serde(default, skip_serializing_if = "is_false")]
        known: bool,
    },
    /// A client needs a grant no more.
    GiveBack {
        /// Its name.
        #[serde(with = "text")]
        grant: GrantId,
    },
}

/// What a controller answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// Spoken by the controller.
        version: u16,
    },
    /// To [`Request::Register`].
    Registered {
        /// What the controller signs grants with; nothing from one that does not tell.
        #[serde(default)]
        signs: String,
    },
    /// To [`Request::Heartbeat`].
    Heartbeat {
        /// What time it is, in seconds since 1970.
        time: u64,
        /// Grants that do not count any more.
        #[serde(with = "texts")]
        revoked: Vec<GrantId>,
        /// Up to which version the relay's links are known; 0 for nothing.
        #[serde(default)]
        known: u64,
        /// Its neighbours; nothing when they are as they were told last in this session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        neighbours: Option<Neighbours>,
    },
    /// To [`Request::Allocate`] and [`Request::Renew`].
    Granted {
        /// As signed, in base64.
        grant: String,
        /// Its relays, in the order of the grant.
        relays: Vec<GrantedRelay>,
    },
    /// To [`Request::Figures`].
    Figures {
        /// Of each pair of which something is known.
        figures: Vec<FiguresTold>,
        /// The relay at the address that was asked for, if there is one.
        #[serde(with = "texts")]
        node: Vec<PublicKey>,
        /// Those that are going down, and take no new paths.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[serde(with = "texts")]
        draining: Vec<PublicKey>,
        /// Those that have not been heard for a while.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[serde(with = "texts")]
        silent: Vec<PublicKey>,
    },
    /// To [`Request::GiveBack`].
    GivenBack,
    /// To any request: it is not done.
    Denied {
        /// Why, for people.
        why: String,
        /// Whether it may be answered otherwise.
        again: Again,
    },
}

/// Whether, and where, what was denied may be answered otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Again {
    /// This controller could not decide: another may.
    Elsewhere,
    /// It was decided as things are now; that may change.
    Later,
    /// Asking again is of no use.
    Never,
}

/// A relay in a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedRelay {
    /// Its key.
    #[serde(with = "text")]
    pub node: PublicKey,
    /// How it is reached.
    pub addresses: Vec<SocketAddr>,
}

/// Whom a relay measures, and by whom it is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbours {
    /// The relays that it measures.
    pub measure: Vec<GrantedRelay>,
    /// Those that measure it.
    #[serde(with = "texts")]
    pub measured_by: Vec<PublicKey>,
    /// Relays that it measures for a while, since somebody wants to know how far they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<GrantedRelay>,
}

/// What is known of the way from one relay to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiguresTold {
    /// From where.
    #[serde(with = "text")]
    pub from: PublicKey,
    /// To where.
    #[serde(with = "text")]
    pub to: PublicKey,
    /// Round-trip time in microseconds.
    pub rtt: u64,
    /// Lost on the way there, in 1/10,000.
    pub loss: u16,
    /// How wrong the time is likely to be, in 1/10,000 of it, when it was estimated; nothing when it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated: Option<u16>,
    /// What the way carries, and what others leave of it, in kbit/s; 0 when that is not known.
    #[serde(default)]
    pub kbits: [u64; 2],
}

impl FiguresTold {
    /// As it is told.
    #[must_use]
    pub fn new((from, to): (PublicKey, PublicKey), figures: &Figures) -> Self {
        let parts = |share: f64| (share.clamp(0.0, 1.0) * 1e4).round() as u16;
        let estimated = figures.estimated.map(parts);
        let kbits =
            [figures.capacity, figures.available].map(|rate| rate.map_or(0, |rate| rate.as_bits() / 1_000));
        Self { from, to, rtt: figures.rtt.as_micros(), loss: parts(figures.loss), estimated, kbits }
    }

    /// As it was known.
    #[must_use]
    pub fn figures(&self) -> Figures {
        // Nothing takes longer than a minute.
        let measured = Figures::measured(
            Span::from_micros(self.rtt.min(60_000_000)),
            f64::from(self.loss.min(10_000)) / 1e4,
        );
        let [capacity, available] =
            self.kbits.map(|kbits| (kbits > 0).then(|| Rate::from_bits(kbits.saturating_mul(1_000))));
        let estimated = self.estimated.map(|error| f64::from(error) / 1e4);
        Figures { estimated, capacity, available, ..measured }
    }
}

impl Request {
    /// The request for what is asked.
    #[must_use]
    pub fn allocate(ask: &Ask) -> Self {
        let Limits { pids, rate, bytes, highest_tos } = ask.limits;
        let Ask { request, relays, least, lifetime, .. } = *ask;
        Self::Allocate {
            request,
            relays,
            least,
            pids,
            rate: rate.as_bits(),
            bytes,
            tos: highest_tos,
            lifetime,
        }
    }

    /// What is asked for, of [`Request::Allocate`].
    #[must_use]
    pub fn ask(&self) -> Option<Ask> {
        let Self::Allocate { request, relays, least, pids, rate, bytes, tos, lifetime } = *self else {
            return None;
        };
        let limits = Limits { pids, rate: Rate::from_bits(rate), bytes, highest_tos: tos };
        Some(Ask { request, relays, least, limits, lifetime })
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put(out, self);
    }

    /// Reads the message at the start of `bytes` and how long it is; `None` while it is not complete.
    ///
    /// # Errors
    /// When it is none; the stream is then of no more use.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        take(bytes)
    }
}

impl Reply {
    /// The answer to something that was not done.
    #[must_use]
    pub fn denied(error: &ControlError) -> Self {
        let again = match error {
            ControlError::Store(_) | ControlError::Denied(Denied::ClockBehind(_) | Denied::Busy) => {
                Again::Elsewhere
            }
            ControlError::Denied(
                Denied::NoCapacity { .. } | Denied::RequestTime(_) | Denied::KeyInUse(_),
            ) => Again::Later,
            ControlError::Denied(_) => Again::Never,
        };
        Self::Denied { why: error.to_string(), again }
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put(out, self);
    }

    /// Reads the message at the start of `bytes` and how long it is; `None` while it is not complete.
    ///
    /// # Errors
    /// When it is none; the stream is then of no more use.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        take(bytes)
    }
}

fn put(out: &mut Vec<u8>, message: &impl Serialize) {
    // Maps with text keys and plain values: nothing in them cannot be written.
    let body = serde_json::to_vec(message).unwrap_or_default();
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(&body);
}

fn take<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<Option<(T, usize)>, MessageError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    let len = u32::from_be_bytes(*head) as usize;
    if len > MAX_BODY {
        return Err(MessageError::TooLong(len));
    }
    let Some(body) = rest.get(..len) else { return Ok(None) };
    let message = serde_json::from_slice(body).map_err(|_| MessageError::Invalid("control message"))?;
    Ok(Some((message, HEAD + len)))
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Values that are written as text.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|_| de::Error::custom("not what is written here"))
    }
}

/// Lists of values that are written as text.
pub(crate) mod texts {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<T: Display, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    pub fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let read = texts.iter().map(|text| text.parse());
        read.collect::<Result<_, _>>().map_err(|_| de::Error::custom("not what is written here"))
    }
}
