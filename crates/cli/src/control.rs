//! The option by which a command lets others see and change the paths of its sessions while it runs.

use std::path::PathBuf;

use anabranch_node::RunningSessions;
use clap::{Args, ValueHint};

use crate::commands::service::Socket;
use crate::errors::Failure;

/// The option.
#[derive(Args, Clone, Debug, Default)]
pub struct ControlOption {
    /// A Unix socket by which `anabranch path` shows and changes the paths of this command while it runs
    #[arg(long, value_name = "FILE", help_heading = "Network", value_hint = ValueHint::FilePath)]
    pub control: Option<PathBuf>,
}

impl ControlOption {
    /// Answers for these sessions as long as the socket is kept, if there is to be one.
    ///
    /// # Errors
    /// When another program listens there, or the file cannot be made.
    pub fn open(&self, sessions: &RunningSessions) -> Result<Socket, Failure> {
        Socket::open(self.control.as_deref(), sessions.clone())
    }
}
