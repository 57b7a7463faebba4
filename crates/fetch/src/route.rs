//! Ways to a server: the system's own choice, an interface, or an exit.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_proxy::{ExitDialer, race};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::dns::resolve;
use crate::peers::Peers;

/// How long an address that has answered may take to accept another connection before others are tried.
/// The system repeats its first packet after one and after three seconds.
const KNOWN: Duration = Duration::from_secs(4);

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
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<Wire> {
        Ok(self.connect_known((host, port), &Peers::default()).await?.0)
    }

    /// Opens a TCP connection, to the address of the server that answered before if there is one; also returns the address,
    /// unless an exit chose it. A name may have several machines.
    pub async fn connect_known(
        &self,
        (host, port): (&str, u16),
        peers: &Peers,
    ) -> io::Result<(Wire, Option<IpAddr>)> {
        let outlet = match self {
            Self::System => None,
            Self::Outlet(outlet) => Some(outlet),
            Self::Exit(exit) => return Ok((Box::new(exit.connect(host, port).await?), None)),
        };
        let server = (host, port);
        let own = peers.own(server, self);
        if let Some(own) = own {
            match timeout(KNOWN, attempt((own, port).into(), outlet.cloned())).await {
                Ok(Ok(stream)) => return Ok((Box::new(stream), Some(own))),
                failed => {
                    tracing::debug!(host, %own, ?failed, "an address that answered takes no connection");
                }
            }
            peers.forget(server, self);
        }
        let mut addresses = resolve(host, port, outlet).await?;
        if let Some(outlet) = outlet {
            addresses.retain(|address| outlet.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4()));
        }
        let (mut fresh, mut failed) = peers.sorted(server, self, addresses);
        if let Some(known) = peers.among(server, &fresh)
            && fresh.len() + failed.len() > 1
        {
            if let Ok(Ok(stream)) = timeout(KNOWN, attempt(known, outlet.cloned())).await {
                peers.on_connected(server, self, known.ip());
                return Ok((Box::new(stream), Some(known.ip())));
            }
            peers.on_connected(server, self, known.ip());
            peers.forget(server, self);
            fresh.retain(|address| *address != known);
        }
        let stream = match connect(fresh, outlet).await {
            Err(_) if !failed.is_empty() => {
                if failed.len() > 1 {
                    failed.retain(|address| Some(address.ip()) != own);
                }
                connect(failed, outlet).await?
            }
            connected => connected?,
        };
        let ip = stream.peer_addr()?.ip();
        peers.on_connected(server, self, ip);
        Ok((Box::new(stream), Some(ip)))
    }
}

/// Connects to the first of these addresses that answers.
async fn connect(addresses: Vec<SocketAddr>, outlet: Option<&Outlet>) -> io::Result<TcpStream> {
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no address of the server fits"));
    }
    let connected = race(addresses, |address| attempt(address, outlet.cloned()), |_, later| later).await;
    let silent = || io::Error::new(io::ErrorKind::TimedOut, "the server does not answer");
    connected.map_err(|error| error.unwrap_or_else(silent))
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
    if let Some(name) = &outlet.interface
        && let Err(error) = socket.bind_device(Some(name.as_bytes()))
    {
        tracing::debug!(interface = %name, %error, "cannot bind to the interface; routes decide where packets leave");
    }
    let own = outlet.addresses.iter().find(|own| own.is_ipv4() == to.is_ipv4());
    own.map_or(Ok(()), |own| socket.bind((*own, 0).into()))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_address_that_answered_is_used_again_until_it_accepts_no_connection() {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = first.local_addr().unwrap().port();
        let other = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let (peers, server) = (Peers::default(), ("localhost", port));
        let outlet = Outlet { interface: None, addresses: vec![[127, 0, 0, 1].into()] };
        for route in [Route::System, Route::Outlet(outlet)] {
            peers.note(server, &route, [127, 0, 0, 2].into());
            let (_, ip) = route.connect_known(server, &peers).await.unwrap();
            assert_eq!(ip, Some([127, 0, 0, 2].into()), "{route:?}");
        }
        drop(other);
        let (_, ip) = Route::System.connect_known(server, &peers).await.unwrap();
        assert!(ip.is_some_and(|ip| ip.is_loopback() && ip != IpAddr::from([127, 0, 0, 2])), "{ip:?}");
        assert_eq!(peers.own(server, &Route::System), None);
    }
}
