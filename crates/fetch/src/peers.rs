//! Which address of a server a download uses, without I/O.
//!
//! The machines behind one name may have other versions of a file, or other tags for the same bytes. So the address that answers first is
//! used again, over every route for which the name has it, until it fails: it accepts no connection, does not answer, or answers 5xx twice.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::route::{Outlet, Route};

/// Most addresses that are remembered.
const MOST: usize = 64;

/// The addresses that answered in one download.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    peers: Vec<Peer>,
    /// Addresses that gave no answer over a route, the last one at the end.
    failed: Vec<Peer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    server: (String, u16),
    ip: IpAddr,
    /// Over which route it answered; `None` for one of an earlier attempt.
    by: Option<Outlet>,
    /// It has answered, rather than accepted a connection only.
    answers: bool,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that answered over this route. The name's addresses need not be asked for again.
    pub fn own(&self, server: (&str, u16), route: &Route) -> Option<IpAddr> {
        let by = outlet(route)?;
        let state = self.lock();
        let own = state.answering(server).find(|peer| peer.by.as_ref() == Some(&by));
        own.map(|peer| peer.ip)
    }

    /// The one of these addresses that answered first, over another route or in an earlier attempt.
    pub fn among(&self, server: (&str, u16), addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let state = self.lock();
        let mut answering = state.answering(server);
        answering.find_map(|peer| addresses.iter().find(|address| address.ip() == peer.ip)).copied()
    }

    /// Divides addresses into those to try first, and those that failed over this route, the last one at the end.
    pub fn sorted(
        &self,
        server: (&str, u16),
        route: &Route,
        addresses: Vec<SocketAddr>,
    ) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let (by, state) = (outlet(route), self.lock());
        let place = |address: &SocketAddr| {
            state
                .failed
                .iter()
                .position(|peer| peer.is_of(server) && peer.ip == address.ip() && peer.by == by)
        };
        let (mut failed, fresh): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|address| place(address).is_some());
        failed.sort_by_key(place);
        (fresh, failed)
    }

    /// Notes that an address accepts connections over a route.
    pub fn on_connected(&self, server: (&str, u16), route: &Route, ip: IpAddr) {
        self.put(server, route, (ip, false));
    }

    /// Notes that an address answers over a route.
    pub fn note(&self, server: (&str, u16), route: &Route, ip: IpAddr) {
        self.put(server, route, (ip, true));
    }

    fn put(&self, server: (&str, u16), route: &Route, (ip, answers): (IpAddr, bool)) {
        let Some(by) = outlet(route) else { return };
        let mut state = self.lock();
        let new = Peer { server: (server.0.to_owned(), server.1), ip, by: Some(by), answers };
        if answers {
            state.failed.retain(|peer| peer.server != new.server || peer.by != new.by || peer.ip != ip);
        }
        let own = state.peers.iter().position(|peer| peer.server == new.server && peer.by == new.by);
        match own {
            Some(own) if state.peers[own].ip == ip => state.peers[own].answers |= answers,
            Some(own) => state.peers[own] = new,
            None if state.peers.len() < MOST => state.peers.push(new),
            None => {}
        }
    }

    /// Forgets the address that was used over a route, also as one of an earlier attempt. Others are preferred from now on.
    pub fn forget(&self, server: (&str, u16), route: &Route) {
        let Some(by) = outlet(route) else { return };
        let mut state = self.lock();
        let own = state.peers.iter().position(|peer| peer.is_of(server) && peer.by.as_ref() == Some(&by));
        let Some(own) = own else { return };
        let own = state.peers.remove(own);
        state.peers.retain(|peer| peer.by.is_some() || !peer.is_of(server) || peer.ip != own.ip);
        state.failed.retain(|peer| peer.server != own.server || peer.by != own.by || peer.ip != own.ip);
        if state.failed.len() < MOST {
            state.failed.push(own);
        }
    }

    /// Whether another route has another address than this one.
    pub fn differ(&self, server: (&str, u16), route: &Route) -> bool {
        let own = self.own(server, route);
        own.is_some_and(|own| self.lock().answering(server).any(|peer| peer.ip != own))
    }

    /// The addresses, for a later attempt.
    pub fn list(&self) -> Vec<(String, u16, IpAddr)> {
        let state = self.lock();
        let answering = state.peers.iter().filter(|peer| peer.answers);
        answering.map(|peer| (peer.server.0.clone(), peer.server.1, peer.ip)).collect()
    }

    /// Takes the addresses of an earlier attempt, except those that have failed since.
    pub fn remember(&self, list: &[(String, u16, IpAddr)]) {
        let mut state = self.lock();
        for (host, port, ip) in list.iter().take(MOST) {
            let known = Peer { server: (host.clone(), *port), ip: *ip, by: None, answers: true };
            let has_failed = state.failed.iter().any(|peer| peer.server == known.server && peer.ip == *ip);
            if state.peers.len() < MOST && !has_failed && !state.peers.contains(&known) {
                state.peers.push(known);
            }
        }
    }
}

impl State {
    /// The addresses of a server that answered.
    fn answering<'a>(&'a self, server: (&'a str, u16)) -> impl Iterator<Item = &'a Peer> {
        self.peers.iter().filter(move |peer| peer.is_of(server) && peer.answers)
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

    #[test]
    fn an_address_of_an_earlier_attempt_that_fails_is_tried_last_and_not_taken_again() {
        let (earlier, now, server) = (Peers::default(), Peers::default(), ("a.example", 80));
        let [one, other]: [SocketAddr; 2] = [1, 2].map(|last| ([192, 0, 2, last], 80).into());
        for address in [one, other] {
            earlier.note(server, &route(address.port() as u8), address.ip());
            now.remember(&[("a.example".to_owned(), 80, address.ip())]);
        }
        now.on_connected(server, &Route::System, one.ip());
        assert_eq!(now.own(server, &Route::System), None, "it did not answer");
        now.forget(server, &Route::System);
        now.remember(&earlier.list());
        assert_eq!(now.among(server, &[one, other]), Some(other));
        assert_eq!(now.sorted(server, &Route::System, vec![one, other]), (vec![other], vec![one]));
        assert_eq!(now.sorted(server, &route(3), vec![one, other]), (vec![one, other], vec![]));
        now.on_connected(server, &Route::System, other.ip());
        now.forget(server, &Route::System);
        assert_eq!(now.sorted(server, &Route::System, vec![other, one]), (vec![], vec![one, other]));
        now.note(server, &Route::System, other.ip());
        assert_eq!(now.sorted(server, &Route::System, vec![one, other]), (vec![other], vec![one]));
    }
}
