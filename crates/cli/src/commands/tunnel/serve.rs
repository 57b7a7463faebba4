//! `tunnel serve`: the server's end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anabranch_net::{
    Authorize, Endpoint, EndpointConfig, NodeKey, PublicKey, Refusal, ShareId, Ticket, TicketSecret, Verdict,
};
use anabranch_node::RelayRoute;
use anabranch_service::control::{self, Answer};
use anabranch_tunnel_io::client::session_config;
use anabranch_tunnel_io::server::{Notice, Server, ServerOptions};
use clap::Args;
use ipnet::IpNet;

use super::DeviceArgs;
use crate::args::OUTPUT;
use crate::commands::Context;
use crate::commands::send::addresses;
use crate::commands::service::Socket;
use crate::errors::{Failure, printable};
use crate::path_rules::PathOptions;
use crate::relays::ControllerOptions;
use crate::ui::out;
use crate::values::HostPort;
use crate::{interrupt, keyfile, node, relays, values};

/// UDP port of a tunnel server.
const PORT: u16 = 4434;
/// Clients at the same time.
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
/// It prints the line to run on clients. The ticket in it stays good when the server is started again, as long as its key file is there.
/// Clients reach public addresses only; `--allow` adds others.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The server's address in the tunnel, with the length of the clients' network; one for each address family
    #[arg(long = "address-inside", value_name = "ADDRESS/LENGTH", default_values = ["10.177.0.1/16", "fdab:177::1/64"])]
    pub inside: Vec<IpNet>,
    /// Do not let clients out under this machine's addresses
    #[arg(long)]
    pub no_exit: bool,
    /// A network that clients may reach besides public addresses; may be given again
    #[arg(long, value_name = "NETWORK")]
    pub allow: Vec<IpNet>,
    /// A name server that clients use; may be given again
    #[arg(long, value_name = "ADDRESS")]
    pub dns: Vec<IpAddr>,
    /// Do not accept TCP connections as streams
    #[arg(long)]
    pub no_streams: bool,
    /// A client that comes by its key instead of the ticket, with the networks behind it: KEY or KEY=NETWORK,NETWORK
    #[arg(long = "client", value_name = "KEY[=NETWORKS]", value_parser = client)]
    pub clients: Vec<(PublicKey, Vec<IpNet>)>,
    /// Name of the ticket; under another name an earlier ticket no longer opens the tunnel
    #[arg(long, value_name = "NAME", default_value = "tunnel")]
    pub ticket: String,
    /// UDP port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = PORT, help_heading = "Network")]
    #[arg(value_parser = values::whole(0..=u16::MAX))]
    pub port: u16,
    /// Where clients reach this machine from outside, named first in the ticket; may be given again
    #[arg(long = "address", value_name = "HOST:PORT", help_heading = "Network")]
    pub addresses: Vec<HostPort>,
    /// Key file [default: the usual one, made when there is none]
    #[arg(long, value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true, value_hint = clap::ValueHint::FilePath)]
    #[arg(help_heading = "Network")]
    pub key: Option<PathBuf>,
    /// A relay through which clients reach this machine; it has to list its key. May be given again
    #[arg(long = "relay", value_name = "KEY@ADDRESS", help_heading = "Network")]
    pub relays: Vec<RelayRoute>,
    /// Who grants the use of more.
    #[command(flatten)]
    pub granted: ControllerOptions,
    /// What is wanted of paths.
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
/// What stood in the way, and what to do about it.
pub fn run(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    node::runtime()?.block_on(serve(args, *context))
}

async fn serve(args: &ServeArgs, context: Context) -> Result<(), Failure> {
    relays::check(&args.relays)?;
    let stop = interrupt::requested();
    let key = keyfile::load_or_create(&args.key.clone().map_or_else(keyfile::default_path, Ok)?)?;
    let door = Door {
        share: share(&key, &args.ticket),
        clients: args.clients.iter().map(|(key, _)| *key).collect(),
    };
    let config = EndpointConfig::new(key)
        .port(args.port)
        .session(session_config())
        .path_rules(super::up::outside(&args.device.interface, args.paths_wanted.rules()?))
        .authorize(door.clone());
    let endpoint = Arc::new(Endpoint::bind(config).await.map_err(|error| Failure::bind(&error))?);
    let grants = args.granted.grants(&endpoint, args.key.as_deref()).await?;
    let reachable = relays::host(&endpoint, (&args.relays, &grants), &door.share.1).await?;
    let ticket = Ticket {
        node: endpoint.node(),
        addresses: addresses(&args.addresses, node::addresses_to_tell(&endpoint)).await?,
        relays: reachable.relays.clone(),
        share: door.share.0,
        secret: door.share.1.clone(),
        expires: None,
    };
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
    let server = Server::new(options, endpoint.clock(), u64::from_ne_bytes(*keyfile::random()?));
    let _socket = Socket::open(Some(&super::socket(&args.device.interface)), Asked(server.clone()))?;
    let json = args.json;
    let accepting = endpoint.clone();
    let accept = move || {
        let endpoint = accepting.clone();
        async move { endpoint.accept().await }
    };
    let running = server.run(accept, move |notice| tell(&notice, (json, context)));
    let outcome = tokio::select! {
        result = running => result.map_err(|error| super::failure(&error)),
        () = async {
            // The line is printed once the device is there: a failure comes without it.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            announce(&ticket, (json, context));
            stop.await;
        } => Ok(()),
    };
    endpoint.close().await;
    outcome
}

/// The share that the ticket of this name opens. It follows from the key, so the ticket stays good when the server is started again.
fn share(key: &NodeKey, name: &str) -> (ShareId, TicketSecret) {
    let mut hasher = blake3::Hasher::new_derive_key("anabranch 2026 tunnel ticket");
    hasher.update(key.to_file_text().as_bytes()).update(name.as_bytes());
    let (mut id, mut secret) = ([0; 8], [0; 16]);
    let mut output = hasher.finalize_xof();
    output.fill(&mut id);
    output.fill(&mut secret);
    (ShareId(u64::from_be_bytes(id)), TicketSecret::from_random(secret))
}

/// Lets in the holders of the ticket and the listed clients.
#[derive(Clone)]
struct Door {
    share: (ShareId, TicketSecret),
    clients: Vec<PublicKey>,
}

impl Authorize for Door {
    fn authorize(&self, peer: &PublicKey, share: Option<ShareId>) -> Verdict {
        match share {
            Some(share) if share == self.share.0 => Verdict::Accept { secret: Some(self.share.1.clone()) },
            Some(_) => Verdict::Refuse(Refusal::TicketNotValid),
            None if self.clients.contains(peer) => Verdict::Accept { secret: None },
            None => Verdict::Refuse(Refusal::NotAuthorised),
        }
    }
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
    // A reader that is gone has what it wanted.
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

    #[test]
    fn the_ticket_stays_good_and_only_it_and_listed_keys_open_the_tunnel() {
        let key = NodeKey::from_random([9; 32]);
        let first = share(&key, "tunnel");
        assert_eq!(first.0, share(&key, "tunnel").0);
        assert_ne!(first.0, share(&key, "newer").0);
        let [listed, other] = [1, 2].map(|byte| anabranch_net::NodeKey::from_random([byte; 32]).public());
        let door = Door { share: first.clone(), clients: vec![listed] };
        let lets_in = |peer, share| matches!(door.authorize(peer, share), Verdict::Accept { .. });
        assert!(lets_in(&other, Some(first.0)) && lets_in(&listed, None));
        assert!(!lets_in(&other, None) && !lets_in(&listed, Some(ShareId(first.0.0 ^ 1))));
    }
}
