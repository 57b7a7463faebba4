//! The PIDs of paths: those given to the peer, for a few ids of each parity ahead of need, and those that it gives.

use anabranch_wire::{NewPid, PathId, Payload, Pid, ResetToken};

use super::Session;
use crate::control::Control;
use crate::event::{PidChange, ProtocolError};

/// PIDs given ahead, for ids of each parity.
const PIDS_AHEAD: usize = 4;

impl<P: Payload> Session<P> {
    pub(super) fn register_pid(&mut self, path: PathId, pid: Pid, token: ResetToken) {
        self.local_pids.insert(path, (pid, token));
        self.pid_changes.push(PidChange::Register { pid, path });
    }

    /// Gives the peer PIDs for the next few paths of each parity.
    pub(super) fn issue_pids(&mut self) {
        for parity in 0..2 {
            for _ in self.ready_count(parity)..PIDS_AHEAD {
                self.issue_pid(parity);
            }
        }
    }

    /// Ids of a parity that have a PID and no use yet.
    fn ready_count(&self, parity: u32) -> usize {
        let used = |path: &PathId| self.path_index(*path).is_some() || self.reserved.contains(path);
        self.local_pids.keys().filter(|path| path.0 % 2 == parity && !used(path)).count()
    }

    fn issue_pid(&mut self, parity: u32) {
        let path = PathId(self.next_pid_path[parity as usize]);
        self.next_pid_path[parity as usize] += 2;
        let (pid, token) = self.pids.next_pid();
        self.register_pid(path, pid, token);
        self.push_control(Control::NewPid(path));
    }

    /// A peer that names PIDs for further ids of its own wants to open many paths: it gets PIDs for as many, within
    /// what may be open at the same time.
    fn follow_peer(&mut self, named: PathId) {
        if named.opener() == self.side {
            return;
        }
        let parity = named.0 % 2;
        while self.next_pid_path[parity as usize] <= named.0
            && self.ready_count(parity) < self.max_paths() as usize
        {
            self.issue_pid(parity);
        }
    }

    /// The peer names a PID, in a packet of the path `on`. What the opener of a path says on the path itself comes
    /// after everything it said before.
    pub(super) fn handle_new_pid(&mut self, on: PathId, new: NewPid) -> Result<(), ProtocolError> {
        let is_latest = on == new.path && new.path.opener() != self.side;
        if let Some(index) = self.path_index(new.path) {
            let path = &mut self.paths[index];
            if path.remote_pid.is_none() || is_latest {
                (path.remote_pid, path.remote_reset) = (Some(new.pid), Some(new.reset_token));
            }
            return Ok(());
        }
        // Ids this end has not named a PID for, so many ahead, are not the peer's to name.
        let far = new.path.0 > self.next_pid_path[new.path.0 as usize % 2].max(self.next_path) + 64;
        if far || self.remote_pids.len() > 64 {
            return Err(ProtocolError::PathLimit);
        }
        let opened = new.path.opener() == self.side && new.path.0 < self.next_path;
        let issued = new.path.0 < self.next_pid_path[new.path.0 as usize % 2];
        let over = issued && !self.local_pids.contains_key(&new.path);
        if !opened && !over {
            self.remote_pids.insert(new.path, (new.pid, new.reset_token));
            self.follow_peer(new.path);
        }
        Ok(())
    }
}
