//! The clock: probe timeouts, failures, keep-alive, idle (mTCP §3.5 [M12, M13]).

use anabranch_wire::{PathId, Payload, Rate, Side, Span, Time};

use super::Session;
use crate::config::AckPolicy;
use crate::control::Control;
use crate::event::{CloseReason, Event, PathChange};
use crate::manager::Fault;
use crate::path::{Alarm, Path, PathState};
use crate::state::State;

/// Unanswered probes of a failed path that are remembered at most: it may stay cut for weeks.
const MOST_PROBES: usize = 1024;

impl<P: Payload> Session<P> {
    /// When [`Self::handle_timeout`] has to be called, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if let Some(known) = self.next_timeout.get() {
            return known;
        }
        let next = self.find_timeout();
        self.next_timeout.set(Some(next));
        next
    }

    fn find_timeout(&self) -> Option<Time> {
        match self.state {
            State::Closed => return self.closed_timeout(),
            State::InitSent | State::InitRecv => return self.handshake_timeout(),
            _ => {}
        }
        let mut next = self.wake_at.min(self.idle_at());
        if let Some(at) = self.keep_alive_at() {
            next = next.min(at);
        }
        if let Some(at) = self.rest_at() {
            next = next.min(at);
        }
        next = next.min(self.datagrams_timeout());
        next = next.min(self.paths.next_timeout(|path| self.path_timeout(path)));
        (next < Time::NEVER).then_some(next)
    }

    /// The next timeout of a path, an acknowledgement that is due left out.
    fn path_timeout(&self, path: &Path) -> Time {
        if path.state == PathState::Closing {
            return path.forget_at;
        }
        let challenge = path
            .challenge
            .as_ref()
            .filter(|challenge| path.is_reachable() && path.allowance.left() > 0 && challenge.is_allowed());
        let next_probe = match path.state {
            PathState::Failed => path.health.next_probe,
            PathState::Suspect => path.trouble.probe_at(),
            _ => None,
        };
        let or_never = |at: Option<Time>| at.unwrap_or(Time::NEVER);
        or_never(path.board.loss_at())
            .min(or_never(self.alarm(path).map(|(at, _)| at)))
            .min(or_never(next_probe))
            .min(or_never(challenge.map(|challenge| challenge.due)))
            .min(or_never(self.leave_at(path)))
            .min(or_never(self.doubt_at(path)))
            .min(or_never(self.stall_at(path)))
    }

    fn alarm(&self, path: &Path) -> Option<(Time, Alarm)> {
        if !matches!(path.state, PathState::Active | PathState::Suspect) {
            return None;
        }
        let board = &path.board;
        path.health.next_alarm(board.pipe() > 0, || board.oldest_sent_at(), path.rtt(), &self.config)
    }

    /// When a new path that has not acknowledged any data is in doubt.
    fn doubt_at(&self, path: &Path) -> Option<Time> {
        if !self.config.failure.suspect || path.state != PathState::Active {
            return None;
        }
        let due = path.first_answer_due(self.config.max_ack_delay)?;
        self.has_stand_in(path.id).then_some(due)
    }

    /// When a path that answers too little stalls: the answer that would show it may be long in coming.
    fn stall_at(&self, path: &Path) -> Option<Time> {
        if !self.config.failure.suspect || path.state != PathState::Active || path.board.pipe() == 0 {
            return None;
        }
        let out = path.board.pipe();
        let at = path.trouble.stall_at((path.board.oldest_sent_at()?, out), self.config.max_ack_delay)?;
        self.has_other_active_than(path.id).then_some(at)
    }

    fn idle_at(&self) -> Time {
        let peer = self.peer.as_ref().map_or(0, |peer| peer.idle_timeout_ms);
        let peer = if peer == 0 { Span::MAX } else { Span::from_millis(u64::from(peer)) };
        self.last_heard + self.config.idle_timeout.min(peer)
    }

    /// The server asks a little later than the client, which so does it for both if both want it.
    fn keep_alive_at(&self) -> Option<Time> {
        // Without a usable path there is nothing to keep alive; failed ones are probed anyway.
        let pause = self.config.keep_alive.filter(|_| self.best_path().is_some())?;
        let later = if self.side == Side::Server { pause / 16 } else { Span::ZERO };
        Some(self.last_heard.max(self.last_sent) + pause + later)
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Time) {
        self.next_timeout.set(None);
        match self.state {
            State::Closed => return self.handle_closed_timeout(now),
            State::InitSent | State::InitRecv => return self.handle_handshake_timeout(now),
            _ => {}
        }
        if self.idle_at() <= now {
            // All is delivered, both ways; only the peer's last word is missing.
            let over = self.state == State::ShutdownAckSent;
            return self.end(now, if over { CloseReason::Finished } else { CloseReason::IdleTimeout });
        }
        if self.wake_at <= now {
            self.wake_at = Time::NEVER;
        }
        if self.keep_alive_at().is_some_and(|at| at <= now) {
            self.keep_alive();
        }
        if self.rest_at().is_some_and(|at| at <= now) {
            self.rest();
        }
        self.handle_datagrams_timeout(now);
        let mut index = 0;
        while index < self.paths.len() {
            if self.paths[index].state == PathState::Closing && self.paths[index].forget_at <= now {
                self.forget_path(index);
                continue;
            }
            self.check_path(now, index);
            index += 1;
        }
        self.advance_shutdown();
    }

    fn keep_alive(&mut self) {
        if let Some(path) = self.best_path() {
            self.paths[path].health.probes_due = self.paths[path].health.probes_due.max(1);
        }
    }

    fn check_path(&mut self, now: Time, index: usize) {
        if self.paths[index].board.loss_at().is_some_and(|at| at <= now) {
            self.detect_losses(now, index);
            self.update_pacing(now, index);
            if self.paths[index].board.pipe() == 0 {
                self.paths[index].health.on_nothing_out();
            }
        }
        self.check_validation(now, index);
        self.leave_silent_route(now);
        if self.doubt_at(&self.paths[index]).is_some_and(|at| at <= now) {
            self.doubt_silence(index);
        }
        if self.stall_at(&self.paths[index]).is_some_and(|at| at <= now) {
            self.paths[index].trouble.hold(now, Fault::Stalls);
            self.suspect(index);
            self.review_groups(now);
        }
        let path = &mut self.paths[index];
        if path.state == PathState::Failed && path.health.next_probe.is_some_and(|at| at <= now) {
            path.health.on_probe_sent(now, self.config.failure.probe_interval);
            path.health.probes_due = 1;
            if path.board.remembered() >= MOST_PROBES {
                self.give_up_flight(now, index);
            }
            self.try_alternative(now, index);
        }
        let path = &mut self.paths[index];
        if path.state == PathState::Suspect && path.trouble.probe_at().is_some_and(|at| at <= now) {
            path.trouble.on_probe(now, path.size() as u64);
            path.health.probes_due = 1;
        }
        match self.alarm(&self.paths[index]) {
            Some((at, Alarm::Probe)) if at <= now => self.on_probe_timeout(now, index),
            Some((at, Alarm::Timeout)) if at <= now => self.on_retransmission_timeout(now, index),
            Some((at, Alarm::Failure)) if at <= now => self.on_failure(now, index),
            _ => {}
        }
    }

    fn on_probe_timeout(&mut self, now: Time, index: usize) {
        let path = &mut self.paths[index];
        let id = path.id;
        path.health.on_probe_timeout(now);
        path.stats.probe_timeouts += 1;
        if path.mtu.on_timeout() {
            self.on_size_changed(now, index);
        }
        if self.has_stand_in(id) && self.paths[index].state == PathState::Active {
            self.doubt_silence(index);
        }
        if self.paths[index].state == PathState::Suspect {
            let path = &mut self.paths[index];
            path.trouble.on_silence(now, path.health.timeouts);
        }
        self.try_alternative(now, index);
    }

    fn on_retransmission_timeout(&mut self, now: Time, index: usize) {
        let path = &mut self.paths[index];
        path.health.on_timeout(now);
        path.stats.probe_timeouts += 1;
        path.stats.congestion_events += 1;
        let id = path.id;
        if path.mtu.on_timeout() {
            self.on_size_changed(now, index);
        }
        self.give_up_flight(now, index);
        self.cc.on_timeout(id, now, 0);
        self.update_pacing(now, index);
    }

    fn on_failure(&mut self, now: Time, index: usize) {
        let path = &mut self.paths[index];
        let id = path.id;
        let patience = path.rtt().rto(self.config.failure.rto).mul_f64(self.config.failure.chi);
        path.state = PathState::Failed;
        path.stats.failures += 1;
        path.clear_copies();
        path.set_delivery_rate(Rate::ZERO);
        let rtt = path.rtt().smoothed();
        path.trouble.on_silence(now, path.health.timeouts.max(2));
        path.health.on_failure(now, rtt);
        self.give_up_flight(now, index);
        self.cc.on_timeout(id, now, 0);
        self.events.push_back(Event::Path { path: id, change: PathChange::Failed });
        self.review_standings();
        if self.config.ack_policy == AckPolicy::Primary && self.primary.0.is_none_or(|primary| primary == id)
        {
            self.on_primary_failed(now, id, patience);
        }
    }

    /// The acknowledgements of other paths may have died with the primary: paths that failed while it was
    /// silent become active again and carry data as probes, and the acknowledgements get a new path [M13].
    fn on_primary_failed(&mut self, now: Time, primary: PathId, patience: Span) {
        for index in 0..self.paths.len() {
            let path = &self.paths[index];
            let died_with_it =
                path.state == PathState::Failed && path.health.failed_at() >= Some(now - patience);
            if path.id != primary && died_with_it {
                self.paths[index].health.on_ack(now, false);
                self.restore(now, index, None);
            }
        }
        self.elect_primary();
    }

    /// Names the best path that works as the one for acknowledgements [M7].
    pub(super) fn elect_primary(&mut self) {
        let best = self.best_path().map(|index| self.paths[index].id);
        if best.is_some() && best != self.primary.0 {
            self.primary = (best, self.primary.1 + 1);
            self.push_control(Control::AckPath);
        }
    }

    /// Index of the usable path with the lowest round-trip time.
    pub(super) fn best_path(&self) -> Option<usize> {
        let usable = (0..self.paths.len()).filter(|index| self.usable(&self.paths[*index]));
        usable.min_by_key(|index| {
            let path = &self.paths[*index];
            (path.state != PathState::Active, path.rtt().smoothed(), path.id)
        })
    }
}
