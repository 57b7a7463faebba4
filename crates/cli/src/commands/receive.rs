//! `anabranch receive`: fetches what a ticket offers.

use std::path::PathBuf;

use anabranch_transfer::{Conflict, Target};
use clap::Args;

use crate::args::OUTPUT;
use crate::ui::out::Stream;

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
    /// One JSON event a line instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
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
