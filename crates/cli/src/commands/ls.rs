//! `anabranch ls`: lists what a server has.

use std::path::PathBuf;

use anabranch_node::Threads;
use anabranch_transfer::{Listed, ListedKind, Summary};
use clap::Args;
use serde::Serialize;

use super::server::{ServerArgs, remote};
use crate::capture::Capture;
use crate::carrier::Carrier;
use crate::context::{Context, OUTPUT};
use crate::errors::{Failure, printable};
use crate::ui::human;
use crate::ui::out::{self, Stream};
use crate::{courier, interrupt};

const EXAMPLES: &str = "\
Examples:
  anabranch ls TICKET                 the folders of a server
  anabranch ls TICKET pub/photos      one directory
  anabranch ls TICKET pub -R --json   everything below, one JSON object a line";

/// List what a server has
///
/// The server is one that `anabranch serve` runs. Directories end in `/`. A drop box lists nothing.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LsArgs {
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// The directory on the server [default: its folders]
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// List everything below, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// An entry, for programs.
#[derive(Debug, Serialize)]
struct Line<'a> {
    path: String,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified_s: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leads_to: Option<String>,
}

impl From<&Listed> for Line<'_> {
    fn from(listed: &Listed) -> Self {
        let path = listed.path.raw().to_owned();
        let mode = listed.mode.map(|mode| format!("{mode:04o}"));
        let line = Self { path, kind: "directory", bytes: None, modified_s: None, mode, leads_to: None };
        match &listed.kind {
            ListedKind::Directory => line,
            ListedKind::File { size, modified } => {
                Self { kind: "file", bytes: *size, modified_s: *modified, ..line }
            }
            ListedKind::Link { text } => Self { kind: "link", leads_to: Some(text.raw().to_owned()), ..line },
        }
    }
}

/// Lists a directory of a server.
pub fn run(args: &LsArgs, context: &Context) -> Result<(), Failure> {
    let capture = args.server.reach.capture.start()?;
    let runtime = Threads::start()?;
    runtime.block_on(list(args, &capture, context)).and(capture.finish())
}

async fn list(args: &LsArgs, capture: &Capture, context: &Context) -> Result<(), Failure> {
    let (server, first) = args.server.server()?;
    let path = match (first, &args.path) {
        (Some(_), Some(_)) => return Err(Failure::usage("`ls` lists one directory at a time")),
        (first, second) => first.or(second.as_deref()).map_or(Ok(""), remote)?,
    };
    let connected = args.server.connect(capture, &server).await?;
    let carrier = Carrier::new(connected.session.session().clone());
    let listed = tokio::select! {
        biased;
        () = interrupt::requested() => {
            carrier.interrupt();
            return Err(courier::stopped());
        }
        listed = anabranch_transfer::list(&carrier, path, args.recursive) => listed,
    };
    let (entries, outcome) = match listed {
        Ok(listed) => listed,
        Err(error) => return Err(carrier.explain(error).await),
    };
    carrier.close().await;
    show(&entries, args.json)?;
    warn(&outcome?, context);
    Ok(())
}

fn show(entries: &[Listed], json: bool) -> Result<(), Failure> {
    if json {
        return entries.iter().try_for_each(|entry| Stream::Stdout.json(&Line::from(entry)));
    }
    out::print(&entries.iter().map(line).collect::<String>())
}

fn line(entry: &Listed) -> String {
    let path = &entry.path;
    match &entry.kind {
        ListedKind::Directory => format!("{:>9}  {path}/\n", ""),
        ListedKind::Link { text } => format!("{:>9}  {path} -> {text}\n", ""),
        ListedKind::File { size, .. } => {
            format!("{:>9}  {path}\n", size.map_or_else(|| "?".into(), human::bytes))
        }
    }
}

fn warn(summary: &Summary, context: &Context) {
    if !context.quiet {
        summary.warnings.iter().for_each(|warning| out::sentence(&printable(warning)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_steer_the_terminal_and_a_directory_ends_in_a_slash() {
        let entry = |path: &str, kind| Listed { path: path.into(), kind, mode: None };
        let file = entry("a\u{1b}[2J", ListedKind::File { size: Some(1_500), modified: None });
        assert_eq!(line(&file), "  1.50 kB  a\\u{1b}[2J\n");
        assert_eq!(line(&entry("d", ListedKind::Directory)), "           d/\n");
        assert_eq!(line(&entry("l", ListedKind::Link { text: "d".into() })), "           l -> d\n");
    }
}
