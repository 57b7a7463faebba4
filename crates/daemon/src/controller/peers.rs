//! The open sessions of a controller: bounds their number, and ends those that a new configuration does not allow.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use anabranch_net::{PublicKey, Session};
use anabranch_overlay::admission::{Full, Owner, SessionLimits, Sessions};
use anabranch_wire::close_code;

/// See the module's documentation.
pub(super) struct Peers(Mutex<Inner>);

struct Inner {
    counted: Sessions<u64>,
    open: BTreeMap<u64, Session>,
    next: u64,
}

/// An admitted session; it counts until this is dropped.
pub(super) struct Admitted<'a> {
    peers: &'a Peers,
    number: u64,
}

impl Peers {
    pub(super) fn new(limits: SessionLimits) -> Self {
        Self(Mutex::new(Inner { counted: Sessions::new(limits), open: BTreeMap::new(), next: 0 }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic while held")
    }

    /// True after an internal error may have left the table half changed.
    pub(super) fn is_torn(&self) -> bool {
        self.0.is_poisoned()
    }

    /// Number of sessions.
    pub(super) fn len(&self) -> usize {
        self.inner().open.len()
    }

    /// Whether a key may open a further session.
    pub(super) fn has_room_for(&self, key: &PublicKey) -> bool {
        self.inner().counted.check_key(key).is_ok()
    }

    /// Admits an open session. When the controller is full, the largest consumer loses its oldest.
    pub(super) fn admit(&self, session: &Session) -> Result<Admitted<'_>, Full> {
        let address = session.remote_ip();
        let owner = Owner { key: session.peer(), address };
        let mut inner = self.inner();
        let number = inner.next;
        let candidates = inner.counted.admit(number, owner)?;
        inner.next += 1;
        inner.open.insert(number, session.clone());
        let oldest = candidates.first().copied();
        let loser = oldest.and_then(|oldest| {
            inner.counted.remove(oldest);
            inner.open.remove(&oldest)
        });
        drop(inner);
        if let Some(loser) = loser {
            tracing::debug!(peer = %loser.peer(), "session ended: the controller is full");
            loser.abort(close_code::BUSY, "the controller is full and others have fewer sessions");
        }
        Ok(Admitted { peers: self, number })
    }

    /// Ends the sessions of keys that are not allowed any more.
    pub(super) fn keep_only(&self, is_allowed: impl Fn(&PublicKey) -> bool) {
        let ended: Vec<Session> = {
            let inner = self.inner();
            let sessions = inner.open.values().filter(|session| !is_allowed(&session.peer()));
            sessions.cloned().collect()
        };
        ended.iter().for_each(end_unlisted);
    }
}

/// Ends the session of a key that the configuration no longer lists.
pub(super) fn end_unlisted(session: &Session) {
    tracing::info!(peer = %session.peer(), "session ended: the configuration no longer lists this key");
    session.abort(close_code::NOT_ALLOWED, "the controller's configuration no longer lists this key");
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if !self.peers.is_torn() {
            let mut inner = self.peers.inner();
            inner.counted.remove(self.number);
            let session = inner.open.remove(&self.number);
            drop(inner);
            drop(session);
        }
    }
}
