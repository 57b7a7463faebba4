//! Options of commands that run a node: its key, its relays, controllers, and rules for paths.

use std::path::PathBuf;

use anabranch_net::NodeKey;
use anabranch_node::{ControllerHint, MOST_RELAYS_IN_TICKET, NodeBuilder, RelayRoute, USUAL_RELAYS, keyfile};
use clap::Args;

use crate::errors::Failure;
use crate::path_rules::PathOptions;
use crate::values;

/// The help of `--key` where a node makes a new key unless others must know it.
pub const KEY_IF_KNOWN: &str =
    "Key file [default: the usual one with `--relay`, `--controller` or `--control`, else a new key]";
/// The same where `--name` keeps a ticket, which holds the key.
pub const KEY_IF_KEPT: &str = "Key file [default: the usual one with `--name`, `--relay`, `--controller` or `--control`, else a new key]";
/// The help of `--relay` where others reach this machine.
pub const RELAY_TO_HERE: &str =
    "A relay through which others reach this machine, whose key it lists; may be repeated";

/// The option for opening a router's port.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct MapPortOption {
    /// Ask this machine's router to let packets in to this command's UDP port, as long as it runs
    ///
    /// By PCP or NAT-PMP. The outer address is in the ticket, if there is one, and announced to the other end.
    #[arg(long, help_heading = "Network")]
    pub map_port: bool,
}

/// Options of a node.
#[derive(Args, Clone, Debug, Default)]
pub struct NodeOptions {
    /// Key file [default: ~/.config/anabranch/key, created if missing]
    #[arg(long, value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true, value_hint = clap::ValueHint::FilePath)]
    #[arg(help_heading = "Network")]
    pub key: Option<PathBuf>,
    /// A path through a relay that lists this machine's key; `+` joins relays to a chain; may be repeated
    #[arg(long = "relay", value_name = "KEY@ADDRESS", help_heading = "Network")]
    pub relays: Vec<RelayRoute>,
    #[command(flatten)]
    pub granted: ControllerOptions,
    #[command(flatten)]
    pub paths_wanted: PathOptions,
    #[command(flatten)]
    pub mapping: MapPortOption,
}

impl NodeOptions {
    /// Starts the description of a node. Its key is the named file, or depends on what needs it.
    pub fn node(&self) -> NodeBuilder {
        let node = self.granted.node().key(self.key.clone()).relays(self.relays.clone());
        node.map_port(self.mapping.map_port)
    }

    /// The key of a node that others know: of the named file or the default one, which is made if it is missing.
    pub fn load_key(&self) -> Result<NodeKey, Failure> {
        Ok(keyfile::load_or_create(&self.key.clone().map_or_else(keyfile::default_path, Ok)?)?)
    }
}

/// Options that name controllers.
#[derive(Args, Clone, Debug, Default)]
pub struct ControllerOptions {
    /// A controller that grants relays to this machine, whose key it lists; any of several will do
    #[arg(long = "controller", value_name = "KEY@ADDRESS", help_heading = "Network")]
    #[arg(env = "ANABRANCH_CONTROLLER", value_delimiter = ' ', hide_env_values = true)]
    pub controllers: Vec<ControllerHint>,
    /// Most relays to ask controllers for
    #[arg(long, value_name = "COUNT", default_value_t = USUAL_RELAYS, help_heading = "Network")]
    #[arg(value_parser = values::whole(1..=MOST_RELAYS_IN_TICKET as u8))]
    pub most_relays: u8,
}

impl ControllerOptions {
    /// Starts the description of a node that gets relays from these controllers.
    pub fn node(&self) -> NodeBuilder {
        anabranch_node::Node::builder().controllers(self.controllers.clone()).most_relays(self.most_relays)
    }
}
