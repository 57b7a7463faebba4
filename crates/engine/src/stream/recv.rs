//! The receiving half of a stream: puts the bytes of all paths in order (MPMTP-AR [R4, R5], MPTCP [P3]).
//!
//! In-order bytes go straight to the application's queue; others wait in [`OutOfOrder`]. Packets never wait for others of
//! their path, because order on a path matters only for its acknowledgements. So a gap on one path does not block the
//! others, the purpose of the two levels of [R5].

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_wire::{Payload, Span, Time};

use super::out_of_order::OutOfOrder;
use crate::event::ProtocolError;

/// A repeat is answered only when this many received bytes are unreported, so that deliberate copies are cheap.
const REPEAT_LIMIT: u64 = 16 << 10;
/// A piece up to this long, in bytes, is copied behind the one before it.
const CRUMB: usize = 256;
/// No more is copied behind a piece longer than this.
const CRUMB_BASE: usize = 4096;

/// Receiving --all read--> Finished
///     \---- reset -----> Reset --reported--> Finished
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Receiving,
    Reset { code: u64 },
    Finished,
}

/// The result of reading a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Read<P> {
    /// The next bytes.
    Data(P),
    /// Nothing yet.
    Blocked,
    /// The stream has ended and everything was read.
    Finished,
    /// The peer reset the stream with this code.
    Reset(u64),
}

#[derive(Debug)]
pub(crate) struct RecvHalf<P> {
    ready: VecDeque<P>,
    /// One past the last byte in `ready`: the cumulative TSN.
    received: u64,
    /// Bytes that the application has read.
    read: u64,
    out_of_order: OutOfOrder<P>,
    highest: u64,
    final_size: Option<u64>,
    state: State,
    /// The application stopped reading; further bytes are dropped.
    stopped: bool,
    /// The contiguous offset last reported to the peer.
    reported: u64,
    pub window: Window,
    /// Whether the application was notified of readable data.
    pub announced: bool,
}

/// The changes by an arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Bytes received for the first time.
    pub new: u64,
    /// The rise of the highest offset, which counts against session credit.
    pub advance: u64,
    /// The application can read more than before.
    pub readable: bool,
    /// The peer does not know that all this data has arrived.
    pub ignorant: bool,
}

impl<P: Payload> RecvHalf<P> {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            ready: VecDeque::new(),
            received: 0,
            read: 0,
            out_of_order: OutOfOrder::default(),
            highest: 0,
            final_size: None,
            state: State::Receiving,
            stopped: false,
            reported: 0,
            window: Window::new(window),
            announced: false,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// Bytes that wait for earlier ones, and in how many pieces.
    pub(crate) fn waiting(&self) -> (u64, usize) {
        self.out_of_order.count()
    }

    /// Bytes of `range` that have not arrived and are wanted.
    pub(crate) fn not_arrived(&self, range: Range<u64>) -> u64 {
        if self.state != State::Receiving || self.stopped {
            return 0;
        }
        let start = range.start.max(self.received);
        if start < range.end { self.out_of_order.missing(start..range.end) } else { 0 }
    }

    /// All bytes below this offset have arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// As [`received`](Self::received), recording that the peer is informed now.
    pub(crate) fn report_received(&mut self) -> u64 {
        self.reported = self.received;
        self.received
    }

    /// True when bytes up to `end` arrive again because the peer does not know that they have: the acknowledgements were lost,
    /// together with the path that they took.
    pub(crate) fn is_ignorant_repeat(&self, end: u64) -> bool {
        self.is_receiving()
            && end > self.reported
            && end <= self.received
            && self.received - self.reported >= REPEAT_LIMIT
    }

    /// Bytes that take session credit.
    pub(crate) fn unread(&self) -> u64 {
        self.highest - self.read
    }

    pub(crate) fn read_offset(&self) -> u64 {
        self.read
    }

    /// True until everything was read, or the peer reset the stream.
    pub(crate) fn is_receiving(&self) -> bool {
        self.state == State::Receiving
    }

    pub(crate) fn is_reset(&self) -> bool {
        matches!(self.state, State::Reset { .. })
    }

    /// True while more bytes can arrive, so that credit is worth announcing.
    pub(crate) fn wants_credit(&self) -> bool {
        self.state == State::Receiving && self.final_size.is_none()
    }

    /// Prefetches the index of segments.
    pub(crate) fn prefetch(&self) {
        self.out_of_order.prefetch();
    }

    /// Prefetches the segment before `offset`, after [`Self::prefetch`] has taken effect.
    pub(crate) fn prefetch_segment_before(&self, offset: u64) {
        if offset > self.received {
            self.out_of_order.prefetch_segment(offset);
        }
    }

    pub(crate) fn insert(&mut self, offset: u64, data: P, fin: bool) -> Result<Inserted, ProtocolError> {
        let end = offset.checked_add(data.len() as u64).ok_or(ProtocolError::FinalSize)?;
        self.check_end(end, fin)?;
        if end > self.window.limit {
            return Err(ProtocolError::FlowControl);
        }
        let advance = end.saturating_sub(self.highest);
        self.highest = self.highest.max(end);
        if fin {
            self.final_size = Some(end);
        }
        if self.state != State::Receiving {
            return Ok(Inserted { advance, ..Inserted::default() });
        }
        let new = if offset <= self.received {
            self.append(offset, data)
        } else {
            self.out_of_order.insert(offset, data)
        };
        if self.stopped {
            self.discard();
        }
        let readable = !self.ready.is_empty() || self.final_size == Some(self.received);
        Ok(Inserted { new, advance, readable, ignorant: false })
    }

    fn check_end(&self, end: u64, fin: bool) -> Result<(), ProtocolError> {
        match self.final_size {
            Some(size) if end > size || (fin && end != size) => Err(ProtocolError::FinalSize),
            None if fin && end < self.highest => Err(ProtocolError::FinalSize),
            _ => Ok(()),
        }
    }

    /// Handles bytes that touch those already in order.
    fn append(&mut self, offset: u64, mut data: P) -> u64 {
        let known = (self.received - offset).min(data.len() as u64);
        if known > 0 {
            drop(data.split_to(known as usize));
        }
        if data.is_empty() {
            return 0;
        }
        let mut new = data.len() as u64;
        self.received += new;
        self.queue(data);
        while let Some((mut start, pieces)) = self.out_of_order.take_until(self.received) {
            for mut piece in pieces {
                let len = piece.len() as u64;
                let known = self.received.saturating_sub(start).min(len);
                start += len;
                if known > 0 {
                    new -= known;
                    drop(piece.split_to(known as usize));
                }
                if !piece.is_empty() {
                    self.received += piece.len() as u64;
                    self.queue(piece);
                }
            }
        }
        new
    }

    /// Appends the next bytes to the application's queue.
    fn queue(&mut self, data: P) {
        match self.ready.back_mut() {
            Some(last) if !P::HAS_BYTES || is_crumb(last.len(), data.len()) => last.append(&data),
            _ => self.ready.push_back(data),
        }
    }

    pub(crate) fn read(&mut self, most: usize) -> Read<P> {
        match self.state {
            State::Reset { code } => {
                self.state = State::Finished;
                return Read::Reset(code);
            }
            State::Finished => return Read::Finished,
            State::Receiving => {}
        }
        if let Some(front) = self.ready.front_mut() {
            let data = if front.len() > most {
                front.split_to(most)
            } else {
                self.ready.pop_front().unwrap_or_default()
            };
            self.read += data.len() as u64;
            return Read::Data(data);
        }
        if self.final_size == Some(self.received) {
            self.state = State::Finished;
            return Read::Finished;
        }
        Read::Blocked
    }

    /// Handles a reset by the peer; returns the rise of the highest offset.
    pub(crate) fn on_reset(&mut self, code: u64, size: u64) -> Result<u64, ProtocolError> {
        if size < self.highest || self.final_size.is_some_and(|known| known != size) {
            return Err(ProtocolError::FinalSize);
        }
        if size > self.window.limit {
            return Err(ProtocolError::FlowControl);
        }
        let advance = size - self.highest;
        self.highest = size;
        // Despite the reset, the stream is complete if its end was known and everything had arrived.
        let complete = self.final_size == Some(self.received);
        self.final_size = Some(size);
        if self.state == State::Receiving && !complete {
            self.state = if self.stopped { State::Finished } else { State::Reset { code } };
            self.drop_buffers();
            self.read = size;
        }
        Ok(advance)
    }

    /// Handles the application's stop: drops all present and future data, and returns its credit.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        match self.state {
            State::Receiving => self.discard(),
            // Its credit was returned when the reset arrived.
            State::Reset { .. } => self.state = State::Finished,
            State::Finished => {}
        }
    }

    fn discard(&mut self) {
        self.ready.clear();
        self.read = self.received;
        if self.final_size == Some(self.received) {
            self.state = State::Finished;
        }
    }

    fn drop_buffers(&mut self) {
        self.ready.clear();
        self.out_of_order.clear();
    }
}

/// True for a piece so small that it is copied behind the `before` bytes of the previous one. Otherwise a peer could make
/// each byte cost a piece.
pub(super) fn is_crumb(before: usize, len: usize) -> bool {
    len <= CRUMB && before <= CRUMB_BASE
}

/// A receive window that grows with the application's reads per round trip.
///
/// The limit is absolute [P3]. It is announced again after each eighth of the window was read, so that a small window
/// moves smoothly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The offset the peer may reach.
    pub limit: u64,
    size: u64,
    period_start: Time,
    period_base: u64,
    /// Four times the bytes read in a round trip, when that was last counted.
    demand: u64,
}

impl Window {
    pub(crate) fn new(size: u64) -> Self {
        Self { limit: size, size, period_start: Time::ZERO, period_base: 0, demand: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn demand(&self) -> u64 {
        self.demand
    }

    /// The size that allows the peer four times the bytes read in the last round trip: twice for slow start, and twice
    /// for queues and reordering between paths.
    pub(crate) fn wanted(&mut self, now: Time, taken: u64, rtt: Span) -> u64 {
        if now.since(self.period_start) < rtt {
            return self.size;
        }
        let in_period = taken - self.period_base;
        let span = now.since(self.period_start);
        (self.period_start, self.period_base) = (now, taken);
        let in_rtt =
            (u128::from(in_period) * u128::from(rtt.as_nanos()) / u128::from(span.as_nanos().max(1))) as u64;
        self.demand = in_rtt.saturating_mul(4);
        self.size.max(self.demand)
    }

    pub(crate) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// True when the peer should be granted more credit.
    pub(crate) fn is_due(&self, taken: u64) -> bool {
        (taken + self.size).saturating_sub(self.limit) >= (self.size / 8).max(1)
    }

    /// Raises the limit to the size of the window.
    pub(crate) fn renew(&mut self, taken: u64) -> u64 {
        self.limit = self.limit.max(taken + self.size);
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn bytes(range: std::ops::Range<u8>) -> Bytes {
        range.collect::<Vec<_>>().into()
    }

    fn drain(half: &mut RecvHalf<Bytes>) -> Vec<u8> {
        let mut out = Vec::new();
        while let Read::Data(data) = half.read(7) {
            out.extend_from_slice(&data);
        }
        out
    }

    #[test]
    fn overlapping_pieces_in_any_order_give_each_byte_once() {
        let mut half = RecvHalf::new(1000);
        let pieces = [(10, 20), (30, 40), (5, 12), (15, 35), (38, 50), (0, 6), (0, 50)];
        let mut new = 0;
        for (start, end) in pieces {
            new += half.insert(u64::from(start), bytes(start..end), false).unwrap().new;
        }
        assert_eq!(new, 50);
        assert_eq!(drain(&mut half), (0..50).collect::<Vec<u8>>());
        assert_eq!(half.waiting(), (0, 0));
    }

    #[test]
    fn bytes_beyond_the_credit_or_the_end_are_an_error() {
        let mut half = RecvHalf::new(10);
        assert_eq!(half.insert(5, bytes(0..6), false), Err(ProtocolError::FlowControl));
        half.insert(0, bytes(0..5), true).unwrap();
        assert_eq!(half.insert(5, bytes(0..1), false), Err(ProtocolError::FinalSize));
        assert_eq!(half.insert(0, bytes(0..4), true), Err(ProtocolError::FinalSize));
        assert_eq!(half.insert(u64::MAX, bytes(0..4), true), Err(ProtocolError::FinalSize));
    }

    #[test]
    fn a_repeat_of_unreported_bytes_is_noticed_once() {
        let mut half = RecvHalf::new(100_000);
        half.insert(0, Bytes::from(vec![0; REPEAT_LIMIT as usize - 1]), false).unwrap();
        assert!(!half.is_ignorant_repeat(1_000), "little is at stake");
        half.insert(REPEAT_LIMIT - 1, bytes(0..9), false).unwrap();
        assert!(half.is_ignorant_repeat(1_000));
        assert!(!half.is_ignorant_repeat(REPEAT_LIMIT + 9), "that is no repeat");
        assert_eq!(half.report_received(), REPEAT_LIMIT + 8);
        assert!(!half.is_ignorant_repeat(1_000), "it was reported");
    }

    #[test]
    fn crumbs_are_joined() {
        let mut half = RecvHalf::new(100_000);
        for byte in 0..100_000 {
            half.insert(byte, Bytes::from(vec![byte as u8]), false).unwrap();
        }
        assert!(half.ready.len() <= 100_000 / CRUMB_BASE + 1, "{}", half.ready.len());
        assert_eq!(drain(&mut half), (0..100_000).map(|byte| byte as u8).collect::<Vec<u8>>());
    }

    #[test]
    fn the_end_is_reported_after_the_last_byte() {
        let mut half = RecvHalf::new(100);
        half.insert(3, bytes(3..6), true).unwrap();
        assert_eq!(half.read(10), Read::Blocked);
        half.insert(0, bytes(0..3), false).unwrap();
        assert_eq!(drain(&mut half).len(), 6);
        assert!(half.is_finished());
    }

    #[test]
    fn a_reset_drops_unread_bytes_and_is_reported_once() {
        let mut half = RecvHalf::new(100);
        half.insert(0, bytes(0..3), false).unwrap();
        assert_eq!(half.on_reset(7, 50), Ok(47));
        assert_eq!(half.read(10), Read::Reset(7));
        assert_eq!(half.read(10), Read::Finished);
    }

    #[test]
    fn stopping_after_a_reset_does_not_return_its_credit_twice() {
        for reported in [false, true] {
            let mut half = RecvHalf::new(1000);
            half.insert(0, bytes(0..3), false).unwrap();
            half.on_reset(7, 50).unwrap();
            if reported {
                assert_eq!(half.read(10), Read::Reset(7));
            }
            half.stop();
            assert_eq!((half.read_offset(), half.read(10)), (50, Read::Finished));
        }
    }

    #[test]
    fn a_reset_at_the_last_byte_is_not_the_end() {
        let mut half = RecvHalf::new(100);
        half.insert(0, bytes(0..3), false).unwrap();
        assert_eq!(half.on_reset(7, 3), Ok(0));
        assert_eq!(half.read(10), Read::Reset(7));
    }

    #[test]
    fn a_reset_after_everything_arrived_changes_nothing() {
        let mut half = RecvHalf::new(100);
        half.insert(0, bytes(0..3), true).unwrap();
        assert_eq!(half.on_reset(7, 3), Ok(0));
        assert_eq!(drain(&mut half).len(), 3);
        assert_eq!(half.read(10), Read::Finished);
    }

    #[test]
    fn the_window_grows_to_four_times_what_is_read_in_a_round_trip() {
        let mut window = Window::new(1_000);
        let rtt = Span::from_millis(10);
        assert_eq!(window.wanted(Time::ZERO + rtt, 1_000, rtt), 4_000);
        assert_eq!(window.wanted(Time::ZERO + rtt * 2, 1_100, rtt), 1_000);
    }
}
