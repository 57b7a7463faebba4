//! Ports of the exit that lead to destinations on this side (remote forwards).

use std::io;
use std::time::Duration;

use anabranch_net::Stream;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;

use crate::control::Control;
use crate::copy;
use crate::head::read_head;
use crate::message::{Answer, Head, Outcome, Request};
use crate::meter::{ConnectionName, Connections};
use crate::redirect::OWN_MARK;
use crate::target::Target;

use super::forward::Forward;
use super::upstream::{Link, Notice, printable};

/// How long a destination on this side may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Remote forwards, and where their connections are counted.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) forwards: Vec<Forward>,
    pub(super) connections: Connections,
    /// Sockets to destinations are marked, so that the firewall does not redirect them.
    pub(super) is_marked: bool,
}

impl Remote {
    /// Asks the exit to listen, and serves what it accepts until the session or the control stream ends.
    pub(super) async fn serve(&self, link: &Link, mut control: Control, notice: &impl Fn(Notice)) {
        let answers = async {
            for (listener, forward) in (0..).zip(&self.forwards) {
                control.send(&Request::Listen { listener, address: forward.at }).await?;
            }
            while let Some(answer) = control.receive::<Answer>().await? {
                self.tell(answer, notice);
            }
            Ok::<_, io::Error>(())
        };
        let streams = async {
            while let Ok(stream) = link.node.session().accept_stream().await {
                tokio::spawn(accepted(stream, self.clone()));
            }
        };
        tokio::select! {
            ended = answers => tracing::debug!(?ended, "the control stream ended"),
            () = streams => {}
        }
    }

    fn tell(&self, answer: Answer, notice: &impl Fn(Notice)) {
        let name = |listener: u16| {
            self.forwards
                .get(usize::from(listener))
                .map(|forward| format!("{} for {}", forward.at, forward.to))
        };
        match answer {
            Answer::Listening { listener, .. } => {
                if let Some(name) = name(listener) {
                    notice(Notice::Listener { name, refused: None });
                }
            }
            Answer::NotListening { listener, reason } => {
                if let Some(name) = name(listener) {
                    notice(Notice::Listener { name, refused: Some(printable(&reason)) });
                }
            }
            Answer::Welcome { .. } | Answer::Refused { .. } => {}
        }
    }

    async fn connect(&self, to: &Target) -> io::Result<TcpStream> {
        let addresses = match to {
            Target::Address(address) => vec![*address],
            Target::Name(name, port) => lookup_host((name.as_str(), *port)).await?.collect(),
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            if self.is_marked {
                SockRef::from(&socket).set_mark(OWN_MARK)?;
            }
            match socket.connect(address).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Connects what the exit accepted. It chooses among the forwards that were asked for, and no other destination.
async fn accepted(mut stream: Stream, remote: Remote) {
    let Ok(Head::Accepted { listener, from }) = read_head(&mut stream).await else { return };
    let Some(forward) = remote.forwards.get(usize::from(listener)) else { return };
    let opened = timeout(PATIENCE, remote.connect(&forward.to)).await;
    let (outcome, connection) = match opened {
        Ok(Ok(connection)) => (Outcome::Open, Some(connection)),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => (Outcome::Refused, None),
        Ok(Err(_)) => (Outcome::Unreachable, None),
        Err(_) => (Outcome::Silent, None),
    };
    if stream.write_all(&[outcome.to_byte()]).await.is_ok()
        && let Some(connection) = connection
    {
        let name = ConnectionName { from: from.to_string(), to: forward.to.to_string() };
        copy::carry(connection, stream, &remote.connections.enter(name, None).meter).await;
    }
}
