//! Packet-delivery traces in mahimahi's format: when a varying link can send.
//!
//! A trace has a whole number of milliseconds on each line, never decreasing. Each line is an opportunity to send
//! [`OPPORTUNITY_BYTES`]; equal lines are several opportunities at the same time. Bytes that a packet leaves unused go to
//! the next packet waiting at that time, a larger packet takes several opportunities, and an opportunity without a
//! waiting packet is lost. The trace repeats; its last line is the period (mahimahi, USENIX ATC 2015 §4). A trace that
//! plays [once](Trace::once) sends nothing after its last line.

use std::sync::Arc;

use anabranch_wire::{Span, Time};
use thiserror::Error;

/// Bytes of one opportunity: a full IP packet. (Mahimahi counts 1504, since its packets carry the 4 bytes of a TUN header.)
pub const OPPORTUNITY_BYTES: u64 = 1500;

/// The most lines a trace may have.
pub const MAX_TRACE_LINES: usize = 4_000_000;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// A schedule of times at which a link may send. Clones share the times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Milliseconds from the start of a period, never decreasing; the last is the period.
    opportunities: Arc<[u32]>,
    repeats: bool,
}

/// Why a trace is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TraceError {
    /// A line is not a whole number of milliseconds below 2³².
    #[error("line {line}: expected a whole number of milliseconds")]
    NotANumber {
        /// Counted from one.
        line: usize,
    },
    /// A line is earlier than the one before it.
    #[error("line {line}: {found} ms comes before {previous} ms on the line above")]
    Backwards {
        /// Counted from one.
        line: usize,
        /// The time on this line.
        found: u32,
        /// The time on the line above.
        previous: u32,
    },
    /// There are more lines than [`MAX_TRACE_LINES`].
    #[error("line {line}: more than {MAX_TRACE_LINES} lines")]
    TooLong {
        /// Counted from one.
        line: usize,
    },
    /// The last line, which is the period, is zero or missing.
    #[error("the last line must be later than 0 ms: it is the period of the trace")]
    NoPeriod,
}

impl Trace {
    /// Parses a trace; blank lines at the end are ignored.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut opportunities = Vec::new();
        let mut previous = 0;
        for (index, text) in text.trim_end().lines().enumerate() {
            let line = index + 1;
            if index >= MAX_TRACE_LINES {
                return Err(TraceError::TooLong { line });
            }
            let digits = text.trim();
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            let found: u32 = digits.parse().ok().filter(|_| plain).ok_or(TraceError::NotANumber { line })?;
            if found < previous {
                return Err(TraceError::Backwards { line, found, previous });
            }
            previous = found;
            opportunities.push(found);
        }
        if previous == 0 {
            return Err(TraceError::NoPeriod);
        }
        Ok(Self { opportunities: opportunities.into(), repeats: true })
    }

    /// The same trace, played once instead of again and again.
    pub fn once(&self) -> Self {
        Self { repeats: false, ..self.clone() }
    }

    /// How many opportunities a period has.
    pub fn lines(&self) -> usize {
        self.opportunities.len()
    }

    /// Bits a second on average over one period.
    pub fn mean_rate(&self) -> anabranch_wire::Rate {
        let bytes = self.opportunities.len() as u64 * OPPORTUNITY_BYTES;
        let period = Span::from_millis(u64::from(self.period()));
        anabranch_wire::Rate::from_bytes_in(bytes, period)
    }

    /// Milliseconds after which the trace repeats.
    fn period(&self) -> u32 {
        self.opportunities.last().copied().unwrap_or(1)
    }

    /// The time of the opportunity at a position; [`Time::NEVER`] after the end of a trace that plays once.
    fn time_of(&self, position: Position) -> Time {
        if position.round > 0 && !self.repeats {
            return Time::NEVER;
        }
        let millis =
            position.round * u64::from(self.period()) + u64::from(self.opportunities[position.index]);
        Time::from_nanos(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// The first opportunity at or after `time`.
    fn first_from(&self, time: Time) -> Position {
        let millis = time.as_nanos().div_ceil(NANOS_PER_MILLI);
        let period = u64::from(self.period());
        // The end of one period and the start of the next coincide: look in the earlier one first.
        let round = (millis / period).saturating_sub(u64::from(millis.is_multiple_of(period)));
        let within = millis - round * period;
        let index = self.opportunities.partition_point(|at| u64::from(*at) < within);
        Position { round, index }
    }

    /// The time from an opportunity to the next one; opportunities at the same time share it.
    fn slot(&self, position: Position) -> Span {
        let at = self.opportunities[position.index];
        let first = self.opportunities.partition_point(|other| *other < at);
        let end = self.opportunities.partition_point(|other| *other <= at);
        let next = match self.opportunities.get(end) {
            Some(next) => u64::from(*next),
            None if self.repeats => u64::from(self.period()) + u64::from(self.opportunities[0]),
            None => u64::from(at),
        };
        Span::from_millis(next - u64::from(at)) / (end - first) as u64
    }

    fn after(&self, position: Position) -> Position {
        if position.index + 1 < self.opportunities.len() {
            Position { index: position.index + 1, ..position }
        } else {
            Position { round: position.round + 1, index: 0 }
        }
    }
}

/// One opportunity in all periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    round: u64,
    index: usize,
}

/// The playback of a trace: the current opportunity and its bytes left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Playback {
    position: Position,
    left: u64,
    /// The slots that the last packet took; of an opportunity used in part, that part.
    pub(crate) used: Span,
}

impl Playback {
    pub(crate) fn new() -> Self {
        Self { position: Position { round: 0, index: 0 }, left: OPPORTUNITY_BYTES, used: Span::ZERO }
    }

    /// Sends `bytes` from `start` on; returns when the last of them leaves.
    pub(crate) fn send(&mut self, trace: &Trace, start: Time, bytes: u64) -> Time {
        if trace.time_of(self.position) < start {
            self.position = trace.first_from(start);
            self.left = OPPORTUNITY_BYTES;
        }
        let mut needed = bytes;
        self.used = Span::ZERO;
        loop {
            let taken = needed.min(self.left);
            let slot = if taken > 0 { trace.slot(self.position).as_nanos() } else { 0 };
            self.used += Span::from_nanos(slot.saturating_mul(taken) / OPPORTUNITY_BYTES);
            needed -= taken;
            self.left -= taken;
            if needed == 0 {
                return trace.time_of(self.position);
            }
            self.position = trace.after(self.position);
            self.left = OPPORTUNITY_BYTES;
            if trace.time_of(self.position) == Time::NEVER {
                return Time::NEVER;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Time {
        Time::from_nanos(millis * NANOS_PER_MILLI)
    }

    #[test]
    fn a_trace_is_a_number_a_line() {
        let trace = Trace::parse("0\n5\n5\r\n12\n\n").unwrap();
        assert_eq!(*trace.opportunities, [0, 5, 5, 12]);
        assert_eq!(trace.mean_rate().as_bits(), 4 * 1500 * 8 * 1000 / 12);
    }

    #[test]
    fn a_bad_trace_names_its_line() {
        assert_eq!(Trace::parse("1\ntwo\n"), Err(TraceError::NotANumber { line: 2 }));
        assert_eq!(Trace::parse("1\n\n3\n"), Err(TraceError::NotANumber { line: 2 }));
        assert_eq!(Trace::parse("+1\n"), Err(TraceError::NotANumber { line: 1 }));
        assert_eq!(Trace::parse("4294967296\n"), Err(TraceError::NotANumber { line: 1 }));
        let backwards = TraceError::Backwards { line: 3, found: 4, previous: 5 };
        assert_eq!(Trace::parse("1\n5\n4\n"), Err(backwards));
        assert_eq!(Trace::parse(""), Err(TraceError::NoPeriod));
        assert_eq!(Trace::parse("0\n0\n"), Err(TraceError::NoPeriod));
    }

    #[test]
    fn a_trace_with_too_many_lines_is_refused_at_the_first_excess_line() {
        let text = "1\n".repeat(MAX_TRACE_LINES + 1);
        assert_eq!(Trace::parse(&text), Err(TraceError::TooLong { line: MAX_TRACE_LINES + 1 }));
    }

    #[test]
    fn packets_share_an_opportunity_and_large_ones_take_several() {
        let trace = Trace::parse("3\n7\n7\n10\n").unwrap();
        let mut playback = Playback::new();
        assert_eq!(playback.send(&trace, ms(0), 1000), ms(3));
        assert_eq!(playback.send(&trace, ms(3), 500), ms(3));
        assert_eq!(playback.send(&trace, ms(3), 1), ms(7));
        assert_eq!(playback.send(&trace, ms(7), 3 * OPPORTUNITY_BYTES), ms(13));
    }

    #[test]
    fn an_unused_opportunity_is_lost_and_the_trace_loops() {
        let trace = Trace::parse("0\n4\n10\n").unwrap();
        let mut playback = Playback::new();
        assert_eq!(playback.send(&trace, ms(5), 1500), ms(10));
        // The period ends at 10 ms, where the first opportunity of the next one lies too.
        assert_eq!(playback.send(&trace, ms(10), 1500), ms(10));
        assert_eq!(playback.send(&trace, ms(10), 1500), ms(14));
        assert_eq!(playback.send(&trace, ms(1_000_001), 1500), ms(1_000_004));
    }
    #[test]
    fn a_trace_that_plays_once_sends_nothing_after_its_last_line() {
        let trace = Trace::parse("0\n4\n10\n").unwrap().once();
        let mut playback = Playback::new();
        assert_eq!(playback.send(&trace, ms(5), 1000), ms(10));
        assert_eq!(playback.send(&trace, ms(10), 1000), Time::NEVER, "500 bytes are left, then nothing");
        assert_eq!(playback.send(&trace, ms(1_000_000), 1), Time::NEVER);
    }
}
