//! The messages between two engines: two for the handshake, then packets of frames.

use smallvec::SmallVec;

use crate::{Frame, Fsn, PathId, Pid, ResetToken};

/// The frames of one packet. Most packets have one, which needs no allocation.
pub type Frames<P> = SmallVec<[Frame<P>; 1]>;

/// A packet on one path: its number and its frames.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet<P> {
    /// The path it travels on.
    pub path: PathId,
    /// Its number on that path.
    pub fsn: Fsn,
    pub frames: Frames<P>,
}

/// Anything one engine hands to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Message<P> {
    /// First message of the handshake (INIT of MPMTP-AR [R3]).
    Init(Params),
    /// Second message; the third is the client's first packet.
    InitAck(Params),
    /// Any later packet.
    Packet(Packet<P>),
    /// The other end has lost the session (RFC 9000 §10.3).
    Reset(ResetToken),
}

/// The parameters that each end announces in the handshake (MPMTP-AR [R3]: initial sequence number, receive window and
/// number of paths). Stream offsets and packet numbers always begin at 0. They are sealed, so random initial numbers
/// would add no protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// PID for packets to the sender on [`PathId::FIRST`].
    pub pid: Pid,
    /// Reset token belonging to that PID.
    pub reset_token: ResetToken,
    /// Bytes the peer may send in all before it receives more credit.
    pub initial_max_data: u64,
    /// Bytes the peer may send on each stream before it receives more credit.
    pub initial_max_stream_data: u64,
    /// Streams the peer may open before it receives more credit.
    pub initial_max_streams: u64,
    /// Paths that may be open at the same time.
    pub max_paths: u32,
    /// Largest UDP payload the sender is willing to receive.
    pub max_udp_payload: u16,
    /// Largest datagram payload the sender accepts; 0 for none.
    pub max_datagram: u16,
    /// Milliseconds without a packet after which the sender drops the session; 0 for never.
    pub idle_timeout_ms: u32,
    /// Longest delay of the sender's acknowledgements, in microseconds.
    pub max_ack_delay_us: u32,
    /// Most datagrams in a block that the sender repairs, at most [`MAX_BLOCK`](crate::MAX_BLOCK). With 0 it wants no
    /// parity and no datagram numbers.
    pub max_block: u8,
    /// The classes whose datagrams should carry positions, one bit each.
    pub ordered_classes: u16,
    /// Acknowledgements should report when packets arrived.
    pub arrival_times: bool,
    /// The sender keeps to the rates that the peer sets for paths.
    pub path_rates: bool,
}

impl<P> Message<P> {
    /// The packet in this message, if it is one.
    pub fn packet(&self) -> Option<&Packet<P>> {
        match self {
            Self::Packet(packet) => Some(packet),
            _ => None,
        }
    }
}
