//! Writes packets as qlog files, for qvis and similar tools.
//!
//! qlog (draft-ietf-quic-qlog-main-schema) describes QUIC. Packets of a session resemble QUIC's, but each path has its
//! own packet numbers. So each end of each path gets its own file, such as `NAME-SESSION-path1-client.sqlog`. A file
//! is a JSON text sequence (RFC 7464): a header record, one record for each packet sent or received and, if the
//! sender's figures are known, one for each change of them (`recovery:metrics_updated`). Frames that QUIC does not
//! have are `unknown` frames. So are acknowledgements for a path other than the one they travel on; they carry that
//! path's number.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_wire::{Packet, Payload};
use serde_json::Value;

use self::records::{event, metrics_updated, opening};
use crate::errors::Failure;

mod records;

/// The most files per trace.
const MAX_FILES: usize = 256;
/// The suffix of their names.
pub const EXTENSION: &str = "sqlog";

/// The place where packets are seen: one end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// The number of the flow, or the slot of successive sessions.
    pub flow: usize,
    /// The session within the flow or slot.
    pub session: u32,
    /// The number of the path, from 0.
    pub path: usize,
    /// The end of the session.
    pub role: Role,
}

/// An end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It opened the session.
    Client,
    /// It accepted the session.
    Server,
    /// The capture does not include the handshake.
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
    /// Time since the start of the trace.
    pub at: Duration,
    /// Whether this end sent it; otherwise it was received.
    pub sent: bool,
    /// UDP payload in bytes.
    pub size: usize,
    /// Its content.
    pub said: Said<'a, P>,
}

/// The content of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Said<'a, P: Payload> {
    /// A message of the handshake.
    Handshake,
    /// A reset: the other end does not know the session.
    Reset,
    /// Frames.
    Packet(&'a Packet<P>),
}

/// A sender's recovery and congestion control figures for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Smoothed round-trip time, zero before the first sample.
    pub smoothed_rtt: Duration,
    /// Lowest recent round-trip time.
    pub min_rtt: Duration,
    /// Variation of the round-trip time.
    pub rtt_variance: Duration,
    /// Congestion window in bytes.
    pub congestion_window: u64,
    /// Bytes in flight: sent, and neither acknowledged nor lost.
    pub bytes_in_flight: u64,
}

/// A set of open qlog files.
pub struct QlogFiles {
    path: PathBuf,
    /// The kind of observer, as qlog names it.
    observer: &'static str,
    files: BTreeMap<End, EndFile>,
    /// File names in use, in lower case, because some file systems ignore case.
    taken: BTreeSet<String>,
}

struct EndFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// The figures written last.
    told: Option<Metrics>,
}

impl QlogFiles {
    /// Files next to `path` whose names begin with its name.
    pub fn new(path: &Path, observer: &'static str) -> Self {
        Self { path: path.to_owned(), observer, files: BTreeMap::new(), taken: BTreeSet::new() }
    }

    /// Writes a packet to the file of an end of a flow.
    pub fn add<P: Payload>(&mut self, end: End, flow: &str, packet: &Seen<'_, P>) -> Result<(), Failure> {
        self.file(end, flow)?.record(&event(packet))
    }

    /// Writes those figures of an end of a flow that changed since the last record.
    pub fn add_metrics(
        &mut self,
        end: End,
        flow: &str,
        at: Duration,
        metrics: Metrics,
    ) -> Result<(), Failure> {
        let file = self.file(end, flow)?;
        let told = file.told.replace(metrics);
        metrics_updated(at, told, metrics).map_or(Ok(()), |update| file.record(&update))
    }

    /// The file of an end, created on first use.
    fn file(&mut self, end: End, flow: &str) -> Result<&mut EndFile, Failure> {
        let Self { path, observer, files, taken } = self;
        let is_full = files.len() >= MAX_FILES;
        match files.entry(end) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(_) if is_full => {
                Err(Failure::local(format!("a trace of more than {MAX_FILES} ends of paths as qlog"))
                    .hint("look at it as pcapng, which is one file for all"))
            }
            Entry::Vacant(place) => {
                let path = free_path(path, taken, end, flow);
                let file = File::create(&path).map_err(|error| Failure::file("create", &path, &error))?;
                let opening = opening(&path, observer, end);
                let mut file = EndFile { path, file: BufWriter::new(file), told: None };
                file.record(&opening)?;
                Ok(place.insert(file))
            }
        }
    }

    /// Completes the files and returns how many there are.
    pub fn finish(self) -> Result<usize, Failure> {
        let Self { path, files, .. } = self;
        let count = files.len();
        let flushed = files.into_values().try_for_each(|mut file| file.file.flush());
        flushed.map_err(|error| Failure::file("write", &path, &error)).map(|()| count)
    }
}

/// A unique path for the file of an end, next to `beside`.
fn free_path(beside: &Path, taken: &mut BTreeSet<String>, end: End, flow: &str) -> PathBuf {
    let stem = beside.file_stem().unwrap_or_default().to_string_lossy();
    let (flow, path, role) = (file_part(flow), end.path + 1, end.role.name());
    let name = format!("{stem}-{flow}-path{path}-{role}");
    // Names of flows may differ only in case or punctuation.
    let others = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.clone()).chain(others);
    let free = names.find(|name| taken.insert(name.to_lowercase())).unwrap_or(name);
    beside.with_file_name(format!("{free}.{EXTENSION}"))
}

impl EndFile {
    /// Writes a record of a JSON text sequence at once, so the file holds whole records at any time.
    fn record(&mut self, value: &Value) -> Result<(), Failure> {
        let record = format!("\u{1e}{value}\n");
        self.file.write_all(record.as_bytes()).map_err(|error| Failure::file("write", &self.path, &error))
    }
}

/// A name in a form fit for file names: lower-case letters and digits, with dashes for all other characters.
pub fn file_part(text: &str) -> String {
    let dashed: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let parts: Vec<&str> = dashed.split('-').filter(|part| !part.is_empty()).collect();
    parts.join("-")
}
