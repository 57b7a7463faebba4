//! Decides which direct paths a session should have, and when to retry failed ones.
//!
//! The client opens paths. It plans them with [`plan_routes`] from this machine's addresses and the peer's: the given
//! ones and those announced by the peer that may be tried. If the user pinned pairs of addresses, it uses exactly
//! these.
//!
//! The server leaves this to the client for [`HELP_PATIENCE`]. Then it opens paths from those of its addresses that the
//! client has not reached: behind a NAT or a firewall, an address can only be reached where it has sent first. While
//! there is no direct path at all, the server does not wait. Both ends may be behind NATs, and then each lets the
//! other's packets in only after it has sent to the other's announced address itself (RFC 8445 §6.1.4).
//!
//! ```text
//! established, addresses, path events ─▶ Direct ─▶ Open(route), Close(path, reason); next_at() for the next call
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use anabranch_engine::{AbandonReason, PathChange, PathError, PathInfo, PathState, Route};
use anabranch_wire::{PathId, Reach, Side, Span, Time};

use crate::budget::ProbeBudget;
use crate::permission::Reaches;
use crate::plan::{LocalAddress, plan_routes};

const MAX_PEER_ADDRESSES: usize = 32;
/// Most routes with recorded failures.
const MAX_FAILURES: usize = 256;
/// Pause after the first failure; it doubles with each.
const FIRST_PAUSE: Span = Span::from_secs(1);
const LONGEST_PAUSE: Span = Span::from_secs(60);
/// How long a server leaves the opening of paths to its client.
const HELP_PATIENCE: Span = Span::from_secs(3);
/// How long to wait for the next path id from the peer: the first time, and at most. It doubles each time, since a peer
/// may never provide one.
const NOT_READY_PAUSE: [Span; 2] = [Span::from_millis(25), Span::from_secs(2)];
/// Shortest and longest wait for the peer's addresses: a plan without them would soon be replaced.
const ADDRESS_PATIENCE: [Span; 2] = [Span::from_millis(20), Span::from_millis(250)];

/// A decision for the driver to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a path over the route, and report with [`Direct::on_open`].
    Open(Route),
    /// Close the path.
    Close(PathId, AbandonReason),
}

/// The state of machine and session, as input of decisions.
pub struct View<'a> {
    /// This machine's addresses.
    pub locals: &'a [LocalAddress],
    /// The session's paths, without those that are known to lead through relays.
    pub paths: &'a [PathInfo],
    /// Whether an address announced by the peer may be tried.
    pub may_try: &'a dyn Fn(SocketAddr) -> bool,
    /// Whether the user's rules allow a path over a route.
    pub allows: &'a dyn Fn(Route) -> bool,
    /// Whether the peer has answered at an address.
    pub is_proven: &'a dyn Fn(SocketAddr) -> bool,
}

/// The agent for the direct paths of one session.
#[derive(Debug)]
pub struct Direct {
    side: Side,
    /// Pairs of local and remote address pinned by the user, instead of a plan.
    pins: Option<Vec<(IpAddr, SocketAddr)>>,
    /// Addresses of the peer given at this end.
    given: Vec<SocketAddr>,
    /// Addresses that the peer announced.
    announced: Vec<(u64, SocketAddr)>,
    /// The reaches of addresses at which the peer has answered.
    reached: Reaches,
    /// Budget for addresses announced by the peer.
    probes: ProbeBudget,
    failures: BTreeMap<Route, Failures>,
    /// The routes of paths that this end opened.
    opened: Vec<(PathId, Route)>,
    actions: VecDeque<Action>,
    /// The route about to be opened, if its address is announced and unproven.
    probing: Option<Route>,
    is_established: bool,
    /// The session's first path leads through relays.
    is_introduced: bool,
    is_over: bool,
    /// When to plan the next paths.
    plan_at: Time,
    /// How often in a row the peer had not made a path ready.
    not_ready: u32,
    /// When a server starts to open paths that the client could not open.
    help_at: Time,
}

/// Failed attempts at one route.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    retry_at: Time,
}

impl Direct {
    /// An agent for the end that accepts a session.
    pub fn server() -> Self {
        Self::new(Side::Server)
    }

    /// An agent for the end that opens a session with a peer at these addresses.
    pub fn client(given: Vec<SocketAddr>) -> Self {
        Self { given, ..Self::new(Side::Client) }
    }

    /// An agent for the end that opens a session over exactly these pairs of local and remote address.
    pub fn pinned(pins: Vec<(IpAddr, SocketAddr)>, given: Vec<SocketAddr>) -> Self {
        Self { pins: Some(pins), ..Self::client(given) }
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            pins: None,
            given: Vec::new(),
            announced: Vec::new(),
            reached: Reaches::default(),
            probes: ProbeBudget::of_session(),
            failures: BTreeMap::new(),
            opened: Vec::new(),
            actions: VecDeque::new(),
            probing: None,
            is_established: false,
            is_introduced: false,
            is_over: false,
            plan_at: Time::NEVER,
            not_ready: 0,
            help_at: Time::NEVER,
        }
    }

    /// How many paths the user pinned, if any.
    pub fn pin_count(&self) -> Option<usize> {
        self.pins.as_ref().map(Vec::len)
    }

    /// True without an address of the peer to start with.
    pub fn has_no_address(&self) -> bool {
        self.given.is_empty() && self.pins.is_none()
    }

    /// The reaches of addresses at which the peer has answered. `outside` are this machine's addresses outside of its
    /// NATs: if a relay introduced the two and the peer announces one of these, it is behind the same NAT, and private
    /// addresses count as reached.
    ///
    /// That holds only for the client, which chose its peer: the peer's ticket may list private addresses anyway.
    pub fn reached(&self, outside: &[IpAddr]) -> Reaches {
        let mut reached = self.reached;
        let is_shared = |(_, address): &(u64, SocketAddr)| {
            Reach::of(address.ip()) == Reach::Public && outside.contains(&address.ip())
        };
        if self.side == Side::Client && self.is_introduced && self.announced.iter().any(is_shared) {
            reached.add(Reach::Site);
        }
        reached
    }

    /// The routes that race at the start of a session, before the peer has announced anything.
    pub fn first_routes(&self, locals: &[LocalAddress]) -> Vec<Route> {
        self.wanted(locals, |_| false)
    }

    /// The session is established; its first path has the route `first`, or `None` through relays, and this round-trip
    /// time.
    pub fn on_established(&mut self, now: Time, first: Option<Route>, rtt: Span) {
        self.is_established = true;
        self.is_introduced = first.is_none();
        self.reached.extend(first.map(|route| route.remote));
        let [shortest, longest] = ADDRESS_PATIENCE;
        self.plan_at = now + (rtt * 3).clamp(shortest, longest);
        self.help_at = now + HELP_PATIENCE;
    }

    /// The session is over: the agent decides nothing more.
    pub fn on_closed(&mut self) {
        self.is_over = true;
        self.actions.clear();
        self.plan_at = Time::NEVER;
    }

    /// The peer announced an address.
    pub fn on_peer_address(&mut self, now: Time, id: u64, address: SocketAddr) {
        self.on_peer_address_gone(id);
        if self.announced.len() < MAX_PEER_ADDRESSES {
            self.announced.push((id, address));
        }
        self.plan_at = now;
    }

    /// The peer withdrew an address.
    pub fn on_peer_address_gone(&mut self, id: u64) {
        self.announced.retain(|(known, _)| *known != id);
    }

    /// Handles a change of a path; `is_direct` is false for a path through relays.
    pub fn on_path(&mut self, now: Time, path: PathId, change: &PathChange, is_direct: bool) {
        match change {
            PathChange::Opened(route) | PathChange::Moved(route) => {
                self.failures.remove(route);
                if is_direct {
                    self.reached.insert(route.remote);
                }
            }
            PathChange::Closed(reason) => {
                if let Some(route) = self.take_opened(path)
                    && *reason != AbandonReason::Requested
                {
                    self.note_failure(now, route);
                }
            }
            _ => return,
        }
        self.plan_at = self.plan_at.min(now);
    }

    /// Addresses, rules or another input of plans changed. Routes that failed before may work now.
    pub fn on_change(&mut self, now: Time) {
        if self.is_established && !self.is_over {
            self.failures.clear();
            self.plan_at = now;
        }
    }

    /// The latest time of the next [`Self::poll`].
    pub fn next_at(&self) -> Time {
        if self.actions.is_empty() { self.plan_at } else { Time::ZERO }
    }

    /// True when [`Self::poll`] has work; otherwise a driver need not collect a [`View`].
    pub fn is_due(&self, now: Time) -> bool {
        self.next_at() <= now
    }

    /// The next action; `probes` is the budget of all sessions of the endpoint for announced addresses.
    pub fn poll(&mut self, now: Time, view: &View<'_>, probes: &mut ProbeBudget) -> Option<Action> {
        if self.actions.is_empty() && self.plan_at <= now {
            self.plan(now, view);
        }
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Open(route) if !self.may_open(now, route, view, probes) => {}
                action => return Some(action),
            }
        }
        None
    }

    /// The result of [`Action::Open`]; `probes` as for [`Self::poll`].
    pub fn on_open(
        &mut self,
        now: Time,
        route: Route,
        result: Result<PathId, PathError>,
        probes: &mut ProbeBudget,
    ) {
        let was_probe = self.probing.take() == Some(route);
        match result {
            Ok(path) => {
                self.not_ready = 0;
                self.take_opened(path);
                self.opened.push((path, route));
                if was_probe {
                    self.probes.spend(now);
                    probes.spend(now);
                }
            }
            // These concern this route only.
            Err(PathError::Exists | PathError::RuledOut) => {}
            Err(error) => {
                // No further path can be opened now. A closing path causes a new plan anyway.
                self.actions.retain(|action| !matches!(action, Action::Open(_)));
                if error == PathError::NotReady {
                    let [first, longest] = NOT_READY_PAUSE;
                    let pause = (first * (1 << self.not_ready.min(10))).min(longest);
                    self.not_ready = self.not_ready.saturating_add(1);
                    self.plan_at = self.plan_at.min(now + pause);
                }
            }
        }
    }

    fn plan(&mut self, now: Time, view: &View<'_>) {
        self.plan_at = Time::NEVER;
        if !self.is_established || self.is_over {
            return;
        }
        let open = view.paths.iter().filter(|path| path.state != PathState::Closing);
        let in_use: Vec<Route> = open.map(|path| path.route).collect();
        if self.side == Side::Server && now < self.help_at && !in_use.is_empty() {
            self.plan_at = self.help_at;
            return;
        }
        let mut wanted = match self.side {
            Side::Client => self.wanted(view.locals, view.may_try),
            Side::Server => self.unreached(view.locals, &in_use, view.may_try),
        };
        wanted.retain(|route| (view.allows)(*route));
        let missing = wanted.iter().filter(|route| !in_use.contains(route));
        self.actions.extend(missing.map(|route| Action::Open(*route)));
        if self.side == Side::Client {
            let close = |path| Action::Close(path, AbandonReason::Requested);
            let unplanned = self.unplanned(view, &wanted);
            self.actions.extend(unplanned.into_iter().map(close));
        }
    }

    /// All routes that a client wants.
    fn wanted(&self, locals: &[LocalAddress], may_try: impl Fn(SocketAddr) -> bool) -> Vec<Route> {
        if let Some(pins) = &self.pins {
            // An address that went and came back has another socket.
            let route = |(local, remote): &(IpAddr, SocketAddr)| {
                let found = locals.iter().find(|known| known.address == *local)?;
                Some(Route { socket: found.socket, remote: *remote })
            };
            return pins.iter().filter_map(route).collect();
        }
        // The peer has this machine's addresses if both ends run here. Then loopback is better.
        let is_own = |address: &SocketAddr| locals.iter().any(|local| local.address == address.ip());
        let remotes = self.given.iter().copied().chain(self.announced(may_try));
        let remotes: Vec<SocketAddr> =
            remotes.filter(|remote| remote.ip().is_loopback() || !is_own(remote)).collect();
        plan_routes(locals, &remotes)
    }

    /// The routes that a server should open: from its addresses without a path to the peer's, seen and announced.
    fn unreached(
        &self,
        locals: &[LocalAddress],
        in_use: &[Route],
        may_try: impl Fn(SocketAddr) -> bool,
    ) -> Vec<Route> {
        let idle = |local: &&LocalAddress| !in_use.iter().any(|route| route.socket == local.socket);
        let idle: Vec<LocalAddress> = locals.iter().filter(idle).cloned().collect();
        let is_own = |remote: &SocketAddr| locals.iter().any(|local| local.address == remote.ip());
        let seen = in_use.iter().map(|route| route.remote).chain(self.announced(may_try));
        let remotes: Vec<SocketAddr> = seen.filter(|remote| !is_own(remote)).collect();
        plan_routes(&idle, &remotes)
    }

    fn announced(&self, may_try: impl Fn(SocketAddr) -> bool) -> impl Iterator<Item = SocketAddr> {
        self.announced.iter().map(|(_, address)| *address).filter(move |address| may_try(*address))
    }

    /// Paths opened here that are not planned any more, once all planned paths work.
    fn unplanned(&self, view: &View<'_>, wanted: &[Route]) -> Vec<PathId> {
        let works = |path: &&PathInfo| matches!(path.state, PathState::Active | PathState::Suspect);
        let has = |route: &Route| view.paths.iter().filter(works).any(|path| path.route == *route);
        let is_unplanned = |path: &&PathInfo| {
            path.state != PathState::Closing && path.id.opener() == self.side && !wanted.contains(&path.route)
        };
        let all_work = !wanted.is_empty() && wanted.iter().all(has);
        match all_work {
            true => view.paths.iter().filter(is_unplanned).map(|path| path.id).collect(),
            false => Vec::new(),
        }
    }

    /// Whether a planned route may be tried now; otherwise schedules the next plan.
    fn may_open(&mut self, now: Time, route: Route, view: &View<'_>, probes: &mut ProbeBudget) -> bool {
        let is_pinned = self.pins.iter().flatten().any(|(_, remote)| *remote == route.remote);
        let is_given = is_pinned || self.given.contains(&route.remote);
        let is_probe = !is_given && !(view.is_proven)(route.remote);
        let mut due = self.retry_at(&route);
        if is_probe {
            due = due.max(self.probes.next_at(now)).max(probes.next_at(now));
        }
        if due > now {
            self.plan_at = self.plan_at.min(due);
            return false;
        }
        self.probing = is_probe.then_some(route);
        true
    }

    /// Removes and returns the route of a closed path, if this end opened it.
    fn take_opened(&mut self, path: PathId) -> Option<Route> {
        let index = self.opened.iter().position(|(known, _)| *known == path)?;
        Some(self.opened.swap_remove(index).1)
    }

    /// Records that a route did not open, or closed again: it then pauses.
    fn note_failure(&mut self, now: Time, route: Route) {
        if self.failures.len() >= MAX_FAILURES && !self.failures.contains_key(&route) {
            self.failures.pop_first();
        }
        let failures = self.failures.entry(route).or_insert(Failures { count: 0, retry_at: now });
        let pause = FIRST_PAUSE * (1 << failures.count.min(6));
        failures.count += 1;
        failures.retry_at = now + pause.min(LONGEST_PAUSE);
    }

    /// When the route may be tried.
    fn retry_at(&self, route: &Route) -> Time {
        self.failures.get(route).map_or(Time::ZERO, |failures| failures.retry_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::path;
    use anabranch_engine::Prefix;

    fn route(port: u16) -> Route {
        Route { socket: 0, remote: SocketAddr::from(([10, 0, 0, 2], port)) }
    }

    fn local(socket: u8) -> LocalAddress {
        LocalAddress {
            socket: socket.into(),
            address: [192, 168, socket, 2].into(),
            prefix: 24,
            interface: socket.into(),
            routes: vec![Prefix { address: [0, 0, 0, 0].into(), bits: 0 }],
        }
    }

    /// Opens all routes that an agent wants at `now`, in a session without paths or proven addresses.
    fn opened(agent: &mut Direct, now: Time, locals: &[LocalAddress]) -> Vec<Route> {
        opened_beside(agent, now, (locals, &[]))
    }

    /// The same in a session with these paths.
    fn opened_beside(
        agent: &mut Direct,
        now: Time,
        (locals, paths): (&[LocalAddress], &[PathInfo]),
    ) -> Vec<Route> {
        let view = View { locals, paths, may_try: &|_| true, allows: &|_| true, is_proven: &|_| false };
        let mut probes = ProbeBudget::of_endpoint();
        let mut routes = Vec::new();
        while let Some(Action::Open(route)) = agent.poll(now, &view, &mut probes) {
            agent.on_open(now, route, Ok(PathId(routes.len() as u32 * 2)), &mut probes);
            routes.push(route);
        }
        routes
    }

    #[test]
    fn a_route_that_fails_is_tried_again_ever_more_rarely() {
        let mut agent = Direct::client(Vec::new());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            agent.note_failure(Time::ZERO, route(1));
            pauses.push(agent.retry_at(&route(1)).as_secs_f64());
        }
        assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
        agent.on_path(Time::ZERO, PathId(2), &PathChange::Opened(route(1)), true);
        assert_eq!(agent.retry_at(&route(1)), Time::ZERO);
    }

    #[test]
    fn pins_take_the_place_of_the_plan() {
        let here = local(1);
        let agent = Direct::pinned(vec![(here.address, route(7).remote)], vec![route(8).remote]);
        assert_eq!(agent.first_routes(&[here.clone(), local(2)]), [Route { socket: 1, ..route(7) }]);
        assert_eq!(agent.first_routes(&[local(2)]), []);
        let again = LocalAddress { socket: 3, ..here };
        assert_eq!(agent.first_routes(&[local(2), again]), [Route { socket: 3, ..route(7) }]);
    }

    #[test]
    fn a_server_opens_paths_only_from_addresses_that_the_client_has_not_reached() {
        let seen = Route { socket: 1, remote: SocketAddr::from(([203, 0, 113, 9], 4000)) };
        let agent = Direct::server();
        let unreached = |locals: &[LocalAddress]| agent.unreached(locals, &[seen], |_| true);
        assert_eq!(unreached(&[local(1), local(2)]), [Route { socket: 2, ..seen }]);
        assert_eq!(unreached(&[local(1)]), []);
    }

    #[test]
    fn a_client_plans_once_the_addresses_of_its_peer_can_be_there_and_a_server_when_its_client_had_time() {
        let begin = Time::ZERO + Span::from_secs(1);
        let address = SocketAddr::from(([8, 8, 8, 8], 4433));
        let first = Some(Route { socket: 1, remote: address });
        let mut client = Direct::client(vec![address]);
        assert_eq!(client.next_at(), Time::NEVER);
        client.on_established(begin, first, Span::from_millis(40));
        assert_eq!(client.next_at(), begin + Span::from_millis(120));
        assert_eq!(opened(&mut client, begin, &[local(1), local(2)]), []);
        let planned = opened(&mut client, begin + Span::from_millis(120), &[local(1), local(2)]);
        assert_eq!(planned.iter().map(|route| route.socket).collect::<Vec<_>>(), [1, 2]);

        let mut server = Direct::server();
        server.on_established(begin, first, Span::from_millis(40));
        server.on_peer_address(begin, 1, address);
        let [one, two] = [local(1), local(2)];
        let path = PathInfo { route: Route { socket: 1, remote: address }, ..path(0, (0, 0)) };
        let view = (&[one, two][..], &[path][..]);
        assert_eq!(opened_beside(&mut server, begin, view), []);
        assert_eq!(server.next_at(), begin + HELP_PATIENCE);
        let other = Route { socket: 2, remote: address };
        assert_eq!(opened_beside(&mut server, begin + HELP_PATIENCE, view), [other]);
    }

    #[test]
    fn without_a_direct_path_a_server_opens_one_as_soon_as_its_client_announces_an_address() {
        let begin = Time::ZERO + Span::from_secs(1);
        let address = SocketAddr::from(([8, 8, 8, 8], 4433));
        let mut server = Direct::server();
        server.on_established(begin, None, Span::from_millis(40));
        assert_eq!(opened(&mut server, begin, &[local(1)]), []);
        server.on_peer_address(begin, 1, address);
        assert_eq!(opened(&mut server, begin, &[local(1)]), [Route { socket: 1, remote: address }]);
    }

    #[test]
    fn a_client_may_try_private_addresses_of_a_peer_that_a_relay_introduced_behind_the_same_nat() {
        let outside = SocketAddr::from(([8, 8, 8, 8], 4433));
        let reached = |mut agent: Direct, first: Option<Route>, own: [u8; 4]| {
            agent.on_established(Time::ZERO, first, Span::ZERO);
            agent.on_peer_address(Time::ZERO, 1, outside);
            agent.reached(&[own.into()]).contains(Reach::Site)
        };
        let client = || Direct::client(Vec::new());
        assert!(reached(client(), None, [8, 8, 8, 8]));
        assert!(!reached(client(), None, [9, 9, 9, 9]), "behind another NAT");
        let relay = Route { socket: 0, remote: SocketAddr::from(([9, 9, 9, 9], 4600)) };
        assert!(!reached(client(), Some(relay), [8, 8, 8, 8]), "a relay that repeats what it reported");
        assert!(!reached(Direct::server(), None, [8, 8, 8, 8]), "a client that anyone may be");
    }

    #[test]
    fn a_peer_that_announces_one_address_after_the_other_has_few_tried() {
        let mut agent = Direct::client(Vec::new());
        agent.on_established(Time::ZERO, None, Span::ZERO);
        let mut tried = 0;
        for number in 0..1_000_u16 {
            agent.on_peer_address_gone(u64::from(number) - u64::from(number.min(1)));
            agent.on_peer_address(Time::ZERO, number.into(), SocketAddr::from(([8, 8, 8, 8], number + 1)));
            tried += opened(&mut agent, Time::ZERO, &[local(1)]).len();
        }
        assert_eq!(tried, 32);
    }

    #[test]
    fn a_peer_that_never_makes_a_path_ready_is_asked_ever_more_rarely() {
        let address = SocketAddr::from(([8, 8, 8, 8], 4433));
        let mut agent = Direct::client(vec![address]);
        agent.on_established(Time::ZERO, None, Span::ZERO);
        let (route, mut probes) = (Route { socket: 1, remote: address }, ProbeBudget::of_endpoint());
        let [may_try, is_proven] = [true, false].map(|answer| move |_: SocketAddr| answer);
        let locals = [local(1)];
        let view =
            View { locals: &locals, paths: &[], may_try: &may_try, allows: &|_| true, is_proven: &is_proven };
        let mut asked = Vec::new();
        while asked.len() < 9 {
            let now = agent.next_at();
            assert_eq!(agent.poll(now, &view, &mut probes), Some(Action::Open(route)));
            agent.on_open(now, route, Err(PathError::NotReady), &mut probes);
            asked.push(agent.next_at().since(now).as_secs_f64());
        }
        assert_eq!(asked, [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]);
    }

    #[test]
    fn a_change_of_this_machine_ends_the_pauses_of_routes_that_failed() {
        let address = SocketAddr::from(([8, 8, 8, 8], 4433));
        let mut agent = Direct::client(vec![address]);
        agent.on_established(Time::ZERO, None, Span::ZERO);
        let later = Time::ZERO + Span::from_secs(1);
        for _ in 0..9 {
            agent.note_failure(Time::ZERO, Route { socket: 1, remote: address });
        }
        assert_eq!(opened(&mut agent, later, &[local(1)]), []);
        agent.on_change(later);
        assert_eq!(opened(&mut agent, later, &[local(1)]), [Route { socket: 1, remote: address }]);
    }

    #[test]
    fn memory_stays_bounded_however_many_addresses_and_failures_there_are() {
        let mut agent = Direct::client(Vec::new());
        for port in 0..1000 {
            agent.on_peer_address(Time::ZERO, u64::from(port), route(port).remote);
            agent.note_failure(Time::ZERO, route(port));
        }
        assert!(agent.announced.len() <= MAX_PEER_ADDRESSES && agent.failures.len() <= MAX_FAILURES);
    }
}
