//! Codes for the end of a session and of a path. `docs/reference/protocol.md` lists them too.

/// Codes of [`Close`](crate::Close). The protocol defines 0 and 0x100 to 0x1ff; all others are the application's.
pub mod close_code {
    /// A normal end.
    pub const NONE: u64 = 0;
    /// The sender failed internally or ran out of memory.
    pub const INTERNAL: u64 = 0x100;
    /// More bytes than the credit allowed.
    pub const FLOW_CONTROL: u64 = 0x101;
    /// More streams than the credit allowed.
    pub const STREAM_LIMIT: u64 = 0x102;
    /// A frame for a stream that cannot receive it.
    pub const STREAM_STATE: u64 = 0x103;
    /// A stream's length changed, or bytes arrived beyond it.
    pub const FINAL_SIZE: u64 = 0x104;
    /// An acknowledgement of a packet that was never sent.
    pub const ACK_OF_UNSENT: u64 = 0x105;
    /// Too many paths, a path id used again, or an id that only the other end may open.
    pub const PATH_LIMIT: u64 = 0x106;
    /// A datagram longer than the receiver accepts.
    pub const DATAGRAM_SIZE: u64 = 0x107;
    /// Parameters of the handshake that break their limits.
    pub const PARAMS: u64 = 0x108;
    /// A packet whose frames could not be decoded.
    pub const FRAME_ENCODING: u64 = 0x109;
    /// Any other breach of the rules.
    pub const PROTOCOL_VIOLATION: u64 = 0x10a;
    /// No working path is left.
    pub const NO_PATH: u64 = 0x10b;
    /// The key or ticket presented does not grant what was requested.
    pub const NOT_ALLOWED: u64 = 0x10c;
    /// The keys may protect no more packets and could not be renewed.
    pub const KEYS_EXHAUSTED: u64 = 0x10d;
    /// The sender is too busy, or shutting down, and takes no sessions.
    pub const BUSY: u64 = 0x10e;
}

/// Reasons of [`Frame::PathAbandon`](crate::Frame::PathAbandon).
pub mod abandon_reason {
    /// The application or the path manager no longer needs the path.
    pub const REQUESTED: u64 = 0;
    /// The path does not answer, or stopped answering (mTCP §3.5.1 [M12]).
    pub const UNREACHABLE: u64 = 1;
    /// Its local interface or address is gone.
    pub const ADDRESS_GONE: u64 = 2;
    /// The sender has as many paths as it wants.
    pub const TOO_MANY: u64 = 3;
    /// It shares its bottleneck with a better path, or is far slower than the best (mTCP §3.4.1 [M10]).
    pub const SUPPRESSED: u64 = 4;
    /// The rules of the other end do not allow the path.
    pub const REFUSED: u64 = 5;
}
