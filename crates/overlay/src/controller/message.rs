//! Messages between a controller and relays or clients: one stream of a session, and one answer to each request, in
//! order.
//!
//! A message is the length of its body (4 bytes, big-endian) and the body, JSON of at most [`MAX_BODY`] bytes. There
//! are a few messages a second at most, and JSON is readable in traces. A reader skips fields that it does not know.

use std::net::{IpAddr, SocketAddr};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span};
use serde::{Deserialize, Serialize};

use super::{Ask, ControlError, Denied, Load, Offer};
use crate::MessageError;
use crate::grant::GrantId;
use crate::sense::{Changes, Figures};

/// Version of the control protocol.
pub const CONTROL_VERSION: u16 = 1;
/// Longest body, in bytes.
pub const MAX_BODY: usize = 64 << 10;

const HEAD: usize = 4;

/// A request to a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Request {
    /// The first message.
    Hello {
        /// The version of this side.
        version: u16,
    },
    /// A relay offers itself.
    Register {
        /// Drawn when the program started, to distinguish it from another machine with the same key.
        instance: u64,
        /// The offer.
        offer: Offer,
    },
    /// A registered relay is alive.
    Heartbeat {
        load: Load,
        /// Revoked grants that it confirms.
        #[serde(with = "texts")]
        confirmed: Vec<GrantId>,
        /// Changes of its links that the controller does not have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        links: Option<Changes>,
    },
    /// A client asks for a grant.
    Allocate(Ask),
    /// A client extends a grant.
    Renew {
        /// The grant's id.
        #[serde(with = "text")]
        grant: GrantId,
        /// New lifetime from now, in seconds.
        lifetime: u64,
    },
    /// Round-trip times and loss between relays, and to the relay at an address.
    Figures {
        /// The relays, at most 16.
        #[serde(with = "texts")]
        relays: Vec<PublicKey>,
        /// The address of one more relay.
        to: Option<IpAddr>,
        /// Asks only for known figures; nothing is measured for the answer.
        #[serde(default, skip_serializing_if = "is_false")]
        known: bool,
    },
    /// A client gives a grant back.
    GiveBack {
        /// The grant's id.
        #[serde(with = "text")]
        grant: GrantId,
    },
}

/// A controller's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// The version of the controller.
        version: u16,
    },
    /// To [`Request::Register`].
    Registered {
        /// The key that the controller signs grants with; absent from older controllers.
        #[serde(default)]
        signs: String,
    },
    /// To [`Request::Heartbeat`].
    Heartbeat {
        /// The controller's time, in seconds since 1970.
        time: u64,
        #[serde(with = "texts")]
        revoked: Vec<GrantId>,
        /// The version up to which the relay's links are known; 0 for none.
        #[serde(default)]
        known: u64,
        /// Its neighbours; absent if they are unchanged in this session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        neighbours: Option<Neighbours>,
    },
    /// To [`Request::Allocate`] and [`Request::Renew`].
    Granted {
        /// The signed grant in base64.
        grant: String,
        /// Its relays, in the order of the grant.
        relays: Vec<GrantedRelay>,
    },
    /// To [`Request::Figures`].
    Figures {
        /// One entry for each pair with known figures.
        figures: Vec<FiguresTold>,
        /// The relay at the requested address, if there is one.
        #[serde(with = "texts")]
        node: Vec<PublicKey>,
        /// Relays that are draining.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[serde(with = "texts")]
        draining: Vec<PublicKey>,
        /// Relays that are silent.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[serde(with = "texts")]
        silent: Vec<PublicKey>,
    },
    /// To [`Request::GiveBack`].
    GivenBack,
    /// The request is refused.
    Denied {
        /// The reason, for people.
        why: String,
        /// Whether another try may succeed.
        again: Again,
    },
}

/// Whether, and where, a refused request may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Again {
    /// This controller cannot decide; another may.
    Elsewhere,
    /// Refused for now; this may change.
    Later,
    /// Refused for good.
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedRelay {
    #[serde(with = "text")]
    pub node: PublicKey,
    pub addresses: Vec<SocketAddr>,
}

/// The relays that a relay measures, and the nodes that measure it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbours {
    /// The relays that it measures.
    pub measure: Vec<GrantedRelay>,
    /// Those that measure it.
    #[serde(with = "texts")]
    pub measured_by: Vec<PublicKey>,
    /// Relays that it measures for a while at a client's request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<GrantedRelay>,
}

/// Figures of the path from one relay to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiguresTold {
    /// The sending relay.
    #[serde(with = "text")]
    pub from: PublicKey,
    /// The receiving relay.
    #[serde(with = "text")]
    pub to: PublicKey,
    /// Round-trip time in microseconds.
    pub rtt: u64,
    /// Loss towards the receiver, in 1/10,000.
    pub loss: u16,
    /// Likely error of an estimated time, in 1/10,000 of it; absent for measured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated: Option<u16>,
    /// Capacity and unused rate, in kbit/s; 0 if unknown.
    #[serde(default)]
    pub kbits: [u64; 2],
}

impl FiguresTold {
    pub fn new((from, to): (PublicKey, PublicKey), figures: &Figures) -> Self {
        let parts = |share: f64| (share.clamp(0.0, 1.0) * 1e4).round() as u16;
        let estimated = figures.estimated.map(parts);
        let kbits =
            [figures.capacity, figures.available].map(|rate| rate.map_or(0, |rate| rate.as_bits() / 1_000));
        Self { from, to, rtt: figures.rtt.as_micros(), loss: parts(figures.loss), estimated, kbits }
    }

    pub fn figures(&self) -> Figures {
        // Round-trip times are at most a minute.
        let measured = Figures::measured(
            Span::from_micros(self.rtt.min(60_000_000)),
            f64::from(self.loss.min(10_000)) / 1e4,
        );
        let [capacity, available] =
            self.kbits.map(|kbits| (kbits > 0).then(|| Rate::from_bits(kbits.saturating_mul(1_000))));
        let estimated = self.estimated.map(|error| f64::from(error) / 1e4);
        Figures { estimated, ..measured.with_rates(capacity, available) }
    }
}

impl Request {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put(out, self);
    }

    /// Reads the message at the start of `bytes` and how long it is; `None` while it is not complete.
    ///
    /// # Errors
    /// When the bytes are not a message; the stream cannot be read further then.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        take(bytes)
    }
}

impl Reply {
    /// The answer that refuses a request.
    pub fn denied(error: &ControlError) -> Self {
        let again = match error {
            ControlError::Store(_) | ControlError::Denied(Denied::ClockBehind(_) | Denied::Busy) => {
                Again::Elsewhere
            }
            ControlError::Denied(
                Denied::Crowded | Denied::NoCapacity { .. } | Denied::RequestTime(_) | Denied::KeyInUse(_),
            ) => Again::Later,
            ControlError::Denied(_) => Again::Never,
        };
        Self::Denied { why: error.to_string(), again }
    }

    /// Drops the addresses of relays that may not be tried, and neighbours that have no others.
    pub fn retain_addresses(&mut self, may_try: impl Fn(SocketAddr) -> bool) {
        let retain = |relays: &mut Vec<GrantedRelay>| {
            relays.iter_mut().for_each(|relay| relay.addresses.retain(|address| may_try(*address)));
        };
        match self {
            Self::Granted { relays, .. } => retain(relays),
            Self::Heartbeat { neighbours: Some(neighbours), .. } => {
                for relays in [&mut neighbours.measure, &mut neighbours.wanted] {
                    retain(relays);
                    relays.retain(|relay| !relay.addresses.is_empty());
                }
            }
            _ => {}
        }
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put(out, self);
    }

    /// Reads the message at the start of `bytes` and how long it is; `None` while it is not complete.
    ///
    /// # Errors
    /// When the bytes are not a message; the stream cannot be read further then.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        take(bytes)
    }
}

fn put(out: &mut Vec<u8>, message: &impl Serialize) {
    // Maps with text keys and plain values always serialise.
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

/// Serialises a value as text.
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

/// Serialises a list of values as text.
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
