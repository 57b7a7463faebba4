//! Path ids and their PIDs: each end provides some to the other in advance.
//!
//! A path through relays is prepared before it is opened, because relays need the PIDs of both ends. So an id is
//! *reserved* first, which determines both PIDs. The driver sets up the relays with them, and then opens the path over
//! a route that stands for the chain. The peer must send with the PID of the last relay, not with this end's own. Each
//! challenge repeats this PID in a NEW_PID frame on the path itself, so that no older frame can override it.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_wire::{Frame, NewPid, PathId, Payload, Pid, ResetToken, Side};

use super::flight::Flight;
use super::outbox::Outbox;
use super::path_error::PathError;
use crate::control::Control;
use crate::event::{AbandonReason, PidChange, ProtocolError};

/// PIDs given in advance, for the client's ids (even) and for the server's (odd).
const PIDS_AHEAD: usize = 4;
/// Most peer PIDs kept for future paths, and how far ahead their ids may be.
const MAX_AHEAD: u32 = 64;
/// Most abandoned paths remembered for a peer that acknowledges nothing.
const MAX_ABANDONED: usize = 256;

/// A reserved path id, with the PIDs that a relay needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedPath {
    /// The path's id.
    pub id: PathId,
    /// This end's PID: the first relay puts it on packets to this end.
    pub own: Pid,
    /// The peer's PID: the last relay puts it on packets to the peer.
    pub remote: Pid,
}

/// The ids of a session's open and future paths, and their PIDs.
pub(super) struct PathIds {
    side: Side,
    /// PIDs given to the peer, for open and future paths.
    local: BTreeMap<PathId, (Pid, ResetToken)>,
    /// PIDs that the peer gave, for future paths.
    remote: BTreeMap<PathId, (Pid, ResetToken)>,
    /// Ids reserved for paths through relays.
    reserved: BTreeSet<PathId>,
    /// For paths through relays: the PID at the last relay, which the peer must use.
    reply: BTreeMap<PathId, Pid>,
    /// Paths abandoned here, with the reason, until the peer knows.
    abandoned: BTreeMap<PathId, u64>,
    /// The next ids to get PIDs: the client's and the server's.
    next_pid_path: [u32; 2],
    /// The next id to open here.
    next: u32,
}

impl PathIds {
    pub(super) fn new(side: Side) -> Self {
        Self {
            side,
            local: BTreeMap::new(),
            remote: BTreeMap::new(),
            reserved: BTreeSet::new(),
            reply: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            next_pid_path: [2, 1],
            next: if side == Side::Client { 2 } else { 1 },
        }
    }

    /// Provides the peer with a PID for a path.
    pub(super) fn register(&mut self, out: &mut Outbox, path: PathId, pid: Pid, token: ResetToken) {
        self.local.insert(path, (pid, token));
        out.pid_changes.push(PidChange::Register { pid, path });
    }

    /// Provides the peer with PIDs for the next few paths of each parity.
    pub(super) fn issue<P: Payload>(&mut self, flight: &mut Flight<P>) {
        for parity in 0..2 {
            for _ in self.ready_count(flight, parity)..PIDS_AHEAD {
                self.issue_one(flight, parity);
            }
        }
    }

    /// Ids of a parity with a PID but no path yet.
    fn ready_count<P: Payload>(&self, flight: &Flight<P>, parity: u32) -> usize {
        let used = |path: &PathId| flight.paths.place_of(*path).is_some() || self.reserved.contains(path);
        self.local.keys().filter(|path| path.0 % 2 == parity && !used(path)).count()
    }

    fn issue_one<P: Payload>(&mut self, flight: &mut Flight<P>, parity: u32) {
        let path = PathId(self.next_pid_path[parity as usize]);
        self.next_pid_path[parity as usize] += 2;
        let (pid, token) = flight.pids.next_pid();
        self.register(&mut flight.out, path, pid, token);
        flight.out.want(Control::NewPid(path));
    }

    /// Provides PIDs for as many of the peer's own ids as the peer names PIDs for, within the limit of open paths: a
    /// peer that names many wants to open many paths.
    fn follow_peer<P: Payload>(&mut self, flight: &mut Flight<P>, named: PathId) {
        if named.opener() == self.side {
            return;
        }
        let parity = named.0 % 2;
        while self.next_pid_path[parity as usize] <= named.0
            && self.ready_count(flight, parity) < flight.max_paths() as usize
        {
            self.issue_one(flight, parity);
        }
    }

    /// Stores a PID that the peer names in a packet of the path `on`. If the path's opener names it on the path itself,
    /// it replaces the earlier one.
    pub(super) fn handle_new_pid<P: Payload>(
        &mut self,
        flight: &mut Flight<P>,
        on: PathId,
        new: NewPid,
    ) -> Result<(), ProtocolError> {
        let is_latest = on == new.path && new.path.opener() != self.side;
        if let Some(index) = flight.paths.place_of(new.path) {
            let path = flight.paths.edit(index);
            if path.remote_pid().is_none() || is_latest {
                path.set_remote_pid(new.pid, new.reset_token);
            }
            return Ok(());
        }
        let next = self.next_pid_path[new.path.0 as usize % 2];
        if new.path.0 > next.max(self.next) + MAX_AHEAD || self.remote.len() > MAX_AHEAD as usize {
            return Err(ProtocolError::PathLimit);
        }
        let opened = new.path.opener() == self.side && new.path.0 < self.next;
        let over = new.path.0 < next && !self.local.contains_key(&new.path);
        if !opened && !over {
            self.remote.insert(new.path, (new.pid, new.reset_token));
            self.follow_peer(flight, new.path);
        }
        Ok(())
    }

    /// The next id to open here, if both ends have named their PIDs for it. With `spare`, the id after it must be ready
    /// as well.
    pub(super) fn take_next(&mut self, spare: bool) -> Option<PathId> {
        let is_ready = |id: PathId| self.local.contains_key(&id) && self.remote.contains_key(&id);
        let id = PathId(self.next);
        if !is_ready(id) || spare && !is_ready(PathId(self.next + 2)) {
            return None;
        }
        self.next += 2;
        Some(id)
    }

    /// Removes and returns the PID that the peer provided for a path.
    pub(super) fn take_remote(&mut self, id: PathId) -> Option<(Pid, ResetToken)> {
        self.remote.remove(&id)
    }

    /// True when the peer may open a path with this id; `is_open` if that path exists already.
    pub(super) fn is_awaited(&self, id: PathId, is_open: bool) -> bool {
        id.opener() != self.side && self.local.contains_key(&id) && !is_open
    }

    /// Retires the PIDs of a closed path; false if the peer had none.
    pub(super) fn retire(&mut self, out: &mut Outbox, path: PathId) -> bool {
        let retired = self.local.remove(&path);
        if let Some((pid, _)) = retired {
            out.pid_changes.push(PidChange::Retire { pid, path });
        }
        self.reply.remove(&path);
        retired.is_some()
    }

    pub(super) fn reserved_count(&self) -> u32 {
        self.reserved.len() as u32
    }

    /// Reserves the next path id for a path through relays.
    pub(super) fn reserve<P: Payload>(&mut self, flight: &mut Flight<P>) -> Result<ReservedPath, PathError> {
        if !flight.state().carries_data() {
            return Err(PathError::NotEstablished);
        }
        let most = flight.max_paths();
        if flight.paths.open_count() + self.reserved_count() >= most {
            return Err(PathError::TooMany(most));
        }
        let id = PathId(self.next);
        let (Some((own, _)), Some((remote, _))) = (self.local.get(&id), self.remote.get(&id)) else {
            return Err(PathError::NotReady);
        };
        let reserved = ReservedPath { id, own: *own, remote: *remote };
        self.next += 2;
        self.reserved.insert(id);
        self.issue(flight);
        Ok(reserved)
    }

    pub(super) fn is_reserved(&self, id: PathId) -> bool {
        self.reserved.contains(&id)
    }

    /// Uses a reserved id for a path on which the peer must send with the PID `reply`.
    pub(super) fn take_reserved(&mut self, id: PathId, reply: Pid) {
        self.reserved.remove(&id);
        self.reply.insert(id, reply);
    }

    /// Releases a reserved id that will not be opened.
    pub(super) fn release(&mut self, out: &mut Outbox, id: PathId) {
        if !self.reserved.remove(&id) {
            return;
        }
        self.remote.remove(&id);
        self.retire(out, id);
        self.abandon(out, id, AbandonReason::Unreachable);
    }

    /// True for a path through relays.
    pub(super) fn is_relayed(&self, id: PathId) -> bool {
        self.reply.contains_key(&id)
    }

    /// Sets the PID `reply` with which the peer must send on path 0.
    pub(super) fn set_first_reply(&mut self, reply: Pid) {
        self.reply.insert(PathId::FIRST, reply);
    }

    /// The frame for the challenge of a path through relays: it names the PID for the return path.
    pub(super) fn reply_frame(&self, path: PathId) -> Option<NewPid> {
        let pid = *self.reply.get(&path)?;
        let (_, reset_token) = *self.local.get(&path)?;
        Some(NewPid { path, pid, reset_token })
    }

    /// Informs the peer that a path is abandoned.
    pub(super) fn abandon(&mut self, out: &mut Outbox, id: PathId, reason: AbandonReason) {
        self.abandoned.insert(id, reason.code());
        if self.abandoned.len() > MAX_ABANDONED {
            self.abandoned.pop_first();
        }
        out.want(Control::PathAbandon(id));
    }

    /// The peer knows that a path is given up.
    pub(super) fn on_abandon_known(&mut self, id: PathId) {
        self.abandoned.remove(&id);
    }

    /// The frame for a PID or an abandoned path; `None` for other controls, or if it is no longer needed.
    pub(super) fn frame<P: Payload>(&self, control: Control) -> Option<Frame<P>> {
        match control {
            Control::NewPid(path) => {
                let (pid, reset_token) = *self.local.get(&path)?;
                Some(Frame::NewPid(NewPid { path, pid, reset_token }))
            }
            Control::PathAbandon(path) => {
                Some(Frame::PathAbandon { path, reason: *self.abandoned.get(&path)? })
            }
            _ => None,
        }
    }
}
