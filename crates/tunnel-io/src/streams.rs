//! The stream lane: a TCP connection ends here, continues as a stream of the session, and is opened again at the far
//! end.
//!
//! One connection then gets the sum of the paths, whatever their delays, and its sender never sees a loss on a path.
//! The kernel answers the connection before the far end has connected. If the far end fails, the connection is reset,
//! so a refusal stays a refusal. Each direction ends separately (half-close).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Session, Stream};
use anabranch_proxy::message::{Head, Outcome};
use anabranch_proxy::{ConnectionName, Connections, dial, read_outcome, reset};
use anabranch_tunnel::session::MOST_CONNECTIONS;
use nix::sys::socket::{getsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long the far end may take to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Accepts the connections that the firewall redirects here.
pub(crate) struct Taker {
    listeners: Vec<TcpListener>,
    pub port: u16,
}

impl Taker {
    /// Listens on a free port of both families, or only of IPv4 on a system without IPv6.
    pub(crate) fn bind() -> io::Result<Self> {
        let v4 = listener((Ipv4Addr::UNSPECIFIED, 0).into())?;
        let port = v4.local_addr()?.port();
        let v6 = listener((Ipv6Addr::UNSPECIFIED, port).into());
        Ok(Self { listeners: std::iter::once(v4).chain(v6).collect(), port })
    }

    /// The next connection and its original destination.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            let accepted = match &self.listeners[..] {
                [v4, v6] => tokio::select! {
                    accepted = v4.accept() => accepted,
                    accepted = v6.accept() => accepted,
                },
                [v4, ..] => v4.accept().await,
                [] => std::future::pending().await,
            };
            let connection = match accepted {
                Ok((connection, _)) => connection,
                // No descriptors are left, or the caller is gone: waiting callers are accepted later.
                Err(error) => {
                    tracing::debug!(%error, "a connection was not taken");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            if let Some(destination) = original_destination(&connection) {
                return Ok((connection, destination));
            }
        }
    }
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// The original destination of a redirected connection. `None` for a connection made directly to this port, which would
/// make it an open proxy.
fn original_destination(connection: &TcpStream) -> Option<SocketAddr> {
    let local = connection.local_addr().ok()?;
    let destination = if local.is_ipv4() {
        let address = getsockopt(&connection.as_fd(), sockopt::OriginalDst).ok()?;
        let octets = u32::from_be(address.sin_addr.s_addr).to_be_bytes();
        SocketAddr::new(octets.into(), u16::from_be(address.sin_port))
    } else {
        let address = getsockopt(&connection.as_fd(), sockopt::Ip6tOriginalDst).ok()?;
        SocketAddr::new(address.sin6_addr.s6_addr.into(), u16::from_be(address.sin6_port))
    };
    (destination != local).then_some(destination)
}

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
