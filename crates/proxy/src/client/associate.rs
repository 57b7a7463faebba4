//! SOCKS5 associations: datagrams of a program, by a UDP port next to its TCP connection.
//!
//! Many programs announce a wrong address for their datagrams. So the announcement is ignored, and the program's
//! machine decides. Each port there gets an association of its own at the exit, so that answers return to the port that
//! asked. The association lives as long as its TCP connection.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::Stream;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::upstream::{Link, Upstream};
use crate::copy;
use crate::message::Head;
use crate::meter::Meter;
use crate::socks5::{self, Reply};
use crate::target::Target;

/// Largest datagram.
const LARGEST: usize = 65_535;
/// Pause after an error of a socket.
const PAUSE: Duration = Duration::from_millis(2);
/// Most ports of a program at the same time. For another, the one that sent nothing for the longest is forgotten.
const MOST_PORTS: usize = 32;
/// Datagrams of a port that wait for its association; later ones are dropped.
const MOST_WAITING: usize = 16;

/// The proxy's part of an association.
#[derive(Clone)]
pub(super) struct Means {
    pub(super) upstream: Upstream,
    pub(super) meter: Arc<Meter>,
    /// The address that replies name instead of the proxy's own.
    pub(super) advertised: Option<IpAddr>,
}

/// An association at the exit.
type Opened = (Arc<Link>, Stream);

/// Answers the request with a port and carries datagrams until the TCP connection or the session ends.
pub(super) async fn carry(mut connection: TcpStream, opened: Opened, means: Means) -> io::Result<()> {
    // A port of all addresses gives those of IPv4 as IPv6 ones, to which an IPv4 socket cannot send.
    let program = connection.peer_addr()?.ip().to_canonical();
    let own = connection.local_addr()?.ip().to_canonical();
    let socket = Arc::new(UdpSocket::bind((own, 0)).await?);
    let bound = SocketAddr::new(means.advertised.unwrap_or(own), socket.local_addr()?.port());
    // Nothing else ends the association of a program whose machine is gone.
    copy::keep_alive(&connection);
    connection.write_all(&socks5::reply(Reply::Succeeded, Some(bound))).await?;
    let session = opened.0.node.session().clone();
    let mut ports = Ports {
        known: BTreeMap::new(),
        tasks: JoinSet::new(),
        turn: 0,
        unused: Some(opened),
        socket: socket.clone(),
        means,
    };
    let out = async {
        let mut buffer = vec![0; LARGEST];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                // An error concerns a datagram sent earlier.
                sleep(PAUSE).await;
                continue;
            };
            if from.ip() == program
                // Fragments and broken headers are dropped.
                && let Ok((to, payload)) = socks5::datagram(&buffer[..length])
            {
                ports.send(from, to, payload);
            }
        }
    };
    let ended = async {
        let mut ignored = [0; 64];
        while connection.read(&mut ignored).await? > 0 {}
        Ok(())
    };
    tokio::select! {
        () = out => Ok(()),
        _ = session.closed() => Err(io::ErrorKind::ConnectionAborted.into()),
        ended = ended => ended,
    }
}

/// The ports of a program.
struct Ports {
    known: BTreeMap<SocketAddr, Port>,
    tasks: JoinSet<()>,
    /// Datagrams so far.
    turn: u64,
    /// The association that was opened with the request, for the first port.
    unused: Option<Opened>,
    socket: Arc<UdpSocket>,
    means: Means,
}

/// A port of a program. Its association ends when this is dropped.
struct Port {
    datagrams: mpsc::Sender<(Target, Bytes)>,
    /// The turn of its last datagram.
    used: u64,
}

impl Ports {
    /// Hands a datagram to the association of its port.
    fn send(&mut self, from: SocketAddr, to: Target, payload: &[u8]) {
        while self.tasks.try_join_next().is_some() {}
        self.turn += 1;
        if self.known.get(&from).is_none_or(|port| port.datagrams.is_closed()) {
            self.open(from);
        }
        if let Some(port) = self.known.get_mut(&from) {
            port.used = self.turn;
            // Lost, as any datagram may be.
            let _ = port.datagrams.try_send((to, Bytes::copy_from_slice(payload)));
        }
    }

    fn open(&mut self, from: SocketAddr) {
        self.known.retain(|_, port| !port.datagrams.is_closed());
        if self.known.len() >= MOST_PORTS
            && let Some(oldest) = self.known.iter().min_by_key(|(_, port)| port.used).map(|(at, _)| *at)
        {
            self.known.remove(&oldest);
        }
        let (sender, datagrams) = mpsc::channel(MOST_WAITING);
        let (unused, socket, means) = (self.unused.take(), self.socket.clone(), self.means.clone());
        self.tasks.spawn(async move {
            let opened = match unused {
                Some(opened) => Ok(opened),
                None => means.upstream.open(&Head::Datagrams).await,
            };
            match opened {
                Ok(opened) => serve(opened, (&socket, from), &means.meter, datagrams).await,
                Err(outcome) => tracing::debug!(%from, ?outcome, "no association for a port"),
            }
        });
        self.known.insert(from, Port { datagrams: sender, used: self.turn });
    }
}

/// Carries the datagrams of one port until it is forgotten or its association ends.
async fn serve(
    (link, stream): Opened,
    (socket, program): (&UdpSocket, SocketAddr),
    meter: &Meter,
    mut datagrams: mpsc::Receiver<(Target, Bytes)>,
) {
    let (inbox, mut outbox) = link.associations.join(stream);
    let out = async {
        while let Some((to, payload)) = datagrams.recv().await {
            meter.up(payload.len()).await;
            outbox.send(&to, &payload).await?;
        }
        Ok::<_, io::Error>(())
    };
    let back = inbox.for_each(|from, payload| async move {
        if let Target::Address(from) = from {
            meter.down(payload.len()).await;
            let mut bytes = Vec::with_capacity(payload.len() + 22);
            socks5::write_datagram_header(from, &mut bytes);
            bytes.extend_from_slice(&payload);
            // Lost, as any datagram may be.
            let _ = socket.send_to(&bytes, program).await;
        }
        true
    });
    let ended = tokio::select! {
        ended = out => ended,
        ended = back => ended,
    };
    tracing::debug!(%program, ?ended, "the association of a port ended");
}
