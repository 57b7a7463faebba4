//! Stateless resets (RFC 9000 §10.3): said to those who still send to a session that is gone, and believed
//! when they carry the right token.
//!
//! A reset is smaller than any packet that can cause one, comes at most [`MOST_A_SECOND`] times a second,
//! and never answers anything but a data packet, so two endpoints cannot keep each other busy with them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use anabranch_wire::{Span, Time};

use crate::session::inner::SessionInner;
use crate::session::outbox::Peer;

/// Resets sent in one second at most.
const MOST_A_SECOND: u32 = 200;

/// Which session packets from a peer's address under a peer's PID are about, and how many resets were sent.
#[derive(Default)]
pub(crate) struct Resets {
    sessions: Mutex<HashMap<Peer, Weak<SessionInner>>>,
    budget: Mutex<(Time, u32)>,
}

impl Resets {
    /// Packets go to `peers`: a reset from there is about `session`. The first session to name a pair
    /// keeps it, so that another peer cannot take it over.
    pub(crate) fn watch(&self, session: &Arc<SessionInner>, peers: &[Peer]) {
        let mut sessions = self.sessions.lock().expect("no panic while held");
        for peer in peers {
            let entry = sessions.entry(*peer).or_default();
            if entry.strong_count() == 0 {
                *entry = Arc::downgrade(session);
            }
        }
    }

    /// Forgets what [`Resets::watch`] was told of a session.
    pub(crate) fn forget(&self, session: &Arc<SessionInner>, peers: &[Peer]) {
        let mut sessions = self.sessions.lock().expect("no panic while held");
        let own = Arc::downgrade(session);
        for peer in peers {
            if sessions.get(peer).is_some_and(|known| known.ptr_eq(&own)) {
                sessions.remove(peer);
            }
        }
    }

    /// The session that a reset is about.
    pub(crate) fn find(&self, peer: Peer) -> Option<Arc<SessionInner>> {
        self.sessions.lock().expect("no panic while held").get(&peer)?.upgrade()
    }

    /// Whether one more may be sent now.
    pub(crate) fn may_send(&self, now: Time) -> bool {
        let mut budget = self.budget.lock().expect("no panic while held");
        if now.since(budget.0) >= Span::from_secs(1) {
            *budget = (now, 0);
        }
        budget.1 += 1;
        budget.1 <= MOST_A_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_limited_in_each_second() {
        let resets = Resets::default();
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        let sent = (0..1000).filter(|millis| resets.may_send(at(*millis))).count();
        assert_eq!(sent, MOST_A_SECOND as usize);
        assert!(resets.may_send(at(1000)));
    }
}
