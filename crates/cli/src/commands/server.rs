//! The part that `ls`, `get`, `put` and `sync` share: which server, and the session with it.

use std::path::{Path, PathBuf};

use anabranch_node::{Dial, Node, NodeSession, RelayRoute, keyfile};
use clap::Args;

use crate::capture::Capture;
use crate::errors::Failure;
use crate::node_word::{NodeWord, begins_ticket, looks_like_node};
use crate::reach::Reach;
use crate::relays::ControllerOptions;
use crate::values;

/// The server, and paths.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// The server's ticket, or KEY@ADDRESS:PORT; `-` for standard input, `@FILE` for a file [env: ANABRANCH_TICKET]
    #[arg(value_name = "SERVER", required_unless_present = "server_variable")]
    pub first: Option<PathBuf>,
    /// The ticket, from the environment.
    #[arg(long = "ticket-variable", id = "server_variable", hide = true, env = values::TICKET_VARIABLE)]
    #[arg(hide_env_values = true, help = "The ticket, from the environment")]
    pub variable: Option<String>,
    /// Key file [default: ~/.config/anabranch/key, created if missing]
    #[arg(long, value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true, value_hint = clap::ValueHint::FilePath)]
    #[arg(help_heading = "Network")]
    pub key: Option<PathBuf>,
    /// A path through a relay that lists this machine's key; `+` joins relays to a chain; may be repeated
    #[arg(long = "relay", value_name = "KEY@ADDRESS", help_heading = "Network")]
    pub relays: Vec<RelayRoute>,
    /// Controllers that grant the use of more relays.
    #[command(flatten)]
    pub granted: ControllerOptions,
    /// The network.
    #[command(flatten)]
    pub reach: Reach,
}

impl ServerArgs {
    /// The server, and the first word if that is a path because the environment names the server.
    pub fn server(&self) -> Result<(NodeWord, Option<&Path>), Failure> {
        let (word, path) = self.words();
        let server = word.parse().map_err(|error: String| {
            Failure::usage(error).hint("copy the ticket that `anabranch serve` printed on the other machine")
        })?;
        Ok((server, path))
    }

    /// The word for the server, and the first word if that is a path.
    pub fn words(&self) -> (&str, Option<&Path>) {
        let first = self.first.as_deref();
        let is_node = first.and_then(Path::to_str).is_some_and(looks_like_node);
        match (&self.variable, first) {
            (Some(variable), first) if !is_node => (variable, first),
            (_, first) => (first.and_then(Path::to_str).unwrap_or_default(), None),
        }
    }

    /// The ticket in the first word, which the program then hides from the list of processes.
    pub fn ticket_word(&self) -> Option<&str> {
        self.first.as_deref().and_then(Path::to_str).filter(|word| begins_ticket(word))
    }

    /// A node with this machine's key, by which servers tell their clients apart, and the session with the server.
    pub async fn connect(&self, capture: &Capture, server: &NodeWord) -> Result<Connected, Failure> {
        let key = keyfile::named_or_usual(self.key.as_deref())?;
        let node = self.reach.node(self.granted.node(), capture)?;
        let node = node.key(key).relays(self.relays.clone()).start().await?;
        let (session, dial) = self.reach.dial(&node, server.dial().await?).await?;
        Ok(Connected { node, session, dial })
    }

    /// The directories that the command writes to for these options.
    pub fn writes(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut all = self.reach.writes()?;
        // Grants are kept next to the key.
        match &self.key {
            Some(key) => all.extend(key.parent().map(Path::to_owned)),
            None => all.extend(key_directory()?),
        }
        Ok(all)
    }
}

/// The directory of this machine's key. The key is made if necessary, before the process is confined to directories.
pub fn key_directory() -> Result<Option<PathBuf>, Failure> {
    let key = keyfile::default_path()?;
    keyfile::load_or_create(&key)?;
    Ok(key.parent().map(Path::to_owned))
}

/// A session with a server.
pub struct Connected {
    /// This node.
    pub node: Node,
    /// The first session.
    pub session: NodeSession,
    /// How to open further ones.
    pub dial: Dial,
}

/// A path on the server as text.
pub fn remote(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::usage(format!("`{}` is not UTF-8", path.display())))
}
