//! Which address of a server a download uses, without I/O.
//!
//! The machines behind one name may have other versions of a file, or other tags for the same bytes. So the address that answers first is
//! used again, over every route for which the name has it, until it accepts no connection or gives no answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::route::{Outlet, Route};

/// Most addresses that are remembered.
const MOST: usize = 64;

/// The addresses that answered in one download.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<Mutex<Vec<Peer>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    server: (String, u16),
    ip: IpAddr,
    /// Over which route it answered; `None` for one of an earlier attempt.
    by: Option<Outlet>,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that answered over this route. The name's addresses need not be asked for again.
    pub fn own(&self, server: (&str, u16), route: &Route) -> Option<IpAddr> {
        let by = outlet(route)?;
        let peers = self.lock();
        let own = peers.iter().find(|peer| peer.is_of(server) && peer.by.as_ref() == Some(&by));
        own.map(|peer| peer.ip)
    }

    /// The one of these addresses that answered first, over another route or in an earlier attempt.
    pub fn among(&self, server: (&str, u16), addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let peers = self.lock();
        let mut of_server = peers.iter().filter(|peer| peer.is_of(server));
        of_server.find_map(|peer| addresses.iter().find(|address| address.ip() == peer.ip)).copied()
    }

    /// Notes that an address answers over a route.
    pub fn note(&self, server: (&str, u16), route: &Route, ip: IpAddr) {
        let Some(by) = outlet(route) else { return };
        let mut peers = self.lock();
        let own = peers.iter().position(|peer| peer.is_of(server) && peer.by.as_ref() == Some(&by));
        match own {
            Some(own) => peers[own].ip = ip,
            None if peers.len() < MOST => {
                peers.push(Peer { server: (server.0.to_owned(), server.1), ip, by: Some(by) });
            }
            None => {}
        }
    }

    /// Forgets the address that answered over a route.
    pub fn forget(&self, server: (&str, u16), route: &Route) {
        let by = outlet(route);
        self.lock().retain(|peer| !peer.is_of(server) || by.is_none() || peer.by != by);
    }

    /// Whether another route has another address than this one.
    pub fn differ(&self, server: (&str, u16), route: &Route) -> bool {
        let own = self.own(server, route);
        own.is_some_and(|own| self.lock().iter().any(|peer| peer.is_of(server) && peer.ip != own))
    }

    /// The addresses, for a later attempt.
    pub fn list(&self) -> Vec<(String, u16, IpAddr)> {
        self.lock().iter().map(|peer| (peer.server.0.clone(), peer.server.1, peer.ip)).collect()
    }

    /// Takes the addresses of an earlier attempt.
    pub fn remember(&self, list: &[(String, u16, IpAddr)]) {
        let mut peers = self.lock();
        for (host, port, ip) in list.iter().take(MOST) {
            let known = Peer { server: (host.clone(), *port), ip: *ip, by: None };
            if peers.len() < MOST && !peers.contains(&known) {
                peers.push(known);
            }
        }
    }
}

impl Peer {
    fn is_of(&self, (host, port): (&str, u16)) -> bool {
        self.server.0 == host && self.server.1 == port
    }
}

/// The interface and addresses of a route; `None` for an exit, which chooses the server's address itself.
fn outlet(route: &Route) -> Option<Outlet> {
    match route {
        Route::System => Some(Outlet { interface: None, addresses: Vec::new() }),
        Route::Outlet(outlet) => Some(outlet.clone()),
        Route::Exit(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(last: u8) -> Route {
        Route::Outlet(Outlet { interface: None, addresses: vec![[127, 0, 0, last].into()] })
    }

    #[test]
    fn routes_share_an_address_that_the_name_has_for_both() {
        let (peers, server) = (Peers::default(), ("a.example", 80));
        let [one, other]: [SocketAddr; 2] = [1, 2].map(|last| ([192, 0, 2, last], 80).into());
        assert_eq!((peers.own(server, &route(2)), peers.among(server, &[one, other])), (None, None));
        peers.note(server, &route(2), other.ip());
        assert_eq!(peers.own(server, &route(2)), Some(other.ip()));
        assert_eq!(peers.own(server, &route(3)), None, "it may not lead there");
        assert_eq!(peers.among(server, &[one, other]), Some(other));
        assert_eq!(peers.among(server, &[one]), None);
        assert_eq!(peers.among(("a.example", 443), &[other]), None);
        peers.note(server, &route(3), one.ip());
        assert!(peers.differ(server, &route(3)) && !peers.differ(server, &Route::System));
        peers.forget(server, &route(3));
        assert_eq!(peers.own(server, &route(3)), None);
        assert_eq!(peers.own(server, &route(2)), Some(other.ip()));
    }

    #[test]
    fn an_earlier_attempt_decides_among_the_addresses_of_today() {
        let (earlier, now, server) = (Peers::default(), Peers::default(), ("a.example", 80));
        let [one, other]: [SocketAddr; 2] = [1, 2].map(|last| ([192, 0, 2, last], 80).into());
        earlier.note(server, &Route::System, other.ip());
        now.remember(&earlier.list());
        now.remember(&earlier.list());
        assert_eq!((now.own(server, &Route::System), now.list().len()), (None, 1));
        assert_eq!(now.among(server, &[one, other]), Some(other));
    }
}
