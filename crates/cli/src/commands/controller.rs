//! `anabranch controller`: knows the relays, and grants their use to clients that its configuration lists.
//!
//! Runs until it is told to stop; SIGHUP has it read its configuration again. What it serves is `anabranch-daemon`'s matter.

use std::path::{Path, PathBuf};

use anabranch_daemon::client::RelayRoute;
use anabranch_daemon::controller::config::{ControllerSettings, StoreSettings};
use anabranch_daemon::controller::{ControllerService, StartError};
use anabranch_secure::RelayHint;
use clap::Args;

use super::Context;
use super::relay::{Signals, notify};
use crate::errors::Failure;
use crate::ui::out;
use crate::{keyfile, node};

/// Where the configuration is when nobody says.
const CONFIG: &str = "/etc/anabranch/controller.toml";

const EXAMPLES: &str = "\
Examples:
  anabranch controller                            as /etc/anabranch/controller.toml says
  anabranch controller --config controller.toml   prints its address and the key that relays pin

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
/// Relays register with a controller and tell it how they are; clients that its configuration lists ask it for
/// grants, which relays check by themselves. Several controllers may share one etcd: any of them answers, and none is
/// missed. Running sessions need no controller. SIGHUP has it read its configuration again.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ControllerArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIG, value_hint = clap::ValueHint::FilePath)]
    pub config: PathBuf,
}

/// Runs a controller.
///
/// # Errors
/// When the configuration is wrong, the store is damaged or in use, or a port is taken.
pub fn run(args: &ControllerArgs, context: &Context) -> Result<(), Failure> {
    let settings = read(&args.config)?;
    node::runtime()?.block_on(serve(&args.config, settings, context))
}

/// The configuration; files that it names are beside it.
fn read(path: &Path) -> Result<ControllerSettings, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::file("read the configuration", path, &error)
            .hint("`anabranch controller --help` shows a small one; name yours with `--config FILE`")
    })?;
    let mut settings =
        ControllerSettings::parse(&text, &path.display().to_string()).map_err(|mut error| {
            let hint = std::mem::take(&mut error.hint);
            let failure = Failure::local(error.to_string());
            if hint.is_empty() { failure } else { failure.hint(hint) }
        })?;
    let beside = path.parent().unwrap_or(Path::new(""));
    settings.key = beside.join(&settings.key);
    if let StoreSettings::File(file) = &mut settings.store {
        *file = beside.join(&*file);
    }
    Ok(settings)
}

async fn serve(path: &Path, settings: ControllerSettings, context: &Context) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let key = keyfile::load_or_create(&settings.key)?;
    let controller = ControllerService::start(key, &settings).await.map_err(|error| match error {
        StartError::Bind(error) => Failure::bind(&error),
        other => Failure::local(other.to_string()),
    })?;
    announce(&controller, context)?;
    notify(&[sd_notify::NotifyState::Ready]);
    loop {
        tokio::select! {
            _ = signals.hang_up.recv() => reload(&controller, path, &settings),
            _ = signals.interrupt.recv() => break,
            _ = signals.terminate.recv() => break,
        }
    }
    notify(&[sd_notify::NotifyState::Stopping]);
    controller.close().await;
    Ok(())
}

/// A configuration that cannot be read changes nothing.
fn reload(controller: &ControllerService, path: &Path, old: &ControllerSettings) {
    match read(path) {
        Ok(settings) => {
            controller.reload(&settings);
            let same = (old.port, &old.addresses, &old.key, &old.store)
                == (settings.port, &settings.addresses, &settings.key, &settings.store);
            if !same {
                tracing::warn!("port, addresses, key and store change with a restart only");
            }
            let (relays, clients) = (settings.policy.relays.len(), settings.policy.clients.len());
            tracing::info!(relays, clients, "the configuration was read again");
        }
        Err(failure) => tracing::error!("{failure}; the controller goes on as before"),
    }
}

/// How it is reached, and below it the key that relays pin, on standard output.
fn announce(controller: &ControllerService, context: &Context) -> Result<(), Failure> {
    let mut addresses = controller.addresses();
    if addresses.iter().any(|address| !address.ip().is_loopback()) {
        addresses.retain(|address| !address.ip().is_loopback());
    }
    if !context.quiet {
        out::error("a controller; its address, and the key that relays know its grants by\n\n");
    }
    let route = RelayRoute(vec![RelayHint { node: controller.node(), addresses }]);
    out::print(&format!("{route}\n{}\n", controller.signing_key()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_configuration_that_is_missing_is_told_with_what_to_do() {
        let args: ControllerArgs = parse(&["--config", "/nowhere/c.toml"]).unwrap();
        assert!(read(&args.config).unwrap_err().hint.unwrap().contains("--config"));
    }
}
