//! Spreads datagrams that become deliverable together over some milliseconds.
//!
//! All that waited for a late datagram could leave at once when it arrives. A program's UDP socket holds few, though: Linux
//! grants some 90 full ones, and drops the others unless the program reads meanwhile.

use std::collections::VecDeque;

use anabranch_wire::{Span, Time};

/// As many leave at once, and again after each [`PAUSE`].
const BURST: usize = 32;
const PAUSE: Span = Span::from_millis(1);
/// As many may leave for each that arrives, so that the rest dissolves at any rate.
const PER_ARRIVAL: usize = 2;

/// Datagrams of a lane that are in order and not yet delivered. `T` represents one.
#[derive(Debug)]
pub(super) struct Outlet<T> {
    queue: VecDeque<T>,
    /// Datagrams that may leave now.
    credit: usize,
    filled_at: Time,
}

impl<T> Outlet<T> {
    pub(super) fn new(now: Time) -> Self {
        Self { queue: VecDeque::new(), credit: BURST, filled_at: now }
    }

    /// A datagram has arrived.
    pub(super) fn count_arrival(&mut self) {
        self.credit = (self.credit + PER_ARRIVAL).min(BURST);
    }

    /// Keeps those of `ready` from number `first` that may not leave yet, behind the earlier ones.
    pub(super) fn pass(&mut self, now: Time, ready: &mut Vec<T>, first: usize) {
        self.fill(now);
        let new = ready.len() - first;
        if self.queue.is_empty() && new <= self.credit {
            self.credit -= new;
            return;
        }
        self.queue.extend(ready.drain(first..));
        let leaving = self.credit.min(self.queue.len());
        self.credit -= leaving;
        ready.extend(self.queue.drain(..leaving));
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
    }

    /// Lets all leave.
    pub(super) fn flush(&mut self, ready: &mut Vec<T>) {
        ready.extend(std::mem::take(&mut self.queue));
    }

    /// Datagrams that wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// When more may leave, if any wait.
    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.queue.is_empty()).then(|| self.filled_at + PAUSE)
    }

    fn fill(&mut self, now: Time) {
        if now.since(self.filled_at) >= PAUSE {
            (self.credit, self.filled_at) = (BURST, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Span::from_micros(micros)
    }

    #[test]
    fn many_leave_in_order_over_some_milliseconds() {
        let mut outlet = Outlet::new(at(0));
        let mut ready: Vec<usize> = (0..100).collect();
        outlet.pass(at(0), &mut ready, 0);
        assert_eq!((ready.len(), outlet.len(), outlet.deadline()), (BURST, 100 - BURST, Some(at(1000))));
        for number in 100..110 {
            let first = ready.len();
            ready.push(number);
            outlet.count_arrival();
            outlet.pass(at(500), &mut ready, first);
        }
        assert_eq!(ready.len(), BURST + 10 * PER_ARRIVAL);
        for millis in 1..4 {
            let first = ready.len();
            outlet.pass(at(millis * 1000), &mut ready, first);
        }
        assert_eq!((ready, outlet.deadline()), ((0..110).collect(), None));
    }

    #[test]
    fn datagrams_that_arrive_in_order_wait_at_no_rate() {
        let mut outlet = Outlet::new(at(0));
        for number in 0..10_000 {
            let mut ready = vec![number];
            outlet.count_arrival();
            outlet.pass(at(0), &mut ready, 0);
            assert_eq!(ready, [number]);
        }
    }
}
