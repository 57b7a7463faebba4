//! Ways to a server: the system's own choice, an interface, or an exit.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anabranch_proxy::{ExitDialer, race};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};

use crate::dns::resolve;

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
        Ok(self.connect_known(host, port).await?.0)
    }

    /// Opens a TCP connection; also returns the host by which the same machine can be reached again. A name may have
    /// several machines.
    pub async fn connect_known(&self, host: &str, port: u16) -> io::Result<(Wire, String)> {
        match self {
            Self::System => connect(resolve(host, port, None).await?, None).await,
            Self::Outlet(outlet) => connect(resolve(host, port, Some(outlet)).await?, Some(outlet)).await,
            Self::Exit(exit) => Ok((Box::new(exit.connect(host, port).await?), host.to_owned())),
        }
    }
}

/// Connects to the first of these addresses that answers.
async fn connect(mut addresses: Vec<SocketAddr>, outlet: Option<&Outlet>) -> io::Result<(Wire, String)> {
    if let Some(outlet) = outlet {
        addresses.retain(|address| outlet.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4()));
    }
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no address of the server fits"));
    }
    let connected = race(addresses, |address| attempt(address, outlet.cloned()), |_, later| later).await;
    let silent = || io::Error::new(io::ErrorKind::TimedOut, "the server does not answer");
    let stream = connected.map_err(|error| error.unwrap_or_else(silent))?;
    let peer = stream.peer_addr()?.ip().to_string();
    Ok((Box::new(stream), peer))
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
