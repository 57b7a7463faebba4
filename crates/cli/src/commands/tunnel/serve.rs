//! `tunnel serve`: the server's end.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anabranch_net::{PathRules, PublicKey, Ticket};
use anabranch_node::{Access, Threads, keyfile};
use anabranch_tunnel::message::LONGEST;
use anabranch_tunnel::policy::Policy;
use anabranch_tunnel_io::server::{Notice, Server, ServerOptions};
use anabranch_tunnel_io::system;
use clap::Args;
use ipnet::IpNet;

use super::config::ServeSettings;
use super::device::{answer, failure, guard_command};
use super::options::EndOptions;
use super::running::{Changeable, End, Running, until_stopped};
use crate::commands::send::outside;
use crate::commands::service::{self, Signals};
use crate::commands::standing_ticket;
use crate::context::Context;
use crate::errors::{Failure, printable};
use crate::qr::QrOption;
use crate::ui::out;
use crate::values::{self, HostPort};

/// UDP port of a tunnel server.
const PORT: u16 = 4434;
/// The server's addresses in the tunnel, if no others are given.
const INSIDE: [&str; 2] = ["10.177.0.1/16", "fdab:177::1/64"];
/// Most clients at the same time.
const MOST_CLIENTS: usize = 2000;

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
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// The server's address in the tunnel, for each address family [default: 10.177.0.1/16 and fdab:177::1/64]
    #[arg(long = "address-inside", value_name = "ADDRESS/LENGTH")]
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
    /// A client that needs no ticket, and the networks behind it, separated by commas; may be repeated
    #[arg(long = "client", value_name = "KEY[=NETWORKS]", value_parser = client)]
    pub clients: Vec<(PublicKey, Vec<IpNet>)>,
    /// Name of the ticket; another name closes the tunnel for earlier tickets [default: tunnel]
    #[arg(long, value_name = "NAME")]
    pub ticket: Option<String>,
    /// UDP port to listen on; 0 for any free one [default: 4434]
    #[arg(long, value_name = "PORT", help_heading = "Network", value_parser = values::whole(0..=u16::MAX))]
    pub port: Option<u16>,
    /// Where clients reach this machine from outside, named first in the ticket; may be repeated
    #[arg(long = "address", value_name = "HOST:PORT", help_heading = "Network")]
    pub addresses: Vec<HostPort>,
    #[command(flatten)]
    pub drawing: QrOption,
    #[command(flatten)]
    pub end: EndOptions,
}

/// The options of the command line together with the settings of the file.
struct Wanted {
    args: ServeArgs,
    rules: PathRules,
}

impl ServeArgs {
    fn with_file(&self) -> Result<Wanted, Failure> {
        fn or<T: Clone>(given: &[T], file: Vec<T>) -> Vec<T> {
            if given.is_empty() { file } else { given.to_vec() }
        }
        let file = ServeSettings::read(self.end.config.as_deref(), "tunnel serve")?;
        let (end, rules) = self.end.with(file.shared)?;
        let mut inside = or(&self.inside, file.inside);
        if inside.is_empty() {
            inside = usual(system::has_ipv6());
        }
        let clients = file.clients.into_iter().map(|client| (client.key, client.networks)).collect();
        let args = Self {
            inside,
            no_exit: self.no_exit || !file.exit,
            allow: or(&self.allow, file.allow),
            dns: or(&self.dns, file.dns),
            clients: or(&self.clients, clients),
            ticket: self.ticket.clone().or(file.ticket),
            port: self.port.or(file.port),
            addresses: or(&self.addresses, file.addresses),
            drawing: self.drawing,
            end,
        };
        check_size(&args.options())?;
        Ok(Wanted { args, rules })
    }

    fn options(&self) -> ServerOptions {
        let interface = self.end.device.name();
        ServerOptions {
            interface: interface.to_owned(),
            addresses: self.inside.clone(),
            exit: !self.no_exit,
            allow: self.allow.clone(),
            dns: self.dns.clone(),
            streams: !self.end.no_streams,
            behind: behind(&self.clients),
            most_clients: MOST_CLIENTS,
            guard: guard_command(interface),
        }
    }
}

/// Refuses more networks than fit into a message: no client would take it.
fn check_size(options: &ServerOptions) -> Result<(), Failure> {
    let length = options.longest_welcome();
    if length <= LONGEST {
        return Ok(());
    }
    let text = format!("the networks for clients take {length} bytes, and a client accepts {LONGEST}");
    Err(Failure::local(text).hint("join networks of `allow` into larger ones"))
}

/// The server's addresses in the tunnel if no others are given.
fn usual(has_ipv6: bool) -> Vec<IpNet> {
    let all = INSIDE.iter().filter_map(|address| address.parse::<IpNet>().ok());
    all.filter(|address| has_ipv6 || address.addr().is_ipv4()).collect()
}

/// The networks behind each client, whose key may be named several times.
fn behind(clients: &[(PublicKey, Vec<IpNet>)]) -> BTreeMap<PublicKey, Vec<IpNet>> {
    let mut all = BTreeMap::<PublicKey, Vec<IpNet>>::new();
    for (key, networks) in clients {
        all.entry(*key).or_default().extend(networks);
    }
    all
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

/// Serves until interrupted.
pub fn run(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    crate::commands::send::resources::allow_many_files();
    Threads::start_all_but_one()?.block_on(serve(args, *context))
}

async fn serve(given: &ServeArgs, context: Context) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let Wanted { args, rules } = given.with_file()?;
    args.drawing.check(args.end.json, false)?;
    let (end, interface) = (&args.end, args.end.device.name());
    let key = end.node.load_key()?;
    let ticket = args.ticket.as_deref().unwrap_or("tunnel");
    let share = standing_ticket::share("anabranch 2026 tunnel ticket", &key, ticket);
    let access = Access::by_ticket(share.clone());
    args.clients.iter().for_each(|(client, _)| access.allow_key(*client));
    let node = end.node(key, rules.clone()).port(args.port.unwrap_or(PORT)).access(access).start().await?;
    let port = node.addresses().first().map_or(0, std::net::SocketAddr::port);
    let invitation = node.invite(&share, &outside(&args.addresses, port).await?).await?;
    invitation.warn_of_omissions();
    let seed = u64::from_ne_bytes(*keyfile::random()?);
    let server = Server::new(args.options(), node.endpoint().clock(), seed);
    let again = given.clone();
    let read = move || {
        let Wanted { args, rules } = again.with_file()?;
        Ok(Changeable { policy: Policy::default(), allow: args.allow, rules })
    };
    let on = (node.endpoint().clone(), interface);
    let running = Running::new(End::Server(server.clone()), on, rules, Box::new(read));
    let _socket = answer(interface, running.clone())?;
    let asked = running.clone();
    let _metrics = end.serve_metrics(move || asked.status()).await?;
    let json = end.json;
    let (accepting, adopter) = (node.clone(), running.clone());
    let accept = move || {
        let (node, running) = (accepting.clone(), adopter.clone());
        async move {
            let session = node.accept().await?.session().clone();
            running.adopt(&session);
            Some(session)
        }
    };
    let serving = server.run(accept, move |notice| tell(&notice, (json, context)));
    let outcome = tokio::select! {
        result = serving => result.map_err(|error| failure(&error)),
        () = async {
            // The line is printed once the device is there: a failure comes without it.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            announce(&invitation.ticket, args.drawing, (json, context));
            service::notify(&[sd_notify::NotifyState::Ready]);
            until_stopped(&mut signals, &running, &context).await;
        } => Ok(()),
    };
    node.close().await;
    outcome
}

fn announce(ticket: &Ticket, drawing: QrOption, (json, context): (bool, Context)) {
    let text = ticket.to_text();
    let line = if json {
        serde_json::json!({"event": "ticket", "ticket": *text}).to_string()
    } else {
        format!("sudo anabranch tunnel up {}", *text)
    };
    let advice = "keep the ticket as you would a password; Ctrl-C ends the tunnel";
    service::print_for_clients(&line, advice, !json && !context.quiet);
    drawing.show(&text, &context);
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
    fn a_machine_without_ipv6_serves_the_other_network() {
        assert_eq!(usual(true).len(), 2);
        assert_eq!(usual(false), ["10.177.0.1/16".parse::<IpNet>().unwrap()]);
    }

    #[test]
    fn more_networks_than_a_client_accepts_are_refused_at_once() {
        let read = |count: usize| {
            let network = |number| format!("--allow=10.{}.{}.0/24", number / 256, number % 256);
            let words: Vec<String> = (0..count).map(network).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let args: ServeArgs = parse(&words).unwrap();
            args.with_file().map(drop)
        };
        assert_eq!(read(500), Ok(()));
        assert!(read(1200).unwrap_err().message.contains("a client accepts 16384"));
    }

    #[test]
    fn clients_are_listed_with_their_networks() {
        let key = anabranch_net::NodeKey::from_random([1; 32]).public();
        let args: ServeArgs = parse(&["--client", &format!("{key}=192.168.50.0/24,fd50::/64")]).unwrap();
        assert_eq!(args.clients[0].1.len(), 2);
        let more = (key, vec!["10.9.0.0/16".parse().unwrap()]);
        assert_eq!(behind(&[args.clients[0].clone(), more])[&key].len(), 3);
        assert!(parse::<ServeArgs>(&["--client", "x"]).is_err());
    }
}
