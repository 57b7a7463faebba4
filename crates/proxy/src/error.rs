//! Why a proxy cannot start, or ended.

use std::io;
use std::net::SocketAddr;

use crate::redirect::RedirectError;

/// See the module's documentation.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// A port cannot be used.
    #[error("cannot listen on {at}: {error}")]
    Listen {
        at: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The exit cannot be reached, or does not let this node in.
    #[error(transparent)]
    Node(anabranch_node::Error),
    /// The exit does not serve this node.
    #[error("the exit refused: {0}")]
    Refused(String),
    /// The other end is something else.
    #[error("the other end is not an exit: {0}")]
    NotAnExit(String),
    /// The connections of this machine are not led through the proxy.
    #[error(transparent)]
    Redirect(#[from] RedirectError),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}
