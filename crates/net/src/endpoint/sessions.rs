//! The sessions of an endpoint, and how packets find theirs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use anabranch_engine::Arrival;
use anabranch_secure::InitId;

use crate::pids::PidTable;
use crate::places::Places;
use crate::resets::Resets;

/// A known INIT.
pub(crate) enum InitState<S> {
    /// It is being answered; a few copies that arrive in the meantime are kept.
    Pending(Vec<Arrival>),
    /// It opened this session.
    Answered(Arc<S>),
}

/// All sessions of an endpoint.
pub(crate) struct Sessions<S> {
    all: Mutex<BTreeMap<u64, Weak<S>>>,
    next_serial: AtomicU64,
    pub(crate) pids: Arc<PidTable<S>>,
    pub(crate) resets: Resets<S>,
    inits: Mutex<HashMap<InitId, InitState<S>>>,
    /// Accepted sessions that are not confirmed yet.
    pub(crate) half_open: Arc<Places<S>>,
    /// Ended sessions that still answer late packets.
    pub(crate) lingering: Arc<Places<S>>,
    /// The used-up caps that keep sessions away.
    over_cap: Mutex<BTreeSet<String>>,
}

impl<S> Sessions<S> {
    /// A table in which so many sessions may wait for their confirmation, and so many linger after their end.
    pub(crate) fn new(half_open: usize, lingering: usize) -> Self {
        Self {
            all: Mutex::default(),
            next_serial: AtomicU64::new(0),
            pids: Arc::default(),
            resets: Resets::default(),
            inits: Mutex::default(),
            half_open: Arc::new(Places::new(half_open)),
            lingering: Arc::new(Places::new(lingering)),
            over_cap: Mutex::default(),
        }
    }

    /// Logs that a used-up cap keeps sessions away, or with `None` that one was opened; only what is news.
    pub(crate) fn on_cap(&self, cap: Option<&str>) {
        let mut known = self.over_cap.lock().expect("no panic while held");
        match cap {
            Some(cap) => {
                if known.insert(cap.to_owned()) {
                    tracing::warn!("a node cannot open a session: {cap}");
                }
            }
            None if known.is_empty() => {}
            None => {
                known.clear();
                tracing::info!("nodes can open sessions again");
            }
        }
    }

    /// A number for a new session.
    pub(crate) fn next_serial(&self) -> u64 {
        self.next_serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, serial: u64, session: &Arc<S>) {
        self.all.lock().expect("no panic while held").insert(serial, Arc::downgrade(session));
    }

    pub(crate) fn remove(&self, serial: u64) {
        self.all.lock().expect("no panic while held").remove(&serial);
    }

    /// All sessions, including those being closed.
    pub(crate) fn all(&self) -> Vec<Arc<S>> {
        let sessions = self.all.lock().expect("no panic while held");
        sessions.values().filter_map(Weak::upgrade).collect()
    }

    /// True while one of the sessions with these numbers is there.
    pub(crate) fn has_any(&self, serials: &[u64]) -> bool {
        let sessions = self.all.lock().expect("no panic while held");
        serials.iter().any(|serial| sessions.contains_key(serial))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.lock().expect("no panic while held").len()
    }

    /// The known INITs.
    pub(crate) fn inits(&self) -> MutexGuard<'_, HashMap<InitId, InitState<S>>> {
        self.inits.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_sessions_are_there_until_the_last_of_them_is_removed() {
        let sessions = Sessions::<()>::new(1, 1);
        let all: Vec<_> = (0..4).map(|serial| (serial, Arc::new(()))).collect();
        all.iter().for_each(|(serial, session)| sessions.add(*serial, session));
        sessions.remove(1);
        assert!(sessions.has_any(&[1, 2]));
        sessions.remove(2);
        assert!(!sessions.has_any(&[1, 2]), "others are there");
    }
}
