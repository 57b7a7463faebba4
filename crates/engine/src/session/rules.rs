//! Applies the user's rules for paths: priorities, caps, paths left out. Reports each path's standing when it changes.
//!
//! The rules and the reasons come from [`crate::manager`]. A path's terms are looked up when it is created, and again
//! when the rules change. The peer is informed of the wanted use of a path (PATH_STATUS) and of its limit there
//! (MAX_PATH_DATA, MAX_PATH_RATE). It is not informed of paths left out because they gain nothing: that concerns only this
//! end's data.

use std::collections::BTreeMap;

use anabranch_wire::{PathId, PathUse, Payload, Rate, Time};

use super::coupling::Coupling;
use super::flight::Flight;
use crate::bottleneck::Verdict;
use crate::control::Control;
use crate::event::{Event, PathChange};
use crate::manager::{IdleReason, PathOrigin, PathReport, PathRules, Priority, Standing, Suppressor, Terms};
use crate::path::{Path, Paths};
use crate::route::Route;

/// The rules of a session, if it has any.
#[derive(Debug)]
pub(super) struct Rules(Option<Box<Managed>>);

/// Rules, and the local end of each socket.
#[derive(Debug, Default)]
struct Managed {
    rules: PathRules,
    places: BTreeMap<u32, PathOrigin>,
    suppressor: Option<Suppressor>,
}

impl Managed {
    fn terms(&self, route: Route) -> Terms {
        match self.places.get(&route.socket) {
            Some(place) => self.rules.terms(place, route.remote),
            None => self.rules.terms(&PathOrigin::default(), route.remote),
        }
    }
}

impl Rules {
    pub(super) fn new(rules: &PathRules) -> Self {
        let suppressor = rules.suppression.map(Suppressor::new);
        let managed = || Box::new(Managed { rules: rules.clone(), places: BTreeMap::new(), suppressor });
        Self((!rules.is_empty()).then(managed))
    }

    pub(super) fn are_there(&self) -> bool {
        self.0.is_some()
    }

    /// A copy of the rules.
    pub(super) fn get(&self) -> PathRules {
        self.0.as_ref().map(|managed| managed.rules.clone()).unwrap_or_default()
    }

    /// Records the local end of a socket; true if that may change how rules apply to its paths.
    pub(super) fn describe(&mut self, socket: u32, place: PathOrigin) -> bool {
        let Some(managed) = &mut self.0 else { return false };
        let changes = managed.places.get(&socket) != Some(&place);
        if changes {
            managed.places.insert(socket, place);
        }
        changes
    }

    /// Replaces the rules; false, without a change, if they would exclude all open `paths`.
    pub(super) fn replace(
        &mut self,
        rules: PathRules,
        places: impl IntoIterator<Item = (u32, PathOrigin)>,
        paths: &Paths,
    ) -> bool {
        let known = self.0.as_ref().map(|managed| managed.places.clone()).unwrap_or_default();
        let suppressor = rules.suppression.map(Suppressor::new);
        let managed = Managed { rules, places: known.into_iter().chain(places).collect(), suppressor };
        let mut open = paths.iter().filter(|path| !path.is_closing()).peekable();
        let allowed = |path: &Path| managed.terms(path.route()).priority != Priority::Never;
        if open.peek().is_some() && !open.any(allowed) {
            return false;
        }
        self.0 = Some(Box::new(managed));
        true
    }

    /// True when the rules let a path over `route` be opened.
    pub(super) fn allow(&self, route: Route) -> bool {
        self.0.as_ref().is_none_or(|managed| managed.terms(route).allow())
    }

    /// The terms for a path over `route`, if there are rules.
    pub(super) fn terms(&self, route: Route) -> Option<Terms> {
        self.0.as_ref().map(|managed| managed.terms(route))
    }

    /// Applies the rest of a path's cap, after it took another slice or was used up.
    pub(super) fn on_slice<P: Payload>(&mut self, flight: &mut Flight<P>, index: usize) {
        renew_limits(flight, index);
        renew_wish(flight, index);
        self.review_standings(flight);
    }

    /// Uses a path as the caller wants from now on.
    pub(super) fn set_use<P: Payload>(&mut self, flight: &mut Flight<P>, index: usize, usage: PathUse) {
        flight.paths.edit(index).usage_mut().set_wanted(usage);
        renew_wish(flight, index);
        self.review_standings(flight);
    }

    /// True when paths that share a bottleneck are left out, which needs evidence of shared bottlenecks.
    pub(super) fn leave_out_sharers(&self) -> bool {
        self.0.as_ref().is_some_and(|managed| managed.rules.leave_out_sharers())
    }

    fn suppressor(&mut self) -> Option<&mut Suppressor> {
        self.0.as_mut().and_then(|managed| managed.suppressor.as_mut())
    }

    /// Leaves out the paths that work and gain nothing, when it is time to look.
    pub(super) fn review_suppression<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        coupling: &Coupling,
    ) {
        let Some(suppressor) = self.suppressor() else { return };
        if suppressor.is_due(now) {
            suppressor.review(now, &reports(flight, coupling));
            self.review_standings(flight);
        }
    }

    /// Reports the standings that have changed.
    pub(super) fn review_standings<P: Payload>(&mut self, flight: &mut Flight<P>) {
        if let Some(suppressor) = self.suppressor() {
            renew_left_out(suppressor, flight);
        }
        for index in 0..flight.paths.len() {
            let path = &flight.paths[index];
            let (id, standing) = (path.id(), path.standing(flight.paths.may_carry(path)));
            if flight.paths.set_standing(index, standing) && standing != Standing::CLOSING {
                let change = PathChange::Standing(standing);
                flight.out.tell_if_read(Event::Path { path: id, change });
            }
        }
    }

    /// Removes a closed path.
    pub(super) fn forget(&mut self, path: PathId) {
        if let Some(suppressor) = self.suppressor() {
            suppressor.forget(path);
        }
    }
}

/// Applies these terms to a path.
pub(super) fn apply<P: Payload>(now: Time, flight: &mut Flight<P>, index: usize, terms: Terms) {
    let usage = terms.priority.usage();
    if flight.paths.edit(index).set_meter(terms.meter) {
        renew_limits(flight, index);
    }
    let path = flight.paths.edit(index);
    path.usage_mut().set_wanted(usage);
    let id = path.id();
    if path.wishes_mut().set_rate(terms.rate) {
        flight.out.want(Control::MaxPathRate(id));
        flight.on_rate_limit(now, index);
    }
    renew_wish(flight, index);
}

fn renew_limits<P: Payload>(flight: &mut Flight<P>, index: usize) {
    let path = flight.paths.edit(index);
    let id = path.id();
    if path.renew_limits() {
        flight.out.want(Control::MaxPathData(id));
    }
}

/// Announces the use of a path to the peer when it is another than before.
fn renew_wish<P: Payload>(flight: &mut Flight<P>, index: usize) {
    let path = flight.paths.edit(index);
    let id = path.id();
    if path.renew_wish() {
        flight.out.want(Control::PathStatus(id));
        flight.choice = None;
    }
}

/// Reports on the paths in use: throughput (a window in a round trip), and shared bottlenecks. Paths in slow
/// start are left out.
fn reports<P: Payload>(flight: &Flight<P>, coupling: &Coupling) -> Vec<PathReport> {
    let in_use = |path: &&Path| path.is_active() && path.effective_use() == PathUse::Normal;
    let judged =
        |path: &&Path| in_use(path) && path.rtt().has_sample() && !flight.cc.in_slow_start(path.id());
    let judged: Vec<&Path> = flight.paths.iter().filter(judged).collect();
    let shares = |a: PathId, b: PathId| coupling.shared_bottleneck(a, b) == Verdict::Shared;
    let report = |path: &&Path| PathReport {
        path: path.id(),
        throughput: Rate::from_bytes_in(flight.cc.window(path.id()), path.rtt().smoothed()),
        failed: false,
        shares_with: judged
            .iter()
            .filter(|other| other.id() != path.id() && shares(path.id(), other.id()))
            .map(|other| other.id())
            .collect(),
    };
    judged.iter().map(report).collect()
}

fn renew_left_out<P: Payload>(suppressor: &mut Suppressor, flight: &mut Flight<P>) {
    let paths = &flight.paths;
    suppressor.release(|id| {
        paths.iter().any(|path| path.id() == id && path.is_active() && path.usage().left_out().is_none())
    });
    let reasons: Vec<Option<IdleReason>> = paths.iter().map(|path| suppressor.reason(path.id())).collect();
    for (index, reason) in reasons.into_iter().enumerate() {
        if flight.paths[index].usage().left_out() != reason {
            flight.paths.edit(index).usage_mut().leave_out(reason);
            flight.choice = None;
        }
    }
}
