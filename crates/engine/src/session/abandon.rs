//! Giving up paths: by this end's wish, by the peer's, and where nobody answers.

use anabranch_wire::{PathId, Payload, Span, Time};

use super::Session;
use super::paths::cost_of;
use crate::control::Control;
use crate::event::{AbandonReason, CloseReason, Event, PathChange, PidChange, ProtocolError};
use crate::path::{Challenge, PathState};

/// Paths given up here of which a peer that acknowledges nothing is told again.
const MAX_ABANDONED: usize = 256;
/// How long a new path is challenged before it is given up.
pub(super) const VALIDATION_PATIENCE: Span = Span::from_secs(5);

impl<P: Payload> Session<P> {
    /// Stops using a path; what is in flight on it goes elsewhere.
    pub fn close_path(&mut self, now: Time, path: PathId, reason: AbandonReason) {
        self.next_timeout.set(None);
        if let Some(index) = self.path_index(path) {
            self.abandon(now, index, reason, true);
        }
    }

    pub(super) fn abandon(&mut self, now: Time, index: usize, reason: AbandonReason, tell: bool) {
        let path = &mut self.paths[index];
        if path.state == PathState::Closing {
            return;
        }
        let was_only = !matches!(path.state, PathState::Validating);
        path.state = PathState::Closing;
        path.forget_at = now + path.rtt().rto(self.config.failure.rto) * 3;
        path.challenge = None;
        path.answers.clear();
        path.clear_copies();
        let id = path.id;
        self.give_up_flight(now, index);
        self.cc.remove_path(id);
        self.forget_sharing(id);
        if tell {
            self.abandoned.insert(id, reason.code());
            if self.abandoned.len() > MAX_ABANDONED {
                self.abandoned.pop_first();
            }
            self.push_control(Control::PathAbandon(id));
        }
        self.events.push_back(Event::Path { path: id, change: PathChange::Closed(reason) });
        self.review_standings();
        if self.primary.0 == Some(id) {
            self.elect_primary();
        }
        let left = self.paths.iter().any(|path| path.state != PathState::Closing);
        // An address that is gone may come back, or another in its place: the idle timeout decides.
        if was_only && !left && reason != AbandonReason::AddressGone {
            self.end(now, CloseReason::Local { code: 0, reason: "the last path was closed".to_owned() });
        }
    }

    /// Forgets a path whose late packets need no answer any more.
    pub(super) fn forget_path(&mut self, index: usize) {
        self.remember_address(index);
        let path = self.paths.remove(index);
        self.addresses.on_received(path.receipt.bytes);
        // Less is always to be had.
        let _ = self.reserved_paths.hold(cost_of(self.paths.len()));
        if let Some((pid, _)) = self.local_pids.remove(&path.id) {
            self.pid_changes.push(PidChange::Retire { pid, path: path.id });
        }
        self.reply_pids.remove(&path.id);
        self.control.remove(Control::PathStatus(path.id));
        self.control.remove(Control::MaxPathData(path.id));
        self.control.remove(Control::ObservedAddress(path.id));
        self.forget_management(path.id);
        self.issue_pids();
    }

    /// The peer gives up a path. When nothing of it ever came here, its PID goes back, or the peer would
    /// run out of path ids that are ready.
    pub(super) fn handle_path_abandon(
        &mut self,
        now: Time,
        id: PathId,
        code: u64,
    ) -> Result<(), ProtocolError> {
        if let Some(index) = self.path_index(id) {
            self.abandon(now, index, AbandonReason::from_code(code), false);
            return Ok(());
        }
        if id.opener() == self.side {
            return Ok(());
        }
        if let Some((pid, _)) = self.local_pids.remove(&id) {
            if !self.churn.spend(now) {
                return Err(ProtocolError::PathLimit);
            }
            self.remote_pids.remove(&id);
            self.early_wishes.remove(&id);
            self.pid_changes.push(PidChange::Retire { pid, path: id });
            self.issue_pids();
        }
        Ok(())
    }

    /// Gives up paths that nobody answered on.
    pub(super) fn check_validation(&mut self, now: Time, index: usize) {
        let path = &self.paths[index];
        let Some(challenge) = path.challenge.as_ref().filter(|asked| asked.age(now) >= VALIDATION_PATIENCE)
        else {
            return;
        };
        match path.state {
            PathState::Validating if self.waits_for_peer(challenge) => {
                if let Some(challenge) = &mut self.paths[index].challenge {
                    challenge.wait_on(now);
                }
            }
            PathState::Validating => self.abandon(now, index, AbandonReason::Unreachable, true),
            PathState::Failed => {}
            _ => self.paths[index].challenge = None,
        }
    }

    /// New ids come from the peer: one that is given up while the peer is not heard is gone, and when the last is, no other route
    /// can be tried. So a path stays then, as long as there is room for more.
    fn waits_for_peer(&self, challenge: &Challenge) -> bool {
        let room = self.open_count() + (self.reserved.len() as u32) < self.max_paths();
        room && challenge.is_unheard(self.last_heard)
    }
}
