//! `anabranch tunnel`: a network device whose packets use all paths to the other end.

mod config;
mod device;
mod lane;
mod options;
mod running;
mod serve;
mod text;
mod up;

use std::path::Path;
use std::time::{Duration, Instant};

use anabranch_service::control;
use anabranch_tunnel_io::status::{PeerStatus, Status};
use anabranch_tunnel_io::{guard, system};
use clap::{Args, Subcommand};

use crate::commands::service::{BETWEEN, Earlier};
use crate::context::{Context, OUTPUT};
use crate::errors::Failure;
use crate::ui::out::{self, Stream};
use device::{failure, socket};
use running::Done;

pub use device::DeviceArgs;
pub use serve::ServeArgs;
pub use up::UpArgs;

/// How long a tunnel may take to end.
const ENDING: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  sudo anabranch tunnel serve                on the server; prints the line for clients
  sudo anabranch tunnel up TICKET            on the client: every program uses all paths
  sudo anabranch tunnel up TICKET --to 10.20.0.0/16
                                             only packets to this network
  sudo anabranch tunnel status               paths and flows of the running tunnel
  sudo anabranch tunnel set lane=striped     another lane while it runs
  sudo anabranch tunnel down                 ends it
  sudo anabranch tunnel cleanup              after a crash: takes away rules that were left";

/// Send the packets of every program on this machine over all paths to another one
///
/// Both ends need root, for the network device. Nothing is left behind when the tunnel ends, however it ends.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct TunnelArgs {
    #[command(subcommand)]
    pub action: TunnelCommand,
}

/// Subcommands for tunnels.
#[derive(Debug, Subcommand)]
pub enum TunnelCommand {
    Serve(ServeArgs),
    Up(UpArgs),
    /// Show the paths and flows of a running tunnel
    Status(StatusArgs),
    /// Show the flows of a running tunnel, each with its lane and why
    Flows(StatusArgs),
    /// Change settings of a running tunnel
    Set(SetArgs),
    /// Have a running tunnel read its settings file again
    Reload(DeviceArgs),
    /// End a running tunnel
    Down(DeviceArgs),
    /// Remove what a killed tunnel has left, and its kill switch
    Cleanup(DeviceArgs),
    /// Waits for the end of standard input, then cleans up
    #[command(hide = true)]
    Guard(DeviceArgs),
}

/// Settings of a running tunnel.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// lane=LANE for packets without a class, class.NAME=LANE, or path.PATTERN=USE as for `--path-rule`
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Which tunnel, and how it is shown.
#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// Runs a tunnel, shows it, or cleans up after it.
pub fn run(args: &TunnelArgs, context: &Context) -> Result<(), Failure> {
    match &args.action {
        TunnelCommand::Serve(args) => serve::run(args, context),
        TunnelCommand::Up(args) => up::run(args, context),
        TunnelCommand::Status(args) if args.json => Stream::Stdout.json(&status(&args.device)?),
        TunnelCommand::Status(args) => {
            let (was, began) = (status(&args.device)?, Instant::now());
            std::thread::sleep(BETWEEN);
            let ago = began.elapsed().as_secs_f64();
            out::page(&text::status(&status(&args.device)?, &Earlier { was: &was, ago }))
        }
        TunnelCommand::Flows(args) => {
            let peers = status(&args.device)?.peers;
            if args.json { Stream::Stdout.json(&flows(peers)) } else { out::page(&text::flows(&peers)) }
        }
        TunnelCommand::Set(args) => change(&args.device, &format!("set {}", args.settings.join(" "))),
        TunnelCommand::Reload(device) => change(device, "reload"),
        TunnelCommand::Down(device) => down(device),
        TunnelCommand::Cleanup(args) => cleanup(args.name()),
        TunnelCommand::Guard(args) => guard::watch(args.name())
            .map_err(|error| Failure::local(format!("cannot read standard input: {error}"))),
    }
}

fn status(device: &DeviceArgs) -> Result<Status, Failure> {
    ask(device, "status")
}

/// The flows of all peers, each with its peer.
fn flows(peers: Vec<PeerStatus>) -> Vec<serde_json::Value> {
    let of_peer = |peer: PeerStatus| {
        let node = peer.node;
        peer.flows.into_iter().map(move |flow| {
            let mut listed = serde_json::json!(flow);
            listed["peer"] = serde_json::json!(node);
            listed
        })
    };
    peers.into_iter().flat_map(of_peer).collect()
}

fn ask<T: serde::de::DeserializeOwned>(device: &DeviceArgs, request: &str) -> Result<T, Failure> {
    let socket = socket(device.name());
    let asked = anabranch_node::Threads::start()?.block_on(control::ask::<T>(&socket, request));
    asked.map_err(|error| {
        if error.kind() == std::io::ErrorKind::InvalidInput {
            return Failure::local(error.to_string());
        }
        Failure::local(format!("no tunnel answers at {}: {error}", socket.display())).hint(
            "is `anabranch tunnel up` or `tunnel serve` running, under this name of its device, and are you root?",
        )
    })
}

fn change(device: &DeviceArgs, request: &str) -> Result<(), Failure> {
    let done: Done = ask(device, request)?;
    done.done.iter().for_each(|line| out::error(&format!("{line}\n")));
    Ok(())
}

/// Removes what a killed tunnel has left. One that runs would go on without its rules, and its packets outside it.
fn cleanup(name: &str) -> Result<(), Failure> {
    if system::is_running_here(name) {
        return Err(Failure::local(format!("the tunnel {name} is running"))
            .hint("`anabranch tunnel down` ends it, and leaves nothing behind but its kill switch"));
    }
    let cleaned = system::clean_up(name).and_then(|()| system::kill_switch::open(name));
    cleaned.map_err(|error| failure(&error))?;
    if let Some(stays) = up::closed() {
        out::error(&format!("{stays}\n"));
    }
    Ok(())
}

/// Ends a tunnel and waits until it has ended.
fn down(device: &DeviceArgs) -> Result<(), Failure> {
    let _: Done = ask(device, "down")?;
    let begin = Instant::now();
    // The device and the socket vanish with the process.
    let left = [Path::new("/sys/class/net").join(device.name()), socket(device.name())];
    while system::is_running(device.name()) || left.iter().any(|file| file.exists()) {
        if begin.elapsed() > ENDING {
            return Err(Failure::local("the tunnel does not end")
                .hint("kill its process; its guard cleans up, and so does `anabranch tunnel cleanup`"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
