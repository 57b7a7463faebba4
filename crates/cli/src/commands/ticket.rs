//! `anabranch ticket`: lists and revokes the tickets that `anabranch serve` and `anabranch send --name` keep.

use std::fmt::Write as _;

use clap::{Args, Subcommand};

use crate::context::{Context, OUTPUT};
use crate::errors::{Failure, printable};
use crate::ticket_store::{Stored, TicketList, TicketStore};
use crate::ui::human;
use crate::ui::out::{self, Stream};

const EXAMPLES: &str = "\
Examples:
  anabranch ticket list          the tickets of this user's servers and senders
  anabranch ticket revoke pub    end one for good";

/// List and revoke the tickets of this machine's servers and senders
///
/// `anabranch serve` and `anabranch send --name` keep their tickets in the state directory of their user, so that they stay
/// good after a restart.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct TicketArgs {
    /// The action.
    #[command(subcommand)]
    pub action: TicketCommand,
}

/// The actions on tickets.
#[derive(Debug, Subcommand)]
pub enum TicketCommand {
    /// List the tickets: name, rights, age, life and folders
    List(ListArgs),
    /// End a ticket; a running command closes its sessions within seconds
    Revoke(RevokeArgs),
}

/// How the list is shown.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// Which ticket to revoke.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// The ticket's name
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: String,
}

/// A name that a ticket can have: a file name that leads nowhere else.
pub(super) fn name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.starts_with('.') || text.len() > 64 || !text.chars().all(is_plain) {
        return Err(format!("`{text}` is no name for a ticket; write letters, figures, - and _"));
    }
    Ok(text.to_owned())
}

/// Lists or revokes.
pub fn run(args: &TicketArgs, context: &Context) -> Result<(), Failure> {
    let store = TicketStore::of_user()?;
    match &args.action {
        TicketCommand::Revoke(args) => store.revoke(&args.name),
        TicketCommand::List(args) => {
            let TicketList { tickets, damaged } = store.list()?;
            if !context.quiet {
                damaged
                    .iter()
                    .for_each(|name| out::sentence(&format!("{} is not a ticket", printable(name))));
            }
            if args.json {
                return tickets.iter().try_for_each(|(name, stored)| {
                    Stream::Stdout.json(&serde_json::json!({
                        "ticket": name, "rights": stored.rights, "folders": stored.folders,
                        "made_s": stored.made_s, "expires_s": stored.expires_s,
                    }))
                });
            }
            let now = anabranch_node::wall().0;
            out::page(&tickets.iter().map(|(name, stored)| line(name, stored, now)).collect::<String>())
        }
    }
}

fn line(name: &str, stored: &Stored, now: u64) -> String {
    let age = human::seconds(now.saturating_sub(stored.made_s) as f64);
    let life = match stored.expires_s {
        None => String::new(),
        Some(end) if end <= now => ", expired".into(),
        Some(end) => format!(", expires in {}", human::seconds((end - now) as f64)),
    };
    let mut line = format!("{name}  {}, {age} old{life}:", printable(&stored.rights));
    for folder in &stored.folders {
        let _ = write!(line, " {}", printable(&folder.display().to_string()));
    }
    line + "\n"
}
