//! Why a tunnel cannot be opened, or ended.

use std::io;

/// See the module's documentation.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The device cannot be made.
    #[error("cannot create the network device {name}: {error}")]
    Device {
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// A command that changes the system failed.
    #[error("`{command}` failed: {output}")]
    Command {
        /// The command line.
        command: String,
        output: String,
    },
    /// A file of the system cannot be changed.
    #[error("cannot change {file}: {error}")]
    File {
        /// Its path.
        file: String,
        /// The system's error.
        error: io::Error,
    },
    /// Another process runs a tunnel with this device.
    #[error("a tunnel named {0} runs already")]
    Running(String),
    /// There are as many tunnels as this machine can have.
    #[error("this machine has as many tunnels as it can have")]
    TooMany,
    /// There is no session with the server.
    #[error("cannot open a session with the server: {0}")]
    Unreachable(String),
    /// The server does not open the tunnel.
    #[error("the server refused the tunnel: {0}")]
    Refused(String),
    /// The peer does not speak this protocol, or grants what cannot be used here.
    #[error("no tunnel with the other end: {0}")]
    Protocol(String),
    /// The session ended.
    #[error("the session ended: {0}")]
    Session(#[from] anabranch_net::SessionError),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl TunnelError {
    /// True if the peer does not speak this protocol.
    pub(crate) fn is_misunderstood(&self) -> bool {
        match self {
            Self::Protocol(_) => true,
            Self::Io(error) => error.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }
}
