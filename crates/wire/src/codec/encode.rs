//! Encodes frames.

use std::net::{IpAddr, SocketAddr};

use bytes::{BufMut, Bytes};

use super::{MAX_ACK_RANGES, MAX_REASON_LEN, kind};
use crate::varint::put_varint;
use crate::{
    Ack, Close, DatagramFrame, Frame, Header, MarkedFrame, ParityFrame, PathId, PathUse, Report, StreamFrame,
};

/// Appends the frames of one packet: exactly [`packet_encoded_len`](super::packet_encoded_len) bytes. A receiver refuses
/// more than [`MAX_FRAMES`](super::MAX_FRAMES) frames.
///
/// # Panics
/// When `out` has less room than that and cannot grow.
#[inline]
pub fn encode_frames(frames: &[Frame<Bytes>], out: &mut impl BufMut) {
    if let Some((last, others)) = frames.split_last() {
        for frame in others {
            put_frame(frame, Position::Followed, out);
        }
        put_frame(last, Position::Last, out);
    }
}

/// Appends one frame that another may follow: exactly [`Frame::encoded_len`] bytes.
///
/// # Panics
/// When `out` has less room than that and cannot grow.
#[inline]
pub fn encode_frame(frame: &Frame<Bytes>, out: &mut impl BufMut) {
    put_frame(frame, Position::Followed, out);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Followed,
    Last,
}

#[inline]
fn put_frame(frame: &Frame<Bytes>, position: Position, out: &mut impl BufMut) {
    match frame {
        Frame::Stream(stream) => put_stream(stream, position, out),
        Frame::Datagram(datagram) => put_datagram(datagram, position, out),
        Frame::Marked(marked) => put_marked(marked, position, out),
        Frame::Parity(parity) => put_parity(parity, position, out),
        Frame::Ack(ack) => put_ack(ack, out),
        Frame::Ping => out.put_u8(kind::PING),
        Frame::Padding(len) => {
            out.put_u8(kind::PADDING);
            out.put_u16(*len);
            out.put_bytes(0, usize::from(*len));
        }
        Frame::ResetStream { stream, code, final_size } => {
            put_fields(kind::RESET_STREAM, &[stream.0, *code, *final_size], out);
        }
        Frame::StopSending { stream, code } => put_fields(kind::STOP_SENDING, &[stream.0, *code], out),
        Frame::MaxData { limit } => put_fields(kind::MAX_DATA, &[*limit], out),
        Frame::MaxStreams { limit } => put_fields(kind::MAX_STREAMS, &[*limit], out),
        Frame::MaxStreamData { stream, limit, received } => {
            put_fields(kind::MAX_STREAM_DATA, &[stream.0, *limit, *received], out);
        }
        Frame::PathChallenge { token } => {
            out.put_u8(kind::PATH_CHALLENGE);
            out.put_u64(*token);
        }
        Frame::PathResponse { token } => {
            out.put_u8(kind::PATH_RESPONSE);
            out.put_u64(*token);
        }
        Frame::NewPid(new) => {
            put_fields(kind::NEW_PID, &[new.path.0.into()], out);
            out.put_u64(new.pid.0);
            out.put_slice(&new.reset_token.0);
        }
        Frame::PathAbandon { path, reason } => {
            put_fields(kind::PATH_ABANDON, &[path.0.into(), *reason], out);
        }
        Frame::PathStatus(status) => {
            put_fields(kind::PATH_STATUS, &[status.path.0.into(), status.sequence], out);
            out.put_u8(use_to_wire(status.usage));
        }
        Frame::MaxPathData { path, limit } => {
            put_fields(kind::MAX_PATH_DATA, &[path.0.into(), *limit], out);
        }
        Frame::MaxPathRate(rate) => {
            put_fields(kind::MAX_PATH_RATE, &[rate.path.0.into(), rate.sequence, rate.bits], out);
        }
        Frame::AckPath(choice) => {
            put_fields(kind::ACK_PATH, &[choice.sequence, ack_path_to_wire(choice.path)], out);
        }
        Frame::AddAddress(added) => {
            put_fields(kind::ADD_ADDRESS, &[added.id], out);
            put_address(added.address, out);
        }
        Frame::RemoveAddress { id } => put_fields(kind::REMOVE_ADDRESS, &[*id], out),
        Frame::ObservedAddress { path, address } => {
            put_fields(kind::OBSERVED_ADDRESS, &[path.0.into()], out);
            put_address(*address, out);
        }
        Frame::Report(report) => put_fields(kind::REPORT, &report_to_wire(report), out),
        Frame::KeyExchange(exchange) => {
            put_fields(kind::KEY_EXCHANGE, &[exchange.number], out);
            out.put_slice(&exchange.key);
        }
        Frame::Shutdown => out.put_u8(kind::SHUTDOWN),
        Frame::ShutdownAck => out.put_u8(kind::SHUTDOWN_ACK),
        Frame::Close(close) => {
            let reason = reason_of(close);
            put_fields(kind::CLOSE, &[close.code], out);
            out.put_u8(reason.len() as u8);
            out.put_slice(reason.as_bytes());
        }
    }
}

#[inline]
fn put_stream(frame: &StreamFrame<Bytes>, position: Position, out: &mut impl BufMut) {
    let mut first = kind::STREAM;
    if frame.fin {
        first |= kind::STREAM_FIN;
    }
    if frame.offset != 0 {
        first |= kind::STREAM_OFFSET;
    }
    if position == Position::Followed {
        first |= kind::STREAM_LEN;
    }
    out.put_u8(first);
    put_varint(out, frame.stream.0);
    if frame.offset != 0 {
        put_varint(out, frame.offset);
    }
    put_data(&frame.data, position, out);
}

#[inline]
fn put_datagram(frame: &DatagramFrame<Bytes>, position: Position, out: &mut impl BufMut) {
    let mut first = kind::DATAGRAM;
    if frame.flow != 0 {
        first |= kind::DATAGRAM_FLOW;
    }
    if position == Position::Followed {
        first |= kind::DATAGRAM_LEN;
    }
    out.put_u8(first);
    out.put_u8(frame.class.min(Header::MAX_TOS));
    if frame.flow != 0 {
        out.put_u32(frame.flow);
    }
    put_data(&frame.data, position, out);
}

fn put_marked(frame: &MarkedFrame<Bytes>, position: Position, out: &mut impl BufMut) {
    let DatagramFrame { class, flow, data } = &frame.datagram;
    let mut first = kind::MARKED;
    if *flow != 0 {
        first |= kind::DATAGRAM_FLOW;
    }
    if position == Position::Followed {
        first |= kind::DATAGRAM_LEN;
    }
    let mut marks = if frame.place.is_some() { kind::MARK_PLACE } else { 0 };
    if let Some(number) = frame.number {
        marks |= kind::MARK_NUMBER | if number.is_coded { kind::MARK_CODED } else { 0 };
    }
    out.put_u8(first);
    out.put_u8(*class.min(&Header::MAX_TOS) | marks);
    if *flow != 0 {
        out.put_u32(*flow);
    }
    if let Some(number) = frame.number {
        put_varint(out, number.value);
    }
    if let Some(place) = frame.place {
        put_varint(out, place);
    }
    put_data(data, position, out);
}

fn put_parity(frame: &ParityFrame<Bytes>, position: Position, out: &mut impl BufMut) {
    out.put_u8(if position == Position::Followed { kind::PARITY_LEN } else { kind::PARITY });
    out.put_u8(frame.class.min(Header::MAX_TOS));
    put_varint(out, frame.first);
    out.put_slice(&[frame.count, frame.parities, frame.index]);
    out.put_slice(&frame.head);
    put_data(&frame.data, position, out);
}

#[inline]
fn put_data(data: &Bytes, position: Position, out: &mut impl BufMut) {
    if position == Position::Followed {
        put_varint(out, data.len() as u64);
    }
    out.put_slice(data);
}

/// An acknowledgement without ranges takes no bytes.
#[inline]
fn put_ack(ack: &Ack, out: &mut impl BufMut) {
    let Some((highest, others)) = ack.ranges.split_first() else { return };
    let others = &others[..others.len().min(MAX_ACK_RANGES - 1)];
    out.put_u8(match (ack.arrived.is_some(), ack.ecn.is_some()) {
        (false, false) => kind::ACK,
        (false, true) => kind::ACK_ECN,
        (true, false) => kind::ACK_TIMED,
        (true, true) => kind::ACK_TIMED_ECN,
    });
    put_varint(out, ack.path.0.into());
    put_varint(out, highest.end - 1);
    put_varint(out, ack.delay.as_micros());
    if let Some(arrived) = ack.arrived {
        put_varint(out, arrived.as_micros());
    }
    put_varint(out, others.len() as u64);
    put_varint(out, highest.end - highest.start - 1);
    let mut above = highest.start;
    for range in others {
        put_varint(out, above - range.end - 1);
        put_varint(out, range.end - range.start - 1);
        above = range.start;
    }
    if let Some(ecn) = &ack.ecn {
        put_varint(out, ecn.ect0);
        put_varint(out, ecn.ect1);
        put_varint(out, ecn.ce);
    }
}

/// A frame's first byte and its variable-length integers.
fn put_fields(first: u8, fields: &[u64], out: &mut impl BufMut) {
    out.put_u8(first);
    for field in fields {
        put_varint(out, *field);
    }
}

/// Appends an address as [`Reader::address`](super::Reader::address) reads it: family (1), IP address (4 or 16), port (2).
///
/// # Panics
/// When `out` has no room for it and cannot grow.
pub fn put_address(address: SocketAddr, out: &mut impl BufMut) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.put_u8(4);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_u8(6);
            out.put_slice(&ip.octets());
        }
    }
    out.put_u16(address.port());
}

fn use_to_wire(usage: PathUse) -> u8 {
    match usage {
        PathUse::Normal => 0,
        PathUse::Backup => 1,
        PathUse::Standby => 2,
        PathUse::Metered => 3,
        PathUse::Overflow => 4,
    }
}

/// 0 without a path, else the path id plus one.
pub(super) fn ack_path_to_wire(path: Option<PathId>) -> u64 {
    path.map_or(0, |path| u64::from(path.0) + 1)
}

pub(super) fn report_to_wire(report: &Report) -> [u64; 5] {
    [report.path.0.into(), report.bytes, report.packets, report.highest_fsn.0, report.highest_tsn]
}

/// The part of the reason that is sent.
pub(super) fn reason_of(close: &Close) -> &str {
    let mut end = close.reason.len().min(MAX_REASON_LEN);
    while !close.reason.is_char_boundary(end) {
        end -= 1;
    }
    &close.reason[..end]
}
