//! A flow whose paths the path agent opens and closes.
//!
//! It carries out the decisions of [`anabranch_agent`], as the driver over sockets does. Each direct path starts at its
//! own interface; the path's number is its socket. The paths after the direct ones lead through relays and are the
//! candidates.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_agent::{
    Action, Candidate, Direct, HEAD_START, LocalAddress, ProbeBudget, RelayAction, RelayChoice, Retry, View,
};
use anabranch_engine::{AbandonReason, Event, PathChange, PathError, PathInfo, PathState, Route, Session};
use anabranch_wire::{PathId, Span, Time};

use super::super::load::Load;
use super::super::plan::{AgentPlan, Decided, Decision};
use super::{CLIENT, REMOTE, SERVER};

/// Pause while the peer has not provided the next path id.
const NOT_READY_PAUSE: Span = Span::from_millis(5);
/// Most decisions that are recorded.
const MAX_DECISIONS: usize = 4_096;

/// The state of a candidate.
#[derive(Debug, Default)]
enum Relayed {
    #[default]
    Unused,
    /// To be opened at this time.
    OpensAt(Time),
    /// In use.
    Has { path: PathId, was_open: bool },
    /// To be closed as soon as another path works.
    Leaving(PathId),
}

/// The agents of one flow's session, and their decisions.
pub(crate) struct Guided {
    plan: Arc<AgentPlan>,
    agents: [Direct; 2],
    choice: RelayChoice,
    relayed: Vec<(Relayed, Retry)>,
    probes: ProbeBudget,
    /// Which direct paths have an interface now.
    is_up: Vec<bool>,
    /// How many interface changes have happened.
    changed: usize,
    started_at: Time,
    /// When relays join the race for the first path.
    relays_race_at: Time,
    is_established: bool,
    /// The closed paths of each end with their last counters. The sessions forget them.
    closed: [BTreeMap<PathId, PathInfo>; 2],
    /// Decisions at the client, oldest first.
    pub decisions: Vec<Decided>,
}

impl Guided {
    /// A guide for a flow with this many paths.
    pub(super) fn new(plan: Arc<AgentPlan>, paths: usize) -> Self {
        let candidates = paths.saturating_sub(plan.direct);
        Self {
            agents: [Direct::client(vec![REMOTE[CLIENT]]), Direct::server()],
            choice: RelayChoice::new(candidates, plan.relays_at_once),
            relayed: (0..candidates).map(|_| Default::default()).collect(),
            probes: ProbeBudget::of_endpoint(),
            is_up: vec![true; plan.direct],
            changed: 0,
            started_at: Time::ZERO,
            relays_race_at: Time::NEVER,
            is_established: false,
            closed: Default::default(),
            decisions: Vec::new(),
            plan,
        }
    }

    /// The routes that race at the start.
    pub(super) fn begin(&mut self, now: Time) -> Vec<Route> {
        self.started_at = now;
        self.relays_race_at = if self.relayed.is_empty() { Time::NEVER } else { now + HEAD_START };
        self.agents[CLIENT].first_routes(&self.locals(CLIENT))
    }

    /// An end's addresses: one for each direct path.
    fn locals(&self, end: usize) -> Vec<LocalAddress> {
        let address = REMOTE[1 - end].ip();
        let local = |socket: usize| LocalAddress {
            socket: socket as u32,
            address,
            prefix: 24,
            interface: socket as u32,
            routes: Vec::new(),
        };
        // Only the client's interfaces change.
        (0..self.plan.direct).filter(|path| end == SERVER || self.is_up[*path]).map(local).collect()
    }

    /// True for a direct path without an interface: packets to it are lost.
    pub(super) fn is_cut(&self, path: usize) -> bool {
        self.is_up.get(path).is_some_and(|is_up| !is_up)
    }

    fn route_of(&self, candidate: usize) -> Route {
        Route { socket: (self.plan.direct + candidate) as u32, remote: REMOTE[CLIENT] }
    }

    fn is_direct(&self, route: &Route) -> bool {
        (route.socket as usize) < self.plan.direct
    }

    pub(super) fn on_event(&mut self, now: Time, end: usize, event: &Event, session: &Session<Load>) {
        match event {
            Event::Established => {
                let first = session.paths().into_iter().next();
                let rtt = first.as_ref().map_or(Span::ZERO, |path| path.rtt);
                let route = first.map(|path| path.route);
                let direct = route.filter(|route| self.is_direct(route));
                self.agents[end].on_established(now, direct, rtt);
                if end == CLIENT {
                    self.is_established = true;
                    self.relays_race_at = Time::NEVER;
                    if let Some(route) = route.filter(|route| !self.is_direct(route)) {
                        let candidate = route.socket as usize - self.plan.direct;
                        self.relayed[candidate].0 = Relayed::Has { path: PathId::FIRST, was_open: true };
                    }
                }
            }
            Event::Path { path, change } => {
                let is_direct = match change {
                    PathChange::Opened(route) | PathChange::Moved(route) => self.is_direct(route),
                    _ => true,
                };
                self.agents[end].on_path(now, *path, change, is_direct);
                if end == CLIENT {
                    self.on_relayed_path(now, *path, change);
                }
            }
            Event::Closed(_) => self.agents[end].on_closed(),
            _ => {}
        }
    }

    fn on_relayed_path(&mut self, now: Time, id: PathId, change: &PathChange) {
        for (relayed, retry) in &mut self.relayed {
            match (&mut *relayed, change) {
                (Relayed::Has { path, was_open }, PathChange::Opened(_)) if *path == id => *was_open = true,
                (Relayed::Has { path, was_open }, PathChange::Closed(_)) if *path == id => {
                    *relayed = Relayed::OpensAt(retry.on_failed(now, *was_open));
                }
                (Relayed::Leaving(path), PathChange::Closed(_)) if *path == id => *relayed = Relayed::Unused,
                _ => {}
            }
        }
    }

    /// Carries out the decisions that are due at an end.
    pub(super) fn act(&mut self, now: Time, end: usize, session: &mut Session<Load>) {
        if end == CLIENT {
            self.change_interfaces(now, session);
            self.race_relays(now, session);
        }
        self.follow_direct(now, end, session);
        if end == CLIENT && self.is_established {
            self.follow_choice(now, session);
            for candidate in 0..self.relayed.len() {
                self.carry_on(now, candidate, session);
            }
        }
        self.closed[end].extend(session.closing_paths().map(|path| (path.id, path)));
    }

    /// The closed paths of an end that are not among these.
    pub(super) fn closed_besides(&self, end: usize, known: &[PathInfo]) -> Vec<PathInfo> {
        let is_known = |id: PathId| known.iter().any(|path| path.id == id);
        self.closed[end].values().filter(|path| !is_known(path.id)).cloned().collect()
    }

    /// Applies the interface changes that are due.
    fn change_interfaces(&mut self, now: Time, session: &mut Session<Load>) {
        let plan = Arc::clone(&self.plan);
        while let Some(change) = plan.interfaces.get(self.changed) {
            if self.started_at + change.after > now {
                return;
            }
            self.changed += 1;
            let interface = change.path as usize;
            if std::mem::replace(&mut self.is_up[interface], change.is_up) == change.is_up {
                continue;
            }
            let paths = session.paths();
            for path in paths.iter().filter(|path| !change.is_up && path.route.socket == change.path) {
                session.close_path(now, path.id, AbandonReason::AddressGone);
            }
            self.agents[CLIENT].on_change(now);
        }
    }

    /// Lets relays join the race after the direct paths' head start.
    fn race_relays(&mut self, now: Time, session: &mut Session<Load>) {
        if self.relays_race_at <= now {
            self.relays_race_at = Time::NEVER;
            for candidate in 0..self.relayed.len() {
                session.add_candidate(now, self.route_of(candidate));
            }
        }
    }

    fn follow_direct(&mut self, now: Time, end: usize, session: &mut Session<Load>) {
        if !self.agents[end].is_due(now) {
            return;
        }
        let locals = self.locals(end);
        loop {
            let paths: Vec<PathInfo> =
                session.paths().into_iter().filter(|path| self.is_direct(&path.route)).collect();
            let view = View {
                locals: &locals,
                paths: &paths,
                may_try: &|_| false,
                allows: &|route| session.allows(route),
                is_proven: &|address: SocketAddr| session.is_proven(address),
            };
            match self.agents[end].poll(now, &view, &mut self.probes) {
                Some(Action::Open(route)) => {
                    let result = session.open_path(now, route);
                    if end == CLIENT && result.is_ok() {
                        self.note(now, Decision::Open { path: route.socket });
                    }
                    self.agents[end].on_open(now, route, result, &mut self.probes);
                }
                Some(Action::Close(path, reason)) => {
                    let socket = paths.iter().find(|info| info.id == path).map(|info| info.route.socket);
                    if let Some(path) = socket.filter(|_| end == CLIENT) {
                        self.note(now, Decision::Close { path });
                    }
                    session.close_path(now, path, reason);
                }
                None => return,
            }
        }
    }

    /// Checks the session's paths when that is due, and selects the candidates to use.
    fn follow_choice(&mut self, now: Time, session: &Session<Load>) {
        if self.relayed.is_empty() || self.choice.next_look() > now {
            return;
        }
        let relayed = &self.relayed;
        let path_of = |candidate: Candidate| match relayed[candidate.0].0 {
            Relayed::Has { path, .. } => Some(path),
            _ => None,
        };
        for action in self.choice.look(now, &session.paths(), path_of) {
            match action {
                RelayAction::OpenThrough(candidate) => {
                    self.note(now, Decision::OpenThrough { candidate: candidate.0 });
                    let (relayed, retry) = &mut self.relayed[candidate.0];
                    *retry = Retry::default();
                    match relayed {
                        Relayed::Unused => *relayed = Relayed::OpensAt(now),
                        Relayed::Leaving(path) => *relayed = Relayed::Has { path: *path, was_open: true },
                        Relayed::OpensAt(_) | Relayed::Has { .. } => {}
                    }
                }
                RelayAction::Close(candidate, why) => {
                    self.note(now, Decision::CloseThrough { candidate: candidate.0, why });
                    let relayed = &mut self.relayed[candidate.0].0;
                    *relayed = match relayed {
                        Relayed::Has { path, .. } | Relayed::Leaving(path) => Relayed::Leaving(*path),
                        Relayed::Unused | Relayed::OpensAt(_) => Relayed::Unused,
                    };
                }
            }
        }
    }

    /// Opens the path of a candidate that is due, or closes one that is not wanted any more.
    fn carry_on(&mut self, now: Time, candidate: usize, session: &mut Session<Load>) {
        let route = self.route_of(candidate);
        let (relayed, retry) = &mut self.relayed[candidate];
        match relayed {
            Relayed::OpensAt(at) if *at <= now => {
                let opened = session.reserve_path().and_then(|reserved| {
                    session.open_reserved(now, reserved.id, (route, reserved.own)).map(|()| reserved.id)
                });
                *relayed = match opened {
                    Ok(path) => Relayed::Has { path, was_open: false },
                    Err(PathError::NotReady) => Relayed::OpensAt(now + NOT_READY_PAUSE),
                    Err(_) => Relayed::OpensAt(retry.on_failed(now, false)),
                };
            }
            Relayed::Leaving(path) => {
                let works = |other: &PathInfo| other.id != *path && other.state == PathState::Active;
                if session.paths().iter().any(works) {
                    session.close_path(now, *path, AbandonReason::Requested);
                }
            }
            _ => {}
        }
    }

    fn note(&mut self, at: Time, what: Decision) {
        if self.decisions.len() < MAX_DECISIONS {
            self.decisions.push(Decided { after: at.since(self.started_at), what });
        }
    }

    /// When [`Self::act`] has to be called next.
    pub(super) fn next_at(&self, end: usize) -> Time {
        let direct = self.agents[end].next_at();
        if end == SERVER {
            return direct;
        }
        let change = self.plan.interfaces.get(self.changed);
        let change = change.map_or(Time::NEVER, |change| self.started_at + change.after);
        let mut next = direct.min(self.relays_race_at).min(change);
        if self.is_established && !self.relayed.is_empty() {
            next = next.min(self.choice.next_look());
            for (relayed, _) in &self.relayed {
                if let Relayed::OpensAt(at) = relayed {
                    next = next.min(*at);
                }
            }
        }
        next
    }
}
