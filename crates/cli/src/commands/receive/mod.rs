//! `anabranch receive`: fetches what a ticket offers.
//!
//! [`confine`] restricts the process. [`consent`] asks the user. [`courier`](crate::courier) transfers the data, over
//! several sessions if necessary.

mod args;
pub(super) mod confine;
mod consent;

use std::time::Duration;

use anabranch_net::Ticket;
use anabranch_node::{Dial, Node, Threads};
use anabranch_transfer::{Progress, ReceiveOptions, Summary, TransferError};

use crate::capture::Capture;
use crate::carrier::Carrier;
use crate::commands::server::key_directory;
use crate::context::Context;
use crate::courier::{Courier, Errand};
use crate::errors::{Failure, printable, without_codes};
use crate::interrupt;
use crate::report::{Event, TransferReport};
use crate::ui::out::{self, Stream};
use crate::ui::paths::Direction;
use crate::ui::render;
pub use args::{Arriving, ReceiveArgs, Taken, events, target};
use consent::Question;
pub(super) use consent::noting;

/// Fetches what the ticket offers.
pub fn run(args: &ReceiveArgs, context: &Context) -> Result<(), Failure> {
    let ticket = args.ticket()?;
    args.target().check()?;
    let capture = args.reach.capture.start()?;
    let directory = Some(args.target_path()).filter(|_| !args.to_stdout());
    let mut writes = args.reach.writes()?;
    if args.reach.running.control.is_some() {
        writes.extend(key_directory()?);
    }
    let target = confine::to(directory, writes)?;
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
    let node = args.reach.node(Node::builder(), capture)?.start().await?;
    interrupt::survive_file_size_limit();
    let (session, dial) = args.reach.dial(&node, Dial::ticket(ticket)).await?;
    let display = context.progress(args.json, args.events().unwrap_or(Stream::Stdout));
    let errand = Receiving { args, question: Question::new(args, context.quiet) };
    let courier = Courier::new(&errand, args.reach.retry, (&node, &dial), display);
    let (summary, took) = courier.run(session.session().clone()).await?;
    report("received", &summary, took, (args.events(), context))
}

/// The errand of `receive`.
struct Receiving<'a> {
    args: &'a ReceiveArgs,
    question: Question,
}

impl Errand for Receiving<'_> {
    const PEER: &'static str = "the sender";
    const DIRECTION: Direction = Direction::In;

    async fn run(&self, carrier: &Carrier, counters: &Progress) -> Result<Summary, TransferError> {
        let (consent, eager) = (self.question.consent(), self.question.is_given());
        let options = ReceiveOptions { consent, eager, ..self.args.arriving.options() };
        anabranch_transfer::receive(carrier, self.args.target(), &options, counters).await
    }

    fn to_stdout(&self) -> bool {
        self.args.to_stdout()
    }

    fn is_asking(&self) -> bool {
        self.question.is_open()
    }

    fn declined(&self) -> Failure {
        self.question.declined()
    }
}

/// Reports the finished transfer: what was `done`, such as "received".
pub(super) fn report(
    done: &str,
    summary: &Summary,
    elapsed: Duration,
    (events, context): (Option<Stream>, &Context),
) -> Result<(), Failure> {
    if let Some(stream) = events {
        for warning in &summary.warnings {
            stream.json(&Event::Note { message: &without_codes(warning) })?;
        }
        return stream.json(&Event::Done(TransferReport::new(summary, elapsed)));
    }
    if !context.quiet {
        for warning in &summary.warnings {
            out::sentence(&printable(&without_codes(warning)));
        }
        out::sentence(&format!("{done} {}", render::summary(summary, elapsed)));
    }
    Ok(())
}
