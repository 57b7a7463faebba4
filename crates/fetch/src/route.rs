//! Ways to a server: the system's own choice, an interface, or an exit.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_proxy::{ExitDialer, interleaved};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::dns::resolve;

/// How long all addresses of a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The next address is tried when the one before has not answered after this long (RFC 8305 §5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Most addresses of a name that are tried.
const MOST_TRIED: usize = 8;

/// Bytes both ways.
pub trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// An open connection.
pub type Wire = Box<dyn ReadWrite>;

/// An interface of this machine, or an address of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlet {
    /// The interface's name; `None` if only an address was given.
    pub interface: Option<Arc<str>>,
    /// Its addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
}

/// A way to a server.
#[derive(Clone, Debug)]
pub enum Route {
    /// The system chooses.
    System,
    /// Over an interface.
    Outlet(Outlet),
    /// Through an exit, which resolves names.
    Exit(Arc<ExitDialer>),
}

impl Route {
    /// Opens a TCP connection.
    ///
    /// # Errors
    /// The last error, or the time limit.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<Wire> {
        Ok(self.connect_known(host, port).await?.0)
    }

    /// Opens a TCP connection; also returns the host by which the same machine can be reached again. A name may have
    /// several machines.
    ///
    /// # Errors
    /// As [`Route::connect`].
    pub async fn connect_known(&self, host: &str, port: u16) -> io::Result<(Wire, String)> {
        match self {
            Self::System => connect(resolve(host, port, None).await?, None).await,
            Self::Outlet(outlet) => connect(resolve(host, port, Some(outlet)).await?, Some(outlet)).await,
            Self::Exit(exit) => Ok((Box::new(exit.connect(host, port).await?), host.to_owned())),
        }
    }
}

fn silent(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why.to_owned())
}

/// Tries addresses one after the other with a head start each; the first connection wins.
async fn connect(addresses: Vec<SocketAddr>, outlet: Option<&Outlet>) -> io::Result<(Wire, String)> {
    let reachable = |address: &SocketAddr| {
        outlet.is_none_or(|outlet| outlet.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4()))
    };
    let mut waiting = interleaved(addresses.into_iter().filter(reachable).collect());
    waiting.truncate(MOST_TRIED);
    let (mut trying, mut last) = (JoinSet::new(), None);
    let racing = async {
        loop {
            let has_more = waiting.pop_front().map(|address| {
                let outlet = outlet.cloned();
                trying.spawn(async move { attempt(address, outlet).await });
            });
            if has_more.is_none() && trying.is_empty() {
                let none =
                    || io::Error::new(io::ErrorKind::AddrNotAvailable, "no address of the server fits");
                return Err(last.take().unwrap_or_else(none));
            }
            tokio::select! {
                Some(ended) = trying.join_next() => match ended {
                    Ok(Ok(stream)) => match stream.peer_addr() {
                        Ok(peer) => return Ok((Box::new(stream) as Wire, peer.ip().to_string())),
                        Err(error) => last = Some(error),
                    },
                    Ok(Err(error)) => last = Some(error),
                    Err(error) => last = Some(io::Error::other(error)),
                },
                () = sleep(HEAD_START), if !waiting.is_empty() => {}
            }
        }
    };
    timeout(PATIENCE, racing).await.unwrap_or_else(|_| Err(silent("the server does not answer")))
}

async fn attempt(address: SocketAddr, outlet: Option<Outlet>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(outlet) = outlet {
        bind(&socket, &outlet, address)?;
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Binds to the interface where the system allows it, and to its address. With two default routes an address alone does
/// not choose the interface.
fn bind(socket: &TcpSocket, outlet: &Outlet, to: SocketAddr) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(name) = &outlet.interface
        && let Err(error) = socket.bind_device(Some(name.as_bytes()))
    {
        tracing::debug!(interface = %name, %error, "cannot bind to the interface; routes decide where packets leave");
    }
    let own = outlet.addresses.iter().find(|own| own.is_ipv4() == to.is_ipv4());
    own.map_or(Ok(()), |own| socket.bind((*own, 0).into()))
}
