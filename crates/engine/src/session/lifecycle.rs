//! The states of a session in use, and its end: graceful shutdown, abort, last words (MPMTP-AR §3.2 [R3]).
//!
//! A closed session stays for a while and answers packets with its CLOSE again, at growing distances. Then it
//! can be forgotten.

use anabranch_wire::{Close, PathId, Side, Span, Time};

use crate::config::Config;
use crate::event::CloseReason;
use crate::path::{Path, Paths};
use crate::route::{Arrival, Route};
use crate::state::{State, Trigger};

/// Most bytes of a sealed packet with a CLOSE frame, without the reason.
const CLOSE_PACKET: usize = anabranch_wire::PACKET_OVERHEAD + 11;

/// A session's state, and its closing messages.
pub(super) struct Lifecycle {
    state: State,
    side: Side,
    ending: Option<Box<Ending>>,
}

/// The closing messages of an ended session.
struct Ending {
    /// The CLOSE for the peer; `None` if the peer already knows or cannot be reached.
    message: Option<Close>,
    /// Paths and routes over which to send it.
    say_on: Vec<(PathId, Route)>,
    /// Packets received after the end.
    heard: u64,
    forget_at: Time,
    /// Whether the streams' memory has been freed.
    freed: bool,
}

impl Lifecycle {
    pub(super) fn new(side: Side) -> Self {
        Self { state: State::Closed, side, ending: None }
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        self.state
    }

    #[inline]
    pub(super) fn side(&self) -> Side {
        self.side
    }

    /// True if nothing is left to do for a closed session.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Closed
            && self.ending.as_ref().is_none_or(|ending| ending.forget_at == Time::ZERO)
    }

    /// Moves to the next state; false when the trigger means nothing in this one.
    pub(super) fn trigger(&mut self, trigger: Trigger) -> bool {
        let next = self.state.next(trigger);
        if let Some(next) = next {
            self.state = next;
        }
        next.is_some()
    }

    /// Ends the session for `reason`, and informs the peer if that is useful. False if it had ended before.
    pub(super) fn end(&mut self, now: Time, reason: &CloseReason, paths: &Paths, config: &Config) -> bool {
        let is_known = self.state.carries_data();
        if !self.trigger(Trigger::End) {
            return false;
        }
        let message = match reason {
            CloseReason::Finished => Some(Close { code: 0, reason: String::new() }),
            CloseReason::Local { code, reason } => Some(Close { code: *code, reason: reason.clone() }),
            CloseReason::Protocol(error) => Some(Close { code: *error as u64, reason: error.to_string() }),
            _ => None,
        };
        let message = message.filter(|_| is_known);
        let reachable = || paths.iter().filter(|path| path.is_reachable());
        let route_of = |path: &Path| (path.id(), path.route());
        let open: Vec<_> = reachable().filter(|path| !path.is_closing()).map(route_of).collect();
        // When the last path was closed, the peer must still be informed on one of them.
        let say_on = if open.is_empty() { reachable().map(route_of).collect() } else { open };
        let rto = config.failure.rto;
        let linger = paths.iter().map(|path| path.rtt().rto(rto)).max().unwrap_or(Span::ZERO) * 3;
        let forget_at = if message.is_some() { now + linger } else { Time::ZERO };
        self.ending = Some(Box::new(Ending { message, say_on, heard: 0, forget_at, freed: false }));
        true
    }

    /// Handles a packet of the path at `index` after the end; `is_newest` if its number is the highest so far. The 1st,
    /// 2nd, 4th, 8th … packet is answered. The newest is answered at its source, because the peer's address may have
    /// changed and will not be proven any more. The answer is at most three times as long as the packet.
    pub(super) fn on_late_packet(&mut self, path: &Path, arrival: &Arrival, is_newest: bool) {
        let Some(ending) = &mut self.ending else { return };
        ending.heard += 1;
        if ending.heard.is_power_of_two() {
            let length = ending.message.as_ref().map_or(0, |close| close.reason.len());
            let follows = is_newest && CLOSE_PACKET + length <= arrival.size * 3;
            let route = if follows { arrival.route } else { path.route() };
            ending.say_on = vec![(path.id(), route)];
        }
    }

    /// The next CLOSE to send, with its path and route.
    pub(super) fn next_close(&mut self) -> Option<(PathId, Route, Close)> {
        let ending = self.ending.as_mut()?;
        let message = ending.message.clone()?;
        let (path, route) = ending.say_on.pop()?;
        Some((path, route, message))
    }

    /// True the first time after the end: the streams' memory can be freed.
    pub(super) fn frees_memory(&mut self) -> bool {
        self.ending.as_mut().is_some_and(|ending| !std::mem::replace(&mut ending.freed, true))
    }

    /// When a closed session can be forgotten.
    pub(super) fn forget_at(&self) -> Option<Time> {
        self.ending.as_ref().map(|ending| ending.forget_at).filter(|at| *at != Time::ZERO)
    }

    /// Forgets a closed session when it is time.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if let Some(ending) = self.ending.as_mut().filter(|ending| ending.forget_at <= now) {
            ending.forget_at = Time::ZERO;
            ending.say_on.clear();
        }
    }
}
