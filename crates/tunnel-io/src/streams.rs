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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_net::{Session, Stream};
use anabranch_tunnel::message::{Connected, StreamHead};
use bytes::BytesMut;
use nix::sys::socket::{getsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Most connections of one session at the same time.
pub const MOST_CONNECTIONS: usize = 4096;
/// How long a destination may take to answer.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the head of a stream may take.
const HEAD: Duration = Duration::from_secs(10);
/// Bytes read in one go.
const CHUNK: usize = 256 << 10;
/// Code of a stream whose TCP connection was reset.
const RESET: u64 = 1;

/// Connections that are open now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Open(Arc<AtomicUsize>);

impl Open {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn enter(&self) -> Entered {
        self.0.fetch_add(1, Ordering::Relaxed);
        Entered(self.clone())
    }
}

struct Entered(Open);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

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
pub(crate) async fn carry(session: Session, (connection, destination): (TcpStream, SocketAddr), open: Open) {
    let _entered = open.enter();
    let attempt = async {
        let mut stream = session.open_stream().await.map_err(io::Error::other)?;
        stream.write_all(&StreamHead::Connect(destination).to_bytes()).await?;
        let answer = Connected::read(stream.read_u8().await?);
        Ok::<_, io::Error>((stream, answer))
    };
    match timeout(CONNECT + HEAD, attempt).await {
        Ok(Ok((stream, Some(Connected::Yes)))) => relay(connection, stream).await,
        other => {
            tracing::debug!(%destination, ?other, "the far end did not connect");
            reset(connection);
        }
    }
}

/// Ends a connection with a reset, as the destination would have.
fn reset(connection: TcpStream) {
    // Without lingering, unsent data is dropped and the other end gets a reset.
    let _ = socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO));
    drop(connection);
}

/// Reads the head of a stream that the other end opened.
pub(crate) async fn read_head(stream: &mut Stream) -> io::Result<StreamHead> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "an unknown kind of stream");
    let read = async {
        let first = stream.read_u8().await?;
        let mut rest = vec![0; StreamHead::rest(first).ok_or_else(unknown)?];
        stream.read_exact(&mut rest).await?;
        StreamHead::read(first, &rest).ok_or_else(unknown)
    };
    timeout(HEAD, read).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The far end of the stream lane.
#[derive(Clone)]
pub(crate) struct Exit {
    pub open: Open,
    /// Connections of one session.
    pub room: Arc<Semaphore>,
}

impl Exit {
    pub(crate) fn new(open: Open) -> Self {
        Self { open, room: Arc::new(Semaphore::new(MOST_CONNECTIONS)) }
    }

    /// Connects to the destination if it is allowed, answers, and carries bytes until both directions have ended.
    pub(crate) async fn serve(self, mut stream: Stream, destination: SocketAddr, is_allowed: bool) {
        let permit = self.room.clone().try_acquire_owned();
        let outcome = match &permit {
            _ if !is_allowed => Err(Connected::Denied),
            Err(_) => Err(Connected::Busy),
            Ok(_) => connect(destination).await,
        };
        let answer = outcome.as_ref().err().copied().unwrap_or(Connected::Yes);
        if stream.write_all(&[answer.to_byte()]).await.is_err() {
            return;
        }
        let Ok(connection) = outcome else { return };
        let _entered = self.open.enter();
        relay(connection, stream).await;
    }
}

async fn connect(destination: SocketAddr) -> Result<TcpStream, Connected> {
    let socket = if destination.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(|_| Connected::Busy)?;
    match timeout(CONNECT, socket.connect(destination)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Connected::Refused),
        _ => Err(Connected::Unreachable),
    }
}

/// Carries bytes in both directions until both have ended, or one failed.
async fn relay(connection: TcpStream, stream: Stream) {
    // Small writes of interactive programs leave at once.
    let _ = connection.set_nodelay(true);
    let (mut from_program, mut to_program) = connection.into_split();
    let (mut reading, mut writing) = stream.into_halves();
    let up = async {
        let mut buffer = BytesMut::new();
        loop {
            // A block is kept as long as one of its bytes waits, so use it up before taking a new one.
            if buffer.capacity() - buffer.len() < 4096 {
                buffer.reserve(CHUNK / 4);
            }
            match from_program.read_buf(&mut buffer).await {
                Ok(0) => return writing.finish(),
                Ok(_) => writing.write_chunk(buffer.split().freeze()).await?,
                Err(error) => {
                    writing.reset(RESET);
                    return Err(error);
                }
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            match reading.read(&mut buffer).await? {
                0 => return to_program.shutdown().await,
                length => to_program.write_all(&buffer[..length]).await?,
            }
        }
    };
    let broke = tokio::try_join!(up, down).is_err();
    if broke && let Ok(connection) = from_program.reunite(to_program) {
        reset(connection);
    }
}
