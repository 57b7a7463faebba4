//! Packets, frames, ids and units, and how they become bytes.
//!
//! Everything two machines say to each other is a type here. The engine works on the typed [`Packet`];
//! the simulator hands it over in memory, and the driver turns it into bytes just before sealing and
//! back just after opening. Nothing in this crate knows a socket, a clock or a key.

mod frame;
mod ids;
mod packet;
mod payload;
mod ranges;
mod units;

pub use frame::{
    Ack, AckPath, AddressFrame, Close, DatagramFrame, EcnCounts, Frame, NewPid, PathStatus, PathUse, Report,
    ResetToken, StreamFrame,
};
pub use ids::{Fsn, PathId, Pid, Side, StreamId};
pub use packet::{Frames, Message, Packet, Params};
pub use payload::{Length, Payload};
pub use ranges::{RangeSet, Ranges};
pub use units::{Rate, Span, Time};
