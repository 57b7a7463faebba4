//! Events and other values that the engine's user drains.

use std::net::SocketAddr;

use anabranch_cc::LossCause;
use anabranch_wire::{ForeignText, PathId, Pid, ResetToken, StreamId};

use crate::bottleneck::GroupReason;
use crate::manager::Standing;
use crate::route::Route;

/// Something that the application or the driver may need.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The handshake is complete.
    Established,
    /// The peer opened a stream.
    StreamOpened(StreamId),
    /// A stream has something to read: bytes, its end or its reset.
    StreamReadable(StreamId),
    /// A stream that was full accepts bytes again.
    StreamWritable(StreamId),
    /// Everything written to the stream, and its end, was acknowledged.
    StreamFinished(StreamId),
    /// The peer stopped reading the stream.
    StreamStopped {
        stream: StreamId,
        /// The peer's reason.
        code: u64,
    },
    /// The peer allows more streams than before.
    StreamsAvailable,
    /// A datagram can be read.
    DatagramReceived,
    /// A path changed.
    Path { path: PathId, change: PathChange },
    /// The peer announced another address.
    PeerAddress {
        /// Its id, chosen by the peer.
        id: u64,
        /// The address at which the peer listens.
        address: SocketAddr,
    },
    /// The peer withdrew the address with this id.
    PeerAddressGone {
        /// Its id, chosen by the peer.
        id: u64,
    },
    /// This end's address as the peer sees it on a path: the outer one behind a NAT.
    ObservedAddress {
        path: PathId,
        /// This end's address as the peer sees it.
        address: SocketAddr,
    },
    /// The peer has no more data; the session closes when this end has none either.
    PeerClosing,
    /// The session is over.
    Closed(CloseReason),
}

#[derive(Clone, Debug, PartialEq)]
pub enum PathChange {
    /// The peer answered on it; it carries data.
    Opened(Route),
    /// Its acknowledgements are overdue, or it delivers almost nothing. Other paths carry its data until it recovers.
    Suspect,
    /// It was silent for χ timeouts; from now on it carries only probes.
    Failed,
    /// It answers again.
    Recovered,
    /// Its window is now coupled with other paths: those of the same group.
    Grouped {
        /// The group, named by its lowest path.
        group: u32,
        /// The evidence.
        reason: GroupReason,
    },
    /// The window rule `auto` found another cause of its losses.
    Losses(LossCause),
    /// Its use changed, or the reason why it carries nothing.
    Standing(Standing),
    Moved(Route),
    /// It is closed for good.
    Closed(AbandonReason),
}

/// Why a path was abandoned; the number is the code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonReason {
    /// The application or the path manager closed it.
    Requested,
    /// The peer never answered on it.
    Unreachable,
    /// Its local address is gone.
    AddressGone,
    /// There were too many paths.
    TooMany,
    /// The rules of one end do not allow it.
    Refused,
    /// A code this version does not know.
    Other(u64),
}

impl AbandonReason {
    /// The code on the wire.
    pub fn code(self) -> u64 {
        match self {
            Self::Requested => 0,
            Self::Unreachable => 1,
            Self::AddressGone => 2,
            Self::TooMany => 3,
            Self::Refused => 5,
            Self::Other(code) => code,
        }
    }

    /// The reason for a code from the wire.
    pub fn from_code(code: u64) -> Self {
        match code {
            0 => Self::Requested,
            1 => Self::Unreachable,
            2 => Self::AddressGone,
            3 => Self::TooMany,
            5 => Self::Refused,
            other => Self::Other(other),
        }
    }
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both ends have delivered everything.
    #[error("closed")]
    Finished,
    /// The application here ended it.
    #[error("closed here: {reason} (code {code})")]
    Local {
        /// The application's code.
        code: u64,
        /// A text for users.
        reason: String,
    },
    /// The peer ended it.
    #[error("closed by the peer, which said \"{reason}\" (code {code})")]
    Peer {
        /// The peer's code.
        code: u64,
        /// The peer's text for users.
        reason: ForeignText,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(ProtocolError),
    /// No candidate answered.
    #[error("no path answered in time")]
    ConnectTimeout,
    /// Nothing arrived during the idle timeout.
    #[error("nothing was heard from the peer in time")]
    IdleTimeout,
    /// The peer has lost its state.
    #[error("the peer has forgotten this session")]
    Reset,
}

/// A violation of the protocol by the peer; the number is the code of the CLOSE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// More bytes than allowed by flow control.
    #[error("flow control exceeded")]
    FlowControl = 0x101,
    /// More streams than allowed.
    #[error("stream limit exceeded")]
    StreamLimit = 0x102,
    /// A frame for a stream in a state that forbids it.
    #[error("frame for a stream in the wrong state")]
    StreamState = 0x103,
    /// Bytes beyond the end of a stream, or two different ends.
    #[error("final size changed")]
    FinalSize = 0x104,
    /// An acknowledgement of a packet that was never sent.
    #[error("acknowledged what was never sent")]
    AckOfUnsent = 0x105,
    /// A path that the peer may not open, or more than it may.
    #[error("path limit or path id violated")]
    PathLimit = 0x106,
    /// A datagram larger than allowed.
    #[error("datagram too large")]
    DatagramSize = 0x107,
    /// Handshake parameters out of range.
    #[error("handshake parameters out of range")]
    Params = 0x108,
}

/// A PID that the driver has to start or stop routing to this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidChange {
    /// Packets with this PID belong to `path` of this session.
    Register { pid: Pid, path: PathId },
    /// The PID is free: packets for its path no longer matter.
    Retire {
        pid: Pid,
        /// Its path, whose id will not be used again.
        path: PathId,
    },
}

/// The source of a session's PIDs and reset tokens: random in production, counted in the simulator.
pub trait PidSource {
    /// An unused PID, with the token that a stateless reset for it will carry.
    fn next_pid(&mut self) -> (Pid, ResetToken);
}
