//! Serves a share to all receivers, each in its own task, and shows the progress.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anabranch_net::Session;
use anabranch_node::{Access, Node, TicketShare};
use anabranch_transfer::{Share, Summary};
use tokio::task::JoinSet;

use super::kept::Kept;
use super::resources::{self, Placed};
use crate::carrier::{self, CAP_PATIENCE, Carrier, Gauge, REDRAW};
use crate::errors::{Failure, Kind, all_sent, log_missed};
use crate::report::{Event, TransferReport};
use crate::ui::human;
use crate::ui::out::Stream;
use crate::ui::pace::Pace;
use crate::ui::paths::Direction;
use crate::ui::progress::Progress;
use crate::ui::render;
use crate::ui::snapshot::{PathLine, ProgressSnapshot, ReceiverLine};

/// The user is warned this long before the ticket expires, but not before three quarters of its life.
const NOTICE: Duration = Duration::from_secs(60);

/// Time between looks whether the ticket was revoked.
const LOOK: Duration = Duration::from_secs(1);

/// How long the sender refuses receivers after its ticket was revoked.
const FAREWELL: Duration = Duration::from_secs(10);

/// A share and the rules for serving it.
pub struct Offer {
    /// The files.
    pub share: Share,
    /// The ticket's share.
    pub ticket: TicketShare,
    /// Admits receivers.
    pub access: Access,
    /// The ticket in the store, if it is kept.
    pub kept: Option<Kept>,
    /// Most receivers at the same time.
    pub most: usize,
    /// Whether to stop after one complete receiver.
    pub once: bool,
    /// Where events go with `--json`.
    pub events: Option<Stream>,
}

/// One receiver being served.
struct Receiver {
    address: String,
    /// The address, if known.
    from: Option<IpAddr>,
    /// Its number and address.
    name: String,
    since: Instant,
    gauge: Gauge,
    pace: Pace,
    carrier: Carrier,
}

/// The outcome of one receiver.
struct Served {
    number: u64,
    took: Duration,
    /// It began to read standard input, which no other receiver gets.
    took_stream: bool,
    /// It lacks files that its file system cannot hold, and has all others.
    is_refused: bool,
    outcome: Result<Summary, Failure>,
}

/// Serves one offer on one node.
pub struct Server<'a> {
    node: &'a Node,
    offer: Offer,
    display: Progress,
    start: Instant,
    tasks: JoinSet<Served>,
    /// The receivers by order of arrival.
    receivers: BTreeMap<u64, Receiver>,
    arrived: u64,
    /// Whether the user was warned that the ticket expires soon.
    warned: bool,
    /// When the command ends, after the ticket was revoked.
    ends: Option<Instant>,
}

/// Sums over receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    done: u64,
    resumed: u64,
    moved: u64,
    /// `None` if the length of one share is unknown.
    total: Option<u64>,
}

impl<'a> Server<'a> {
    /// Prepares to serve `offer` on this node.
    pub fn new(node: &'a Node, offer: Offer, display: Progress) -> Self {
        Self {
            node,
            offer,
            display,
            start: Instant::now(),
            tasks: JoinSet::new(),
            receivers: BTreeMap::new(),
            arrived: 0,
            warned: false,
            ends: None,
        }
    }

    /// Serves until the ticket has expired and the last receiver is done, one receiver was enough, or `stop`
    /// completes.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), Failure> {
        let mut tick = tokio::time::interval(REDRAW);
        let mut look = tokio::time::interval(LOOK);
        tokio::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return if self.ends.is_some() { Ok(()) } else { Err(self.stop()) },
                Some(served) = self.tasks.join_next() => {
                    let served = served.map_err(|error| Failure::local(format!("a thread failed: {error}")))?;
                    if self.take(served)? {
                        return Ok(());
                    }
                }
                Some(session) = self.node.accept() => self.start(session.session().clone())?,
                _ = look.tick(), if self.offer.kept.is_some() => {
                    if let Some(name) = self.revoked() {
                        self.revoke(&name)?;
                    }
                }
                () = until(self.ends) => return Ok(()),
                _ = tick.tick() => {
                    self.watch_expiry()?;
                    if !self.receivers.is_empty() {
                        self.draw()?;
                    } else if self.ends.is_none() && !self.offer.ticket.is_open() {
                        return self.note("the ticket has expired: no one can receive any more");
                    }
                }
            }
        }
    }

    /// The name of the ticket, if it is kept and was revoked.
    fn revoked(&self) -> Option<String> {
        self.offer.kept.as_ref().filter(|kept| kept.is_revoked()).map(|kept| kept.name().to_owned())
    }

    /// Ends all transfers. For a while, the other end hears why it cannot receive.
    fn revoke(&mut self, name: &str) -> Result<(), Failure> {
        self.offer.access.remove_share(self.offer.ticket.id);
        self.receivers.values().for_each(|receiver| receiver.carrier.revoke());
        // Another sender may have the name now.
        self.offer.kept = None;
        self.ends = Some(Instant::now() + FAREWELL);
        self.note(&format!("the ticket `{name}` was revoked: no one can receive any more"))
    }

    /// Warns before the ticket expires, and ends open transfers when it does.
    fn watch_expiry(&mut self) -> Result<(), Failure> {
        let (left, lasts) = self.offer.ticket.time_left();
        if left.is_zero() {
            self.offer.share.close("the ticket has expired");
        } else if !self.warned && !self.receivers.is_empty() && left < NOTICE.min(lasts / 4) {
            self.warned = true;
            let left = human::seconds(left.as_secs_f64());
            return self
                .note(&format!("the ticket expires in {left}: transfers that are not complete then end"));
        }
        Ok(())
    }

    /// True when there is a place for this receiver. When all are taken, [another](resources::gives_way) may lose its own.
    fn has_room(&mut self, newcomer: &Carrier) -> Result<bool, Failure> {
        if self.receivers.len() < self.offer.most {
            return Ok(true);
        }
        let placed = |(number, one): (&u64, &mut Receiver)| Placed {
            number: *number,
            address: one.from,
            since: one.since,
            bytes: one.gauge.counters().bytes_done,
        };
        let all: Vec<Placed> = self.receivers.iter_mut().map(placed).collect();
        let Some(least) = resources::gives_way(&all, newcomer.address()) else { return Ok(false) };
        if let Some(receiver) = self.receivers.remove(&least) {
            receiver.carrier.refuse();
            self.note(&format!("{} took the least and makes room for another", receiver.name))?;
        }
        Ok(true)
    }

    fn start(&mut self, session: Session) -> Result<(), Failure> {
        let carrier = Carrier::new(session);
        if self.ends.is_some() {
            carrier.revoke();
            return Ok(());
        }
        if !self.has_room(&carrier)? {
            carrier.refuse();
            return Ok(());
        }
        let (number, counters) = (self.arrived, anabranch_transfer::Progress::new());
        self.arrived += 1;
        let address = carrier.peer_name();
        let name = format!("{}: {address}", number + 1);
        self.note(&format!("{name} begins to receive"))?;
        let gauge = carrier.gauge(Direction::Out, &counters);
        self.receivers.insert(
            number,
            Receiver {
                address,
                from: carrier.address(),
                name,
                since: Instant::now(),
                gauge,
                pace: Pace::default(),
                carrier: carrier.clone(),
            },
        );
        let share = self.offer.share.clone();
        self.tasks.spawn(async move {
            let start = Instant::now();
            let outcome = tokio::select! {
                outcome = anabranch_transfer::send(&carrier, &share, &counters) => Ok(outcome),
                used_up = carrier.caps_used_up(|| counters.snapshot().bytes_moved, CAP_PATIENCE) => {
                    carrier.end_for_caps(&used_up);
                    Err(used_up)
                }
            };
            let took = counters.began().unwrap_or(start).elapsed();
            let took_stream = counters.snapshot().is_stream;
            // With another command, a receiver may take files whose names were taken; with the same, those that changed.
            let is_refused = matches!(&outcome, Ok(Err(error)) if error.is_final());
            let outcome = match outcome {
                Ok(Ok(summary)) => Ok(summary),
                Ok(Err(error)) => Err(carrier.explain(error).await),
                Err(used_up) => Err(used_up),
            };
            // The farewell goes on in the background.
            tokio::spawn(async move { carrier.close().await });
            Served { number, took, took_stream, is_refused, outcome }
        });
        Ok(())
    }

    /// Records the outcome of a receiver; true when the command is done.
    fn take(&mut self, served: Served) -> Result<bool, Failure> {
        if served.outcome.is_ok()
            && let Some(receiver) = self.receivers.get_mut(&served.number)
        {
            receiver.gauge.complete();
        }
        let last = self.snapshot();
        let Some(receiver) = self.receivers.remove(&served.number) else { return Ok(false) };
        if self.receivers.is_empty() {
            self.display.finish(&last).map_err(|error| Failure::unheard(&error))?;
        }
        match served.outcome {
            Ok(summary) => {
                let result = render::summary(&summary, served.took);
                let name = receiver.name;
                self.note(&match summary.missed {
                    0 => format!("{name} has it all: {result}"),
                    missed => format!("{name} has all that can be read, {missed} could not: {result}"),
                })?;
                if let Some(warning) = render::unsynced(&summary) {
                    self.note(&warning)?;
                }
                if let Some(stream) = self.offer.events {
                    stream.json(&Event::Done(TransferReport::new(&summary, served.took)))?;
                }
                let is_last = self.offer.once || served.took_stream;
                if !is_last {
                    log_missed(&summary);
                    return Ok(false);
                }
                self.part();
                all_sent(&summary).map(|()| true)
            }
            Err(failure) if served.took_stream => {
                Err(failure.hint("standard input can be received only once: start again, with all of it"))
            }
            Err(failure) if self.offer.once && served.is_refused => {
                self.part();
                Err(failure)
            }
            Err(failure) => {
                let said =
                    failure.said.as_ref().map_or_else(String::new, |said| format!(", saying \"{said}\""));
                self.note(&format!("{} did not get it all: {}{said}", receiver.name, failure.message))?;
                let details = match self.offer.events {
                    Some(_) => failure.details.clone(),
                    None => failure.shown_details(),
                };
                for detail in details {
                    self.note(&format!("  {detail}"))?;
                }
                failure.log_hidden();
                Ok(false)
            }
        }
    }

    /// Ends the transfers that are not complete. Without a reason, receivers would look for the sender again.
    fn part(&mut self) {
        while let Some(Ok(served)) = self.tasks.try_join_next() {
            self.receivers.remove(&served.number);
        }
        for receiver in self.receivers.values() {
            if self.offer.kept.is_some() { receiver.carrier.leave() } else { receiver.carrier.revoke() }
        }
    }

    fn stop(&mut self) -> Failure {
        self.display.freeze();
        let kept = self.offer.kept.as_ref();
        let message = match kept {
            Some(kept) => format!("the same command offers the ticket `{}` again", kept.name()),
            None => "the ticket opens nothing any more".into(),
        };
        for receiver in self.receivers.values() {
            if kept.is_some() { receiver.carrier.leave() } else { receiver.carrier.interrupt() }
        }
        let failure = Failure::new(Kind::Interrupted, message);
        match self.receivers.len() {
            0 => failure,
            1 => failure.detail("one receiver had not got it all"),
            count => failure.detail(format!("{count} receivers had not got it all")),
        }
    }

    fn note(&mut self, message: &str) -> Result<(), Failure> {
        self.display.note(message).map_err(|error| Failure::unheard(&error))
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let snapshot = self.snapshot();
        self.display.update(&snapshot).map_err(|error| Failure::unheard(&error))
    }

    /// All receivers together: the sum of their bytes, and the paths of each.
    fn snapshot(&mut self) -> ProgressSnapshot {
        let elapsed = carrier::since(self.start);
        let mut sum = Tally { total: Some(0), ..Tally::default() };
        let (mut paths, mut receivers) = (Vec::new(), Vec::new());
        let several = self.receivers.len() > 1;
        for (number, receiver) in &mut self.receivers {
            sum.add(&mut receiver.gauge);
            let one = receiver.gauge.snapshot(elapsed);
            let total = receiver.pace.total(&one);
            let number = number + 1;
            receivers.push(ReceiverLine { number, address: receiver.address.clone(), total });
            let who = if several { format!("{number}: ") } else { String::new() };
            paths.extend(one.paths.into_iter().map(|line| named(line, &who)));
        }
        ProgressSnapshot {
            elapsed,
            bytes_done: sum.done,
            bytes_resumed: sum.resumed,
            bytes_moved: sum.moved,
            bytes_total: sum.total.filter(|total| *total > 0),
            waiting: false,
            paths,
            receivers,
        }
    }
}

/// Waits until this moment, or forever without one.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

fn named(mut line: PathLine, who: &str) -> PathLine {
    line.label.insert_str(0, who);
    line
}

impl Tally {
    fn add(&mut self, gauge: &mut Gauge) {
        let counters = gauge.counters();
        self.done += counters.bytes_done;
        self.resumed += counters.bytes_resumed;
        self.moved += counters.bytes_moved;
        self.total = self.total.zip(carrier::bytes_total(&counters)).map(|(sum, more)| sum + more);
    }
}
