//! `anabranch receive`: fetches what a ticket offers.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anabranch_net::{ConnectError, Endpoint, EndpointConfig, Session, Ticket, Tried};
use anabranch_secure::TicketError;
use anabranch_transfer::{Conflict, ReceiveOptions, Snapshot, Summary, Target};
use anabranch_wire::Span;
use clap::Args;

use super::Context;
use crate::args::OUTPUT;
use crate::carrier::{self, Carrier, Gauge, REDRAW};
use crate::errors::{Failure, Kind, printable};
use crate::report::{Event, TransferReport};
use crate::ui::out::{self, Stream};
use crate::ui::paths::Direction;
use crate::ui::progress::Progress;
use crate::ui::{human, render};
use crate::{interrupt, keyfile, node, values};

/// A shorter silence is nothing unusual.
const SHORTEST_SILENCE: Span = Span::from_millis(500);
/// How long an answer to an expired ticket is waited for.
const PATIENCE_WITH_EXPIRED: Span = Span::from_secs(3);

const EXAMPLES: &str = "\
Examples:
  anabranch receive TICKET               into the current directory
  anabranch receive TICKET ~/Downloads   into another one
  anabranch receive TICKET - | tar x     to standard output";

/// Fetch what a ticket offers, over every path there is
///
/// A file appears under its name only when all of it has arrived and was verified. A transfer that was cut off
/// goes on where it stopped when the same command runs again.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReceiveArgs {
    /// What `anabranch send` printed
    #[arg(value_name = "TICKET")]
    pub ticket: String,
    /// Directory to write to; `-` for standard output
    #[arg(value_name = "TARGET", default_value = ".", value_hint = clap::ValueHint::DirPath)]
    pub target: PathBuf,
    /// What to do about names that are taken.
    #[command(flatten)]
    pub taken: Taken,
    /// Give up when the other end is silent on every path for this long; for a first answer, 10 s at most
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = silence, help_heading = "Network")]
    pub timeout: Span,
    /// One JSON event a line instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn silence(text: &str) -> Result<Span, String> {
    let span = values::span(text)?;
    if span < SHORTEST_SILENCE { Err("must be at least 500ms".into()) } else { Ok(span) }
}

/// The options for names that are taken; without one, such a file stays and is an error in the end. A file that
/// is already there as it should be is never touched.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub struct Taken {
    /// Replace files that exist
    #[arg(long, help_heading = "Where another file has the name [default: leave it and fail in the end]")]
    pub overwrite: bool,
    /// Keep both: add a number to the new name
    #[arg(long, help_heading = "Where another file has the name [default: leave it and fail in the end]")]
    pub rename: bool,
    /// Keep the file that exists
    #[arg(long, help_heading = "Where another file has the name [default: leave it and fail in the end]")]
    pub skip: bool,
}

impl ReceiveArgs {
    /// The ticket.
    ///
    /// # Errors
    /// When it is none, or was damaged on its way here.
    pub fn ticket(&self) -> Result<Ticket, Failure> {
        self.ticket.parse().map_err(|error: TicketError| {
            Failure::local(error.to_string())
                .hint("copy the whole line that `anabranch send` printed on the other machine")
        })
    }

    /// What happens to a file whose name is taken.
    #[must_use]
    pub fn conflict(&self) -> Conflict {
        match &self.taken {
            Taken { overwrite: true, .. } => Conflict::Overwrite,
            Taken { rename: true, .. } => Conflict::Rename,
            Taken { skip: true, .. } => Conflict::Skip,
            Taken { .. } => Conflict::Error,
        }
    }

    /// Where the data go.
    #[must_use]
    pub fn target(&self) -> Target {
        if self.to_stdout() {
            Target::Writer(Box::new(std::io::stdout()))
        } else {
            Target::Directory(self.target.clone())
        }
    }

    /// True when the data go to standard output.
    #[must_use]
    pub fn to_stdout(&self) -> bool {
        self.target.as_os_str() == "-"
    }

    /// Where events go with `--json`: standard output, unless the data go there.
    #[must_use]
    pub fn events(&self) -> Option<Stream> {
        let stream = if self.to_stdout() { Stream::Stderr } else { Stream::Stdout };
        self.json.then_some(stream)
    }
}

/// Fetches what the ticket offers.
///
/// # Errors
/// What stood in the way, and what to do about it.
pub fn run(args: &ReceiveArgs, context: &Context) -> Result<(), Failure> {
    let ticket = args.ticket()?;
    let runtime = node::runtime()?;
    let outcome = runtime.block_on(fetch(args, &ticket, context));
    // A thread may still wait for a disk or a pipe: everything that counts is done.
    runtime.shutdown_background();
    outcome
}

async fn fetch(args: &ReceiveArgs, ticket: &Ticket, context: &Context) -> Result<(), Failure> {
    let endpoint = Endpoint::bind(EndpointConfig::new(keyfile::fresh()?)).await;
    let endpoint = endpoint.map_err(|error| Failure::bind(&error))?;
    let session = tokio::select! {
        biased;
        () = interrupt::requested() => return Err(stopped(None)),
        session = connect(&endpoint, ticket, args.timeout) => session?,
    };
    let carrier = Carrier::new(session);
    let outcome = fetch_over(&carrier, args, context).await;
    if outcome.is_ok() {
        carrier.close().await;
    } else {
        carrier::close(&endpoint).await;
    }
    outcome
}

/// Opens the session. A ticket that has expired by this machine's clock is tried all the same, since the clock
/// may be wrong, but with less patience.
async fn connect(endpoint: &Endpoint, ticket: &Ticket, silence: Span) -> Result<Session, Failure> {
    let overdue = overdue(ticket, SystemTime::now());
    let silence = if overdue.is_some() { silence.min(PATIENCE_WITH_EXPIRED) } else { silence };
    let target = anabranch_net::Target {
        credential: Some((ticket.share, ticket.secret.clone())),
        ..anabranch_net::Target::new(ticket.node, ticket.addresses.clone())
    };
    match (endpoint.connect(&target, carrier::config(silence)).await, overdue) {
        (Ok(session), _) => Ok(session),
        (Err(ConnectError::TimedOut(_)), Some(ago)) => {
            let ago = human::seconds(ago.as_secs_f64());
            Err(Failure::new(
                Kind::Refused,
                format!("the ticket expired {ago} ago, and nobody answers to it"),
            )
            .hint("ask for a new ticket"))
        }
        (Err(ConnectError::TimedOut(tried)), None) => Err(unanswered(&tried, ticket, silence)),
        (Err(error), _) => Err(error.into()),
    }
}

fn unanswered(tried: &Tried, ticket: &Ticket, silence: Span) -> Failure {
    let places: Vec<String> = ticket.addresses.iter().map(ToString::to_string).collect();
    let patience = human::seconds(carrier::config(silence).connect_timeout.as_secs_f64());
    let message = format!("nobody answered at {} within {patience}", places.join(" or "));
    let pairs = tried.0.iter().map(|(local, remote)| format!("{} → {remote}", local.ip()));
    pairs.fold(Failure::new(Kind::Unreachable, message), Failure::tried).hint(
        "is `anabranch send` still running there, with this very ticket, and does its firewall let the UDP port in?",
    )
}

/// How long ago the ticket expired by this clock.
fn overdue(ticket: &Ticket, now: SystemTime) -> Option<Duration> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    now.checked_sub(Duration::from_secs(ticket.expires?)).filter(|ago| !ago.is_zero())
}

async fn fetch_over(carrier: &Carrier, args: &ReceiveArgs, context: &Context) -> Result<(), Failure> {
    let options = ReceiveOptions { conflict: args.conflict(), ..ReceiveOptions::default() };
    let counters = anabranch_transfer::Progress::new();
    let start = Instant::now();
    let mut gauge = carrier.gauge(Direction::In, &counters);
    let mut display = context.progress(args.json, args.events().unwrap_or(Stream::Stdout));
    let outcome = tokio::select! {
        biased;
        () = interrupt::requested() => {
            carrier.interrupt();
            Err(stopped(Some(&counters.snapshot())))
        }
        outcome = anabranch_transfer::receive(carrier, args.target(), &options, &counters) => {
            outcome.map_err(|error| carrier.explain(error))
        }
        gone = show(&mut gauge, &mut display, start) => Err(gone),
    };
    let last = gauge.snapshot(carrier::since(start));
    if outcome.is_ok() || last.bytes_done > 0 {
        display.finish(&last).map_err(|error| Failure::output(&error))?;
    }
    report(&outcome?, start.elapsed(), (args, context))
}

/// Redraws until the display cannot be written any more.
async fn show(gauge: &mut Gauge, display: &mut Progress, start: Instant) -> Failure {
    let mut tick = tokio::time::interval(REDRAW);
    loop {
        tick.tick().await;
        if let Err(error) = display.update(&gauge.snapshot(carrier::since(start))) {
            return Failure::output(&error);
        }
    }
}

fn stopped(counters: Option<&Snapshot>) -> Failure {
    let Some(counters) = counters else { return Failure::new(Kind::Interrupted, "nothing was received") };
    let done = human::bytes(counters.bytes_done);
    let here = match carrier::bytes_total(counters) {
        Some(total) => format!("{done} of {} are here", human::bytes(total)),
        None => format!("{done} are here"),
    };
    Failure::new(Kind::Interrupted, here).hint("run the same command again to go on from there")
}

/// Says what was received.
fn report(
    summary: &Summary,
    elapsed: Duration,
    (args, context): (&ReceiveArgs, &Context),
) -> Result<(), Failure> {
    if let Some(stream) = args.events() {
        for message in &summary.warnings {
            stream.json(&Event::Note { message })?;
        }
        return stream.json(&Event::Done(TransferReport::new(summary, elapsed)));
    }
    if !context.quiet {
        for warning in &summary.warnings {
            out::error(&format!("{}\n", printable(warning)));
        }
        out::error(&format!("received {}\n", render::summary(summary, elapsed)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_ticket_is_fetched_into_the_current_directory() {
        let args: ReceiveArgs = parse(&["ticket"]).unwrap();
        assert_eq!((args.target.to_str(), args.conflict()), (Some("."), Conflict::Error));
        assert_eq!(args.events(), None);
    }

    #[test]
    fn one_answer_to_a_taken_name_at_most() {
        for (option, answer) in
            [("--overwrite", Conflict::Overwrite), ("--rename", Conflict::Rename), ("--skip", Conflict::Skip)]
        {
            assert_eq!(parse::<ReceiveArgs>(&["ticket", option]).unwrap().conflict(), answer);
        }
        assert!(parse::<ReceiveArgs>(&["ticket", "--skip", "--rename"]).is_err());
    }

    #[test]
    fn events_make_room_for_data_on_standard_output() {
        assert_eq!(parse::<ReceiveArgs>(&["ticket", "--json"]).unwrap().events(), Some(Stream::Stdout));
        let args: ReceiveArgs = parse(&["ticket", "-", "--json"]).unwrap();
        assert!(matches!(args.target(), Target::Writer(_)));
        assert_eq!(args.events(), Some(Stream::Stderr));
    }
}
