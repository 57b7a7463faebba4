//! Stateless resets (RFC 9000 §10.3): sent to peers of a session that is gone, and accepted if they carry the right token.
//!
//! A reset is shorter than the packet it answers and answers only data packets, so two endpoints cannot keep each other busy. At
//! most [`MOST_A_SECOND`] are sent in a second, [`MOST_OF_ONE`] of them to one source.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};

use anabranch_wire::{PerSecond, Pid, SourceLimit, Time};

/// Most resets sent in one second.
const MOST_A_SECOND: u32 = 200;
/// Most of them to one source, so that a flood does not use up the resets of others.
const MOST_OF_ONE: u8 = 20;

/// An address with a PID that was used there.
pub(crate) type Peer = (SocketAddr, Pid);

/// The session for each pair of a peer's address and PID, and how many resets were sent.
pub(crate) struct Resets<S> {
    sessions: Mutex<HashMap<Peer, Weak<S>>>,
    limit: Mutex<SourceLimit>,
}

impl<S> Default for Resets<S> {
    fn default() -> Self {
        let key = getrandom::u64().expect("the operating system has random bytes");
        let limit = SourceLimit::new(Time::ZERO, PerSecond { all: MOST_A_SECOND, each: MOST_OF_ONE }, key);
        Self { sessions: Mutex::default(), limit: Mutex::new(limit) }
    }
}

impl<S> Resets<S> {
    /// Packets of `session` go to `peers`, so a reset from there concerns it. The first session to name a pair keeps it, so that
    /// another peer cannot take it over.
    pub(crate) fn watch(&self, session: &Arc<S>, peers: &[Peer]) {
        let mut sessions = self.sessions.lock().expect("no panic while held");
        for peer in peers {
            let entry = sessions.entry(*peer).or_default();
            if entry.strong_count() == 0 {
                *entry = Arc::downgrade(session);
            }
        }
    }

    /// Forgets pairs that [`Resets::watch`] registered for a session.
    pub(crate) fn forget(&self, session: &Arc<S>, peers: &[Peer]) {
        let mut sessions = self.sessions.lock().expect("no panic while held");
        let own = Arc::downgrade(session);
        for peer in peers {
            if sessions.get(peer).is_some_and(|known| known.ptr_eq(&own)) {
                sessions.remove(peer);
            }
        }
    }

    /// The session that a reset concerns.
    pub(crate) fn find(&self, peer: Peer) -> Option<Arc<S>> {
        self.sessions.lock().expect("no panic while held").get(&peer)?.upgrade()
    }

    /// True if one more may be sent there now.
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
        let resets = Resets::<()>::default();
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        let source = |last: u32| IpAddr::from((0xc633_6400 + last).to_be_bytes());
        assert_eq!((0..999).filter(|millis| resets.may_send(at(*millis), source(1))).count(), 20);
        // One of them may share a bucket with the first.
        assert!((2..9).any(|last| resets.may_send(at(999), source(last))));
        let forged = (3..10_000).filter(|last| resets.may_send(at(999), source(*last))).count();
        assert_eq!(forged, 200 - 20 - 1);
        assert!(resets.may_send(at(1000), source(1)));
    }
}
