//! `anabranch proxy`: programs of this machine reach the world through an exit, over all paths to it.

pub(super) mod text;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_node::{RelayRoute, Threads, keyfile};
use anabranch_proxy::status::ProxyStatus;
use anabranch_proxy::{
    Forward, MOST_CONNECTIONS, Proxy, ProxyError, ProxyNotice, ProxyOptions, session_config,
};
use anabranch_service::control::{self, Answer};
use clap::{Args, Subcommand};

use crate::commands::service;
use crate::context::{Context, OUTPUT};
use crate::control::ControlOption;
use crate::errors::{Failure, printable};
use crate::node_word::NodeWord;
use crate::path_rules::PathOptions;
use crate::relays::ControllerOptions;
use crate::ui::out::{self, Stream};
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
  anabranch proxy status                     paths and connections of the running proxy";

/// Let programs use all paths through an exit, without root
///
/// EXIT is the ticket that `anabranch exit` printed, or KEY@ADDRESS of an exit that lists this machine's key. One port
/// speaks SOCKS4a, SOCKS5 and HTTP. The exit resolves names and connects. Browsers find settings at http://127.0.0.1:1080/proxy.pac.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ProxyArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub action: Option<ProxyCommand>,
    /// How the proxy runs.
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
    /// Where the proxy listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = LISTEN, value_parser = listen)]
    pub listen: SocketAddr,
    /// JSON instead of text
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
    /// A port of the exit, which allows it with `--listen`, that leads to a destination on this side; may be repeated
    #[arg(long = "remote-forward", value_name = "PORT=HOST:PORT")]
    pub remote_forwards: Vec<Forward>,
    /// This machine's address for programs that send datagrams by SOCKS5
    #[arg(long, value_name = "ADDRESS")]
    pub advertise: Option<IpAddr>,
    /// Connections at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4096, value_parser = values::whole(1..=MOST_CONNECTIONS))]
    pub connections: usize,
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
    /// Control while it runs.
    #[command(flatten)]
    pub running: ControlOption,
    /// One JSON event a line instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse::<u16>().map(|port| ([127, 0, 0, 1], port).into());
    port.or_else(|_| text.parse())
        .map_err(|_| format!("`{text}` is no address; write 127.0.0.1:1080, [::1]:1080 or a port"))
}

impl ProxyArgs {
    /// True with `--json`.
    #[must_use]
    pub fn json(&self) -> bool {
        match &self.action {
            Some(ProxyCommand::Status(args)) => args.json,
            None => self.serve.json,
        }
    }

    /// The ticket that was given as a word.
    #[must_use]
    pub fn ticket_word(&self) -> Option<&str> {
        self.serve.exit.as_ref().and_then(NodeWord::ticket_word)
    }
}

/// Answers `anabranch proxy status`.
#[derive(Clone)]
struct Asked(Arc<Proxy>);

impl Answer for Asked {
    async fn answer(&self, _line: &str) -> String {
        control::reply(&self.0.status())
    }
}

/// Runs a proxy, or shows it.
///
/// # Errors
/// The cause of the failure, with advice.
pub fn run(args: &ProxyArgs, context: &Context) -> Result<(), Failure> {
    super::send::resources::allow_many_files();
    let threads = Threads::start()?;
    match (&args.action, &args.serve.exit) {
        (Some(ProxyCommand::Status(args)), _) => threads.block_on(status(args)),
        (None, Some(exit)) => threads.block_on(serve(&args.serve, exit, *context)),
        (None, None) => Err(Failure::usage("no exit is named")),
    }
}

async fn status(args: &StatusArgs) -> Result<(), Failure> {
    let socket = runtime_socket("proxy", args.listen.port())?;
    let asked = control::ask::<ProxyStatus>(&socket, "status").await;
    let status = asked.map_err(|error| {
        Failure::local(format!("no proxy answers at {}: {error}", socket.display()))
            .hint("is `anabranch proxy` running, with this `--listen` and as this user?")
    })?;
    if args.json { Stream::Stdout.json(&status) } else { out::print(&text::status(&status)) }
}

async fn serve(args: &ServeArgs, exit: &NodeWord, context: Context) -> Result<(), Failure> {
    let stop = interrupt::requested();
    let options = ProxyOptions {
        listen: args.listen,
        forwards: args.forwards.clone(),
        remote_forwards: args.remote_forwards.clone(),
        advertise: args.advertise,
        most_connections: args.connections,
    };
    let proxy = Proxy::bind(&options).await.map_err(|error| failure(&error))?;
    let listen = proxy.local_addr().map_err(|error| Failure::local(error.to_string()))?;
    let key = match &args.key {
        Some(file) => keyfile::load(file)?,
        None => keyfile::load_or_create(&keyfile::default_path()?)?,
    };
    let node = args.granted.node().key(key).relays(args.relays.clone()).session(session_config());
    let node = node.path_rules(args.paths_wanted.rules()?).control(args.running.control.clone());
    let node = node.start().await?;
    let _socket = service::answer_at(Some(&runtime_socket("proxy", listen.port())?), Asked(proxy.clone()))?;
    let held = node.hold(exit.dial().await?, None);
    let how = Telling { json: args.json, quiet: context.quiet, listen, was_up: AtomicBool::new(false) };
    let outcome = tokio::select! {
        error = proxy.run(held, move |notice| tell(&notice, &how)) => Err(failure(&error)),
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

/// Where a running proxy or exit can be asked: in a directory of this user.
pub(super) fn runtime_socket(kind: &str, port: u16) -> Result<PathBuf, Failure> {
    let name = format!("anabranch-{kind}-{port}.sock");
    if let Some(own) = std::env::var_os("XDG_RUNTIME_DIR").filter(|own| !own.is_empty()) {
        return Ok(PathBuf::from(own).join(name));
    }
    let user = rustix::process::getuid();
    if user.is_root() {
        return Ok(PathBuf::from("/run").join(name));
    }
    // The key's directory belongs to this user, too.
    let key = keyfile::default_path()?;
    let own = key.parent().map_or_else(std::env::temp_dir, std::path::Path::to_owned);
    Ok(own.join(name))
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
        ProxyError::Io(_) => Failure::new(errors::Kind::Unreachable, error.to_string()),
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
        assert!(status.json() && status.action.is_some());
    }
}
