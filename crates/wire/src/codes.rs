//! The numbers that say why a session ends or a path is given up. `docs/protocol.md` lists them too.

/// Codes of [`Close`](crate::Close). From [`close_code::APPLICATION`] on they are the application's.
pub mod close_code {
    /// A normal end.
    pub const NONE: u64 = 0x00;
    /// The sender had a fault of its own, or no memory left.
    pub const INTERNAL: u64 = 0x01;
    /// A packet whose frames could not be read.
    pub const FRAME_ENCODING: u64 = 0x02;
    /// More bytes than the credit allowed.
    pub const FLOW_CONTROL: u64 = 0x03;
    /// More streams than the credit allowed.
    pub const STREAM_LIMIT: u64 = 0x04;
    /// A frame for a stream that cannot receive it.
    pub const STREAM_STATE: u64 = 0x05;
    /// A stream's length changed, or bytes came beyond it.
    pub const FINAL_SIZE: u64 = 0x06;
    /// Any other breach of the rules, such as acknowledging what was never sent.
    pub const PROTOCOL_VIOLATION: u64 = 0x07;
    /// More paths than allowed, a path id used again, or one that the other end opens.
    pub const PATH_LIMIT: u64 = 0x08;
    /// No path is left that works.
    pub const NO_PATH: u64 = 0x09;
    /// The key or ticket shown does not open what was asked for.
    pub const NOT_ALLOWED: u64 = 0x0a;
    /// The keys may protect no more packets and could not be renewed.
    pub const KEYS_EXHAUSTED: u64 = 0x0b;
    /// The sender is too busy, or shutting down, and takes no sessions.
    pub const BUSY: u64 = 0x0c;
    /// The first code that belongs to the application.
    pub const APPLICATION: u64 = 0x1000;
}

/// Reasons of [`Frame::PathAbandon`](crate::Frame::PathAbandon).
pub mod abandon_reason {
    /// The sender has no use for the path any more.
    pub const UNWANTED: u64 = 0x00;
    /// Nothing came back on it (mTCP §3.5 [M12]).
    pub const FAILED: u64 = 0x01;
    /// Its far end never answered the challenge.
    pub const NOT_VALIDATED: u64 = 0x02;
    /// It shares its bottleneck with a better path, or is far slower than the best (mTCP §3.4 [M10]).
    pub const SUPPRESSED: u64 = 0x03;
    /// Its local interface or address is gone.
    pub const ADDRESS_GONE: u64 = 0x04;
    /// The sender holds as many paths as it wants.
    pub const TOO_MANY: u64 = 0x05;
}
