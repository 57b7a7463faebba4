//! `anabranch path`: lists, adds and removes paths of a running command's sessions.

use std::path::PathBuf;

use anabranch_node::{RelayRoute, SessionPath, parse_rule, parse_terms};
use clap::{Args, Subcommand};

use super::answering::Asked;
use super::service::{self, AnswerArgs, Earlier};
use crate::errors::Failure;
use crate::ui::human;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  anabranch bench client TICKET --time 5m --control bench.sock &
  anabranch path list --control bench.sock
  anabranch path add ab1...@198.51.100.7:4600 --control bench.sock
  anabranch path remove 4 --control bench.sock
  anabranch path remove ab1...@198.51.100.7:4600 --control bench.sock
  anabranch path set 2=backup --control bench.sock
  anabranch path set 'wwan*=metered:500MB' --control bench.sock
  anabranch path add ab1...@198.51.100.7:4600 --control send.sock --session 2

A relay that is added has to list the key of the running command: by default the one of `anabranch keys show`.";

/// Show and change the paths of a running session
///
/// The session is that of a `send`, `receive` or `bench client` with `--control FILE`. A `send` has one for each
/// receiver.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct PathArgs {
    #[command(subcommand)]
    pub action: PathCommand,
}

/// The actions on paths.
#[derive(Debug, Subcommand)]
pub enum PathCommand {
    /// Show all paths
    List(RunningArgs),
    /// Open a path through a relay, or through several joined by `+`
    Add {
        /// The relay, as it prints itself
        #[arg(value_name = "KEY@ADDRESS")]
        route: RelayRoute,
        /// The session.
        #[command(flatten)]
        of: RunningArgs,
    },
    /// Use paths in another way: `PATTERN=USE[:CAP][@RATE]`, where a path's number stands for that path
    ///
    /// The rule precedes those with which the command was started.
    Set {
        /// The rule, such as 2=backup or wwan*=metered:500MB
        #[arg(value_name = "RULE", value_parser = rule)]
        rule: String,
        /// The session.
        #[command(flatten)]
        of: RunningArgs,
    },
    /// Close a path through relays that this end named or added; its data is sent elsewhere
    ///
    /// Name one that is not open by its relays.
    Remove {
        /// Its number in the list, or its relays
        #[arg(value_name = "PATH|KEY@ADDRESS", value_parser = which)]
        path: String,
        /// The session.
        #[command(flatten)]
        of: RunningArgs,
    },
}

/// The session, and how its answer is shown.
#[derive(Args, Debug)]
pub struct RunningArgs {
    /// Unix socket over which `anabranch path` reaches the running command
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub control: PathBuf,
    /// A session, by its number in the list [default: the only one; to list, all]
    #[arg(long, value_name = "NUMBER", value_parser = values::whole(0..=u32::MAX))]
    pub session: Option<u32>,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// A path's number, or its relays.
fn which(text: &str) -> Result<String, String> {
    if text.parse::<u32>().is_err() && !text.contains('@') {
        return Err(format!("`{text}` is neither a path's number nor a relay, KEY@ADDRESS:PORT"));
    }
    if text.contains('@') {
        text.parse::<RelayRoute>()?;
    }
    Ok(text.to_owned())
}

/// A rule, or a path's number and its use.
fn rule(text: &str) -> Result<String, String> {
    let text = text.replace(' ', "");
    match text.split_once('=') {
        Some((id, terms)) if id.parse::<u32>().is_ok() => parse_terms(terms).map(|_| ()),
        _ => parse_rule(&text).map(|_| ()),
    }?;
    Ok(text)
}

impl PathArgs {
    fn of(&self) -> &RunningArgs {
        match &self.action {
            PathCommand::List(of)
            | PathCommand::Add { of, .. }
            | PathCommand::Set { of, .. }
            | PathCommand::Remove { of, .. } => of,
        }
    }
}

/// Sends a request to a running session and shows its paths.
pub fn run(args: &PathArgs) -> Result<(), Failure> {
    let request = match &args.action {
        PathCommand::List(_) => "list".to_owned(),
        PathCommand::Add { route, .. } => format!("add {route}"),
        PathCommand::Remove { path, .. } => format!("remove {path}"),
        PathCommand::Set { rule, .. } => format!("set {rule}"),
    };
    let RunningArgs { control, session, answer } = args.of();
    let request = session.map_or(request.clone(), |session| format!("in {session} {request}"));
    let whom = (Asked::Session, &**control, &*request);
    anabranch_node::Threads::start()?.block_on(async {
        match &args.action {
            PathCommand::List(_) => {
                service::ask_twice(whom, answer, |paths: &Vec<SessionPath>, earlier| {
                    text(paths, Some(earlier))
                })
                .await
            }
            _ => service::ask(whom, answer, |paths: &Vec<SessionPath>| text(paths, None)).await,
        }
    })
}

/// The paths a moment ago.
type Before<'a> = Option<&'a Earlier<'a, Vec<SessionPath>>>;

/// A line for each path, under a heading for each session where there are several; with rates if `before` is known.
pub(super) fn text(paths: &[SessionPath], before: Before<'_>) -> String {
    let sessions: Vec<&[SessionPath]> = paths.chunk_by(|a, b| a.session == b.session).collect();
    let lines = |paths| lines(paths, before);
    match sessions[..] {
        [] => "no session at the moment\n".to_owned(),
        [only] => lines(only),
        _ => sessions.iter().map(|paths| format!("session {}\n{}", paths[0].session, lines(paths))).collect(),
    }
}

fn lines(paths: &[SessionPath], before: Before<'_>) -> String {
    let line = |known: &SessionPath| {
        let SessionPath { session, path } = known;
        let rates = before.map_or_else(String::new, |before| {
            let of = |at: usize| {
                let is_it = |other: &&SessionPath| other.session == *session && other.path.id == path.id;
                let counter = |was: &Vec<SessionPath>| was.iter().find(is_it).map(|was| was.path.bytes[at]);
                before.rate(counter, path.bytes[at])
            };
            format!("{:>12} out  {:>12} in  ", of(0), of(1))
        });
        let through = match path.relays.len() {
            0 => "directly".to_owned(),
            count => format!("through {}", human::count(count as u64, "relay")),
        };
        let why = path.why.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        let limit = path.limit_mbit.map_or_else(String::new, |limit| format!("; at most {limit} Mbit/s out"));
        let cap = path.cap.map_or_else(String::new, |cap| {
            let until = cap.resets_on.map_or(String::new(), |day| format!(" until day {day} of the month"));
            format!("; {} of {} left{until}", human::bytes(cap.left), human::bytes(cap.bytes))
        });
        format!(
            "{:>4}  {:<10} {:>8.1} ms  {:>10} sent  {:>10} received  {rates}{}{} → {}  {through}{why}{cap}{limit}\n",
            path.id,
            path.state,
            path.rtt_ms,
            human::bytes(path.bytes[0]),
            human::bytes(path.bytes[1]),
            path.interface.as_ref().map_or_else(String::new, |name| format!("{name} ")),
            path.local.as_deref().unwrap_or("?"),
            path.remote,
        )
    };
    paths.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use anabranch_node::{CapStatus, PathStatus};

    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_line_shows_interface_both_directions_and_the_rest_of_a_cap() {
        let cap = CapStatus { bytes: 5_000_000_000, left: 1_000_000_000, resets_on: Some(15) };
        let path = PathStatus {
            id: 2,
            interface: Some("wwan0".into()),
            local: Some("192.0.2.1:9".into()),
            remote: "203.0.113.9:4433".into(),
            relays: Vec::new(),
            state: "active".into(),
            standing: "in-use".into(),
            why: None,
            cap: Some(cap),
            limit_mbit: Some(5.0),
            rtt_ms: 31.25,
            bytes: [2_000_000, 7_000],
            lost: 0,
        };
        let now = vec![SessionPath { session: 1, path }];
        let mut was = now.clone();
        was[0].path.bytes = [1_000_000, 7_000];
        let text = lines(&now, Some(&Earlier { was: &was, ago: 0.5 }));
        let words = ["2.00 MB sent", "7.00 kB received", "16.0 Mbit/s out", " 0.0 kbit/s in"];
        let words = words.into_iter().chain(["wwan0 192.0.2.1:9 → 203.0.113.9:4433"]);
        for word in words.chain(["1.00 GB of 5.00 GB left until day 15 of the month; at most 5 Mbit/s out"]) {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
        assert!(!lines(&now, None).contains("bit/s in"));
    }

    #[test]
    fn a_session_has_to_be_named() {
        assert!(parse::<PathArgs>(&["list"]).is_err());
        let args: PathArgs = parse(&["remove", "4", "--control", "s", "--json"]).unwrap();
        assert!(matches!(&args.action, PathCommand::Remove { path, of } if path == "4" && of.answer.json));
        let relay = format!("{}@relay.example:4600", anabranch_net::NodeKey::from_random([1; 32]).public());
        assert!(parse::<PathArgs>(&["remove", &relay, "--control", "s"]).is_ok());
        for wrong in ["four", "ab1@relay.example:4600", "-4"] {
            assert!(parse::<PathArgs>(&["remove", wrong, "--control", "s"]).is_err(), "{wrong}");
        }
        assert!(parse::<PathArgs>(&["add", "x", "--control", "s"]).is_err(), "no relay");
    }

    #[test]
    fn a_use_is_set_by_number_or_by_pattern_and_checked_before_anybody_is_asked() {
        for (rule, said) in [
            ("4=backup", "4=backup"),
            ("wwan* = metered:1 GB", "wwan*=metered:1GB"),
            ("to:10.0.0.0/8=never", "to:10.0.0.0/8=never"),
        ] {
            let args: PathArgs = parse(&["set", rule, "--control", "s"]).unwrap();
            assert!(matches!(&args.action, PathCommand::Set { rule, .. } if rule == said), "{rule}");
        }
        for rule in ["4=sometimes", "4", "eth0=primary:1k"] {
            assert!(parse::<PathArgs>(&["set", rule, "--control", "s"]).is_err(), "{rule}");
        }
    }
}
