//! Frames to bytes.

use std::net::{IpAddr, SocketAddr};

use bytes::{BufMut, Bytes};

use super::{MAX_ACK_RANGES, MAX_REASON_LEN, kind};
use crate::varint::put_varint;
use crate::{Ack, AckPath, Close, DatagramFrame, Frame, Header, PathId, PathUse, Report, StreamFrame};

/// Appends the contents of one packet: exactly [`packet_encoded_len`](super::packet_encoded_len) bytes.
///
/// # Panics
/// When `out` has less room than that and cannot grow.
#[inline]
pub fn encode_frames(frames: &[Frame<Bytes>], out: &mut impl BufMut) {
    if let Some((last, others)) = frames.split_last() {
        for frame in others {
            put_frame(frame, Place::Followed, out);
        }
        put_frame(last, Place::Last, out);
    }
}

/// Appends one frame in the form that another may follow: exactly [`Frame::encoded_len`] bytes.
///
/// # Panics
/// When `out` has less room than that and cannot grow.
#[inline]
pub fn encode_frame(frame: &Frame<Bytes>, out: &mut impl BufMut) {
    put_frame(frame, Place::Followed, out);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Followed,
    Last,
}

#[inline]
fn put_frame(frame: &Frame<Bytes>, place: Place, out: &mut impl BufMut) {
    match frame {
        Frame::Stream(stream) => put_stream(stream, place, out),
        Frame::Datagram(datagram) => put_datagram(datagram, place, out),
        Frame::Ack(ack) => put_ack(ack, out),
        other => put_control(other, out),
    }
}

#[inline]
fn put_stream(frame: &StreamFrame<Bytes>, place: Place, out: &mut impl BufMut) {
    let mut first = kind::STREAM;
    if frame.fin {
        first |= kind::STREAM_FIN;
    }
    if frame.offset != 0 {
        first |= kind::STREAM_OFFSET;
    }
    if place == Place::Followed {
        first |= kind::STREAM_LEN;
    }
    out.put_u8(first);
    put_varint(out, frame.stream.0);
    if frame.offset != 0 {
        put_varint(out, frame.offset);
    }
    put_data(&frame.data, place, out);
}

#[inline]
fn put_datagram(frame: &DatagramFrame<Bytes>, place: Place, out: &mut impl BufMut) {
    let mut first = kind::DATAGRAM;
    if frame.flow != 0 {
        first |= kind::DATAGRAM_FLOW;
    }
    if place == Place::Followed {
        first |= kind::DATAGRAM_LEN;
    }
    out.put_u8(first);
    out.put_u8(frame.class.min(Header::MAX_TOS));
    if frame.flow != 0 {
        out.put_u32(frame.flow);
    }
    put_data(&frame.data, place, out);
}

#[inline]
fn put_data(data: &Bytes, place: Place, out: &mut impl BufMut) {
    if place == Place::Followed {
        put_varint(out, data.len() as u64);
    }
    out.put_slice(data);
}

/// An acknowledgement without ranges says nothing and takes no bytes.
#[inline]
fn put_ack(ack: &Ack, out: &mut impl BufMut) {
    let Some((highest, others)) = ack.ranges.split_first() else { return };
    let others = &others[..others.len().min(MAX_ACK_RANGES - 1)];
    out.put_u8(if ack.ecn.is_some() { kind::ACK_ECN } else { kind::ACK });
    put_path(ack.path, out);
    put_varint(out, highest.end - 1);
    put_varint(out, ack.delay.as_micros());
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

/// Type bytes of the frames that are laid out by [`put_control`].
fn control_kind<P>(frame: &Frame<P>) -> u8 {
    match frame {
        Frame::Padding(_) => kind::PADDING,
        Frame::Ping => kind::PING,
        Frame::ResetStream { .. } => kind::RESET_STREAM,
        Frame::StopSending { .. } => kind::STOP_SENDING,
        Frame::MaxData { .. } => kind::MAX_DATA,
        Frame::MaxStreamData { .. } => kind::MAX_STREAM_DATA,
        Frame::MaxStreams { .. } => kind::MAX_STREAMS,
        Frame::PathChallenge { .. } => kind::PATH_CHALLENGE,
        Frame::PathResponse { .. } => kind::PATH_RESPONSE,
        Frame::NewPid(_) => kind::NEW_PID,
        Frame::PathAbandon { .. } => kind::PATH_ABANDON,
        Frame::PathStatus(_) => kind::PATH_STATUS,
        Frame::AckPath(_) => kind::ACK_PATH,
        Frame::AddAddress(_) => kind::ADD_ADDRESS,
        Frame::RemoveAddress { .. } => kind::REMOVE_ADDRESS,
        Frame::ObservedAddress { .. } => kind::OBSERVED_ADDRESS,
        Frame::Report(_) => kind::REPORT,
        Frame::Shutdown => kind::SHUTDOWN,
        Frame::ShutdownAck => kind::SHUTDOWN_ACK,
        Frame::Close(_) => kind::CLOSE,
        Frame::Stream(_) | Frame::Datagram(_) | Frame::Ack(_) => unreachable!("encoded by the caller"),
    }
}

/// The frames that carry no data of the application and are no acknowledgement.
fn put_control(frame: &Frame<Bytes>, out: &mut impl BufMut) {
    out.put_u8(control_kind(frame));
    match frame {
        Frame::Padding(len) => {
            out.put_u16(*len);
            out.put_bytes(0, usize::from(*len));
        }
        Frame::ResetStream { stream, code, final_size } => put_varints(out, &[stream.0, *code, *final_size]),
        Frame::StopSending { stream, code } => put_varints(out, &[stream.0, *code]),
        Frame::MaxData { limit } | Frame::MaxStreams { limit } => put_varint(out, *limit),
        Frame::MaxStreamData { stream, limit, received } => put_varints(out, &[stream.0, *limit, *received]),
        Frame::PathChallenge { token } | Frame::PathResponse { token } => out.put_u64(*token),
        Frame::NewPid(new) => {
            put_path(new.path, out);
            out.put_u64(new.pid.0);
            out.put_slice(&new.reset_token.0);
        }
        Frame::PathAbandon { path, reason } => put_varints(out, &[path.0.into(), *reason]),
        Frame::PathStatus(status) => {
            put_varints(out, &[status.path.0.into(), status.sequence]);
            out.put_u8(use_to_wire(status.usage));
        }
        Frame::AckPath(AckPath { sequence, path }) => {
            put_varints(out, &[*sequence, path.map_or(0, |path| u64::from(path.0) + 1)]);
        }
        Frame::AddAddress(added) => {
            put_varint(out, added.id);
            put_address(&added.address, out);
        }
        Frame::RemoveAddress { id } => put_varint(out, *id),
        Frame::ObservedAddress { path, address } => {
            put_path(*path, out);
            put_address(address, out);
        }
        Frame::Report(Report { path, bytes, packets, highest_fsn, highest_tsn }) => {
            put_varints(out, &[path.0.into(), *bytes, *packets, highest_fsn.0, *highest_tsn]);
        }
        Frame::Close(close) => {
            let reason = reason_of(close);
            put_varint(out, close.code);
            out.put_u8(reason.len() as u8);
            out.put_slice(reason.as_bytes());
        }
        Frame::Ping | Frame::Shutdown | Frame::ShutdownAck => {}
        Frame::Stream(_) | Frame::Datagram(_) | Frame::Ack(_) => unreachable!("encoded by the caller"),
    }
}

fn put_varints(out: &mut impl BufMut, values: &[u64]) {
    for value in values {
        put_varint(out, *value);
    }
}

fn put_path(path: PathId, out: &mut impl BufMut) {
    put_varint(out, path.0.into());
}

fn put_address(address: &SocketAddr, out: &mut impl BufMut) {
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
    }
}

/// As much of the reason as is sent.
pub(super) fn reason_of(close: &Close) -> &str {
    let mut end = close.reason.len().min(MAX_REASON_LEN);
    while !close.reason.is_char_boundary(end) {
        end -= 1;
    }
    &close.reason[..end]
}
