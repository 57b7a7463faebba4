//! `anabranch controller`: registers relays and grants their use to the clients in its configuration.
//!
//! SIGHUP makes it read the configuration again. The service itself is in `anabranch-daemon`. Before it
//! starts a thread, the process disables core dumps and gives up write access outside the controller's
//! directories.

use std::path::{Path, PathBuf};

use anabranch_daemon::controller::config::{ControllerSettings, StoreSettings};
use anabranch_daemon::controller::http::routes;
use anabranch_daemon::controller::status::{GrantStatus, Status};
use anabranch_daemon::controller::{ControllerService, StartError};
use anabranch_net::{NodeKey, PublicKey};
use anabranch_node::{ControllerHint, Threads, keyfile};
use anabranch_overlay::grant::GrantId;
use anabranch_service::http::Door;
use anabranch_service::process;
use anabranch_wire::Rate;
use clap::{Args, Subcommand};

use super::answering::Asked;
use super::service::{self, AskArgs, Signals, notify};
use crate::context::Context;
use crate::errors::Failure;
use crate::ui::{human, out};

/// The default configuration file.
const CONFIG: &str = "/etc/anabranch/controller.toml";

const TORN: &str = "internal error (logged above) corrupted the controller's state; restart the controller";

const EXAMPLES: &str = "\
Examples:
  anabranch controller                            as /etc/anabranch/controller.toml says
  anabranch controller --config controller.toml   prints its address and the key that relays pin
  anabranch controller status --json              the relays that it knows
  anabranch controller grants ab1...              the grants of a client
  anabranch controller revoke ab1...              revokes them

A configuration, with one relay and one client:
  key = \"controller.key\"
  [store]
  file = \"controller.store\"                       or, for several controllers: etcd = [\"http://127.0.0.1:2379\"]
  [[relay]]
  key = \"ab1...\"                                  `anabranch keys show --key FILE` on the relay
  [[client]]
  key = \"ab1...\"                                  `anabranch keys show` on the client";

/// Grant clients the use of relays
///
/// Clients that its configuration lists ask it for grants, which relays check by themselves. Several controllers may
/// share one etcd. SIGHUP reads the configuration again; removed clients lose their grants.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct ControllerArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIG, value_hint = clap::ValueHint::FilePath)]
    pub config: PathBuf,
    #[command(subcommand)]
    pub ask: Option<ControllerAsk>,
}

/// Requests to a running controller.
#[derive(Debug, Subcommand)]
pub enum ControllerAsk {
    /// Show the relays that a running controller knows
    Status(AskArgs),
    /// Show the grants of a client
    Grants(ClientArgs),
    /// Revoke grants of a client: relays end its paths within seconds
    ///
    /// A listed client asks for another grant at once. To end its access, remove it from the configuration and send
    /// SIGHUP.
    Revoke(RevokeArgs),
}

/// A client.
#[derive(Args, Debug)]
pub struct ClientArgs {
    /// The client's key
    #[arg(value_name = "KEY")]
    pub client: PublicKey,
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Options of `controller revoke`.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// A grant that `anabranch controller grants` lists [default: all of the client]
    #[arg(long, value_name = "ID")]
    pub grant: Option<GrantId>,
    #[command(flatten)]
    pub of: ClientArgs,
}

/// Runs a controller, or asks one.
pub fn run(args: &ControllerArgs, context: &Context) -> Result<(), Failure> {
    let runtime = Threads::start;
    match &args.ask {
        None => {
            process::protect_secrets();
            let settings = read(&args.config)?;
            let key = keyfile::load_or_create(&settings.key)?;
            let store = match &settings.store {
                StoreSettings::File(file) => Some(file),
                StoreSettings::Memory | StoreSettings::Etcd(_) => None,
            };
            service::confine(settings.control.iter().chain(store));
            runtime()?.block_on(serve(key, &args.config, settings, context))
        }
        Some(ControllerAsk::Status(ask)) => {
            runtime()?.block_on(ask.ask((Asked::Controller, "status"), status_text))
        }
        Some(ControllerAsk::Grants(ClientArgs { client, ask })) => {
            let request = format!("grants {client}");
            let text = |grants: &Vec<_>| grants_text(grants);
            runtime()?.block_on(ask.ask((Asked::Controller, &request), text))
        }
        Some(ControllerAsk::Revoke(RevokeArgs { grant, of: ClientArgs { client, ask } })) => {
            let grant = grant.map(|grant| grant.to_string()).unwrap_or_default();
            let request = format!("revoke {client} {grant}");
            let text = |revoked: &Vec<_>| format!("revoked:\n{}", grants_text(revoked));
            runtime()?.block_on(ask.ask((Asked::Controller, &request), text))
        }
    }
}

/// Reads the configuration. Relative file names start at its directory.
fn read(path: &Path) -> Result<ControllerSettings, Failure> {
    let mut settings = service::read(path, "controller", ControllerSettings::parse)?;
    settings.key = service::beside(path, &settings.key);
    settings.control = settings.control.map(|control| service::beside(path, &control));
    if let Some(http) = &mut settings.http {
        let tls = http.tls.iter_mut().flat_map(|tls| [&mut tls.certificate, &mut tls.private_key]);
        for file in http.token.iter_mut().chain(tls) {
            *file = service::beside(path, file);
        }
    }
    if let StoreSettings::File(file) = &mut settings.store {
        *file = service::beside(path, file);
    }
    Ok(settings)
}

async fn serve(
    key: NodeKey,
    path: &Path,
    settings: ControllerSettings,
    context: &Context,
) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let controller = ControllerService::start(key, &settings).await.map_err(|error| match error {
        StartError::Bind(error) => Failure::bind(&error),
        other => Failure::local(other.to_string()),
    })?;
    let _socket = service::answer_at(settings.control.as_deref(), controller.watch())?;
    let mut tasks = tokio::task::JoinSet::new();
    if let Some(http) = &settings.http {
        let door = Door::open(http).await.map_err(|error| Failure::local(error.to_string()))?;
        tasks.spawn(door.serve(routes(controller.watch())));
    }
    announce(&controller, context)?;
    notify(&[sd_notify::NotifyState::Ready]);
    loop {
        tokio::select! {
            _ = signals.hang_up.recv() => reload(&controller, path, &settings, context),
            _ = signals.interrupt.recv() => break,
            _ = signals.terminate.recv() => break,
            () = controller.torn() => return Err(Failure::local(TORN)),
        }
    }
    notify(&[sd_notify::NotifyState::Stopping]);
    controller.close().await;
    Ok(())
}

/// Reads the configuration again; an unreadable one changes nothing.
fn reload(controller: &ControllerService, path: &Path, old: &ControllerSettings, context: &Context) {
    match read(path) {
        Ok(settings) => {
            controller.reload(&settings);
            service::warn_of_restart(&[
                ("port", old.port != settings.port),
                ("addresses", old.addresses != settings.addresses),
                ("key", old.key != settings.key),
                ("store", old.store != settings.store),
                ("control", old.control != settings.control),
                ("http", old.http != settings.http),
            ]);
            if !context.quiet {
                let relays = human::count(settings.policy.relays.len() as u64, "relay");
                let clients = human::count(settings.policy.clients.len() as u64, "client");
                out::sentence(&format!("configuration read again: {relays}, {clients}"));
            }
        }
        Err(failure) => tracing::error!("{failure}; the controller keeps its old configuration"),
    }
}

/// Prints the controller's address and the key that relays pin on standard output.
fn announce(controller: &ControllerService, context: &Context) -> Result<(), Failure> {
    let addresses = anabranch_node::reachable(controller.addresses());
    if !context.quiet {
        out::error("controller; its address, and the key that its grants are signed with\n\n");
    }
    let at = ControllerHint::new(controller.node(), &addresses);
    out::print(&format!("{at}\n{}\n", controller.signing_key()))
}

/// The status as text.
pub(super) fn status_text(status: &Status) -> String {
    let mut text = format!("{}\n  signs with {}\n", status.node, status.signs);
    if status.relays.is_empty() {
        text.push_str("  no relay has registered\n");
    }
    for relay in &status.relays {
        let state = match (relay.alive, relay.draining) {
            (false, _) => "silent",
            (true, true) => "draining",
            (true, false) => "alive",
        };
        let [offered, granted, used] = relay.pids.map(|pids| pids / 2);
        let rate = Rate::from_bits(relay.rate_used);
        text.push_str(&format!("  relay {}  {state}, {}\n", relay.node, relay.addresses.join(", ")));
        text.push_str(&format!(
            "        {}paths: {used} in use, {granted} granted, {offered} offered; forwards {rate}\n",
            if relay.place.is_empty() { String::new() } else { format!("in {}; ", relay.place) },
        ));
        let [links, down] = relay.links;
        if links > 0 {
            text.push_str(&format!(
                "        measures {} to others, {down} down\n",
                human::count(links as u64, "link")
            ));
        }
    }
    text
}

fn grants_text(grants: &[GrantStatus]) -> String {
    if grants.is_empty() {
        return "no grants\n".into();
    }
    let now = anabranch_node::wall().0;
    let line = |grant: &GrantStatus| {
        let left = human::seconds(grant.until.saturating_sub(now) as f64);
        let (paths, relays) =
            (human::count(grant.paths.into(), "path"), human::count(grant.relays.len() as u64, "relay"));
        format!("  {}  {paths} at each of {relays}, for {left}\n", grant.id)
    };
    grants.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn the_error_for_a_missing_configuration_says_how_to_name_one() {
        let args: ControllerArgs = parse(&["--config", "/nowhere/c.toml"]).unwrap();
        assert!(read(&args.config).unwrap_err().hint.unwrap().contains("--config"));
    }

    #[test]
    fn a_controller_runs_unless_one_is_asked() {
        let key = anabranch_net::NodeKey::from_random([3; 32]).public().to_string();
        let args: ControllerArgs = parse(&["grants", &key, "--json"]).unwrap();
        assert!(matches!(args.ask, Some(ControllerAsk::Grants(args)) if args.ask.answer.json));
        let args: ControllerArgs = parse(&["revoke", &key, "--grant", &"0a".repeat(16)]).unwrap();
        assert!(matches!(args.ask, Some(ControllerAsk::Revoke(RevokeArgs { grant: Some(_), .. }))));
        assert!(parse::<ControllerArgs>(&["revoke"]).is_err(), "whose?");
    }
}
