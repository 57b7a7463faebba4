//! What sensors say to each other, and to controllers.
//!
//! Between sensors: unreliable messages of a session, binary, big-endian.
//!
//! | message | bytes |
//! |---|---|
//! | probe | kind 0x01 (1), number (4) |
//! | answer | kind 0x02 (1), number (4), probes received (4), time of receipt in µs (8), coordinate: place on two axes and height in µs (4 each, signed), error in 1/10,000 (2) |

use anabranch_secure::PublicKey;
use anabranch_wire::Time;
use serde::{Deserialize, Serialize};

use super::coordinate::{Coordinate, Placed};
use crate::MessageError;
use crate::codec::Cursor;

const PROBE: u8 = 1;
const ANSWER: u8 = 2;

/// A question how long the way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Counted for each link from 1 on.
    pub number: u32,
}

/// The answer to a [`Probe`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// The probe's.
    pub number: u32,
    /// Probes that came from there so far, this one included.
    pub received: u32,
    /// When it came, by the answerer's clock, in microseconds.
    pub at: u64,
    /// Where the answerer is.
    pub coordinate: Coordinate,
}

/// Either of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SenseMessage {
    /// See [`Probe`].
    Probe(Probe),
    /// See [`Answer`].
    Answer(Answer),
}

impl SenseMessage {
    /// As bytes.
    #[must_use]
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
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut from = Cursor(bytes);
        let message = match from.u8("kind")? {
            PROBE => Self::Probe(Probe { number: from.u32("number")? }),
            ANSWER => {
                let (number, received, at) = (from.u32("number")?, from.u32("count")?, from.u64("time")?);
                let mut place = || from.u32("coordinate").map(u32::cast_signed);
                let place = [place()?, place()?, place()?];
                let coordinate = Placed(place, from.u16("coordinate")?).into();
                Self::Answer(Answer { number, received, at, coordinate })
            }
            kind => return Err(MessageError::Unknown(kind)),
        };
        from.end()?;
        Ok(message)
    }
}

/// A link as its measurer tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTold {
    /// Where it leads.
    #[serde(with = "crate::controller::message::text")]
    pub to: PublicKey,
    /// Whether anything gets through.
    pub up: bool,
    /// Round-trip time, and its mean deviation, in microseconds.
    pub rtt: [u32; 2],
    /// Lost there and back, in 1/10,000.
    pub loss: [u16; 2],
    /// How much longer than at best a packet takes there and back, in microseconds: what waits in queues.
    pub queue: [u32; 2],
    /// What live traffic got through of late, in kbit/s: so much is available at least. 0 when there was none.
    pub carried: u32,
}

/// What a controller does not know yet of a node's links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The controller knows the node up to this version; 0 when these are all links that there are.
    pub since: u64,
    /// Up to which version it will know it.
    pub version: u64,
    /// Where the node is.
    pub coordinate: Placed,
    /// Links that changed.
    pub links: Vec<LinkTold>,
    /// Nodes to which links are not measured any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(with = "crate::controller::message::texts")]
    pub gone: Vec<PublicKey>,
}

/// A node's clock in the microseconds of an answer.
pub(super) fn micros(now: Time) -> u64 {
    now.as_nanos() / 1_000
}
