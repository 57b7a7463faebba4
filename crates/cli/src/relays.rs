//! Options of commands that use relays.

use anabranch_node::{ControllerHint, MOST_RELAYS_IN_TICKET, NodeBuilder, USUAL_RELAYS};
use clap::Args;

use crate::values;

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
    #[must_use]
    pub fn node(&self) -> NodeBuilder {
        anabranch_node::Node::builder().controllers(self.controllers.clone()).most_relays(self.most_relays)
    }
}
