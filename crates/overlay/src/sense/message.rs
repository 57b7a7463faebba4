//! Messages between sensors, and reports to controllers.
//!
//! Between sensors: unreliable messages of a session, binary, big-endian.
//!
//! | message | bytes |
//! |---|---|
//! | probe | kind 0x01 (1), number (4) |
//! | answer | kind 0x02 (1), number (4), probes received (4), time of receipt in µs (8), coordinate: place on two axes and height in µs (4 each, signed), error in 1/10,000 (2) |
//! | packet of a train | kind 0x03 (1), number (4), index (2), packets of the train (2), when it left in µs (8), zeros up to 1,120 |
//! | end of a train | kind 0x04 (1), number (4) |
//! | report on a train | kind 0x05 (1), number (4); of the packets that came last: how many (2), how many were sent from the first to the last of them (2), µs between these two when they left (4) and when they came (4) |

use anabranch_secure::PublicKey;
use anabranch_wire::{Reader, Time};
use serde::{Deserialize, Serialize};

use super::coordinate::{Coordinate, Placed};
use crate::MessageError;

/// Size of a packet of a train, with IPv6 headers.
pub const CAR: u64 = 1_208;
/// Overhead of a message in an IPv6 packet: IP, UDP and packet headers, tag, head of the frame.
pub(super) const PACKET: u64 = 40 + 8 + 16 + 16 + 8;
const PROBE: u8 = 1;
const ANSWER: u8 = 2;
const PART: u8 = 3;
const END: u8 = 4;
const SEEN: u8 = 5;
/// Length of a train's packet as a message; with all headers it has [`CAR`] bytes.
const CAR_BYTES: usize = (CAR - PACKET) as usize;
/// Length of a train's packet without its padding.
const CAR_HEAD: usize = 1 + 4 + 2 + 2 + 8;

/// A probe of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Counted for each link from 1.
    pub number: u32,
}

/// The answer to a [`Probe`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// The number of the probe.
    pub number: u32,
    /// Probes received from that node so far, this one included.
    pub received: u32,
    /// When the probe arrived, by the answerer's clock, in microseconds.
    pub at: u64,
    /// The answerer's coordinate.
    pub coordinate: Coordinate,
}

/// A packet of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Car {
    /// The train's number.
    pub number: u32,
    /// Index of this packet, from 0.
    pub index: u16,
    /// Packets of the train.
    pub of: u16,
    /// When it left, by the sender's clock, in microseconds.
    pub at: u64,
}

/// The report on a train, about its packets that came last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The train's number.
    pub number: u32,
    /// Number of these packets.
    pub packets: u16,
    /// Number of packets sent from the first to the last of them.
    pub sent: u16,
    /// Time between sending the first and the last of them, in microseconds.
    pub left: u32,
    /// Time between their arrivals.
    pub came: u32,
}

/// Any message between sensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SenseMessage {
    /// See [`Probe`].
    Probe(Probe),
    /// See [`Answer`].
    Answer(Answer),
    /// See [`Car`].
    Car(Car),
    /// All packets of the train with this number have left.
    End(u32),
    /// See [`Seen`].
    Seen(Seen),
}

impl SenseMessage {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Probe(Probe { number }) => [&[PROBE][..], &number.to_be_bytes()].concat(),
            Self::Answer(Answer { number, received, at, coordinate }) => {
                let Placed([x, y, height], error) = Placed::from(*coordinate);
                [
                    &[ANSWER][..],
                    &number.to_be_bytes(),
                    &received.to_be_bytes(),
                    &at.to_be_bytes(),
                    &x.to_be_bytes(),
                    &y.to_be_bytes(),
                    &height.to_be_bytes(),
                    &error.to_be_bytes(),
                ]
                .concat()
            }
            Self::Car(Car { number, index, of, at }) => {
                let mut bytes = [
                    &[PART][..],
                    &number.to_be_bytes(),
                    &index.to_be_bytes(),
                    &of.to_be_bytes(),
                    &at.to_be_bytes(),
                ]
                .concat();
                bytes.resize(CAR_BYTES, 0);
                bytes
            }
            Self::End(number) => [&[END][..], &number.to_be_bytes()].concat(),
            Self::Seen(Seen { number, packets, sent, left, came }) => [
                &[SEEN][..],
                &number.to_be_bytes(),
                &packets.to_be_bytes(),
                &sent.to_be_bytes(),
                &left.to_be_bytes(),
                &came.to_be_bytes(),
            ]
            .concat(),
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut from = Reader::new(bytes);
        let message = match from.u8("kind")? {
            PROBE => Self::Probe(Probe { number: from.u32("number")? }),
            ANSWER => {
                let (number, received, at) = (from.u32("number")?, from.u32("count")?, from.u64("time")?);
                let mut place = || from.u32("coordinate").map(u32::cast_signed);
                let place = [place()?, place()?, place()?];
                let coordinate = Placed(place, from.u16("coordinate")?).into();
                Self::Answer(Answer { number, received, at, coordinate })
            }
            PART => {
                let (number, index, of) = (from.u32("number")?, from.u16("index")?, from.u16("length")?);
                let car = Car { number, index, of, at: from.u64("time")? };
                let padding = from.bytes("padding", CAR_BYTES - CAR_HEAD)?;
                if index >= of || padding.iter().any(|byte| *byte != 0) {
                    return Err(MessageError::Invalid("packet of a train"));
                }
                Self::Car(car)
            }
            END => Self::End(from.u32("number")?),
            SEEN => Self::Seen(Seen {
                number: from.u32("number")?,
                packets: from.u16("packets")?,
                sent: from.u16("packets")?,
                left: from.u32("time")?,
                came: from.u32("time")?,
            }),
            kind => return Err(MessageError::Unknown(kind)),
        };
        from.end()?;
        Ok(message)
    }
}

/// A link as its measurer reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTold {
    /// The other node.
    #[serde(with = "crate::controller::message::text")]
    pub to: PublicKey,
    /// Whether probes are answered.
    pub up: bool,
    /// Round-trip time, and its mean deviation, in microseconds.
    pub rtt: [u32; 2],
    /// Loss there and back, in 1/10,000.
    pub loss: [u16; 2],
    /// Queueing delay there and back, in microseconds.
    pub queue: [u32; 2],
    /// Unused part of the capacity in kbit/s, from trains; 0 if unknown.
    #[serde(default)]
    pub available: u32,
    /// Capacity towards the other node in kbit/s, from trains; 0 if unknown.
    #[serde(default)]
    pub capacity: u32,
}

/// Changes of a node's links that a controller does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The version that these changes follow; 0 if these are all links.
    pub since: u64,
    /// The version after these changes.
    pub version: u64,
    /// The node's coordinate.
    pub coordinate: Placed,
    pub links: Vec<LinkTold>,
    /// Nodes to which links are no longer measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(with = "crate::controller::message::texts")]
    pub gone: Vec<PublicKey>,
}

/// A node's clock in the microseconds of an answer.
pub(super) fn micros(now: Time) -> u64 {
    now.as_nanos() / 1_000
}
