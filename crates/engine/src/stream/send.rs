//! The sending half of a stream: one buffer that all paths draw from (mTCP §3.1.1 [M1]).
//!
//! Bytes wait here, not on a path, until a path may send (late binding [M5]). Each byte is in one of four states:
//! acknowledged, lost (to be sent again, by any path [M6]), in flight, or new.

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_wire::{Payload, RangeSet};

/// Open --finish--> Finishing --all acknowledged--> Finished
///   \------------ reset ----> Reset --acknowledged--> Finished
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Finishing { fin_in_flight: bool, fin_acked: bool },
    Reset { code: u64 },
    Finished,
}

/// Bytes cut for one packet.
#[derive(Debug)]
pub(crate) struct Piece<P> {
    pub offset: u64,
    pub data: P,
    pub fin: bool,
    pub resend: bool,
}

#[derive(Debug)]
pub(crate) struct SendHalf<P> {
    chunks: VecDeque<(u64, P)>,
    /// All bytes below are acknowledged and dropped.
    base: u64,
    /// The first byte never sent.
    next: u64,
    /// One past the last byte written.
    end: u64,
    acked: RangeSet,
    lost: RangeSet,
    /// The peer's credit: an absolute offset [P3].
    limit: u64,
    state: State,
    /// Whether the application waits for room.
    pub wants_room: bool,
}

impl<P: Payload> SendHalf<P> {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            chunks: VecDeque::new(),
            base: 0,
            next: 0,
            end: 0,
            acked: RangeSet::new(),
            lost: RangeSet::new(),
            limit,
            state: State::Open,
            wants_room: false,
        }
    }

    /// True while the application may write.
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// The code of a reset that the peer has not acknowledged yet.
    pub(crate) fn reset_code(&self) -> Option<u64> {
        if let State::Reset { code } = self.state { Some(code) } else { None }
    }

    pub(crate) fn write(&mut self, data: P) {
        let offset = self.end;
        self.end += data.len() as u64;
        self.chunks.push_back((offset, data));
    }

    pub(crate) fn finish(&mut self) {
        if self.is_open() {
            self.state = State::Finishing { fin_in_flight: false, fin_acked: false };
        }
    }

    /// Drops the bytes not delivered; true when this changed anything.
    pub(crate) fn reset(&mut self, code: u64) -> bool {
        if matches!(self.state, State::Reset { .. } | State::Finished) {
            return false;
        }
        self.state = State::Reset { code };
        self.chunks.clear();
        self.acked = RangeSet::new();
        self.lost = RangeSet::new();
        self.end = self.next;
        self.base = self.next;
        true
    }

    /// Frees the bytes themselves: nothing is sent any more.
    pub(crate) fn forget_written(&mut self) {
        self.chunks = VecDeque::new();
    }

    /// True when nothing new will be sent: everything is delivered, or the stream was reset.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Reset { .. } | State::Finished)
    }

    /// Prefetches the acknowledged ranges.
    pub(super) fn prefetch_acked(&self) {
        self.acked.prefetch();
    }

    pub(crate) fn on_reset_acked(&mut self) {
        if matches!(self.state, State::Reset { .. }) {
            self.state = State::Finished;
        }
    }

    /// One past the last byte ever sent: what the stream counts against flow control.
    pub(crate) fn sent_end(&self) -> u64 {
        self.next
    }

    pub(crate) fn next_offset(&self) -> u64 {
        self.lost.first().map_or(self.next, |lost| lost.start)
    }

    /// Bytes held until they are acknowledged.
    pub(crate) fn buffered(&self) -> u64 {
        self.end - self.base
    }

    /// Bytes never sent so far.
    pub(crate) fn unsent(&self) -> u64 {
        self.end - self.next
    }

    /// Bytes to send again.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.total()
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    pub(crate) fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Bytes that may still be written within the stream's credit.
    pub(crate) fn credit_left(&self) -> u64 {
        self.limit.saturating_sub(self.end)
    }

    /// New bytes that the stream's and the session's credit admit now.
    pub(crate) fn sendable(&self, session_credit: u64) -> u64 {
        self.unsent().min(self.limit.saturating_sub(self.next)).min(session_credit)
    }

    /// True when there is a run to cut, given the session's credit.
    pub(crate) fn has_work(&self, session_credit: u64) -> bool {
        !self.lost.is_empty() || self.sendable(session_credit) > 0 || self.needs_fin()
    }

    fn needs_fin(&self) -> bool {
        self.next == self.end
            && matches!(self.state, State::Finishing { fin_in_flight: false, fin_acked: false })
    }

    /// The peer's window: from the first byte not acknowledged to the end of the credit.
    pub(crate) fn window(&self) -> u64 {
        self.limit.saturating_sub(self.base)
    }

    /// Cuts the next run of at most `room` bytes: lost ones first, then new ones within credit.
    pub(crate) fn next_run(&mut self, room: u64, session_credit: u64) -> Option<Piece<P>> {
        if let Some(lost) = self.lost.first() {
            let data = self.cut(lost.start, room.min(lost.end - lost.start));
            let end = lost.start + data.len() as u64;
            self.lost.remove(lost.start..end);
            return Some(Piece { offset: lost.start, fin: self.mark_fin(end), data, resend: true });
        }
        self.next_new(room, session_credit)
    }

    /// Cuts the next run of at most `room` new bytes within credit.
    pub(crate) fn next_new(&mut self, room: u64, session_credit: u64) -> Option<Piece<P>> {
        let new = self.sendable(session_credit).min(room);
        if new == 0 && !self.needs_fin() {
            return None;
        }
        let offset = self.next;
        let data = if new > 0 { self.cut(offset, new) } else { P::default() };
        self.next += data.len() as u64;
        Some(Piece { offset, fin: self.mark_fin(self.next), data, resend: false })
    }

    /// The bytes of `range` again, for a copy on another path; `None` if any of them is acknowledged. An empty range is the
    /// stream's end.
    pub(crate) fn copy_of(&self, range: Range<u64>, room: u64) -> Option<P> {
        if range.is_empty() {
            let is_open = matches!(self.state, State::Finishing { fin_acked: false, .. });
            return is_open.then(P::default);
        }
        if range.start < self.base || range.end > self.next {
            return None;
        }
        if self.acked.gaps_in(range.clone()).next() != Some(range.clone()) {
            return None;
        }
        Some(self.cut(range.start, room.min(range.end - range.start)))
    }

    /// True when the end of the stream is sent with bytes that reach `end`.
    fn mark_fin(&mut self, end: u64) -> bool {
        if end != self.end {
            return false;
        }
        if let State::Finishing { fin_in_flight, .. } = &mut self.state {
            *fin_in_flight = true;
            return true;
        }
        false
    }

    /// At most `len` bytes from `offset`; fewer at the boundary of two writes.
    fn cut(&self, offset: u64, len: u64) -> P {
        // New bytes lie in one of the last writes.
        let is_late = self.chunks.len() > 2 && self.chunks[self.chunks.len() - 2].0 <= offset;
        let index = match is_late {
            true => self.chunks.len() - 1 - usize::from(self.chunks[self.chunks.len() - 1].0 > offset),
            false => self.chunks.partition_point(|(start, _)| *start <= offset) - 1,
        };
        let (start, data) = &self.chunks[index];
        let skip = (offset - start) as usize;
        data.slice(skip, (len as usize).min(data.len() - skip))
    }

    /// Records that the peer has `range` (and with `fin` the end of the stream); returns how many bytes are newly
    /// acknowledged.
    pub(crate) fn on_acked(&mut self, range: Range<u64>, fin: bool) -> u64 {
        let (State::Open | State::Finishing { .. }) = self.state else { return 0 };
        if fin && let State::Finishing { fin_acked, .. } = &mut self.state {
            *fin_acked = true;
        }
        let range = range.start.max(self.base)..range.end.min(self.next);
        if !self.lost.is_empty() {
            self.lost.remove(range.clone());
        }
        let added = if range.is_empty() { 0 } else { self.acked.insert(range) };
        if let Some(first) = self.acked.first().filter(|first| first.start <= self.base) {
            self.base = first.end;
            self.acked.forget_first();
            self.drop_acked_chunks();
        }
        if self.base == self.end && matches!(self.state, State::Finishing { fin_acked: true, .. }) {
            self.state = State::Finished;
        }
        added
    }

    fn drop_acked_chunks(&mut self) {
        while let Some((start, data)) = self.chunks.front() {
            if start + data.len() as u64 > self.base {
                return;
            }
            self.chunks.pop_front();
        }
    }

    /// Records that a copy of `range` is in flight, so it is not missing.
    pub(crate) fn on_copied(&mut self, range: Range<u64>, fin: bool) {
        self.lost.remove(range);
        if fin && let State::Finishing { fin_in_flight, .. } = &mut self.state {
            *fin_in_flight = true;
        }
    }

    /// Records that a transmission of `range` was lost: bytes not acknowledged are sent again.
    pub(crate) fn on_lost(&mut self, range: Range<u64>, fin: bool) {
        let (State::Open | State::Finishing { .. }) = self.state else { return };
        if fin && let State::Finishing { fin_in_flight, fin_acked: false } = &mut self.state {
            *fin_in_flight = false;
        }
        let range = range.start.max(self.base)..range.end.min(self.next);
        if range.is_empty() {
            return;
        }
        for gap in self.acked.gaps_in(range) {
            self.lost.insert(gap);
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Length;

    use super::*;

    const PLENTY: u64 = 1 << 40;

    fn written(bytes: usize) -> SendHalf<Length> {
        let mut half = SendHalf::new(PLENTY);
        half.write(Length(bytes));
        half
    }

    #[test]
    fn lost_bytes_go_before_new_ones_and_acknowledged_ones_are_never_sent_again() {
        let mut half = written(3_000);
        for _ in 0..2 {
            half.next_run(1_000, PLENTY);
        }
        half.on_lost(0..2_000, false);
        half.on_acked(0..1_000, false);
        let run = half.next_run(1_000, PLENTY).unwrap();
        assert_eq!((run.offset, run.data.len(), run.resend), (1_000, 1_000, true));
        let run = half.next_run(1_000, PLENTY).unwrap();
        assert_eq!((run.offset, run.resend), (2_000, false));
        assert!(half.next_run(1_000, PLENTY).is_none());
    }

    #[test]
    fn new_bytes_can_be_sent_while_lost_ones_wait() {
        let mut half = written(3_000);
        half.next_run(1_000, PLENTY);
        half.on_lost(0..1_000, false);
        let run = half.next_new(1_500, PLENTY).unwrap();
        assert_eq!((run.offset, run.data.len(), run.resend), (1_000, 1_500, false));
        assert_eq!(half.next_run(1_000, PLENTY).unwrap().offset, 0);
    }

    #[test]
    fn a_run_stops_at_credit_and_continues_when_it_is_raised() {
        let mut half = SendHalf::<Length>::new(500);
        half.write(Length(1_000));
        assert_eq!(half.next_run(1_000, PLENTY).unwrap().data.len(), 500);
        assert!(half.next_run(1_000, PLENTY).is_none());
        half.raise_limit(800);
        assert_eq!(half.next_run(1_000, 100).unwrap().data.len(), 100);
    }

    #[test]
    fn the_stream_is_finished_when_all_bytes_and_the_end_are_acknowledged() {
        let mut half = written(10);
        half.finish();
        let run = half.next_run(100, PLENTY).unwrap();
        assert!(run.fin);
        half.on_lost(0..10, true);
        assert!(half.next_run(100, PLENTY).unwrap().fin);
        half.on_acked(0..10, true);
        assert!(half.is_finished());
    }

    #[test]
    fn an_end_without_bytes_is_sent_alone_and_again_when_lost() {
        let mut half = written(0);
        half.finish();
        assert!(half.next_run(100, PLENTY).unwrap().fin);
        assert!(half.next_run(100, PLENTY).is_none());
        half.on_lost(0..0, true);
        assert!(half.next_run(100, PLENTY).unwrap().fin);
    }

    #[test]
    fn a_copy_exists_only_while_nothing_of_it_is_acknowledged() {
        let mut half = written(2_000);
        half.next_run(1_000, PLENTY);
        assert_eq!(half.copy_of(0..1_000, 1_000).unwrap().len(), 1_000);
        half.on_acked(500..600, false);
        assert!(half.copy_of(0..1_000, 1_000).is_none());
        assert!(half.copy_of(2_000..2_000, 1_000).is_none());
        half.finish();
        assert!(half.copy_of(2_000..2_000, 1_000).is_some());
        half.on_acked(2_000..2_000, true);
        assert!(half.copy_of(2_000..2_000, 1_000).is_none());
    }
}
