//! The credit that streams and the session grant the peer.
//!
//! With `independent_streams`, readers that pause must not take the credit of others. Two rules ensure it:
//!
//! - A stream's window grows beyond the first one by a share of `max_window` that falls with the square of the bytes that
//!   other streams leave unread, as in switches with dynamic thresholds (Choudhury and Hahne 1998). All growth together is
//!   at most [`MOST_GROWTH`] times `max_window`, because a limit cannot be taken back.
//! - The session's window has room for all unread bytes and, in addition, for a first window or what is read in four round
//!   trips. So a new stream has credit however many others stall.

use anabranch_wire::{Payload, Span, StreamId, Time};

use super::{RecvHalf, Streams};

/// All streams' windows together grow by at most this many times the largest window.
const MOST_GROWTH: u64 = 4;

/// The session has room for the first windows of so many streams that are not open yet.
const NEW_STREAMS: u64 = 16;

impl<P: Payload> Streams<P> {
    /// The session's limit to announce, raised when the application reads more than the window allows for.
    pub(crate) fn renew_data(&mut self, now: Time, rtt: Span) -> u64 {
        let mut wanted = self.window.wanted(now, self.read, rtt);
        let mut most = self.limits.max_window;
        if self.limits.independent_streams {
            wanted = wanted.max(self.received - self.read + self.spare_credit());
            let first_windows = (self.table.len() as u64 + NEW_STREAMS) * self.limits.initial_window;
            most = most * MOST_GROWTH + first_windows;
        }
        let more = wanted.min(most).saturating_sub(self.window.size());
        if more > 0 {
            let size = self.window.size() + self.reservation.reserve_more(more);
            self.window.grow(size);
        }
        let limit = self.window.renew(self.read);
        // Perhaps less is enough than when it was asked for. Then the limit stays, and more must be asked for later.
        if !self.has_little_credit() {
            self.granted.asked_at = 0;
        }
        limit
    }

    /// Session credit that the peer gets beyond the unread bytes.
    fn spare_credit(&self) -> u64 {
        self.limits.initial_window.max(self.window.demand().min(self.limits.max_window))
    }

    /// True when the peer should get more session credit for bytes that were read.
    pub(super) fn is_credit_due(&self) -> bool {
        self.window.is_due(self.read)
            // Where most of the window is unread, an eighth of it may never be read.
            || self.limits.independent_streams
                && self.has_little_credit()
                && (self.read + self.window.size()).saturating_sub(self.window.limit) >= self.little_credit() / 2
    }

    /// True once for each limit, when the peer has used most of it.
    pub(super) fn is_short_of_credit(&self) -> bool {
        self.has_little_credit() && self.granted.asked_at != self.window.limit
    }

    fn has_little_credit(&self) -> bool {
        self.window.limit - self.received < self.little_credit()
    }

    fn little_credit(&self) -> u64 {
        self.spare_credit().min(self.window.size()) / 4
    }

    /// A stream's limit to announce, and the end of its received data; `None` if no more data can arrive.
    pub(crate) fn renew_stream(&mut self, id: StreamId, now: Time, rtt: Span) -> Option<(u64, u64)> {
        let stream = self.table.get(id).filter(|stream| stream.recv.is_receiving())?;
        let most = self.most_for(&stream.recv);
        let stream = self.table.get_mut(id)?;
        let read = stream.recv.read_offset();
        let before = growth(&stream.recv, self.limits.initial_window);
        let wanted = stream.recv.window.wanted(now, read, rtt).min(most);
        stream.recv.window.grow(wanted);
        self.granted.growth += growth(&stream.recv, self.limits.initial_window) - before;
        Some((stream.recv.window.renew(read), stream.recv.report_received()))
    }

    /// The size up to which a stream's window may grow.
    fn most_for(&self, recv: &RecvHalf<P>) -> u64 {
        let first = self.limits.initial_window;
        let most = self.window.size().max(first);
        if !self.limits.independent_streams {
            return most;
        }
        let largest = self.limits.max_window.min(self.reservation.attainable());
        let left = largest.saturating_sub((self.received - self.read).saturating_sub(recv.unread()));
        let share = (u128::from(left) * u128::from(left) / u128::from(largest.max(1))) as u64;
        let own = self.growth_of(recv);
        let promised = (largest * MOST_GROWTH).saturating_sub(self.granted.growth - own) / 2;
        most.min(first + share.min(promised))
    }

    /// By how much a stream's window has grown.
    pub(super) fn growth_of(&self, recv: &RecvHalf<P>) -> u64 {
        growth(recv, self.limits.initial_window)
    }
}

fn growth<P: Payload>(recv: &RecvHalf<P>, first: u64) -> u64 {
    recv.window.size().saturating_sub(first)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use anabranch_wire::{Length, Side, StreamFrame};

    use super::super::{Limits, MemoryBudget, Read, Reservation};
    use super::*;
    use crate::control::{Control, ControlQueue};

    const FIRST: u64 = 256 << 10;
    const LARGEST: u64 = 96 << 20;
    const RTT: Span = Span::from_millis(10);

    /// The receiving end, and a peer that sends all that its credit allows.
    struct Flood {
        streams: Streams<Length>,
        now: Time,
        limit: u64,
        sent: u64,
    }

    /// One stream of the peer.
    struct Flow {
        id: StreamId,
        limit: u64,
        sent: u64,
    }

    impl Flood {
        fn new() -> Self {
            let limits = Limits {
                initial_window: FIRST,
                max_window: LARGEST,
                independent_streams: true,
                send_buffer: 1 << 20,
                unsent: 1 << 20,
                peer_stream: 1 << 20,
            };
            let reservation = Reservation::new(MemoryBudget::new(8 << 30));
            let streams = Streams::new(Side::Server, limits, 1_000, reservation);
            Self { limit: streams.initial_window(), streams, now: Time::ZERO, sent: 0 }
        }

        /// One round trip: up to `rate` bytes arrive, all are read or none. Returns the bytes that arrived.
        fn round(&mut self, flow: &mut Flow, rate: u64, reads: bool) -> u64 {
            let (mut events, mut out) = (VecDeque::new(), ControlQueue::default());
            let before = flow.sent;
            while flow.sent - before < rate {
                let credit = (flow.limit - flow.sent).min(self.limit - self.sent);
                let bytes = credit.min(16 << 10).min(rate - (flow.sent - before));
                if bytes == 0 {
                    break;
                }
                let (stream, offset, data) = (flow.id, flow.sent, Length(bytes as usize));
                let mut frame = StreamFrame { stream, offset, fin: false, data };
                self.streams.on_frame(&mut frame, (&mut events, &mut out)).unwrap();
                (flow.sent, self.sent) = (flow.sent + bytes, self.sent + bytes);
                while reads && matches!(self.streams.read(flow.id, 1 << 20, &mut out), Ok(Read::Data(_))) {}
            }
            self.now += RTT;
            while let Some(control) = out.first() {
                out.remove(control);
                match control {
                    Control::MaxData => self.limit = self.streams.renew_data(self.now, RTT),
                    Control::MaxStreamData(id) => {
                        (flow.limit, _) = self.streams.renew_stream(id, self.now, RTT).unwrap();
                    }
                    _ => {}
                }
            }
            flow.sent - before
        }

        /// The peer's next stream, which is read for `rounds` and has then sent all that it may.
        fn stall(&mut self, index: u64, rounds: usize) {
            let mut flow = Flow { id: StreamId(index * 2), limit: FIRST, sent: 0 };
            for round in 0..rounds {
                let rate = (4 << 20) >> round;
                assert!(self.round(&mut flow, rate, true) > 0, "stream {index} has no credit");
            }
            while self.round(&mut flow, 64 << 10, false) > 0 {}
        }
    }

    #[test]
    fn five_hundred_readers_that_stall_one_after_the_other_do_not_stop_another() {
        let mut flood = Flood::new();
        for index in 0..500 {
            flood.stall(index, 12);
        }
        let unread = flood.streams.received - flood.streams.read;
        assert!(unread < LARGEST + 500 * 2 * FIRST, "{unread} bytes");
        let mut flow = Flow { id: StreamId(1_000), limit: FIRST, sent: 0 };
        for round in 0..100 {
            let arrived = flood.round(&mut flow, FIRST / 2, true);
            assert_eq!(arrived, FIRST / 2, "in round {round}");
        }
    }

    #[test]
    fn a_single_reader_gets_the_whole_window() {
        let mut flood = Flood::new();
        let mut flow = Flow { id: StreamId(0), limit: FIRST, sent: 0 };
        for _ in 0..20 {
            flood.round(&mut flow, LARGEST / 4, true);
        }
        assert_eq!(flood.round(&mut flow, LARGEST / 4, true), LARGEST / 4);
    }

    #[test]
    fn readers_that_stall_after_idling_with_grown_windows_leave_a_first_window() {
        let mut flood = Flood::new();
        let mut flows: Vec<_> =
            (0..100).map(|index| Flow { id: StreamId(index * 2), limit: FIRST, sent: 0 }).collect();
        for flow in &mut flows {
            (0..12).for_each(|_| assert!(flood.round(flow, LARGEST / 4, true) > 0));
        }
        for flow in &mut flows {
            while flood.round(flow, u64::MAX, false) > 0 {}
        }
        let unread = flood.streams.received - flood.streams.read;
        assert!(unread <= MOST_GROWTH * LARGEST + 100 * FIRST, "{unread} bytes");
        let mut flow = Flow { id: StreamId(200), limit: FIRST, sent: 0 };
        (0..20).for_each(|_| assert!(flood.round(&mut flow, FIRST, true) > 0));
    }
}
