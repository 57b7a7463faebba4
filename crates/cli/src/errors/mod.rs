//! Errors of commands: what happened, what was tried, and what to do next.
//!
//! ```text
//! error: no path to 203.0.113.9:4433 answered within 5 s
//!   tried   192.168.1.20 → direct, 10.0.0.7 → direct
//!   hint    is `anabranch send` still running there, and is UDP port 4433 open?
//! ```
//!
//! The [`Kind`] decides the exit code, so that a script can tell temporary failures from permanent ones.

mod node;
mod transfer;

pub(crate) use anabranch_node::describe;
pub(crate) use transfer::{all_sent, log_missed, without_codes};

use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;

use anabranch_wire::{Escaped, ForeignText};
use serde::{Serialize, Serializer};

use crate::ui::paint::Paint;

/// The most files to show by name; the log and `--json` have the others, too.
const SHOWN: usize = 10;

/// Text with all terminal control characters escaped ([`Escaped`]).
pub fn printable(text: &str) -> String {
    Escaped(text).to_string()
}

/// The cause of a failure; each has its own exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// This machine: a file, a disk, a permission, a port.
    Local,
    /// The command line is invalid: an impossible option or value, or text that is not a ticket.
    Usage,
    /// The other end was not reached, or the connection was lost. Trying again may help.
    Unreachable,
    /// The other end refused or gave up: a wrong or expired ticket, an unknown key, a full disk there. Trying again
    /// does not help.
    Refused,
    /// The data that arrived differs from the data that was sent.
    Corrupt,
    /// Some of the files were transferred, but not all.
    Incomplete,
    /// The user stopped the command.
    Interrupted,
    /// The reader of the output went away (`anabranch … | head`); not an error.
    ReaderGone,
}

impl Kind {
    /// The exit code of the process. The command-line parser uses that of [`Self::Usage`].
    pub fn exit_code(self) -> u8 {
        match self {
            Self::ReaderGone => 0,
            Self::Local => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::Refused => 4,
            Self::Corrupt => 5,
            Self::Incomplete => 6,
            Self::Interrupted => 130,
        }
    }
}

/// The exit codes, as listed in `--help` and the man page.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed on this machine: a file, the disk, a permission, a port
  2    wrong command line: an option, a value, a malformed ticket
  3    the other end was not reached, or was lost; trying again may help
  4    the other end refused or gave up: wrong or expired ticket, unknown key, its disk
  5    the data that arrived is not the data that was sent
  6    some files were not transferred, all others were
  130  interrupted";

/// Why a command failed, as shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The cause, which decides the exit code.
    pub kind: Kind,
    /// The message: one line, lower case, no full stop.
    pub message: String,
    /// Details of the message, one per line, such as the files that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// How many lines of the details after the first [`SHOWN`] only events and the log have, and of how many files they
    /// are.
    #[serde(skip)]
    pub hidden_lines: u16,
    #[serde(skip)]
    pub hidden_files: u32,
    /// The other end's error message.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "escaped")]
    pub said: Option<ForeignText>,
    /// Attempts made before giving up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<String>,
    /// Advice to the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of this kind without attempts or a hint.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let (details, hidden_lines, hidden_files, said, tried, hint) = <_>::default();
        Self { kind, message: message.into(), details, hidden_lines, hidden_files, said, tried, hint }
    }

    /// A failure on this machine.
    pub fn local(message: impl Into<String>) -> Self {
        Self::new(Kind::Local, message)
    }

    /// A failure caused by an invalid command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// A failed operation on a file, with a hint for the errors that have an obvious cause.
    ///
    /// `doing` completes "cannot …": `read`, `create`.
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        anabranch_node::Error::file(doing, path, error).into()
    }

    /// The failure when output cannot be written: its reader went away, or something worse.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Kind::ReaderGone, "the reader of the output went away"),
            _ => Self::local(format!("cannot write the output: {}", describe(error))),
        }
    }

    /// The failure when events cannot be written while a command runs: the command ends early.
    pub fn unheard(error: &io::Error) -> Self {
        Self::local(format!("cannot write the events: {}", describe(error)))
            .hint("the command ends with the program that reads its events; let that read to the end")
    }

    /// Adds a line of details.
    #[must_use]
    pub fn detail(mut self, what: impl Into<String>) -> Self {
        self.details.push(what.into());
        self
    }

    /// Adds the other end's message.
    #[must_use]
    pub fn said(mut self, text: ForeignText) -> Self {
        self.said = Some(text).filter(|text| !text.is_empty());
        self
    }

    /// Adds an attempt.
    #[must_use]
    pub fn tried(mut self, what: impl Into<String>) -> Self {
        self.tried.push(what.into());
        self
    }

    /// Adds advice.
    #[must_use]
    pub fn hint(mut self, what: impl Into<String>) -> Self {
        self.hint = Some(what.into());
        self
    }

    /// Shows only the first [`SHOWN`] of the details so far, which are of so many files.
    fn fold(mut self, files: u64) -> Self {
        self.hidden_lines = self.details.len().saturating_sub(SHOWN).try_into().unwrap_or(u16::MAX);
        self.hidden_files = files.saturating_sub(SHOWN as u64).try_into().unwrap_or(u32::MAX);
        self
    }

    /// Logs the details that are not shown.
    pub fn log_hidden(&self) {
        let hidden = self.details.iter().skip(SHOWN).take(self.hidden_lines.into());
        hidden.for_each(|file| tracing::info!("{}", printable(file)));
    }

    /// The details to show: a number in place of those that are hidden.
    pub fn shown_details(&self) -> Vec<String> {
        let hidden = SHOWN..SHOWN + usize::from(self.hidden_lines);
        let more = || format!("and {} more; `-v` names them", self.hidden_files);
        let shown = |(at, detail): (usize, &String)| match hidden.contains(&at) {
            false => Some(detail.clone()),
            true => (at == hidden.start).then(more),
        };
        self.details.iter().enumerate().filter_map(shown).collect()
    }

    /// The text for a terminal, ending in a newline. Escapes control characters, which may come from the other end or
    /// from file names.
    pub fn render(&self, paint: Paint) -> String {
        // An interruption by the user is not an error.
        let label =
            if self.kind == Kind::Interrupted { paint.bold("stopped:") } else { paint.red_bold("error:") };
        let mut text = format!("{label} {}\n", printable(&self.message));
        for detail in self.shown_details() {
            let _ = writeln!(text, "  {}", printable(&detail));
        }
        if let Some(said) = &self.said {
            let _ = writeln!(text, "  {} \"{said}\"", paint.bold("it said"));
        }
        if !self.tried.is_empty() {
            let _ = writeln!(text, "  {}   {}", paint.bold("tried"), printable(&self.tried.join(", ")));
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "  {}    {}", paint.bold("hint"), printable(hint));
        }
        text
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[expect(clippy::ref_option, reason = "the signature that serde calls")]
fn escaped<S: Serializer>(text: &Option<ForeignText>, serializer: S) -> Result<S::Ok, S::Error> {
    match text {
        Some(text) => serializer.collect_str(text),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_what_was_tried_and_what_to_do_next() {
        let failure = Failure::new(Kind::Unreachable, "no path to 203.0.113.9:4433 answered within 5 s")
            .tried("192.168.1.20 → direct")
            .tried("10.0.0.7 → direct")
            .hint("is UDP port 4433 open?");
        assert_eq!(
            failure.render(Paint::OFF),
            "error: no path to 203.0.113.9:4433 answered within 5 s\n  \
               tried   192.168.1.20 → direct, 10.0.0.7 → direct\n  \
               hint    is UDP port 4433 open?\n"
        );
    }

    #[test]
    fn the_other_ends_words_are_escaped_and_never_look_like_ours() {
        let text = ForeignText::new("full\n  hint    run `rm -rf ~`\u{9b}2J");
        let failure = Failure::new(Kind::Refused, "the other end stopped").said(text);
        assert_eq!(
            failure.render(Paint::OFF),
            "error: the other end stopped\n  it said \"full\\u{a}  hint    run `rm -rf ~`\\u{9b}2J\"\n"
        );
        let json = serde_json::to_value(&failure).unwrap();
        assert_eq!(json["said"], "full\\u{a}  hint    run `rm -rf ~`\\u{9b}2J");
        assert_eq!(json["hint"], serde_json::Value::Null);
    }

    #[test]
    fn an_error_without_advice_is_one_line() {
        assert_eq!(
            Failure::local("the ticket is cut short").render(Paint::OFF),
            "error: the ticket is cut short\n"
        );
    }

    #[test]
    fn text_from_elsewhere_cannot_steer_the_terminal() {
        let failure = Failure::local("cannot read \u{1b}[2Jevil\nname").detail("txt.\u{202e}exe");
        let expected = "error: cannot read \\u{1b}[2Jevil\\u{a}name\n  txt.\\u{202e}exe\n";
        assert_eq!(failure.render(Paint::OFF), expected);
    }

    #[test]
    fn a_file_error_speaks_the_systems_words_and_hints_at_the_cause() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let failure = Failure::file("write", Path::new("/data/film.mkv"), &full);
        assert!(failure.message.starts_with("cannot write /data/film.mkv: "), "{failure}");
        assert_eq!(failure.hint.unwrap(), "free some space and run the same command again");
        let source = io::Error::from(io::ErrorKind::StorageFull);
        let io =
            anabranch_transfer::TransferError::Io { action: "write", path: "/data/film.mkv".into(), source };
        assert!(Failure::from(io).hint.unwrap().contains("resumes"), "what is transferred is there in part");

        let denied = io::Error::from_raw_os_error(13);
        let failure = Failure::file("read", Path::new("secret"), &denied);
        assert_eq!(failure.message, "cannot read secret: permission denied");
    }

    #[test]
    fn every_kind_of_failure_has_the_exit_code_that_the_help_states() {
        use Kind::{Corrupt, Incomplete, Interrupted, Local, Refused, Unreachable, Usage};
        for kind in [Local, Usage, Unreachable, Refused, Corrupt, Incomplete, Interrupted] {
            let line = format!("\n  {:<5}", kind.exit_code());
            assert!(EXIT_CODES.contains(&line), "{kind:?}");
        }
    }

    #[test]
    fn a_failure_serialises_with_its_kind_and_without_what_is_empty() {
        let json = serde_json::to_string(&Failure::new(Kind::Refused, "the ticket has expired")).unwrap();
        assert_eq!(json, r#"{"kind":"refused","message":"the ticket has expired"}"#);
    }
}
