//! `anabranch status`: shows the services and sessions of this machine.
//!
//! Every service, and every command with `--control`, answers at a Unix socket. This command asks all of
//! them.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::answering::{Answer, ask};
use super::{controller, path, relay};
use crate::context::OUTPUT;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// The directory of the services' sockets.
const PLACE: &str = "/run/anabranch";

const EXAMPLES: &str = "\
Examples:
  anabranch status                                    all services of this machine
  anabranch status --json | jq .services
  anabranch status --control relay.sock --control bench.sock";

/// Show the services and sessions of this machine
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// Unix socket of a service or a running command; may be repeated [default: all in and below /run/anabranch]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub control: Vec<PathBuf>,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    services: Vec<Service>,
}

/// The kind of program behind a socket.
#[derive(Debug, Serialize)]
struct Service {
    control: PathBuf,
    #[serde(flatten)]
    answer: Answer,
}

/// Asks all services and shows their answers.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let sockets = if args.control.is_empty() { sockets_in(Path::new(PLACE)) } else { args.control.clone() };
    if sockets.is_empty() {
        return Err(Failure::local(format!("no service has a socket in {PLACE}")).hint(
            "a relay or a controller has one when its configuration says `control = \"…\"`; name it with `--control FILE`",
        ));
    }
    let services = anabranch_node::Threads::start()?.block_on(async {
        let mut services = Vec::new();
        for control in sockets {
            let answer = ask(&control).await;
            services.push(Service { control, answer });
        }
        services
    });
    let report = Report { services };
    if args.json {
        Stream::Stdout.json(&report)?;
    } else {
        out::page(&text(&report))?;
    }
    let silent = report.services.iter().find_map(|service| match &service.answer {
        Answer::Silent { why } => Some(format!("no one answers at {}: {why}", service.control.display())),
        _ => None,
    });
    match silent {
        Some(why) => Err(Failure::local(why).hint(
            "is it running, and are you its user or root? a file that a killed program left can be removed",
        )),
        None => Ok(()),
    }
}

/// The sockets in a directory and in its subdirectories, by name; none if it cannot be read.
fn sockets_in(place: &Path) -> Vec<PathBuf> {
    let within = |place: &Path| {
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let all = within(place).into_iter().flat_map(|entry| [vec![entry.clone()], within(&entry)].concat());
    let mut sockets: Vec<PathBuf> =
        all.filter(|file| file.extension().is_some_and(|extension| extension == "sock")).collect();
    sockets.sort();
    sockets
}

fn text(report: &Report) -> String {
    let one = |service: &Service| {
        let (what, about) = match &service.answer {
            Answer::Relay { status } => ("relay", relay::text(status, None)),
            Answer::Controller { status } => ("controller", controller::status_text(status)),
            Answer::Session { paths } => ("session", path::text(paths, None)),
            Answer::Silent { why } => ("nobody", format!("  {why}\n")),
        };
        format!("{what} at {}\n{about}", service.control.display())
    };
    report.services.iter().map(one).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_are_asked_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.sock", "a.sock", "relay.key"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("relay")).unwrap();
        std::fs::write(dir.path().join("relay/control.sock"), "").unwrap();
        let found = sockets_in(dir.path());
        assert_eq!(found, ["a.sock", "b.sock", "relay/control.sock"].map(|name| dir.path().join(name)));
        assert!(sockets_in(Path::new("/nowhere")).is_empty());
    }
}
