//! `anabranch receive`: fetches what a ticket offers.
//!
//! [`reach`] finds the sender, [`fetch`] takes the data, over several sessions if need be.

mod fetch;
mod reach;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Endpoint, EndpointConfig, Ticket};
use anabranch_node::RunningSessions;
use anabranch_secure::TicketError;
use anabranch_transfer::{Conflict, Summary, Target};
use anabranch_wire::Span;
use clap::Args;

use super::Context;
use crate::args::OUTPUT;
use crate::capture::{Capture, CaptureOptions};
use crate::control::ControlOption;
use crate::errors::{Failure, printable};
use crate::path_rules::PathOptions;
use crate::report::{Event, TransferReport};
use crate::ui::out::{self, Stream};
use crate::ui::render;
use crate::{interrupt, keyfile, node, values};
use fetch::Fetcher;
use reach::Sender;

/// A shorter silence is nothing unusual.
const SHORTEST_SILENCE: Span = Span::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  anabranch receive TICKET               into the current directory
  anabranch receive TICKET ~/Downloads   into another one
  anabranch receive TICKET - | tar x     to standard output";

/// Fetch what a ticket offers, over every path there is
///
/// A file appears under its name only when all of it has arrived and was verified. A transfer that was cut off
/// goes on where it stopped when the same command runs again; one that lost all its paths does so by itself.
///
/// When some of the files could not be sent or written, the others arrive, those are named, and the exit code is 6.
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
    /// When all paths are lost on the way, look for the sender again for this long and go on; 0 to give up at once
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = values::span_or_zero, help_heading = "Network")]
    pub retry: Span,
    /// What is wanted of paths.
    #[command(flatten)]
    pub paths_wanted: PathOptions,
    /// Who may change paths meanwhile.
    #[command(flatten)]
    pub running: ControlOption,
    /// What is captured.
    #[command(flatten)]
    pub capture: CaptureOptions,
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
            Failure::usage(error.to_string())
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
    args.target().check()?;
    let runtime = node::runtime()?;
    let capture = args.capture.start()?;
    let outcome = runtime.block_on(fetch(args, &capture, &ticket, context));
    // A thread may still wait for a disk or a pipe: everything that counts is done.
    runtime.shutdown_background();
    outcome.and(capture.finish())
}

async fn fetch(
    args: &ReceiveArgs,
    capture: &Capture,
    ticket: &Ticket,
    context: &Context,
) -> Result<(), Failure> {
    let config = capture.of(EndpointConfig::new(keyfile::fresh()?)).path_rules(args.paths_wanted.rules()?);
    let endpoint = Endpoint::bind(config).await;
    let endpoint = Arc::new(endpoint.map_err(|error| Failure::bind(&error))?);
    let sessions = RunningSessions::default();
    let _socket = args.running.open(&sessions)?;
    let sender = Sender { endpoint: &endpoint, ticket, silence: args.timeout, sessions };
    let session = tokio::select! {
        biased;
        () = interrupt::requested() => return Err(fetch::stopped()),
        session = sender.reach() => session?,
    };
    let display = context.progress(args.json, args.events().unwrap_or(Stream::Stdout));
    let (summary, took) = Fetcher::new(args, sender, display).run(session).await?;
    report(&summary, took, (args, context))
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
    fn a_lost_sender_is_looked_for_a_minute_or_as_long_as_is_said() {
        let retry = |words: &[&str]| parse::<ReceiveArgs>(words).map(|args| args.retry).ok();
        assert_eq!(retry(&["ticket"]), Some(Span::from_secs(60)));
        assert_eq!(retry(&["ticket", "--retry", "0"]), Some(Span::ZERO));
        assert_eq!(retry(&["ticket", "--retry", "1h"]), Some(Span::from_secs(3_600)));
        assert_eq!(retry(&["ticket", "--retry", "soon"]), None);
    }

    #[test]
    fn events_make_room_for_data_on_standard_output() {
        assert_eq!(parse::<ReceiveArgs>(&["ticket", "--json"]).unwrap().events(), Some(Stream::Stdout));
        let args: ReceiveArgs = parse(&["ticket", "-", "--json"]).unwrap();
        assert!(matches!(args.target(), Target::Writer(_)));
        assert_eq!(args.events(), Some(Stream::Stderr));
    }
}
