//! Paths in doubt: held back while they are no use, taken back once they are well (mTCP §3.5 [M12]).
//!
//! What is wrong with a path, and when it is well again, is judged in `path::trouble`; here that is carried out.

use anabranch_wire::{PathId, Payload, Rate, Span, Time};

use super::Session;
use crate::event::{Event, PathChange};
use crate::path::{AckOutcome, Answer, Bloat, Others, Path, PathState};

impl<P: Payload> Session<P> {
    /// Looks whether a path that answers is of use; what it carries goes over the others if not.
    pub(super) fn watch(&mut self, now: Time, index: usize, outcome: &AckOutcome) {
        if !self.config.failure.suspect || self.paths[index].state != PathState::Active {
            return;
        }
        let id = self.paths[index].id;
        let window = (self.cc.ssthresh(id) < u64::MAX).then(|| self.cc.window(id));
        let blocks = self.is_blocked() && self.has_idle_other(index);
        let path = &mut self.paths[index];
        let answer = Answer {
            now,
            smoothed: path.rtt().smoothed(),
            acked_bytes: outcome.acked_bytes,
            packets: outcome.packets,
            round_start: outcome.round_start,
            window,
            oldest: path.board.oldest_sent_at(),
            via: path.rtt_via(),
            blocks,
        };
        let fault = path.trouble.on_ack(&answer);
        if let Some(fault) = fault.filter(|_| self.has_other_active(index)) {
            self.paths[index].trouble.hold(now, fault);
            self.suspect(index);
            self.review_groups(now);
        } else if self.is_bloated(now, index, outcome.rtt) {
            let path = &mut self.paths[index];
            let known = (path.ways_back.least(), path.delivery_rate);
            path.trouble.hold_bloated(now, known);
            self.suspect(index);
            self.review_groups(now);
        } else if let Some(window) = window {
            let path = &mut self.paths[index];
            let known = (window, path.rtt().smoothed());
            let before = path.trouble.take_recovery(now, known, &path.ways_back);
            before.into_iter().for_each(|before| self.cc.on_recovery(id, before));
        }
    }

    /// True when a queue stands before a path, of which this is the latest round trip, that others need not wait for.
    fn is_bloated(&mut self, now: Time, index: usize, sample: Option<Span>) -> bool {
        let Some(sample) = sample else { return false };
        let path = &self.paths[index];
        let mut others = Others::default();
        let least = path.ways_back.least();
        if Bloat::may_stand(sample, least) {
            for other in
                self.paths.iter().filter(|other| other.id != path.id && other.state == PathState::Active)
            {
                others.longest = others.longest.max(other.rtt().smoothed());
                others.fastest = others.fastest.max(other.delivery_rate);
            }
        }
        let limit = others.limit(least, path.delivery_rate);
        let path = self.paths.aside(index);
        path.bloat.stands(now, sample, limit, path.stats.data_received)
    }

    pub(super) fn has_other_active(&self, index: usize) -> bool {
        self.has_other_active_than(self.paths[index].id)
    }

    pub(super) fn has_other_active_than(&self, id: PathId) -> bool {
        self.paths.iter().any(|path| path.id != id && path.state == PathState::Active)
    }

    /// True when there is data that the peer's receive window does not admit, and nothing else to send.
    fn is_blocked(&mut self) -> bool {
        self.streams.unsent() > 0 && !self.streams.has_work()
    }

    fn has_idle_other(&self, index: usize) -> bool {
        let id = self.paths[index].id;
        let idle = |path: &Path| path.state == PathState::Active && path.board.pipe() == 0;
        self.paths.iter().any(|path| path.id != id && idle(path))
    }

    /// True when a path that is silent need not be waited for: another carries data or, held back, answers.
    pub(super) fn has_stand_in(&self, id: PathId) -> bool {
        let answers = |path: &Path| path.trouble.is_held() && path.health.timeouts == 0;
        let stands_in = |path: &Path| match path.state {
            PathState::Active => true,
            PathState::Suspect => answers(path),
            _ => false,
        };
        self.paths.iter().any(|path| path.id != id && stands_in(path))
    }

    /// A path that is silent is suspected.
    pub(super) fn doubt_silence(&mut self, index: usize) {
        let path = &mut self.paths[index];
        path.trouble.heard(path.stats.data_received);
        self.suspect(index);
    }

    /// The path carries no data until it is well; what it carries goes over the others as well.
    pub(super) fn suspect(&mut self, index: usize) {
        self.paths[index].state = PathState::Suspect;
        self.doubt_flight(index);
        let path = self.paths[index].id;
        self.events.push_back(Event::Path { path, change: PathChange::Suspect });
        self.review_standings();
    }

    /// Something sent on a path was acknowledged, after so long and on that path: is it well?
    pub(super) fn revive(&mut self, now: Time, index: usize, answer: Option<(Span, PathId)>) {
        let sample = answer.map(|(sample, _)| sample);
        let via = answer.filter(|(_, via)| *via != self.paths[index].id).and_then(|(_, via)| self.path(via));
        let detour = via.map_or(Span::ZERO, |via| via.rtt().smoothed());
        let path = &mut self.paths[index];
        if !matches!(path.state, PathState::Suspect | PathState::Failed) {
            return;
        }
        let late = sample.filter(|_| path.trouble.is_behind_data(path.stats.data_received));
        let detour = detour + late.unwrap_or(Span::ZERO);
        if self.config.failure.suspect {
            let was_held = path.trouble.is_held();
            if !path.trouble.is_well(now, sample, detour) {
                if path.state == PathState::Failed && path.trouble.is_held() {
                    // It answers: often enough probed, it will show whether it is well.
                    path.state = PathState::Suspect;
                    self.give_up_flight(now, index);
                }
                return;
            }
            if was_held && path.state == PathState::Suspect {
                self.begin_anew(now, index, sample);
            }
        }
        self.restore(now, index, sample);
    }

    /// What windows and round trips were before a long doubt says little of what they will be: slow start up to most
    /// of the window that the path had, with what it answered last. Where it is known to carry much less than before there
    /// is no slow start, and the scheduler is told the rate.
    fn begin_anew(&mut self, now: Time, index: usize, sample: Option<Span>) {
        let path = &mut self.paths[index];
        path.bloat = Bloat::default();
        let found_rate = path.trouble.found_rate();
        path.set_delivery_rate(found_rate.unwrap_or(Rate::ZERO));
        let before =
            if found_rate.is_some() { Some(0) } else { path.trouble.window_to_return_to(&path.ways_back) };
        self.cc.on_return(path.id, before, now);
        if let Some(sample) = sample {
            let via = self.paths[index].rtt_via();
            self.paths[index].forget_rtt();
            self.paths[index].sample_rtt(now, via, sample, Span::ZERO);
        }
    }

    /// The path carries data again.
    pub(super) fn restore(&mut self, now: Time, index: usize, sample: Option<Span>) {
        let path = &mut self.paths[index];
        let failed = path.state == PathState::Failed;
        path.state = PathState::Active;
        let id = path.id;
        if failed {
            path.mtu.search_again();
            // What vanished while the path was dead says nothing of congestion.
            self.give_up_flight(now, index);
            self.begin_anew(now, index, sample);
        }
        self.events.push_back(Event::Path { path: id, change: PathChange::Recovered });
        self.review_standings();
        self.run = None;
        self.relieve_suspects();
        self.update_pacing(now, index);
        self.update_send_limit();
    }

    /// What suspect paths carry goes over the others as well, now that one is active: while there was none, they were
    /// given data.
    pub(super) fn relieve_suspects(&mut self) {
        for index in 0..self.paths.len() {
            if self.paths[index].state == PathState::Suspect {
                self.doubt_flight(index);
            }
        }
    }
}
