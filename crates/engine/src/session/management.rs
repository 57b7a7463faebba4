//! What a user wants of paths is carried out: priorities, caps, paths left out, and each path's standing told as it changes.
//!
//! The rules and the reasons are the path manager's ([`crate::manager`]). A path's terms are looked up when it is created, and again
//! when the rules change. The peer is told the use that is wanted of a path (PATH_STATUS) and how much it may send there
//! (MAX_PATH_DATA). What is left out for gaining nothing is this end's affair: it concerns what this end sends.

use std::collections::BTreeMap;

use anabranch_wire::{PathId, PathUse, Payload, Rate, Time};

use super::{PathError, Session};
use crate::bottleneck::Verdict;
use crate::control::Control;
use crate::event::{AbandonReason, Event, PathChange};
use crate::manager::{
    IdleReason, PathMeter, PathOrigin, PathReport, PathRules, Priority, Standing, Suppressor, Terms, cost,
};
use crate::path::{Path, PathState};
use crate::route::Route;

/// What is wanted of the paths of a session that has rules.
#[derive(Debug, Default)]
pub(super) struct Manager {
    rules: PathRules,
    places: BTreeMap<u32, PathOrigin>,
    suppressor: Option<Suppressor>,
}

impl Manager {
    /// Nothing where nothing is wanted.
    pub(super) fn new(rules: &PathRules) -> Option<Box<Self>> {
        let suppressor = rules.suppression.map(Suppressor::new);
        (!rules.is_empty())
            .then(|| Box::new(Self { rules: rules.clone(), places: BTreeMap::new(), suppressor }))
    }

    fn terms(&self, route: Route) -> Terms {
        match self.places.get(&route.socket) {
            Some(place) => self.rules.terms(place, route.remote),
            None => self.rules.terms(&PathOrigin::default(), route.remote),
        }
    }
}

impl<P: Payload> Session<P> {
    /// Says where packets leave by a socket number, so that rules can be about it. Needed before paths begin there; those that
    /// there are get what the rules say.
    pub fn describe_socket(&mut self, now: Time, socket: u32, place: PathOrigin) {
        let Some(manager) = &mut self.manager else { return };
        if manager.places.get(&socket) == Some(&place) {
            return;
        }
        manager.places.insert(socket, place);
        for index in 0..self.paths.len() {
            let path = &self.paths[index];
            if path.route.socket == socket && path.state != PathState::Closing {
                self.apply_rules(now, index);
            }
        }
        self.review_standings();
    }

    /// True when the rules let a path over `route` be opened.
    #[must_use]
    pub fn allows(&self, route: Route) -> bool {
        self.manager.as_ref().is_none_or(|manager| manager.terms(route).allow())
    }

    /// True when anything is wanted of this session's paths.
    #[must_use]
    pub fn has_path_rules(&self) -> bool {
        self.manager.is_some()
    }

    /// The rules for this session's paths.
    #[must_use]
    pub fn path_rules(&self) -> PathRules {
        self.manager.as_ref().map(|manager| manager.rules.clone()).unwrap_or_default()
    }

    /// Replaces the rules. Paths that they rule out are closed, the others used as they say from now on; the places of all
    /// sockets are to be described with them when there were no rules before.
    ///
    /// # Errors
    /// [`PathError::NoneLeft`] when no path would be left; then nothing changes.
    pub fn set_path_rules(
        &mut self,
        now: Time,
        rules: PathRules,
        places: impl IntoIterator<Item = (u32, PathOrigin)>,
    ) -> Result<(), PathError> {
        let known = self.manager.as_ref().map(|manager| manager.places.clone()).unwrap_or_default();
        let suppressor = rules.suppression.map(Suppressor::new);
        let manager = Manager { rules, places: known.into_iter().chain(places).collect(), suppressor };
        let open = self.paths.iter().filter(|path| path.state != PathState::Closing);
        let (all, left) = open.fold((0, 0), |(all, left), path| {
            (all + 1, left + u32::from(manager.terms(path.route).priority != Priority::Never))
        });
        if all > 0 && left == 0 {
            return Err(PathError::NoneLeft);
        }
        self.manager = Some(Box::new(manager));
        self.next_timeout.set(None);
        for index in 0..self.paths.len() {
            if self.paths[index].state != PathState::Closing {
                self.apply_rules(now, index);
            }
        }
        self.review_standings();
        Ok(())
    }

    /// Has a path used as the rules say. One that they rule out is closed; where it is the only one, it carries no data.
    pub(super) fn apply_rules(&mut self, now: Time, index: usize) {
        let Some(manager) = &self.manager else { return };
        let terms = manager.terms(self.paths[index].route);
        if terms.priority == Priority::Never && self.open_count() > 1 {
            // The peer would open it again at once if it were told that this was wished for once.
            return self.abandon(now, index, AbandonReason::Refused, true);
        }
        self.apply_terms(index, terms);
    }

    fn apply_terms(&mut self, index: usize, terms: Terms) {
        let path = &mut self.paths[index];
        if path.meter.as_ref().map(|known| known.meter()) != terms.meter.as_ref() {
            let spent = path.spent();
            path.meter = terms.meter.map(|meter| Box::new(PathMeter::new(meter, spent)));
            self.renew_limits(index);
        }
        self.paths[index].wanted = terms.priority.usage();
        self.renew_wish(index);
    }

    /// The peer opens a path that the rules here do not allow: it is told so on another one, and nothing is sent on it.
    pub(super) fn refuse(&mut self, now: Time, index: usize) {
        self.paths[index].remote_pid = None;
        self.abandon(now, index, AbandonReason::Refused, true);
    }

    /// Notes what this end has spent on a path under a cap.
    pub(super) fn note_spent(&mut self, index: usize) {
        let path = self.paths.aside(index);
        let (sent, _) = path.spent();
        if path.meter.as_mut().is_some_and(|meter| meter.on_sent(sent)) {
            self.on_slice(index);
        }
    }

    /// Notes what the peer has spent on a path under a cap.
    pub(super) fn note_received(&mut self, index: usize) {
        let path = self.paths.aside(index);
        let (_, received) = path.spent();
        if path.meter.as_mut().is_some_and(|meter| meter.on_received(received)) {
            self.on_slice(index);
        }
    }

    /// A path got another slice of its cap, or there was none left.
    fn on_slice(&mut self, index: usize) {
        self.renew_limits(index);
        self.renew_wish(index);
        self.review_standings();
    }

    fn renew_limits(&mut self, index: usize) {
        let path = &mut self.paths[index];
        let (own, peer) = path.meter.as_ref().map_or((u64::MAX, u64::MAX), |meter| meter.limits());
        path.allowance.limit_here(own);
        let id = path.id;
        if std::mem::replace(&mut path.peer_limit, peer) != peer {
            self.push_control(Control::MaxPathData(id));
        }
    }

    /// Tells the peer when another use is wanted of a path than before.
    pub(super) fn renew_wish(&mut self, index: usize) {
        let path = &mut self.paths[index];
        let used_up = path.meter.as_ref().is_some_and(|meter| meter.is_used_up());
        let usage = if used_up { PathUse::Standby } else { path.wanted };
        if path.usage != usage {
            path.usage = usage;
            path.usage_sequence += 1;
            let id = path.id;
            self.push_control(Control::PathStatus(id));
            self.run = None;
        }
    }

    /// True when paths that share a bottleneck are left out, so that evidence is wanted whoever couples windows.
    pub(super) fn leaves_out_sharers(&self) -> bool {
        self.manager.as_ref().is_some_and(|manager| manager.rules.leave_out_sharers())
    }

    /// Leaves out the paths that work and gain nothing, when it is time to look.
    pub(super) fn review_suppression(&mut self, now: Time) {
        let due = |manager: &mut Box<Manager>| manager.suppressor.as_mut().is_some_and(|all| all.is_due(now));
        if !self.manager.as_mut().is_some_and(due) {
            return;
        }
        let reports = self.reports_on_paths();
        if let Some(suppressor) = self.manager.as_mut().and_then(|manager| manager.suppressor.as_mut()) {
            suppressor.review(now, &reports);
        }
        self.review_standings();
    }

    /// What the paths in use can carry, their window in a round trip, and which share a bottleneck by evidence. A path that is
    /// still looking for its rate is not judged.
    fn reports_on_paths(&self) -> Vec<PathReport> {
        let in_use =
            |path: &&Path| path.state == PathState::Active && path.effective_use() == PathUse::Normal;
        let judged =
            |path: &&Path| in_use(path) && path.rtt().has_sample() && !self.cc.in_slow_start(path.id);
        let judged: Vec<&Path> = self.paths.iter().filter(judged).collect();
        let shares = |a: PathId, b: PathId| self.shared_bottleneck(a.min(b), a.max(b)) == Verdict::Shared;
        let report = |path: &&Path| PathReport {
            path: path.id,
            throughput: Rate::from_bytes_in(self.cc.window(path.id), path.rtt().smoothed()),
            failed: false,
            shares_with: judged
                .iter()
                .filter(|other| other.id != path.id && shares(path.id, other.id))
                .map(|other| other.id)
                .collect(),
        };
        judged.iter().map(report).collect()
    }

    /// Tells what paths are for where that has changed.
    pub(super) fn review_standings(&mut self) {
        self.renew_left_out();
        for index in 0..self.paths.len() {
            let standing = self.standing(&self.paths[index]);
            let path = self.paths.aside(index);
            if std::mem::replace(&mut path.standing, standing) != standing && standing != Standing::CLOSING {
                let change = PathChange::Standing(standing);
                let path = path.id;
                self.announce(Event::Path { path, change });
            }
        }
    }

    fn renew_left_out(&mut self) {
        let Some(suppressor) = self.manager.as_mut().and_then(|manager| manager.suppressor.as_mut()) else {
            return;
        };
        let paths = &self.paths;
        suppressor.release(|id| {
            paths
                .iter()
                .any(|path| path.id == id && path.state == PathState::Active && path.left_out.is_none())
        });
        let reasons: Vec<Option<IdleReason>> =
            self.paths.iter().map(|path| suppressor.reason(path.id)).collect();
        for (index, reason) in reasons.into_iter().enumerate() {
            if self.paths[index].left_out != reason {
                self.paths[index].left_out = reason;
                self.run = None;
            }
        }
    }

    fn standing(&self, path: &Path) -> Standing {
        let doubt = path.trouble.fault().map_or(IdleReason::Overdue, IdleReason::Held);
        let idle = match (path.state, path.effective_use()) {
            (PathState::Validating, _) => IdleReason::Proving,
            (PathState::Closing, _) => IdleReason::Closing,
            (PathState::Active, PathUse::Normal) if path.left_out.is_none() => return Standing::InUse,
            (state, usage) => match (used_up_cap(path), path.left_out) {
                // Ends that may spend nothing more do not answer each other: the silence that follows is of the cap.
                (Some(cap), _) => IdleReason::CapReached { cap },
                _ if state == PathState::Failed => IdleReason::Failed,
                _ if state == PathState::Suspect => doubt,
                (None, Some(reason)) if usage == PathUse::Normal => reason,
                _ => IdleReason::Kept(usage),
            },
        };
        if self.usable(path) { Standing::StandsIn } else { Standing::Idle(idle) }
    }

    /// Forgets what is kept of a path beside the path.
    pub(super) fn forget_management(&mut self, path: PathId) {
        if let Some(suppressor) = self.manager.as_mut().and_then(|manager| manager.suppressor.as_mut()) {
            suppressor.forget(path);
        }
    }
}

/// The cap of a path that has used it up.
fn used_up_cap(path: &Path) -> Option<u64> {
    path.meter.as_ref().filter(|meter| meter.is_used_up()).map(|meter| meter.meter().cap())
}

impl Path {
    /// What both ends have spent on the path as caps count, this end and the peer; what is missing of the peer's counts as
    /// full packets.
    fn spent(&self) -> (u64, u64) {
        let (receipt, missing) = (&self.receipt, self.receipt.missing());
        let received = receipt.bytes + missing * self.size() as u64;
        (self.allowance.spent(), cost(received, receipt.packets + missing))
    }
}
