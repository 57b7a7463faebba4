//! The program from a user's view: its output and its exit codes.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::common::programs::{Running, program};

/// A home directory of its own for each test, removed afterwards.
struct Home(TempDir);

impl Home {
    fn new(name: &str) -> Self {
        Self(TempDir::with_prefix(format!("anabranch-command-{name}-")).unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
        command.args(words).env_clear().env("HOME", self.path());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_new_user_makes_a_key_and_is_shown_the_same_one_again() {
    let home = Home::new("keys");
    let missing = home.run(&["keys", "show"]);
    assert_eq!(missing.status.code(), Some(1));
    let key = home.path().join(".config/anabranch/key");
    let advice = format!("`anabranch keys new --key {}` makes one", key.display());
    assert!(text(&missing.stderr).contains(&advice), "{missing:?}");

    let made = home.run(&["keys", "new"]);
    let shown = home.run(&["keys", "show"]);
    assert!(made.status.success() && text(&made.stdout).starts_with("ab1"), "{made:?}");
    assert_eq!(text(&made.stdout), text(&shown.stdout));
    assert!(key.exists());
}

#[test]
fn quiet_prints_the_result_and_nothing_else() {
    let home = Home::new("quiet");
    let made = home.run(&["keys", "new", "--quiet"]);
    assert_eq!((text(&made.stderr), text(&made.stdout).lines().count()), ("", 1));
}

#[test]
fn a_program_gets_failures_as_json_too() {
    let home = Home::new("json");
    let missing = home.run(&["keys", "show", "--json"]);
    let event: serde_json::Value = serde_json::from_slice(&missing.stdout).unwrap();
    assert_eq!((&event["event"], &event["kind"]), (&"error".into(), &"local".into()));
    assert!(text(&missing.stderr).starts_with("error: "));
}

#[test]
fn a_wrong_command_line_has_an_exit_code_of_its_own() {
    let home = Home::new("usage");
    assert_eq!(home.run(&["fly"]).status.code(), Some(2));
    assert_eq!(home.run(&[]).status.code(), Some(2));
    assert_eq!(home.run(&["--help"]).status.code(), Some(0));
}

#[test]
fn errors_are_coloured_only_when_asked_for_or_on_a_terminal() {
    let home = Home::new("colour");
    let plain = home.run(&["keys", "show"]);
    let coloured = home.run(&["keys", "show", "--color", "always"]);
    assert!(!text(&plain.stderr).contains('\x1b'));
    assert!(text(&coloured.stderr).contains("\x1b[1;31merror:\x1b[0m"));
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let home = Home::new("pipe");
    let mut child = home.command(&["completions", "bash"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_manual_is_one_page_of_a_command_or_all_pages_in_a_directory() {
    let home = Home::new("man");
    let page = home.run(&["man", "send"]);
    assert!(text(&page.stdout).contains(".TH anabranch-send 1"), "{page:?}");
    let dir = home.path().join("man1");
    let written = home.run(&["man", dir.to_str().unwrap()]);
    assert!(written.status.success() && written.stdout.is_empty(), "{written:?}");
    assert!(dir.join("anabranch.1").exists() && dir.join("anabranch-send.1").exists());
}

#[test]
fn experiments_tell_what_was_not_as_expected_the_same_way_wherever_it_is_looked_at() {
    let home = Home::new("sim");
    let file = |name: &str| home.path().join(name).to_string_lossy().into_owned();
    let scenario = "duration = \"1 s\"\n[[link]]\nname = \"a\"\nrate = \"4 Mbit/s\"\ndelay = \"5 ms\"\n\
         [[flow]]\nname = \"M\"\npaths = [\"a\"]\n[expect]\n\"flow.M.goodput_mbit_s\" = { min = 2 }\n";
    std::fs::write(file("tiny.toml"), scenario).unwrap();
    let sweep = |shard: &str| {
        let set = ["--set", "link.a.rate=1 Mbit/s,4 Mbit/s", "--json", "--shard", shard];
        let swept = home.run(&[&["sim", "sweep", &file("tiny.toml")], &set[..]].concat());
        let part = file(&shard.replace('/', "-"));
        std::fs::write(&part, &swept.stdout).unwrap();
        (swept, part)
    };
    let told = "  tiny link.a.rate=1 Mbit/s, seed 1: flow.M.goodput_mbit_s is ";
    let (slow, first) = sweep("1/3");
    assert!(slow.status.code() == Some(1) && text(&slow.stderr).contains(told), "{slow:?}");
    let (_, second) = sweep("2/3");
    let (none, third) = sweep("3/3");
    assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    assert!(text(&none.stderr).starts_with("warning: shard 3/3 of 2 runs is empty"), "{none:?}");
    let parts = [first.as_str(), &second, &third];
    for metric in [&[][..], &["--metric", "jain"], &["--csv"]] {
        let merged = home.run(&[&["sim", "merge"], &parts[..], metric].concat());
        assert!(merged.status.code() == Some(1) && text(&merged.stderr).contains(told), "{merged:?}");
    }
    let wrong = home.run(&["sim", "sweep", "two-links", "--set", "flow.M.rules=lia"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

#[test]
fn a_sweep_ends_with_a_table_that_compares_the_variants() {
    let home = Home::new("sweep");
    let file = home.path().join("tiny.toml");
    let scenario = "duration = \"1 s\"\n[[link]]\nname = \"a\"\nrate = \"4 Mbit/s\"\ndelay = \"5 ms\"\n\
         [[flow]]\nname = \"M\"\npaths = [\"a\"]\n";
    std::fs::write(&file, scenario).unwrap();
    let set = "link.a.rate=1 Mbit/s,4 Mbit/s";
    let swept = home.run(&["sim", "sweep", file.to_str().unwrap(), "--set", set]);
    let told = text(&swept.stdout);
    let (_, table) = told.split_once("\n\n|").unwrap_or_else(|| panic!("{told}"));
    let rows: Vec<_> = table.lines().skip(2).map(|row| row.rsplit_once(" | ").unwrap().0).collect();
    assert_eq!(rows, ["| tiny link.a.rate=1 Mbit/s | 1", "| tiny link.a.rate=4 Mbit/s | 1"]);
}

#[test]
fn a_run_prints_and_draws_the_metrics_that_are_asked_for() {
    let home = Home::new("metric");
    let drawings = home.path().join("drawings");
    let words = ["sim", "run", "two-links", "--metric", "flow.*.goodput_mbit_s", "--plot"];
    let run = home.run(&[&words[..], &[drawings.to_str().unwrap()]].concat());
    assert!(run.status.success(), "{run:?}");
    let rows: Vec<&str> = text(&run.stdout).lines().collect();
    assert_eq!(rows[0], "|  | runs | flow.M.goodput_mbit_s | flow.tcp.goodput_mbit_s |");
    assert!(rows.len() == 3 && rows[2].starts_with("| two-links | 1 | "), "{rows:?}");
    assert!(drawings.join("two-links-flow-goodput-mbit-s.svg").exists());
}

#[test]
fn a_test_that_breaks_off_prints_what_it_has_measured() {
    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let words = ["bench", "client", &ticket, "--time", "1m", "--interval", "100ms"];
    let mut client = Running::start(&mut program(&words));
    assert!(client.line().contains("received") && client.line().contains("bit/s"), "heading and interval");
    server.interrupt();
    let mut output = client.child.stdout.take().unwrap();
    let (code, told) = client.end();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(code == Some(3) && rest.contains("longest silence"), "{code:?} {told} {rest}");
}
