//! Lengths of encoded frames, computed without encoding them, so that the engine can fill packets.

use std::net::SocketAddr;

use super::MAX_ACK_RANGES;
use super::encode::{ack_path_to_wire, reason_of, report_to_wire};
use crate::varint::varint_len;
use crate::{
    Ack, CODED_HEAD, DatagramFrame, Frame, MarkedFrame, ParityFrame, Payload, StreamFrame, StreamId,
};

/// Length of `frames` as the contents of one packet, in bytes.
#[inline]
pub fn packet_encoded_len<P: Payload>(frames: &[Frame<P>]) -> usize {
    match frames.split_last() {
        None => 0,
        Some((last, others)) => {
            last.encoded_len_last() + others.iter().map(Frame::encoded_len).sum::<usize>()
        }
    }
}

/// Bytes of a stream frame without its data, when another frame follows it.
#[inline]
pub fn stream_frame_overhead(stream: StreamId, offset: u64, data_len: usize) -> usize {
    stream_frame_overhead_last(stream, offset) + varint_len(data_len as u64)
}

/// Bytes of a stream frame without its data, when it is the last in its packet.
#[inline]
pub fn stream_frame_overhead_last(stream: StreamId, offset: u64) -> usize {
    1 + varint_len(stream.0) + if offset == 0 { 0 } else { varint_len(offset) }
}

/// Bytes of a datagram frame without its data, when another frame follows it.
#[inline]
pub fn datagram_frame_overhead(flow: u32, data_len: usize) -> usize {
    datagram_frame_overhead_last(flow) + varint_len(data_len as u64)
}

/// Bytes of a datagram frame without its data, when it is the last in its packet.
#[inline]
pub fn datagram_frame_overhead_last(flow: u32) -> usize {
    if flow == 0 { 2 } else { 6 }
}

/// Most bytes of the number and the position of a marked datagram.
pub const LARGEST_MARKS: usize = 16;
/// Most bytes of a parity frame without its data, when another frame follows it. The data is as long as the longest
/// datagram, or one byte longer.
pub const LARGEST_PARITY_OVERHEAD: usize = 2 + 8 + 3 + CODED_HEAD + 4;

fn marks_len<P>(frame: &MarkedFrame<P>) -> usize {
    frame.number.map_or(0, |number| varint_len(number.value)) + frame.place.map_or(0, varint_len)
}

fn parity_len<P>(frame: &ParityFrame<P>) -> usize {
    2 + varint_len(frame.first) + 3 + CODED_HEAD
}

impl<P: Payload> Frame<P> {
    /// Length of the frame in bytes, when another follows it.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Stream(StreamFrame { stream, offset, data, .. }) => {
                stream_frame_overhead(*stream, *offset, data.len()) + data.len()
            }
            Self::Datagram(DatagramFrame { flow, data, .. }) => {
                datagram_frame_overhead(*flow, data.len()) + data.len()
            }
            Self::Marked(marked) => {
                let DatagramFrame { flow, data, .. } = &marked.datagram;
                datagram_frame_overhead(*flow, data.len()) + marks_len(marked) + data.len()
            }
            Self::Parity(parity) => {
                parity_len(parity) + varint_len(parity.data.len() as u64) + parity.data.len()
            }
            Self::Ack(ack) => ack_len(ack),
            Self::Ping | Self::Shutdown | Self::ShutdownAck => 1,
            Self::Padding(len) => 3 + usize::from(*len),
            Self::ResetStream { stream, code, final_size } => fields_len(&[stream.0, *code, *final_size]),
            Self::StopSending { stream, code } => fields_len(&[stream.0, *code]),
            Self::MaxData { limit } | Self::MaxStreams { limit } => fields_len(&[*limit]),
            Self::MaxStreamData { stream, limit, received } => fields_len(&[stream.0, *limit, *received]),
            Self::PathChallenge { .. } | Self::PathResponse { .. } => 1 + 8,
            Self::NewPid(new) => fields_len(&[new.path.0.into()]) + 8 + new.reset_token.0.len(),
            Self::PathAbandon { path, reason } => fields_len(&[path.0.into(), *reason]),
            Self::PathStatus(status) => fields_len(&[status.path.0.into(), status.sequence]) + 1,
            Self::MaxPathData { path, limit } => fields_len(&[path.0.into(), *limit]),
            Self::MaxPathRate(rate) => fields_len(&[rate.path.0.into(), rate.sequence, rate.bits]),
            Self::AckPath(choice) => fields_len(&[choice.sequence, ack_path_to_wire(choice.path)]),
            Self::AddAddress(added) => fields_len(&[added.id]) + address_len(&added.address),
            Self::RemoveAddress { id } => fields_len(&[*id]),
            Self::ObservedAddress { path, address } => fields_len(&[path.0.into()]) + address_len(address),
            Self::Report(report) => fields_len(&report_to_wire(report)),
            Self::KeyExchange(exchange) => fields_len(&[exchange.number]) + exchange.key.len(),
            Self::Close(close) => fields_len(&[close.code]) + 1 + reason_of(close).len(),
        }
    }

    /// Length of the frame in bytes, when it is the last in its packet.
    #[inline]
    pub fn encoded_len_last(&self) -> usize {
        self.encoded_len() - self.length_len()
    }

    /// Bytes of the length field, which the last frame of a packet does not have.
    #[inline]
    pub fn length_len(&self) -> usize {
        let data = match self {
            Self::Stream(frame) => &frame.data,
            Self::Datagram(datagram) => &datagram.data,
            Self::Marked(marked) => &marked.datagram.data,
            Self::Parity(parity) => &parity.data,
            _ => return 0,
        };
        varint_len(data.len() as u64)
    }
}

#[inline]
fn ack_len(ack: &Ack) -> usize {
    let Some((highest, others)) = ack.ranges.split_first() else { return 0 };
    let others = &others[..others.len().min(MAX_ACK_RANGES - 1)];
    let mut len = 1
        + varint_len(ack.path.0.into())
        + varint_len(highest.end - 1)
        + varint_len(ack.delay.as_micros())
        + varint_len(others.len() as u64)
        + varint_len(highest.end - highest.start - 1);
    if let Some(arrived) = ack.arrived {
        len += varint_len(arrived.as_micros());
    }
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

/// A frame's first byte and its variable-length integers.
#[inline]
fn fields_len(fields: &[u64]) -> usize {
    1 + fields.iter().map(|field| varint_len(*field)).sum::<usize>()
}

fn address_len(address: &SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => 1 + 4 + 2,
        SocketAddr::V6(_) => 1 + 16 + 2,
    }
}
