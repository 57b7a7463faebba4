//! `tunnel up`: the client's end.

use std::path::PathBuf;
use std::sync::Arc;

use anabranch_net::{PathRules, Ticket};
use anabranch_node::{Dial, RelayRoute, Threads, keyfile, parse_rule};
use anabranch_service::control::{self, Answer};
use anabranch_tunnel::entry::Lane;
use anabranch_tunnel::policy::Policy;
use anabranch_tunnel_io::client::{Client, ClientOptions, Notice, Scope, session_config};
use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::DeviceArgs;
use crate::commands::service;
use crate::context::{Context, OUTPUT};
use crate::errors::{Failure, printable};
use crate::path_rules::PathOptions;
use crate::relays::ControllerOptions;
use crate::ui::out;
use crate::{interrupt, values};

const EXAMPLES: &str = "\
Examples:
  sudo anabranch tunnel up TICKET                   everything goes through the tunnel
  sudo anabranch tunnel up TICKET --to 10.20.0.0/16 this network only
  sudo anabranch tunnel up TICKET --path-rule 'wwan*=metered:500MB'
                                                    mobile data only while nothing else works";

/// Send this machine's packets through a tunnel server
///
/// The tunnel stays up until Ctrl-C. If its session is lost, it is opened again, and programs wait meanwhile.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct UpArgs {
    /// The server's ticket; `-` for standard input, `@FILE` for a file
    #[arg(value_name = "TICKET", value_parser = values::ticket, env = values::TICKET_VARIABLE, hide_env_values = true)]
    pub ticket: Ticket,
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Send only packets to this network; may be repeated [default: all that the server reaches]
    #[arg(long = "to", value_name = "NETWORK")]
    pub to: Vec<IpNet>,
    /// Lane of packets without a class of their own
    #[arg(long, value_name = "LANE", value_enum, default_value_t)]
    pub lane: LaneName,
    /// Carry TCP connections as packets, not as streams
    #[arg(long)]
    pub no_streams: bool,
    /// Leave the system's name servers as they are
    #[arg(long)]
    pub no_dns: bool,
    /// Let nothing leave outside the tunnel, not even after it has ended, until `anabranch tunnel cleanup`
    #[arg(long)]
    pub kill_switch: bool,
    /// A network behind this machine, which the server lists for this machine's key
    #[arg(long = "network", value_name = "NETWORK")]
    pub networks: Vec<IpNet>,
    /// Key file [default: the usual one, created if missing]
    #[arg(long, value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true, value_hint = clap::ValueHint::FilePath)]
    #[arg(help_heading = "Network")]
    pub key: Option<PathBuf>,
    /// A path through a relay that lists this machine's key; `+` joins relays to a chain; may be repeated
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

/// The lanes that a user can choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LaneName {
    /// Each flow on one path, striped over all while that is faster
    #[default]
    Auto,
    /// Each flow on one path
    Routed,
    /// Each packet where it arrives first, put in order at the far end
    Striped,
    /// The path with the lowest round-trip time
    LowLatency,
    /// A copy on every path
    Redundant,
    /// Parity for what is lost
    Protected,
}

impl From<LaneName> for Lane {
    fn from(name: LaneName) -> Self {
        match name {
            LaneName::Auto => Self::Auto,
            LaneName::Routed => Self::Routed,
            LaneName::Striped => Self::Striped,
            LaneName::LowLatency => Self::LowLatency,
            LaneName::Redundant => Self::Redundant,
            LaneName::Protected => Self::Protected,
        }
    }
}

/// Answers `anabranch tunnel status`.
#[derive(Clone)]
struct Asked(Arc<Client>);

impl Answer for Asked {
    async fn answer(&self, _line: &str) -> String {
        control::reply(&self.0.status())
    }
}

/// Keeps the tunnel up until interrupted.
///
/// # Errors
/// The cause of the failure, with advice.
pub fn run(args: &UpArgs, context: &Context) -> Result<(), Failure> {
    Threads::start_none()?.block_on(up(args, *context))
}

async fn up(args: &UpArgs, context: Context) -> Result<(), Failure> {
    let stop = interrupt::requested();
    let key = match &args.key {
        Some(file) => keyfile::load(file)?,
        None => keyfile::load_or_create(&keyfile::default_path()?)?,
    };
    let rules = outside(&args.device.interface, &args.paths_wanted.rules()?);
    let node = args.granted.node().key(key).relays(args.relays.clone());
    let node = node.session(session_config()).path_rules(rules).start().await?;
    let udp_port = node.addresses().first().map_or(0, std::net::SocketAddr::port);
    let options = ClientOptions {
        interface: args.device.interface.clone(),
        scope: if args.to.is_empty() { Scope::All } else { Scope::Networks(args.to.clone()) },
        streams: !args.no_streams,
        dns: !args.no_dns,
        kill_switch: args.kill_switch,
        udp_port,
        networks: args.networks.clone(),
        policy: Policy { lane: args.lane.into(), classes: Vec::new() },
        guard: super::guard_command(&args.device.interface),
    };
    let client = Client::new(options, node.endpoint().clock(), u64::from_ne_bytes(*keyfile::random()?));
    let _socket = service::answer_at(Some(&super::socket(&args.device.interface)), Asked(client.clone()))?;
    let (dialer, dial) = (node.clone(), Dial::ticket(&args.ticket));
    let dial: anabranch_tunnel_io::client::Dial = Box::new(move || {
        let (node, dial) = (dialer.clone(), dial.clone());
        Box::pin(async move {
            let session = node.dial(&dial).await.map_err(|error| error.to_string())?;
            Ok(session.session().clone())
        })
    });
    let json = args.json;
    let outcome = tokio::select! {
        result = client.run(dial, move |notice| tell(&notice, (json, context))) => match result {
            Ok(never) => match never {},
            Err(error) => Err(super::failure(&error)),
        },
        () = stop => Ok(()),
    };
    node.close().await;
    outcome
}

/// Rules that keep the tunnel's own paths out of the tunnel.
pub fn outside(interface: &str, rules: &PathRules) -> PathRules {
    let own = parse_rule(&format!("{interface}=never")).into_iter();
    let suppression = rules.suppression;
    PathRules::new(own.chain(rules.iter().cloned()).collect()).suppressing(suppression)
}

fn tell(notice: &Notice, (json, context): (bool, Context)) {
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
