//! Connects a session to a transfer and its display.
//!
//! [`Carrier`] gives a transfer its streams, and [`Gauge`] gives the display its lines; both are handles to one
//! session. If a session ends early, [`Carrier::explain`] turns the reason into a transfer error.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anabranch_engine::{IdleReason, PathInfo, PathState, Standing};
use anabranch_net::{CloseReason, Datagram, Meter, Session, Stream};
use anabranch_transfer::{Connection, Progress, Snapshot, TransferError};
use anabranch_wire::{PathUse, Span, bytes_in_words, close_code};
use bytes::Bytes;

pub use anabranch_node::OTHER_COMMAND;

use crate::errors::{Failure, Kind};
use crate::ui::paths::{Direction, PathMeter, PathNames};
use crate::ui::snapshot::{PathLine, ProgressSnapshot};

/// Close code for a session that its user ended; the protocol uses 0x100 and above.
const INTERRUPTED: u64 = 1;
/// Close code for a session whose ticket was revoked.
const REVOKED: u64 = 2;
/// Close code for a session whose client came again.
const REPLACED: u64 = 3;
/// Close code for a session whose server stopped, perhaps to start again with the same tickets.
const AWAY: u64 = 4;
/// Close code for a session that cannot go on because data caps of this end are used up.
const USED_UP: u64 = 6;
/// The shortest wait for another path when caps are used up.
pub const CAP_PATIENCE: Duration = Duration::from_secs(3);
/// The shortest such wait if there was a path whose cap is not used up: it may come back. The session lasts that long
/// without an answer.
const COMES_BACK: Duration = Duration::from_secs(25);
/// How long an answer may take, with three round-trip times in addition.
const ANSWER: Duration = Duration::from_secs(1);
/// Time between two updates of the display.
pub const REDRAW: Duration = Duration::from_millis(100);
/// How long to wait for the reason of a session's end after its streams end: it may come in a later packet.
const REASON: Duration = Duration::from_millis(500);
/// How long a finished session may take to close in agreement with the other end.
const FAREWELL: Duration = Duration::from_secs(1);

/// A session that carries a transfer.
#[derive(Clone, Debug)]
pub struct Carrier(Session);

impl Connection for Carrier {
    type Stream = Stream;

    async fn open(&self) -> io::Result<Stream> {
        Ok(self.0.open_stream().await?)
    }

    async fn accept(&self) -> io::Result<Stream> {
        Ok(self.0.accept_stream().await?)
    }

    fn unacknowledged(&self) -> usize {
        usize::try_from(self.0.stats().bytes_unacknowledged).unwrap_or(usize::MAX)
    }
}

impl Carrier {
    /// A carrier over `session`.
    pub fn new(session: Session) -> Self {
        Self(session)
    }

    /// A gauge for this session and for the transfer that updates `progress`.
    pub fn gauge(&self, direction: Direction, progress: &Progress) -> Gauge {
        let (meter, names) = (PathMeter::new(direction), PathNames::default());
        let (session, progress) = (self.0.clone(), progress.clone());
        Gauge { session, meter, names, progress, direction, acknowledged: 0, is_complete: false }
    }

    /// The other end's address, if there is a path.
    pub fn address(&self) -> Option<IpAddr> {
        self.0.remote_ip()
    }

    /// The other end's address as text; its key while there is no path.
    pub fn peer_name(&self) -> String {
        self.address().map_or_else(|| self.0.peer().to_string(), |address| address.to_string())
    }

    /// Why the transfer failed: the reason for the session's end, if the session ended first.
    pub async fn explain(&self, error: TransferError) -> Failure {
        if matches!(error, TransferError::Stalled { .. }) {
            return self.used_up_caps().unwrap_or_else(|| error.into());
        }
        let TransferError::Connection(_) = error else { return error.into() };
        // Without a reason, the streams' error is used.
        let _ = tokio::time::timeout(REASON, self.0.closed()).await;
        let lost = |message: String| Failure::new(Kind::Unreachable, message);
        match self.0.close_reason() {
            Some(CloseReason::Peer { code: REVOKED, reason }) => {
                Failure::new(Kind::Refused, "the other end stopped")
                    .said(reason)
                    .hint("ask for another ticket")
            }
            Some(CloseReason::Peer { code: OTHER_COMMAND, reason }) => {
                Failure::new(Kind::Refused, "the other end has no files for this command")
                    .said(reason)
                    .hint("`anabranch send` and `anabranch serve` print tickets for files")
            }
            Some(CloseReason::Peer { code: USED_UP, reason }) => {
                lost("the other end has used up its data caps".into())
                    .said(reason)
                    .hint("go on when the other end has another path or a new period")
            }
            Some(CloseReason::Peer { reason, .. }) => lost("the other end stopped".into()).said(reason),
            Some(CloseReason::Finished) => lost("the other end stopped".into()),
            Some(CloseReason::IdleTimeout) => self.used_up_caps().unwrap_or_else(|| {
                lost("the other end fell silent on every path".into()).detail(self.last_paths())
            }),
            Some(CloseReason::Local { reason, .. }) => lost(format!("this end stopped: {reason}")),
            Some(CloseReason::Reset) => lost("the other end no longer knows this session".into()),
            Some(CloseReason::Protocol(what)) => {
                Failure::new(Kind::Corrupt, format!("the other end broke the protocol: {what}"))
            }
            _ => error.into(),
        }
    }

    /// True if a new session may work: neither end wanted this one to end, or the other end may start again. After a
    /// failure of one end that is so only if this session `moved` data: another one may fail at once.
    pub fn was_lost(&self, moved: bool) -> bool {
        let reason = self.0.close_reason();
        let is_lost = reason.is_some_and(|reason| match reason {
            CloseReason::IdleTimeout | CloseReason::Reset => true,
            reason => moved && has_failed(&reason),
        });
        is_lost || self.was_left()
    }

    /// True if the other end stopped and may start again. One that is about to exit ends new sessions without a reason.
    pub fn was_left(&self) -> bool {
        use CloseReason::{Finished, Peer};
        matches!(self.0.close_reason(), Some(Finished | Peer { code: AWAY, .. }))
    }

    fn last_paths(&self) -> String {
        let paths = self.0.paths();
        let each = paths.iter().map(|path| label(&self.0, &path.route)).collect::<Vec<_>>();
        format!("paths   {}", each.join(", "))
    }

    /// The failure if used-up caps keep every open path idle; `None` if there is no open path, or one without such a cap.
    pub fn used_up_caps(&self) -> Option<Failure> {
        let is_open = |path: &PathInfo| !matches!(path.state, PathState::Validating | PathState::Closing);
        let rules = self.0.path_rules();
        let mut caps: Vec<String> = Vec::new();
        for path in self.0.paths().iter().filter(|path| is_open(path)) {
            let cap = match path.standing {
                Standing::Idle(IdleReason::CapReached { cap }) => cap,
                // The other end's cap may be used up as well.
                Standing::Idle(IdleReason::Kept(PathUse::Standby)) => continue,
                _ => return None,
            };
            let meter = path.meter.as_ref();
            // A path of an ended session has no meter any more.
            let is_like = |known: &Meter| known.cap() == cap && known.is_used_up();
            let is_of_path =
                |known: &Meter| meter.map_or_else(|| is_like(known), |meter| meter.is_same(known));
            let rule = rules.iter().find(|rule| rule.terms.meter.as_ref().is_some_and(is_of_path));
            let place = rule.map_or_else(|| label(&self.0, &path.route), |rule| rule.pattern.to_string());
            let cap = cap_used_up(cap, &place, meter.and_then(Meter::resets_on));
            if !caps.contains(&cap) {
                caps.push(cap);
            }
        }
        let what = || format!("{}; no other path leads to the node", caps.join(", "));
        (!caps.is_empty()).then(|| Failure::new(Kind::Unreachable, what()))
    }

    /// Notes the caps of the paths while a path's cap is used up.
    fn note_caps(&self, known: &mut Caps) {
        let paths = self.0.paths();
        let is_capped =
            |path: &PathInfo| matches!(path.standing, Standing::Idle(IdleReason::CapReached { .. }));
        if paths.iter().any(is_capped) {
            for path in paths {
                let list = if is_capped(&path) { &mut known.reached } else { &mut known.free };
                if !list.contains(&path.meter) {
                    list.push(path.meter);
                }
            }
        }
    }

    /// Waits until caps keep all paths idle, and `moved` stays the same for `patience`. The session does not end by itself
    /// then: what a path reserved lasts for minutes of probes.
    pub async fn caps_used_up(&self, moved: impl Fn() -> u64, patience: Duration) -> Failure {
        let (mut since, mut before, mut caps) = (Instant::now(), 0, Caps::default());
        let mut tick = tokio::time::interval(REDRAW);
        loop {
            tick.tick().await;
            let now = moved();
            let has_moved = std::mem::replace(&mut before, now) != now;
            self.note_caps(&mut caps);
            let patience = if caps.may_leave_a_path() { patience.max(COMES_BACK) } else { patience };
            match self.used_up_caps() {
                Some(used_up) if !has_moved && since.elapsed() >= patience => return used_up,
                Some(_) if !has_moved => {}
                _ => since = Instant::now(),
            }
        }
    }

    /// True if the other end ended the session because its data caps are used up.
    pub fn is_over_cap_there(&self) -> bool {
        matches!(self.0.close_reason(), Some(CloseReason::Peer { code: USED_UP, .. }))
    }

    /// Tells the other end that data caps of this end are used up.
    pub fn end_for_caps(&self, used_up: &Failure) {
        self.0.abort(USED_UP, &used_up.message);
    }

    /// Tells the other end that the user here cancelled.
    pub fn interrupt(&self) {
        self.0.abort(INTERRUPTED, "interrupted by its user");
    }

    /// Tells the other end that this one stops and may start again.
    pub fn leave(&self) {
        self.0.abort(AWAY, "stopped by its user, and may start again");
    }

    /// Ends the session because there are too many others.
    pub fn refuse(&self) {
        self.0.abort(close_code::BUSY, "there is no room for more receivers here now: try again later");
    }

    /// Ends the session because its ticket or key opens nothing any more.
    pub fn revoke(&self) {
        self.0.abort(REVOKED, "the ticket or key opens nothing here any more");
    }

    /// True if the other end still answers: it acknowledges a datagram, which it need not read.
    pub async fn is_answering(&self) -> bool {
        let received = || self.0.paths().iter().map(|path| path.stats.packets_received).sum::<u64>();
        let slowest = self.0.paths().iter().map(|path| path.rtt).max().unwrap_or_default();
        let before = received();
        // If it cannot be sent, the session is over.
        let _ = self.0.send_datagram(Datagram::from(Bytes::from_static(b"?")));
        tokio::time::sleep(ANSWER + Duration::from_nanos(slowest.as_nanos()) * 3).await;
        received() != before
    }

    /// Ends the session of a client that opened another one and does not answer over this one.
    pub fn replace(&self) {
        self.0.abort(REPLACED, "the same client opened another session, and did not answer over this one");
    }

    /// Closes the session in agreement with the other end, or alone if that takes too long.
    pub async fn close(&self) {
        if tokio::time::timeout(FAREWELL, self.0.close()).await.is_err() {
            self.0.abort(0, "done");
        }
    }
}

/// The caps of a session's paths; `None` for paths without one.
#[derive(Default)]
struct Caps {
    /// Those that kept a path from carrying data.
    reached: Vec<Option<Meter>>,
    /// Those of other paths.
    free: Vec<Option<Meter>>,
}

impl Caps {
    /// True if a path that comes back may carry data. Other commands may return bytes to a cap that several share, but not
    /// for a path that has reached it.
    fn may_leave_a_path(&self) -> bool {
        let is_used_up = |cap: &Option<Meter>| cap.as_ref().is_some_and(Meter::is_used_up);
        self.free.iter().any(|cap| !self.reached.contains(cap) && !is_used_up(cap))
    }
}

/// Reads one session and its transfer for the display.
pub struct Gauge {
    session: Session,
    meter: PathMeter,
    names: PathNames,
    progress: Progress,
    direction: Direction,
    /// A sender's bytes that the receiver's end had acknowledged when they were last counted.
    acknowledged: u64,
    /// The other end has said that everything has arrived.
    is_complete: bool,
}

impl Gauge {
    /// Counts everything as arrived: the other end has said so.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// The transfer's counters. Those of a sender count what has arrived, as the paths do, rather than what was handed to
    /// the session, which is ahead by as much as the session holds.
    pub fn counters(&mut self) -> Snapshot {
        let handed = self.progress.snapshot();
        if self.direction == Direction::In || self.is_complete {
            return handed;
        }
        let in_session = self.session.stats().bytes_unacknowledged;
        self.acknowledged = self.acknowledged.max(handed.bytes_moved.saturating_sub(in_session));
        without_unacknowledged(handed, self.acknowledged)
    }

    /// The session's paths at `elapsed`.
    pub fn lines(&mut self, elapsed: Span) -> Vec<PathLine> {
        let name = |path: &anabranch_net::PathInfo| local_label(&self.session, &path.route);
        let named = self.names.name(self.session.paths(), name);
        self.meter.lines(elapsed, &named)
    }

    /// Transfer and paths at `elapsed`.
    pub fn snapshot(&mut self, elapsed: Span) -> ProgressSnapshot {
        let counters = self.counters();
        ProgressSnapshot {
            elapsed,
            bytes_done: counters.bytes_done,
            bytes_resumed: counters.bytes_resumed,
            bytes_moved: counters.bytes_moved,
            bytes_total: bytes_total(&counters),
            waiting: false,
            paths: self.lines(elapsed),
            receivers: Vec::new(),
        }
    }
}

/// Says that a cap of `place` is used up, and until when.
pub fn cap_used_up(cap: u64, place: &str, resets_on: Option<u8>) -> String {
    let until = resets_on.map_or(String::new(), |day| format!(" until day {day} of the month"));
    format!("the cap of {} for {place} is used up{until}", bytes_in_words(cap))
}

/// These counters of a sender if the receiver's end has only `acknowledged` of the moved bytes.
fn without_unacknowledged(handed: Snapshot, acknowledged: u64) -> Snapshot {
    let under_way = handed.bytes_moved.saturating_sub(acknowledged);
    Snapshot {
        bytes_done: handed.bytes_done.saturating_sub(under_way).max(handed.bytes_resumed),
        bytes_moved: handed.bytes_moved - under_way,
        ..handed
    }
}

/// Whether one end could not continue, though neither wanted the session to end.
fn has_failed(reason: &CloseReason) -> bool {
    let (CloseReason::Local { code, .. } | CloseReason::Peer { code, .. }) = reason else { return false };
    matches!(*code, close_code::INTERNAL | close_code::NO_PATH | close_code::KEYS_EXHAUSTED)
}

/// The total number of bytes if the share states it; standard input has none.
pub fn bytes_total(counters: &Snapshot) -> Option<u64> {
    Some(counters.bytes_total).filter(|total| *total > 0 && *total >= counters.bytes_done)
}

/// Time since `start`.
pub fn since(start: Instant) -> Span {
    Span::from_secs_f64(start.elapsed().as_secs_f64())
}

/// The display name of a path: local interface and remote address.
fn label(session: &Session, route: &anabranch_net::Route) -> String {
    local_label(session, route).unwrap_or_else(|| route.remote.ip().to_string())
}

/// The same, if the path's socket still exists.
fn local_label(session: &Session, route: &anabranch_net::Route) -> Option<String> {
    anabranch_node::local_name(session, route).map(|local| format!("{local} → {}", route.remote.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_one_end_is_told_from_an_end_that_it_wanted() {
        let here = |code| CloseReason::Local { code, reason: "over".to_owned() };
        let there = |code| CloseReason::Peer { code, reason: "over".into() };
        for code in [close_code::INTERNAL, close_code::NO_PATH, close_code::KEYS_EXHAUSTED] {
            assert!(has_failed(&here(code)) && has_failed(&there(code)), "{code}");
        }
        for code in [0, INTERRUPTED, REVOKED, close_code::BUSY, close_code::PROTOCOL_VIOLATION] {
            assert!(!has_failed(&here(code)) && !has_failed(&there(code)), "{code}");
        }
        assert!(!has_failed(&CloseReason::Finished));
    }

    #[test]
    fn a_path_under_a_cap_that_another_reached_is_not_waited_for() {
        let [shared, other, used_up] = [1 << 20, 1 << 20, Meter::SMALLEST].map(Meter::new);
        assert!(used_up.charge(used_up.left()));
        let may = |free: Option<&Meter>| {
            let (free, reached) = (vec![free.cloned()], vec![Some(shared.clone())]);
            Caps { reached, free }.may_leave_a_path()
        };
        assert!(may(None) && may(Some(&other)));
        assert!(!may(Some(&shared)) && !may(Some(&used_up)));
    }

    #[test]
    fn a_sender_counts_what_has_arrived() {
        let handed =
            Snapshot { bytes_done: 900, bytes_resumed: 300, bytes_moved: 650, ..Snapshot::default() };
        let shown = without_unacknowledged(handed.clone(), 250);
        assert_eq!((shown.bytes_done, shown.bytes_moved), (500, 250));
        let shown = without_unacknowledged(handed.clone(), 0);
        assert_eq!((shown.bytes_done, shown.bytes_moved), (300, 0));
        assert_eq!(without_unacknowledged(handed.clone(), 650), handed);
    }

    #[test]
    fn the_length_of_standard_input_is_unknown() {
        let counters = |bytes_done, bytes_total| Snapshot { bytes_done, bytes_total, ..Snapshot::default() };
        assert_eq!(bytes_total(&counters(0, 0)), None);
        assert_eq!(bytes_total(&counters(5, 0)), None);
        assert_eq!(bytes_total(&counters(5, 9)), Some(9));
    }
}
