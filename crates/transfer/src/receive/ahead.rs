//! Requests ahead of their replies, in groups: each hand-over between threads serves many small files.
//!
//! A group is passed on when it is full or [`DELAY`] old, and before the planner waits. The writer gets what it needs to
//! know before the request is sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::job::FileJob;
use super::part::PartFile;
use super::queue::{Input, Output, queue};
use crate::error::TransferError;
use crate::hash::BlockHash;
use crate::message::Request;

/// Requests in a group.
const GROUP: usize = 64;
/// Requests ahead of their replies, but for a group.
const IN_FLIGHT: usize = 1024;
/// Groups that wait for room in the stream.
const GROUPS: usize = 16;
/// How long a request waits for others while the planner works.
const DELAY: Duration = Duration::from_millis(2);

/// A request without a reply yet, with what the writer needs to know.
pub(crate) enum InFlight {
    Fetch(Fetch),
    /// Asks for the sender's hash, to compare it with that of the existing file.
    Compare(Arc<FileJob>),
    /// Planning failed.
    Stop(TransferError),
}

/// Requested blocks.
pub(crate) struct Fetch {
    pub job: Arc<FileJob>,
    /// The unfinished file, if there is one; in the first request for a file.
    pub part: Option<PartFile>,
    /// Hashes of blocks on the disk, sent with the request.
    pub held: Vec<BlockHash>,
    pub first: u64,
    pub count: u64,
    pub last: bool,
}

/// The writer or the stream has ended, and reports the reason.
pub(crate) struct Gone;

/// The planner's end of the channels.
pub(crate) struct Asker {
    requests: mpsc::Sender<Vec<Request>>,
    in_flight: Input<InFlight>,
    asked: Vec<Request>,
    waiting: Vec<InFlight>,
    /// When the last group was passed on.
    passed: Option<Instant>,
}

/// The channels of requests: from the planner to the stream and to the writer.
pub(crate) fn channels() -> (Asker, mpsc::Receiver<Vec<Request>>, Output<InFlight>) {
    let (requests, to_send) = mpsc::channel(GROUPS);
    let (in_flight, to_write) = queue(IN_FLIGHT);
    let asker = Asker { requests, in_flight, asked: Vec::new(), waiting: Vec::new(), passed: None };
    (asker, to_send, to_write)
}

impl Asker {
    /// Adds a request to the current group.
    pub fn ask(&mut self, request: Request, in_flight: InFlight) -> Result<(), Gone> {
        self.asked.push(request);
        self.waiting.push(in_flight);
        if self.asked.len() >= GROUP { self.pass_on() } else { self.pass_on_old() }
    }

    /// Passes the current group on if it has waited long enough.
    pub fn pass_on_old(&mut self) -> Result<(), Gone> {
        let waits = !self.asked.is_empty() && self.passed.is_some_and(|passed| passed.elapsed() < DELAY);
        if waits { Ok(()) } else { self.pass_on() }
    }

    /// Passes the current group on.
    pub fn pass_on(&mut self) -> Result<(), Gone> {
        if self.asked.is_empty() {
            return Ok(());
        }
        if !self.in_flight.put(&mut self.waiting) {
            return Err(Gone);
        }
        let sent = self.requests.blocking_send(std::mem::take(&mut self.asked)).map_err(|_| Gone);
        self.passed = Some(Instant::now());
        sent
    }

    /// Gives the sender a sign of life.
    pub fn wait(&mut self) -> Result<(), Gone> {
        self.pass_on()?;
        self.requests.blocking_send(vec![Request::Wait]).map_err(|_| Gone)
    }

    /// Ends the writer with this error, unless it has ended: then its own error is reported.
    pub fn stop(mut self, error: TransferError) {
        if self.pass_on().is_ok() {
            self.in_flight.put(&mut vec![InFlight::Stop(error)]);
        }
    }

    /// True when the stream has ended.
    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }
}
