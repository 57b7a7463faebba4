//! Handles timeouts. [`Session::deadlines`] lists when each part of a session is due.

use anabranch_wire::{PACKET_OVERHEAD, Payload, Span, Time};

use super::Session;
use super::lateness::note_call;
use crate::event::CloseReason;
use crate::state::State;

impl<P: Payload> Session<P> {
    /// When to call [`Self::handle_timeout`], if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let clock = &self.flight.clock;
        if let Some(known) = clock.next_timeout.get() {
            return known;
        }
        let next = match self.flight.state() {
            State::Closed => self.flight.life.forget_at(),
            State::InitSent | State::InitRecv => Some(self.handshake.next_timeout(&self.flight.config)),
            _ => self.deadlines().into_iter().min().filter(|at| *at < Time::NEVER),
        };
        clock.next_timeout.set(Some(next));
        next
    }

    /// When each part of an established session is due: pacing or the scheduler, silence, keep-alive, rest,
    /// data that stops arriving, datagrams, paths.
    fn deadlines(&self) -> [Time; 7] {
        let flight = &self.flight;
        [
            flight.clock.wake_at,
            self.idle_at(),
            self.keep_alive_at(),
            self.rest_at(),
            self.lulls.look_at,
            self.datagrams.next_timeout(),
            self.control.next_timeout(flight),
        ]
    }

    fn idle_at(&self) -> Time {
        self.flight.clock.idle_at(&self.flight.config, self.flight.peer.as_ref())
    }

    /// When to keep the session alive. Without a usable path there is nothing to do; failed paths are probed anyway.
    fn keep_alive_at(&self) -> Time {
        let flight = &self.flight;
        let at = flight.clock.keep_alive_at(&flight.config, flight.life.side());
        at.filter(|_| self.keep_alive_place().is_some()).unwrap_or(Time::NEVER)
    }

    /// The place of the path that keeps the session alive: the best one, or another if its limits let nothing leave.
    fn keep_alive_place(&self) -> Option<usize> {
        let paths = &self.flight.paths;
        let has_room = |place: &usize| paths[*place].allowance().left() > PACKET_OVERHEAD as u64;
        let usable = |place: &usize| has_room(place) && paths.may_carry(&paths[*place]);
        paths.best().filter(has_room).or_else(|| (0..paths.len()).find(usable))
    }

    fn rest_at(&self) -> Time {
        let works = self.flight.state() == State::Established && !self.is_at_rest();
        if works { self.flight.clock.rest_at() } else { Time::NEVER }
    }

    /// True if the session has been quiet for a while, apart from keep-alives. Then a driver may free memory as well.
    pub fn is_at_rest(&self) -> bool {
        let flight = &self.flight;
        flight.state() == State::Established && flight.clock.is_at_rest(|| flight.packets())
    }

    /// Does all due work.
    pub fn handle_timeout(&mut self, now: Time) {
        let flight = &mut self.flight;
        note_call(now, Span::ZERO, flight);
        match flight.state() {
            State::Closed => return flight.life.handle_timeout(now),
            State::InitSent | State::InitRecv => {
                self.handshake.handle_timeout(now, flight);
                return self.handshake.stop_if_over(flight.state());
            }
            _ => {}
        }
        if self.idle_at() <= now {
            // Both ends have delivered everything; only the peer's final message is missing.
            let over = self.flight.state() == State::ShutdownAckSent;
            let reason = if over { CloseReason::Finished } else { CloseReason::IdleTimeout };
            return self.flight.end(now, reason);
        }
        if self.flight.clock.wake_at <= now {
            self.flight.clock.wake_at = Time::NEVER;
        }
        if self.keep_alive_at() <= now
            && let Some(place) = self.keep_alive_place()
        {
            self.flight.paths.edit(place).health_mut().want_probe();
        }
        if self.rest_at() <= now {
            self.rest();
        }
        self.lulls.handle_timeout(now, &mut self.flight);
        self.datagrams.handle_timeout(now, &mut self.flight);
        self.control.handle_timeout(now, &mut self.flight);
        self.advance_shutdown();
    }

    /// Frees memory that recent work needed.
    fn rest(&mut self) {
        let packets = self.flight.packets();
        self.flight.clock.rest(packets);
        self.flight.shrink();
        self.datagrams.shrink();
        self.handshake.shrink();
        self.sending.shrink();
    }
}
