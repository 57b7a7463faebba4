//! What to send next, and where: mTCP's "when", "what" and "where" as separate steps (§3.1.4 [M5]).
//!
//! In order: handshake or last words; proofs of addresses; probes; control frames, on the fastest path; acknowledgements
//! that are late; data, where the scheduler says; acknowledgements that are due and found nothing to travel with.

use anabranch_wire::{PathId, Payload, Span, Time};

use super::place::{Next, Place};
use super::{Run, Session};
use crate::config::AckPolicy;
use crate::path::{Challenge, Path, PathState};
use crate::route::Transmit;
use crate::state::State;
use crate::stream::Pick;

/// An acknowledgement waits no longer than this for data on its way: with enough to send on other paths, none might
/// come for long.
const LATE: Span = Span::from_millis(1);

impl<P: Payload> Session<P> {
    /// The next message to send now. Runs of equal size over one route come in a row.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit<P>> {
        let wake_at = self.wake_at;
        let transmit = self.next_transmit(now);
        if transmit.is_some() || self.wake_at != wake_at {
            self.next_timeout.set(None);
        }
        transmit
    }

    fn next_transmit(&mut self, now: Time) -> Option<Transmit<P>> {
        match self.state {
            State::Closed => return self.transmit_close(now),
            State::InitSent | State::InitRecv => return self.transmit_handshake(now),
            _ => {}
        }
        self.wake_at = Time::NEVER;
        self.prepare_reports();
        self.look_at_paths();
        if self.has_urgent(now) {
            let urgent = self.transmit_urgent(now);
            if urgent.is_some() {
                return urgent;
            }
            self.look_at_paths();
        }
        if self.may_have_data() {
            return self.transmit_data(now);
        }
        self.transmit_ack(now, now)
    }

    /// True when something may go before data: most often there is nothing of that kind.
    fn has_urgent(&self, now: Time) -> bool {
        let wants = self.paths.wants();
        let by_time = wants.check_at <= now || wants.ack_at <= now - LATE;
        let asked = self.paths.want_probes() || !self.greetings.is_empty();
        by_time || asked || !self.control.is_empty() || self.has_reports()
    }

    #[inline(never)]
    fn transmit_urgent(&mut self, now: Time) -> Option<Transmit<P>> {
        self.transmit_late_answer(now)
            .or_else(|| self.transmit_proof(now))
            .or_else(|| self.transmit_probe(now))
            .or_else(|| self.transmit_control(now))
            .or_else(|| self.transmit_ack(now, now - LATE))
    }

    /// Challenges and answers to them.
    fn transmit_proof(&mut self, now: Time) -> Option<Transmit<P>> {
        if self.paths.wants().check_at > now {
            return None;
        }
        let wants = |path: &Path| {
            let due = |challenge: &Challenge| challenge.due <= now && challenge.is_allowed();
            let challenge = path.challenge.as_deref().is_some_and(due);
            path.is_reachable() && (!path.answers.is_empty() || (challenge && path.allowance.left() > 0))
        };
        while let Some(index) = self.paths.iter().position(wants) {
            if !self.paths[index].answers.is_empty() {
                return self.build_answer(now, index);
            }
            if self.spend_challenge(now, index) {
                return self.build_challenge(now, index);
            }
            if let Some(challenge) = &mut self.paths[index].challenge {
                challenge.postpone(now);
            }
        }
        None
    }

    /// Probes of doubtful paths, of the path MTU, and keep-alives.
    fn transmit_probe(&mut self, now: Time) -> Option<Transmit<P>> {
        if self.paths.want_probes()
            && let Some(index) =
                self.paths.iter().position(|path| path.health.probes_due > 0 && path.is_reachable())
        {
            self.paths[index].health.probes_due -= 1;
            return self.build_probe(now, index);
        }
        if self.paths.wants().check_at > now {
            return None;
        }
        let mut found = None;
        for (index, path) in self.paths.iter_mut().enumerate() {
            let searches = path.is_reachable() && path.searches_mtu();
            // Beside the window, but not where it is so small that larger packets would gain nothing.
            let window = self.cc.window(path.id);
            let left = path.allowance.left();
            let spare = |size: &u16| window >= u64::from(*size) * 3 && left >= u64::from(*size);
            if searches && let Some(size) = path.mtu.next_probe(now).filter(|size| spare(size)) {
                found = Some((index, size));
                break;
            }
        }
        let (index, size) = found?;
        self.build_mtu_probe(now, index, size)
    }

    /// Control frames and reports, which hold others up, take the fastest path whatever its window says:
    /// they are few and small. The answer to a repeat takes the path on which the repeat came: one is dead, and an
    /// end that only receives does not know which.
    fn transmit_control(&mut self, now: Time) -> Option<Transmit<P>> {
        if self.control.is_empty() && !self.has_reports() {
            return None;
        }
        let repeat = self.repeat_on.take().and_then(|path| self.path_index(path));
        let index = repeat.filter(|index| self.usable(&self.paths[*index])).or_else(|| self.best_path())?;
        self.build_control(now, index)
    }

    /// False when there is surely no data to send, nor anybody to be told so: most often where data comes in.
    fn may_have_data(&self) -> bool {
        self.streams.may_have_work()
            || self.paths.have_copies()
            || self.paths.have_untold()
            || self.has_datagrams()
            || self.may_relieve()
            || self.config.early_binding.is_some()
    }

    /// Data, or else acknowledgements that are due.
    #[inline(never)]
    fn transmit_data(&mut self, now: Time) -> Option<Transmit<P>> {
        if let Some(most) = self.config.early_binding {
            let sent = self.transmit_early(now, most);
            return if sent.is_some() { sent } else { self.transmit_ack(now, now) };
        }
        let streams = self.streams.has_work();
        if streams && let Some(place) = self.go_on(now) {
            return self.transmit_at(now, place);
        }
        if !streams && !self.paths.have_copies() && !self.has_datagrams() {
            self.note_app_limited();
            let relief = self.transmit_relief(now);
            return if relief.is_some() { relief } else { self.transmit_ack(now, now) };
        }
        if self.paths.have_copies() || self.has_datagrams() {
            let ahead = self.transmit_ahead(now);
            if ahead.is_some() {
                return ahead;
            }
        }
        match self.place(now, streams) {
            Next::At(place) => self.transmit_at(now, place),
            Next::Everywhere(paths) => {
                let sent = self.send_everywhere(now, &paths);
                if sent.is_some() { sent } else { self.transmit_ack(now, now) }
            }
            Next::Nothing => self.transmit_ack(now, now),
        }
    }

    /// The next packet of the run that the scheduler chose, while its path has room.
    fn go_on(&mut self, now: Time) -> Option<Place> {
        let run = self.run.filter(|run| run.left > 0 && run.resend == self.streams.next_is_resend())?;
        if self.streams.next_is_redundant() {
            return None;
        }
        let index = self.path_index(run.path)?;
        let path = self.paths.aside(index);
        let open = matches!(path.state, PathState::Active | PathState::Suspect)
            && path.pacer.budget(now) >= path.size() as u64
            && self.paths.has_room(index);
        open.then_some(Place { index, pick: Pick::MissingFirst, run: Some(run) })
    }

    /// Copies first, which are late already, then datagrams.
    pub(super) fn transmit_ahead(&mut self, now: Time) -> Option<Transmit<P>> {
        if self.are_full() {
            return None;
        }
        let mut views = std::mem::take(&mut self.scratch.views);
        self.view_paths(now, &mut views);
        let mut sent = if self.paths.have_copies() { self.transmit_copy(now, &views) } else { None };
        if sent.is_none() && self.has_datagrams() && views.iter().any(|view| view.budget > 0) {
            sent = self.place_datagrams(now, &views);
        }
        self.scratch.views = views;
        sent
    }

    fn transmit_at(&mut self, now: Time, place: Place) -> Option<Transmit<P>> {
        let Place { index, pick, run } = place;
        let mut draft = self.draft(index);
        self.fill_draft(now, index, pick, &mut draft);
        if draft.is_empty() {
            return self.transmit_ack(now, now);
        }
        if let Some(run) = run {
            self.run = Some(Run { left: run.left.saturating_sub(draft.size() as u64), ..run });
        }
        self.finish_draft(now, index, draft)
    }

    pub(super) fn note_app_limited(&mut self) {
        let mut next = 0;
        while let Some((index, window)) = self.paths.next_untold(next) {
            next = index + 1;
            let path = self.paths.aside(index);
            if path.state == PathState::Active && path.board.pipe() < window {
                path.board.on_app_limited();
            }
        }
    }

    /// An acknowledgement that was due at `due` or before and found no data to travel with.
    fn transmit_ack(&mut self, now: Time, due: Time) -> Option<Transmit<P>> {
        if self.paths.wants().ack_at > due { None } else { self.transmit_due_ack(now, due) }
    }

    fn transmit_due_ack(&mut self, now: Time, due: Time) -> Option<Transmit<P>> {
        let index = self.paths.owing_ack(due)?;
        let carrier = self.ack_carrier(now, index);
        let built = self.build_ack(now, carrier);
        if built.is_none() {
            let until = now + self.config.max_ack_delay;
            self.paths.change_receipt(index, |path| path.receipt.postpone(until));
        }
        built
    }

    /// The path that acknowledgements for the packets of another travel on [M7].
    pub(super) fn ack_carrier(&self, now: Time, index: usize) -> usize {
        let path = &self.paths[index];
        let named = match self.config.ack_policy {
            _ if self.ack_path.0.is_some() => self.ack_path.0,
            AckPolicy::SamePath => None,
            AckPolicy::Primary => Some(PathId::FIRST),
            AckPolicy::Fastest => self.best_path().map(|best| self.paths[best].id),
        };
        if let Some(carrier) = named.and_then(|named| self.path_index(named))
            && self.paths[carrier].is_reachable()
            && self.paths[carrier].state != PathState::Closing
            && !self.is_deserted(now, carrier)
        {
            return carrier;
        }
        if path.is_reachable() && matches!(path.state, PathState::Active | PathState::Validating) {
            return index;
        }
        // Data came in since the path fell silent: it is dead this way, or what it answers waits behind that data. The peer would
        // take acknowledgements that move to a slower path for a silence, so they take both in turn.
        let late = path.state == PathState::Suspect && path.trouble.is_behind_data(path.stats.data_received);
        if late && path.is_reachable() && path.stats.acks_sent.is_multiple_of(2) {
            return index;
        }
        // A path in doubt on which packets arrive is better than one that brings none.
        self.best_path().filter(|best| !path.is_reachable() || !self.is_deserted(now, *best)).unwrap_or(index)
    }

    /// True when nothing arrives on a path any more while others bring packets: the receiver then elects
    /// another path for acknowledgements [M13].
    fn is_deserted(&self, now: Time, index: usize) -> bool {
        let patience = self.config.failure.rto.min;
        let silent = self.paths[index].receipt.silence(now).is_none_or(|silence| silence > patience);
        let others = || self.paths.iter().filter_map(|path| path.receipt.silence(now));
        silent && others().any(|silence| silence < patience)
    }
}
