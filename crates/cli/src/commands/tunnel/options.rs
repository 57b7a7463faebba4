//! Options and settings that both ends of a tunnel share.

use std::net::SocketAddr;
use std::path::PathBuf;

use anabranch_engine::cc::RuleKind;
use anabranch_net::{NodeKey, PathRules};
use anabranch_node::{NodeBuilder, RelayRoute, keep_caps, keyfile, parse_rule};
use anabranch_service::http::{self, Door, HttpSettings};
use anabranch_tunnel_io::client::session_config;
use anabranch_tunnel_io::status::Status;
use clap::Args;
use tokio::task::JoinSet;

use super::config::Shared;
use super::device::DeviceArgs;
use crate::context::OUTPUT;
use crate::errors::Failure;
use crate::path_rules::PathOptions;
use crate::relays::ControllerOptions;
use crate::values;

/// Options of both ends.
#[derive(Args, Clone, Debug)]
pub struct EndOptions {
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// A file with settings; options of the command line come first
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Carry TCP connections as packets, not as streams
    #[arg(long)]
    pub no_streams: bool,
    /// Congestion control of this end; `bbr` carries more over links that lose packets
    #[arg(long, value_name = "NAME", default_value_t = session_config().cc.rule, help_heading = "Network")]
    #[arg(value_parser = values::one_of::<RuleKind>(RuleKind::ALL.map(RuleKind::name)))]
    pub cc: RuleKind,
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
    /// Serve metrics for Prometheus at this address and port
    #[arg(long, value_name = "ADDRESS", help_heading = OUTPUT)]
    pub metrics: Option<SocketAddr>,
    /// One JSON event a line instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

impl EndOptions {
    /// These options, and where one is missing, the setting of the file. Returns all rules for paths as well.
    ///
    /// # Errors
    /// When the file of rules cannot be read or has a mistake.
    pub fn with(&self, file: Shared) -> Result<(Self, PathRules), Failure> {
        let mut all = self.clone();
        all.device.interface = all.device.interface.or(file.interface);
        all.key = all.key.or(file.key);
        all.metrics = all.metrics.or(file.metrics);
        all.no_streams |= !file.streams;
        if all.relays.is_empty() {
            all.relays = file.relays;
        }
        if all.granted.controllers.is_empty() {
            all.granted.controllers = file.controllers;
        }
        let rules = self.paths_wanted.read()?;
        let suppression = rules.suppression.or(file.rules.suppression);
        // The tunnel's own paths stay out of the tunnel.
        let own = parse_rule(&format!("{}=never", all.device.name())).into_iter();
        let rules = own.chain(rules.iter().cloned()).chain(file.rules.iter().cloned()).collect();
        Ok((all, keep_caps(PathRules::new(rules).suppressing(suppression))?))
    }

    /// This machine's key.
    ///
    /// # Errors
    /// When the file cannot be read or made.
    pub fn load_key(&self) -> Result<NodeKey, Failure> {
        let file = self.key.clone().map_or_else(keyfile::default_path, Ok)?;
        Ok(keyfile::load_or_create(&file)?)
    }

    /// The description of a node with these options.
    #[must_use]
    pub fn node(&self, key: NodeKey, rules: PathRules) -> NodeBuilder {
        let node = self.granted.node().key(key).relays(self.relays.clone());
        let mut session = session_config();
        session.cc.rule = self.cc;
        node.session(session).path_rules(rules)
    }

    /// Serves metrics, if they are wanted, until the result is dropped.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn serve_metrics(
        &self,
        status: impl Fn() -> Status + Clone + Send + Sync + 'static,
    ) -> Result<JoinSet<()>, Failure> {
        let mut tasks = JoinSet::new();
        if let Some(address) = self.metrics {
            let door = Door::open(&HttpSettings { address, token: None, tls: None }).await;
            let door = door.map_err(|error| Failure::local(error.to_string()))?;
            tasks.spawn(door.serve(http::metrics(move || status().to_prometheus())));
        }
        Ok(tasks)
    }
}
