//! The `anabranch` command line.
//!
//! [`args`] defines the command line, [`commands`] runs it (one file per command), [`ui`] shows progress, and
//! [`errors`] reports failures with advice. Commands return values; only the edges of this crate write to the
//! terminal.

pub mod args;
mod capture;
mod carrier;
mod commands;
mod congestion;
mod context;
mod control;
mod courier;
mod errors;
mod hide_ticket;
mod interrupt;
mod large_pages;
mod node_word;
mod path_rules;
mod qr;
mod reach;
mod relays;
mod report;
mod ticket_store;
mod ui;
mod values;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

pub use capture::read::Reading;
pub use errors::EXIT_CODES;

use args::Cli;
use context::Context;
use errors::Kind;
use report::Event;
use ui::out;

/// Parses the command line, runs the command and returns the exit code for its outcome ([`Kind`]).
pub fn main() -> ExitCode {
    let words = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&words).unwrap_or_else(|error| error.exit());
    match cli.command.simulations() {
        0 => {}
        at_once => large_pages::restart_with(at_once),
    }
    if let Some(ticket) = cli.command.ticket_word() {
        hide_ticket::hide(ticket);
    }
    let context = Context::new(&cli.global);
    ui::log::start(&context);
    let events = cli.command.events(&words);
    let outcome = commands::run(cli.command, &context);
    for cap in anabranch_node::settle_caps() {
        if !context.quiet {
            let (left, all) = (ui::human::bytes(cap.left), ui::human::bytes(cap.bytes));
            out::sentence(&format!(
                "{left} of {all} left for {} until day {} of the month",
                cap.pattern, cap.day
            ));
        }
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.kind == Kind::ReaderGone => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(stream) = events {
                // The exit code and standard error report the failure, too.
                let _ = stream.json(&Event::Error(&failure));
            }
            failure.log_hidden();
            out::sentence(failure.render(context.paint).trim_end());
            ExitCode::from(failure.kind.exit_code())
        }
    }
}
