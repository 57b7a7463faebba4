//! The port to which the firewall leads connections, and where each of them wanted to go.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::Method;

/// Pause after a connection could not be accepted: the descriptors are used up, most likely.
const PAUSE: Duration = Duration::from_millis(50);
/// How many ports are tried.
const TRIES: u32 = 50;

/// Accepts the connections that the firewall leads here.
#[derive(Debug)]
pub struct Taker {
    v4: TcpListener,
    /// `None` on a system without IPv6.
    v6: Option<TcpListener>,
    method: Method,
    port: u16,
}

impl Taker {
    /// Listens on a port that is free for both families, or only for IPv4 on a system without IPv6.
    ///
    /// # Errors
    /// The system's error, for [`Method::Tproxy`] also without the capability `NET_ADMIN`.
    pub fn bind(method: Method) -> io::Result<Self> {
        let mut tries = 1..TRIES;
        loop {
            match Self::bind_at(method, 0) {
                // Another program has the port for IPv6. It would get the redirected connections.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries.next().is_some() => {}
                bound => return bound,
            }
        }
    }

    fn bind_at(method: Method, port: u16) -> io::Result<Self> {
        let at: [IpAddr; 2] = match method {
            // The kernel redirects a neighbour's connection to an address of the interface on which it came.
            Method::Redirect => [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
            Method::Tproxy => [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        };
        let v4 = listener(SocketAddr::new(at[0], port), method)?;
        let port = v4.local_addr()?.port();
        let v6 = match listener(SocketAddr::new(at[1], port), method) {
            Ok(v6) => Some(v6),
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable || !has_ipv6() => None,
            Err(error) => return Err(error),
        };
        Ok(Self { v4, v6, method, port })
    }

    /// The port, the same for both families.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next connection and its original destination.
    pub async fn accept(&self) -> (TcpStream, SocketAddr) {
        loop {
            let accepted = match &self.v6 {
                Some(v6) => tokio::select! {
                    accepted = self.v4.accept() => accepted,
                    accepted = v6.accept() => accepted,
                },
                None => self.v4.accept().await,
            };
            match accepted {
                Ok((connection, _)) => {
                    if let Some(destination) = self.destination(&connection) {
                        return (connection, destination);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection was not taken");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// The original destination of a connection. `None` for a connection made directly to this port, which would make
    /// it an open proxy.
    fn destination(&self, connection: &TcpStream) -> Option<SocketAddr> {
        let local = connection.local_addr().ok()?;
        match self.method {
            Method::Redirect => {
                let socket = SockRef::from(connection);
                let original =
                    if local.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
                original.ok()?.as_socket().filter(|destination| *destination != local)
            }
            // The listener's own address is loopback.
            Method::Tproxy => (!local.ip().is_loopback()).then_some(local),
        }
    }
}

fn has_ipv6() -> bool {
    Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).is_ok()
}

fn listener(address: SocketAddr, method: Method) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    match (method, address) {
        (Method::Redirect, _) => {}
        (Method::Tproxy, SocketAddr::V4(_)) => socket.set_ip_transparent_v4(true)?,
        (Method::Tproxy, SocketAddr::V6(_)) => socket.set_ip_transparent_v6(true)?,
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_port_that_another_program_has_for_ipv6_is_not_used() {
        let Taker { v4, v6: Some(_other), port, .. } = Taker::bind(Method::Redirect).unwrap() else { return };
        drop(v4);
        let taken = Taker::bind_at(Method::Redirect, port).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_connection_made_directly_to_the_port_is_not_taken() {
        let taker = Taker::bind(Method::Redirect).unwrap();
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            if ip.is_ipv6() && taker.v6.is_none() {
                continue;
            }
            let _direct = TcpStream::connect((ip, taker.port())).await.unwrap();
            let taken = timeout(Duration::from_millis(300), taker.accept()).await;
            assert!(taken.is_err(), "{taken:?}");
        }
    }
}
