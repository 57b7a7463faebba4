//! `anabranch proxy`: programs of this machine reach the world through an exit, over all paths to it.

pub(super) mod text;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_node::{Dial, Threads};
use anabranch_proxy::{
    Forward, MOST_CONNECTIONS, Method, Proxy, ProxyError, ProxyNotice, ProxyOptions, RedirectError,
    Redirection, session_config,
};
use anabranch_service::process::memory;
use anabranch_tunnel_io::system::forwarded_for_all;
use clap::{Args, Subcommand};

use crate::commands::service::{self, StatusOf, runtime_socket};
use crate::congestion::CongestionOption;
use crate::context::{Context, OUTPUT};
use crate::control::ControlOption;
use crate::errors::{Failure, printable};
use crate::node_word::NodeWord;
use crate::relays::NodeOptions;
use crate::ui::out;
use crate::values;
use crate::{errors, interrupt};

/// Default address of the proxy.
const LISTEN: &str = "127.0.0.1:1080";

const EXAMPLES: &str = "\
Examples:
  anabranch proxy TICKET                     SOCKS and HTTP at 127.0.0.1:1080
  export ALL_PROXY=socks5h://127.0.0.1:1080  programs of this shell use it
  anabranch proxy TICKET --forward 5432=db.example.org:5432
                                             also a port that leads to one destination
  sudo anabranch proxy TICKET --redirect     TCP connections of all programs, which need no settings
  anabranch proxy status                     paths and connections of the running proxy";

/// Let programs use all paths through an exit, without root
///
/// EXIT is the ticket that `anabranch exit` printed, or KEY@ADDRESS of an exit that lists this machine's key. One port
/// speaks SOCKS4a, SOCKS5 and HTTP. The exit resolves names and connects. Browsers find settings at http://127.0.0.1:1080/proxy.pac.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ProxyArgs {
    #[command(subcommand)]
    pub action: Option<ProxyCommand>,
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Subcommands for proxies.
#[derive(Debug, Subcommand)]
pub enum ProxyCommand {
    /// Show the paths and connections of a running proxy
    Status(StatusArgs),
}

/// Which proxy, and how it is shown.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Where programs connect; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDRESS:PORT", default_value = LISTEN, value_parser = listen)]
    pub listen: SocketAddr,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// How a proxy runs.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// The exit: its ticket or KEY@ADDRESS:PORT; `-` for standard input, `@FILE` for a file
    #[arg(value_name = "EXIT", required = true, env = values::TICKET_VARIABLE, hide_env_values = true)]
    pub exit: Option<NodeWord>,
    /// Where programs connect; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDRESS:PORT", default_value = LISTEN, value_parser = listen)]
    pub listen: SocketAddr,
    /// A port that leads to one destination: [ADDRESS:]PORT=HOST:PORT; may be repeated
    #[arg(long = "forward", value_name = "PORT=HOST:PORT")]
    pub forwards: Vec<Forward>,
    /// A port of the exit, which has `--listen` for it, that leads to a destination here; may be repeated
    #[arg(long = "remote-forward", value_name = "PORT=HOST:PORT")]
    pub remote_forwards: Vec<Forward>,
    /// Lead the TCP connections of all programs here, and those this machine forwards; needs root and nftables
    ///
    /// UDP, DNS, private networks and networks with a route of their own stay direct.
    #[arg(long, conflicts_with = "tproxy")]
    pub redirect: bool,
    /// Like `--redirect`, without address translation (NAT); also needs the command `ip`
    #[arg(long)]
    pub tproxy: bool,
    /// This machine's address for programs that send datagrams by SOCKS5
    #[arg(long, value_name = "ADDRESS")]
    pub advertise: Option<IpAddr>,
    /// Connections at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4096, value_parser = values::whole(1..=MOST_CONNECTIONS))]
    pub connections: usize,
    #[command(flatten)]
    pub congestion: CongestionOption,
    #[command(flatten)]
    pub node: NodeOptions,
    #[command(flatten)]
    pub running: ControlOption,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse::<u16>().map(|port| ([127, 0, 0, 1], port).into());
    port.or_else(|_| text.parse())
        .map_err(|_| format!("`{text}` is no address; write 127.0.0.1:1080, [::1]:1080 or a port"))
}

impl ServeArgs {
    /// How the firewall leads connections here, for an exit that is dialed so.
    async fn redirection(&self, dial: &Dial) -> Option<Redirection> {
        let method = match (self.redirect, self.tproxy) {
            (true, _) => Method::Redirect,
            (_, true) => Method::Tproxy,
            _ => return None,
        };
        let mut nodes = dial.hosts();
        for relay in self.node.relays.iter().flat_map(|route| &route.0) {
            // A name without an address is reported when the relay is dialed.
            if let Ok(found) = relay.resolve().await {
                nodes.extend(found.addresses.iter().map(SocketAddr::ip));
            }
        }
        Some(Redirection { method, nodes, forwarded: forwarded_for_all() })
    }
}

impl ProxyArgs {
    /// The ticket that was given as a word.
    pub fn ticket_word(&self) -> Option<&str> {
        self.serve.exit.as_ref().and_then(NodeWord::ticket_word)
    }
}

/// Runs a proxy, or shows it.
pub fn run(args: &ProxyArgs, context: &Context) -> Result<(), Failure> {
    super::send::resources::allow_many_files();
    let threads = Threads::start_all_but_one()?;
    match (&args.action, &args.serve.exit) {
        (Some(ProxyCommand::Status(args)), _) => threads.block_on(status(args)),
        (None, Some(exit)) => threads.block_on(serve(&args.serve, exit, *context)),
        (None, None) => Err(Failure::usage("no exit is named")),
    }
}

async fn status(args: &StatusArgs) -> Result<(), Failure> {
    service::show_status(("proxy", args.listen.port(), "--listen"), args.json, text::status).await
}

async fn serve(args: &ServeArgs, exit: &NodeWord, context: Context) -> Result<(), Failure> {
    let dial = exit.dial().await?;
    let options = ProxyOptions {
        listen: args.listen,
        forwards: args.forwards.clone(),
        remote_forwards: args.remote_forwards.clone(),
        redirection: args.redirection(&dial).await,
        advertise: args.advertise,
        most_connections: args.connections,
    };
    let proxy = Proxy::bind(&options).await.map_err(|error| failure(&error))?;
    let listen = proxy.local_addr();
    let session = args.congestion.of(session_config());
    let node = args.node.node().key(args.node.load_key()?).session(session);
    let node = node.path_rules(args.node.paths_wanted.rules()?).control(args.running.control.clone());
    let node = node.start().await?;
    let (socket, asked) = (runtime_socket("proxy", listen.port())?, proxy.clone());
    let _socket = service::answer_at(Some(&socket), StatusOf(move || asked.status()))?;
    let (held, grants) = (node.hold(dial, None), node.grants().clone());
    let how = Telling { json: args.json, quiet: context.quiet, listen, was_up: AtomicBool::new(false) };
    let stop = interrupt::requested();
    let outcome = tokio::select! {
        error = proxy.run(held, grants, move |notice| tell(&notice, &how)) => Err(failure(&error)),
        () = memory::give_back_unused() => unreachable!("it does not end"),
        () = stop => Ok(()),
    };
    node.close().await;
    outcome
}

/// How events are reported.
struct Telling {
    json: bool,
    quiet: bool,
    listen: SocketAddr,
    /// The line for shells was printed.
    was_up: AtomicBool,
}

fn tell(notice: &ProxyNotice, how: &Telling) {
    let Telling { json, quiet, listen, was_up } = how;
    let (json, quiet, listen) = (*json, *quiet, *listen);
    if json {
        let event = match notice {
            ProxyNotice::Up(exit) => {
                serde_json::json!({"event": "up", "exit": exit.to_string(), "listen": listen.to_string()})
            }
            ProxyNotice::Redirecting => serde_json::json!({"event": "redirecting"}),
            ProxyNotice::Lost(why) => serde_json::json!({"event": "lost", "reason": why}),
            ProxyNotice::Listener { name, refused } => {
                serde_json::json!({"event": "listener", "name": name, "refused": refused})
            }
        };
        // The reader of the events may be gone; the proxy goes on.
        let _ = out::print(&format!("{event}\n"));
        return;
    }
    let line = match notice {
        ProxyNotice::Up(_) if was_up.swap(true, Ordering::Relaxed) => {
            Some("the exit is reached again".to_owned())
        }
        ProxyNotice::Up(_) => {
            if !quiet {
                out::error(&format!(
                    "SOCKS and HTTP at {listen}; browsers: http://{listen}/proxy.pac; shells:\n\n"
                ));
            }
            let _ = out::print(&format!("export ALL_PROXY=socks5h://{listen}\n"));
            warning(listen)
        }
        ProxyNotice::Redirecting => {
            Some("TCP connections of all programs go through the exit; UDP and DNS stay direct".to_owned())
        }
        ProxyNotice::Lost(why) => {
            Some(format!("no session with the exit ({}); dialing again", printable(why)))
        }
        ProxyNotice::Listener { name, refused: None } => {
            Some(format!("the exit accepts connections at {name}"))
        }
        ProxyNotice::Listener { name, refused: Some(why) } => {
            Some(format!("the exit does not accept connections at {name}: {}", printable(why)))
        }
    };
    if let Some(line) = line.filter(|_| !quiet) {
        out::error(&format!("{line}\n"));
    }
}

/// A proxy without a password should listen on loopback.
fn warning(listen: SocketAddr) -> Option<String> {
    (!listen.ip().is_loopback()).then(|| {
        format!("warning: everyone who reaches {listen} can use the exit; a firewall should bound that")
    })
}

fn failure(error: &ProxyError) -> Failure {
    match error {
        ProxyError::Node(error) => error.clone().into(),
        ProxyError::Listen { error: cause, .. } => {
            let failure = Failure::local(error.to_string());
            match cause.kind() {
                std::io::ErrorKind::AddrInUse => {
                    failure.hint("another program listens there; name another port with `--listen`")
                }
                _ => failure.hint("name another address or port with `--listen`"),
            }
        }
        ProxyError::Refused(_) => {
            Failure::new(errors::Kind::Refused, error.to_string()).hint("ask the exit's operator")
        }
        ProxyError::NotAnExit(_) => Failure::new(errors::Kind::Unreachable, error.to_string())
            .hint("is the ticket the one that `anabranch exit` printed?"),
        ProxyError::Redirect(error) => redirect_failure(error),
        ProxyError::Io(_) => Failure::new(errors::Kind::Unreachable, error.to_string()),
    }
}

fn redirect_failure(error: &RedirectError) -> Failure {
    let failure = Failure::local(error.to_string());
    match error {
        RedirectError::NotRoot => failure.hint("run it as root (`sudo`), or give the container NET_ADMIN"),
        RedirectError::NoNft => failure.hint("install the package nftables"),
        RedirectError::Taken => {
            failure.hint("end it first; `ps ax | grep 'nft -i'` shows what holds the table")
        }
        RedirectError::ExitHere => failure.hint("run the exit on another machine, or leave the option out"),
        RedirectError::Unsupported(_) => failure.hint(
            "this needs Linux 5.12 and nftables 1.0 or later; without NAT in the kernel, try `--tproxy`",
        ),
        RedirectError::Gone(_) => failure.hint("start the proxy again"),
        RedirectError::Io(_) => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn an_exit_is_a_ticket_or_a_key_with_addresses() {
        let key = anabranch_net::NodeKey::from_random([1; 32]).public();
        let args: ProxyArgs = parse(&[&format!("{key}@exit.example:4435"), "--listen", "1081"]).unwrap();
        assert!(args.serve.exit.as_ref().unwrap().is_of(&key));
        assert_eq!(args.serve.listen, "127.0.0.1:1081".parse().unwrap());
        assert_eq!(args.ticket_word(), None);
        assert!(parse::<ProxyArgs>(&["x@exit.example:4435"]).is_err());
        assert!(parse::<ProxyArgs>(&[]).is_err());
        let status: ProxyArgs = parse(&["status", "--json"]).unwrap();
        assert!(matches!(status.action, Some(ProxyCommand::Status(args)) if args.json));
    }
}
