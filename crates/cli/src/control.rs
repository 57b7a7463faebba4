//! The option with which a command lets others list and change the paths of its sessions.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// The option.
#[derive(Args, Clone, Debug, Default)]
pub struct ControlOption {
    /// A Unix socket by which `anabranch path` shows and changes the paths of this command while it runs
    #[arg(long, value_name = "FILE", help_heading = "Network", value_hint = ValueHint::FilePath)]
    pub control: Option<PathBuf>,
}
