//! The option with which a command lets others list and change the paths of its sessions.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// The option.
#[derive(Args, Clone, Debug, Default)]
pub struct ControlOption {
    /// Unix socket over which `anabranch path` reaches the running command
    #[arg(long, value_name = "FILE", help_heading = "Network", value_hint = ValueHint::FilePath)]
    pub control: Option<PathBuf>,
}
