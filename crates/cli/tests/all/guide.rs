//! The program accepts every command on every page, and reads the guide's configuration files. Needs no root;
//! `guide_steps.rs` runs the guide's steps on eight machines.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};

use anabranch_cli::args::Cli;
use clap::Parser;
use common::programs::{Running, Scratch, errors, noise, program};

/// Valid values for the placeholders that a reader replaces.
const TICKET: &str = "anabranch1h65xey5fdawcccvqsyfcuvkhcviqitsl5642f44vqwar2oyix535sxzaz46kctxvvahknar5yq66ektniyufwmnvtya\
                      aaaaanmgdmaicataaaaqcq3hqn7iaaaaaaaaaaaaaaaaaaaaaaaugz4afh76zqi";
const KEY: &str = "ab1m4rskfw2hbmt6x3sydk4o3djro3e7t7felabslrwcsyo4bm3gftpyecg";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The code blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    page.split(&begin).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// The words of a command line as a shell splits them, without comments; a pipe ends one command and begins the next.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut quote, mut has_word) = (String::new(), None, false);
    for letter in line.chars().chain([' ']) {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (Some(_), letter) => word.push(letter),
            (None, '\'' | '"') => (quote, has_word) = (Some(letter), true),
            (None, '#') if word.is_empty() => break,
            (None, ' ') if has_word || !word.is_empty() => {
                let ended = std::mem::take(&mut word);
                has_word = false;
                match ended.as_str() {
                    "|" | "&&" | ";" => commands.push(Vec::new()),
                    _ => commands.last_mut().expect("there is one").push(ended),
                }
            }
            (None, ' ') => {}
            (None, letter) => word.push(letter),
        }
    }
    commands
}

/// The arguments of an `anabranch` command with the placeholders filled in; `None` for other programs.
fn arguments(words: &[String]) -> Option<Vec<String>> {
    let words = words.strip_prefix(&["sudo".to_owned()][..]).unwrap_or(words);
    let own = match words {
        [first, rest @ ..] if first == "anabranch" => rest,
        [cargo, run, rest @ ..] if cargo == "cargo" && run == "run" && !rest.contains(&"-p".to_owned()) => {
            rest.split(|word| word == "--").nth(1).unwrap_or_default()
        }
        _ => return None,
    };
    let own = own.iter().take_while(|word| ![">", ">>", "2>", "&"].contains(&word.as_str()));
    let filled = |word: &String| match word.as_str() {
        "TICKET" => TICKET.to_owned(),
        "KEY@ADDRESS:4600" => format!("{KEY}@192.0.2.1:4600"),
        "FIRST-LINE" => format!("{KEY}@192.0.2.1:4700"),
        "KEY" | "CLIENT-KEY" | "RELAY-KEY" => KEY.to_owned(),
        _ => word.clone(),
    };
    Some(["anabranch".to_owned()].into_iter().chain(own.map(filled)).collect())
}

#[test]
fn every_command_on_every_page_is_one_that_the_program_accepts() {
    let mut found = ["README.md", "CONTRIBUTING.md"].map(|name| root().join(name)).to_vec();
    pages(&root().join("docs"), &mut found);
    let (mut checked, mut wrong) = (0, Vec::new());
    for file in found {
        let page = fs::read_to_string(&file).unwrap();
        for line in blocks(&page, "sh").iter().flat_map(|block| block.lines()) {
            for words in commands(line).iter().filter_map(|words| arguments(words)) {
                checked += 1;
                if let Err(error) = Cli::try_parse_from(&words) {
                    let is_help = !error.use_stderr();
                    if !is_help {
                        wrong.push(format!("{}: {line}\n{error}", file.display()));
                    }
                }
            }
        }
    }
    assert!(checked > 50 && wrong.is_empty(), "{checked} commands, wrong: {}", wrong.join("\n"));
}

fn guide(name: &str) -> String {
    fs::read_to_string(root().join("docs/guide").join(name)).unwrap()
}

/// Changes settings to use any free port on loopback, since others may use the machine.
fn local(block: &str) -> String {
    let (first, rest) = block.split_once('\n').expect("more than one line");
    format!("{first}\nport = 0\naddresses = [\"127.0.0.1\"]\n{rest}\n")
}

#[test]
fn the_guides_relay_and_controller_start_from_the_guides_files() {
    let scratch = Scratch::new();
    let start = |name: &str, text: &str| {
        let file = scratch.path(&format!("{name}.toml"));
        fs::write(&file, local(text)).unwrap();
        let mut command = program(&[name, "--config", file.to_str().unwrap()]);
        Running::start(command.current_dir(scratch.path("from")))
    };
    let page = guide("controller.md");
    let files = blocks(&page, "toml");
    let mut controller = start("controller", &files[0].replace("RELAY-KEY", KEY).replace("CLIENT-KEY", KEY));
    let (at, signs) = (controller.line(), controller.line());
    let mut relay = start("relay", &files[1].replace("FIRST-LINE", &at).replace("SECOND-LINE", &signs));
    assert!(relay.line().starts_with("ab1"));
    drop(relay);
    let mut relay = start("relay", &blocks(&guide("relay.md"), "toml")[0].replace("ab1...", KEY));
    assert!(relay.line().starts_with("ab1"));
}

#[test]
fn the_guides_rules_are_read() {
    let scratch = Scratch::new();
    let rules = scratch.file("paths.toml", 0, 0);
    fs::write(&rules, blocks(&guide("links.md"), "toml")[0]).unwrap();
    fs::write(scratch.path("from/one"), noise(10, 1)).unwrap();
    let (from, rules) = (scratch.text("from"), rules.to_str().unwrap().to_owned());
    let mut send = Running::start(&mut program(&["send", &from, "--path-rules", &rules]));
    assert!(send.line().starts_with("anabranch1"));
}

#[test]
fn the_guides_scenario_keeps_what_it_expects() {
    let scratch = Scratch::new();
    let file = scratch.path("mine.toml");
    fs::write(&file, blocks(&guide("scenario.md"), "toml")[0]).unwrap();
    let output = program(&["sim", "run", file.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn a_command_line_is_split_as_a_shell_does() {
    let found = commands("tar c x | anabranch send - --as 'a b' # why");
    assert_eq!(found, [vec!["tar", "c", "x"], vec!["anabranch", "send", "-", "--as", "a b"]]);
    let words = arguments(&commands("sudo anabranch receive TICKET > x")[0]).unwrap();
    assert_eq!(words, ["anabranch", "receive", TICKET]);
}
