//! `anabranch receive`: fetches what a ticket offers.
//!
//! [`confine`] restricts the process. [`consent`] asks the user. [`fetch`] transfers the data, over several sessions if
//! necessary.

mod args;
mod confine;
mod consent;
mod fetch;

use std::time::Duration;

use anabranch_net::Ticket;
use anabranch_node::{Dial, Node, Threads};
use anabranch_transfer::Summary;

use crate::capture::Capture;
use crate::context::Context;
use crate::errors::{Failure, printable};
use crate::interrupt;
use crate::report::{Event, TransferReport};
use crate::ui::out::{self, Stream};
use crate::ui::render;
pub use args::{ReceiveArgs, Taken};
use consent::Question;
use fetch::Fetcher;

/// Fetches what the ticket offers.
///
/// # Errors
/// The cause, and advice for the user.
pub fn run(args: &ReceiveArgs, context: &Context) -> Result<(), Failure> {
    let ticket = args.ticket()?;
    args.target().check()?;
    let capture = args.capture.start()?;
    let target = confine::confine(args)?;
    let runtime = Threads::start()?;
    let outcome = runtime.block_on(fetch(args, &capture, &ticket, context));
    // A thread may still wait for a disk or a pipe, but all results are in.
    runtime.shutdown_background();
    drop(target);
    outcome.and(capture.finish())
}

async fn fetch(
    args: &ReceiveArgs,
    capture: &Capture,
    ticket: &Ticket,
    context: &Context,
) -> Result<(), Failure> {
    let node = Node::builder()
        .session(args.tuning.config())
        .silence(args.timeout)
        .path_rules(args.paths_wanted.rules()?);
    let node = node.control(args.running.control.clone()).tap(capture.tap()).start().await?;
    interrupt::survive_file_size_limit();
    let dial = Dial::ticket(ticket);
    let more = super::send::outside(&args.addresses, dial.port()).await?;
    let dial = dial.addresses(more);
    let session = tokio::select! {
        biased;
        () = interrupt::requested() => return Err(fetch::stopped()),
        session = node.dial(&dial) => session?,
    };
    let display = context.progress(args.json, args.events().unwrap_or(Stream::Stdout));
    let question = Question::new(args, context.quiet);
    let fetcher = Fetcher::new(args, question, (&node, &dial), display);
    let (summary, took) = fetcher.run(session.session().clone()).await?;
    report(&summary, took, (args, context))
}

/// Reports the finished transfer.
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
