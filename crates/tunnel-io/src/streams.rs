//! The stream lane: a TCP connection ends here, continues as a stream of the session, and is opened again at the far
//! end.
//!
//! One connection then gets the sum of the paths, whatever their delays, and its sender never sees a loss on a path.
//! The kernel answers the connection before the far end has connected. If the far end fails, the connection is reset,
//! so a refusal stays a refusal. Each direction ends separately (half-close).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Session, Stream};
use anabranch_proxy::message::{Head, Outcome};
use anabranch_proxy::{ConnectionName, Connections, dial, read_outcome, reset};
use anabranch_tunnel::session::MOST_CONNECTIONS;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long the far end may take to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Carries one redirected connection through the session.
pub(crate) async fn carry(
    session: Session,
    (connection, destination): (TcpStream, SocketAddr),
    open: Connections,
) {
    let from = connection.peer_addr().map(|from| from.to_string()).unwrap_or_default();
    let entered = open.enter(ConnectionName { from, to: destination.to_string() }, None);
    let attempt = async {
        let mut stream = session.open_stream().await.map_err(io::Error::other)?;
        stream.write_all(&Head::Connect(destination.into()).to_bytes()).await?;
        let outcome = read_outcome(&mut stream).await?;
        Ok::<_, io::Error>((stream, outcome))
    };
    match timeout(PATIENCE, attempt).await {
        Ok(Ok((stream, Outcome::Open))) => {
            anabranch_proxy::carry(connection, stream, &entered.meter).await;
        }
        other => {
            tracing::debug!(%destination, ?other, "the far end did not connect");
            reset(connection);
        }
    }
}

/// The far end of the stream lane.
#[derive(Clone)]
pub(crate) struct Exit {
    pub open: Connections,
    /// Connections of one session.
    pub room: Arc<Semaphore>,
}

impl Exit {
    pub(crate) fn new(open: Connections) -> Self {
        Self { open, room: Arc::new(Semaphore::new(MOST_CONNECTIONS)) }
    }

    /// Connects to the destination if it is allowed, answers, and carries bytes until both directions have ended.
    pub(crate) async fn serve(self, mut stream: Stream, destination: SocketAddr, is_allowed: bool) {
        let permit = self.room.clone().try_acquire_owned();
        let opened = match &permit {
            _ if !is_allowed => Err(Outcome::Denied),
            Err(_) => Err(Outcome::Busy),
            Ok(_) => dial(vec![destination]).await,
        };
        let outcome = opened.as_ref().err().copied().unwrap_or(Outcome::Open);
        if stream.write_all(&[outcome.to_byte()]).await.is_err() {
            return;
        }
        let Ok(connection) = opened else { return };
        let name = ConnectionName { from: "stream".to_owned(), to: destination.to_string() };
        let entered = self.open.enter(name, None);
        anabranch_proxy::carry(connection, stream, &entered.meter).await;
    }
}
