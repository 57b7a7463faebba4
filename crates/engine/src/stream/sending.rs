//! The sending side of streams: whose turn it is, the next run to send, and acknowledgements and losses.

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_wire::{Payload, StreamFrame, StreamId};

use super::{SentRun, Stream, Streams};
use crate::control::ControlQueue;
use crate::event::Event;
use crate::schedule::Item;

/// Streams examined in one call for one with new bytes.
const EXAMINED: usize = 64;
/// Session credit for which one more blocked stream is woken: about a packet.
const CREDIT_PER_STREAM: u64 = 1_200;

/// Least unsent bytes that a stream may have queued, however many streams write.
const LEAST_SHARE: u64 = 4 << 10;

/// Which bytes of a stream to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// Lost bytes, then new ones.
    MissingFirst,
    /// New bytes, while lost ones wait for another path.
    New,
}

/// Streams with something to send, in turn.
#[derive(Default)]
pub(super) struct Ready {
    pub line: VecDeque<StreamId>,
    /// The first of them has sent in its turn.
    served: bool,
    /// The stream that went before the others with a small message, until that is sent.
    pub sparse: Option<StreamId>,
    /// Bytes that all streams had sent when one last did so.
    pub jumped_at: u64,
}

/// Streams whose application is waiting for room.
#[derive(Default)]
pub(super) struct Blocked {
    pub line: VecDeque<StreamId>,
    /// How many were waiting when some were last woken.
    waited: u32,
}

/// A stream's turn to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Lost bytes of this stream, otherwise the unsent bytes of all streams.
    pub bytes: u64,
    pub resend: bool,
    /// The stream's number, cut to 32 bits.
    pub number: u32,
    /// The peer's receive window in bytes, in flight or waiting there: for the session, or what can be sent until this
    /// stream has used up its own window, taking turns with the others.
    pub window: u64,
}

impl Turn {
    /// The turn in the form that schedulers take.
    pub(crate) fn item(&self) -> Item {
        Item { bytes: self.bytes, resend: self.resend, class: 0, flow: self.number }
    }
}

impl<P: Payload> Streams<P> {
    pub(super) fn credit(&self) -> u64 {
        self.peer_limit.saturating_sub(self.sent)
    }

    /// The turn of the next stream.
    pub(crate) fn turn(&self) -> Turn {
        let session = self.credit() + self.buffered - self.unsent;
        let number = self.ready.line.front().map_or(0, |id| id.0 as u32);
        let Some(send) = self.next().map(|stream| &stream.send) else {
            return Turn { bytes: self.unsent, resend: false, number, window: session };
        };
        let resend = send.has_lost();
        let bytes = if resend { send.lost() } else { self.unsent };
        let own = send.window().saturating_mul(self.ready.line.len() as u64);
        Turn { bytes, resend, number, window: session.min(own) }
    }

    pub(super) fn enqueue(&mut self, id: StreamId) {
        let credit = self.credit();
        let may_jump = self.may_jump();
        let Some(stream) = self.table.get_mut(id) else { return };
        if !stream.queued && stream.send.has_work(credit) {
            stream.queued = true;
            if may_jump && stream.has_message() {
                self.ready.line.push_front(id);
                (self.ready.served, self.ready.sparse, self.ready.jumped_at) = (false, Some(id), self.sent);
            } else {
                self.ready.line.push_back(id);
            }
        } else if !stream.queued && credit == 0 && stream.send.unsent() > 0 && !stream.credit_blocked {
            stream.credit_blocked = true;
            self.credit_blocked.push_back(id);
        }
    }

    /// Wakes streams that wait for session credit, the longest waiting first: as many as the credit gives a packet each, so
    /// that one byte of credit does not cost a visit to all. True when one of them has something to send.
    pub(super) fn wake_blocked(&mut self) -> bool {
        let most = self.credit().div_ceil(CREDIT_PER_STREAM);
        let mut woken = 0;
        while woken < most {
            let Some(id) = self.credit_blocked.pop_front() else { break };
            if let Some(stream) = self.table.get_mut(id) {
                stream.credit_blocked = false;
                self.enqueue(id);
                woken += u64::from(self.table.get(id).is_some_and(|stream| stream.queued));
            }
        }
        woken > 0
    }

    pub(super) fn requeue_all(&mut self) {
        let ids: Vec<_> = self.table.ids().collect();
        for id in ids {
            self.enqueue(id);
        }
    }

    /// False when certainly no stream has bytes to send.
    pub(crate) fn may_have_work(&self) -> bool {
        !self.ready.line.is_empty() || !self.credit_blocked.is_empty()
    }

    /// True when some stream has bytes to send; then [`Self::next_is_resend`] returns their kind.
    pub(crate) fn has_work(&mut self) -> bool {
        self.first_has_work() || self.find_work()
    }

    fn first_has_work(&self) -> bool {
        let credit = self.credit();
        self.next().is_some_and(|stream| stream.send.has_work(credit))
    }

    fn next(&self) -> Option<&Stream<P>> {
        self.ready.line.front().and_then(|id| self.table.get(*id))
    }

    /// Moves a stream that has bytes to send to the front; false without such a stream.
    fn find_work(&mut self) -> bool {
        loop {
            while let Some(id) = self.ready.line.front().copied() {
                if self.first_has_work() {
                    return true;
                }
                self.ready.line.pop_front();
                self.ready.served = false;
                if let Some(stream) = self.table.get_mut(id) {
                    stream.queued = false;
                    self.enqueue(id);
                }
            }
            if self.credit_blocked.is_empty() || !self.wake_blocked() {
                return false;
            }
        }
    }

    pub(crate) fn next_is_resend(&self) -> bool {
        self.next().is_some_and(|stream| stream.send.has_lost())
    }

    /// Bytes of all streams never sent so far.
    pub(crate) fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Bytes sent so far, each counted once.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// True when an application waits for room, so the backlog will grow.
    pub(crate) fn more_expected(&self) -> bool {
        !self.room_blocked.line.is_empty()
    }

    /// Gives the next stream its turn once the first one has sent. If a turn ended while the scheduler waits, a regular
    /// pattern of packets and waits would pass over the same streams each time.
    pub(crate) fn rotate(&mut self) {
        if std::mem::take(&mut self.ready.served) && self.ready.line.len() > 1 {
            self.ready.line.rotate_left(1);
        }
    }

    /// Moves the next stream with new bytes to the front; false if none was found. Examines only some of very many streams in
    /// a call, so that a packet does not cost a visit to all.
    pub(crate) fn bring_new(&mut self) -> bool {
        let credit = self.credit();
        if credit == 0 || self.unsent == 0 {
            return false;
        }
        self.wake_blocked();
        let has_new =
            |id: &StreamId| self.table.get(*id).is_some_and(|stream| stream.send.sendable(credit) > 0);
        let found = self.ready.line.iter().take(EXAMINED).position(has_new);
        self.ready.line.rotate_left(found.unwrap_or(EXAMINED.min(self.ready.line.len())));
        found.is_some()
    }

    /// Cuts the next run into a frame of at most `room` bytes, header included; also returns whether it is a resend.
    pub(crate) fn next_frame(
        &mut self,
        room: usize,
        pick: Pick,
        events: &mut VecDeque<Event>,
    ) -> Option<(StreamFrame<P>, bool)> {
        let first = self.cut_first(room, pick, events);
        if first.is_some() || self.first_has_work() || !self.find_work() {
            return first;
        }
        self.cut_first(room, pick, events)
    }

    /// As [`next_frame`](Self::next_frame), for the first stream in line.
    fn cut_first(
        &mut self,
        room: usize,
        pick: Pick,
        events: &mut VecDeque<Event>,
    ) -> Option<(StreamFrame<P>, bool)> {
        let id = *self.ready.line.front()?;
        let credit = self.credit();
        let stream = self.table.get_mut(id)?;
        let room = |offset| {
            let overhead = anabranch_wire::stream_frame_overhead_last(id, offset);
            room.checked_sub(overhead).map(|room| room as u64)
        };
        let run = match pick {
            Pick::MissingFirst => stream.send.next_run(room(stream.send.next_offset())?, credit)?,
            Pick::New => stream.send.next_new(room(stream.send.sent_end())?, credit)?,
        };
        self.ready.served = true;
        if self.ready.sparse == Some(id) {
            self.ready.sparse = None;
        }
        if !run.resend {
            self.sent += run.data.len() as u64;
            self.unsent -= run.data.len() as u64;
            self.wake_writers(events);
        }
        Some((StreamFrame { stream: id, offset: run.offset, fin: run.fin, data: run.data }, run.resend))
    }

    /// The bytes of a run again, unless the peer has acknowledged any of them.
    pub(crate) fn copy_of(&self, run: &SentRun, room: usize) -> Option<StreamFrame<P>> {
        let stream = self.table.get(run.stream)?;
        let overhead = anabranch_wire::stream_frame_overhead_last(run.stream, run.offset);
        let data = stream.send.copy_of(run.range(), room.checked_sub(overhead)? as u64)?;
        let whole = data.len() as u64 == u64::from(run.length);
        Some(StreamFrame { stream: run.stream, offset: run.offset, fin: run.fin && whole, data })
    }

    /// Unsent bytes that one stream may have queued: all that there may be, divided by the streams that write. Otherwise
    /// the application that runs first after a wake takes all room, and that may be the same one each time.
    pub(super) fn fair_share(&self) -> u64 {
        let writers = self
            .ready
            .line
            .len()
            .max(self.room_blocked.line.len())
            .max(self.room_blocked.waited as usize)
            .max(1);
        (self.limits.unsent / writers as u64).max(LEAST_SHARE)
    }

    /// Wakes applications once half of the room is free, except those whose stream still has half of its share to send.
    pub(super) fn wake_writers(&mut self, events: &mut VecDeque<Event>) {
        let (share, waiting) = (self.fair_share(), self.room_blocked.line.len());
        for _ in 0..waiting {
            if self.unsent > self.limits.unsent / 2 || self.buffered >= self.limits.send_buffer {
                return;
            }
            let Some(id) = self.room_blocked.line.pop_front() else { return };
            let Some(stream) = self.table.get_mut(id).filter(|stream| stream.send.wants_room) else {
                continue;
            };
            if stream.send.unsent() > share / 2 {
                self.room_blocked.line.push_back(id);
                continue;
            }
            self.room_blocked.waited = waiting as u32;
            stream.send.wants_room = false;
            if stream.send.is_open() {
                events.push_back(Event::StreamWritable(id));
            }
        }
    }

    /// Sets how many unsent bytes applications may have queued: enough to keep all paths busy.
    pub(crate) fn set_unsent_limit(&mut self, bytes: u64) {
        self.limits.unsent = bytes;
    }

    pub(crate) fn on_acked(
        &mut self,
        run: &SentRun,
        (events, out): (&mut VecDeque<Event>, &mut ControlQueue),
    ) {
        if self.acked(run.stream, run.range(), run.fin, events) {
            self.forget_if_over(run.stream, out);
        }
    }

    /// Records that the peer has a range of a stream; true when the stream is then finished.
    pub(super) fn acked(
        &mut self,
        id: StreamId,
        range: Range<u64>,
        fin: bool,
        events: &mut VecDeque<Event>,
    ) -> bool {
        let Some(stream) = self.table.get_mut(id) else { return false };
        if stream.send.is_finished() {
            return false;
        }
        let before = stream.send.buffered();
        stream.send.on_acked(range, fin);
        self.buffered -= before - stream.send.buffered();
        let finished = stream.send.is_finished();
        if finished {
            events.push_back(Event::StreamFinished(id));
        }
        self.wake_writers(events);
        finished
    }

    pub(crate) fn on_reset_acked(&mut self, id: StreamId, out: &mut ControlQueue) {
        if let Some(stream) = self.table.get_mut(id) {
            stream.send.on_reset_acked();
        }
        self.forget_if_over(id, out);
    }

    pub(crate) fn on_lost(&mut self, run: &SentRun) {
        if let Some(stream) = self.table.get_mut(run.stream) {
            stream.send.on_lost(run.range(), run.fin);
            self.enqueue(run.stream);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use anabranch_wire::{Length, Side};

    use super::super::{Limits, MemoryBudget, Reservation};
    use super::*;

    pub(in super::super) fn limits() -> Limits {
        Limits {
            initial_window: 1 << 20,
            max_window: 1 << 20,
            independent_streams: false,
            send_buffer: 1 << 20,
            unsent: 1 << 20,
            peer_stream: 1 << 20,
        }
    }

    #[test]
    fn credit_wakes_as_many_of_very_many_blocked_streams_as_it_can_serve() {
        let budget = Reservation::new(MemoryBudget::new(1 << 30));
        let mut streams = Streams::<Length>::new(Side::Client, limits(), 128, budget);
        streams.on_peer_params(0, 1 << 20, 1_000);
        let mut events = VecDeque::new();
        for _ in 0..1_000 {
            let id = streams.open().unwrap();
            streams.write(id, &mut Length(10)).unwrap();
        }
        assert!(!streams.has_work());
        streams.on_max_data(1);
        assert_eq!(streams.ready.line.len(), 1);
        streams.on_max_data(5 * CREDIT_PER_STREAM);
        assert!((5..=6).contains(&streams.ready.line.len()), "{}", streams.ready.line.len());
        // Credit that those leave unused goes to the others, in the order in which they wait.
        let mut sent = Vec::new();
        while let Some((frame, _)) = streams.next_frame(1_000, Pick::MissingFirst, &mut events) {
            sent.push(frame.stream);
            streams.rotate();
        }
        assert_eq!(streams.sent(), 5 * CREDIT_PER_STREAM);
        sent.sort();
        sent.dedup();
        assert_eq!(sent.len(), 600);
        streams.on_max_data(1 << 20);
        while streams.next_frame(1_000, Pick::MissingFirst, &mut events).is_some() {}
        assert_eq!((streams.sent(), streams.unsent()), (10_000, 0));
    }

    #[test]
    fn streams_get_equal_room_even_if_the_last_one_woken_always_writes_first() {
        const ROOM: u64 = 80_000;
        let budget = Reservation::new(MemoryBudget::new(1 << 30));
        let limits = Limits { unsent: ROOM, peer_stream: 1 << 30, ..limits() };
        let mut streams = Streams::<Length>::new(Side::Client, limits, 128, budget);
        streams.on_peer_params(1 << 30, 1 << 30, 100);
        let ids: Vec<StreamId> = (0..8).map(|_| streams.open().unwrap()).collect();
        let mut written: Vec<u64> = vec![0; ids.len()];
        let mut runnable = ids.clone();
        let mut events = VecDeque::new();
        for _ in 0..4_000 {
            while let Some(id) = runnable.pop() {
                let at = ids.iter().position(|known| *known == id).unwrap();
                // It writes until it has to wait.
                while let taken @ 1.. = streams.write(id, &mut Length(16_384)).unwrap() {
                    written[at] += taken as u64;
                }
            }
            let (frame, _) = streams.next_frame(1_200, Pick::MissingFirst, &mut events).unwrap();
            streams.rotate();
            let run = SentRun::new(frame.stream, frame.offset..frame.offset + frame.data.len() as u64, false);
            streams.on_acked(&run, (&mut events, &mut ControlQueue::default()));
            runnable.extend(events.drain(..).filter_map(|event| match event {
                Event::StreamWritable(id) => Some(id),
                _ => None,
            }));
        }
        let (least, most) = (*written.iter().min().unwrap(), *written.iter().max().unwrap());
        assert!(most - least <= ROOM, "{written:?}");
        assert!(streams.unsent() > ROOM / 4, "the room stays in use: {}", streams.unsent());
    }

    #[test]
    fn every_stream_gets_its_turn_although_the_scheduler_often_waits() {
        for pattern in [&[1][..], &[2], &[1, 3], &[4], &[8], &[9]] {
            let budget = Reservation::new(MemoryBudget::new(1 << 30));
            let mut streams = Streams::<Length>::new(Side::Client, limits(), 128, budget);
            streams.on_peer_params(1 << 30, 1 << 30, 100);
            let ids: Vec<StreamId> = (0..8).map(|_| streams.open().unwrap()).collect();
            for id in &ids {
                streams.write(*id, &mut Length(100_000)).unwrap();
            }
            let mut sent = vec![0; ids.len()];
            for calls in pattern.iter().cycle().take(80) {
                // The scheduler waits, except at the last call.
                (0..*calls).for_each(|_| streams.rotate());
                let (frame, _) = streams.next_frame(1_200, Pick::MissingFirst, &mut VecDeque::new()).unwrap();
                sent[ids.iter().position(|id| *id == frame.stream).unwrap()] += 1;
            }
            assert_eq!(sent, [10; 8], "{pattern:?}");
        }
    }

    #[test]
    fn among_very_many_streams_with_lost_bytes_the_one_with_new_bytes_is_found_in_a_few_calls() {
        let budget = Reservation::new(MemoryBudget::new(1 << 30));
        let mut streams = Streams::<Length>::new(Side::Client, limits(), 128, budget);
        streams.on_peer_params(1 << 20, 1 << 20, 5_000);
        let mut events = VecDeque::new();
        for _ in 0..4_000 {
            let id = streams.open().unwrap();
            streams.write(id, &mut Length(10)).unwrap();
            let (frame, _) = streams.next_frame(1_000, Pick::MissingFirst, &mut events).unwrap();
            assert_eq!(frame.stream, id);
            streams.on_lost(&SentRun::new(id, 0..10, false));
            streams.ready.line.rotate_right(1);
            assert!(!streams.has_work() || streams.next_is_resend());
            // Keep it from the next stream's first bytes.
            streams.ready.line.retain(|waiting| *waiting != id);
        }
        streams.ready.line.extend(streams.table.ids());
        let last = streams.open().unwrap();
        streams.write(last, &mut Length(2_000)).unwrap();
        let calls = (1..100).find(|_| streams.bring_new());
        assert_eq!(calls, Some(4_000 / EXAMINED + 1));
        let (frame, resend) = streams.next_frame(1_000, Pick::New, &mut events).unwrap();
        assert_eq!((frame.stream, resend), (last, false));
        streams.next_frame(3_000, Pick::New, &mut events).unwrap();
        assert!(!streams.bring_new(), "nothing new is left");
    }
}
