//! The options of every command, and their effects.

use clap::{ArgAction, Args};

use crate::ui::Mode;
use crate::ui::out::Stream;
use crate::ui::paint::{Paint, When};
use crate::ui::progress::Progress;

/// The heading that options for programs and terminals share in every `--help`.
pub const OUTPUT: &str = "Output";

/// Options of every command.
#[derive(Args, Clone, Debug, Default)]
pub struct Global {
    /// Log more: -v for events, -vv and -vvv for every detail
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet", help_heading = OUTPUT)]
    pub verbose: u8,
    /// Print only results and errors
    #[arg(short, long, global = true, help_heading = OUTPUT)]
    pub quiet: bool,
    /// Colours: auto, always or never
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    #[arg(hide_possible_values = true, help_heading = OUTPUT)]
    pub color: When,
}

/// The options that all commands share.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// How often `-v` was given.
    pub verbose: u8,
    /// Whether to say nothing but results and errors.
    pub quiet: bool,
    /// Colours for standard error.
    pub paint: Paint,
}

impl Context {
    /// Reads the shared options.
    pub fn new(global: &Global) -> Self {
        Self { verbose: global.verbose, quiet: global.quiet, paint: Paint::for_stderr(global.color) }
    }

    /// The progress display of a command; `json` is its `--json`, and events go to `events`.
    pub fn progress(&self, json: bool, events: Stream) -> Progress {
        Progress::new(Mode::choose(json, self.quiet), self.paint, events)
    }
}
