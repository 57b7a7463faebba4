//! Packets, frames, ids and units, and their encoding.
//!
//! Every message between two machines is a type here. The engine works on the typed [`Packet`]. The simulator passes
//! packets on in memory; the driver encodes a packet just before sealing it and decodes it just after opening. This
//! crate has no sockets, no clock and no keys.

mod arrival;
mod codec;
mod codes;
mod crowd;
mod error;
mod foreign;
mod frame;
mod header;
mod ids;
mod packet;
mod payload;
mod ranges;
mod reach;
mod source;
mod units;
mod varint;

pub use arrival::ArrivalTime;
pub use codec::{
    LARGEST_MARKS, LARGEST_PARITY_OVERHEAD, MAX_ACK_DELAY_US, MAX_ACK_RANGES, MAX_FRAMES, MAX_PATHS,
    MAX_PLACE, MAX_REASON_LEN, MIN_UDP_PAYLOAD, Reader, datagram_frame_overhead,
    datagram_frame_overhead_last, decode_frames, decode_params, encode_frame, encode_frames, encode_params,
    packet_encoded_len, put_address, stream_frame_overhead, stream_frame_overhead_last,
};
pub use codes::{abandon_reason, close_code};
pub use crowd::Crowd;
pub use error::DecodeError;
pub use foreign::{Escaped, ForeignText, is_invisible};
pub use frame::{
    Ack, AckPath, AddressFrame, CODED_HEAD, Close, DatagramFrame, DatagramNumber, EcnCounts, Frame,
    KeyExchange, MAX_BLOCK, MarkedFrame, NewPid, ORDER_LANES, PACKET_COST, ParityFrame, PathRate, PathStatus,
    PathUse, Report, ResetToken, StreamFrame, order_lane,
};
pub use header::{Header, Kind, PACKET_OVERHEAD, TAG_LEN, expand_fsn, rewrite_for_hop};
pub use ids::{Fsn, PathId, Pid, PidHasher, Side, StreamId};
pub use packet::{Frames, Message, Packet, Params};
pub use payload::{Length, Payload};
pub use ranges::{RangeSet, Ranges};
pub use reach::{Reach, embedded};
pub use source::{PerSecond, SourceLimit, larger_source, largest_source, site, source};
pub use units::{Rate, Span, Time, bytes_in_words};
pub use varint::{VARINT_MAX, varint_len};
