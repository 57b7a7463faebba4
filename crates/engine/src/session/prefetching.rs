//! Prefetches the memory for a packet that arrives soon: with thousands of sessions, none of them stays in the cache.

use std::mem::offset_of;
use std::ops::Range;

use anabranch_prefetch::prefetch;
use anabranch_wire::{PathId, Payload, StreamId};

use super::Session;
use super::flight::Flight;
use crate::path::Path;
use crate::stream::Streams;

impl<P: Payload> Session<P> {
    /// The bytes of a session that a packet needs, in up to two ranges: a packet that may acknowledge
    /// something, or one that does not.
    pub fn bytes_needed(acknowledges: bool) -> [Range<usize>; 2] {
        let flight = offset_of!(Self, flight);
        let choice = flight + offset_of!(Flight<P>, choice);
        let streams = flight + offset_of!(Flight<P>, streams);
        let (sending, arriving) = (Streams::<P>::FOR_ACKS, Streams::<P>::FOR_DATA);
        if acknowledges {
            [0..streams + sending.end, 0..0]
        } else {
            [offset_of!(Self, reports)..choice, streams + arriving.start..streams + arriving.end]
        }
    }

    /// Prefetches a path and a stream for a packet that arrives soon and may acknowledge something. The session itself
    /// must be in the cache.
    pub fn prefetch(&self, path: PathId, acknowledges: bool) {
        let flight = &self.flight;
        if let Some(place) = flight.paths.place_of(path) {
            prefetch(&flight.paths[place], 0..if acknowledges { Path::FOR_ACKS } else { Path::FOR_DATA });
        }
        flight.streams.prefetch();
        if acknowledges {
            flight.cc.prefetch(path);
        }
    }

    /// Prefetches for a packet that arrives soon: if it may acknowledge packets, those in flight on its path and the
    /// received parts of the stream, otherwise the received packets. Path and first stream must be in the cache.
    pub fn prefetch_flight(&self, path: PathId, acknowledges: bool) {
        let Some(place) = self.flight.paths.place_of(path) else { return };
        if acknowledges {
            self.flight.paths[place].board().prefetch();
            self.flight.streams.prefetch_acked();
        } else {
            self.flight.paths[place].receipt().prefetch();
        }
    }

    /// Prefetches the index of a stream's pieces, for a piece that arrives soon. The first stream must be in the cache.
    pub fn prefetch_held(&self, stream: StreamId) {
        self.flight.streams.prefetch_held(stream);
    }

    /// Prefetches the neighbours of a piece that arrives soon, after [`Self::prefetch_held`] has taken effect.
    pub fn prefetch_place(&self, stream: StreamId, offset: u64) {
        self.flight.streams.prefetch_place(stream, offset);
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use anabranch_wire::Length;

    use super::*;

    #[test]
    fn fields_that_a_packet_needs_lie_side_by_side() {
        type Any = Session<Length>;
        let flight = |offset: usize| offset_of!(Any, flight) + offset;
        let common = [
            offset_of!(Any, reports),
            flight(offset_of!(Flight<Length>, config)),
            flight(offset_of!(Flight<Length>, paths)),
        ];
        let sending = [
            flight(offset_of!(Flight<Length>, choice)),
            flight(offset_of!(Flight<Length>, cc)),
            flight(offset_of!(Flight<Length>, streams)),
        ];
        let rare = flight(offset_of!(Flight<Length>, stats));
        assert!([&common[..], &sending, &[rare]].concat().is_sorted());
        let ([acks, _], [first, second]) = (Any::bytes_needed(true), Any::bytes_needed(false));
        assert!(acks.end > sending[2] && first.end == sending[0], "{acks:?}, {first:?}");
        assert!(
            second.start < acks.end && acks.end < second.end && second.end < rare,
            "{acks:?}, {second:?}"
        );
    }
}
