//! `anabranch man`: the manual, made from the same definitions as `--help`.

use std::io;
use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;

use crate::args::Cli;
use crate::errors::Failure;
use crate::ui::out;

const EXAMPLES: &str = "\
Examples:
  anabranch man | man -l -                     read it now
  anabranch man ~/.local/share/man/man1        install all pages";

/// Print the manual, or write all its pages into a directory
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Write one page a command into this directory, making it if need be
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// Prints the page of the program, or writes every page.
///
/// # Errors
/// When the output cannot be written.
pub fn run(args: &ManArgs) -> Result<(), Failure> {
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        let failed = |error: io::Error| Failure::local(format!("cannot render the manual: {error}"));
        Man::new(manual()).render(&mut page).map_err(failed)?;
        return out::print(&String::from_utf8_lossy(&page));
    };
    std::fs::create_dir_all(dir).map_err(|error| Failure::file("create the directory", dir, &error))?;
    clap_mangen::generate_to(manual(), dir).map_err(|error| Failure::file("write pages into", dir, &error))
}

/// The definitions without the `help` pages that would double every other page.
fn manual() -> Command {
    Cli::command().disable_help_subcommand(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_every_command_with_its_examples() {
        let dir = std::env::temp_dir().join(format!("anabranch-man-{}", std::process::id()));
        run(&ManArgs { dir: Some(dir.clone()) }).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        assert!(page("anabranch.1").contains("Exit codes"));
        assert!(page("anabranch-keys.1").contains("Examples"));
        assert!(page("anabranch-keys-show.1").contains("public key"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named_in_the_error() {
        let failure = run(&ManArgs { dir: Some("/dev/null/man".into()) }).unwrap_err();
        assert!(failure.message.contains("/dev/null/man"), "{failure}");
    }
}
