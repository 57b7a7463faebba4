//! Presents paths through relays to the engine as paths over sockets of their own.
//!
//! The number of a chain of relays represents the real socket, the first relay's address and the PID of this relay
//! ([`Chain`]). Packets sent over the chain carry that PID and go to that relay. Packets from there for the path's own
//! PID count as received over the chain. So relayed and direct paths compete by the same rules.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, RwLock};

use anabranch_engine::Route;
use anabranch_secure::PublicKey;
use anabranch_wire::{Pid, PidHasher};

/// Numbers from here on represent chains, not sockets.
const FIRST_NUMBER: u32 = 1 << 31;

/// Relays that are ready to carry one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The socket that packets leave by, and the first relay's address.
    pub entry: Route,
    /// The PID that the first relay allocated, for packets to it.
    pub forward: Pid,
    /// The PID that the last relay allocated, for the peer's packets to it.
    pub back: Pid,
    /// The relays' keys in order, to be shown.
    pub relays: Vec<PublicKey>,
}

/// A chain in use.
#[derive(Debug)]
pub(crate) struct Via {
    pub(crate) number: u32,
    pub(crate) chain: Chain,
}

impl Via {
    /// The route under which the engine knows it.
    pub(crate) fn route(&self) -> Route {
        Route { socket: self.number, remote: self.chain.entry.remote }
    }
}

/// All chains in use by an endpoint's sessions.
#[derive(Default)]
pub(crate) struct Relayed {
    /// False while there are no chains; read for every packet.
    any: AtomicBool,
    next: AtomicU32,
    tables: RwLock<Tables>,
    /// Addresses of relays through which peers reach this node, with the relays' keys.
    entrances: RwLock<Vec<(SocketAddr, PublicKey)>>,
}

#[derive(Default)]
struct Tables {
    by_own: HashMap<Pid, Arc<Via>, BuildHasherDefault<PidHasher>>,
    by_number: BTreeMap<u32, Arc<Via>>,
}

impl Relayed {
    /// Registers a chain for the path that receives under the PID `own`, until that PID is retired.
    pub(crate) fn add(&self, own: Pid, chain: Chain) -> Arc<Via> {
        let number = FIRST_NUMBER | self.next.fetch_add(1, Ordering::Relaxed);
        let via = Arc::new(Via { number, chain });
        let mut tables = self.tables.write().expect("no panic while held");
        if let Some(old) = tables.by_own.insert(own, via.clone()) {
            tables.by_number.remove(&old.number);
        }
        tables.by_number.insert(number, via.clone());
        self.any.store(true, Ordering::Release);
        via
    }

    /// Records the addresses of a relay through which peers reach this node.
    pub(crate) fn add_entrances(&self, relay: &PublicKey, addresses: impl IntoIterator<Item = SocketAddr>) {
        let mut known = self.entrances.write().expect("no panic while held");
        known.retain(|(_, of)| of != relay);
        known.extend(addresses.into_iter().map(|address| (address, *relay)));
    }

    /// The relay with this address, if peers reach this node through it.
    pub(crate) fn entrance(&self, address: SocketAddr) -> Option<PublicKey> {
        let known = self.entrances.read().expect("no panic while held");
        known.iter().find(|(of, _)| *of == address).map(|(_, relay)| *relay)
    }

    /// The addresses of such relays, with their keys as text.
    pub(crate) fn entrances(&self) -> Arc<[(SocketAddr, String)]> {
        let known = self.entrances.read().expect("no panic while held");
        known.iter().map(|(address, relay)| (*address, relay.to_string())).collect()
    }

    /// Removes the chain of the path that received under this PID.
    pub(crate) fn remove(&self, own: Pid) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut tables = self.tables.write().expect("no panic while held");
        if let Some(via) = tables.by_own.remove(&own) {
            tables.by_number.remove(&via.number);
        }
        self.any.store(!tables.by_own.is_empty(), Ordering::Release);
    }

    /// The chain with this number, if any.
    pub(crate) fn find(&self, socket: u32) -> Option<Arc<Via>> {
        if socket < FIRST_NUMBER {
            return None;
        }
        self.tables.read().expect("no panic while held").by_number.get(&socket).cloned()
    }

    /// The real socket behind a number.
    pub(crate) fn real_socket(&self, socket: u32) -> Option<u32> {
        if socket < FIRST_NUMBER { Some(socket) } else { self.find(socket).map(|via| via.chain.entry.socket) }
    }

    /// The route on which the engine sees a packet for one of this end's PIDs arrive.
    pub(crate) fn arrival(&self, own: Pid, route: Route) -> Route {
        if !self.any.load(Ordering::Acquire) {
            return route;
        }
        let tables = self.tables.read().expect("no panic while held");
        match tables.by_own.get(&own).filter(|via| via.chain.entry == route) {
            Some(via) => via.route(),
            None => route,
        }
    }
}

/// True if a socket number represents a chain.
pub(crate) fn is_chain(socket: u32) -> bool {
    socket >= FIRST_NUMBER
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn a_chain_stands_for_its_first_relay_until_its_pid_is_retired() {
        let relayed = Relayed::default();
        let entry = Route { socket: 3, remote: SocketAddr::from(([10, 0, 0, 1], 9)) };
        let chain = Chain { entry, forward: Pid(5), back: Pid(6), relays: Vec::new() };
        let via = relayed.add(Pid(7), chain);
        assert!(is_chain(via.number) && !is_chain(3));
        assert_eq!(relayed.arrival(Pid(7), entry), via.route());
        assert_eq!(relayed.arrival(Pid(8), entry), entry);
        let elsewhere = Route { socket: 4, ..entry };
        assert_eq!(relayed.arrival(Pid(7), elsewhere), elsewhere);
        assert_eq!(relayed.real_socket(via.number), Some(3));
        relayed.remove(Pid(7));
        assert_eq!((relayed.real_socket(via.number), relayed.arrival(Pid(7), entry)), (None, entry));
    }
}
