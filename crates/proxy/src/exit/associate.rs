//! The exit's end of an association: one UDP port of each family for all destinations.
//!
//! The port stays the same for all destinations (endpoint-independent mapping), as games want it. Datagrams are accepted from hosts only
//! that the client has sent to, whatever their port, so that the association is no open port for others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_net::Stream;
use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{Mutex as TurnMutex, Semaphore};
use tokio::time::sleep;

use super::connect::Connector;
use crate::account::Account;
use crate::datagrams::{Associations, Outbox};
use crate::meter::Meter;
use crate::target::{HostName, Target};

/// Most hosts and names that an association remembers; it forgets all of them to remember another.
const MOST_REMEMBERED: usize = 1024;
/// Names of one association that are resolved at the same time; datagrams for others are dropped.
const MOST_RESOLVED: usize = 8;
/// Bytes that each datagram counts besides its payload: the headers of IPv4 and UDP. Empty datagrams would pass all
/// bounds otherwise.
const HEADERS: usize = 28;
/// Largest datagram.
const LARGEST: usize = 65_535;
/// Pause after an error of a socket.
const PAUSE: Duration = Duration::from_millis(2);

/// State shared by all tasks of an association.
struct Association {
    connector: Arc<Connector>,
    account: Arc<Account>,
    meter: Arc<Meter>,
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    hosts: Mutex<BTreeSet<IpAddr>>,
    names: Mutex<BTreeMap<HostName, IpAddr>>,
    resolving: Arc<Semaphore>,
}

/// The exit's part of an association.
pub(super) struct Means {
    pub(super) connector: Arc<Connector>,
    pub(super) account: Arc<Account>,
    pub(super) meter: Arc<Meter>,
}

/// Whether this machine can send datagrams at all.
pub(super) fn sockets() -> io::Result<(Option<UdpSocket>, Option<UdpSocket>)> {
    let v4 = bind((Ipv4Addr::UNSPECIFIED, 0).into());
    let v6 = bind((Ipv6Addr::UNSPECIFIED, 0).into());
    match (v4, v6) {
        (Err(error), Err(_)) => Err(error),
        (v4, v6) => Ok((v4.ok(), v6.ok())),
    }
}

fn bind(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    UdpSocket::from_std(socket.into())
}

/// Carries datagrams both ways until the client ends the association.
pub(super) async fn carry(
    associations: &Arc<Associations>,
    stream: Stream,
    means: Means,
    (v4, v6): (Option<UdpSocket>, Option<UdpSocket>),
) {
    let Means { connector, account, meter } = means;
    let association = Arc::new(Association {
        connector,
        account,
        meter,
        v4,
        v6,
        hosts: Mutex::default(),
        names: Mutex::default(),
        resolving: Arc::new(Semaphore::new(MOST_RESOLVED)),
    });
    let (inbox, outbox) = associations.join(stream);
    let outbox = TurnMutex::new(outbox);
    let out = inbox.for_each(|to, payload| association.clone().send(to, payload));
    tokio::select! {
        _ = out => {}
        () = association.receive(association.v4.as_ref(), &outbox) => {}
        () = association.receive(association.v6.as_ref(), &outbox) => {}
    }
}

impl Association {
    /// Sends a datagram of the client on; false when no more may pass.
    async fn send(self: Arc<Self>, to: Target, payload: Bytes) -> bool {
        if !self.meter.down(HEADERS + payload.len()).await {
            return false;
        }
        match &to {
            Target::Address(address) => self.send_to(*address, &payload).await,
            Target::Name(name, port) => {
                let known = self.names.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied();
                match (known, self.resolving.clone().try_acquire_owned()) {
                    (Some(ip), _) => self.send_to(SocketAddr::new(ip, *port), &payload).await,
                    (None, Ok(turn)) => {
                        tokio::spawn(async move {
                            self.resolve_and_send(&to, &payload).await;
                            drop(turn);
                        });
                    }
                    (None, Err(_)) => {}
                }
            }
        }
        true
    }

    async fn resolve_and_send(&self, to: &Target, payload: &[u8]) {
        let Ok(addresses) = self.connector.resolve(to, &self.account.lookups).await else { return };
        let has_socket = |address: &&SocketAddr| self.socket(address).is_some();
        let Some(address) = addresses.iter().find(has_socket) else { return };
        if let Target::Name(name, _) = to {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            if names.len() >= MOST_REMEMBERED {
                names.clear();
            }
            names.insert(name.clone(), address.ip());
        }
        self.send_to(*address, payload).await;
    }

    /// Sends to an address if the policy allows it.
    async fn send_to(&self, to: SocketAddr, payload: &[u8]) {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let Some(socket) = self.socket(&to).filter(|_| to.port() > 0 && self.connector.allows(to)) else {
            return;
        };
        {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            if hosts.len() >= MOST_REMEMBERED && !hosts.contains(&to.ip()) {
                hosts.clear();
            }
            hosts.insert(to.ip());
        }
        // Lost, as any datagram may be.
        let _ = socket.send_to(payload, to).await;
    }

    fn socket(&self, to: &SocketAddr) -> Option<&UdpSocket> {
        if to.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    /// Hands datagrams from known hosts to the client until the session ends.
    async fn receive(&self, socket: Option<&UdpSocket>, outbox: &TurnMutex<Outbox>) {
        let Some(socket) = socket else { return std::future::pending().await };
        let mut buffer = vec![0; LARGEST];
        loop {
            let (length, from) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // An error concerns a datagram sent earlier, such as an unreachable port.
                Err(_) => {
                    sleep(PAUSE).await;
                    continue;
                }
            };
            if !self.hosts.lock().unwrap_or_else(PoisonError::into_inner).contains(&from.ip()) {
                continue;
            }
            let is_over = !self.meter.up(HEADERS + length).await
                || outbox.lock().await.send(&from.into(), &buffer[..length]).await.is_err();
            if is_over {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Limits;
    use crate::meter::{ConnectionName, Connections};
    use crate::policy::Policy;

    #[tokio::test]
    async fn empty_datagrams_use_up_the_bytes_of_an_account() {
        let account = Account::new(Limits { connections: 1, rate: None, bytes: Some(1000) });
        let name = ConnectionName { from: "node".to_owned(), to: "udp".to_owned() };
        let entered = Connections::default().enter(name, Some(account.clone()));
        let association = Arc::new(Association {
            connector: Arc::new(Connector::new(Policy::default())),
            account,
            meter: entered.meter.clone(),
            v4: None,
            v6: None,
            hosts: Mutex::default(),
            names: Mutex::default(),
            resolving: Arc::new(Semaphore::new(1)),
        });
        let to = Target::from_host("192.0.2.1", 9).unwrap();
        let mut sent = 0;
        while sent < 1000 && association.clone().send(to.clone(), Bytes::new()).await {
            sent += 1;
        }
        assert_eq!(sent, 1000 / HEADERS);
    }
}
