//! Packets of a run as qlog files ([`crate::capture::qlog`]).

use std::path::Path;
use std::time::Duration;

use anabranch_experiments::scenario::{Captured, Group, PathMetrics};
use anabranch_wire::{Message, Span, Time};

use super::trace::{flow_name, flow_names};
use crate::capture::qlog::{End, Metrics, QlogFiles, Role, Said, Seen};
use crate::errors::Failure;

/// The qlog files of a run.
pub(super) struct Qlog {
    files: QlogFiles,
    /// Names of the plan's flows.
    names: Vec<String>,
    /// The first error.
    error: Option<Failure>,
}

impl Qlog {
    /// Files next to `path` whose names begin with its name.
    pub(super) fn new(path: &Path, groups: &[Group]) -> Self {
        Self { files: QlogFiles::new(path, "anabranch sim"), names: flow_names(groups), error: None }
    }

    /// Writes a packet; false if the files take no more. `finish` returns the error.
    pub(super) fn add(&mut self, packet: &Captured) -> bool {
        if self.error.is_none()
            && let Err(error) = self.write(packet)
        {
            self.error = Some(error);
        }
        self.error.is_none()
    }

    fn write(&mut self, packet: &Captured) -> Result<(), Failure> {
        let at_server = packet.to_server != packet.sent;
        let role = if at_server { Role::Server } else { Role::Client };
        let end = End { flow: packet.flow, session: packet.session, path: packet.path, role };
        let name = flow_name(&self.names, packet);
        let said = match &packet.message {
            Message::Init(_) | Message::InitAck(_) => Said::Handshake,
            Message::Reset(_) => Said::Reset,
            Message::Packet(sent) => Said::Packet(sent),
        };
        let at = duration(packet.at.since(Time::ZERO));
        self.files.add(end, &name, &Seen { at, sent: packet.sent, size: packet.size as usize, said })?;
        packet.metrics.map_or(Ok(()), |found| self.files.add_metrics(end, &name, at, metrics(found)))
    }

    /// Completes the files.
    pub(super) fn finish(self) -> Result<(), Failure> {
        self.error.map_or(Ok(()), Err)?;
        self.files.finish().map(|_| ())
    }
}

fn metrics(found: PathMetrics) -> Metrics {
    Metrics {
        smoothed_rtt: duration(found.rtt),
        min_rtt: duration(found.min_rtt),
        rtt_variance: duration(found.rtt_variance),
        congestion_window: found.window,
        bytes_in_flight: found.in_flight,
    }
}

fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.as_nanos())
}

#[cfg(test)]
mod tests {
    use anabranch_experiments::scenario::{Extras, Scenario};
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_end_of_each_path_has_a_file_of_records_in_order_of_time() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = Scenario::parse(include_str!("test.toml"), "test").unwrap();
        let mut qlog = Qlog::new(&folder.path().join("x.sqlog"), &scenario.build(1).unwrap().groups);
        let mut note = |packet: &Captured| assert!(qlog.add(packet));
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
        let metrics: Vec<Value> = records("x-m-path2-client.sqlog")
            .into_iter()
            .filter(|event| event["name"] == "recovery:metrics_updated")
            .collect();
        let told =
            |name: &str| metrics.iter().filter_map(|event| event["data"][name].as_f64()).collect::<Vec<_>>();
        let (windows, flights) = (told("congestion_window"), told("bytes_in_flight"));
        assert!(windows.len() > 50 && windows.iter().all(|window| *window >= 2_400.0), "{windows:?}");
        assert!(windows[windows.len() - 1] > windows[0] && flights.len() > 500, "{windows:?}");
        let (lowest, smoothed) = (told("min_rtt"), told("smoothed_rtt"));
        assert!(
            !lowest.is_empty() && smoothed.iter().all(|rtt| *rtt >= lowest[lowest.len() - 1]),
            "{smoothed:?}"
        );
        assert!(first_numbers("x-m-path2-client.sqlog").is_sorted());
        let frames = records("x-m-path1-client.sqlog")
            .into_iter()
            .flat_map(|event| event["data"]["frames"].as_array().cloned().unwrap_or_default());
        // Fields that readers of qlog require.
        let wanted = [("new_connection_id", "retire_prior_to"), ("unknown", "raw_frame_type")];
        let mut told = 0;
        for frame in frames {
            let key = wanted.iter().find(|(kind, _)| frame["frame_type"] == *kind).map(|(_, key)| *key);
            assert!(key.is_none_or(|key| frame[key].is_u64()), "{frame}");
            told += usize::from(key.is_some());
        }
        assert!(told > 0);
    }

    #[test]
    fn no_two_ends_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let text = include_str!("test.toml").to_owned()
            + "\n[[flow]]\nname = \"m\"\npaths = [\"a\"]\n[[arrivals]]\nname = \"web\"\npaths = [\"b\"]\nrate = [\"10 /s\"]\nsize = \"5 kB\"\n";
        let scenario = Scenario::parse(&text, "test").unwrap();
        let mut qlog = Qlog::new(&folder.path().join("x.sqlog"), &scenario.build(1).unwrap().groups);
        let mut note = |packet: &Captured| assert!(qlog.add(packet));
        scenario.run_with(1, Extras { trace: Some(&mut note), ..Extras::default() }).unwrap();
        qlog.finish().unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let name_of = |path: &std::path::Path| path.file_name().unwrap().to_string_lossy().into_owned();
        for path in &names {
            let text = std::fs::read_to_string(path).unwrap();
            let records: Vec<Value> =
                text.split('\u{1e}').skip(1).map(|record| serde_json::from_str(record).unwrap()).collect();
            let sent = records.iter().filter(|event| event["name"] == "transport:packet_sent");
            let numbers: Vec<u64> =
                sent.filter_map(|event| event["data"]["header"]["packet_number"].as_u64()).collect();
            assert!(numbers.is_sorted(), "{}", name_of(path));
        }
        let names: Vec<String> = names.iter().map(|path| name_of(path)).collect();
        for wanted in [
            "x-m-path1-client.sqlog",
            "x-m-path1-client-2.sqlog",
            "x-arrival-place-1-session-2-path1-client.sqlog",
        ] {
            assert!(names.iter().any(|name| name == wanted), "{wanted}: {names:?}");
        }
    }
}
