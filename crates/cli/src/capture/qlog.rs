//! Packets as qlog files, which qvis and its kin open.
//!
//! qlog (draft-ietf-quic-qlog-main-schema) tells of QUIC; a session's packets are shaped like QUIC's, but each path
//! numbers its own. So each end of each path has a file of its own, `NAME-SESSION-path1-client.sqlog` and so on: a JSON text
//! sequence (RFC 7464) with a record that says whose packets these are and one for each packet sent or received. An
//! acknowledgement for another path than the one it travels on is an `unknown` frame with that path's number, as is all that
//! QUIC does not have.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_wire::{Ack, Frame, Packet, PathId, Payload};
use serde_json::{Value, json};

use crate::errors::Failure;

/// Most files of a trace.
const MAX_FILES: usize = 256;
/// What ends the names of such files.
pub const EXTENSION: &str = "sqlog";

/// Where packets are seen: an end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// The number of the flow or session.
    pub flow: usize,
    /// The number of the path, from 0.
    pub path: usize,
    /// Which of the two ends.
    pub role: Role,
}

/// Which end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It called.
    Client,
    /// It was called.
    Server,
    /// The handshake was not seen.
    Unknown,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Unknown => "unknown",
        }
    }
}

/// A packet that an end sent or received.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a, P: Payload> {
    /// Since the trace began.
    pub at: Duration,
    /// It left this end; else it came.
    pub sent: bool,
    /// UDP payload in bytes.
    pub size: usize,
    /// What it says.
    pub said: Said<'a, P>,
}

/// What a packet says.
#[derive(Clone, Copy, Debug)]
pub enum Said<'a, P: Payload> {
    /// A message of the handshake.
    Handshake,
    /// The other end does not know the session.
    Reset,
    /// Frames.
    Packet(&'a Packet<P>),
}

/// Qlog files that are being written.
pub struct QlogFiles {
    path: PathBuf,
    /// What saw the packets.
    observer: &'static str,
    files: BTreeMap<End, BufWriter<File>>,
}

impl QlogFiles {
    /// Files beside `path`, whose name theirs begin with.
    #[must_use]
    pub fn new(path: &Path, observer: &'static str) -> Self {
        Self { path: path.to_owned(), observer, files: BTreeMap::new() }
    }

    /// Writes a packet to the file of an end, which belongs to the flow of that name.
    ///
    /// # Errors
    /// When a file cannot be written, or there would be too many.
    pub fn add<P: Payload>(&mut self, end: End, flow: &str, packet: &Seen<'_, P>) -> Result<(), Failure> {
        let (path, is_full) = (self.path_of(end, flow), self.files.len() >= MAX_FILES);
        let file = match self.files.entry(end) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => {
                return Err(Failure::local(format!(
                    "a trace of more than {MAX_FILES} ends of paths as qlog"
                ))
                .hint("look at it as pcapng, which is one file for all"));
            }
            Entry::Vacant(place) => {
                let file = File::create(&path).map_err(|error| Failure::file("create", &path, &error))?;
                let file = place.insert(BufWriter::new(file));
                record(file, &opening(&path, self.observer, end))
                    .map_err(|error| Failure::file("write", &path, &error))?;
                file
            }
        };
        record(file, &event(packet)).map_err(|error| Failure::file("write", &path, &error))
    }

    fn path_of(&self, end: End, flow: &str) -> PathBuf {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let (flow, path, role) = (file_part(flow), end.path + 1, end.role.name());
        self.path.with_file_name(format!("{stem}-{flow}-path{path}-{role}.{EXTENSION}"))
    }

    /// Ends the files; gives how many there are.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn finish(self) -> Result<usize, Failure> {
        let Self { path, files, .. } = self;
        let count = files.len();
        let flushed = files.into_values().try_for_each(|mut file| file.flush());
        flushed.map_err(|error| Failure::file("write", &path, &error)).map(|()| count)
    }
}

/// A name as a part of a file's: its letters and digits, in lower case, with dashes for all else.
#[must_use]
pub fn file_part(text: &str) -> String {
    let dashed: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let parts: Vec<&str> = dashed.split('-').filter(|part| !part.is_empty()).collect();
    parts.join("-")
}

/// A record of a JSON text sequence.
fn record(file: &mut impl std::io::Write, value: &Value) -> std::io::Result<()> {
    writeln!(file, "\u{1e}{value}")
}

/// What a file begins with.
fn opening(path: &Path, observer: &str, end: End) -> Value {
    json!({
        "qlog_version": "0.3",
        "qlog_format": "JSON-SEQ",
        "title": path.file_stem().unwrap_or_default().to_string_lossy(),
        "trace": {
            "vantage_point": { "name": observer, "type": end.role.name() },
            "common_fields": {
                "ODCID": format!("{:016x}", end.flow << 8 | end.path),
                "time_format": "relative",
                "reference_time": 0,
            },
        },
    })
}

/// A packet sent or received.
fn event<P: Payload>(packet: &Seen<'_, P>) -> Value {
    let name = if packet.sent { "transport:packet_sent" } else { "transport:packet_received" };
    let (header, frames) = match packet.said {
        Said::Handshake => (json!({ "packet_type": "initial", "packet_number": 0 }), Vec::new()),
        Said::Reset => (json!({ "packet_type": "stateless_reset" }), Vec::new()),
        Said::Packet(sent) => {
            let header =
                json!({ "packet_type": "1RTT", "packet_number": sent.fsn.0, "path_id": sent.path.0 });
            (header, sent.frames.iter().map(|frame| told(frame, sent.path)).collect())
        }
    };
    json!({
        "time": packet.at.as_secs_f64() * 1e3,
        "name": name,
        "data": { "header": header, "raw": { "length": packet.size }, "frames": frames },
    })
}

/// A frame of a packet on a path.
fn told<P: Payload>(frame: &Frame<P>, path: PathId) -> Value {
    match frame {
        Frame::Ping => json!({ "frame_type": "ping" }),
        Frame::Padding(length) => json!({ "frame_type": "padding", "payload_length": length }),
        Frame::Ack(ack) => told_ack(ack, path),
        Frame::Stream(stream) => {
            let mut told = json!({
                "frame_type": "stream", "stream_id": stream.stream.0, "offset": stream.offset,
                "length": stream.data.len(),
            });
            if stream.fin {
                // Only what is true is said.
                told["fin"] = json!(true);
            }
            told
        }
        Frame::ResetStream { stream, code, final_size } => json!({
            "frame_type": "reset_stream", "stream_id": stream.0, "error_code": code, "final_size": final_size,
        }),
        Frame::StopSending { stream, code } => {
            json!({ "frame_type": "stop_sending", "stream_id": stream.0, "error_code": code })
        }
        Frame::MaxData { limit } => json!({ "frame_type": "max_data", "maximum": limit }),
        Frame::MaxStreamData { stream, limit, .. } => {
            json!({ "frame_type": "max_stream_data", "stream_id": stream.0, "maximum": limit })
        }
        Frame::MaxStreams { limit } => {
            json!({ "frame_type": "max_streams", "stream_type": "bidirectional", "maximum": limit })
        }
        Frame::Datagram(datagram) => json!({ "frame_type": "datagram", "length": datagram.data.len() }),
        Frame::PathChallenge { token } => {
            json!({ "frame_type": "path_challenge", "data": format!("{token:016x}") })
        }
        Frame::PathResponse { token } => {
            json!({ "frame_type": "path_response", "data": format!("{token:016x}") })
        }
        Frame::NewPid(new) => json!({
            "frame_type": "new_connection_id", "sequence_number": new.path.0,
            "retire_prior_to": 0, "connection_id_length": 8, "connection_id": format!("{:016x}", new.pid.0),
        }),
        Frame::Close(close) => json!({
            "frame_type": "connection_close", "error_space": "application", "error_code": close.code,
            "reason": close.reason,
        }),
        other => json!({
            "frame_type": "unknown", "raw_frame_type": number(other), "text": format!("{other:?}"),
        }),
    }
}

/// The number by which a frame that QUIC does not have begins (`docs/protocol.md`).
fn number<P: Payload>(frame: &Frame<P>) -> u64 {
    match frame {
        Frame::Marked(_) => 0x34,
        Frame::Parity(_) => 0x38,
        Frame::PathAbandon { .. } => 0x21,
        Frame::MaxPathData { .. } => 0x13,
        Frame::PathStatus(_) => 0x22,
        Frame::AckPath(_) => 0x23,
        Frame::AddAddress(_) => 0x24,
        Frame::RemoveAddress { .. } => 0x25,
        Frame::ObservedAddress { .. } => 0x26,
        Frame::Report(_) => 0x27,
        Frame::Shutdown => 0x28,
        Frame::ShutdownAck => 0x29,
        // QUIC has these.
        _ => 0,
    }
}

fn told_ack(ack: &Ack, path: PathId) -> Value {
    let ranges: Vec<[u64; 2]> = ack.ranges.iter().rev().map(|range| [range.start, range.end - 1]).collect();
    let delay = ack.delay.as_millis_f64();
    if ack.path == path {
        return json!({ "frame_type": "ack", "ack_delay": delay, "acked_ranges": ranges });
    }
    // QUIC's acknowledgements have no path.
    json!({
        "frame_type": "unknown", "raw_frame_type": 0x02, "path_id": ack.path.0, "ack_delay": delay,
        "acked_ranges": ranges,
    })
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Length, StreamFrame, StreamId};

    use super::*;

    /// What the schema of QUIC's events (draft-ietf-quic-qlog-quic-events) asks of these.
    #[test]
    fn padding_has_its_length_and_only_the_last_frame_of_a_stream_says_fin() {
        let told = |frame: Frame<Length>| told(&frame, PathId(0));
        assert_eq!(told(Frame::Padding(7)), json!({ "frame_type": "padding", "payload_length": 7 }));
        let stream = |fin| {
            let frame = StreamFrame { stream: StreamId(4), offset: 10, fin, data: Length(5) };
            told(Frame::Stream(frame))
        };
        let mut expected = json!({ "frame_type": "stream", "stream_id": 4, "offset": 10, "length": 5 });
        assert_eq!(stream(false), expected);
        expected["fin"] = json!(true);
        assert_eq!(stream(true), expected);
    }
}
