//! The times that a session as a whole depends on: silence, keep-alive, rest.
//!
//! A session is at rest after [`QUIET`] without traffic, and frees the memory of its last work. Of the ten thousand
//! sessions of a busy node, most are idle at any moment.

use std::cell::Cell;

use anabranch_wire::{Params, Side, Span, Time};

use super::lateness::Lateness;
use crate::config::Config;

/// Time without packets after which a session is at rest.
const QUIET: Span = Span::from_secs(2);
/// Most packets since then that do not end the rest: keep-alives and their answers.
const FEW: u64 = 16;

/// When the session last sent and received, and when it is due next.
pub(super) struct Clock {
    /// When pacing or the scheduler wants another look.
    pub wake_at: Time,
    /// The next timeout, until something changes.
    pub next_timeout: Cell<Option<Option<Time>>>,
    /// When the session was last called with a message or for a timeout.
    called_at: Time,
    /// Time in which this process did not run.
    pub lateness: Lateness,
    /// Time in which the peer was silent on every path.
    pub silence: Lateness,
    pub last_heard: Time,
    pub last_sent: Time,
    /// Packets sent and received when the session last came to rest.
    rested_at: Option<u64>,
}

impl Clock {
    pub(super) fn new(now: Time) -> Self {
        Self {
            wake_at: Time::NEVER,
            next_timeout: Cell::new(None),
            called_at: now,
            lateness: Lateness::default(),
            silence: Lateness::default(),
            last_heard: now,
            last_sent: now,
            rested_at: None,
        }
    }

    /// Marks the next timeout as outdated.
    #[inline]
    pub(super) fn forget_timeout(&mut self) {
        self.next_timeout.set(None);
    }

    /// When a call that comes `now` was due. A timeout that became shorter than the time already passed was due at the
    /// last call.
    pub(super) fn begin_call(&mut self, now: Time) -> Time {
        let due = self.next_timeout.take().flatten().map_or(now, |due| due.max(self.called_at));
        self.called_at = now;
        due
    }

    /// When the idle timeout expires.
    pub(super) fn idle_at(&self, config: &Config, peer: Option<&Params>) -> Time {
        let peer = peer.map_or(0, |peer| peer.idle_timeout_ms);
        let peer = if peer == 0 { Span::MAX } else { Span::from_millis(u64::from(peer)) };
        self.last_heard + config.idle_timeout.min(peer)
    }

    /// When a packet must keep the session alive. A server waits a little longer, because the client's packet serves
    /// both.
    pub(super) fn keep_alive_at(&self, config: &Config, side: Side) -> Option<Time> {
        let pause = config.keep_alive?;
        let later = if side == Side::Server { pause / 16 } else { Span::ZERO };
        Some(self.last_heard.max(self.last_sent) + pause + later)
    }

    /// When the session comes to rest, if nothing happens before.
    pub(super) fn rest_at(&self) -> Time {
        self.last_heard.max(self.last_sent) + QUIET
    }

    /// True when the session is still at rest; `packets` counts those sent and received in all.
    pub(super) fn is_at_rest(&self, packets: impl FnOnce() -> u64) -> bool {
        self.rested_at.is_some_and(|at| packets().abs_diff(at) < FEW)
    }

    /// Records that the session comes to rest after `packets` in total.
    pub(super) fn rest(&mut self, packets: u64) {
        self.rested_at = Some(packets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_in_the_past_was_due_at_the_last_call() {
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        let mut clock = Clock::new(at(0));
        assert_eq!(clock.begin_call(at(10)), at(10), "a message");
        clock.next_timeout.set(Some(Some(at(15))));
        assert_eq!(clock.begin_call(at(40)), at(15), "a late call");
        clock.next_timeout.set(Some(Some(at(20))));
        assert_eq!(clock.begin_call(at(41)), at(40));
    }
}
