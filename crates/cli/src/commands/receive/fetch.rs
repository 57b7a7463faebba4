//! Fetches a share, over another session when the current one loses all its paths.
//!
//! Received data is on the disk, so a new session continues where the last one ended. Standard output, or a
//! sender that reads its standard input, cannot repeat data: then the first loss ends the transfer.

use std::time::{Duration, Instant};

use anabranch_net::Session;
use anabranch_node::{Dial, Node};
use anabranch_transfer::{ReceiveOptions, Snapshot, Summary, TransferError};

use super::args::ReceiveArgs;
use super::consent::Question;
use crate::carrier::{self, Carrier, Gauge, REDRAW};
use crate::errors::{Failure, Kind};
use crate::interrupt;
use crate::ui::human;
use crate::ui::paths::Direction;
use crate::ui::progress::Progress;
use crate::ui::snapshot::ProgressSnapshot;

/// One run of `anabranch receive`.
pub struct Fetcher<'a> {
    args: &'a ReceiveArgs,
    question: Question,
    node: &'a Node,
    dial: &'a Dial,
    display: Progress,
    start: Instant,
    /// Bytes that earlier sessions moved.
    moved: u64,
}

impl<'a> Fetcher<'a> {
    /// Prepares to fetch from the sender as `args` request.
    #[must_use]
    pub fn new(
        args: &'a ReceiveArgs,
        question: Question,
        (node, dial): (&'a Node, &'a Dial),
        display: Progress,
    ) -> Self {
        Self { args, question, node, dial, display, start: Instant::now(), moved: 0 }
    }

    /// Fetches over `session`, and over further sessions after losses.
    ///
    /// # Errors
    /// The cause, and advice for the user.
    pub async fn run(mut self, session: Session) -> Result<(Summary, Duration), Failure> {
        let mut carrier = Carrier::new(session);
        loop {
            let counters = anabranch_transfer::Progress::new();
            let outcome = self.fetch_over(&carrier, &counters).await;
            let counters = counters.snapshot();
            match outcome {
                Ok(summary) => {
                    let took = self.start.elapsed();
                    carrier.close().await;
                    let resumed = summary.resumed.saturating_sub(self.moved);
                    return Ok((Summary { resumed, ..summary }, took));
                }
                Err(failure) if carrier.was_lost() && self.may_go_on(&failure, &counters) => {
                    self.moved += counters.bytes_done.saturating_sub(counters.bytes_resumed);
                    carrier = Carrier::new(self.reach_again(failure, &counters).await?);
                }
                Err(failure) => {
                    self.node.close().await;
                    return Err(failure);
                }
            }
        }
    }

    fn may_go_on(&self, failure: &Failure, counters: &Snapshot) -> bool {
        let repeatable = !self.args.to_stdout() && !counters.is_stream;
        failure.kind == Kind::Unreachable && repeatable && !self.args.retry.is_zero()
    }

    async fn fetch_over(
        &mut self,
        carrier: &Carrier,
        counters: &anabranch_transfer::Progress,
    ) -> Result<Summary, Failure> {
        let options = ReceiveOptions {
            conflict: self.args.conflict(),
            consent: self.question.consent(),
            max_size: self.args.max_size,
            allow_hidden: self.args.hidden,
            all_modes: self.args.modes,
            ..ReceiveOptions::default()
        };
        let mut gauge = carrier.gauge(Direction::In, counters);
        let (to_stdout, moved) = (self.args.to_stdout(), self.moved);
        let so_far = || SoFar { counters: counters.snapshot(), to_stdout, moved };
        let outcome = tokio::select! {
            biased;
            () = interrupt::requested() => {
                carrier.interrupt();
                Err(so_far().stopped())
            }
            outcome = anabranch_transfer::receive(carrier, self.args.target(), &options, counters) => match outcome {
                Ok(summary) => Ok(summary),
                Err(TransferError::Declined) => Err(self.question.declined()),
                Err(error) => Err(explain(carrier, error, &so_far()).await),
            },
            gone = show(&mut gauge, &mut self.display, (self.start, &self.question)) => Err(gone),
        };
        let last = gauge.snapshot(carrier::since(self.start));
        if outcome.is_ok() || last.bytes_done > 0 {
            self.display.finish(&last).map_err(|error| Failure::unheard(&error))?;
        }
        outcome
    }

    /// Reports the loss and dials the sender again.
    async fn reach_again(&mut self, lost: Failure, counters: &Snapshot) -> Result<Session, Failure> {
        let patience = human::seconds(self.args.retry.as_secs_f64());
        let note = format!("{}; looking for the sender again for {patience}", lost.message);
        self.display.note(&note).map_err(|error| Failure::unheard(&error))?;
        let limit = Duration::from_nanos(self.args.retry.as_nanos());
        let reached = tokio::select! {
            biased;
            () = interrupt::requested() => {
                let so_far = SoFar { counters: counters.clone(), to_stdout: false, moved: self.moved };
                return Err(so_far.stopped());
            }
            reached = self.node.redial(self.dial, Some(limit)) => reached.map_err(Failure::from),
            gone = show_waiting(counters, &mut self.display, self.start) => return Err(gone),
        };
        let reached = reached.map_err(|failure| match failure.kind {
            Kind::Unreachable => {
                lost.detail(format!("the sender was not found again within {patience}: {}", failure.message))
            }
            _ => failure,
        })?;
        self.display.note("the sender is there again").map_err(|error| Failure::unheard(&error))?;
        Ok(reached.session().clone())
    }
}

/// Redraws until the display cannot be written any more.
async fn show(gauge: &mut Gauge, display: &mut Progress, (start, question): (Instant, &Question)) -> Failure {
    redraw(display, || (!question.is_open()).then(|| gauge.snapshot(carrier::since(start)))).await
}

/// Shows the state of the transfer while the sender is dialled.
async fn show_waiting(counters: &Snapshot, display: &mut Progress, start: Instant) -> Failure {
    let snapshot = || ProgressSnapshot {
        elapsed: carrier::since(start),
        bytes_done: counters.bytes_done,
        bytes_resumed: counters.bytes_resumed,
        bytes_total: carrier::bytes_total(counters),
        waiting: true,
        paths: Vec::new(),
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
    let failure = carrier.explain(error).await;
    if broke_off && failure.kind != Kind::Corrupt { failure.hint(so_far.what_now()) } else { failure }
}

/// The progress of a transfer that failed.
struct SoFar {
    counters: Snapshot,
    to_stdout: bool,
    /// Bytes that earlier sessions moved.
    moved: u64,
}

impl SoFar {
    /// The failure when the user stops the command.
    fn stopped(&self) -> Failure {
        let done = human::bytes(self.counters.bytes_done);
        let here = match carrier::bytes_total(&self.counters) {
            Some(total) => format!("{done} of {} are here", human::bytes(total)),
            None => format!("{done} are here"),
        };
        Failure::new(Kind::Interrupted, here).hint(self.what_now())
    }

    /// Advice after a transfer that broke off.
    fn what_now(&self) -> &'static str {
        match (self.counters.is_stream, self.to_stdout) {
            (true, _) => {
                "nothing is kept, and the sender's standard input can be received only once: \
                 start `anabranch send` again there, with all of it"
            }
            (false, true) => {
                "standard output may have got a part of it: run the same command again to get all of it"
            }
            (false, false) if self.counters.bytes_done + self.moved == 0 => {
                "nothing arrived this time: run `anabranch receive` again"
            }
            (false, false) => "what has arrived is kept: run `anabranch receive` again to go on from there",
        }
    }
}

/// The failure when the user stops the command before data arrives.
pub fn stopped() -> Failure {
    Failure::new(Kind::Interrupted, "nothing was received")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_said_to_be_kept_only_where_some_arrived_and_stay() {
        let hint = |bytes_done, moved, (is_stream, to_stdout)| {
            let counters = Snapshot { bytes_done, is_stream, ..Snapshot::default() };
            SoFar { counters, to_stdout, moved }.what_now()
        };
        assert!(hint(0, 0, (false, false)).starts_with("nothing arrived this time: run `anabranch receive`"));
        assert!(hint(1, 0, (false, false)).starts_with("what has arrived is kept"));
        assert!(hint(0, 1, (false, false)).starts_with("what has arrived is kept"));
        assert!(hint(1, 1, (true, false)).starts_with("nothing is kept"));
        assert!(hint(1, 1, (false, true)).starts_with("standard output may have got a part"));
    }
}
