//! Decodes frames. The bytes have been opened, so they come from the peer, which may still be hostile.

use bytes::Bytes;

use super::reader::Reader;
use super::{MAX_ACK_RANGES, MAX_FRAMES, MAX_PLACE, kind};
use crate::varint::VARINT_MAX;
use crate::{
    Ack, AckPath, AddressFrame, ArrivalTime, Close, DatagramFrame, DatagramNumber, DecodeError, EcnCounts,
    Frame, Frames, Fsn, Header, KeyExchange, MAX_BLOCK, MarkedFrame, NewPid, ParityFrame, PathId, PathRate,
    PathStatus, PathUse, Ranges, Report, Span, StreamFrame, StreamId,
};

/// Decodes the frames of one packet. Their data shares the packet's memory, which lives as long as any frame. Copy small
/// data that is kept for long.
///
/// # Errors
/// A [`DecodeError`] for the first field that breaks the rules of `docs/reference/protocol.md`. The whole packet is ignored, and
/// the session ends with [`close_code::FRAME_ENCODING`](crate::close_code).
pub fn decode_frames(packet: Bytes) -> Result<Frames<Bytes>, DecodeError> {
    let mut reader = Reader::new(packet);
    let mut frames = Frames::new();
    if reader.left() == 0 {
        return Err(DecodeError::NoFrame);
    }
    while reader.left() > 0 {
        if frames.len() == MAX_FRAMES {
            return Err(DecodeError::TooMany { what: "frames in a packet", limit: MAX_FRAMES });
        }
        frames.push(frame(&mut reader)?);
    }
    Ok(frames)
}

#[inline]
fn frame(reader: &mut Reader<Bytes>) -> Result<Frame<Bytes>, DecodeError> {
    let first = reader.u8("frame type")?;
    match first {
        kind::STREAM..=kind::STREAM_LAST => stream(reader, first).map(Frame::Stream),
        kind::DATAGRAM..=kind::DATAGRAM_LAST => datagram(reader, first).map(Frame::Datagram),
        kind::MARKED..=kind::MARKED_LAST => marked(reader, first).map(Frame::Marked),
        kind::PARITY | kind::PARITY_LEN => parity(reader, first).map(Frame::Parity),
        kind::ACK | kind::ACK_ECN | kind::ACK_TIMED | kind::ACK_TIMED_ECN => {
            ack(reader, first).map(Frame::Ack)
        }
        _ => control(reader, first),
    }
}

#[inline]
fn stream(reader: &mut Reader<Bytes>, first: u8) -> Result<StreamFrame<Bytes>, DecodeError> {
    let stream = StreamId(reader.varint("stream id")?);
    let offset = if first & kind::STREAM_OFFSET == 0 { 0 } else { reader.varint("stream offset")? };
    let len = data_len(reader, first & kind::STREAM_LEN != 0)?;
    if len > VARINT_MAX - offset {
        return Err(reader.out_of_range("length of stream data", len, 0, VARINT_MAX - offset));
    }
    let data = reader.shared("stream data", len)?;
    Ok(StreamFrame { stream, offset, fin: first & kind::STREAM_FIN != 0, data })
}

#[inline]
fn datagram(reader: &mut Reader<Bytes>, first: u8) -> Result<DatagramFrame<Bytes>, DecodeError> {
    let class = reader.u8("datagram class")?;
    if class > Header::MAX_TOS {
        return Err(reader.out_of_range("datagram class", class.into(), 0, Header::MAX_TOS.into()));
    }
    let flow = if first & kind::DATAGRAM_FLOW == 0 { 0 } else { reader.u32("flow hash")? };
    let len = data_len(reader, first & kind::DATAGRAM_LEN != 0)?;
    let data = reader.shared("datagram", len)?;
    Ok(DatagramFrame { class, flow, data })
}

fn marked(reader: &mut Reader<Bytes>, first: u8) -> Result<MarkedFrame<Bytes>, DecodeError> {
    let byte = reader.u8("datagram class")?;
    let (class, marks) = (byte & Header::MAX_TOS, byte & !Header::MAX_TOS);
    let is_coded = marks & kind::MARK_CODED != 0;
    let (numbered, placed) = (marks & kind::MARK_NUMBER != 0, marks & kind::MARK_PLACE != 0);
    let known = kind::MARK_NUMBER | kind::MARK_CODED | kind::MARK_PLACE;
    if marks & !known != 0 || !(numbered || placed) || (is_coded && !numbered) {
        return Err(DecodeError::Unknown {
            what: "marks of a datagram",
            at: reader.at() - 1,
            value: marks.into(),
        });
    }
    let flow = if first & kind::DATAGRAM_FLOW == 0 { 0 } else { reader.u32("flow hash")? };
    let value = if numbered { Some(reader.varint("datagram number")?) } else { None };
    let number = value.map(|value| DatagramNumber { value, is_coded });
    let place = if placed { Some(reader.varint_within("datagram place", 0, MAX_PLACE)?) } else { None };
    let len = data_len(reader, first & kind::DATAGRAM_LEN != 0)?;
    let data = reader.shared("datagram", len)?;
    Ok(MarkedFrame { datagram: DatagramFrame { class, flow, data }, number, place })
}

fn parity(reader: &mut Reader<Bytes>, first: u8) -> Result<ParityFrame<Bytes>, DecodeError> {
    let class = reader.u8("class of a block")?;
    if class > Header::MAX_TOS {
        return Err(reader.out_of_range("class of a block", class.into(), 0, Header::MAX_TOS.into()));
    }
    let last = VARINT_MAX - u64::from(MAX_BLOCK);
    let number = reader.varint_within("first number of a block", 0, last)?;
    let count = small(reader, "datagrams of a block", 1, MAX_BLOCK)?;
    let parities = small(reader, "parity of a block", 1, MAX_BLOCK)?;
    let index = small(reader, "piece of parity", 0, parities - 1)?;
    let head = reader.array("parity of heads")?;
    let len = data_len(reader, first & kind::DATAGRAM_LEN != 0)?;
    if len % 2 != 0 {
        return Err(DecodeError::NotZero { what: "last bit of the length of parity", at: reader.at() });
    }
    let data = reader.shared("parity", len)?;
    Ok(ParityFrame { class, first: number, count, parities, index, head, data })
}

/// A one-byte number within `min..=max`.
fn small(reader: &mut Reader<Bytes>, what: &'static str, min: u8, max: u8) -> Result<u8, DecodeError> {
    let value = reader.u8(what)?;
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(reader.out_of_range(what, value.into(), min.into(), max.into()))
}

#[inline]
fn data_len(reader: &mut Reader<Bytes>, has_len: bool) -> Result<u64, DecodeError> {
    if has_len { reader.varint("data length") } else { Ok(reader.left() as u64) }
}

#[inline]
fn ack(reader: &mut Reader<Bytes>, first: u8) -> Result<Ack, DecodeError> {
    let is_timed = matches!(first, kind::ACK_TIMED | kind::ACK_TIMED_ECN);
    let has_ecn = matches!(first, kind::ACK_ECN | kind::ACK_TIMED_ECN);
    let path = reader.path()?;
    let highest = reader.varint("highest acknowledged")?;
    let delay = Span::from_micros(reader.varint("acknowledgement delay")?.min(Span::MAX.as_micros()));
    let arrived = if is_timed { Some(arrival_time(reader)?) } else { None };
    let more = reader.varint_within("further ranges", 0, MAX_ACK_RANGES as u64 - 1)?;
    let mut ranges = Ranges::new();
    let mut end = highest + 1;
    for left in (0..=more).rev() {
        let len = reader.varint("length of a range")? + 1;
        let start = end.checked_sub(len).ok_or(DecodeError::AckUnderflow { at: reader.at() })?;
        ranges.push(start..end);
        if left > 0 {
            let gap = reader.varint("gap between ranges")? + 1;
            end = start.checked_sub(gap).ok_or(DecodeError::AckUnderflow { at: reader.at() })?;
        }
    }
    let ecn = if has_ecn { Some(ecn_counts(reader)?) } else { None };
    Ok(Ack { path, delay, arrived, ranges, ecn })
}

fn arrival_time(reader: &mut Reader<Bytes>) -> Result<ArrivalTime, DecodeError> {
    Ok(ArrivalTime::from_micros(reader.varint_within("time of arrival", 0, ArrivalTime::LAST)?))
}

fn ecn_counts(reader: &mut Reader<Bytes>) -> Result<EcnCounts, DecodeError> {
    Ok(EcnCounts {
        ect0: reader.varint("ECT(0) count")?,
        ect1: reader.varint("ECT(1) count")?,
        ce: reader.varint("CE count")?,
    })
}

/// Frames other than data and acknowledgements.
fn control(reader: &mut Reader<Bytes>, first: u8) -> Result<Frame<Bytes>, DecodeError> {
    Ok(match first {
        kind::PADDING => padding(reader)?,
        kind::PING => Frame::Ping,
        kind::RESET_STREAM => Frame::ResetStream {
            stream: StreamId(reader.varint("stream id")?),
            code: reader.varint("application code")?,
            final_size: reader.varint("final size")?,
        },
        kind::STOP_SENDING => Frame::StopSending {
            stream: StreamId(reader.varint("stream id")?),
            code: reader.varint("application code")?,
        },
        kind::MAX_DATA => Frame::MaxData { limit: reader.varint("session limit")? },
        kind::MAX_STREAM_DATA => Frame::MaxStreamData {
            stream: StreamId(reader.varint("stream id")?),
            limit: reader.varint("stream limit")?,
            received: reader.varint("received so far")?,
        },
        kind::MAX_STREAMS => Frame::MaxStreams { limit: reader.varint("limit of streams")? },
        kind::PATH_CHALLENGE => Frame::PathChallenge { token: reader.u64("challenge")? },
        kind::PATH_RESPONSE => Frame::PathResponse { token: reader.u64("response")? },
        kind::CLOSE => Frame::Close(close(reader)?),
        kind::NEW_PID => Frame::NewPid(NewPid {
            path: reader.path()?,
            pid: reader.pid()?,
            reset_token: reader.reset_token()?,
        }),
        kind::PATH_ABANDON => {
            Frame::PathAbandon { path: reader.path()?, reason: reader.varint("reason to abandon")? }
        }
        kind::PATH_STATUS => Frame::PathStatus(PathStatus {
            path: reader.path()?,
            sequence: reader.varint("sequence")?,
            usage: path_use(reader)?,
        }),
        kind::MAX_PATH_DATA => {
            Frame::MaxPathData { path: reader.path()?, limit: reader.varint("limit of a path")? }
        }
        kind::MAX_PATH_RATE => Frame::MaxPathRate(PathRate {
            path: reader.path()?,
            sequence: reader.varint("sequence")?,
            bits: reader.varint("rate of a path")?,
        }),
        kind::ACK_PATH => {
            Frame::AckPath(AckPath { sequence: reader.varint("sequence")?, path: ack_path(reader)? })
        }
        kind::ADD_ADDRESS => {
            Frame::AddAddress(AddressFrame { id: reader.varint("address id")?, address: reader.address()? })
        }
        kind::REMOVE_ADDRESS => Frame::RemoveAddress { id: reader.varint("address id")? },
        kind::OBSERVED_ADDRESS => Frame::ObservedAddress { path: reader.path()?, address: reader.address()? },
        kind::REPORT => Frame::Report(Report {
            path: reader.path()?,
            bytes: reader.varint("bytes received")?,
            packets: reader.varint("packets received")?,
            highest_fsn: Fsn(reader.varint("highest FSN")?),
            highest_tsn: reader.varint("highest TSN")?,
        }),
        kind::KEY_EXCHANGE => Frame::KeyExchange(KeyExchange {
            number: reader.varint_within("number of a key exchange", 1, VARINT_MAX)?,
            key: reader.array("public key")?,
        }),
        kind::SHUTDOWN => Frame::Shutdown,
        kind::SHUTDOWN_ACK => Frame::ShutdownAck,
        _ => {
            return Err(DecodeError::Unknown {
                what: "frame type",
                at: reader.at() - 1,
                value: first.into(),
            });
        }
    })
}

fn padding(reader: &mut Reader<Bytes>) -> Result<Frame<Bytes>, DecodeError> {
    let len = reader.u16("length of padding")?;
    let at = reader.at();
    if reader.slice("padding", len.into())?.iter().any(|&byte| byte != 0) {
        return Err(DecodeError::NotZero { what: "padding", at });
    }
    Ok(Frame::Padding(len))
}

fn close(reader: &mut Reader<Bytes>) -> Result<Close, DecodeError> {
    let code = reader.varint("close code")?;
    let len = reader.u8("length of the reason")?;
    let at = reader.at() + usize::from(len);
    let reason = std::str::from_utf8(reader.slice("reason", len.into())?)
        .map_err(|_| DecodeError::NotUtf8 { what: "reason", at })?;
    Ok(Close { code, reason: reason.to_owned() })
}

fn path_use(reader: &mut Reader<Bytes>) -> Result<PathUse, DecodeError> {
    Ok(match reader.u8("use of a path")? {
        0 => PathUse::Normal,
        1 => PathUse::Backup,
        2 => PathUse::Standby,
        3 => PathUse::Metered,
        4 => PathUse::Overflow,
        value => {
            let at = reader.at() - 1;
            return Err(DecodeError::Unknown { what: "use of a path", at, value: value.into() });
        }
    })
}

/// 0 without a path, else the path id plus one.
fn ack_path(reader: &mut Reader<Bytes>) -> Result<Option<PathId>, DecodeError> {
    let value = reader.varint_within("acknowledgement path", 0, u64::from(u32::MAX) + 1)?;
    Ok(value.checked_sub(1).map(|id| PathId(id as u32)))
}
