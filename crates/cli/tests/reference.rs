//! The pages of the reference agree with the code.
//!
//! This test generates `docs/reference/commands.md` from the definitions that parse the command line. The other pages are
//! written by hand; tests check that they name every key and every metric.
//! `ANABRANCH_WRITE_REFERENCE=1 cargo test -p anabranch --test reference` rewrites `commands.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anabranch_cli::args::Cli;
use clap::{Arg, Command, CommandFactory};

/// The width to which prose is wrapped.
const WIDTH: usize = 120;
/// An option that this many commands share is described once.
const SHARED: usize = 2;

const HEAD: &str = "\
# Commands

Made from the program's definitions by `cargo xtask reference`. `anabranch COMMAND --help` has examples. See also the
[exit codes](exit-codes.md).

";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An option's spelling and its help; two options are the same if both match.
type Described = (String, String);

struct Reference {
    page: String,
    /// The options that are described once for several commands.
    shared: BTreeSet<Described>,
}

impl Reference {
    fn new(program: &Command) -> Self {
        let mut uses: BTreeMap<Described, usize> = BTreeMap::new();
        each(program, &mut |command| {
            options(command).for_each(|arg| *uses.entry(described(arg)).or_default() += 1);
        });
        let mut most: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for ((typed, help), count) in uses.into_iter().filter(|(_, count)| *count >= SHARED) {
            let known = most.entry(typed).or_default();
            if count > known.0 {
                *known = (count, help);
            }
        }
        let shared = most.into_iter().map(|(typed, (_, help))| (typed, help)).collect();
        Self { page: HEAD.to_owned(), shared }
    }

    fn write(mut self, program: &Command) -> String {
        let link = |command: &Command| format!("[{0}](#{0})", command.get_name());
        let links: Vec<String> = visible(program).map(link).collect();
        self.page.push_str(&wrapped("", &format!("Commands: {}.", links.join(", "))));
        self.page.push_str("\n## Options of every command\n\n");
        let global: Vec<Described> =
            program.get_arguments().filter(|arg| arg.is_global_set()).map(described).collect();
        self.list(&global);
        self.page.push_str("\n## Options of several commands\n\n");
        self.page.push_str(&wrapped("", "If one of these differs in a command, it is described there."));
        self.page.push('\n');
        let shared: Vec<Described> = self.shared.iter().cloned().collect();
        self.list(&shared);
        for command in visible(program) {
            self.command(command, 2);
        }
        self.page
    }

    fn command(&mut self, command: &Command, depth: usize) {
        let _ = write!(self.page, "\n{} {}\n\n{}.\n", "#".repeat(depth), full_name(command), about(command));
        self.arguments(command);
        for sub in visible(command) {
            self.command(sub, depth + 1);
        }
    }

    /// Writes the arguments of a command: its own as a list, shared ones by name.
    fn arguments(&mut self, command: &Command) {
        let (shared, own): (Vec<&Arg>, Vec<&Arg>) =
            options(command).partition(|arg| self.shared.contains(&described(arg)));
        let own: Vec<Described> = command.get_positionals().chain(own).map(described).collect();
        if !own.is_empty() {
            self.page.push('\n');
            self.list(&own);
        }
        let names: Vec<String> =
            shared.iter().filter_map(|arg| arg.get_long()).map(|long| format!("`--{long}`")).collect();
        if !names.is_empty() {
            let line = format!("[Shared](#options-of-several-commands): {}.", names.join(", "));
            let _ = write!(self.page, "\n{}", wrapped("", &line));
        }
    }

    fn list(&mut self, args: &[Described]) {
        for (typed, help) in args {
            self.page.push_str(&wrapped("- ", &format!("`{typed}`: {help}")));
        }
    }
}

fn each(command: &Command, visit: &mut impl FnMut(&Command)) {
    visit(command);
    visible(command).for_each(|sub| each(sub, visit));
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
}

/// The options of a command, without the global ones.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let own = |arg: &&Arg| !arg.is_positional() && !arg.is_global_set() && !arg.is_hide_set();
    let is_common = |arg: &&Arg| arg.get_id() == "help" || arg.get_id() == "version";
    command.get_arguments().filter(own).filter(move |arg| !is_common(arg))
}

fn described(arg: &Arg) -> Described {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
    let value = value.and_then(|names| names.first()).map(|name| format!("{name}"));
    let typed = match (names.is_empty(), value) {
        (true, _) => arg.to_string(),
        (false, Some(value)) => format!("{} {value}", names.join(", ")),
        (false, None) => names.join(", "),
    };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = help.split("\n\n").map(one_line).collect::<Vec<_>>().join(". ");
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() && !arg.is_hide_default_value_set() {
        let _ = write!(help, " [default: {}]", defaults.join(", "));
    }
    if let Some(name) = arg.get_env() {
        let _ = write!(help, " [env: {}]", name.to_string_lossy());
    }
    (typed, escaped(&help))
}

/// The text with marks of Markdown escaped outside code.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts: Vec<String> = parts
        .map(
            |(at, part)| {
                if at % 2 == 1 { part.into() } else { part.replace('<', "&lt;").replace('*', "\\*") }
            },
        )
        .collect();
    parts.join("`")
}

/// The words after `anabranch`.
fn full_name(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    name.strip_prefix("anabranch ").unwrap_or(name).to_owned()
}

fn about(command: &Command) -> String {
    one_line(&command.get_about().map(ToString::to_string).unwrap_or_default())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A paragraph or, if it begins with a mark, an item of a list.
fn wrapped(mark: &str, text: &str) -> String {
    let mut lines = vec![mark.to_owned()];
    let indent = " ".repeat(mark.len());
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        let is_begun = line.len() > mark.len();
        if is_begun && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else {
            line.push_str(if is_begun { " " } else { "" });
            line.push_str(word);
        }
    }
    format!("{}\n", lines.join("\n"))
}

#[test]
fn the_page_of_commands_is_made_from_the_definitions() {
    let mut program = Cli::command();
    program.build();
    let page = Reference::new(&program).write(&program);
    let file = root().join("docs/reference/commands.md");
    if std::env::var_os("ANABRANCH_WRITE_REFERENCE").is_some() {
        fs::write(&file, &page).unwrap();
    }
    let current = fs::read_to_string(&file).unwrap_or_default() == page;
    assert!(current, "docs/reference/commands.md is not current: run `cargo xtask reference`");
}

/// All Rust sources of the crates whose settings and metrics the pages describe.
fn sources() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["daemon/src", "node/src", "service/src", "tunnel-io/src", "cli/src/commands/tunnel"] {
        collect(&root().join("crates").join(folder), &mut found);
    }
    found
}

fn collect(folder: &Path, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
}

/// The keys of all tables that refuse unknown keys, as a configuration file spells them. The macro `settings!` makes such
/// tables, too.
fn keys(source: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let tables = ["deny_unknown_fields)]", "settings! {\n"];
    for table in tables.iter().flat_map(|begin| source.split(begin).skip(1)) {
        let body = table.split_once('{').map_or("", |(_, rest)| rest);
        let (mut renamed, mut lines) = (None, body.lines().map(str::trim).take_while(|line| *line != "}"));
        while let Some(line) = lines.next() {
            if line == "#[serde(skip)]" {
                lines.next();
                continue;
            }
            if let Some((_, name)) = line.split_once("rename = \"") {
                renamed = name.split('"').next();
            }
            let name = line.split_once(':').map(|(name, _)| name.trim_start_matches("pub "));
            if let Some(name) = name.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')) {
                keys.push(renamed.take().unwrap_or(name).to_owned());
            }
        }
    }
    keys
}

#[test]
fn every_key_of_a_settings_file_is_on_its_page() {
    let page = fs::read_to_string(root().join("docs/reference/files.md")).unwrap();
    let keys: Vec<String> = sources().iter().flat_map(|source| keys(source)).collect();
    let is_named = |key: &&String| {
        [format!("`{key}`"), format!("`[{key}]`"), format!("`[[{key}]]`")]
            .iter()
            .any(|name| page.contains(name))
    };
    let missing: Vec<&String> = keys.iter().filter(|key| !is_named(key)).collect();
    assert!(keys.len() > 30 && missing.is_empty(), "{} keys, not on the page: {missing:?}", keys.len());
}

#[test]
fn every_metric_is_on_its_page() {
    let page = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let mut metrics = Vec::new();
    for source in sources() {
        for call in source.split("put(\"").skip(1) {
            let mut words = call.split('"').step_by(2);
            let first = words.next().unwrap_or_default();
            let is_kind = ["gauge", "counter"].contains(&first);
            metrics.push(if is_kind { words.next().unwrap_or_default() } else { first }.to_owned());
        }
        let tunnels = source.split("\"anabranch_tunnel_").skip(1).filter_map(|rest| rest.split_once(' '));
        metrics.extend(tunnels.map(|(name, _)| name.to_owned()).filter(|name| !name.contains('"')));
    }
    let missing: Vec<&String> = metrics.iter().filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(
        metrics.len() > 15 && missing.is_empty(),
        "{} metrics, not on the page: {missing:?}",
        metrics.len()
    );
}

#[test]
fn every_exit_code_is_on_its_page() {
    let page = fs::read_to_string(root().join("docs/reference/exit-codes.md")).unwrap();
    let codes = anabranch_cli::EXIT_CODES.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let missing: Vec<&str> = codes.filter(|code| !page.contains(&format!("| {code} |"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn keys_are_found_with_the_names_that_files_have() {
    let source = "#[serde(deny_unknown_fields)]\nstruct A {\n    key: PathBuf,\n    #[serde(default, rename = \"user\")]\n    \
                  users: Vec<U>,\n    #[serde(skip)]\n    rest: u8,\n}\nstruct B {\n    other: u8,\n}\n";
    assert_eq!(keys(source), ["key", "user"]);
    assert_eq!(
        keys("settings! {\n    /// A file.\n    File {\n        pub port: u16,\n    }\n}\n"),
        ["port"]
    );
}
