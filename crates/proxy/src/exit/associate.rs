//! The exit's end of an association: one UDP port of each family for all destinations.
//!
//! The port stays the same for all destinations (endpoint-independent mapping), as games want it. Datagrams are accepted from hosts only
//! that the client has sent to, whatever their port, so that the association is no open port for others.
//!
//! A name is resolved again a minute after the last look-up. Datagrams go to the known address meanwhile. They stay with it while the name
//! still has it, so that a name with several servers does not change the server in the middle of an exchange.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_net::Stream;
use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{Mutex as TurnMutex, Semaphore};
use tokio::time::{Instant, sleep};

use super::connect::Connector;
use crate::account::Account;
use crate::datagrams::{Associations, Outbox};
use crate::message::Outcome;
use crate::meter::Meter;
use crate::target::{HostName, Target};

/// Most hosts and names that an association remembers; it forgets all of them to remember another.
const MOST_REMEMBERED: usize = 1024;
/// Names of one association that are resolved at the same time; datagrams for others are dropped.
const MOST_RESOLVED: usize = 8;
/// How long the address of a name is used without another look-up, and the pause after a look-up that failed.
const FRESH: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(10);
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
    names: Mutex<BTreeMap<HostName, Known>>,
    resolving: Arc<Semaphore>,
}

/// The address of a name.
#[derive(Clone, Copy, Debug)]
struct Known {
    ip: IpAddr,
    /// When the name is resolved again.
    until: Instant,
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
                let known = self.names().get(name).copied();
                if let Some(known) = known {
                    self.send_to(SocketAddr::new(known.ip, *port), &payload).await;
                }
                if known.is_none_or(|known| known.until <= Instant::now())
                    && let Ok(turn) = self.resolving.clone().try_acquire_owned()
                {
                    self.keep(name, known.map(|known| known.ip), AGAIN);
                    let waiting = known.is_none().then_some(payload);
                    tokio::spawn(async move {
                        self.resolve(&to, waiting).await;
                        drop(turn);
                    });
                }
            }
        }
        true
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<HostName, Known>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses an address of a name for a while.
    fn keep(&self, name: &HostName, ip: Option<IpAddr>, time: Duration) {
        let Some(ip) = ip else { return };
        let mut names = self.names();
        if names.len() >= MOST_REMEMBERED && !names.contains_key(name) {
            names.clear();
        }
        names.insert(name.clone(), Known { ip, until: Instant::now() + time });
    }

    /// Resolves a name, and sends the datagram that waited for its address.
    async fn resolve(&self, to: &Target, waiting: Option<Bytes>) {
        let Target::Name(name, port) = to else { return };
        let addresses = match self.connector.resolve(to, &self.account.lookups).await {
            Ok(addresses) => addresses,
            Err(outcome) => {
                if outcome == Outcome::Denied {
                    self.names().remove(name);
                }
                return;
            }
        };
        let usable = || addresses.iter().filter(|address| self.socket(address).is_some()).map(SocketAddr::ip);
        let before = self.names().get(name).map(|known| known.ip);
        let Some(ip) = usable().find(|ip| Some(*ip) == before).or_else(|| usable().next()) else { return };
        self.keep(name, Some(ip), FRESH);
        if let Some(payload) = waiting {
            self.send_to(SocketAddr::new(ip, *port), &payload).await;
        }
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::connect::Resolver;
    use super::*;
    use crate::account::Limits;
    use crate::meter::{ConnectionName, Connections};
    use crate::policy::Policy;

    fn association(connector: Connector, v4: Option<UdpSocket>) -> Arc<Association> {
        let account = Account::new(Limits { connections: 1, rate: None, bytes: Some(1000) });
        let name = ConnectionName { from: "node".to_owned(), to: "udp".to_owned() };
        let entered = Connections::default().enter(name, Some(account.clone()));
        Arc::new(Association {
            connector: Arc::new(connector),
            account,
            meter: entered.meter.clone(),
            v4,
            v6: None,
            hosts: Mutex::default(),
            names: Mutex::default(),
            resolving: Arc::new(Semaphore::new(1)),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_resolved_again_and_keeps_its_address_while_it_has_it() {
        let answers: [&[u8]; 3] = [&[2], &[3, 2], &[3]];
        let asked = AtomicUsize::new(0);
        let resolver: Resolver = Box::new(move |_, port| {
            let answer = answers[asked.fetch_add(1, Ordering::Relaxed).min(2)];
            let found = answer.iter().map(|last| SocketAddr::from(([127, 0, 0, *last], port))).collect();
            Box::pin(async move { Ok(found) })
        });
        let policy = Policy::new(&["127.0.0.2", "127.0.0.3"].map(|text| text.parse().unwrap()), &[]);
        let own = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let association = association(Connector::with_resolver(policy, resolver), Some(own));
        let to = Target::from_host("game.example", 9).unwrap();
        for (wait, expected) in [(0, 2), (1, 2), (60, 2), (61, 3)] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            assert!(association.clone().send(to.clone(), Bytes::from_static(b"x")).await);
            // The look-up runs beside this.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let known: Vec<Known> = association.names().values().copied().collect();
            assert_eq!(known.len(), 1);
            assert_eq!(known[0].ip, IpAddr::from([127, 0, 0, expected]), "after {wait} s");
        }
    }

    #[tokio::test]
    async fn empty_datagrams_use_up_the_bytes_of_an_account() {
        let association = association(Connector::new(Policy::default()), None);
        let to = Target::from_host("192.0.2.1", 9).unwrap();
        let mut sent = 0;
        while sent < 1000 && association.clone().send(to.clone(), Bytes::new()).await {
            sent += 1;
        }
        assert_eq!(sent, 1000 / HEADERS);
    }
}
