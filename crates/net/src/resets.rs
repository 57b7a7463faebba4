//! Stateless resets (RFC 9000 §10.3): said to those who still send to a session that is gone, and believed
//! when they carry the right token.
//!
//! A reset is smaller than any packet that can cause one, comes at most [`MOST_A_SECOND`] times a second, [`MOST_OF_ONE`] times to one source,
//! and never answers anything but a data packet, so two endpoints cannot keep each other busy with them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use anabranch_wire::{SourceLimit, Time};

use crate::session::inner::SessionInner;
use crate::session::outbox::Peer;

/// Resets sent in one second at most.
const MOST_A_SECOND: u32 = 200;
/// To one source: who floods does not keep others from learning that their sessions are gone.
const MOST_OF_ONE: u8 = 20;

/// Which session packets from a peer's address under a peer's PID are about, and how many resets were sent.
pub(crate) struct Resets {
    sessions: Mutex<HashMap<Peer, Weak<SessionInner>>>,
    limit: Mutex<SourceLimit>,
}

impl Default for Resets {
    fn default() -> Self {
        let limit = SourceLimit::new(Time::ZERO, (MOST_A_SECOND, MOST_OF_ONE));
        Self { sessions: Mutex::default(), limit: Mutex::new(limit) }
    }
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

    /// Whether one more may be sent there now.
    pub(crate) fn may_send(&self, now: Time, to: IpAddr) -> bool {
        self.limit.lock().expect("no panic while held").admit(now, to)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Span;

    use super::*;

    #[test]
    fn resets_are_limited_in_each_second_and_one_source_leaves_others_theirs() {
        let resets = Resets::default();
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        let source = |last: u32| IpAddr::from((0xc633_6400 + last).to_be_bytes());
        assert_eq!((0..999).filter(|millis| resets.may_send(at(*millis), source(1))).count(), 20);
        assert!(resets.may_send(at(999), source(2)));
        let forged = (3..10_000).filter(|last| resets.may_send(at(999), source(*last))).count();
        assert_eq!(forged, 200 - 20 - 1);
        assert!(resets.may_send(at(1000), source(1)));
    }
}
