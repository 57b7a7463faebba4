//! Builds the records of a qlog file.

use std::path::Path;
use std::time::Duration;

use anabranch_wire::{Ack, Frame, PathId, Payload};
use serde_json::{Map, Value, json};

use super::{End, Metrics, Said, Seen};

/// The header record of a file.
pub(super) fn opening(path: &Path, observer: &str, end: End) -> Value {
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
pub(super) fn event<P: Payload>(packet: &Seen<'_, P>) -> Value {
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
        "time": milliseconds(packet.at),
        "name": name,
        "data": { "header": header, "raw": { "length": packet.size }, "frames": frames },
    })
}

/// A record of the sender's figures that changed since the last record; `None` if none did.
pub(super) fn metrics_updated(at: Duration, told: Option<Metrics>, metrics: Metrics) -> Option<Value> {
    let before = told.map(figures);
    let changed = figures(metrics).into_iter().enumerate().filter(|(index, (_, figure))| {
        // An unmeasured path has no round-trip time.
        before.as_ref().map_or(*figure != json!(0.0), |before| before[*index].1 != *figure)
    });
    let data: Map<String, Value> = changed.map(|(_, (name, figure))| (name.to_owned(), figure)).collect();
    (!data.is_empty())
        .then(|| json!({ "time": milliseconds(at), "name": "recovery:metrics_updated", "data": data }))
}

/// The figures under their qlog names.
fn figures(metrics: Metrics) -> [(&'static str, Value); 5] {
    [
        ("smoothed_rtt", json!(milliseconds(metrics.smoothed_rtt))),
        ("min_rtt", json!(milliseconds(metrics.min_rtt))),
        ("rtt_variance", json!(milliseconds(metrics.rtt_variance))),
        ("congestion_window", json!(metrics.congestion_window)),
        ("bytes_in_flight", json!(metrics.bytes_in_flight)),
    ]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
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
                // The schema omits false flags.
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

/// The type number of a frame that QUIC does not have (`docs/reference/protocol.md`).
fn number<P: Payload>(frame: &Frame<P>) -> u64 {
    match frame {
        Frame::Marked(_) => 0x34,
        Frame::Parity(_) => 0x38,
        Frame::PathAbandon { .. } => 0x21,
        Frame::MaxPathData { .. } => 0x13,
        Frame::KeyExchange(_) => 0x14,
        Frame::MaxPathRate(_) => 0x15,
        Frame::PathStatus(_) => 0x22,
        Frame::AckPath(_) => 0x23,
        Frame::AddAddress(_) => 0x24,
        Frame::RemoveAddress { .. } => 0x25,
        Frame::ObservedAddress { .. } => 0x26,
        Frame::Report(_) => 0x27,
        Frame::Shutdown => 0x28,
        Frame::ShutdownAck => 0x29,
        // QUIC has these frames.
        _ => 0,
    }
}

fn told_ack(ack: &Ack, path: PathId) -> Value {
    let ranges: Vec<[u64; 2]> = ack.ranges.iter().rev().map(|range| [range.start, range.end - 1]).collect();
    let delay = ack.delay.as_millis_f64();
    if ack.path == path {
        return json!({ "frame_type": "ack", "ack_delay": delay, "acked_ranges": ranges });
    }
    // QUIC's acknowledgements do not name a path.
    json!({
        "frame_type": "unknown", "raw_frame_type": 0x02, "path_id": ack.path.0, "ack_delay": delay,
        "acked_ranges": ranges,
    })
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Length, StreamFrame, StreamId};

    use super::*;

    /// Required by the schema of QUIC's events (draft-ietf-quic-qlog-quic-events).
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

    #[test]
    fn only_figures_that_changed_are_told() {
        let metrics = Metrics {
            smoothed_rtt: Duration::ZERO,
            min_rtt: Duration::ZERO,
            rtt_variance: Duration::ZERO,
            congestion_window: 12_000,
            bytes_in_flight: 1_200,
        };
        let at = Duration::from_millis(1500);
        let first = metrics_updated(at, None, metrics).unwrap();
        assert_eq!(first["data"], json!({ "congestion_window": 12_000, "bytes_in_flight": 1_200 }));
        assert_eq!([&first["name"], &first["time"]], [&json!("recovery:metrics_updated"), &json!(1500.0)]);
        assert_eq!(metrics_updated(at, Some(metrics), metrics), None);
        let measured = Metrics { smoothed_rtt: Duration::from_micros(20_500), ..metrics };
        let second = metrics_updated(at, Some(metrics), measured).unwrap();
        assert_eq!(second["data"], json!({ "smoothed_rtt": 20.5 }));
        let empty = Metrics { bytes_in_flight: 0, ..measured };
        assert_eq!(
            metrics_updated(at, Some(measured), empty).unwrap()["data"],
            json!({ "bytes_in_flight": 0 })
        );
    }
}
