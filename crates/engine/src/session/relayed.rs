//! Paths through relays: reserved first, opened when the relays are ready.
//!
//! A relay needs the PIDs of both ends before it can forward for a path, and both ends name them per path id. So
//! an id is reserved, which tells the two PIDs; the driver sets up the relays with them; then the path is opened over a
//! route that stands for the chain. The peer has to use the PID that the last relay gave for the way back instead of
//! this end's own: NEW_PID says so in each challenge, on the path itself, so that no older one can come after it.

use anabranch_wire::{NewPid, PathId, Payload, Pid, Time};

use super::{PathError, Session};
use crate::control::Control;
use crate::event::AbandonReason;
use crate::route::Route;

/// A path id that is set aside, with what a relay has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedPath {
    /// The path's id.
    pub id: PathId,
    /// This end's PID: what the first relay puts on packets that come here.
    pub own: Pid,
    /// The peer's PID: what the last relay puts on packets that go there.
    pub remote: Pid,
}

impl<P: Payload> Session<P> {
    /// Sets the next path id aside for a path through relays.
    ///
    /// # Errors
    /// [`PathError`] when no path can be opened now.
    pub fn reserve_path(&mut self) -> Result<ReservedPath, PathError> {
        if !self.state.carries_data() {
            return Err(PathError::NotEstablished);
        }
        let most = self.max_paths();
        if self.open_count() + self.reserved.len() as u32 >= most {
            return Err(PathError::TooMany(most));
        }
        let id = PathId(self.next_path);
        let (Some((own, _)), Some((remote, _))) = (self.local_pids.get(&id), self.remote_pids.get(&id))
        else {
            return Err(PathError::NotReady);
        };
        let reserved = ReservedPath { id, own: *own, remote: *remote };
        self.next_path += 2;
        self.reserved.insert(id);
        self.issue_pids();
        Ok(reserved)
    }

    /// Opens a reserved path over `route`; the peer is to send with the PID `reply`, at the last relay.
    ///
    /// # Errors
    /// [`PathError`] when it cannot be opened any more; the id is spent then.
    pub fn open_reserved(
        &mut self,
        now: Time,
        id: PathId,
        (route, reply): (Route, Pid),
    ) -> Result<(), PathError> {
        if !self.reserved.contains(&id) {
            return Err(PathError::Unknown);
        }
        let refusal = if !self.state.carries_data() {
            Some(PathError::NotEstablished)
        } else if !self.allows(route) {
            Some(PathError::RuledOut)
        } else if self.open_count() >= self.max_paths() {
            Some(PathError::TooMany(self.max_paths()))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.release_path(id);
            return Err(refusal);
        }
        self.reserved.remove(&id);
        self.reply_pids.insert(id, reply);
        self.next_timeout.set(None);
        self.create_path(now, id, route);
        Ok(())
    }

    /// Gives back a reserved path id that will not be opened.
    pub fn release_path(&mut self, id: PathId) {
        if !self.reserved.remove(&id) {
            return;
        }
        self.next_timeout.set(None);
        self.remote_pids.remove(&id);
        if let Some((pid, _)) = self.local_pids.remove(&id) {
            self.pid_changes.push(crate::event::PidChange::Retire { pid, path: id });
        }
        self.abandoned.insert(id, AbandonReason::Unreachable.code());
        self.push_control(Control::PathAbandon(id));
    }

    /// The peer's PID for a path, once it is known.
    #[must_use]
    pub fn remote_pid(&self, path: PathId) -> Option<Pid> {
        self.path(path).and_then(|path| path.remote_pid)
    }

    /// Before the handshake of a client that reaches the peer through relays: the peer is to send with the PID
    /// `reply`, at the last relay, until further paths are open.
    pub fn set_first_reply_pid(&mut self, reply: Pid) {
        self.local.pid = reply;
        self.reply_pids.insert(PathId::FIRST, reply);
    }

    /// What a path's challenge has to say about the PID for the way back.
    pub(super) fn reply_pid_frame(&self, path: PathId) -> Option<NewPid> {
        let pid = *self.reply_pids.get(&path)?;
        let (_, reset_token) = *self.local_pids.get(&path)?;
        Some(NewPid { path, pid, reset_token })
    }
}
