//! Options and settings that both ends of a tunnel share.

use std::net::SocketAddr;
use std::path::PathBuf;

use anabranch_net::{NodeKey, PathRules};
use anabranch_node::{NodeBuilder, keep_caps, parse_rule};
use anabranch_service::http::{self, Door, HttpSettings};
use anabranch_tunnel_io::client::session_config;
use anabranch_tunnel_io::status::Status;
use clap::Args;
use tokio::task::JoinSet;

use super::config::Shared;
use super::device::DeviceArgs;
use crate::congestion::CongestionOption;
use crate::context::OUTPUT;
use crate::errors::Failure;
use crate::relays::NodeOptions;

/// Options of both ends.
#[derive(Args, Clone, Debug)]
pub struct EndOptions {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// A file with settings; options of the command line come first
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Carry TCP connections as packets, not as streams
    #[arg(long)]
    pub no_streams: bool,
    #[command(flatten)]
    pub congestion: CongestionOption,
    #[command(flatten)]
    pub node: NodeOptions,
    /// Serve metrics for Prometheus at this address and port
    #[arg(long, value_name = "ADDRESS", help_heading = OUTPUT)]
    pub metrics: Option<SocketAddr>,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

impl EndOptions {
    /// These options, and where one is missing, the setting of the file. Returns all rules for paths as well.
    pub fn with(&self, file: Shared) -> Result<(Self, PathRules), Failure> {
        let mut all = self.clone();
        all.device.interface = all.device.interface.or(file.interface);
        all.node.key = all.node.key.or(file.key);
        all.metrics = all.metrics.or(file.metrics);
        all.congestion.cc = all.congestion.cc.or(file.cc);
        all.no_streams |= !file.streams;
        all.node.mapping.map_port |= file.map_port;
        if all.node.relays.is_empty() {
            all.node.relays = file.relays;
        }
        if all.node.granted.controllers.is_empty() {
            all.node.granted.controllers = file.controllers;
        }
        let rules = self.node.paths_wanted.read()?;
        let suppression = rules.suppression.or(file.rules.suppression);
        // The tunnel's own paths stay out of the tunnel.
        let own = parse_rule(&format!("{}=never", all.device.name())).into_iter();
        let rules = own.chain(rules.iter().cloned()).chain(file.rules.iter().cloned()).collect();
        Ok((all, keep_caps(PathRules::new(rules).suppressing(suppression))?))
    }

    /// The description of a node with these options.
    pub fn node(&self, key: NodeKey, rules: PathRules) -> NodeBuilder {
        let node = self.node.node().key(key).session(self.congestion.of(session_config())).path_rules(rules);
        node.device(self.device.name())
    }

    /// Serves metrics, if they are wanted, until the result is dropped.
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

#[cfg(test)]
mod tests {
    use anabranch_engine::cc::RuleKind;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        end: EndOptions,
    }

    #[test]
    fn the_congestion_control_of_the_command_line_comes_before_that_of_the_file() {
        let rule = |line: &[&str], cc| {
            let given = Command::parse_from([&["up"], line].concat()).end;
            given.with(Shared { cc, ..Shared::default() }).unwrap().0.congestion.cc
        };
        assert_eq!(rule(&[], None), None);
        assert_eq!(rule(&[], Some(RuleKind::Bbr)), Some(RuleKind::Bbr));
        assert_eq!(rule(&["--cc", "auto"], Some(RuleKind::Bbr)), Some(RuleKind::Auto));
    }
}
