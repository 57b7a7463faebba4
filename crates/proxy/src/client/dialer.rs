//! Connections through an exit for this program itself, without a port.

use std::fmt;
use std::io;
use std::sync::Arc;

use anabranch_net::Stream;
use anabranch_node::Held;

use super::remote::Remote;
use super::upstream::{Notice, Upstream};
use crate::error::ProxyError;
use crate::message::{Head, Outcome};
use crate::meter::Connections;
use crate::target::Target;

/// Opens connections through an exit.
pub struct ExitDialer {
    name: String,
    upstream: Upstream,
}

impl ExitDialer {
    /// A dialer for the exit that is called `name`.
    pub fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, upstream: Upstream::new() })
    }

    /// The exit's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Follows the session with the exit until it is not dialed any more; returns why. Connections need this to run.
    pub async fn follow(&self, mut held: Held, notice: impl Fn(Notice)) -> ProxyError {
        let none = Remote { forwards: Vec::new(), connections: Connections::default(), is_marked: false };
        self.upstream.follow(&mut held, &none, &notice).await
    }

    /// Opens a connection; the exit resolves the name.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<Stream> {
        let target = Target::from_host(host, port);
        let target = target.ok_or_else(|| io::Error::other(format!("{host} is no name")))?;
        match self.upstream.open(&Head::Connect(target)).await {
            Ok((_, stream)) => Ok(stream),
            // These do not change soon.
            Err(outcome @ Some(Outcome::Denied | Outcome::UsedUp | Outcome::UnknownName)) => {
                Err(io::Error::new(io::ErrorKind::PermissionDenied, reason(outcome)))
            }
            Err(outcome) => Err(io::Error::other(reason(outcome))),
        }
    }
}

fn reason(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        None | Some(Outcome::Open) => "the exit does not answer",
        Some(Outcome::Refused) => "the server refuses connections from the exit",
        Some(Outcome::Unreachable) => "the exit has no route to the server",
        Some(Outcome::Denied) => "the exit does not allow this server",
        Some(Outcome::Busy) => "the exit has too many connections",
        Some(Outcome::UnknownName) => "the exit finds no address for the server's name",
        Some(Outcome::Silent) => "the server does not answer the exit",
        Some(Outcome::UsedUp) => "the exit's bytes for this ticket or key are used up",
    }
}

impl fmt::Debug for ExitDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitDialer").field("name", &self.name).finish_non_exhaustive()
    }
}
