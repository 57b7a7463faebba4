//! `anabranch relay list`: lists the relays that controllers grant to this machine, in the form of `--relay`.

use std::fmt::Write;
use std::net::SocketAddr;

use anabranch_node::{Controllers, NodeAt};
use clap::Args;
use serde::Serialize;

use crate::commands::keys::KeyOption;
use crate::context::OUTPUT;
use crate::errors::Failure;
use crate::relays::ControllerOptions;
use crate::ui::out::{self, Stream};

/// Options of `relay list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    pub granted: ControllerOptions,
    #[command(flatten)]
    pub key: KeyOption,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// A relay that this machine may use.
#[derive(Serialize)]
struct Listed {
    node: String,
    addresses: Vec<SocketAddr>,
    /// True before it stops: it accepts no new paths.
    draining: bool,
}

/// Prints the relays.
pub async fn run(args: &ListArgs) -> Result<(), Failure> {
    if args.granted.controllers.is_empty() {
        return Err(Failure::usage("no controller is named")
            .hint("name one: `--controller KEY@ADDRESS:PORT`, as it prints at its start"));
    }
    let node = args.granted.node().key(args.key.file.clone()).start().await?;
    let relays = node.grants().relays();
    let controllers = Controllers::new(node.endpoint().clone(), args.granted.controllers.clone());
    let mut listed = Vec::new();
    for relay in relays {
        // A stored grant lists relays even while no controller answers.
        let draining = controllers.is_draining(relay.node).await.unwrap_or(false);
        listed.push((relay, draining));
    }
    node.close().await;
    if args.json {
        let listed = listed.into_iter().map(|(relay, draining)| Listed {
            node: relay.node.to_string(),
            addresses: relay.addresses,
            draining,
        });
        return Stream::Stdout.json(&listed.collect::<Vec<_>>());
    }
    let mut text = String::new();
    for (relay, draining) in listed {
        let note = if draining { "  (draining: it accepts no new paths)" } else { "" };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}{note}", NodeAt::from(relay));
    }
    out::print(&text)
}
