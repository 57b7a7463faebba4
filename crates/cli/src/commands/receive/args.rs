//! The arguments of `anabranch receive`.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anabranch_net::Ticket;
use anabranch_transfer::{Conflict, OutputStream, ReceiveOptions, Target, close_output};
use clap::Args;

use crate::context::OUTPUT;
use crate::errors::Failure;
use crate::node_word::begins_ticket;
use crate::reach::Reach;
use crate::ui::out::Stream;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  anabranch receive TICKET               into the current directory, after a look at what is offered
  anabranch receive TICKET photos --yes  into a directory, without asking
  anabranch receive TICKET - | tar x     to standard output
  anabranch receive @ticket.txt          with the ticket from a file that others cannot read";

/// Fetch a ticket's files over every path
///
/// A file gets its name only when all of it has arrived and was verified. A transfer that was cut off continues when the
/// same command runs again.
///
/// The command lists the offer and writes nothing before you agree, on the terminal or by `--yes`. New files and
/// directories get the sender's modes, without the bits of your umask.
///
/// Files that could not be sent or written are named, all others arrive, and the exit code is 6.
///
/// A ticket on the command line is visible to other users and stays in the shell's history. It may also come from a file
/// (`@FILE`), from standard input (`-`), or from ANABRANCH_TICKET; the first word is the target then.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReceiveArgs {
    /// The sender's ticket; `-` for standard input, `@FILE` for a file [env: ANABRANCH_TICKET]
    #[arg(value_name = "TICKET", required_unless_present = "variable")]
    pub first: Option<String>,
    /// Directory to write to; `-` for standard output [default: the current directory]
    #[arg(value_name = "TARGET", value_hint = clap::ValueHint::DirPath)]
    pub second: Option<PathBuf>,
    /// The ticket, from the environment
    #[arg(long = "ticket-variable", id = "variable", hide = true, env = values::TICKET_VARIABLE, hide_env_values = true)]
    pub variable: Option<String>,
    /// Fetch the offer without asking
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    pub arriving: Arriving,
    #[command(flatten)]
    pub reach: Reach,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// True for a word that looks like a ticket rather than a target.
fn looks_like_ticket(word: &str) -> bool {
    word.starts_with('@') || begins_ticket(word)
}

/// Which files are accepted, and how they are written.
#[derive(Args, Debug)]
pub struct Arriving {
    /// Refuse to receive more than this, such as `2GB`
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub max_size: Option<u64>,
    /// Accept hidden names (`.bashrc`) into a directory that is not empty
    #[arg(long)]
    pub hidden: bool,
    /// Take modes exactly as sent, whatever the umask
    #[arg(long)]
    pub modes: bool,
    /// Copy extended attributes (`user.*`), too
    #[arg(long)]
    pub xattrs: bool,
    /// Keep hard links: names of one file stay names of one file
    #[arg(short = 'H', long)]
    pub hard_links: bool,
    #[command(flatten)]
    pub taken: Taken,
}

impl Arriving {
    /// The options of a transfer.
    pub fn options(&self) -> ReceiveOptions {
        ReceiveOptions {
            conflict: self.taken.conflict(),
            max_size: self.max_size,
            allow_hidden: self.hidden,
            all_modes: self.modes,
            attributes: self.xattrs,
            hard_links: self.hard_links,
            ..ReceiveOptions::default()
        }
    }
}

/// The target of this name: a directory, or standard output for `-`.
pub fn target(path: &Path) -> Target {
    if path.as_os_str() == "-" {
        Target::Writer(Box::new(StandardOutput))
    } else {
        Target::Directory(path.to_owned())
    }
}

/// Standard output as a target.
struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        io::stdout().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

impl OutputStream for StandardOutput {
    fn finish(&mut self) -> io::Result<()> {
        self.flush()?;
        close_output(io::stdout().as_fd())
    }
}

/// Where events go with `--json`: to standard error if the data goes to standard output.
pub fn events(is_json: bool, target: &Path) -> Option<Stream> {
    let stream = if target.as_os_str() == "-" { Stream::Stderr } else { Stream::Stdout };
    is_json.then_some(stream)
}

/// The policy for files whose names are taken. By default such a file stays and is an error in the end. A file with the
/// right content is never touched.
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

impl Taken {
    /// The choice for a file whose name is taken.
    pub fn conflict(&self) -> Conflict {
        match self {
            Self { overwrite: true, .. } => Conflict::Overwrite,
            Self { rename: true, .. } => Conflict::Rename,
            Self { skip: true, .. } => Conflict::Skip,
            Self { .. } => Conflict::Error,
        }
    }
}

impl ReceiveArgs {
    /// The ticket.
    pub fn ticket(&self) -> Result<Ticket, Failure> {
        let (ticket, _) = self.words();
        values::ticket(ticket).map_err(|error| {
            Failure::usage(error)
                .hint("copy the whole line that `anabranch send` printed on the other machine")
        })
    }

    /// Ticket and target. If no word is a ticket, the environment's is used.
    fn words(&self) -> (&str, &Path) {
        let here = Path::new(".");
        match (&self.first, &self.second, &self.variable) {
            (Some(first), None, Some(variable)) if !looks_like_ticket(first) => (variable, Path::new(first)),
            (Some(first), second, _) => (first, second.as_deref().unwrap_or(here)),
            (None, second, variable) => {
                (variable.as_deref().unwrap_or_default(), second.as_deref().unwrap_or(here))
            }
        }
    }

    /// The ticket in the first word; `None` if the second word would be mistaken for a ticket without it.
    pub fn ticket_word(&self) -> Option<&str> {
        let target = self.second.as_ref().and_then(|target| target.to_str());
        let first = self.first.as_deref().filter(|first| begins_ticket(first));
        first.filter(|_| !target.is_some_and(looks_like_ticket))
    }

    /// The target: a directory, or `-`.
    pub fn target_path(&self) -> &Path {
        self.words().1
    }

    /// The target as the transfer takes it.
    pub fn target(&self) -> Target {
        target(self.target_path())
    }

    /// True for a transfer to standard output.
    pub fn to_stdout(&self) -> bool {
        self.target_path().as_os_str() == "-"
    }

    /// Where events go with `--json`.
    pub fn events(&self) -> Option<Stream> {
        events(self.json, self.target_path())
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Span;

    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_ticket_is_fetched_into_the_current_directory() {
        let args: ReceiveArgs = parse(&["ticket"]).unwrap();
        assert_eq!(
            (args.target_path().to_str(), args.arriving.taken.conflict()),
            (Some("."), Conflict::Error)
        );
        assert_eq!(args.events(), None);
    }

    #[test]
    fn a_ticket_from_the_environment_leaves_the_words_to_the_target() {
        let words = |first: Option<&str>, second: Option<&str>| {
            let mut args: ReceiveArgs = parse(&["ticket"]).unwrap();
            (args.first, args.second) = (first.map(str::to_owned), second.map(PathBuf::from));
            args.variable = Some("anabranch1variable".into());
            let (ticket, target) = args.words();
            (ticket.to_owned(), target.display().to_string())
        };
        let is = |ticket: &str, target: &str| (ticket.to_owned(), target.to_owned());
        assert_eq!(words(None, None), is("anabranch1variable", "."));
        assert_eq!(words(Some("to"), None), is("anabranch1variable", "to"));
        assert_eq!(words(Some("-"), None), is("anabranch1variable", "-"));
        assert_eq!(words(Some("anabranch1word"), None), is("anabranch1word", "."));
        assert_eq!(words(Some("ANABRANCH1WORD"), None), is("ANABRANCH1WORD", "."));
        assert_eq!(words(Some("@file"), Some("to")), is("@file", "to"));
        let in_capitals: ReceiveArgs = parse(&["ANABRANCH1WORD"]).unwrap();
        assert_eq!(in_capitals.ticket_word(), Some("ANABRANCH1WORD"));
    }

    #[test]
    fn one_answer_to_a_taken_name_at_most() {
        for (option, answer) in
            [("--overwrite", Conflict::Overwrite), ("--rename", Conflict::Rename), ("--skip", Conflict::Skip)]
        {
            assert_eq!(parse::<ReceiveArgs>(&["ticket", option]).unwrap().arriving.taken.conflict(), answer);
        }
        assert!(parse::<ReceiveArgs>(&["ticket", "--skip", "--rename"]).is_err());
    }

    #[test]
    fn a_lost_sender_is_looked_for_a_minute_or_as_long_as_is_said() {
        let retry = |words: &[&str]| parse::<ReceiveArgs>(words).map(|args| args.reach.retry).ok();
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
