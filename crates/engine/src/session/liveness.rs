//! Decides when a path is suspected, held back, failed and readmitted (mTCP §3.5 [M12, M13]).
//!
//! A path judges itself: silence in `path::health`, uselessness in `path::trouble`. This module acts on these
//! judgements: it changes the path's state, allows the data in flight to be sent on other paths, and reports the
//! change. It also owns the consequences of path states: groups of coupled windows, and standings.

use anabranch_wire::{PathId, Payload, Rate, Span, Time};

use super::coupling::Coupling;
use super::flight::Flight;
use super::lateness::note_silence;
use super::rules::Rules;
use crate::config::{AckPolicy, Config};
use crate::control::Control;
use crate::event::PathChange;
use crate::manager::Fault;
use crate::path::{AckOutcome, Alarm, Answer, Bloat, Others, Path, PathEvent, PathState, Paths};

/// Most unanswered probes of a failed path that are remembered: it may stay cut for weeks.
const MOST_PROBES: usize = 1024;

/// An acknowledgement on a path: its round-trip sample, and its return path.
#[derive(Clone, Copy)]
pub(super) struct Echo {
    pub sample: Span,
    pub via: PathId,
}

/// Keeps the state of each path right, and its consequences.
pub(super) struct Liveness {
    pub rules: Rules,
    pub coupling: Coupling,
}

impl Liveness {
    pub(super) fn new(config: &Config) -> Self {
        Self { rules: Rules::new(&config.rules), coupling: Coupling::new(config) }
    }

    /// Checks whether a path that answers is useful; if not, its data leaves on others.
    pub(super) fn watch<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        outcome: &AckOutcome,
    ) {
        if !flight.config.failure.suspect || !flight.paths[index].is_active() {
            return;
        }
        let id = flight.paths[index].id();
        let window = (flight.cc.ssthresh(id) < u64::MAX).then(|| flight.cc.window(id));
        // Data waits for the peer's receive window, and there is nothing else to send.
        let is_blocked = flight.streams.unsent() > 0 && !flight.streams.has_work();
        let blocks = is_blocked && flight.paths.has_idle_besides(id);
        let is_calm = now < flight.paths.calm_until(id);
        let path = flight.paths.edit(index);
        let answer = Answer {
            now,
            smoothed: path.rtt().smoothed(),
            acked_bytes: outcome.acked_bytes,
            packets: outcome.packets,
            round_start: outcome.round_start,
            window,
            oldest: path.board().oldest_sent_at(),
            via: path.returns().via(),
            blocks,
            is_bunched: flight.clock.lateness.is_recent(now)
                || flight.clock.silence.is_recent(now)
                || is_calm,
        };
        let fault = path.trouble_mut().on_ack(&answer);
        if let Some(fault) = fault.filter(|_| flight.paths.has_active_besides(id)) {
            self.hold(now, flight, index, fault);
        } else if is_bloated(now, &mut flight.paths, index, outcome.rtt) {
            let path = flight.paths.edit(index);
            let known = (path.returns().least(), path.delivery().rate());
            path.trouble_mut().hold_bloated(now, known);
            self.suspect(flight, index);
            self.coupling.review(now, flight);
        } else if let Some(window) = window {
            let path = flight.paths.edit(index);
            let known = (window, path.rtt().smoothed());
            let before = path.take_recovery(now, known);
            before.into_iter().for_each(|before| flight.cc.on_recovery(id, before));
        }
    }

    /// Holds a path back for a fault.
    fn hold<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize, fault: Fault) {
        flight.paths.edit(index).trouble_mut().hold(now, fault);
        self.suspect(flight, index);
        self.coupling.review(now, flight);
    }

    fn suspect_silent<P: Payload>(&mut self, flight: &mut Flight<P>, index: usize) {
        let path = flight.paths.edit(index);
        let (id, received) = (path.id(), path.stats().data_received);
        path.trouble_mut().heard(received);
        self.suspect(flight, index);
        // If a NAT has forgotten the path, only a packet from behind it shows the new address. So the peer, which may
        // have nothing to send there, learns of the silence, and idle paths that may take over are probed from here.
        flight.out.want(Control::ObservedAddress(id));
        probe_idle_others(flight, index);
    }

    /// Suspects a path: it gets no new data until it recovers, and its data in flight leaves on others as well.
    fn suspect<P: Payload>(&mut self, flight: &mut Flight<P>, index: usize) {
        flight.paths.edit(index).transition(PathEvent::Doubted);
        flight.doubt_flight(index);
        flight.out.tell(flight.paths[index].id(), PathChange::Suspect);
        self.rules.review_standings(flight);
    }

    /// Suspects paths that left probes unanswered while they were the only ones, as soon as the `fresh` path
    /// carries data.
    pub(super) fn suspect_silent_others<P: Payload>(&mut self, flight: &mut Flight<P>, fresh: PathId) {
        if !flight.config.failure.suspect {
            return;
        }
        for index in 0..flight.paths.len() {
            let path = &flight.paths[index];
            if path.id() != fresh && path.is_active() && path.health().timeouts() > 0 {
                self.suspect(flight, index);
            }
        }
        flight.doubt_suspects();
    }

    /// Readmits a path if it has recovered, after an acknowledgement of something sent on it.
    pub(super) fn revive<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        echo: Option<Echo>,
    ) {
        let sample = echo.map(|echo| echo.sample);
        let other = echo.map(|echo| echo.via).filter(|via| *via != flight.paths[index].id());
        let via = other.and_then(|via| flight.paths.place_of(via));
        let detour = via.map_or(Span::ZERO, |via| flight.paths[via].rtt().smoothed());
        let path = flight.paths.edit(index);
        if !matches!(path.state(), PathState::Suspect | PathState::Failed) {
            return;
        }
        let late = sample.filter(|_| path.trouble().is_behind_data(path.stats().data_received));
        let detour = detour + late.unwrap_or(Span::ZERO) + flight.clock.lateness.of(now);
        if flight.config.failure.suspect {
            let was_held = path.trouble().is_held();
            if !path.trouble_mut().is_well(now, sample, detour) {
                if path.trouble().is_held() && path.transition(PathEvent::AnswersPoorly) {
                    // It answers: probed often enough, it will show whether it is well.
                    flight.give_up_flight(now, index);
                }
                return;
            }
            if was_held && path.state() == PathState::Suspect {
                begin_again(now, flight, index, sample);
            }
        }
        self.restore(now, flight, index, sample);
    }

    /// Allows a path to carry data again.
    pub(super) fn restore<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        sample: Option<Span>,
    ) {
        let path = flight.paths.edit(index);
        let (id, failed) = (path.id(), path.state() == PathState::Failed);
        path.transition(PathEvent::Recovered);
        if failed {
            path.mtu_mut().search_again();
            // Packets lost while the path was dead say nothing about congestion.
            flight.give_up_flight(now, index);
            begin_again(now, flight, index, sample);
        }
        flight.out.tell(id, PathChange::Recovered);
        self.rules.review_standings(flight);
        flight.choice = None;
        flight.doubt_suspects();
        flight.update_pacing(now, index);
        flight.update_send_limit();
    }

    /// Finds losses of a path, and reports them to coupling and congestion control, in this order.
    pub(super) fn detect_losses<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        if let Some(losses) = flight.find_losses(now, index) {
            self.coupling.on_losses(now, flight, index, &losses);
            flight.feed_losses(now, index, &losses);
        }
    }

    /// Looks for losses when it is time.
    pub(super) fn check_losses<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        if flight.paths[index].board().loss_at().is_some_and(|at| at <= now) {
            self.detect_losses(now, flight, index);
            flight.update_pacing(now, index);
            if flight.paths[index].board().pipe() == 0 {
                flight.paths.edit(index).health_mut().on_nothing_out();
            }
        }
    }

    /// Suspects a path whose first answer is overdue, or that stalls.
    pub(super) fn check_doubts<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if is_due(first_doubt_at(flight, &flight.paths[index])) {
            self.suspect_silent(flight, index);
        }
        if is_due(stall_at(flight, &flight.paths[index])) {
            // If no path brings anything, this one need not be worse than the others.
            note_silence(now, flight);
            if is_due(stall_at(flight, &flight.paths[index])) {
                self.hold(now, flight, index, Fault::Stalls);
            }
        }
    }

    /// Allows the next probe of a suspect path when it is due.
    pub(super) fn check_probe<P: Payload>(now: Time, flight: &mut Flight<P>, index: usize) {
        let path = flight.paths.edit(index);
        if path.state() == PathState::Suspect && path.trouble().probe_at().is_some_and(|at| at <= now) {
            let size = path.size() as u64;
            path.trouble_mut().on_probe(now, size);
            path.health_mut().want_one_probe();
        }
    }

    /// Probes a path that waits for a higher limit of the peer when that is due: the probe shows the peer how many packets
    /// were lost last, and with that what was spent.
    pub(super) fn check_credit<P: Payload>(now: Time, flight: &mut Flight<P>, index: usize) {
        if flight.paths[index].health().ask_for_credit_at() <= now {
            let path = flight.paths.edit(index);
            let waits = path.allowance().waits_for_peer(path.size() as u64);
            let asks = path.is_active() && path.can_stand_in();
            path.health_mut().ask_for_credit(now, waits, asks);
        }
    }

    /// Allows the next probe of a failed path when it is due; true if one was due.
    pub(super) fn check_failed<P: Payload>(now: Time, flight: &mut Flight<P>, index: usize) -> bool {
        let usual = flight.config.failure.probe_interval;
        let path = flight.paths.edit(index);
        let longest = path.allowance().longest_probe_pause(path.size() as u64).unwrap_or(usual);
        let is_due =
            path.state() == PathState::Failed && path.health().next_probe().is_some_and(|at| at <= now);
        if is_due {
            path.health_mut().on_probe_sent(now, longest);
            path.health_mut().want_one_probe();
            if path.board().remembered() >= MOST_PROBES {
                flight.give_up_flight(now, index);
            }
        }
        is_due
    }

    /// Raises the alarm of a path when it is due; true for a probe timeout.
    pub(super) fn check_alarm<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
    ) -> bool {
        match alarm(flight, &flight.paths[index]) {
            Some((at, Alarm::Probe)) if at <= now => {
                self.on_probe_timeout(now, flight, index);
                return true;
            }
            Some((at, Alarm::Timeout)) if at <= now => on_retransmission_timeout(now, flight, index),
            Some((at, Alarm::Failure)) if at <= now => self.on_failure(now, flight, index),
            _ => {}
        }
        false
    }

    fn on_probe_timeout<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        let path = flight.paths.edit(index);
        let id = path.id();
        path.health_mut().on_probe_timeout(now);
        path.stats_mut().probe_timeouts += 1;
        if path.mtu_mut().on_timeout() {
            flight.on_size_changed(now, index);
        }
        if flight.paths.has_stand_in(id) && flight.paths[index].is_active() {
            self.suspect_silent(flight, index);
        }
        if flight.paths[index].state() == PathState::Suspect {
            let path = flight.paths.edit(index);
            let timeouts = path.health().timeouts();
            path.trouble_mut().on_silence(now, timeouts);
        }
    }

    fn on_failure<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        let failure = flight.config.failure;
        let path = flight.paths.edit(index);
        let id = path.id();
        let patience = path.rtt().rto(failure.rto).mul_f64(failure.chi);
        path.fail(now);
        flight.give_up_flight(now, index);
        flight.cc.on_timeout(id, now, 0);
        flight.out.tell(id, PathChange::Failed);
        self.rules.review_standings(flight);
        let was_primary = flight.acks.primary().is_none_or(|primary| primary == id);
        if flight.config.acks.policy == AckPolicy::Primary && was_primary {
            self.on_primary_failed(now, flight, id, patience);
        }
    }

    /// The acknowledgements of other paths may have died with the primary. Paths that failed while it was
    /// silent become active again and carry data as probes, and acknowledgements get another path [M13].
    fn on_primary_failed<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        primary: PathId,
        patience: Span,
    ) {
        for index in 0..flight.paths.len() {
            let path = &flight.paths[index];
            let died_with_it =
                path.state() == PathState::Failed && path.health().failed_at() >= Some(now - patience);
            if path.id() != primary && died_with_it {
                flight.paths.edit(index).health_mut().on_ack(now, false);
                self.restore(now, flight, index, None);
            }
        }
        flight.acks.elect_primary(&flight.paths, &mut flight.out);
    }
}

/// Restarts a path after a long doubt, because its old window and round trips are no longer reliable. Slow start ends
/// at most of the former window, with the latest round trip. If the path is known to carry much less than before, there
/// is no slow start, and the scheduler uses the known rate.
fn begin_again<P: Payload>(now: Time, flight: &mut Flight<P>, index: usize, sample: Option<Span>) {
    let path = flight.paths.edit(index);
    path.trouble_mut().forget_queue();
    let found_rate = path.trouble().found_rate();
    path.delivery_mut().set_rate(found_rate.unwrap_or(Rate::ZERO));
    let before =
        if found_rate.is_some() { Some(0) } else { path.trouble().window_to_return_to(path.returns()) };
    flight.cc.on_return(path.id(), before, now);
    if let Some(sample) = sample {
        let via = path.returns().via();
        path.forget_rtt();
        path.sample_rtt(now, via, sample, Span::ZERO);
    }
}

/// Probes the working paths besides one that have nothing in flight.
fn probe_idle_others<P: Payload>(flight: &mut Flight<P>, index: usize) {
    for other in (0..flight.paths.len()).filter(|other| *other != index) {
        let path = &flight.paths[other];
        if path.is_active() && path.board().pipe() == 0 {
            flight.paths.edit(other).health_mut().want_probe();
        }
    }
}

/// Nothing was acknowledged for a retransmission timeout, and suspicion is switched off.
fn on_retransmission_timeout<P: Payload>(now: Time, flight: &mut Flight<P>, index: usize) {
    let path = flight.paths.edit(index);
    path.health_mut().on_timeout(now);
    path.stats_mut().probe_timeouts += 1;
    path.stats_mut().congestion_events += 1;
    let id = path.id();
    if path.mtu_mut().on_timeout() {
        flight.on_size_changed(now, index);
    }
    flight.give_up_flight(now, index);
    flight.cc.on_timeout(id, now, 0);
    flight.update_pacing(now, index);
}

/// True if a path's standing queue delays the others too much; `sample` is its latest round trip.
fn is_bloated(now: Time, paths: &mut Paths, index: usize, sample: Option<Span>) -> bool {
    let Some(sample) = sample else { return false };
    let path = &paths[index];
    let mut others = Others::default();
    if Bloat::may_stand(sample, path.returns().least()) {
        // A queue delays no data of a path that carries none, such as a backup.
        let in_use = |other: &&Path| other.id() != path.id() && other.is_active() && paths.may_carry(other);
        for other in paths.iter().filter(in_use) {
            others.longest = others.longest.max(other.rtt().smoothed());
            others.fastest = others.fastest.max(other.delivery().rate());
        }
    }
    paths.queue_stands(index, now, sample, &others)
}

/// The next timeout of a path, apart from acknowledgements and a move to another route.
pub(super) fn path_timeout<P: Payload>(flight: &Flight<P>, path: &Path) -> Time {
    let challenge = path
        .proof()
        .challenge()
        .filter(|challenge| path.is_reachable() && path.allowance().left() > 0 && challenge.is_allowed());
    let next_probe = match path.state() {
        PathState::Failed => path.health().next_probe(),
        PathState::Suspect => path.trouble().probe_at(),
        _ => None,
    };
    let or_never = |at: Option<Time>| at.unwrap_or(Time::NEVER);
    or_never(path.board().loss_at())
        .min(or_never(alarm(flight, path).map(|(at, _)| at)))
        .min(or_never(next_probe))
        .min(or_never(challenge.map(|challenge| challenge.due)))
        .min(path.health().ask_for_credit_at())
        .min(or_never(first_doubt_at(flight, path)))
        .min(or_never(stall_at(flight, path)))
}

/// The next alarm of a path, and when it is raised.
fn alarm<P: Payload>(flight: &Flight<P>, path: &Path) -> Option<(Time, Alarm)> {
    if !path.state().is_alive() {
        return None;
    }
    let (board, out) = (path.board(), path.board().pipe() > 0);
    let next = path.health().next_alarm(out, || board.oldest_sent_at(), path.rtt(), &flight.config);
    next.map(|(at, alarm)| (flight.clock.lateness.judged_at(at), alarm))
}

/// When a new path on which no data was acknowledged is suspected.
fn first_doubt_at<P: Payload>(flight: &Flight<P>, path: &Path) -> Option<Time> {
    let config = &flight.config;
    if !config.failure.suspect || !path.is_active() {
        return None;
    }
    let due = path.first_answer_due(config.acks.max_delay)?;
    flight.paths.has_stand_in(path.id()).then(|| flight.clock.lateness.judged_at(due))
}

/// When a path stalls that delivers too little. The acknowledgement that would show it may be long in coming.
fn stall_at<P: Payload>(flight: &Flight<P>, path: &Path) -> Option<Time> {
    let (config, out) = (&flight.config, path.board().pipe());
    if !config.failure.suspect || !path.is_active() || out == 0 {
        return None;
    }
    let at = path.trouble().stall_at((path.board().oldest_sent_at()?, out), config.acks.max_delay)?;
    let at = at.max(flight.paths.calm_until(path.id()));
    let clock = &flight.clock;
    flight.paths.has_active_besides(path.id()).then(|| clock.silence.judged_at(clock.lateness.judged_at(at)))
}
