//! `tunnel serve`: the server's end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anabranch_net::{PublicKey, Ticket};
use anabranch_node::{Access, RelayRoute, Threads, keyfile};
use anabranch_service::control::{self, Answer};
use anabranch_tunnel_io::client::session_config;
use anabranch_tunnel_io::server::{Notice, Server, ServerOptions};
use clap::Args;
use ipnet::IpNet;

use super::DeviceArgs;
use crate::commands::send::outside;
use crate::commands::{service, standing_ticket};
use crate::context::{Context, OUTPUT};
use crate::errors::{Failure, printable};
use crate::path_rules::PathOptions;
use crate::relays::ControllerOptions;
use crate::ui::out;
use crate::values::HostPort;
use crate::{interrupt, values};

/// UDP port of a tunnel server.
const PORT: u16 = 4434;
/// Most clients at the same time.
const MOST_CLIENTS: usize = 1000;

const EXAMPLES: &str = "\
Examples:
  sudo anabranch tunnel serve                    clients reach the Internet through this machine
  sudo anabranch tunnel serve --no-exit --allow 10.20.0.0/16
                                                 clients reach this network and nothing else
  sudo anabranch tunnel serve --client ab1...=192.168.50.0/24
                                                 this client's network is reached through it";

/// Carry clients' packets to the Internet, or to the networks behind this machine
///
/// It prints the line to run on clients. The ticket stays good after a restart, as long as the key file is there. Clients
/// reach public addresses only; `--allow` adds others.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The server's address in the tunnel and the length of the clients' network, for each address family
    #[arg(long = "address-inside", value_name = "ADDRESS/LENGTH", default_values = ["10.177.0.1/16", "fdab:177::1/64"])]
    pub inside: Vec<IpNet>,
    /// Do not let clients out under this machine's addresses
    #[arg(long)]
    pub no_exit: bool,
    /// A network that clients may reach besides public addresses; may be repeated
    #[arg(long, value_name = "NETWORK")]
    pub allow: Vec<IpNet>,
    /// A name server for clients; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub dns: Vec<IpAddr>,
    /// Do not accept TCP connections as streams
    #[arg(long)]
    pub no_streams: bool,
    /// A client that needs no ticket, with the networks behind it: KEY or KEY=NETWORK,NETWORK
    #[arg(long = "client", value_name = "KEY[=NETWORKS]", value_parser = client)]
    pub clients: Vec<(PublicKey, Vec<IpNet>)>,
    /// Name of the ticket; another name closes the tunnel for earlier tickets
    #[arg(long, value_name = "NAME", default_value = "tunnel")]
    pub ticket: String,
    /// UDP port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = PORT, help_heading = "Network")]
    #[arg(value_parser = values::whole(0..=u16::MAX))]
    pub port: u16,
    /// Where clients reach this machine from outside, named first in the ticket; may be repeated
    #[arg(long = "address", value_name = "HOST:PORT", help_heading = "Network")]
    pub addresses: Vec<HostPort>,
    /// Key file [default: the usual one, created if missing]
    #[arg(long, value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true, value_hint = clap::ValueHint::FilePath)]
    #[arg(help_heading = "Network")]
    pub key: Option<PathBuf>,
    /// A relay through which others reach this machine, whose key it lists; may be repeated
    #[arg(long = "relay", value_name = "KEY@ADDRESS", help_heading = "Network")]
    pub relays: Vec<RelayRoute>,
    /// Controllers that grant the use of more relays.
    #[command(flatten)]
    pub granted: ControllerOptions,
    /// Rules for paths.
    #[command(flatten)]
    pub paths_wanted: PathOptions,
    /// One JSON event a line instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn client(text: &str) -> Result<(PublicKey, Vec<IpNet>), String> {
    let (key, networks) = text.split_once('=').unwrap_or((text, ""));
    let key = key.parse().map_err(|_| format!("`{key}` is not a key; `anabranch keys show` prints one"))?;
    let network =
        |text: &str| text.parse().map_err(|_| format!("`{text}` is not a network such as 192.168.50.0/24"));
    let networks =
        networks.split(',').filter(|text| !text.is_empty()).map(network).collect::<Result<_, String>>()?;
    Ok((key, networks))
}

/// Answers `anabranch tunnel status`.
#[derive(Clone)]
struct Asked(Arc<Server>);

impl Answer for Asked {
    async fn answer(&self, _line: &str) -> String {
        control::reply(&self.0.status())
    }
}

/// Serves until interrupted.
///
/// # Errors
/// The cause of the failure, with advice.
pub fn run(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    Threads::start_all_but_one()?.block_on(serve(args, *context))
}

async fn serve(args: &ServeArgs, context: Context) -> Result<(), Failure> {
    let stop = interrupt::requested();
    let key = keyfile::load_or_create(&args.key.clone().map_or_else(keyfile::default_path, Ok)?)?;
    let share = standing_ticket::share("anabranch 2026 tunnel ticket", &key, &args.ticket);
    let access = Access::by_ticket(share.clone());
    args.clients.iter().for_each(|(client, _)| access.allow_key(*client));
    let rules = super::up::outside(&args.device.interface, &args.paths_wanted.rules()?);
    let node = args.granted.node().key(key).relays(args.relays.clone()).port(args.port);
    let node = node.session(session_config()).path_rules(rules).access(access).start().await?;
    let port = node.addresses().first().map_or(0, std::net::SocketAddr::port);
    let invitation = node.invite(&share, &outside(&args.addresses, port).await?).await?;
    let options = ServerOptions {
        interface: args.device.interface.clone(),
        addresses: args.inside.clone(),
        exit: !args.no_exit,
        allow: args.allow.clone(),
        dns: args.dns.clone(),
        streams: !args.no_streams,
        behind: args.clients.iter().cloned().collect::<BTreeMap<_, _>>(),
        most_clients: MOST_CLIENTS,
        guard: super::guard_command(&args.device.interface),
    };
    let server = Server::new(options, node.endpoint().clock(), u64::from_ne_bytes(*keyfile::random()?));
    let _socket = service::answer_at(Some(&super::socket(&args.device.interface)), Asked(server.clone()))?;
    let json = args.json;
    let accepting = node.clone();
    let accept = move || {
        let node = accepting.clone();
        async move { node.accept().await.map(|session| session.session().clone()) }
    };
    let running = server.run(accept, move |notice| tell(&notice, (json, context)));
    let outcome = tokio::select! {
        result = running => result.map_err(|error| super::failure(&error)),
        () = async {
            // The line is printed only after the device is set up, so a failure comes without it.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            announce(&invitation.ticket, (json, context));
            stop.await;
        } => Ok(()),
    };
    node.close().await;
    outcome
}

fn announce(ticket: &Ticket, (json, context): (bool, Context)) {
    let text = ticket.to_text();
    let line = if json {
        serde_json::json!({"event": "ticket", "ticket": *text}).to_string()
    } else {
        format!("sudo anabranch tunnel up {}", *text)
    };
    if !json && !context.quiet {
        out::error("on clients, run\n\n");
    }
    // If standard output is closed, its reader needs no more.
    let _ = out::print(&format!("{line}\n"));
    if !json && !context.quiet {
        out::error("\nkeep the ticket as you would a password; Ctrl-C ends the tunnel\n");
    }
}

fn tell(notice: &Notice, (json, context): (bool, Context)) {
    if json {
        let event = match notice {
            Notice::Joined { node, networks } => {
                serde_json::json!({"event": "joined", "node": node.to_string(), "networks": networks})
            }
            Notice::Left { node, reason } => {
                serde_json::json!({"event": "left", "node": node.to_string(), "reason": reason})
            }
            Notice::Refused { node, reason } => {
                serde_json::json!({"event": "refused", "node": node.to_string(), "reason": reason})
            }
        };
        let _ = out::print(&format!("{event}\n"));
        return;
    }
    if context.quiet {
        return;
    }
    let line = match notice {
        Notice::Joined { node, networks } => {
            let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
            format!("{node} joined: {}", networks.join(", "))
        }
        Notice::Left { node, reason } => format!("{node} left: {}", printable(reason)),
        Notice::Refused { node, reason } => format!("{node} was not let in: {}", printable(reason)),
    };
    out::error(&format!("{line}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn clients_are_listed_with_their_networks() {
        let key = anabranch_net::NodeKey::from_random([1; 32]).public();
        let args: ServeArgs = parse(&["--client", &format!("{key}=192.168.50.0/24,fd50::/64")]).unwrap();
        assert_eq!(args.clients[0].1.len(), 2);
        assert_eq!(args.inside.len(), 2);
        assert!(parse::<ServeArgs>(&["--client", "x"]).is_err());
    }
}
