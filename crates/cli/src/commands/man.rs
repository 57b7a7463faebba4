//! `anabranch man`: prints the manual, made from the same definitions as `--help`.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;

use crate::args::Cli;
use crate::errors::Failure;
use crate::ui::out;

const EXAMPLES: &str = "\
Examples:
  anabranch man | man -l -                     read it now
  anabranch man send | man -l -                the page of one command
  anabranch man ~/.local/share/man/man1        install all pages";

/// Print the manual, or write its pages into a directory
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// A command to print the page of, or a directory to write all pages into
    #[arg(value_name = "COMMAND|DIR", value_hint = clap::ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// Prints the page of the program, or writes every page.
pub fn run(args: &ManArgs) -> Result<(), Failure> {
    let mut manual = manual();
    manual.build();
    let Some(dir) = &args.dir else { return print(manual) };
    if let Some(command) = dir.to_str().and_then(|name| below(&manual, name)) {
        return print(command.clone());
    }
    if dir.components().count() == 1 && !dir.exists() && dir.is_relative() {
        let named = dir.display();
        return Err(Failure::usage(format!(
            "no command is called `{named}`, and there is no directory of this name"
        ))
        .hint(format!("`anabranch help` lists the commands; `./{named}` makes a directory for all pages")));
    }
    std::fs::create_dir_all(dir).map_err(|error| Failure::file("create the directory", dir, &error))?;
    write_pages(&manual, dir).map_err(|error| Failure::file("write pages into", dir, &error))
}

/// The command of this name, such as `tunnel up` or, as its page is called, `tunnel-up`.
fn below<'a>(manual: &'a Command, name: &str) -> Option<&'a Command> {
    let name = name.strip_prefix("anabranch").map_or(name, |rest| rest.trim_start_matches([' ', '-']));
    if name.is_empty() {
        return Some(manual);
    }
    let direct = manual.find_subcommand(name);
    direct.or_else(|| name.split([' ', '-']).try_fold(manual, |command, word| command.find_subcommand(word)))
}

fn print(command: Command) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::local(format!("cannot render the manual: {error}"));
    out::print(&page(&Man::new(command)).map_err(failed)?)
}

/// Writes the pages of a command and of those below it.
fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, dir)?;
    }
    let man = Man::new(command.clone());
    std::fs::write(dir.join(man.get_filename()), page(&man)?)
}

fn page(man: &Man) -> io::Result<String> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    Ok(keep_lines(&String::from_utf8_lossy(&page)))
}

/// Keeps the lines of the examples, which would be filled and justified otherwise.
fn keep_lines(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, rest)) = page.split_once(EXTRA) else { return page.to_owned() };
    let (lines, after) = rest.split_at(rest.find("\n.SH ").map_or(rest.len(), |end| end + 1));
    let end = if lines.ends_with('\n') { ".fi\n" } else { "\n.fi\n" };
    format!("{before}{EXTRA}.nf\n{lines}{end}{after}")
}

/// The definitions, each with a synopsis that names its options' values. The `help` subcommands are removed:
/// they would repeat every page.
fn manual() -> Command {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    with_synopsis(command)
}

fn with_synopsis(command: Command) -> Command {
    let usage = synopsis(&command);
    command.override_usage(usage).mut_subcommands(with_synopsis)
}

/// A command line with all arguments: `anabranch send [--name <NAME>] … <PATH>...`.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let (places, options): (Vec<_>, Vec<_>) =
        command.get_arguments().filter(|arg| !arg.is_hide_set()).partition(|arg| arg.is_positional());
    let options = options.into_iter().map(|option| format!("[{option}]"));
    let places = places.into_iter().map(ToString::to_string);
    let last = command.has_subcommands().then(|| "<COMMAND>".to_owned());
    [name].into_iter().chain(options).chain(places).chain(last).collect::<Vec<_>>().join(" ")
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
        let bench = page("anabranch-bench.1");
        let examples = bench.split(".nf\n").nth(1).and_then(|rest| rest.split("\n.fi\n").next()).unwrap();
        assert!(examples.starts_with("Examples:\n  anabranch bench server   "), "{examples}");
        assert!(examples.lines().count() > 4 && !examples.contains(".SH"), "{examples}");
        let send = page("anabranch-send.1").replace('\\', "");
        for words in ["anabranch send", "[--expires <TIME>]", "<PATH>..."] {
            assert!(send.contains(words), "no {words} in {send}");
        }
        assert!(page("anabranch-keys-show.1").contains("public key"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_misspelt_command_makes_no_directory() {
        let failure = run(&ManArgs { dir: Some("recieve".into()) }).unwrap_err();
        assert!(failure.message.contains("no command is called `recieve`"), "{failure}");
        assert!(!Path::new("recieve").exists());
        let manual = manual();
        for name in ["tunnel up", "tunnel-up", "anabranch tunnel up", "anabranch-tunnel-up"] {
            assert_eq!(below(&manual, name).unwrap().get_name(), "up");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named_in_the_error() {
        let failure = run(&ManArgs { dir: Some("/dev/null/man".into()) }).unwrap_err();
        assert!(failure.message.contains("/dev/null/man"), "{failure}");
    }
}
