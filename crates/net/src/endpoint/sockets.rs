//! The sockets of an endpoint, and the chains of relays that paths use like sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use anabranch_agent::{LocalAddress, Reaches};
use anabranch_engine::Route;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::outside::Outside;
use crate::interfaces::InterfaceAddress;
use crate::relayed::Relayed;
use crate::socket::UdpSocket;

/// A socket with its number, which is never used again.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    pub(crate) id: u32,
    pub(crate) udp: UdpSocket,
    /// Its interface and the destinations of its routes, which can change while the address stays.
    place: RwLock<InterfaceAddress>,
    gone: AtomicBool,
}

impl BoundSocket {
    pub(crate) fn new(id: u32, udp: UdpSocket, place: InterfaceAddress) -> Self {
        Self { id, udp, place: RwLock::new(place), gone: AtomicBool::new(false) }
    }

    /// True once its address is no longer this machine's.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// True if it reaches only this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        self.place.read().expect("no panic while held").loopback
    }

    /// True if peers are not told its address.
    fn is_spare(&self) -> bool {
        self.place.read().expect("no panic while held").spare
    }

    /// Its interface and the destinations of its routes.
    pub(crate) fn place(&self) -> InterfaceAddress {
        self.place.read().expect("no panic while held").clone()
    }

    /// Updates its interface and the destinations of its routes; true if they changed.
    pub(crate) fn update(&self, now: &InterfaceAddress) -> bool {
        let mut place = self.place.write().expect("no panic while held");
        let changed = *place != *now;
        place.clone_from(now);
        changed
    }

    fn as_local(&self) -> LocalAddress {
        let place = self.place();
        // Each loopback address counts as a link of its own, which is how one machine models several links.
        let interface = if place.loopback { u32::MAX - self.id } else { place.index };
        let InterfaceAddress { address, prefix, routes, .. } = place;
        LocalAddress { socket: self.id, address, prefix, interface, routes: routes.to_vec() }
    }
}

/// All sockets of an endpoint.
pub(crate) struct Sockets {
    bound: RwLock<Vec<Arc<BoundSocket>>>,
    receivers: Mutex<BTreeMap<u32, AbortHandle>>,
    /// Chains of relays that sessions use.
    pub(crate) relayed: Relayed,
    /// The addresses of the sockets as relays see them, and those that routers map.
    outside: Mutex<Outside>,
    /// Marked when the sockets, or where their interfaces lead, have changed.
    pub(crate) moved: watch::Sender<()>,
}

impl Default for Sockets {
    fn default() -> Self {
        let moved = watch::Sender::new(());
        let (bound, receivers, relayed, outside) = Default::default();
        Self { bound, receivers, relayed, outside, moved }
    }
}

impl Sockets {
    /// The socket with this number, or the one at which the chain of relays with this number begins; `None` once it is gone.
    pub(crate) fn get(&self, id: u32) -> Option<Arc<BoundSocket>> {
        let id = self.relayed.real_socket(id)?;
        let sockets = self.bound.read().expect("no panic while held");
        sockets.iter().find(|socket| socket.id == id).cloned()
    }

    /// All sockets now, with those at spare addresses.
    pub(crate) fn bound(&self) -> Vec<Arc<BoundSocket>> {
        self.bound.read().expect("no panic while held").clone()
    }

    /// The sockets at addresses that peers may know.
    pub(crate) fn all(&self) -> Vec<Arc<BoundSocket>> {
        let sockets = self.bound.read().expect("no panic while held");
        sockets.iter().filter(|socket| !socket.is_spare()).cloned().collect()
    }

    /// All local addresses now, as the path agent wants them.
    pub(crate) fn locals(&self) -> Vec<LocalAddress> {
        let sockets = self.bound.read().expect("no panic while held");
        sockets.iter().map(|socket| socket.as_local()).collect()
    }

    /// How far the addresses of the sockets reach.
    pub(crate) fn reaches(&self) -> Reaches {
        self.all().iter().map(|socket| socket.udp.local_addr()).collect()
    }

    /// Records the address of a socket as a relay sees it; true if that is new.
    pub(crate) fn learn(&self, relay: Route, seen: SocketAddr) -> bool {
        self.outside.lock().expect("no panic while held").learn(relay, seen)
    }

    /// Records which address a router maps to a socket now; true if that is new.
    pub(super) fn map(&self, socket: u32, outer: Option<SocketAddr>) -> bool {
        self.outside.lock().expect("no panic while held").map(socket, outer)
    }

    /// The addresses to announce for a socket in addition to its own, with their ids.
    pub(crate) fn outside_of(&self, socket: &BoundSocket) -> Vec<(u64, SocketAddr)> {
        let outside = self.outside.lock().expect("no panic while held");
        outside.of(socket.id).filter(|(_, seen)| *seen != socket.udp.local_addr()).collect()
    }

    /// The IP addresses of this machine outside of its NATs.
    pub(crate) fn outside_ips(&self) -> Vec<IpAddr> {
        self.outside.lock().expect("no panic while held").ips()
    }

    /// True for a route to a relay that reported this end's address: other sessions have paths through it there.
    pub(crate) fn leads_to_relay(&self, route: Route) -> bool {
        self.outside.lock().expect("no panic while held").is_from(route)
    }

    pub(crate) fn add(&self, socket: Arc<BoundSocket>, receiver: AbortHandle) {
        self.receivers.lock().expect("no panic while held").insert(socket.id, receiver);
        self.bound.write().expect("no panic while held").push(socket);
    }

    pub(crate) fn remove(&self, id: u32) {
        self.bound.write().expect("no panic while held").retain(|socket| {
            if socket.id == id {
                socket.gone.store(true, Ordering::Relaxed);
            }
            socket.id != id
        });
        self.outside.lock().expect("no panic while held").forget(id);
        if let Some(receiver) = self.receivers.lock().expect("no panic while held").remove(&id) {
            receiver.abort();
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for receiver in self.receivers.get_mut().expect("no panic while held").values() {
            receiver.abort();
        }
    }
}
