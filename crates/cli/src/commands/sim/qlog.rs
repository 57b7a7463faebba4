//! Packets of a run as qlog files, which qvis and its kin open.
//!
//! qlog (draft-ietf-quic-qlog-main-schema) tells of QUIC; a session's packets are shaped like QUIC's, but each path
//! numbers its own. So each end of each path has a file of its own, `NAME-FLOW-path1-client.sqlog` and so on: a JSON text
//! sequence (RFC 7464) with a record that says whose packets these are and one for each packet sent or received. An
//! acknowledgement for another path than the one it travels on is an `unknown` frame with that path's number, as is all that
//! QUIC does not have.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anabranch_sim::scenario::{Captured, Group};
use anabranch_wire::{Ack, Frame, Length, Message, PathId, Time};
use serde_json::{Value, json};

use super::plots::file_part;
use super::trace::flow_names;
use crate::errors::Failure;

/// Most files of a trace.
const MAX_FILES: usize = 256;
/// What ends the names of such files.
pub(super) const EXTENSION: &str = "sqlog";

/// The flow, the path and whether it is the server's end.
type End = (usize, usize, bool);

/// Qlog files that are being written.
pub(super) struct Qlog {
    path: PathBuf,
    /// Names of the plan's flows.
    names: Vec<String>,
    files: BTreeMap<End, BufWriter<File>>,
    /// What went wrong first.
    error: Option<Failure>,
}

impl Qlog {
    /// Files beside `path`, whose name theirs begin with.
    pub(super) fn new(path: &Path, groups: &[Group]) -> Self {
        Self { path: path.to_owned(), names: flow_names(groups), files: BTreeMap::new(), error: None }
    }

    /// Writes a packet; what goes wrong is told in the end.
    pub(super) fn add(&mut self, packet: &Captured) {
        if self.error.is_none()
            && let Err(error) = self.write(packet)
        {
            self.error = Some(error);
        }
    }

    fn write(&mut self, packet: &Captured) -> Result<(), Failure> {
        let end = (packet.flow, packet.path, packet.to_server != packet.sent);
        let (path, is_full) = (self.path_of(end), self.files.len() >= MAX_FILES);
        let file = match self.files.entry(end) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => {
                let message = format!("a trace of more than {MAX_FILES} ends of paths as qlog");
                return Err(Failure::local(message).hint("write it as pcapng, which is one file for all"));
            }
            Entry::Vacant(place) => {
                let file = File::create(&path).map_err(|error| Failure::file("create", &path, &error))?;
                let mut file = BufWriter::new(file);
                record(&mut file, &opening(&path, end))
                    .map_err(|error| Failure::file("write", &path, &error))?;
                place.insert(file)
            }
        };
        record(file, &event(packet)).map_err(|error| Failure::file("write", &path, &error))
    }

    fn path_of(&self, (flow, path, at_server): End) -> PathBuf {
        let name = self.names.get(flow).map_or_else(|| format!("flow {flow}"), Clone::clone);
        let end = if at_server { "server" } else { "client" };
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let path = path + 1;
        self.path.with_file_name(format!("{stem}-{}-path{path}-{end}.{EXTENSION}", file_part(&name)))
    }

    /// Ends the files.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Self { path, files, error, .. } = self;
        let flushed = files.into_values().try_for_each(|mut file| file.flush());
        error.map_or(Ok(()), Err)?;
        flushed.map_err(|error| Failure::file("write", &path, &error))
    }
}

/// A record of a JSON text sequence.
fn record(file: &mut impl std::io::Write, value: &Value) -> std::io::Result<()> {
    writeln!(file, "\u{1e}{value}")
}

/// What a file begins with.
fn opening(path: &Path, (flow, number, at_server): End) -> Value {
    let end = if at_server { "server" } else { "client" };
    json!({
        "qlog_version": "0.3",
        "qlog_format": "JSON-SEQ",
        "title": path.file_stem().unwrap_or_default().to_string_lossy(),
        "trace": {
            "vantage_point": { "name": "anabranch sim", "type": end },
            "common_fields": {
                "ODCID": format!("{:016x}", flow << 8 | number),
                "time_format": "relative",
                "reference_time": 0,
            },
        },
    })
}

/// A packet sent or received.
fn event(packet: &Captured) -> Value {
    let name = if packet.sent { "transport:packet_sent" } else { "transport:packet_received" };
    let (header, frames) = match &packet.message {
        Message::Init(_) | Message::InitAck(_) => {
            (json!({ "packet_type": "initial", "packet_number": 0 }), Vec::new())
        }
        Message::Reset(_) => (json!({ "packet_type": "stateless_reset" }), Vec::new()),
        Message::Packet(sent) => {
            let header =
                json!({ "packet_type": "1RTT", "packet_number": sent.fsn.0, "path_id": sent.path.0 });
            (header, sent.frames.iter().map(|frame| told(frame, sent.path)).collect())
        }
    };
    json!({
        "time": packet.at.since(Time::ZERO).as_millis_f64(),
        "name": name,
        "data": { "header": header, "raw": { "length": packet.size }, "frames": frames },
    })
}

/// A frame of a packet on a path.
fn told(frame: &Frame<Length>, path: PathId) -> Value {
    match frame {
        Frame::Ping => json!({ "frame_type": "ping" }),
        Frame::Padding(length) => json!({ "frame_type": "padding", "length": length }),
        Frame::Ack(ack) => told_ack(ack, path),
        Frame::Stream(stream) => json!({
            "frame_type": "stream", "stream_id": stream.stream.0, "offset": stream.offset,
            "length": stream.data.0, "fin": stream.fin,
        }),
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
        Frame::Datagram(datagram) => json!({ "frame_type": "datagram", "length": datagram.data.0 }),
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
fn number(frame: &Frame<Length>) -> u64 {
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
    use super::*;
    use anabranch_sim::scenario::{Extras, Scenario};

    #[test]
    fn each_end_of_each_path_has_a_file_of_records_in_order_of_time() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = Scenario::parse(include_str!("test.toml"), "test").unwrap();
        let mut qlog = Qlog::new(&folder.path().join("x.sqlog"), &scenario.build(1).unwrap().groups);
        let mut note = |packet: &Captured| qlog.add(packet);
        scenario.run_with(1, Extras { trace: Some(&mut note), ..Extras::default() }).unwrap();
        qlog.finish().unwrap();
        let records = |name: &str| -> Vec<Value> {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            let records = text.split('\u{1e}').skip(1);
            records.map(|record| serde_json::from_str(record).unwrap()).collect()
        };
        for (path, end) in [(1, "client"), (1, "server"), (2, "client"), (2, "server")] {
            let records = records(&format!("x-m-path{path}-{end}.sqlog"));
            assert_eq!(records[0]["trace"]["vantage_point"]["type"], end);
            let times: Vec<f64> = records[1..].iter().map(|event| event["time"].as_f64().unwrap()).collect();
            assert!(times.is_sorted() && times.len() > 500, "{}", times.len());
            let of = |name: &str| records.iter().filter(|event| event["name"] == name).count();
            let (sent, received) = (of("transport:packet_sent"), of("transport:packet_received"));
            assert!((sent > received) == (end == "client"), "{path} {end}: {sent} and {received}");
        }
        let first_numbers = |name: &str| -> Vec<u64> {
            let sent = records(name).into_iter().filter(|event| event["name"] == "transport:packet_sent");
            sent.filter_map(|event| event["data"]["header"]["packet_number"].as_u64()).collect()
        };
        assert!(first_numbers("x-m-path2-client.sqlog").is_sorted());
        let frames = records("x-m-path1-client.sqlog")
            .into_iter()
            .flat_map(|event| event["data"]["frames"].as_array().cloned().unwrap_or_default());
        // What readers of qlog ask for in these.
        let wanted = [("new_connection_id", "retire_prior_to"), ("unknown", "raw_frame_type")];
        let mut told = 0;
        for frame in frames {
            let key = wanted.iter().find(|(kind, _)| frame["frame_type"] == *kind).map(|(_, key)| *key);
            assert!(key.is_none_or(|key| frame[key].is_u64()), "{frame}");
            told += usize::from(key.is_some());
        }
        assert!(told > 0);
    }
}
