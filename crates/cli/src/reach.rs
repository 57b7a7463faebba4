//! How clients reach the other end: the options of commands that open one session and transfer files over it.

use std::net::SocketAddr;
use std::path::PathBuf;

use anabranch_node::{Dial, Node, NodeBuilder, NodeSession};
use anabranch_wire::Span;
use clap::Args;

use crate::capture::{Capture, CaptureOptions};
use crate::commands::bench::Tuning;
use crate::commands::send::outside;
use crate::commands::service;
use crate::control::ControlOption;
use crate::errors::Failure;
use crate::path_rules::PathOptions;
use crate::relays::MapPortOption;
use crate::values::{self, HostPort};
use crate::{courier, interrupt};

/// Shortest silence that may end a session; shorter ones are common.
const SHORTEST_SILENCE: Span = Span::from_millis(500);

/// The options.
#[derive(Args, Debug)]
pub struct Reach {
    /// A further address of the other end, such as [fe80::1%eth0] over a cable; may be repeated [default port: that of the
    /// ticket]
    #[arg(long = "address", value_name = "HOST:PORT", help_heading = "Network")]
    pub addresses: Vec<HostPort>,
    /// Give up when the other end is silent on every path for this long; at first, 10 s at most
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = silence, help_heading = "Network")]
    pub timeout: Span,
    /// When all paths are lost, look for the other end for this long; 0 to give up
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = values::span_or_zero, help_heading = "Network")]
    pub retry: Span,
    /// Scheduler and congestion control.
    #[command(flatten)]
    pub tuning: Tuning,
    /// Rules for paths.
    #[command(flatten)]
    pub paths_wanted: PathOptions,
    /// A port of the router.
    #[command(flatten)]
    pub mapping: MapPortOption,
    /// The socket for changes of paths.
    #[command(flatten)]
    pub running: ControlOption,
    /// Captures.
    #[command(flatten)]
    pub capture: CaptureOptions,
}

fn silence(text: &str) -> Result<Span, String> {
    let span = values::span(text)?;
    if span < SHORTEST_SILENCE { Err("must be at least 500ms".into()) } else { Ok(span) }
}

impl Reach {
    /// Adds these options to the description of a node.
    pub fn node(&self, node: NodeBuilder, capture: &Capture) -> Result<NodeBuilder, Failure> {
        let node = node.session(self.tuning.config()).silence(self.timeout);
        let node = node.path_rules(self.paths_wanted.rules()?).map_port(self.mapping.map_port);
        Ok(node.control(self.running.control.clone()).tap(capture.tap()))
    }

    /// Opens the first session. Returns how to open further ones as well.
    pub async fn dial(&self, node: &Node, dial: Dial) -> Result<(NodeSession, Dial), Failure> {
        let (more, unknown) = further(&self.addresses, dial.port()).await;
        unknown.iter().for_each(|what| tracing::warn!("{what}"));
        let dial = dial.addresses(more);
        tokio::select! {
            biased;
            () = interrupt::requested() => Err(courier::stopped()),
            session = node.dial(&dial) => Ok((session?, dial)),
        }
    }

    /// The directories that these options make a command write to.
    pub fn writes(&self) -> Result<Vec<PathBuf>, Failure> {
        let control = self.running.control.as_deref().map(service::directory_of);
        Ok(control.into_iter().chain(self.paths_wanted.caps_directory()?).collect())
    }
}

/// The further addresses that are found, and a warning for each that is not: the others may work.
async fn further(named: &[HostPort], port: u16) -> (Vec<SocketAddr>, Vec<String>) {
    let (mut all, mut unknown) = (Vec::new(), Vec::new());
    for place in named {
        match outside(std::slice::from_ref(place), port).await {
            Ok(found) => all.extend(found),
            Err(failure) => unknown.push(failure.message),
        }
    }
    (all, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_address_beside_good_ones_is_a_warning() {
        let named = ["192.0.2.1", "no..name:9", "192.0.2.2:5"].map(|at| at.parse().unwrap());
        let (found, unknown) = further(&named, 4433).await;
        assert_eq!(found, ["192.0.2.1:4433", "192.0.2.2:5"].map(|at| at.parse().unwrap()));
        let [told] = &unknown[..] else { panic!("{unknown:?}") };
        assert!(told.starts_with("cannot find the address of no..name:9: "), "{told}");
    }
}
