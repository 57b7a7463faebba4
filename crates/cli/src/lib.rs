//! The `anabranch` command line.
//!
//! [`args`] says what may be typed, [`commands`] does it (one file a command), [`ui`] shows how it goes,
//! [`errors`] says what went wrong and what to do about it. Commands return values; only this crate's
//! edges write to the terminal.

pub mod args;
pub mod capture;
pub mod carrier;
pub mod commands;
pub mod control;
pub mod errors;
mod hide_ticket;
pub mod interrupt;
mod large_pages;
pub mod path_rules;
pub mod relays;
pub mod report;
pub mod ui;
pub mod values;

use std::process::ExitCode;

use clap::Parser;

use args::Cli;
use commands::Context;
use errors::Kind;
use report::Event;
use ui::out;

/// Reads the command line, runs the command and turns its outcome into an exit code ([`Kind`]).
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.simulations() {
        0 => {}
        at_once => large_pages::restart_with(at_once),
    }
    if let Some(ticket) = cli.command.ticket_word() {
        hide_ticket::restart_without(ticket);
    }
    let context = Context::new(&cli.global);
    ui::log::start(&context);
    let events = cli.command.events();
    match commands::run(cli.command, &context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.kind == Kind::ReaderGone => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(stream) = events {
                // The exit code and standard error tell it, too.
                let _ = stream.json(&Event::Error(&failure));
            }
            out::error(&failure.render(context.paint));
            ExitCode::from(failure.kind.exit_code())
        }
    }
}
