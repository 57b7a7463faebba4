//! `anabranch tunnel`: a network device whose packets use all paths to the other end.

mod serve;
mod text;
mod up;

use std::path::{Path, PathBuf};

use anabranch_service::control;
use anabranch_tunnel_io::status::Status;
use anabranch_tunnel_io::{guard, system};
use clap::{Args, Subcommand};

use crate::context::{Context, OUTPUT};
use crate::errors::Failure;
use crate::ui::out;

pub use serve::ServeArgs;
pub use up::UpArgs;

/// The device's name, if no other is given.
const INTERFACE: &str = "anabranch0";
/// Longest name of a device.
const LONGEST_NAME: usize = 15;

const EXAMPLES: &str = "\
Examples:
  sudo anabranch tunnel serve                on the server; prints the line for clients
  sudo anabranch tunnel up TICKET            on the client: every program uses all paths
  sudo anabranch tunnel up TICKET --to 10.20.0.0/16
                                             only packets to this network
  sudo anabranch tunnel status               paths and flows of the running tunnel
  sudo anabranch tunnel cleanup              after a crash: takes away rules that were left";

/// Send the packets of every program on this machine over all paths to another one
///
/// Both ends need root, for the network device. Nothing is left behind when the tunnel ends, however it ends.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct TunnelArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub action: TunnelCommand,
}

/// Subcommands for tunnels.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "a command's help text stands on its arguments; one here would replace it")]
pub enum TunnelCommand {
    Serve(ServeArgs),
    Up(UpArgs),
    /// Show the paths and flows of a running tunnel
    Status(StatusArgs),
    /// Remove what a killed tunnel has left, and its kill switch
    Cleanup(DeviceArgs),
    /// Waits for the end of standard input, then cleans up
    #[command(hide = true)]
    Guard(DeviceArgs),
}

/// Which tunnel.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Network device
    #[arg(long, value_name = "NAME", default_value = INTERFACE, value_parser = interface)]
    pub interface: String,
}

/// Which tunnel, and how it is shown.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Which tunnel.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// JSON instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

impl TunnelArgs {
    /// True with `--json`.
    #[must_use]
    pub fn json(&self) -> bool {
        match &self.action {
            TunnelCommand::Serve(args) => args.json,
            TunnelCommand::Up(args) => args.json,
            TunnelCommand::Status(args) => args.json,
            TunnelCommand::Cleanup(_) | TunnelCommand::Guard(_) => false,
        }
    }
}

/// Runs a tunnel, shows it, or cleans up after it.
///
/// # Errors
/// The cause of the failure, with advice.
pub fn run(args: &TunnelArgs, context: &Context) -> Result<(), Failure> {
    match &args.action {
        TunnelCommand::Serve(args) => serve::run(args, context),
        TunnelCommand::Up(args) => up::run(args, context),
        TunnelCommand::Status(args) => status(args),
        TunnelCommand::Cleanup(args) => {
            system::force_clean(&args.interface);
            system::kill_switch::open();
            Ok(())
        }
        TunnelCommand::Guard(args) => guard::watch(&args.interface)
            .map_err(|error| Failure::local(format!("cannot read standard input: {error}"))),
    }
}

fn status(args: &StatusArgs) -> Result<(), Failure> {
    let socket = socket(&args.device.interface);
    let asked = anabranch_node::Threads::start()?.block_on(control::ask::<Status>(&socket, "status"));
    let status = asked.map_err(|error| {
        Failure::local(format!("no tunnel answers at {}: {error}", socket.display()))
            .hint("is `anabranch tunnel up` or `tunnel serve` running, under this name of its device, and are you root?")
    })?;
    if args.json {
        let json = serde_json::to_string(&status).map_err(|error| Failure::local(error.to_string()))?;
        return out::print(&format!("{json}\n"));
    }
    out::print(&text::status(&status))
}

/// The control socket of a running tunnel.
fn socket(interface: &str) -> PathBuf {
    Path::new("/run").join(format!("anabranch-tunnel-{interface}.sock"))
}

/// The command line of the own program for the guard.
fn guard_command(interface: &str) -> Vec<std::ffi::OsString> {
    ["tunnel", "guard", "--interface", interface].map(Into::into).into()
}

fn interface(text: &str) -> Result<String, String> {
    let is_plain = text.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_'));
    if text.is_empty() || text.len() > LONGEST_NAME || !is_plain {
        return Err(format!("a device's name has 1 to {LONGEST_NAME} letters, digits, `-` and `_`"));
    }
    Ok(text.to_owned())
}

/// Adds advice to a failure of the tunnel.
fn failure(error: &anabranch_tunnel_io::TunnelError) -> Failure {
    use anabranch_tunnel_io::TunnelError;
    let failure = Failure::local(error.to_string());
    match error {
        TunnelError::Device { .. } => failure.hint(
            "run it as root (`sudo`); in a container, give it the device /dev/net/tun and the capability NET_ADMIN; \
             a device of this name may belong to another program (`ip link`)",
        ),
        TunnelError::Command { .. } => failure.hint("the packages iproute2 and nftables have these commands"),
        TunnelError::Running(_) => failure.hint("end it, or give this one another name with `--interface NAME`"),
        TunnelError::Refused(_) => failure.hint("ask the server's operator"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_plain() {
        assert!(interface("anabranch0").is_ok());
        for wrong in ["", "a b", "x/../y", "a-name-that-is-too-long", "x;reboot"] {
            assert!(interface(wrong).is_err(), "{wrong}");
        }
    }
}
