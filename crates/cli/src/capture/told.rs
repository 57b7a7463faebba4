//! Describes packets as text.

use std::fmt::{self, Write as _};

use anabranch_wire::{
    Ack, DatagramFrame, Frame, MarkedFrame, Packet, ParityFrame, PathUse, Payload, StreamFrame,
};

/// Path, number and frames of a packet on one line; data appears as its length only.
pub fn packet<P: Payload>(packet: &Packet<P>) -> String {
    let mut text = format!("path {} fsn {}", packet.path.0, packet.fsn.0);
    for frame in &packet.frames {
        text.push_str(", ");
        // Writing to a string cannot fail.
        let _ = write(&mut text, frame);
    }
    text
}

/// A frame by its name in `docs/reference/protocol.md`, with its fields. A PID has the digits of the packets that carry it.
fn write<P: Payload>(text: &mut String, frame: &Frame<P>) -> fmt::Result {
    match frame {
        Frame::Ping => write!(text, "PING"),
        Frame::Padding(length) => write!(text, "PADDING {length} bytes"),
        Frame::Ack(ack) => acknowledgement(text, ack),
        Frame::Stream(StreamFrame { stream, offset, fin, data }) => {
            let (end, fin) = (offset + data.len() as u64, if *fin { " FIN" } else { "" });
            write!(text, "STREAM {} {offset}..{end}{fin}", stream.0)
        }
        Frame::ResetStream { stream, code, final_size } => {
            write!(text, "RESET_STREAM {} code {code} after {final_size} bytes", stream.0)
        }
        Frame::StopSending { stream, code } => write!(text, "STOP_SENDING {} code {code}", stream.0),
        Frame::MaxData { limit } => write!(text, "MAX_DATA {limit}"),
        Frame::MaxStreamData { stream, limit, received } => {
            write!(text, "MAX_STREAM_DATA {} {limit}, received {received}", stream.0)
        }
        Frame::MaxStreams { limit } => write!(text, "MAX_STREAMS {limit}"),
        Frame::Datagram(datagram) => message(text, datagram),
        Frame::Marked(MarkedFrame { datagram, number, place }) => {
            message(text, datagram)?;
            if let Some(number) = number {
                write!(
                    text,
                    " number {}{}",
                    number.value,
                    if number.is_coded { " with parity" } else { "" }
                )?;
            }
            place.map_or(Ok(()), |place| write!(text, " place {place}"))
        }
        Frame::Parity(ParityFrame { class, first, count, parities, index, .. }) => {
            let end = first.saturating_add((*count).into());
            write!(text, "PARITY class {class} {} of {parities} for {first}..{end}", u16::from(*index) + 1)
        }
        Frame::PathChallenge { token } => write!(text, "PATH_CHALLENGE {token:016x}"),
        Frame::PathResponse { token } => write!(text, "PATH_RESPONSE {token:016x}"),
        Frame::NewPid(new) => write!(text, "NEW_PID path {} {}", new.path.0, new.pid),
        Frame::PathAbandon { path, reason } => write!(text, "PATH_ABANDON path {} reason {reason}", path.0),
        Frame::PathStatus(status) => {
            let usage = match status.usage {
                PathUse::Normal => "normal",
                PathUse::Backup => "backup",
                PathUse::Metered => "metered",
                PathUse::Overflow => "overflow",
                PathUse::Standby => "standby",
            };
            write!(text, "PATH_STATUS path {} {usage}, request {}", status.path.0, status.sequence)
        }
        Frame::MaxPathData { path, limit } => write!(text, "MAX_PATH_DATA path {} {limit}", path.0),
        Frame::MaxPathRate(rate) => {
            write!(text, "MAX_PATH_RATE path {} {} bit/s, request {}", rate.path.0, rate.bits, rate.sequence)
        }
        Frame::AckPath(choice) => match choice.path {
            Some(path) => write!(text, "ACK_PATH path {}, choice {}", path.0, choice.sequence),
            None => write!(text, "ACK_PATH none, choice {}", choice.sequence),
        },
        Frame::AddAddress(added) => write!(text, "ADD_ADDRESS {} {}", added.id, added.address),
        Frame::RemoveAddress { id } => write!(text, "REMOVE_ADDRESS {id}"),
        Frame::ObservedAddress { path, address } => {
            write!(text, "OBSERVED_ADDRESS path {} {address}", path.0)
        }
        Frame::Report(report) => write!(
            text,
            "REPORT path {} {} packets {} bytes, highest fsn {} tsn {}",
            report.path.0, report.packets, report.bytes, report.highest_fsn.0, report.highest_tsn
        ),
        Frame::KeyExchange(exchange) => write!(text, "KEY_EXCHANGE {}", exchange.number),
        Frame::Shutdown => write!(text, "SHUTDOWN"),
        Frame::ShutdownAck => write!(text, "SHUTDOWN_ACK"),
        Frame::Close(close) => write!(text, "CLOSE code {} {:?}", close.code, close.reason),
    }
}

/// Packet numbers as `5..9`, the last one excluded as in streams; a single one as itself.
fn acknowledgement(text: &mut String, ack: &Ack) -> fmt::Result {
    write!(text, "ACK path {}", ack.path.0)?;
    for range in ack.ranges.iter().rev() {
        match range.end - range.start {
            1 => write!(text, " {}", range.start)?,
            _ => write!(text, " {}..{}", range.start, range.end)?,
        }
    }
    write!(text, " after {}", ack.delay)?;
    if let Some(at) = ack.arrived {
        write!(text, ", arrived at {} µs", at.as_micros())?;
    }
    ack.ecn.map_or(Ok(()), |ecn| write!(text, ", ECN {} {} {}", ecn.ect0, ecn.ect1, ecn.ce))
}

fn message<P: Payload>(text: &mut String, datagram: &DatagramFrame<P>) -> fmt::Result {
    write!(text, "DATAGRAM class {} of {} bytes", datagram.class, datagram.data.len())
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Fsn, KeyExchange, Length, NewPid, PathId, Pid, Ranges, ResetToken, Span};

    use super::*;

    #[test]
    fn fields_are_words_and_a_pid_is_written_as_in_the_header() {
        let ranges: Ranges = [7..10, 3..4].into_iter().collect();
        let ack = Ack { path: PathId(2), delay: Span::from_micros(25), arrived: None, ranges, ecn: None };
        let pid = Pid(0xab_cdef);
        let frames: Vec<Frame<Length>> = vec![
            Frame::Ack(ack),
            Frame::NewPid(NewPid { path: PathId(4), pid, reset_token: ResetToken([7; 16]) }),
            Frame::KeyExchange(KeyExchange { number: 3, key: [9; 32] }),
            Frame::AckPath(anabranch_wire::AckPath { sequence: 1, path: None }),
        ];
        let text = packet(&Packet { path: PathId(0), fsn: Fsn(12), frames: frames.into() });
        let wanted = "path 0 fsn 12, ACK path 2 3 7..10 after 25.0 µs, NEW_PID path 4 0000000000abcdef, \
                      KEY_EXCHANGE 3, ACK_PATH none, choice 1";
        assert_eq!(text, wanted);
    }
}
