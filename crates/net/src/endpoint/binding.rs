//! Binds one socket to each local address, and follows changes of the addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Addresses;
use super::sockets::BoundSocket;
use crate::endpoint::inner::EndpointInner;
use crate::interfaces::{InterfaceAddress, InterfaceWatch};
use crate::lasting::Lasting;
use crate::receive::receive_loop;
use crate::socket::{BindTo, UdpSocket, explain_bind_error};
use crate::tap::Taps;

/// How many ports to try for one that is free on every address.
const PORT_ATTEMPTS: usize = 16;
/// Pause before another attempt to bind to a new address.
const BIND_PAUSE: Duration = Duration::from_millis(500);
/// The pause while every address is bound.
const FAR: Duration = Duration::from_secs(3600);

/// Binds sockets to the addresses, all at one port, and starts the task that follows changes.
pub(super) fn bind(
    endpoint: &Arc<EndpointInner>,
    watch: InterfaceWatch,
    (addresses, port): (Addresses, u16),
) -> io::Result<Option<JoinHandle<()>>> {
    let binder = Binder { next_id: AtomicU32::new(0), addresses, taps: endpoint.taps.clone() };
    let places = binder.choose(&watch.current())?;
    let port = binder.bind_all(endpoint, &places, port)?;
    Ok(match &binder.addresses {
        Addresses::Exactly(_) => None,
        _ => Some(tokio::spawn(follow(Arc::downgrade(endpoint), watch, binder, port))),
    })
}

/// Chooses addresses and binds sockets to them.
pub(super) struct Binder {
    pub(super) next_id: AtomicU32,
    pub(super) addresses: Addresses,
    pub(super) taps: Taps,
}

impl Binder {
    fn choose(&self, found: &[InterfaceAddress]) -> io::Result<Vec<InterfaceAddress>> {
        let chosen = match &self.addresses {
            Addresses::All => found.to_vec(),
            Addresses::Interfaces(names) => {
                let named = |place: &&InterfaceAddress| names.iter().any(|name| **name == *place.interface);
                found.iter().filter(named).cloned().collect()
            }
            Addresses::Exactly(list) => {
                list.iter().map(|address| place_of(*address, found)).collect::<Result<_, _>>()?
            }
        };
        if chosen.is_empty() {
            let message = match &self.addresses {
                Addresses::Interfaces(names) => format!(
                    "no usable address on {}: are these interfaces up? `ip address` lists them",
                    names.join(", ")
                ),
                _ => "this machine has no usable address: is a network interface up?".to_owned(),
            };
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message));
        }
        Ok(chosen)
    }

    /// Binds a socket to each address, all at one port; returns the port.
    fn bind_all(
        &self,
        endpoint: &Arc<EndpointInner>,
        places: &[InterfaceAddress],
        port: u16,
    ) -> io::Result<u16> {
        let attempts = if port == 0 { PORT_ATTEMPTS } else { 1 };
        let mut result = Ok(Vec::new());
        for _ in 0..attempts {
            result = self.bind_once(places, port);
            if result.is_ok() {
                break;
            }
        }
        let sockets = result?;
        let port = sockets.first().map_or(port, |socket| socket.udp.local_addr().port());
        for socket in sockets {
            start(endpoint, socket);
        }
        Ok(port)
    }

    fn bind_once(&self, places: &[InterfaceAddress], mut port: u16) -> io::Result<Vec<Arc<BoundSocket>>> {
        let mut sockets = Vec::new();
        for place in places {
            let socket = match self.bind(place, port) {
                Err(_) if place.spare => continue,
                socket => socket?,
            };
            port = socket.udp.local_addr().port();
            sockets.push(socket);
        }
        Ok(sockets)
    }

    fn bind(&self, place: &InterfaceAddress, port: u16) -> io::Result<Arc<BoundSocket>> {
        let address = match place.address {
            // The zone of a link-local address is its interface.
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, place.index).into()
            }
            other => SocketAddr::new(other, port),
        };
        // Packets between two addresses of one machine take loopback, whatever their interfaces.
        let interface = (!place.loopback && !place.interface.is_empty()).then(|| place.interface.to_string());
        let udp = UdpSocket::bind(&BindTo { address, interface });
        let udp = udp.map_err(|error| explain_bind_error(&error, address))?.tapped(self.taps.clone());
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(BoundSocket::new(id, udp, place.clone())))
    }
}

/// The entry of a configured address; loopback addresses need not be listed by the system.
fn place_of(address: IpAddr, found: &[InterfaceAddress]) -> io::Result<InterfaceAddress> {
    if let Some(place) = found.iter().find(|place| place.address == address) {
        return Ok(InterfaceAddress { spare: false, ..place.clone() });
    }
    let loopback = found.iter().find(|place| place.loopback && place.address.is_ipv4() == address.is_ipv4());
    match loopback.filter(|_| address.is_loopback()) {
        Some(place) => Ok(InterfaceAddress { address, ..place.clone() }),
        None => Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("{address} is not a usable address of this machine: `ip address` lists those there are"),
        )),
    }
}

fn start(endpoint: &Arc<EndpointInner>, socket: Arc<BoundSocket>) {
    let receiver = tokio::spawn(receive_loop(Arc::downgrade(endpoint), socket.clone()));
    endpoint.sockets.add(socket, receiver.abort_handle());
}

/// Binds and closes sockets as addresses come and go.
async fn follow(endpoint: Weak<EndpointInner>, watch: InterfaceWatch, binder: Binder, port: u16) {
    let (mut news, mut trouble) = (watch.subscribe(), Lasting::default());
    let mut pause = FAR;
    loop {
        if let Ok(Err(_)) = tokio::time::timeout(pause, news.changed()).await {
            return;
        }
        let found = news.borrow_and_update().clone();
        let Some(endpoint) = endpoint.upgrade() else { return };
        let wanted = binder.choose(&found).unwrap_or_default();
        let problem = apply(&endpoint, &binder, &wanted, port).err();
        if trouble.is_news(problem.as_deref()) {
            match &problem {
                Some(problem) => tracing::warn!("cannot use a new address yet: {problem}"),
                None => tracing::warn!("all addresses can be used"),
            }
        }
        // A port may still be taken when its address comes back quickly; then try again soon.
        pause = if problem.is_none() { FAR } else { BIND_PAUSE };
    }
}

/// Binds and closes sockets to match the addresses.
pub(super) fn apply(
    endpoint: &Arc<EndpointInner>,
    binder: &Binder,
    wanted: &[InterfaceAddress],
    port: u16,
) -> Result<(), String> {
    let sockets: Vec<_> =
        endpoint.sockets.bound().into_iter().map(|socket| (socket.place(), socket)).collect();
    let same = |a: &InterfaceAddress, b: &InterfaceAddress| a.address == b.address && a.index == b.index;
    let gone: BTreeSet<u32> = sockets
        .iter()
        .filter(|(old, _)| !wanted.iter().any(|place| same(place, old)))
        .map(|(_, socket)| socket.id)
        .collect();
    for id in &gone {
        endpoint.sockets.remove(*id);
    }
    let (mut changed, mut problems) = (false, Vec::new());
    for place in wanted {
        if let Some((_, socket)) = sockets.iter().find(|(old, _)| same(place, old)) {
            changed |= socket.update(place);
            continue;
        }
        match binder.bind(place, port) {
            Ok(socket) => {
                tracing::info!(local = %socket.udp.local_addr(), interface = %place.interface, "new address");
                start(endpoint, socket);
                changed |= !place.spare;
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    if changed || !gone.is_empty() {
        endpoint.sockets.moved.send_replace(());
    }
    endpoint.each_session(|session| {
        for id in &gone {
            session.socket_gone(*id);
        }
        if changed {
            session.addresses_changed();
        }
    });
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}
