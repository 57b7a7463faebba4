//! `anabranch serve`: a standing server of folders.
//!
//! [`host`] serves the clients, [`access`] tells what each may do, [`http`] shows the folders to browsers.

mod access;
mod host;
mod http;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;

use anabranch_node::{Invitation, Threads, keyfile};
use anabranch_service::process::sandbox::Sandbox;
use anabranch_transfer::{Folders, Rights};
use anabranch_wire::Span;
use clap::Args;

use super::send::{outside, resources};
use crate::capture::{Capture, CaptureOptions};
use crate::commands::bench::Tuning;
use crate::commands::service;
use crate::context::{Context, OUTPUT};
use crate::control::ControlOption;
use crate::errors::Failure;
use crate::qr::QrOption;
use crate::relays::{NodeOptions, RELAY_TO_HERE};
use crate::ticket_store::{TicketStore, check_secrets};
use crate::ui::out::{self, Stream};
use crate::values::{self, HostPort};
use access::{ClientWord, Doors, TicketWord};
use host::Host;

/// UDP port of a server.
const PORT: u16 = 4437;
/// A client that is silent on every path for this long is dropped, unless it asks for less.
const PATIENCE: Span = Span::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  anabranch serve ~/pub                       prints a ticket; `anabranch get TICKET` fetches
  anabranch serve ~/pub --client ab1...=write
                                              also for this key, without a ticket
  anabranch serve ~/inbox --rights drop --quota 10GB
                                              a drop box
  anabranch serve ~/pub --http 127.0.0.1:8080
                                              also for browsers on this machine
  anabranch serve ~/pub --address home.example.org:4437
                                              behind a router that forwards UDP port 4437 to this machine";

/// Serve folders to keys and tickets
///
/// It prints a ticket for `anabranch ls`, `get`, `put` and `sync`, which stays good when the server is started again, until
/// `anabranch ticket revoke` ends it. Everything is encrypted, and every byte is verified at the other end.
///
/// Rights are read (ls, get), write (also put, replace and remove) or drop: put into a directory of the client's own, and
/// nothing else. No link leads out of a folder.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("relays", |relay| relay.help(RELAY_TO_HERE)))]
pub struct ServeArgs {
    /// Folders to serve, each under its own name
    #[arg(required = true, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub folders: Vec<PathBuf>,
    /// Rights of tickets and keys that are given without
    #[arg(long, value_name = "RIGHTS", default_value = "read", value_parser = access::parser())]
    pub rights: Rights,
    /// Name of a ticket, and its rights; may be repeated [default: the name of the first folder]
    #[arg(long = "ticket", value_name = "NAME[=RIGHTS]")]
    pub tickets: Vec<TicketWord>,
    /// A client that needs no ticket; may be repeated
    #[arg(long = "client", value_name = "KEY[=RIGHTS]")]
    pub clients: Vec<ClientWord>,
    /// Let in only clients listed with `--client`
    #[arg(long, requires = "clients", conflicts_with = "tickets")]
    pub no_ticket: bool,
    /// Most that the folders may hold together, such as `50GB` [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Bounds")]
    pub quota: Option<u64>,
    /// Highest rate of everything sent, such as `20Mbit/s` [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = values::rate, help_heading = "Bounds")]
    pub rate: Option<NonZeroU64>,
    /// Most memory for data that other ends have yet to take [default: 64MB, or a quarter of this command's limit]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Bounds")]
    pub memory: Option<u64>,
    /// UDP port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = PORT, help_heading = "Network")]
    #[arg(value_parser = values::whole(0..=u16::MAX))]
    pub port: u16,
    /// Where clients reach this machine from outside, named first in the ticket; may be repeated
    #[arg(long = "address", value_name = "HOST:PORT", help_heading = "Network")]
    pub addresses: Vec<HostPort>,
    /// Let everyone who reaches this address read over HTTP, as long as a ticket is left; not for drop boxes
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = http::address, help_heading = "Network")]
    #[arg(conflicts_with = "no_ticket")]
    pub http: Option<SocketAddr>,
    #[command(flatten)]
    pub node: NodeOptions,
    /// Scheduler and congestion control.
    #[command(flatten)]
    pub tuning: Tuning,
    /// The socket for changes of paths.
    #[command(flatten)]
    pub running: ControlOption,
    /// Captures.
    #[command(flatten)]
    pub capture: CaptureOptions,
    /// The drawing of the ticket.
    #[command(flatten)]
    pub drawing: QrOption,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// Serves until the user stops the command.
pub fn run(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    args.drawing.check(args.json, args.no_ticket)?;
    let folders = Folders::open(&args.folders)?;
    let memory = args
        .memory
        .map_or_else(resources::memory_for_receivers, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let folders = folders.with(|share| {
        let share = share.within_memory(memory);
        match args.rate {
            Some(rate) => share.at_most(rate),
            None => share,
        }
    });
    let folders = match args.quota {
        Some(most) => folders.hold_at_most(most),
        None => folders,
    };
    resources::allow_many_files();
    let capture = args.capture.start()?;
    let file = args.node.key.clone().map_or_else(keyfile::default_path, Ok)?;
    let key = keyfile::load_or_create(&file)?;
    let store = TicketStore::of_user()?;
    check_secrets(&folders.directories(), &[&file, store.directory()])?;
    let kept = store.directory().to_owned();
    let doors = Doors::open(args, &folders.directories(), store)?;
    // Grants are kept next to the key.
    let writes = [service::directory_of(&file)].into_iter().chain(args.node.paths_wanted.caps_directory()?);
    let control = args.running.control.as_deref().map(service::directory_of);
    let served = if doors.let_write() { folders.directories() } else { Vec::new() };
    service::enter(&Sandbox::writing(writes.chain(control).chain(served).chain([kept])));
    let runtime = Threads::start()?;
    let offering = Offering { capture: &capture, folders, doors };
    let outcome = runtime.block_on(serve(args, key, offering, *context));
    runtime.shutdown_background();
    outcome.and(capture.finish())
}

/// The folders, and the tickets and keys that open them.
struct Offering<'a> {
    capture: &'a Capture,
    folders: Folders,
    doors: Doors,
}

async fn serve(
    args: &ServeArgs,
    key: anabranch_net::NodeKey,
    offering: Offering<'_>,
    context: Context,
) -> Result<(), Failure> {
    let Offering { capture, folders, doors } = offering;
    let door = http::open(args.http).await?;
    let node = args.node.node().key(key).port(args.port);
    let node =
        node.session(args.tuning.config()).silence(PATIENCE).path_rules(args.node.paths_wanted.rules()?);
    let node = node.access(doors.access()).control(args.running.control.clone());
    let node = node.tap(capture.tap()).start().await?;
    crate::interrupt::survive_file_size_limit();
    doors.keep(&folders.directories())?;
    let port = node.addresses().first().map_or(0, SocketAddr::port);
    let outside = outside(&args.addresses, port).await?;
    // They keep the node at its relays.
    let mut invitations = Vec::new();
    for ticket in doors.tickets() {
        invitations.push(node.invite(&ticket.share, &outside).await?);
    }
    // The others leave out the same.
    invitations.iter().take(1).for_each(Invitation::warn_of_omissions);
    let stop = crate::interrupt::requested();
    for (ticket, invitation) in doors.tickets().iter().zip(&invitations) {
        let text = invitation.ticket.to_text();
        announce(&ticket.name, ticket.rights, (&text, args.json), context);
        args.drawing.show(&text, &context);
    }
    if args.no_ticket
        && let Some(address) =
            outside.iter().copied().chain(node.mapped_addresses()).chain(node.addresses()).next()
    {
        announce("", args.rights, (&format!("{}@{address}", node.id()), args.json), context);
    }
    let browsers = http::show(door, &folders, (args.json, context));
    let how = host::Telling { json: args.json, quiet: context.quiet };
    Host::new(&node, (folders, doors), browsers, how).run(stop).await;
    node.close().await;
    Ok(())
}

/// Prints the line for clients.
fn announce(name: &str, rights: Rights, (word, json): (&str, bool), context: Context) {
    if json {
        let event = serde_json::json!({
            "event": "ready", "ticket": name, "rights": access::name(rights), "server": word,
        });
        // A reader that is gone has what it wanted.
        let _ = Stream::Stdout.json(&event);
        return;
    }
    let may = match rights {
        Rights::Read => "ls, get",
        Rights::Write => "ls, get, put, sync",
        Rights::Drop => "put",
    };
    if !context.quiet {
        let of = if name.is_empty() { String::new() } else { format!("ticket `{name}`: ") };
        out::sentence(&format!("{of}{}; `anabranch {may}` on other machines with\n", access::name(rights)));
    }
    let _ = out::print(&format!("{word}\n"));
    if !context.quiet {
        out::sentence("\nkeep a ticket as you would a password; Ctrl-C ends the server");
    }
}
