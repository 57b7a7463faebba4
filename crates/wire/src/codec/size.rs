//! How long frames will be, without encoding them: what the engine fills packets with.

use std::net::SocketAddr;

use super::{MAX_ACK_RANGES, encode::reason_of};
use crate::varint::varint_len;
use crate::{Ack, DatagramFrame, Frame, PathId, Payload, StreamFrame, StreamId};

/// Bytes that `frames` take as the contents of one packet.
#[inline]
#[must_use]
pub fn packet_encoded_len<P: Payload>(frames: &[Frame<P>]) -> usize {
    match frames.split_last() {
        None => 0,
        Some((last, others)) => {
            last.encoded_len_last() + others.iter().map(Frame::encoded_len).sum::<usize>()
        }
    }
}

/// Bytes that a stream frame takes beside its data when another frame follows it.
#[inline]
#[must_use]
pub fn stream_frame_overhead(stream: StreamId, offset: u64, data_len: usize) -> usize {
    stream_frame_overhead_last(stream, offset) + varint_len(data_len as u64)
}

/// Bytes that a stream frame takes beside its data when it is the last in its packet.
#[inline]
#[must_use]
pub fn stream_frame_overhead_last(stream: StreamId, offset: u64) -> usize {
    1 + varint_len(stream.0) + if offset == 0 { 0 } else { varint_len(offset) }
}

/// Bytes that a datagram frame takes beside its data when another frame follows it.
#[inline]
#[must_use]
pub fn datagram_frame_overhead(flow: u32, data_len: usize) -> usize {
    datagram_frame_overhead_last(flow) + varint_len(data_len as u64)
}

/// Bytes that a datagram frame takes beside its data when it is the last in its packet.
#[inline]
#[must_use]
pub fn datagram_frame_overhead_last(flow: u32) -> usize {
    if flow == 0 { 2 } else { 6 }
}

impl<P: Payload> Frame<P> {
    /// Bytes that the frame takes when another follows it.
    #[inline]
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Stream(StreamFrame { stream, offset, data, .. }) => {
                stream_frame_overhead(*stream, *offset, data.len()) + data.len()
            }
            Self::Datagram(DatagramFrame { flow, data, .. }) => {
                datagram_frame_overhead(*flow, data.len()) + data.len()
            }
            Self::Ack(ack) => ack_len(ack),
            other => control_len(other),
        }
    }

    /// Bytes that the frame takes as the last in its packet.
    #[inline]
    #[must_use]
    pub fn encoded_len_last(&self) -> usize {
        match self {
            Self::Stream(StreamFrame { stream, offset, data, .. }) => {
                stream_frame_overhead_last(*stream, *offset) + data.len()
            }
            Self::Datagram(DatagramFrame { flow, data, .. }) => {
                datagram_frame_overhead_last(*flow) + data.len()
            }
            other => other.encoded_len(),
        }
    }
}

#[inline]
fn ack_len(ack: &Ack) -> usize {
    let Some((highest, others)) = ack.ranges.split_first() else { return 0 };
    let others = &others[..others.len().min(MAX_ACK_RANGES - 1)];
    let mut len = 1
        + path_len(ack.path)
        + varint_len(highest.end - 1)
        + varint_len(ack.delay.as_micros())
        + varint_len(others.len() as u64)
        + varint_len(highest.end - highest.start - 1);
    let mut above = highest.start;
    for range in others {
        len += varint_len(above - range.end - 1) + varint_len(range.end - range.start - 1);
        above = range.start;
    }
    if let Some(ecn) = &ack.ecn {
        len += varint_len(ecn.ect0) + varint_len(ecn.ect1) + varint_len(ecn.ce);
    }
    len
}

/// The frames that carry no data of the application and are no acknowledgement.
fn control_len<P>(frame: &Frame<P>) -> usize {
    1 + match frame {
        Frame::Ping | Frame::Shutdown | Frame::ShutdownAck => 0,
        Frame::Padding(len) => 2 + usize::from(*len),
        Frame::ResetStream { stream, code, final_size } => {
            varint_len(stream.0) + varint_len(*code) + varint_len(*final_size)
        }
        Frame::StopSending { stream, code } => varint_len(stream.0) + varint_len(*code),
        Frame::MaxData { limit } | Frame::MaxStreams { limit } => varint_len(*limit),
        Frame::MaxStreamData { stream, limit, received } => {
            varint_len(stream.0) + varint_len(*limit) + varint_len(*received)
        }
        Frame::PathChallenge { .. } | Frame::PathResponse { .. } => 8,
        Frame::NewPid(new) => path_len(new.path) + 8 + new.reset_token.0.len(),
        Frame::PathAbandon { path, reason } => path_len(*path) + varint_len(*reason),
        Frame::PathStatus(status) => path_len(status.path) + varint_len(status.sequence) + 1,
        Frame::AckPath(choice) => {
            varint_len(choice.sequence) + varint_len(choice.path.map_or(0, |path| u64::from(path.0) + 1))
        }
        Frame::AddAddress(added) => varint_len(added.id) + address_len(&added.address),
        Frame::RemoveAddress { id } => varint_len(*id),
        Frame::ObservedAddress { path, address } => path_len(*path) + address_len(address),
        Frame::Report(report) => {
            path_len(report.path)
                + varint_len(report.bytes)
                + varint_len(report.packets)
                + varint_len(report.highest_fsn.0)
                + varint_len(report.highest_tsn)
        }
        Frame::Close(close) => varint_len(close.code) + 1 + reason_of(close).len(),
        Frame::Stream(_) | Frame::Datagram(_) | Frame::Ack(_) => unreachable!("measured by the caller"),
    }
}

#[inline]
fn path_len(path: PathId) -> usize {
    varint_len(path.0.into())
}

fn address_len(address: &SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => 1 + 4 + 2,
        SocketAddr::V6(_) => 1 + 16 + 2,
    }
}
