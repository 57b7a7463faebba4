//! `anabranch relay`: makes this machine a relay for the users that its configuration or a controller names.
//!
//! SIGTERM drains the relay first, so that sessions move to other paths. SIGHUP makes it read its
//! configuration again. The service itself is in `anabranch-daemon`. Before it starts a thread, the process
//! disables core dumps and gives up write access outside the relay's directories.

mod list;

use std::path::{Path, PathBuf};

use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::RelaySettings;
use anabranch_daemon::relay::status::{InterfaceStatus, LinkStatus, Status};
use anabranch_net::NodeKey;
use anabranch_node::{NodeAt, RelayRoute, keyfile};
use anabranch_service::http::{self, Door, HttpSettings};
use anabranch_service::process;
use anabranch_wire::Span;
use clap::{Args, Subcommand};

use super::answering::Asked;
use super::service::{self, AskArgs, Earlier, Signals, notify};
use crate::context::Context;
use crate::errors::{Failure, printable};
use crate::ui::{human, out};
use crate::values;
use list::ListArgs;

/// The default configuration file.
const CONFIG: &str = "/etc/anabranch/relay.toml";
/// How long paths may continue after SIGTERM.
const PATIENCE: Span = Span::from_secs(5);

const TORN: &str = "internal error (logged above) corrupted the relay's state; restart the relay";

const EXAMPLES: &str = "\
Examples:
  anabranch relay                             as /etc/anabranch/relay.toml says
  anabranch relay --config relay.toml         prints the line that others give to `--relay`
  anabranch relay status --json               counters, users and links of a running relay
  anabranch relay drain                       before an upgrade: sessions move on to other paths
  anabranch relay list --controller ab1...@192.0.2.1:4700    the relays that this machine may use

A configuration, with one user:
  key = \"relay.key\"
  [[user]]
  key = \"ab1...\"                              `anabranch keys show` on the user's machine

For users to whom a controller grants its use:
  [[controller]]
  at    = \"ab1...@192.0.2.1:4700\"             the two lines that `anabranch controller` prints
  signs = \"abs1...\"";

/// Make this machine a path for other machines' sessions
///
/// A relay forwards packets that it cannot read, for keys that its configuration lists or that hold a controller's grant,
/// to nodes that agree. SIGHUP reads the configuration again; removed users lose their paths. SIGTERM drains and ends it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct RelayArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIG, value_hint = clap::ValueHint::FilePath)]
    pub config: PathBuf,
    #[command(subcommand)]
    pub ask: Option<RelayAsk>,
}

/// Requests to a running relay.
#[derive(Debug, Subcommand)]
pub enum RelayAsk {
    /// Show counters, users and links of a running relay
    Status(AskArgs),
    /// Refuse new paths and end existing ones until the relay is restarted
    Drain(DrainArgs),
    /// List the relays that controllers grant this machine, as `--relay` takes them
    List(ListArgs),
}

/// Options of `relay drain`.
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Time until paths end
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::span)]
    pub patience: Span,
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Runs a relay, or asks one.
pub fn run(args: &RelayArgs, context: &Context) -> Result<(), Failure> {
    match &args.ask {
        None => {
            process::protect_secrets();
            let settings = read(&args.config)?;
            let key = keyfile::load_or_create(&settings.key)?;
            let files = [&settings.control, &settings.usage];
            service::confine(files.into_iter().flatten());
            anabranch_node::Threads::start()?.block_on(serve(key, &args.config, settings, context))
        }
        Some(RelayAsk::Status(ask)) => anabranch_node::Threads::start()?
            .block_on(ask.ask_twice((Asked::Relay, "status"), |status, earlier| text(status, Some(earlier)))),
        Some(RelayAsk::List(list)) => {
            process::protect_secrets();
            anabranch_node::Threads::start()?.block_on(list::run(list))
        }
        Some(RelayAsk::Drain(drain)) => {
            let seconds = drain.patience.as_nanos().div_ceil(1_000_000_000);
            let request = format!("drain {seconds}");
            anabranch_node::Threads::start()?
                .block_on(drain.ask.ask((Asked::Relay, &request), |status| text(status, None)))
        }
    }
}

/// Reads the configuration. Relative file names start at its directory.
fn read(path: &Path) -> Result<RelaySettings, Failure> {
    let mut settings = service::read(path, "relay", RelaySettings::parse)?;
    settings.key = service::beside(path, &settings.key);
    settings.control = settings.control.map(|control| service::beside(path, &control));
    settings.usage = settings.usage.map(|usage| service::beside(path, &usage));
    Ok(settings)
}

async fn serve(key: NodeKey, path: &Path, settings: RelaySettings, context: &Context) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let relay = RelayService::start(key, &settings).await.map_err(|error| Failure::bind(&error))?;
    let _socket = service::answer_at(settings.control.as_deref(), relay.watch())?;
    let mut tasks = tokio::task::JoinSet::new();
    if let Some(address) = settings.metrics {
        let door = Door::open(&HttpSettings { address, token: None, tls: None }).await;
        let door = door.map_err(|error| Failure::local(error.to_string()))?;
        let watch = relay.watch();
        tasks.spawn(door.serve(http::metrics(move || watch.status().to_prometheus())));
    }
    announce(&relay, &settings, context)?;
    notify(&[sd_notify::NotifyState::Ready]);
    run_until_stopped(&relay, (path, &settings), &mut signals, context).await?;
    notify(&[sd_notify::NotifyState::Stopping]);
    relay.close().await;
    Ok(())
}

async fn run_until_stopped(
    relay: &RelayService,
    (path, settings): (&Path, &RelaySettings),
    signals: &mut Signals,
    context: &Context,
) -> Result<(), Failure> {
    let mut draining = false;
    loop {
        tokio::select! {
            _ = signals.hang_up.recv() => reload(relay, path, settings, context),
            _ = signals.interrupt.recv() => return Ok(()),
            _ = signals.terminate.recv() => {
                if draining {
                    return Ok(());
                }
                tracing::info!("draining: sessions move on to other paths");
                relay.drain(PATIENCE);
                draining = true;
            }
            () = relay.torn() => return Err(Failure::local(TORN)),
            () = relay.drained(), if draining => return Ok(()),
        }
    }
}

/// Reads the configuration again; an unreadable one changes nothing.
fn reload(relay: &RelayService, path: &Path, old: &RelaySettings, context: &Context) {
    match read(path) {
        Ok(settings) => {
            relay.reload(&settings);
            service::warn_of_restart(&[
                ("port", old.port != settings.port),
                ("addresses", old.addresses != settings.addresses),
                ("key", old.key != settings.key),
                ("control", old.control != settings.control),
                ("metrics", old.metrics != settings.metrics),
                ("usage", old.usage != settings.usage),
            ]);
            if !context.quiet {
                let users = human::count(settings.users.len() as u64, "user");
                out::sentence(&format!("configuration read again: {users}"));
            }
        }
        Err(failure) => tracing::error!("{failure}; the relay keeps its old configuration"),
    }
}

/// Prints the relay's users, and on standard output the relay's address for `--relay`.
fn announce(relay: &RelayService, settings: &RelaySettings, context: &Context) -> Result<(), Failure> {
    let addresses = anabranch_node::reachable(relay.addresses());
    let route = RelayRoute(vec![NodeAt::new(relay.node(), &addresses)]);
    if !context.quiet {
        out::error(&whom(settings.users.len() as u64, settings.controllers.len() as u64));
    }
    out::print(&format!("{route}\n"))
}

fn whom(listed: u64, controllers: u64) -> String {
    let users = human::count(listed, "user");
    let grant = if controllers == 1 { "grants" } else { "grant" };
    let granted = format!("clients to whom {} {grant} its use", human::count(controllers, "controller"));
    let whom = match (listed, controllers) {
        (0, 0) => {
            return "this relay has no users yet: list their keys in its configuration as `[[user]]`, or name a `[[controller]]`, and \
                    send SIGHUP\nlisted users reach it by `--relay` with this line:\n\n"
                .to_owned();
        }
        (_, 0) => users,
        (0, _) => granted,
        _ => format!("{users}, and for {granted}"),
    };
    let how = if listed > 0 { "listed users reach it by `--relay` with this line" } else { "its address" };
    format!("relay for {whom}\n{how}:\n\n")
}

/// The status as text; with the rate if an earlier status is known.
pub(super) fn text(status: &Status, before: Option<&Earlier<'_, Status>>) -> String {
    let rate = |counter: fn(&Status) -> u64| {
        let rate = before.map(|before| before.rate(|was| Some(counter(was)), counter(status)));
        rate.map_or_else(String::new, |rate| format!(", {rate} now"))
    };
    let state = if status.draining { "draining, up" } else { "running" };
    let mut text = format!(
        "{}\n  {state} for {}, {} and {}\n  received  {}{}\n  forwarded {} in {}{}\n",
        status.node,
        human::seconds(status.uptime_s),
        human::count(status.sessions as u64, "session"),
        human::count(status.flows as u64, "path"),
        human::bytes(status.received_bytes()),
        rate(Status::received_bytes),
        human::bytes(status.forwarded_bytes),
        human::count(status.forwarded_packets, "packet"),
        rate(|status| status.forwarded_bytes),
    );
    for InterfaceStatus { name, address, packets: [received, sent], received_bytes } in &status.interfaces {
        text.push_str(&format!(
            "  interface {name} {address}  received {} in {}, sent {}\n",
            human::bytes(*received_bytes),
            human::count(*received, "packet"),
            human::count(*sent, "packet")
        ));
    }
    let drop = &status.dropped;
    let reasons = [
        ("no room in the queue", drop.congested),
        ("quota used up", drop.quota),
        ("next hop has not agreed", drop.no_consent),
        ("unknown PID or wrong source", drop.unknown_pid + drop.wrong_source + drop.wrong_kind),
        ("too many relays", drop.hop_limit),
        ("too long", drop.too_long),
        ("malformed", drop.malformed),
    ];
    for (why, count) in reasons.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!("  dropped   {} ({why})\n", human::count(*count, "packet")));
    }
    for user in status.users.iter().filter(|user| user.sessions > 0) {
        let flows = human::count(user.flows as u64, "path");
        let name = if user.name.is_empty() { String::new() } else { format!("{}  ", printable(&user.name)) };
        text.push_str(&format!("  user      {name}{}  {flows}\n", user.key));
    }
    for LinkStatus { to, up, rtt_ms, loss: [there, back], capacity_mbit_s, .. } in &status.links {
        if *up {
            let (there, back) = (there * 100.0, back * 100.0);
            let rate = capacity_mbit_s.map_or(String::new(), |mbit| format!(", carries {mbit:.1} Mbit/s"));
            text.push_str(&format!(
                "  link      {to}  {rtt_ms:.1} ms, lost {there:.1} % there, {back:.1} % back{rate}\n"
            ));
        } else {
            text.push_str(&format!("  link      {to}  down\n"));
        }
    }
    for controller in &status.controllers {
        let node = controller.at.split('@').next().unwrap_or_default();
        text.push_str(&format!("  controller {node}  {}\n", controller.standing));
    }
    text
}

#[cfg(test)]
mod tests {
    use anabranch_overlay::relay::Dropped;

    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_relay_runs_unless_one_is_asked() {
        let args: RelayArgs = parse(&["--config", "r.toml"]).unwrap();
        assert!(args.ask.is_none() && args.config == Path::new("r.toml"));
        let args: RelayArgs = parse(&["status", "--json"]).unwrap();
        assert!(matches!(args.ask, Some(RelayAsk::Status(args)) if args.answer.json));
        let args: RelayArgs = parse(&["drain", "--patience", "1m"]).unwrap();
        assert!(matches!(args.ask, Some(RelayAsk::Drain(drain)) if drain.patience == Span::from_secs(60)));
    }

    #[test]
    fn one_user_or_controller_is_singular_and_several_are_plural() {
        for (listed, controllers, says) in [
            (1, 0, "relay for 1 user\n"),
            (0, 1, "relay for clients to whom 1 controller grants its use\n"),
            (0, 2, "relay for clients to whom 2 controllers grant its use\n"),
            (2, 1, "relay for 2 users, and for clients to whom 1 controller grants its use\n"),
        ] {
            let text = whom(listed, controllers);
            assert!(text.starts_with(says) && text.ends_with(":\n\n"), "{text}");
        }
    }

    #[test]
    fn a_relay_without_users_says_what_to_add_to_its_configuration() {
        let text = whom(0, 0);
        assert!(text.contains("no users yet: ") && text.contains("`[[user]]`"), "{text}");
        assert!(text.contains("SIGHUP") && text.ends_with("with this line:\n\n"), "{text}");
    }

    #[test]
    fn a_status_shows_the_rate_the_interfaces_and_the_names_of_users() {
        let mut status: Status = serde_json::from_value(serde_json::json!({
            "node": "ab1", "addresses": [], "uptime_s": 5.0, "draining": false, "sessions": 1, "flows": 1,
            "forwarded_packets": 9, "forwarded_bytes": 3_000_000, "waiting_bytes": 0, "challenges": 0,
            "dropped": Dropped::default(), "refused": 0, "controllers": [],
            "users": [{ "key": "ab2", "name": "laptop", "sessions": 1, "flows": 1, "bytes_left": null }],
            "interfaces": [{ "name": "eth0", "address": "192.0.2.1:4600", "packets": [10, 9], "received_bytes": 3_100_000 }],
        }))
        .unwrap();
        let mut was = Status { forwarded_bytes: 2_000_000, ..status.clone() };
        was.interfaces[0].received_bytes = 2_600_000;
        let told = text(&status, Some(&Earlier { was: &was, ago: 0.5 }));
        for words in [
            "forwarded 3.00 MB in 9 packets, 16.0 Mbit/s now\n",
            "  interface eth0 192.0.2.1:4600  received 3.10 MB in 10 packets, sent 9 packets\n",
            "received  3.10 MB, 8.0 Mbit/s now\n",
            "  user      laptop  ab2  1 path\n",
        ] {
            assert!(told.contains(words), "no {words:?} in {told}");
        }
        status.users[0].name.clear();
        assert!(text(&status, None).contains("  user      ab2  1 path\n"));
        assert!(!text(&status, None).contains("bit/s"));
    }

    #[test]
    fn the_error_for_a_missing_configuration_says_how_to_name_one() {
        let failure = read(Path::new("/nowhere/relay.toml")).unwrap_err();
        assert!(failure.hint.unwrap().contains("--config"));
    }
}
