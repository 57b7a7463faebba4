//! The end of a session: graceful shutdown, abort, and the last words (MPMTP-AR §3.2 [R3]).
//!
//! A closed session lingers for a moment, in which it answers packets with its CLOSE again, ever more
//! rarely, and then can be forgotten.

use anabranch_wire::{Close, Frame, Fsn, PathId, Payload, Span, Time};

use super::draft::Draft;
use super::{OVERHEAD, Session};
use crate::control::Control;
use crate::event::{CloseReason, Event};
use crate::path::{Path, PathState};
use crate::route::{Arrival, Route, Transmit};
use crate::state::{State, Trigger};

const MAX_REASON: usize = anabranch_wire::MAX_REASON_LEN;
/// Bytes of a CLOSE frame but for its reason, at most.
const CLOSE_FRAME: usize = 11;

/// The last words of a closed session.
#[derive(Debug)]
pub(super) struct Ending {
    /// What to tell the peer; `None` when it knows or cannot hear.
    message: Option<Close>,
    /// Paths on which it still has to be said now, and where to.
    say_on: Vec<(PathId, Route)>,
    /// Packets that came since, which decides whether to answer the next one.
    heard: u64,
    forget_at: Time,
}

impl<P: Payload> Session<P> {
    /// Closes once everything written has been delivered; the peer may send what it has left.
    pub fn close(&mut self, now: Time) {
        self.next_timeout.set(None);
        match self.state {
            State::InitSent | State::InitRecv => {
                self.abort(now, 0, "closed before it was established");
            }
            _ => {
                self.trigger(Trigger::CloseRequested);
                self.advance_shutdown();
            }
        }
    }

    /// Ends the session at once; what is not delivered is lost. `reason` is cut to 255 bytes.
    pub fn abort(&mut self, now: Time, code: u64, reason: &str) {
        self.next_timeout.set(None);
        let mut end = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.end(now, CloseReason::Local { code, reason: reason[..end].to_owned() });
    }

    /// True when nothing remains to be done for a closed session.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
            && self.ending.as_ref().is_none_or(|ending| ending.forget_at == Time::ZERO)
    }

    pub(super) fn trigger(&mut self, trigger: Trigger) -> bool {
        let next = self.state.next(trigger);
        if let Some(next) = next {
            self.state = next;
        }
        next.is_some()
    }

    /// Moves a shutdown on when everything written has been acknowledged.
    pub(super) fn advance_shutdown(&mut self) {
        if !matches!(self.state, State::ShutdownPending | State::ShutdownRecv) {
            return;
        }
        if !self.streams.is_drained() || self.datagrams_wait() {
            return;
        }
        let say = if self.state == State::ShutdownPending { Control::Shutdown } else { Control::ShutdownAck };
        self.trigger(Trigger::Drained);
        self.push_control(say);
    }

    pub(super) fn handle_shutdown(&mut self) {
        let before = self.state;
        if self.trigger(Trigger::Shutdown) && self.state != before {
            if before == State::ShutdownSent {
                self.push_control(Control::ShutdownAck);
            } else {
                self.events.push_back(Event::PeerClosing);
            }
        }
    }

    pub(super) fn handle_shutdown_ack(&mut self, now: Time) {
        if self.state.next(Trigger::ShutdownAck).is_some() {
            self.end(now, CloseReason::Finished);
        }
    }

    pub(super) fn handle_close(&mut self, now: Time, close: Close) {
        let finished = close.code == 0 && self.state == State::ShutdownAckSent;
        let peer = CloseReason::Peer { code: close.code, reason: close.reason.into() };
        self.end(now, if finished { CloseReason::Finished } else { peer });
    }

    /// Ends the session for `reason` and tells the peer where that makes sense.
    pub(super) fn end(&mut self, now: Time, reason: CloseReason) {
        let heard_of = self.state.carries_data();
        if !self.trigger(Trigger::End) {
            return;
        }
        let message = match &reason {
            CloseReason::Finished => Some(Close { code: 0, reason: String::new() }),
            CloseReason::Local { code, reason } => Some(Close { code: *code, reason: reason.clone() }),
            CloseReason::Protocol(error) => Some(Close { code: *error as u64, reason: error.to_string() }),
            _ => None,
        };
        let message = message.filter(|_| heard_of);
        let reachable = || self.paths.iter().filter(|path| path.is_reachable());
        let way = |path: &Path| (path.id, path.route);
        let open: Vec<_> = reachable().filter(|path| path.state != PathState::Closing).map(way).collect();
        // When the last path was closed, the peer still has to hear of the end on one of them.
        let say_on = if open.is_empty() { reachable().map(way).collect() } else { open };
        let rto = self.config.failure.rto;
        let linger = self.paths.iter().map(|path| path.rtt().rto(rto)).max().unwrap_or(Span::ZERO) * 3;
        let forget_at = if message.is_some() { now + linger } else { Time::ZERO };
        self.ending = Some(Ending { message, say_on, heard: 0, forget_at });
        self.candidates.clear();
        self.greetings.clear();
        self.events.push_back(Event::Closed(reason));
    }

    /// A packet for a closed session: answered to the 1st, 2nd, 4th, 8th … of them, and to the address the newest
    /// came from, since the peer's may have changed and nothing will be proven any more. An answer is no longer
    /// than three times the packet.
    pub(super) fn handle_while_closed(&mut self, now: Time, arrival: &Arrival, (id, fsn): (PathId, Fsn)) {
        let (Some(index), Some(ending)) = (self.path_index(id), &mut self.ending) else { return };
        let config = &self.config;
        let newest = self.paths.change_receipt(index, |path| {
            let largest = path.receipt.largest();
            let known = path.receipt.is_known(fsn);
            path.receipt.on_packet(now, fsn, (false, arrival.ecn), config);
            (!known).then_some(largest.is_none_or(|largest| fsn.0 > largest))
        });
        let Some(newest) = newest else { return };
        ending.heard += 1;
        if ending.heard.is_power_of_two() {
            let length = ending.message.as_ref().map_or(0, |close| close.reason.len());
            let moved = newest && OVERHEAD + CLOSE_FRAME + length <= arrival.size * 3;
            let route = if moved { arrival.route } else { self.paths[index].route };
            ending.say_on = vec![(id, route)];
        }
    }

    pub(super) fn transmit_close(&mut self, now: Time) -> Option<Transmit<P>> {
        let ending = self.ending.as_mut()?;
        let message = ending.message.clone()?;
        let (path, route) = ending.say_on.pop()?;
        let index = self.path_index(path)?;
        let mut draft = Draft::new(usize::MAX, route);
        draft.push(Frame::Close(message));
        self.finish_draft(now, index, draft)
    }

    pub(super) fn closed_timeout(&self) -> Option<Time> {
        self.ending.as_ref().map(|ending| ending.forget_at).filter(|at| *at != Time::ZERO)
    }

    pub(super) fn handle_closed_timeout(&mut self, now: Time) {
        if let Some(ending) = self.ending.as_mut().filter(|ending| ending.forget_at <= now) {
            ending.forget_at = Time::ZERO;
            ending.say_on.clear();
        }
    }
}
