//! Time in which this process or the peer did not run, so that it does not count as a fault of the paths.
//!
//! On a busy machine a process may not run for tens of milliseconds. Timers are then late, and answers wait in the
//! sockets. The first datagram that is read shows nothing about the paths whose answers still wait. So a path is judged
//! only [`SETTLE`] after such a pause, or a quarter of a long one, when everything that waited has been read.
//!
//! A pause shows itself in two ways: the session is called after the time that it asked for, or a datagram has waited in
//! the socket. The delay is bounded, so a path that falls silent is noticed even if every call is late.
//!
//! When nothing arrives on any path, the peer may not run. That is no reason to believe that one path stalls.

use anabranch_wire::{Payload, Span, Time};

use super::flight::Flight;

/// Delays of this process up to this are usual, and are no pause.
const USUAL: Span = Span::from_millis(5);
/// The peer's silence up to this is usual.
const USUAL_SILENCE: Span = Span::from_millis(20);
/// Everything that waited in the sockets has been read this long after a pause.
const SETTLE: Span = Span::from_millis(10);
/// The longest pause that is made up for.
pub(super) const LONGEST: Span = Span::from_millis(250);

/// Notes a call of the session, with a message that `waited` in the socket.
pub(super) fn note_call<P: Payload>(now: Time, waited: Span, flight: &mut Flight<P>) {
    let clock = &mut flight.clock;
    let due = clock.begin_call(now).min(now - waited);
    if clock.lateness.on_sign(now, due, USUAL) {
        forget_timeouts(flight);
    }
}

/// Notes how long the peer has been silent on every path.
pub(super) fn note_silence<P: Payload>(now: Time, flight: &mut Flight<P>) {
    let clock = &mut flight.clock;
    if clock.silence.on_sign(now, clock.last_heard, USUAL_SILENCE) {
        forget_timeouts(flight);
    }
}

/// The judgement of any path may have to wait.
fn forget_timeouts<P: Payload>(flight: &mut Flight<P>) {
    (0..flight.paths.len()).for_each(|place| flight.paths.forget_timeout(place));
}

/// The latest pause of a process: its beginning and its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness(Option<(Time, Time)>);

impl Lateness {
    /// Notes a sign of life at `now` that was due at `due`; true if it is later than `usual`.
    pub(super) fn on_sign(&mut self, now: Time, due: Time, usual: Span) -> bool {
        if now.since(due) <= usual {
            return false;
        }
        let from = match self.0 {
            Some((from, to)) if due <= to => from,
            _ => due,
        };
        self.0 = Some((from.max(now - LONGEST), now));
        true
    }

    /// When to judge a path that would be judged at `at` by a process that always runs.
    pub(super) fn judged_at(&self, at: Time) -> Time {
        let Some((from, to)) = self.0 else { return at };
        let settle = settle(from, to);
        at.max((to + settle).min(at + to.since(from) + settle))
    }

    /// True while answers that a pause delayed may still wait in the sockets.
    pub(super) fn is_recent(&self, now: Time) -> bool {
        self.0.is_some_and(|(from, to)| now < to + settle(from, to))
    }

    /// The part of a delay that ends `now` which the last pause may explain.
    pub(super) fn of(&self, now: Time) -> Span {
        let recent = self.0.filter(|(from, to)| now <= *to + settle(*from, *to));
        recent.map_or(Span::ZERO, |(from, to)| to.since(from))
    }
}

/// How long reading and answering take after a pause: more packets waited in a long one, at both ends.
fn settle(from: Time, to: Time) -> Span {
    SETTLE.max(to.since(from) / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn a_judgement_waits_until_everything_is_read_that_arrived_in_a_pause() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.judged_at(at(1)), at(1));
        assert!(!lateness.on_sign(at(103), at(100), USUAL), "a usual delay");
        assert!(lateness.on_sign(at(160), at(100), USUAL));
        assert_eq!(lateness.judged_at(at(120)), at(175), "due in the pause");
        assert_eq!(lateness.judged_at(at(165)), at(175), "due just after it");
        assert_eq!(lateness.judged_at(at(180)), at(180));
        assert_eq!((lateness.of(at(165)), lateness.of(at(180))), (Span::from_millis(60), Span::ZERO));
    }

    #[test]
    fn a_process_that_is_always_late_judges_all_the_same() {
        let (mut lateness, due) = (Lateness::default(), at(100));
        let judged = (0..100).map(|call| at(100 + 8 * call)).find(|now| {
            lateness.on_sign(*now, *now - Span::from_millis(8), USUAL);
            lateness.judged_at(due) <= *now
        });
        assert!(judged.is_some_and(|now| now <= at(100 + 325)), "{judged:?}");
    }
}
