//! Encodes and decodes frames and parameters; `docs/reference/protocol.md` draws each one.
//!
//! The engine fills a packet by length ([`packet_encoded_len`], [`stream_frame_overhead_last`]) without encoding it. The
//! driver calls [`encode_frames`] just before sealing and [`decode_frames`] just after opening. One rule saves two bytes
//! in nearly every packet: **a stream, datagram or parity frame that is the last of its packet has no length field and
//! extends to the packet's end.** All others have one. Lengths, encoder and decoder follow that rule.
//!
//! Decoding copies nothing: the data of frames are slices of the packet. It returns at most [`MAX_FRAMES`] frames with
//! [`MAX_ACK_RANGES`] ranges each, whatever the bytes say.

mod decode;
mod encode;
mod params;
mod reader;
mod size;
#[cfg(test)]
mod tests;

pub use decode::decode_frames;
pub use encode::{encode_frame, encode_frames, put_address};
pub use params::{decode_params, encode_params};
pub use reader::Reader;
pub use size::{
    LARGEST_MARKS, LARGEST_PARITY_OVERHEAD, datagram_frame_overhead, datagram_frame_overhead_last,
    packet_encoded_len, stream_frame_overhead, stream_frame_overhead_last,
};

/// Most frames in a packet.
pub const MAX_FRAMES: usize = 256;
/// Most ranges in an acknowledgement; of more, only the highest are encoded.
pub const MAX_ACK_RANGES: usize = 64;
/// Longest reason of a [`Close`](crate::Close) in bytes; a longer one is cut at the end of a character.
pub const MAX_REASON_LEN: usize = 255;
/// Smallest UDP payload that every path must carry and every end accept, in bytes (RFC 9000 §14).
pub const MIN_UDP_PAYLOAD: u16 = 1200;
/// Most paths that an end may allow at the same time.
pub const MAX_PATHS: u32 = 64;
/// Longest delay of acknowledgements that an end may announce, in microseconds (RFC 9000 §18.2).
pub const MAX_ACK_DELAY_US: u32 = 16_384_000;

/// Highest position of a datagram in its lane, so that the position plus one fits six bytes.
pub const MAX_PLACE: u64 = (1 << 48) - 2;

/// The first byte of each frame.
mod kind {
    pub const PADDING: u8 = 0x00;
    pub const PING: u8 = 0x01;
    pub const ACK: u8 = 0x02;
    pub const ACK_ECN: u8 = 0x03;
    pub const RESET_STREAM: u8 = 0x04;
    pub const STOP_SENDING: u8 = 0x05;
    pub const ACK_TIMED: u8 = 0x06;
    pub const ACK_TIMED_ECN: u8 = 0x07;
    /// 0x08 to 0x0f, with the three flags below.
    pub const STREAM: u8 = 0x08;
    pub const STREAM_LAST: u8 = STREAM | STREAM_OFFSET | STREAM_LEN | STREAM_FIN;
    pub const STREAM_FIN: u8 = 0x01;
    pub const STREAM_LEN: u8 = 0x02;
    pub const STREAM_OFFSET: u8 = 0x04;
    pub const MAX_DATA: u8 = 0x10;
    pub const MAX_STREAM_DATA: u8 = 0x11;
    pub const MAX_STREAMS: u8 = 0x12;
    pub const MAX_PATH_DATA: u8 = 0x13;
    pub const KEY_EXCHANGE: u8 = 0x14;
    pub const MAX_PATH_RATE: u8 = 0x15;
    pub const PATH_CHALLENGE: u8 = 0x1a;
    pub const PATH_RESPONSE: u8 = 0x1b;
    pub const CLOSE: u8 = 0x1c;
    pub const NEW_PID: u8 = 0x20;
    pub const PATH_ABANDON: u8 = 0x21;
    pub const PATH_STATUS: u8 = 0x22;
    pub const ACK_PATH: u8 = 0x23;
    pub const ADD_ADDRESS: u8 = 0x24;
    pub const REMOVE_ADDRESS: u8 = 0x25;
    pub const OBSERVED_ADDRESS: u8 = 0x26;
    pub const REPORT: u8 = 0x27;
    pub const SHUTDOWN: u8 = 0x28;
    pub const SHUTDOWN_ACK: u8 = 0x29;
    /// 0x30 to 0x33, with the two flags below.
    pub const DATAGRAM: u8 = 0x30;
    pub const DATAGRAM_LAST: u8 = DATAGRAM | DATAGRAM_LEN | DATAGRAM_FLOW;
    pub const DATAGRAM_LEN: u8 = 0x01;
    pub const DATAGRAM_FLOW: u8 = 0x02;
    /// 0x34 to 0x37, with the same two flags, and the marks below in the upper half of the class.
    pub const MARKED: u8 = 0x34;
    pub const MARKED_LAST: u8 = MARKED | DATAGRAM_LEN | DATAGRAM_FLOW;
    pub const MARK_NUMBER: u8 = 0x10;
    pub const MARK_CODED: u8 = 0x20;
    pub const MARK_PLACE: u8 = 0x40;
    /// 0x38 and 0x39, with [`DATAGRAM_LEN`].
    pub const PARITY: u8 = 0x38;
    pub const PARITY_LEN: u8 = PARITY | DATAGRAM_LEN;
}
