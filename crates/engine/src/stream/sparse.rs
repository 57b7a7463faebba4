//! Small messages that go before bulk streams. A request next to a download would otherwise wait for its turn, and then for
//! any path with room.

use anabranch_wire::Payload;

use super::{Stream, Streams};

/// Most unsent bytes of a stream that goes before the others.
const SPARSE: u64 = 1_200;
/// All streams send this many bytes before one may go before the others again.
const JUMP_AFTER: u64 = 16 << 10;

impl<P: Payload> Stream<P> {
    /// True if the stream has nothing but a small message to send.
    pub(super) fn has_message(&self) -> bool {
        (1..=SPARSE).contains(&self.send.unsent()) && !self.send.has_lost()
    }
}

impl<P: Payload> Streams<P> {
    /// True if a small message may go before the others now.
    pub(super) fn may_jump(&self) -> bool {
        let is_due = self.sent >= self.ready.jumped_at + JUMP_AFTER;
        is_due && !self.ready.line.is_empty() && !self.next_is_sparse()
    }

    /// True if the next stream sends a small message before a bulk stream.
    #[inline]
    pub(crate) fn next_is_sparse(&self) -> bool {
        self.ready.sparse.is_some() && self.ready.sparse == self.ready.line.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use anabranch_wire::{Length, Side};

    use super::super::{MemoryBudget, Pick, Reservation, sending};
    use super::*;

    #[test]
    fn a_small_message_goes_before_bulk_streams_once_in_a_while() {
        let budget = Reservation::new(MemoryBudget::new(1 << 30));
        let mut streams = Streams::<Length>::new(Side::Client, sending::tests::limits(), 8, budget);
        streams.on_peer_params(1 << 20, 1 << 20, 8);
        let [bulk, talk, other] = [(); 3].map(|()| streams.open().unwrap());
        streams.write(bulk, &mut Length(100_000)).unwrap();
        let next = |streams: &mut Streams<Length>, room| {
            streams.rotate();
            let sent = streams.next_frame(room, Pick::MissingFirst, &mut VecDeque::new()).unwrap().0.stream;
            assert!(streams.has_work());
            sent
        };
        assert_eq!(next(&mut streams, 20_000), bulk);
        streams.write(talk, &mut Length(64)).unwrap();
        streams.write(other, &mut Length(64)).unwrap();
        assert!(streams.next_is_sparse());
        assert_eq!([(); 3].map(|()| next(&mut streams, 1_000)), [talk, bulk, other]);
        streams.write(talk, &mut Length(64)).unwrap();
        assert!(!streams.next_is_sparse(), "it has just done so");
        let both = [(); 2].map(|()| next(&mut streams, 20_000));
        assert!(both.contains(&bulk) && both.contains(&talk));
        streams.write(talk, &mut Length(64)).unwrap();
        assert!(streams.next_is_sparse());
    }
}
