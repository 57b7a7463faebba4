//! Packets as qlog files, which qvis and its kin open.
//!
//! qlog (draft-ietf-quic-qlog-main-schema) tells of QUIC; a session's packets are shaped like QUIC's, but each path
//! numbers its own. So each end of each path has a file of its own, `NAME-SESSION-path1-client.sqlog` and so on: a JSON text
//! sequence (RFC 7464) with a record that says whose packets these are and one for each packet sent or received; where the
//! sender's figures are known, one whenever they change (`recovery:metrics_updated`). An
//! acknowledgement for another path than the one it travels on is an `unknown` frame with that path's number, as is all that
//! QUIC does not have.

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

/// Most files of a trace.
const MAX_FILES: usize = 256;
/// What ends the names of such files.
pub const EXTENSION: &str = "sqlog";

/// Where packets are seen: an end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// The number of the flow, or the place of sessions that follow each other.
    pub flow: usize,
    /// Which of these.
    pub session: u32,
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

/// What a sender's recovery and congestion control say of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Smoothed round-trip time, zero before the first sample.
    pub smoothed_rtt: Duration,
    /// Lowest round-trip time lately.
    pub min_rtt: Duration,
    /// Variation of the round-trip time.
    pub rtt_variance: Duration,
    /// In bytes.
    pub congestion_window: u64,
    /// Bytes sent and neither acknowledged nor lost.
    pub bytes_in_flight: u64,
}

/// Qlog files that are being written.
pub struct QlogFiles {
    path: PathBuf,
    /// What saw the packets.
    observer: &'static str,
    files: BTreeMap<End, EndFile>,
    /// Names that are taken, in lower case: some file systems take a letter of either case for the same.
    taken: BTreeSet<String>,
}

/// The file of an end.
struct EndFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// The figures that it was told last.
    told: Option<Metrics>,
}

impl QlogFiles {
    /// Files beside `path`, whose name theirs begin with.
    #[must_use]
    pub fn new(path: &Path, observer: &'static str) -> Self {
        Self { path: path.to_owned(), observer, files: BTreeMap::new(), taken: BTreeSet::new() }
    }

    /// Writes a packet to the file of an end, which belongs to the flow of that name.
    ///
    /// # Errors
    /// When a file cannot be written, or there would be too many.
    pub fn add<P: Payload>(&mut self, end: End, flow: &str, packet: &Seen<'_, P>) -> Result<(), Failure> {
        self.file(end, flow)?.record(&event(packet))
    }

    /// Writes what of an end's figures has changed since they were written last, for the flow of that name.
    ///
    /// # Errors
    /// When a file cannot be written, or there would be too many.
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

    /// The file of an end, which is begun when there is none.
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

    /// Ends the files; gives how many there are.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn finish(self) -> Result<usize, Failure> {
        let Self { path, files, .. } = self;
        let count = files.len();
        let flushed = files.into_values().try_for_each(|mut file| file.file.flush());
        flushed.map_err(|error| Failure::file("write", &path, &error)).map(|()| count)
    }
}

/// A path for the file of an end, beside `beside`, whose name no other has.
fn free_path(beside: &Path, taken: &mut BTreeSet<String>, end: End, flow: &str) -> PathBuf {
    let stem = beside.file_stem().unwrap_or_default().to_string_lossy();
    let (flow, path, role) = (file_part(flow), end.path + 1, end.role.name());
    let name = format!("{stem}-{flow}-path{path}-{role}");
    // Names of flows may differ in case or in signs only.
    let others = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.clone()).chain(others);
    let free = names.find(|name| taken.insert(name.to_lowercase())).unwrap_or(name);
    beside.with_file_name(format!("{free}.{EXTENSION}"))
}

impl EndFile {
    /// Writes a record of a JSON text sequence, at once: so the file has whole records at any time.
    fn record(&mut self, value: &Value) -> Result<(), Failure> {
        let record = format!("\u{1e}{value}\n");
        self.file.write_all(record.as_bytes()).map_err(|error| Failure::file("write", &self.path, &error))
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
