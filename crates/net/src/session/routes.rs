//! Which paths a session should have, and when to try again those that did not open.
//!
//! The client opens paths. It wants what [`plan_routes`] says for this machine's addresses and the peer's
//! (those it was given, and those the peer announced that may be tried), or exactly the pairs that the user pinned.
//!
//! The server leaves that to the client for a while. Then it opens paths from those of its addresses that
//! the client has not reached: behind a NAT or a firewall it can only be reached where it spoke first.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anabranch_agent::{ProbeBudget, Reaches};
use anabranch_engine::{LocalAddress, Route, plan_routes};
use anabranch_wire::{PathId, Span, Time};

/// Addresses of the peer that are considered.
const MAX_PEER_ADDRESSES: usize = 32;
/// Routes whose failures are remembered.
const MAX_REMEMBERED: usize = 256;
/// Pause after the first failure; it doubles with each.
const FIRST_PAUSE: Span = Span::from_secs(1);
/// Longest pause.
const LONGEST_PAUSE: Span = Span::from_secs(60);

/// What a session knows about the routes to its peer.
#[derive(Debug)]
pub(crate) struct RouteBook {
    /// Pairs that the user asked for, instead of a plan.
    pub(crate) pins: Option<Vec<Route>>,
    /// Addresses that the user gave.
    pub(crate) given: Vec<SocketAddr>,
    /// Addresses that the peer announced.
    told: Vec<(u64, SocketAddr)>,
    /// How far the addresses reach at which the peer has answered.
    pub(crate) reached: Reaches,
    /// Attempts at addresses that the peer announced.
    pub(crate) probes: ProbeBudget,
    failures: BTreeMap<Route, (u32, Time)>,
    /// Where the paths lead that were opened here.
    paths: Vec<(PathId, Route)>,
}

impl Default for RouteBook {
    fn default() -> Self {
        Self {
            pins: None,
            given: Vec::new(),
            told: Vec::new(),
            reached: Reaches::default(),
            probes: ProbeBudget::of_session(),
            failures: BTreeMap::new(),
            paths: Vec::new(),
        }
    }
}

impl RouteBook {
    /// The peer has this address too.
    pub(crate) fn add_peer_address(&mut self, id: u64, address: SocketAddr) {
        self.remove_peer_address(id);
        if self.told.len() < MAX_PEER_ADDRESSES {
            self.told.push((id, address));
        }
    }

    /// The peer lost it.
    pub(crate) fn remove_peer_address(&mut self, id: u64) {
        self.told.retain(|(known, _)| *known != id);
    }

    /// The addresses that the peer announced and that pass `may_try`.
    fn announced(&self, may_try: impl Fn(SocketAddr) -> bool) -> impl Iterator<Item = SocketAddr> {
        self.told.iter().map(|(_, address)| *address).filter(move |address| may_try(*address))
    }

    /// True when this end chose to call the address.
    pub(crate) fn is_given(&self, address: SocketAddr) -> bool {
        self.given.contains(&address) || self.pins.iter().flatten().any(|route| route.remote == address)
    }

    /// All routes that would be good to have; of the addresses that the peer announced, those that pass `may_try` count.
    pub(crate) fn wanted(&self, locals: &[LocalAddress], may_try: impl Fn(SocketAddr) -> bool) -> Vec<Route> {
        if let Some(pins) = &self.pins {
            return pins.clone();
        }
        let own = |address: &SocketAddr| locals.iter().any(|local| local.address == address.ip());
        let remotes: Vec<SocketAddr> = self.given.iter().copied().chain(self.announced(may_try)).collect();
        // Own addresses are the peer's too when both are on one machine, which loopback serves better.
        let remotes: Vec<SocketAddr> =
            remotes.into_iter().filter(|remote| remote.ip().is_loopback() || !own(remote)).collect();
        plan_routes(locals, &remotes)
    }

    /// The routes that a server should open: from local addresses without a path, to where the client was
    /// seen and says it is.
    pub(crate) fn unreached(
        &self,
        locals: &[LocalAddress],
        in_use: &[Route],
        may_try: impl Fn(SocketAddr) -> bool,
    ) -> Vec<Route> {
        let idle = |local: &&LocalAddress| !in_use.iter().any(|route| route.socket == local.socket);
        let idle: Vec<LocalAddress> = locals.iter().filter(idle).cloned().collect();
        let own = |remote: &SocketAddr| locals.iter().any(|local| local.address == remote.ip());
        let seen = in_use.iter().map(|route| route.remote).chain(self.announced(may_try));
        let remotes: Vec<SocketAddr> = seen.filter(|remote| !own(remote)).collect();
        plan_routes(&idle, &remotes)
    }

    /// A path is being opened over the route.
    pub(crate) fn note_path(&mut self, path: PathId, route: Route) {
        self.take_path(path);
        self.paths.push((path, route));
    }

    /// The route of a path that is gone, if it was opened here.
    pub(crate) fn take_path(&mut self, path: PathId) -> Option<Route> {
        let index = self.paths.iter().position(|(known, _)| *known == path)?;
        Some(self.paths.swap_remove(index).1)
    }

    /// The route opened.
    pub(crate) fn note_open(&mut self, route: &Route) {
        self.failures.remove(route);
    }

    /// The route did not open, or closed again: leave it alone for a while.
    pub(crate) fn note_failure(&mut self, now: Time, route: Route) {
        if self.failures.len() >= MAX_REMEMBERED && !self.failures.contains_key(&route) {
            self.failures.pop_first();
        }
        let (count, retry_at) = self.failures.entry(route).or_insert((0, now));
        let pause = FIRST_PAUSE * (1 << (*count).min(6));
        *count += 1;
        *retry_at = now + pause.min(LONGEST_PAUSE);
    }

    /// When the route may be tried.
    pub(crate) fn retry_at(&self, route: &Route) -> Time {
        self.failures.get(route).map_or(Time::ZERO, |(_, retry_at)| *retry_at)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_engine::Prefix;

    use super::*;

    fn route(port: u16) -> Route {
        Route { socket: 0, remote: SocketAddr::from(([10, 0, 0, 2], port)) }
    }

    #[test]
    fn a_route_that_fails_is_tried_again_ever_more_rarely() {
        let mut book = RouteBook::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            book.note_failure(Time::ZERO, route(1));
            pauses.push(book.retry_at(&route(1)).as_secs_f64());
        }
        assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
        book.note_open(&route(1));
        assert_eq!(book.retry_at(&route(1)), Time::ZERO);
    }

    #[test]
    fn pins_take_the_place_of_the_plan() {
        let book =
            RouteBook { pins: Some(vec![route(7)]), given: vec![route(8).remote], ..RouteBook::default() };
        assert_eq!(book.wanted(&[], |_| true), [route(7)]);
    }

    #[test]
    fn a_server_opens_paths_only_from_addresses_that_the_client_has_not_reached() {
        let everywhere = Prefix { address: [0, 0, 0, 0].into(), bits: 0 };
        let local = |socket: u32| LocalAddress {
            socket,
            address: [192, 168, socket as u8, 2].into(),
            prefix: 24,
            interface: socket,
            routes: vec![everywhere],
        };
        let seen = Route { socket: 1, remote: SocketAddr::from(([203, 0, 113, 9], 4000)) };
        let book = RouteBook::default();
        let unreached = |locals: &[LocalAddress]| book.unreached(locals, &[seen], |_| true);
        assert_eq!(unreached(&[local(1), local(2)]), [Route { socket: 2, ..seen }]);
        assert_eq!(unreached(&[local(1)]), []);
    }

    #[test]
    fn a_peer_cannot_fill_the_book() {
        let mut book = RouteBook::default();
        for port in 0..1000 {
            book.add_peer_address(u64::from(port), route(port).remote);
            book.note_failure(Time::ZERO, route(port));
        }
        assert!(book.told.len() <= MAX_PEER_ADDRESSES && book.failures.len() <= MAX_REMEMBERED);
    }
}
