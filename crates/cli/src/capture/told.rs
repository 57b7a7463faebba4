//! Describes packets as text.

use std::fmt::Write as _;

use anabranch_wire::{Frame, Packet, Payload};

/// Path, number and frames of a packet on one line; data appears as its length only.
#[must_use]
pub fn packet<P: Payload>(packet: &Packet<P>) -> String {
    let mut text = format!("path {} fsn {}", packet.path.0, packet.fsn.0);
    for frame in &packet.frames {
        // Writing to a string cannot fail.
        let _ = match frame {
            Frame::Stream(stream) => {
                let end = stream.offset + stream.data.len() as u64;
                let fin = if stream.fin { " FIN" } else { "" };
                write!(text, ", STREAM {} {}..{end}{fin}", stream.stream.0, stream.offset)
            }
            Frame::Ack(ack) => {
                let arrived = ack.arrived.map_or(String::new(), |at| format!(" at {} µs", at.as_micros()));
                write!(text, ", ACK path {} {:?}{arrived}", ack.path.0, ack.ranges)
            }
            Frame::Datagram(datagram) => {
                write!(text, ", DATAGRAM class {} of {} bytes", datagram.class, datagram.data.len())
            }
            other => write!(text, ", {other:?}"),
        };
    }
    text
}
