//! `tunnel up`: the client's end.

use std::sync::{Arc, Mutex, PoisonError};

use anabranch_net::PathRules;
use anabranch_node::{Threads, keyfile};
use anabranch_tunnel::entry::Lane;
use anabranch_tunnel::message::{self, LONGEST, Request, VERSION};
use anabranch_tunnel::policy::Policy;
use anabranch_tunnel_io::TunnelError;
use anabranch_tunnel_io::client::{Client, ClientOptions, Notice, Scope};
use anabranch_tunnel_io::system::kill_switch;
use clap::Args;
use ipnet::IpNet;

use super::config::UpSettings;
use super::device::{answer, failure, guard_command};
use super::lane;
use super::options::EndOptions;
use super::running::{Changeable, End, Running, until_stopped};
use crate::commands::service::{self, Signals};
use crate::context::Context;
use crate::errors::{Failure, printable};
use crate::node_word::NodeWord;
use crate::ui::out;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  sudo anabranch tunnel up TICKET                   everything goes through the tunnel
  sudo anabranch tunnel up TICKET --to 10.20.0.0/16 this network only
  sudo anabranch tunnel up TICKET --path-rule 'wwan*=metered:500MB'
                                                    mobile data only while nothing else works
  sudo anabranch tunnel up KEY@192.0.2.7:4434       without a ticket, to a server that lists this machine's key
  sudo anabranch tunnel up --config tunnel.toml     as this file says; `peer` in it is the server";

/// Send this machine's packets through a tunnel server
///
/// The tunnel stays up until Ctrl-C. If its session is lost, it is opened again, and programs wait meanwhile.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct UpArgs {
    /// The server: its ticket or KEY@ADDRESS:PORT; `-` for standard input, `@FILE` for a file [default: that of
    /// `--config`]
    #[arg(value_name = "SERVER", env = values::TICKET_VARIABLE, hide_env_values = true)]
    pub server: Option<NodeWord>,
    /// Send only packets to this network; may be repeated [default: all that the server reaches]
    #[arg(long = "to", value_name = "NETWORK")]
    pub to: Vec<IpNet>,
    /// Lane of packets without a class of their own [default: auto]
    #[arg(long, value_name = "LANE", value_parser = lane::parser())]
    pub lane: Option<Lane>,
    /// Leave the system's name servers as they are
    #[arg(long)]
    pub no_dns: bool,
    /// Let nothing leave outside the tunnel, not even after it has ended, until `anabranch tunnel cleanup`
    #[arg(long)]
    pub kill_switch: bool,
    /// A network behind this machine, which the server lists for this machine's key
    #[arg(long = "network", value_name = "NETWORK")]
    pub networks: Vec<IpNet>,
    #[command(flatten)]
    pub end: EndOptions,
}

/// The options of the command line together with the settings of the file.
struct Wanted {
    args: UpArgs,
    rules: PathRules,
    policy: Policy,
}

impl UpArgs {
    fn with_file(&self) -> Result<Wanted, Failure> {
        let file = UpSettings::read(self.end.config.as_deref(), "tunnel up")?;
        let (end, rules) = self.end.with(file.shared)?;
        let or = |given: &[IpNet], file: Vec<IpNet>| if given.is_empty() { file } else { given.to_vec() };
        let lane = self.lane.or(file.lane);
        let args = Self {
            server: self.server.clone().or(file.peer),
            to: or(&self.to, file.to),
            lane,
            no_dns: self.no_dns || !file.dns,
            kill_switch: self.kill_switch || file.kill_switch,
            networks: or(&self.networks, file.networks),
            end,
        };
        let policy = Policy { lane: lane.unwrap_or_default(), classes: file.classes };
        check_size(&args.networks, &policy)?;
        if args.kill_switch && args.end.node.mapping.map_port {
            let text = "a kill switch drops the requests of `--map-port` to the router";
            return Err(Failure::usage(text).hint("use one of the two"));
        }
        Ok(Wanted { args, rules, policy })
    }
}

/// Refuses more classes and networks than fit into a message: no server would take it.
fn check_size(networks: &[IpNet], policy: &Policy) -> Result<(), Failure> {
    let hello = Request::Hello { version: VERSION, networks: networks.to_vec(), policy: policy.clone() };
    let length = message::write(&hello).len();
    if length <= LONGEST {
        return Ok(());
    }
    let text = format!("the classes and networks take {length} bytes, and a server accepts {LONGEST}");
    Err(Failure::local(text).hint("join networks, ports or classes"))
}

/// Keeps the tunnel up until interrupted.
pub fn run(args: &UpArgs, context: &Context) -> Result<(), Failure> {
    crate::commands::send::resources::allow_many_files();
    Threads::start_none()?.block_on(up(args, *context))
}

async fn up(given: &UpArgs, context: Context) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let Wanted { args, rules, policy } = given.with_file()?;
    let server = args.server.as_ref().ok_or_else(|| {
        Failure::usage(
            "which server? Name its ticket or KEY@ADDRESS, on the command line or as `peer` in the file",
        )
    })?;
    // Later the system may ask name servers that only the tunnel reaches.
    let dial = server.dial().await?;
    let (end, interface) = (&args.end, args.end.device.name());
    let node = end.node(end.node.load_key()?, rules.clone()).start().await?;
    let udp_port = node.addresses().first().map_or(0, std::net::SocketAddr::port);
    let options = ClientOptions {
        interface: interface.to_owned(),
        scope: if args.to.is_empty() { Scope::All } else { Scope::Networks(args.to.clone()) },
        streams: !end.no_streams,
        dns: !args.no_dns,
        kill_switch: args.kill_switch,
        udp_port,
        networks: args.networks.clone(),
        policy,
        guard: guard_command(interface),
    };
    let client = Client::new(options, node.endpoint().clock(), u64::from_ne_bytes(*keyfile::random()?));
    let again = given.clone();
    let read = move || {
        let Wanted { rules, policy, .. } = again.with_file()?;
        Ok(Changeable { policy, allow: Vec::new(), rules })
    };
    let on = (node.endpoint().clone(), interface);
    let running = Running::new(End::Client(client.clone()), on, rules, Box::new(read));
    let _socket = answer(interface, running.clone())?;
    let asked = running.clone();
    let _metrics = end.serve_metrics(move || asked.status()).await?;
    let (dialer, dial, adopter) = (node.clone(), dial, running.clone());
    // Why the last attempt failed, with its cause and advice.
    let last = Arc::new(Mutex::new(None));
    let noted = last.clone();
    let dial: anabranch_tunnel_io::client::Dial = Box::new(move || {
        let (node, dial, running) = (dialer.clone(), dial.clone(), adopter.clone());
        let noted = noted.clone();
        Box::pin(async move {
            // They may have changed: a path that is never to be used must not be the first one either.
            let dial = dial.path_rules(running.rules());
            let session = node.dial(&dial).await.map_err(|error| {
                let text = error.to_string();
                *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Failure::from(error));
                text
            })?;
            running.adopt(session.session());
            Ok(session.session().clone())
        })
    });
    let json = end.json;
    let outcome = tokio::select! {
        result = client.run(dial, move |notice| tell(&notice, (json, context))) => match result {
            Ok(never) => match never {},
            Err(error) => {
                let last = last.lock().unwrap_or_else(PoisonError::into_inner).take();
                let dialed = last.filter(|_| matches!(error, TunnelError::Unreachable(_)));
                Err(dialed.unwrap_or_else(|| failure(&error)))
            }
        },
        () = until_stopped(&mut signals, &running, &context) => Ok(()),
    };
    node.close().await;
    let Some(stays) = closed() else { return outcome };
    if outcome.is_ok() && !json && !context.quiet {
        out::error(&format!("{stays}\n"));
    }
    outcome.map_err(|failure| failure.detail(stays))
}

/// The last message while there is a kill switch: the machine stays cut off.
pub(super) fn closed() -> Option<String> {
    let devices = kill_switch::closed();
    let commands: Vec<String> = devices
        .iter()
        .map(|device| format!("`sudo anabranch tunnel cleanup --interface {device}`"))
        .collect();
    let is_closed = !commands.is_empty();
    is_closed.then(|| {
        format!("the kill switch stays: nothing leaves outside a tunnel until {}", commands.join(" and "))
    })
}

fn tell(notice: &Notice, (json, context): (bool, Context)) {
    if matches!(notice, Notice::Up { .. }) {
        service::notify(&[sd_notify::NotifyState::Ready]);
    }
    if json {
        // If standard output is closed, the tunnel continues.
        let _ = out::print(&format!("{}\n", event(notice)));
        return;
    }
    if context.quiet {
        return;
    }
    let line = match notice {
        Notice::Up { addresses, routes, streams } => {
            let list =
                |networks: &[IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let lane = if *streams { "; TCP as streams" } else { "" };
            format!("the tunnel is up: {} → {}{lane}", list(addresses), list(routes))
        }
        Notice::Lost(why) => format!("the session was lost ({}); dialing again", printable(why)),
        Notice::Unreachable(why) => format!("the server is not reached: {}", printable(why)),
        Notice::Trouble(why) => format!("a change did not work: {}", printable(why)),
        Notice::RulesRestored => {
            "another program deleted the tunnel's routing rules; they are there again".to_owned()
        }
    };
    out::error(&format!("{line}\n"));
}

fn event(notice: &Notice) -> serde_json::Value {
    use serde_json::json;
    match notice {
        Notice::Up { addresses, routes, streams } => {
            json!({"event": "up", "addresses": addresses, "routes": routes, "streams": streams})
        }
        Notice::Lost(why) => json!({"event": "lost", "reason": why}),
        Notice::Unreachable(why) => json!({"event": "unreachable", "reason": why}),
        Notice::Trouble(why) => json!({"event": "trouble", "reason": why}),
        Notice::RulesRestored => json!({"event": "rules-restored"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_server_is_a_ticket_or_a_key_with_addresses() {
        let key = anabranch_net::NodeKey::from_random([1; 32]).public();
        let word = format!("{key}@server.example:4434");
        let args: UpArgs = parse(&[&word]).unwrap();
        assert!(args.server.unwrap().is_of(&key));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, format!("peer = \"{word}\"\n")).unwrap();
        let args: UpArgs = parse(&["--config", file.path().to_str().unwrap()]).unwrap();
        assert!(args.with_file().unwrap().args.server.unwrap().is_of(&key));
        assert!(parse::<UpArgs>(&["x@server.example:4434"]).is_err());
    }

    #[test]
    fn a_kill_switch_and_a_port_of_the_router_exclude_each_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "map_port = true\n").unwrap();
        let line = ["--config", file.path().to_str().unwrap(), "--kill-switch"];
        let read = |words: &[&str]| parse::<UpArgs>(words).unwrap().with_file().map(drop);
        assert_eq!(read(&line[..2]), Ok(()));
        assert!(read(&line[..]).unwrap_err().message.contains("--map-port"));
    }

    #[test]
    fn more_classes_than_a_server_accepts_are_refused_at_once() {
        let networks: Vec<String> = (0..32).map(|last| format!("\"2001:db8:ffff::{last:x}/128\"")).collect();
        let class = format!("[[class]]\nlane = \"striped\"\nnetworks = [{}]\n", networks.join(", "));
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |classes| {
            std::fs::write(&file, class.repeat(classes)).unwrap();
            let args: UpArgs = parse(&["--config", file.path().to_str().unwrap()]).unwrap();
            args.with_file().map(drop)
        };
        assert_eq!(read(2), Ok(()));
        assert!(read(64).unwrap_err().message.contains("a server accepts 16384"));
    }
}
