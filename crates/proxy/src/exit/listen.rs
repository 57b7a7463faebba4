//! Ports of the exit that lead to a proxy's side (remote forwards).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::Stream;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep, timeout};

use super::{Client, Notice, Record};
use crate::copy;
use crate::head::read_outcome;
use crate::message::{Answer, Head, Outcome};
use crate::meter::ConnectionName;
use crate::policy::AddressRange;

/// Listeners of one session.
pub(super) const MOST_LISTENERS: usize = 32;
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause before another attempt to have a port that is taken.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the proxy may take to connect.
const PATIENCE: Duration = Duration::from_secs(20);

/// Listens at an address that the operator allows for this.
pub(super) async fn bind(allowed: &[AddressRange], at: SocketAddr) -> io::Result<TcpListener> {
    let is_allowed =
        |range: &AddressRange| range.network.contains(&at.ip()) && range.ports.contains(&at.port());
    if !allowed.iter().any(is_allowed) {
        let reason = format!("its operator does not allow {at}; `anabranch exit --listen {at}` would");
        return Err(io::Error::other(reason));
    }
    TcpListener::bind(at).await
}

/// Listens as soon as no one else has the port.
async fn bind_when_free(allowed: &[AddressRange], at: SocketAddr) -> TcpListener {
    loop {
        sleep(AGAIN).await;
        if let Ok(port) = bind(allowed, at).await {
            return port;
        }
    }
}

impl<N: Fn(Notice) + Send + Sync + 'static> Client<N> {
    /// Begins to accept connections for a listener of the proxy, until its session ends. A port that is taken may belong
    /// to a session that the same proxy has lost: `late` gets another answer when it is free.
    pub(super) async fn listen(
        self: &Arc<Self>,
        (listener, at): (u16, SocketAddr),
        late: mpsc::Sender<Answer>,
    ) -> Answer {
        let listening = move |port: &TcpListener| Answer::Listening {
            listener,
            address: port.local_addr().unwrap_or(at),
        };
        let bound = bind(&self.exit.listen, at).await;
        let answer = match &bound {
            Ok(port) => listening(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Answer::NotListening { listener, reason: format!("{error}; it waits until the port is free") }
            }
            Err(error) => return Answer::NotListening { listener, reason: error.to_string() },
        };
        let client = self.clone();
        tokio::spawn(async move {
            let accept = async {
                let port = match bound {
                    Ok(port) => port,
                    Err(_) => {
                        let port = bind_when_free(&client.exit.listen, at).await;
                        // Without a control stream, no one asks.
                        let _ = late.send(listening(&port)).await;
                        port
                    }
                };
                client.accept(&port, listener).await;
            };
            tokio::select! {
                _ = client.session.session().closed() => {}
                () = accept => {}
            }
        });
        answer
    }

    async fn accept(self: &Arc<Self>, port: &TcpListener, listener: u16) {
        loop {
            match port.accept().await {
                Ok((connection, from)) => {
                    let client = self.clone();
                    tokio::spawn(async move { client.accepted(connection, (listener, from)).await });
                }
                // The descriptors are used up, most likely.
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Carries an accepted connection, or resets it where the proxy does not connect.
    async fn accepted(&self, connection: TcpStream, (listener, from): (u16, SocketAddr)) {
        let begin = Instant::now();
        let called = connection.local_addr().map_or_else(|_| String::new(), |at| at.to_string());
        let mut record = Record::new(&ConnectionName { from: self.node.clone(), to: called });
        record.from = Some(from.to_string());
        let attempt = timeout(PATIENCE, self.open((listener, from)));
        match attempt.await.unwrap_or(Err(Outcome::Silent)) {
            Ok((_room, stream)) => {
                let name = ConnectionName { from: from.to_string(), to: self.node.clone() };
                let entered = self.exit.connections.enter(name, Some(self.account.clone()));
                record.outcome = Outcome::Open;
                record.end = Some(copy::carry(connection, stream, &entered.meter).await);
                record.bytes = entered.meter.bytes();
            }
            Err(outcome) => {
                record.outcome = outcome;
                copy::reset(connection);
            }
        }
        self.report(record, begin);
    }

    /// Has the proxy connect a caller.
    async fn open(
        &self,
        (listener, from): (u16, SocketAddr),
    ) -> Result<(OwnedSemaphorePermit, Stream), Outcome> {
        let room = self.account.enter()?;
        let asked = async {
            let mut stream = self.session.session().open_stream().await?;
            stream.write_all(&Head::Accepted { listener, from }.to_bytes()).await?;
            let outcome = read_outcome(&mut stream).await?;
            io::Result::Ok((outcome, stream))
        };
        match asked.await {
            Ok((Outcome::Open, stream)) => Ok((room, stream)),
            Ok((outcome, _)) => Err(outcome),
            Err(_) => Err(Outcome::Unreachable),
        }
    }
}
