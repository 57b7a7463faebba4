//! The frames inside a sealed packet. `docs/reference/protocol.md` draws each one.

use std::fmt;
use std::net::SocketAddr;

use subtle::ConstantTimeEq;

use crate::{ArrivalTime, Fsn, PathId, Payload, Pid, Ranges, Span, StreamId};

/// One frame of a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame<P> {
    /// Asks for an acknowledgement, nothing else.
    Ping,
    /// Fills a path MTU probe up to its size, with this many zero bytes.
    Padding(u16),
    /// Packets received on one path (MPMTP-AR [R7], mTCP [M3]).
    Ack(Ack),
    /// Bytes of a stream.
    Stream(StreamFrame<P>),
    /// The sender gives up its half of the stream, with `final_size` as its length.
    ResetStream {
        stream: StreamId,
        /// The application's reason.
        code: u64,
        /// Bytes the stream counts against flow control.
        final_size: u64,
    },
    /// The reader wants no more of the stream.
    StopSending {
        stream: StreamId,
        /// The application's reason.
        code: u64,
    },
    /// Credit: the sum of all streams' offsets may reach `limit` bytes (MPTCP §6 [P3]: absolute).
    MaxData {
        /// Bytes over the whole session, counted from its start.
        limit: u64,
    },
    /// Credit of one stream, and the end of its data that arrived without a gap: the cumulative TSN [R7].
    MaxStreamData {
        stream: StreamId,
        /// The offset that the sender may reach.
        limit: u64,
        /// All bytes below this offset have been received.
        received: u64,
    },
    /// The receiver of this frame may open streams up to a total of `limit`.
    MaxStreams {
        /// Streams opened by the receiver of this frame, counted from the session's start.
        limit: u64,
    },
    /// An unreliable message.
    Datagram(DatagramFrame<P>),
    /// An unreliable message with a number, to recognise copies, or with a position in an order.
    Marked(MarkedFrame<P>),
    /// Parity that restores lost unreliable messages (PSMC [T8]).
    Parity(ParityFrame<P>),
    /// Asks the other end of a path to prove that it is there.
    PathChallenge {
        /// To be echoed.
        token: u64,
    },
    /// The echo of a challenge, sent on the challenge's path.
    PathResponse {
        /// The challenge's token.
        token: u64,
    },
    /// Provides the peer with a PID for packets on a path: required before the path can be opened.
    NewPid(NewPid),
    /// The sender stops using this path and never uses its id again.
    PathAbandon {
        path: PathId,
        /// One of the codes in `docs/reference/protocol.md`.
        reason: u64,
    },
    /// How the sender would like a path to be used.
    PathStatus(PathStatus),
    /// The total limit of a path. Each packet counts [`PACKET_COST`] more than its UDP payload, at least as much as a
    /// provider counts. The highest limit received is valid; before the first, there is no limit.
    MaxPathData {
        path: PathId,
        /// Bytes since the path was opened.
        limit: u64,
    },
    /// The rate that the sender of the frame wants not to be exceeded on a path towards it (PSMC [T8]).
    MaxPathRate(PathRate),
    /// Names the path that acknowledgements return on, or withdraws the choice (mTCP §3.1.5 [M7, M13]).
    AckPath(AckPath),
    /// An address at which the sender can be reached.
    AddAddress(AddressFrame),
    /// The address with this id is gone.
    RemoveAddress {
        /// The id under which it was added.
        id: u64,
    },
    /// The address that the receiver of this frame appears to have on `path`.
    ObservedAddress {
        path: PathId,
        /// As seen by the sender of the frame.
        address: SocketAddr,
    },
    /// A receiver report (MPMTP-AR §3.6 [R6]).
    Report(Report),
    /// A fresh public key for packet protection.
    KeyExchange(KeyExchange),
    /// The sender has no more data and asks to close (SHUTDOWN of [R3]).
    Shutdown,
    /// Answers [`Frame::Shutdown`] after all data has been sent and acknowledged.
    ShutdownAck,
    /// The session ends now.
    Close(Close),
}

/// The packets received on one path: cumulative when the lowest range begins at 0, selective beyond it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ack {
    /// The path whose packets are acknowledged; the frame itself may travel on another.
    pub path: PathId,
    /// Time from the arrival of the highest packet number to the sending of this frame.
    pub delay: Span,
    /// When the highest packet number arrived, for a peer that asks (`arrival_times`).
    pub arrived: Option<ArrivalTime>,
    /// Packet numbers received, highest first.
    pub ranges: Ranges,
    /// ECN marks seen on the path so far, when its packets carry ECT.
    pub ecn: Option<EcnCounts>,
}

/// Packets received with each ECN codepoint since the path was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EcnCounts {
    /// ECT(0).
    pub ect0: u64,
    /// ECT(1).
    pub ect1: u64,
    /// Congestion experienced.
    pub ce: u64,
}

/// Bytes of a stream from `offset`, which is their TSN (MPMTP-AR [R4], MPTCP [P3]).
#[derive(Clone, Debug, PartialEq)]
pub struct StreamFrame<P> {
    pub stream: StreamId,
    /// Position of the first byte.
    pub offset: u64,
    /// The stream ends after these bytes.
    pub fin: bool,
    /// The bytes.
    pub data: P,
}

/// An unreliable message and what a scheduler needs to know about it.
#[derive(Clone, Debug, PartialEq)]
pub struct DatagramFrame<P> {
    /// Type of service, 0 (lowest) to 15 [R11].
    pub class: u8,
    /// Hash of the inner flow, so that a flow can stay on one path; 0 without a flow.
    pub flow: u32,
    /// The message.
    pub data: P,
}

/// An unreliable message with its number, its position, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct MarkedFrame<P> {
    /// The message.
    pub datagram: DatagramFrame<P>,
    /// Recognises copies: counted over the class.
    pub number: Option<DatagramNumber>,
    /// Its position among the messages of its class and [lane](order_lane), from 0.
    pub place: Option<u64>,
}

/// Distinguishes a message from others of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramNumber {
    /// The number, from 0.
    pub value: u64,
    /// It belongs to a block for which parity may follow.
    pub is_coded: bool,
}

/// Bytes that parity covers of a message in addition to its data: flow (4), length (2), position + 1 or 0 (6).
pub const CODED_HEAD: usize = 12;
/// Most messages in a block, and most pieces of parity for one.
pub const MAX_BLOCK: u8 = 32;
/// Lanes of a class: flows with the same `flow % ORDER_LANES` share a lane.
pub const ORDER_LANES: u32 = 64;

/// The lane in which a flow's messages are numbered.
pub const fn order_lane(flow: u32) -> u8 {
    (flow % ORDER_LANES) as u8
}

/// One piece of parity for a block of coded messages. As many pieces as lost messages restore these.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityFrame<P> {
    /// The class of the messages.
    pub class: u8,
    /// Number of the first message; the others follow without a gap.
    pub first: u64,
    /// How many messages, 1 to [`MAX_BLOCK`].
    pub count: u8,
    /// How many pieces of parity, 1 to [`MAX_BLOCK`].
    pub parities: u8,
    /// Index of this piece, from 0.
    pub index: u8,
    /// Parity of the messages' [coded heads](CODED_HEAD).
    pub head: [u8; CODED_HEAD],
    /// Parity of their data, each padded with zeros to the longest and to an even length.
    pub data: P,
}

/// Sixteen bytes that only the issuer of a PID can compute, sent after it has lost its state. They end the session, so
/// they are compared in constant time and never printed.
#[derive(Clone, Copy, Default)]
pub struct ResetToken(pub [u8; 16]);

impl fmt::Debug for ResetToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetToken(not shown)")
    }
}

impl PartialEq for ResetToken {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for ResetToken {}

/// A PID for packets towards the sender of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPid {
    /// The path it is for.
    pub path: PathId,
    /// Random, chosen by the receiver of packets.
    pub pid: Pid,
    /// The token of a stateless reset from this end.
    pub reset_token: ResetToken,
}

/// Most bytes that a packet costs on the network in addition to its UDP payload: headers of IPv6 and UDP.
pub const PACKET_COST: u64 = 48;

/// How a path should be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathUse {
    /// Like any other.
    #[default]
    Normal,
    /// Only while the normal paths are full, or none works.
    Overflow,
    /// Only while no normal path works.
    Backup,
    /// Only while neither a normal nor a backup path works, because its bytes cost money.
    Metered,
    /// For probes only.
    Standby,
}

/// The requested use of a path; the highest `sequence` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    pub path: PathId,
    /// Increases with every request for this path.
    pub sequence: u64,
    /// The requested use.
    pub usage: PathUse,
}

/// The highest rate on a path; the highest `sequence` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRate {
    /// The path.
    pub path: PathId,
    /// Increases with every request for this path.
    pub sequence: u64,
    /// UDP payload in bits a second; 0 for any rate.
    pub bits: u64,
}

/// The path that acknowledgements return on; the highest `sequence` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPath {
    /// Increases with every choice.
    pub sequence: u64,
    /// `None`: each acknowledgement returns on the path it acknowledges.
    pub path: Option<PathId>,
}

/// An address at which the sender can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressFrame {
    /// Names the address in a later [`Frame::RemoveAddress`].
    pub id: u64,
    /// The address and port.
    pub address: SocketAddr,
}

/// A receiver's report on one path (MPMTP-AR §3.6 [R6]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub path: PathId,
    /// Bytes of UDP payload received correctly on it so far.
    pub bytes: u64,
    /// Packets received correctly on it so far.
    pub packets: u64,
    /// Highest packet number received on it.
    pub highest_fsn: Fsn,
    /// Highest stream offset received on it (the highest TSN).
    pub highest_tsn: u64,
}

/// One end's half of a fresh key exchange. The client offers one, and the server answers it under the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyExchange {
    /// Counts the exchanges of a session from 1.
    pub number: u64,
    /// An X25519 public key (RFC 7748), used for this exchange only.
    pub key: [u8; 32],
}

/// Why a session ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// 0 for a normal end; the codes are in `docs/reference/protocol.md`.
    pub code: u64,
    /// For people; at most 255 bytes of UTF-8.
    pub reason: String,
}

impl<P: Payload> Frame<P> {
    /// True when the frame obliges the receiver to acknowledge the packet.
    pub fn is_ack_eliciting(&self) -> bool {
        !matches!(self, Self::Ack(_) | Self::Padding(_) | Self::Close(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, Params};

    #[test]
    fn a_reset_token_is_equal_only_to_the_same_one() {
        let token = ResetToken([0x5a; 16]);
        assert_eq!(token, ResetToken([0x5a; 16]));
        for bit in 0..128 {
            let mut other = token;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(token, other, "bit {bit}");
        }
    }

    #[test]
    fn a_reset_token_is_never_printed() {
        let reset_token = ResetToken([0x5a; 16]);
        let new = NewPid { path: PathId(1), pid: Pid(2), reset_token };
        let params = Params {
            pid: Pid(1),
            reset_token,
            initial_max_data: 1,
            initial_max_stream_data: 1,
            initial_max_streams: 1,
            max_paths: 1,
            max_udp_payload: 1,
            max_datagram: 1,
            idle_timeout_ms: 1,
            max_ack_delay_us: 1,
            max_block: 1,
            ordered_classes: 1,
            arrival_times: true,
            path_rates: true,
        };
        let messages: [Message<bytes::Bytes>; 2] = [Message::Reset(reset_token), Message::Init(params)];
        let shown = format!("{reset_token:?} {new:?} {messages:?} {:#?}", Frame::<bytes::Bytes>::NewPid(new));
        assert!(!shown.contains("90") && !shown.to_lowercase().contains("5a"), "{shown}");
    }
}
