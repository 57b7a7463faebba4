//! `anabranch exit`: connects to destinations for the proxies of others.

mod text;

use std::net::SocketAddr;
use std::num::NonZeroU64;

use anabranch_net::{PublicKey, Ticket};
use anabranch_node::{Access, Node, Threads};
use anabranch_proxy::{
    AddressRange, Exit, ExitNotice, ExitOptions, Limits, MOST_CONNECTIONS, SessionLimits, session_config,
};
use anabranch_service::process::memory;
use clap::{Args, Subcommand};

use crate::commands::send::{outside, resources};
use crate::commands::service::{self, StatusOf, runtime_socket};
use crate::commands::standing_ticket;
use crate::congestion::CongestionOption;
use crate::context::{Context, OUTPUT};
use crate::errors::{Failure, printable};
use crate::interrupt;
use crate::qr::QrOption;
use crate::relays::{NodeOptions, RELAY_TO_HERE};
use crate::ui::out;
use crate::values::{self, HostPort};

/// UDP port of an exit.
const PORT: u16 = 4435;

const EXAMPLES: &str = "\
Examples:
  anabranch exit                             prints the line to run on clients
  anabranch exit --allow 10.20.0.0/16:443 --deny 0.0.0.0/0:25
                                             also HTTPS in this network; no mail servers
  anabranch exit --client ab1... --rate 100Mbit/s --bytes 50GB
                                             let a key in, with bounds
  anabranch exit status                      who uses it, and for what";

/// Connect to destinations for others' proxies
///
/// It needs no root. It prints the line to run on clients, whose ticket stays good when the exit is started again, as long as its key file
/// is there. Clients reach public addresses only: no private networks, no services of this machine, no metadata services of clouds;
/// `--allow` adds others. The bounds count for each key, and for all holders of the ticket together.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct ExitArgs {
    #[command(subcommand)]
    pub action: Option<ExitCommand>,
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Subcommands for exits.
#[derive(Debug, Subcommand)]
pub enum ExitCommand {
    /// Show who uses a running exit, and for what
    Status(StatusArgs),
}

/// Which exit, and how it is shown.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// UDP port of the exit
    #[arg(long, value_name = "PORT", default_value_t = PORT, value_parser = values::whole(1..=u16::MAX))]
    pub port: u16,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// How an exit runs.
#[derive(Args, Debug)]
#[command(mut_arg("relays", |relay| relay.help(RELAY_TO_HERE)))]
pub struct ServeArgs {
    /// Let clients reach these addresses and ports, too, such as 10.20.0.0/16 or [fd00::1]:8000-8010; may be repeated
    #[arg(long, value_name = "RANGE")]
    pub allow: Vec<AddressRange>,
    /// Keep clients from these addresses and ports; may be repeated
    #[arg(long, value_name = "RANGE")]
    pub deny: Vec<AddressRange>,
    /// Addresses and ports of this machine for `proxy --remote-forward`; may be repeated
    #[arg(long, value_name = "RANGE")]
    pub listen: Vec<AddressRange>,
    /// A client that needs no ticket; may be repeated
    #[arg(long = "client", value_name = "KEY", value_parser = key)]
    pub clients: Vec<PublicKey>,
    /// Let in only clients listed with `--client`
    #[arg(long, requires = "clients")]
    pub no_ticket: bool,
    /// Name of the ticket; another name closes the exit for earlier tickets
    #[arg(long, value_name = "NAME", default_value = "exit")]
    pub ticket: String,
    /// Rate, both ways together
    #[arg(long, value_name = "RATE", value_parser = values::rate, help_heading = "Bounds")]
    pub rate: Option<NonZeroU64>,
    /// Bytes, both ways together, until the exit is started again
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Bounds")]
    pub bytes: Option<u64>,
    /// Connections at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4096, help_heading = "Bounds")]
    #[arg(value_parser = values::whole(1..=MOST_CONNECTIONS))]
    pub connections: usize,
    /// UDP port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = PORT, help_heading = "Network")]
    #[arg(value_parser = values::whole(0..=u16::MAX))]
    pub port: u16,
    /// Where clients reach this machine from outside, named first in the ticket; may be repeated
    #[arg(long = "address", value_name = "HOST:PORT", help_heading = "Network")]
    pub addresses: Vec<HostPort>,
    #[command(flatten)]
    pub congestion: CongestionOption,
    #[command(flatten)]
    pub node: NodeOptions,
    /// Report each connection when it ends: client, destination and bytes
    #[arg(long, help_heading = OUTPUT)]
    pub log: bool,
    #[command(flatten)]
    pub drawing: QrOption,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn key(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|_| format!("`{text}` is not a key; `anabranch keys show` prints one"))
}

/// Runs an exit, or shows it.
pub fn run(args: &ExitArgs, context: &Context) -> Result<(), Failure> {
    resources::allow_many_files();
    let threads = Threads::start_all_but_one()?;
    match &args.action {
        Some(ExitCommand::Status(args)) => threads.block_on(status(args)),
        None => threads.block_on(serve(&args.serve, *context)),
    }
}

async fn status(args: &StatusArgs) -> Result<(), Failure> {
    service::show_status(("exit", args.port, "--port"), args.json, text::status).await
}

async fn serve(args: &ServeArgs, context: Context) -> Result<(), Failure> {
    args.drawing.check(args.json, args.no_ticket)?;
    let key = args.node.load_key()?;
    let share = standing_ticket::share("anabranch 2026 exit ticket", &key, &args.ticket);
    let access = Access::by_keys(args.clients.iter().copied());
    if !args.no_ticket {
        access.allow_share(share.clone());
    }
    let node = args.node.node().key(key).port(args.port).session(args.congestion.of(session_config()));
    let node = node.path_rules(args.node.paths_wanted.rules()?).access(access).start().await?;
    let port = node.addresses().first().map_or(0, SocketAddr::port);
    let invitation = node.invite(&share, &outside(&args.addresses, port).await?).await?;
    if !args.no_ticket {
        invitation.warn_of_omissions();
    }
    let exit = Exit::new(&ExitOptions {
        allow: args.allow.clone(),
        deny: args.deny.clone(),
        listen: args.listen.clone(),
        limits: Limits { connections: args.connections, rate: args.rate, bytes: args.bytes },
        sessions: SessionLimits { total: resources::most_receivers(), ..SessionLimits::default() },
    });
    let asked = exit.clone();
    let _socket = service::answer_at(Some(&runtime_socket("exit", port)?), StatusOf(move || asked.status()))?;
    let stop = interrupt::requested();
    announce(args, &invitation.ticket, context);
    let accepting = node.clone();
    let accept = move || {
        let node: Node = accepting.clone();
        async move { node.accept().await }
    };
    let how = Telling { json: args.json, log: args.log, quiet: context.quiet };
    tokio::select! {
        () = exit.run(accept, move |notice| tell(&notice, how)) => {}
        () = memory::give_back_unused() => unreachable!("it does not end"),
        () = stop => {}
    }
    node.close().await;
    Ok(())
}

/// Prints the line for clients.
fn announce(args: &ServeArgs, ticket: &Ticket, context: Context) {
    let ticket_text = ticket.to_text();
    let by_key = ticket.addresses.first().map(|address| format!("{}@{address}", ticket.node));
    let word = match (args.no_ticket, by_key) {
        (true, Some(by_key)) => by_key,
        _ => ticket_text.to_string(),
    };
    let line = if args.json {
        serde_json::json!({"event": "ready", "exit": word}).to_string()
    } else {
        format!("anabranch proxy {word}")
    };
    let advice = if args.no_ticket { "" } else { "keep the ticket as you would a password; " };
    let is_chatty = !args.json && !context.quiet;
    service::print_for_clients(&line, &format!("{advice}Ctrl-C ends the exit"), is_chatty);
    args.drawing.show(&ticket_text, &context);
}

/// How events are reported.
#[derive(Clone, Copy)]
struct Telling {
    json: bool,
    log: bool,
    quiet: bool,
}

fn tell(notice: &ExitNotice, how: Telling) {
    let is_record = matches!(notice, ExitNotice::Connection(_));
    if is_record && !how.log {
        return;
    }
    if how.json {
        // The reader of the events may be gone; the exit goes on.
        let _ = out::Stream::Stdout.json(notice);
        return;
    }
    let line = match notice {
        _ if how.quiet && !is_record => return,
        ExitNotice::Joined { node } => format!("{node} uses the exit"),
        ExitNotice::Left { node, reason } => format!("{node} left: {}", printable(reason)),
        ExitNotice::Connection(record) => text::record(record),
    };
    out::error(&format!("{line}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn ranges_and_bounds_are_read() {
        let args: ExitArgs =
            parse(&["--allow", "10.0.0.0/8:443", "--deny", "::/0:25", "--rate", "8Mbit/s", "--bytes", "1GB"])
                .unwrap();
        assert_eq!(args.serve.allow, ["10.0.0.0/8:443".parse().unwrap()]);
        assert_eq!((args.serve.rate.unwrap().get(), args.serve.bytes), (8_000_000, Some(1_000_000_000)));
        assert!(parse::<ExitArgs>(&["--no-ticket"]).is_err(), "nobody could come");
        let args: ExitArgs = parse(&["--cc", "bbr"]).unwrap();
        assert_eq!(args.serve.congestion.of(session_config()).cc.rule.name(), "bbr");
        let status: ExitArgs = parse(&["status", "--port", "5000", "--json"]).unwrap();
        assert!(matches!(status.action, Some(ExitCommand::Status(args)) if args.port == 5000 && args.json));
    }
}
