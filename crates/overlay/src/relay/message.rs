//! Messages between a client and a relay, on one stream of their session.
//!
//! A message is a kind (1 byte), the length of its body (2 bytes) and the body; numbers are big-endian.
//! `docs/reference/protocol.md` has the table. A reader never holds more than [`MAX_MESSAGE`] bytes.

use std::net::SocketAddr;

use anabranch_secure::{PublicKey, ShareId, TicketSecret};
use anabranch_wire::{PathId, Pid, Rate, Reader, put_address};

use super::types::FlowId;
use crate::codec::MessageError;
use crate::grant::{GrantId, Limits, MAX_GRANT_LEN};

/// Version of the relay protocol.
pub const RELAY_VERSION: u16 = 1;
/// Longest message with its head, in bytes.
pub const MAX_MESSAGE: usize = HEAD + MAX_GRANT_LEN;

const HEAD: usize = 3;
const MAGIC: [u8; 4] = *b"ANBR";

/// A flow's next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address. `key` is needed while the outgoing PID is [`Pid::HANDSHAKE`]: a next hop answers only a relay that knows
    /// its key.
    Address {
        /// The next hop.
        address: SocketAddr,
        key: Option<PublicKey>,
    },
    /// The host whose guest this session is.
    Host,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message.
    Hello {
        /// The version that the client speaks.
        version: u16,
    },
    /// Shows a signed grant.
    Show {
        /// As the controller signed it.
        grant: Vec<u8>,
    },
    /// Asks for a flow: a PID in each direction.
    Allocate {
        /// Chosen by the client, to match the answer.
        request: u32,
        /// The path of this session from whose address the client will send.
        via: PathId,
        /// The destination of the flow.
        target: Target,
        /// The next hop's PID; [`Pid::HANDSHAKE`] before one is assigned.
        out: Pid,
        /// The client's PID for return packets.
        back: Pid,
    },
    /// Changes a flow's outgoing PIDs.
    Redirect {
        flow: FlowId,
        /// The next hop's PID.
        out: Pid,
        /// The client's PID; 0 to keep it.
        back: Pid,
    },
    /// Releases a flow.
    Release { flow: FlowId },
    /// Makes this client reachable for the holders of a ticket, on its quota.
    Host {
        /// The ticket's share.
        share: ShareId,
        /// Hash of the ticket's secret, with which guests authenticate.
        hash: TicketSecret,
        /// Most flows of all guests of this share together.
        flows: u32,
    },
    /// Ends [`Request::Host`].
    Unhost {
        /// The registered share.
        share: ShareId,
    },
}

/// A relay's answer or notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The answer to [`Request::Hello`].
    Hello {
        /// The version that the relay speaks.
        version: u16,
    },
    /// The answer to [`Request::Show`]: the grant is valid.
    Granted {
        id: GrantId,
        /// The client's limits by all its grants; bytes are those left.
        limits: Limits,
    },
    /// The answer to [`Request::Allocate`]. The client may send when [`FlowState::Ready`] follows.
    Allocated {
        /// The number of the request.
        request: u32,
        flow: FlowId,
        /// The PID for packets to the relay.
        forward: Pid,
        /// The PID that the next hop puts on packets to the relay.
        back: Pid,
    },
    /// A request is refused.
    Refused {
        /// The number of the request; 0 if it had none.
        request: u32,
        why: Refused,
    },
    /// A flow's state has changed.
    Flow {
        flow: FlowId,
        /// Its state now.
        state: FlowState,
    },
    /// The answer to [`Request::Host`].
    Hosting {
        /// The registered share.
        share: ShareId,
    },
    /// The relay is being drained: flows end after this time, and no new ones begin until it is restarted.
    Draining {
        /// Seconds left.
        seconds: u32,
    },
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$note])* #[doc = $text] $variant = $code,)* }

        impl $name {
            fn from_wire(code: u8) -> Result<Self, MessageError> {
                match code {
                    $($code => Ok(Self::$variant),)*
                    _ => Err(MessageError::Invalid(stringify!($name))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

codes! {
    /// Why a relay refuses.
    Refused {
        NoHello = 1, "the first message must be a greeting";
        Version = 2, "the relay speaks another version: update the older side";
        NotGranted = 3, "this key may not use the relay: show a grant or have the key listed";
        TooManyPids = 4, "the grant allows no more paths at the same time";
        TableFull = 5, "the relay has no room for another path";
        NextHopDenied = 6, "the relay does not forward to this next hop";
        NoSuchPath = 7, "the session has no proven path of this id";
        NoSuchFlow = 8, "the session has no such flow";
        Draining = 9, "the relay is drained: it takes no paths until it is restarted";
        TooManyPending = 10, "too many next hops have not answered yet, or were asked in a short time";
        QuotaUsed = 11, "the bytes that it forwards for this key are used up: a new grant, or more `bytes` for the key in the relay's configuration, would let it go on";
        NoHost = 12, "the host is not there";
        GrantMalformed = 13, "the grant is malformed";
        GrantSignature = 14, "no controller that the relay trusts has signed the grant: have its operator look with `anabranch relay status` whether `signs` in its configuration is what the controller signs with";
        GrantOtherClient = 15, "the grant belongs to another key";
        GrantOtherRelay = 16, "the grant is for other relays";
        GrantNotYet = 17, "the grant is not valid yet: are the clocks right?";
        GrantExpired = 18, "the grant has expired by this relay's clock, which may be wrong until it has heard its controller: ask the controller for a new one";
        GrantRevoked = 19, "the grant was revoked";
        TooManyGrants = 20, "the relay can remember no more grants";
        TooManyShares = 21, "too many shares are registered";
        ShareTaken = 22, "the share is registered by another node";
        BadPid = 23, "PID 0 carries first handshake messages only";
        KeyNeeded = 24, "a next hop without a PID is asked by its key, which is missing";
        NoExit = 25, "the relay has no address of the next hop's family";
        NextHopOwn = 26, "the next hop is the relay's own address";
        NextHopExcluded = 27, "the relay's configuration excludes this next hop";
    }
}

impl Refused {
    /// Whether it concerns the next hop.
    pub fn is_of_a_next_hop(self) -> bool {
        matches!(self, Self::NextHopDenied | Self::NoExit | Self::NextHopOwn | Self::NextHopExcluded)
    }

    /// Whether it refuses a grant that was shown.
    pub fn is_of_a_grant(self) -> bool {
        matches!(
            self,
            Self::GrantMalformed
                | Self::GrantSignature
                | Self::GrantOtherClient
                | Self::GrantOtherRelay
                | Self::GrantNotYet
                | Self::GrantExpired
                | Self::GrantRevoked
                | Self::TooManyGrants
        )
    }
}

codes! {
    /// The state of a flow.
    FlowState {
        Ready = 1, "the next hop agreed: packets are forwarded";
        NoConsent = 2, "over: the next hop did not agree, or does not any more";
        GrantEnded = 3, "over: the grant that allowed it ended";
        Released = 4, "over: given back";
        PathGone = 5, "over: the client's, the host's or the relay's address is gone";
        Drained = 6, "over: the relay went down";
        Denied = 7, "over: the relay's configuration does not allow it any more";
        QuotaUsed = 8, "over: the bytes that the relay forwards for this key are used up";
    }
}

mod kind {
    pub const HELLO: u8 = 0x01;
    pub const SHOW: u8 = 0x02;
    pub const ALLOCATE: u8 = 0x03;
    pub const REDIRECT: u8 = 0x04;
    pub const RELEASE: u8 = 0x05;
    pub const HOST: u8 = 0x06;
    pub const UNHOST: u8 = 0x07;
    pub const REPLY_HELLO: u8 = 0x81;
    pub const GRANTED: u8 = 0x82;
    pub const ALLOCATED: u8 = 0x83;
    pub const REFUSED: u8 = 0x84;
    pub const FLOW: u8 = 0x85;
    pub const HOSTING: u8 = 0x86;
    pub const DRAINING: u8 = 0x87;
}

const TARGET_HOST: u8 = 0;
const TARGET_ADDRESS: u8 = 1;
const TARGET_ADDRESS_KEY: u8 = 2;

fn put(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.push(kind);
    out.extend_from_slice(&(len as u16).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Kind, body and whole length of a message.
type Parts<'a> = (u8, &'a [u8], usize);

/// The message at the start of `bytes`; `None` while it is not complete.
fn split(bytes: &[u8]) -> Result<Option<Parts<'_>>, MessageError> {
    let Some((&[kind, l0, l1], rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    if HEAD + len > MAX_MESSAGE {
        return Err(MessageError::TooLong(HEAD + len));
    }
    Ok(rest.get(..len).map(|body| (kind, body, HEAD + len)))
}

impl Request {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version } => put(out, kind::HELLO, &[&MAGIC, &version.to_be_bytes()]),
            Self::Show { grant } => put(out, kind::SHOW, &[&grant[..grant.len().min(MAX_GRANT_LEN)]]),
            Self::Allocate { request, via, target, out: pid, back } => {
                let mut place = Vec::new();
                match target {
                    Target::Host => place.push(TARGET_HOST),
                    Target::Address { address, key } => {
                        place.push(if key.is_some() { TARGET_ADDRESS_KEY } else { TARGET_ADDRESS });
                        put_address(*address, &mut place);
                        place.extend(key.iter().flat_map(|key| *key.as_bytes()));
                    }
                }
                let [request, via] = [request, &via.0].map(|number| number.to_be_bytes());
                let [pid, back] = [pid, back].map(|pid| pid.0.to_be_bytes());
                put(out, kind::ALLOCATE, &[&request, &via, &pid, &back, &place]);
            }
            Self::Redirect { flow, out: pid, back } => {
                let [pid, back] = [pid, back].map(|pid| pid.0.to_be_bytes());
                put(out, kind::REDIRECT, &[&flow.0.to_be_bytes(), &pid, &back]);
            }
            Self::Release { flow } => put(out, kind::RELEASE, &[&flow.0.to_be_bytes()]),
            Self::Host { share, hash, flows } => {
                put(out, kind::HOST, &[&share.0.to_be_bytes(), hash.expose(), &flows.to_be_bytes()]);
            }
            Self::Unhost { share } => put(out, kind::UNHOST, &[&share.0.to_be_bytes()]),
        }
    }

    /// Reads the message at the start of `bytes` and how long it is; `None` while it is not complete.
    ///
    /// # Errors
    /// When the bytes are not a message; the stream cannot be read further then.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        let Some((kind, body, len)) = split(bytes)? else { return Ok(None) };
        let mut reader = Reader::new(body);
        let message = match kind {
            kind::HELLO => return Ok(Some((Self::Hello { version: hello(&mut reader)? }, len))),
            kind::SHOW => return Ok(Some((Self::Show { grant: body.to_vec() }, len))),
            kind::ALLOCATE => Self::Allocate {
                request: reader.u32("request")?,
                via: PathId(reader.u32("path")?),
                out: Pid(reader.u64("PID")?),
                back: Pid(reader.u64("PID")?),
                target: target(&mut reader)?,
            },
            kind::REDIRECT => Self::Redirect {
                flow: FlowId(reader.u64("flow")?),
                out: Pid(reader.u64("PID")?),
                back: Pid(reader.u64("PID")?),
            },
            kind::RELEASE => Self::Release { flow: FlowId(reader.u64("flow")?) },
            kind::HOST => Self::Host {
                share: ShareId(reader.u64("share")?),
                hash: TicketSecret::from_random(reader.array("hash")?),
                flows: reader.u32("number of flows")?,
            },
            kind::UNHOST => Self::Unhost { share: ShareId(reader.u64("share")?) },
            _ => return Err(MessageError::Unknown(kind)),
        };
        reader.end()?;
        Ok(Some((message, len)))
    }
}

impl Reply {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version } => put(out, kind::REPLY_HELLO, &[&MAGIC, &version.to_be_bytes()]),
            Self::Granted { id, limits } => {
                let numbers = [limits.rate.as_bits(), limits.bytes].map(u64::to_be_bytes);
                let parts =
                    [&id.0, &limits.pids.to_be_bytes()[..], numbers.as_flattened(), &[limits.highest_tos]];
                put(out, kind::GRANTED, &parts);
            }
            Self::Allocated { request, flow, forward, back } => {
                let numbers = [flow.0, forward.0, back.0].map(u64::to_be_bytes);
                put(out, kind::ALLOCATED, &[&request.to_be_bytes(), numbers.as_flattened()]);
            }
            Self::Refused { request, why } => {
                put(out, kind::REFUSED, &[&request.to_be_bytes(), &[*why as u8]]);
            }
            Self::Flow { flow, state } => put(out, kind::FLOW, &[&flow.0.to_be_bytes(), &[*state as u8]]),
            Self::Hosting { share } => put(out, kind::HOSTING, &[&share.0.to_be_bytes()]),
            Self::Draining { seconds } => put(out, kind::DRAINING, &[&seconds.to_be_bytes()]),
        }
    }

    /// Reads the message at the start of `bytes` and how long it is; `None` while it is not complete.
    ///
    /// # Errors
    /// When the bytes are not a message; the stream cannot be read further then.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        let Some((kind, body, len)) = split(bytes)? else { return Ok(None) };
        let mut reader = Reader::new(body);
        let message = match kind {
            kind::REPLY_HELLO => return Ok(Some((Self::Hello { version: hello(&mut reader)? }, len))),
            kind::GRANTED => Self::Granted {
                id: GrantId(reader.array("grant id")?),
                limits: Limits {
                    pids: reader.u32("number of PIDs")?,
                    rate: Rate::from_bits(reader.u64("rate")?),
                    bytes: reader.u64("bytes")?,
                    highest_tos: reader.u8("type of service")?,
                },
            },
            kind::ALLOCATED => Self::Allocated {
                request: reader.u32("request")?,
                flow: FlowId(reader.u64("flow")?),
                forward: Pid(reader.u64("PID")?),
                back: Pid(reader.u64("PID")?),
            },
            kind::REFUSED => Self::Refused {
                request: reader.u32("request")?,
                why: Refused::from_wire(reader.u8("reason")?)?,
            },
            kind::FLOW => Self::Flow {
                flow: FlowId(reader.u64("flow")?),
                state: FlowState::from_wire(reader.u8("state")?)?,
            },
            kind::HOSTING => Self::Hosting { share: ShareId(reader.u64("share")?) },
            kind::DRAINING => Self::Draining { seconds: reader.u32("seconds")? },
            _ => return Err(MessageError::Unknown(kind)),
        };
        reader.end()?;
        Ok(Some((message, len)))
    }
}

/// Decodes a greeting; skips fields that a later version may append.
fn hello(reader: &mut Reader<&[u8]>) -> Result<u16, MessageError> {
    if reader.array("greeting")? != MAGIC {
        return Err(MessageError::Invalid("greeting"));
    }
    Ok(reader.u16("version")?)
}

fn target(reader: &mut Reader<&[u8]>) -> Result<Target, MessageError> {
    match reader.u8("target")? {
        TARGET_HOST => Ok(Target::Host),
        TARGET_ADDRESS => Ok(Target::Address { address: reader.address()?, key: None }),
        TARGET_ADDRESS_KEY => {
            let address = reader.address()?;
            Ok(Target::Address { address, key: Some(PublicKey::from_bytes(reader.array("key")?)) })
        }
        _ => Err(MessageError::Invalid("target")),
    }
}
