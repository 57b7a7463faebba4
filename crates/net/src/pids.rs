//! Chooses PIDs at random, and finds the session and path of a PID.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex, RwLock};

use anabranch_engine::{PidChange, PidSource};
use anabranch_secure::ResetKey;
use anabranch_wire::{PathId, Pid, PidHasher, ResetToken};

type Entries<S> = HashMap<Pid, (Arc<S>, PathId), BuildHasherDefault<PidHasher>>;

/// Most remembered PIDs of closed paths of open sessions.
const MOST_RETIRED: usize = 8192;

/// The session and path of each PID.
pub(crate) struct PidTable<S> {
    entries: RwLock<Entries<S>>,
    retired: Mutex<Retired>,
}

impl<S> Default for PidTable<S> {
    fn default() -> Self {
        Self { entries: RwLock::default(), retired: Mutex::default() }
    }
}

/// A late packet for a closed path must not be answered by a reset, since its session lives.
#[derive(Default)]
struct Retired {
    set: HashSet<Pid, BuildHasherDefault<PidHasher>>,
    order: VecDeque<Pid>,
}

impl<S> PidTable<S> {
    pub(crate) fn find(&self, pid: Pid) -> Option<(Arc<S>, PathId)> {
        let entries = self.entries.read().expect("no panic while held");
        entries.get(&pid).map(|(session, path)| (session.clone(), *path))
    }

    pub(crate) fn apply(&self, session: &Arc<S>, change: PidChange) {
        let mut entries = self.entries.write().expect("no panic while held");
        match change {
            PidChange::Register { pid, path } => {
                entries.insert(pid, (session.clone(), path));
            }
            PidChange::Retire { pid, .. } => {
                entries.remove(&pid);
                drop(entries);
                self.retired.lock().expect("no panic while held").add(pid);
            }
        }
    }

    /// True for the PID of a closed path whose session may live.
    pub(crate) fn is_retired(&self, pid: Pid) -> bool {
        self.retired.lock().expect("no panic while held").set.contains(&pid)
    }

    pub(crate) fn remove_all(&self, pids: impl IntoIterator<Item = Pid>) {
        let mut entries = self.entries.write().expect("no panic while held");
        for pid in pids {
            entries.remove(&pid);
        }
    }

    fn contains(&self, pid: Pid) -> bool {
        self.entries.read().expect("no panic while held").contains_key(&pid)
    }
}

impl Retired {
    fn add(&mut self, pid: Pid) {
        if self.set.insert(pid) {
            self.order.push_back(pid);
        }
        if self.order.len() > MOST_RETIRED
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }
}

/// Draws random PIDs that no session of the endpoint uses.
pub(crate) struct RandomPids<S> {
    table: Arc<PidTable<S>>,
    reset_key: ResetKey,
    /// A PID that was drawn before the session existed.
    first: Option<Pid>,
}

impl<S> RandomPids<S> {
    pub(crate) fn new(table: Arc<PidTable<S>>, reset_key: ResetKey) -> Self {
        Self { table, reset_key, first: None }
    }

    /// Returns `first`, a PID drawn here earlier, before all others.
    pub(crate) fn beginning_with(mut self, first: Pid) -> Self {
        self.first = Some(first);
        self
    }
}

impl<S: Send + Sync> PidSource for RandomPids<S> {
    fn next_pid(&mut self) -> (Pid, ResetToken) {
        if let Some(first) = self.first.take() {
            return (first, self.reset_key.token(first));
        }
        loop {
            let pid = Pid(u64::from_be_bytes(random()));
            if pid != Pid::HANDSHAKE && !self.table.contains(pid) {
                return (pid, self.reset_key.token(pid));
            }
        }
    }
}

/// Fresh random bytes from the operating system.
///
/// # Panics
/// If the system provides none, because no key would be safe then.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has random bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_paths_are_remembered_and_not_for_ever() {
        let mut retired = Retired::default();
        for pid in 0..2 * MOST_RETIRED as u64 {
            retired.add(Pid(pid));
        }
        assert_eq!(retired.set.len(), MOST_RETIRED);
        assert!(retired.set.contains(&Pid(2 * MOST_RETIRED as u64 - 1)) && !retired.set.contains(&Pid(0)));
    }
}
