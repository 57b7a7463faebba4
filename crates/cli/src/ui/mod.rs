//! Output for the user: progress, colours, log lines, plain text.
//!
//! Results go to standard output; progress, log lines and errors go to standard error, so that
//! `anabranch receive TICKET - | tar x` works. With `--json` both become newline-delimited events.

pub mod human;
pub mod log;
pub mod out;
pub mod pace;
pub mod paint;
pub mod paths;
pub mod progress;
pub mod render;
pub mod screen;
pub mod snapshot;
pub mod width;

use std::io::IsTerminal;

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Lines that redraw themselves: standard error is a terminal.
    Terminal,
    /// A plain line every few seconds.
    Lines,
    /// One JSON object per line.
    Json,
    /// Nothing.
    Quiet,
}

impl Mode {
    /// The mode for these flags: `--json` wins over `--quiet`, which wins over what standard error is.
    pub fn choose(json: bool, quiet: bool) -> Self {
        Self::of(json, quiet, std::io::stderr().is_terminal() && !is_dumb())
    }

    fn of(json: bool, quiet: bool, can_redraw: bool) -> Self {
        match (json, quiet) {
            (true, _) => Self::Json,
            (false, true) => Self::Quiet,
            (false, false) if can_redraw => Self::Terminal,
            (false, false) => Self::Lines,
        }
    }
}

/// True for a terminal that cannot move its cursor.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_by_programs_and_wins_over_quiet() {
        assert_eq!(Mode::choose(true, true), Mode::Json);
        assert_eq!(Mode::choose(false, true), Mode::Quiet);
        assert_eq!([true, false].map(|redraw| Mode::of(false, false, redraw)), [Mode::Terminal, Mode::Lines]);
    }
}
