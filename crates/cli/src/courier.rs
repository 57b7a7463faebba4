//! Runs a transfer, over another session when the current one loses all its paths.
//!
//! Received data is on the disk, so a new session continues where the last one ended. Standard output, or a
//! sender that reads its standard input, cannot repeat data: then the first loss ends the transfer.

use std::time::{Duration, Instant};

use anabranch_net::Session;
use anabranch_node::{Dial, Node};
use anabranch_transfer::{Snapshot, Summary, TransferError};
use anabranch_wire::Span;

use crate::carrier::{self, CAP_PATIENCE, Carrier, Gauge, REDRAW};
use crate::errors::{Failure, Kind};
use crate::interrupt;
use crate::ui::human;
use crate::ui::paths::Direction;
use crate::ui::progress::Progress;
use crate::ui::snapshot::ProgressSnapshot;

/// A transfer, which can be tried again.
pub trait Errand {
    /// The other end.
    const PEER: &'static str;
    /// Which way the data go.
    const DIRECTION: Direction;

    /// Transfers over this session.
    fn run(
        &self,
        carrier: &Carrier,
        counters: &anabranch_transfer::Progress,
    ) -> impl Future<Output = Result<Summary, TransferError>>;

    /// True for data that go to standard output.
    fn to_stdout(&self) -> bool {
        false
    }

    /// True if the data are a stream that was read, so that no later attempt can send them.
    fn is_spent(&self) -> bool {
        false
    }

    /// True while the user is being asked, and nothing else should be drawn.
    fn is_asking(&self) -> bool {
        false
    }

    /// The failure when the user declined.
    fn declined(&self) -> Failure {
        stopped()
    }
}

/// Pause before the other end is looked for again if it stopped. The program there takes a moment to exit.
const PAUSE: Duration = Duration::from_millis(500);
/// The same if the other end has used up its data caps. A path without one may come back.
const CAP_PAUSE: Duration = Duration::from_secs(5);
/// Most sessions in a row that move nothing.
const MOST_IDLE: u32 = 20;

/// Runs one errand.
pub struct Courier<'a, E> {
    errand: &'a E,
    /// How long to look for the other end after a loss.
    retry: Span,
    node: &'a Node,
    dial: &'a Dial,
    display: Progress,
    start: Instant,
    /// When the first session began to fetch what was agreed to.
    began: Option<Instant>,
    /// Bytes that earlier sessions moved, those of them that were no holes, and files that they completed.
    moved: u64,
    crossed: u64,
    files: u64,
    /// The last sessions, which moved nothing.
    idle: u32,
    cap_wait: CapWait,
}

/// The wait for another path or period of the other end, whose used-up caps close sessions. It counts once for all such
/// sessions in a row: from the end of the first.
#[derive(Clone, Copy, Default)]
struct CapWait(Option<Instant>);

impl CapWait {
    /// Notes the end of a session at `now`, by used-up caps or not; false if they also ended the one before.
    fn note(&mut self, now: Instant, is_over_cap: bool, moved: u64) -> bool {
        let before = self.0.filter(|_| moved == 0);
        self.0 = is_over_cap.then(|| before.unwrap_or(now));
        before.is_none() || self.0.is_none()
    }

    /// The rest of `patience`.
    fn left(&self, now: Instant, patience: Duration) -> Duration {
        self.0.map_or(patience, |since| patience.saturating_sub(now.duration_since(since)))
    }
}

impl<'a, E: Errand> Courier<'a, E> {
    /// Prepares to transfer with the node that is dialled.
    pub fn new(errand: &'a E, retry: Span, (node, dial): (&'a Node, &'a Dial), display: Progress) -> Self {
        let start = Instant::now();
        let (began, moved, crossed, files, idle, cap_wait) = Default::default();
        Self { errand, retry, node, dial, display, start, began, moved, crossed, files, idle, cap_wait }
    }

    /// Transfers over `session`, and over further sessions after losses.
    pub async fn run(mut self, session: Session) -> Result<(Summary, Duration), Failure> {
        let mut carrier = Carrier::new(session);
        loop {
            let counters = anabranch_transfer::Progress::new();
            let outcome = self.transfer_over(&carrier, &counters).await;
            self.began = self.began.or(counters.began());
            let counters = counters.snapshot();
            let moved = counters.bytes_done.saturating_sub(counters.bytes_resumed);
            match outcome {
                Ok(summary) => {
                    let took = self.began.unwrap_or(self.start).elapsed();
                    carrier.close().await;
                    return Ok((self.sum(summary), took));
                }
                Err(failure) if self.is_lost(&carrier, moved) && self.may_go_on(&failure, &counters) => {
                    self.idle = if moved == 0 { self.idle + 1 } else { 0 };
                    let is_news = self.cap_wait.note(Instant::now(), carrier.is_over_cap_there(), moved);
                    self.moved += moved;
                    self.crossed += counters.bytes_moved;
                    self.files += counters.files_done.saturating_sub(counters.files_kept);
                    let pause = if carrier.is_over_cap_there() {
                        CAP_PAUSE
                    } else if carrier.was_left() {
                        PAUSE
                    } else {
                        Duration::ZERO
                    };
                    carrier = Carrier::new(self.reach_again(failure, &counters, (pause, is_news)).await?);
                }
                Err(failure) => {
                    self.node.close().await;
                    return Err(failure);
                }
            }
        }
    }

    /// The summary of all sessions. The last one found the files of the earlier ones on the disk.
    fn sum(&self, last: Summary) -> Summary {
        let (files, bytes) = (self.files.min(last.skipped), self.moved.min(last.unchecked_bytes));
        Summary {
            files: last.files + files,
            skipped: last.skipped - files,
            unchecked: last.unchecked.saturating_sub(files),
            bytes: last.bytes + bytes,
            resumed: (last.resumed + bytes).saturating_sub(self.moved),
            moved: last.moved + self.crossed,
            ..last
        }
    }

    /// True if another session may work.
    fn is_lost(&self, carrier: &Carrier, moved: u64) -> bool {
        let patience = Duration::from_nanos(self.retry.as_nanos());
        let in_time = moved > 0 || !self.cap_wait.left(Instant::now(), patience).is_zero();
        carrier.was_lost(moved > 0) || carrier.is_over_cap_there() && in_time
    }

    fn may_go_on(&self, failure: &Failure, counters: &Snapshot) -> bool {
        let repeatable = !self.errand.to_stdout() && !self.errand.is_spent() && !counters.is_stream;
        failure.kind == Kind::Unreachable && repeatable && !self.retry.is_zero() && self.idle < MOST_IDLE
    }

    async fn transfer_over(
        &mut self,
        carrier: &Carrier,
        counters: &anabranch_transfer::Progress,
    ) -> Result<Summary, Failure> {
        let errand = self.errand;
        let mut gauge = carrier.gauge(E::DIRECTION, counters);
        let moved = self.moved;
        let patience = Duration::from_nanos(self.retry.as_nanos()).max(CAP_PATIENCE);
        let so_far = || SoFar { counters: counters.snapshot(), moved, ..SoFar::of(errand) };
        let outcome = tokio::select! {
            biased;
            () = interrupt::requested() => {
                carrier.interrupt();
                Err(so_far().stopped())
            }
            outcome = errand.run(carrier, counters) => match outcome {
                Ok(summary) => Ok(summary),
                Err(TransferError::Declined) => Err(errand.declined()),
                Err(error) => Err(explain(carrier, error, &so_far()).await),
            },
            used_up = carrier.caps_used_up(|| counters.snapshot().bytes_moved, patience) => {
                carrier.end_for_caps(&used_up);
                Err(used_up.hint(so_far().what_now()))
            }
            gone = show(&mut gauge, &mut self.display, self.start, || errand.is_asking()) => Err(gone),
        };
        if outcome.as_ref().is_err_and(|failure| failure.kind == Kind::Interrupted) {
            self.display.freeze();
        }
        if outcome.is_ok() {
            gauge.complete();
        }
        let last = gauge.snapshot(carrier::since(self.start));
        if outcome.is_ok() || last.bytes_done > 0 {
            self.display.finish(&last).map_err(|error| Failure::unheard(&error))?;
        }
        outcome
    }

    /// Reports the loss and dials the other end again.
    async fn reach_again(
        &mut self,
        lost: Failure,
        counters: &Snapshot,
        (pause, is_news): (Duration, bool),
    ) -> Result<Session, Failure> {
        let limit = self.cap_wait.left(Instant::now(), Duration::from_nanos(self.retry.as_nanos()));
        let patience = human::seconds(limit.as_secs_f64());
        let peer = E::PEER;
        let note = format!("{}; looking for {peer} again for {patience}", lost.message);
        if is_news {
            self.display.note(&note).map_err(|error| Failure::unheard(&error))?;
        }
        let redial = async {
            tokio::time::sleep(pause).await;
            self.node.redial(self.dial, Some(limit)).await
        };
        let reached = tokio::select! {
            biased;
            () = interrupt::requested() => {
                self.display.freeze();
                let so_far = SoFar { counters: counters.clone(), moved: self.moved, ..SoFar::of(self.errand) };
                return Err(so_far.stopped());
            }
            reached = redial => reached.map_err(Failure::from),
            gone = show_waiting(counters, &mut self.display, self.start) => return Err(gone),
        };
        let reached = reached.map_err(|failure| match failure.kind {
            Kind::Unreachable => {
                lost.detail(format!("{peer} was not found again within {patience}: {}", failure.message))
            }
            _ => failure,
        })?;
        if is_news {
            self.display.note(&format!("{peer} is there again")).map_err(|error| Failure::unheard(&error))?;
        }
        Ok(reached.session().clone())
    }
}

/// Redraws until the display cannot be written any more.
async fn show(
    gauge: &mut Gauge,
    display: &mut Progress,
    start: Instant,
    is_asking: impl Fn() -> bool,
) -> Failure {
    redraw(display, || (!is_asking()).then(|| gauge.snapshot(carrier::since(start)))).await
}

/// Shows the state of the transfer while the other end is dialled.
async fn show_waiting(counters: &Snapshot, display: &mut Progress, start: Instant) -> Failure {
    let snapshot = || ProgressSnapshot {
        elapsed: carrier::since(start),
        bytes_done: counters.bytes_done,
        bytes_resumed: counters.bytes_resumed,
        bytes_moved: counters.bytes_moved,
        bytes_total: carrier::bytes_total(counters),
        waiting: true,
        paths: Vec::new(),
        receivers: Vec::new(),
    };
    redraw(display, || Some(snapshot())).await
}

/// Draws each snapshot. `None` leaves the screen unchanged.
async fn redraw(display: &mut Progress, mut snapshot: impl FnMut() -> Option<ProgressSnapshot>) -> Failure {
    let mut tick = tokio::time::interval(REDRAW);
    loop {
        tick.tick().await;
        let Some(snapshot) = snapshot() else { continue };
        if let Err(error) = display.update(&snapshot) {
            return Failure::unheard(&error);
        }
    }
}

/// The failure of a transfer: its cause, and whether the received data is kept.
async fn explain(carrier: &Carrier, error: TransferError, so_far: &SoFar) -> Failure {
    let broke_off = match error {
        TransferError::Connection(_) | TransferError::Lost { .. } => true,
        TransferError::Peer(_) => so_far.counters.bytes_done + so_far.moved > 0,
        _ => false,
    };
    let mut failure = carrier.explain(error).await;
    if !broke_off || failure.kind == Kind::Corrupt {
        return failure;
    }
    match failure.hint.take() {
        None => failure.hint(so_far.what_now()),
        Some(advice) if so_far.is_kept() => failure.hint(format!("what has arrived is kept; {advice}")),
        Some(advice) => failure.hint(advice),
    }
}

/// The progress of a transfer that failed.
struct SoFar {
    direction: Direction,
    counters: Snapshot,
    to_stdout: bool,
    /// Bytes that earlier sessions moved.
    moved: u64,
}

impl SoFar {
    /// Nothing of this errand yet.
    fn of<E: Errand>(errand: &E) -> Self {
        let (counters, to_stdout) = (Snapshot::default(), errand.to_stdout());
        Self { direction: E::DIRECTION, counters, to_stdout, moved: 0 }
    }

    /// The failure when the user stops the command.
    fn stopped(&self) -> Failure {
        let done = human::bytes(self.counters.bytes_done);
        let place = if self.direction == Direction::In { "here" } else { "sent" };
        let so_far = match carrier::bytes_total(&self.counters) {
            Some(total) => format!("{done} of {} are {place}", human::bytes(total)),
            None => format!("{done} are {place}"),
        };
        Failure::new(Kind::Interrupted, so_far).hint(self.what_now())
    }

    /// True if the data so far stay for the next run.
    fn is_kept(&self) -> bool {
        !self.counters.is_stream && !self.to_stdout && self.counters.bytes_done + self.moved > 0
    }

    /// Advice after a transfer that broke off.
    fn what_now(&self) -> String {
        match (self.counters.is_stream, self.to_stdout) {
            (true, _) if self.direction == Direction::Out => {
                "nothing is kept of standard input: start again, with all of it".into()
            }
            (true, _) => "nothing is kept, and the sender's standard input can be received only once: \
                 start `anabranch send` again there, with all of it"
                .into(),
            (false, true) => {
                "standard output may have got a part of it: run the same command again to get all of it"
                    .into()
            }
            (false, false) if self.counters.bytes_done + self.moved == 0 => {
                "nothing was moved this time: run the same command again".into()
            }
            (false, false) => {
                "what has arrived is kept: run the same command again to go on from there".into()
            }
        }
    }
}

/// The failure when the user stops the command before data arrives.
pub fn stopped() -> Failure {
    Failure::new(Kind::Interrupted, "nothing was transferred")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_the_other_ends_caps_counts_once_and_anew_after_bytes() {
        let (begin, retry) = (Instant::now(), Duration::from_secs(60));
        let at = |seconds| begin + Duration::from_secs(seconds);
        let left = |wait: &CapWait, seconds| wait.left(at(seconds), retry).as_secs();
        let mut wait = CapWait::default();
        assert_eq!(left(&wait, 99), 60);
        assert!(wait.note(at(0), true, 5) && !wait.note(at(20), true, 0), "the second is no news");
        assert_eq!((left(&wait, 40), left(&wait, 70)), (20, 0));
        assert!(wait.note(at(50), true, 1), "it moved bytes");
        assert_eq!(left(&wait, 50), 60);
        assert!(wait.note(at(55), false, 0), "the end of the last one had another reason");
        assert_eq!(left(&wait, 99), 60);
    }

    #[test]
    fn data_are_said_to_be_kept_only_where_some_arrived_and_stay() {
        let hint = |bytes_done, moved, (is_stream, to_stdout)| {
            let counters = Snapshot { bytes_done, is_stream, ..Snapshot::default() };
            SoFar { direction: Direction::In, counters, to_stdout, moved }.what_now()
        };
        assert!(hint(0, 0, (false, false)).starts_with("nothing was moved this time"));
        assert!(hint(1, 0, (false, false)).starts_with("what has arrived is kept"));
        assert!(hint(0, 1, (false, false)).starts_with("what has arrived is kept"));
        assert!(hint(1, 1, (true, false)).starts_with("nothing is kept"));
        assert!(hint(1, 1, (false, true)).starts_with("standard output may have got a part"));
    }
}
