//! Datagrams that arrived and wait for the application.
//!
//! Waiting datagrams use the endpoint's memory budget, which is reserved in growing steps rather than for each
//! datagram. Without room, the oldest are dropped: a late reader wants the newest.

use std::collections::VecDeque;

use anabranch_wire::{DatagramFrame, Payload, Time};

use crate::stream::{MemoryBudget, Reservation};

/// Reservation doubles, up to steps of this many bytes.
const LARGEST_STEP: u64 = 64 << 10;
/// Bytes that a waiting datagram takes in addition to its data.
const OVERHEAD: u64 = 64;

pub(crate) struct Inbox<P> {
    /// Each datagram with its time of arrival.
    queue: VecDeque<(Time, DatagramFrame<P>)>,
    /// Memory of `queue` in bytes.
    bytes: u64,
    reservation: Reservation,
    most: usize,
}

impl<P: Payload> Inbox<P> {
    /// An inbox for at most `most` datagrams.
    pub(crate) fn new(budget: MemoryBudget, most: usize) -> Self {
        Self { queue: VecDeque::new(), bytes: 0, reservation: Reservation::new(budget), most }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a datagram; returns how many were dropped for it, or instead of it.
    pub(crate) fn push(&mut self, now: Time, datagram: DatagramFrame<P>) -> u64 {
        let cost = cost(&datagram);
        if self.bytes + cost > self.reservation.held() {
            self.reservation.reserve_spare(cost.max(self.bytes.min(LARGEST_STEP)));
        }
        let mut dropped = 0;
        while self.queue.len() >= self.most || self.bytes + cost > self.reservation.held() {
            dropped += 1;
            let Some((_, oldest)) = self.queue.pop_front() else { return dropped };
            self.bytes -= self::cost(&oldest);
        }
        self.bytes += cost;
        self.queue.push_back((now, datagram));
        dropped
    }

    /// Removes the oldest datagram; returns it with its time of arrival.
    pub(crate) fn pop(&mut self) -> Option<(Time, DatagramFrame<P>)> {
        let (at, datagram) = self.queue.pop_front()?;
        self.bytes -= cost(&datagram);
        if self.queue.is_empty() {
            self.reservation.release();
        }
        Some((at, datagram))
    }
}

fn cost<P: Payload>(datagram: &DatagramFrame<P>) -> u64 {
    datagram.data.len() as u64 + OVERHEAD
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Length;

    use super::*;

    fn datagram(len: usize) -> DatagramFrame<Length> {
        DatagramFrame { class: 0, flow: 0, data: Length(len) }
    }

    #[test]
    fn the_oldest_make_room_when_the_budget_is_empty() {
        let budget = MemoryBudget::new(10_000);
        let mut inbox = Inbox::new(budget.clone(), 1024);
        let dropped: u64 = (1..=100).map(|len| inbox.push(Time::ZERO, datagram(1000 + len))).sum();
        assert_eq!((dropped, budget.left()), (93, 1_250), "an eighth is not for datagrams");
        assert_eq!(inbox.pop().unwrap().1.data, Length(1094));
        while inbox.pop().is_some() {}
        assert_eq!(budget.left(), 10_000);
    }

    #[test]
    fn a_datagram_larger_than_the_whole_budget_is_dropped() {
        let mut inbox = Inbox::new(MemoryBudget::new(1000), 1024);
        assert_eq!(inbox.push(Time::ZERO, datagram(1000)), 1);
        assert!(inbox.is_empty());
    }
}
