//! Notices that data stopped arriving on a path that this end only acknowledges.
//!
//! Such an end has nothing in flight, so no timer of its own runs. If its NAT forgets the path, the peer sends to an
//! address that leads nowhere, and only a packet from here shows the new one. So a silence after much data is answered
//! with one probe. It shows the peer the new address, and the probe timeout watches the path from then on. A peer that
//! has nothing more to send costs a packet and its acknowledgement.

use anabranch_wire::{Span, Time};

/// New bytes between two looks from which a path carries a flow.
const FLOW: u64 = 16 << 10;
/// The shortest silence that counts.
const LEAST: Span = Span::from_millis(100);

/// A path's data as of the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lull {
    seen: u64,
    flows: bool,
}

/// The result of a look at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Packets arrive: look again at this time.
    Again(Time),
    /// A flow fell silent: send a probe.
    Probe,
    /// Nothing to wait for.
    Quiet,
}

impl Lull {
    /// The silence that counts. With the round trip that proves an address, it stays below three round trips or 200 ms.
    pub(crate) fn patience(rtt: Span) -> Span {
        (rtt * 3 / 2).max(LEAST)
    }

    /// Looks at a path that has `received` so many bytes of data, the last packet at `last`.
    pub(crate) fn look(&mut self, now: Time, received: u64, last: Time, patience: Span) -> Look {
        self.flows |= received - self.seen >= FLOW;
        self.seen = received;
        if now < last + patience {
            return Look::Again(last + patience);
        }
        if std::mem::take(&mut self.flows) { Look::Probe } else { Look::Quiet }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Span = Span::from_millis(100);

    fn ms(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn a_flow_that_falls_silent_is_probed_once() {
        let mut lull = Lull::default();
        assert_eq!(lull.look(ms(100), FLOW, ms(90), PATIENCE), Look::Again(ms(190)));
        assert_eq!(lull.look(ms(190), FLOW + 100, ms(120), PATIENCE), Look::Again(ms(220)));
        assert_eq!(lull.look(ms(220), FLOW + 100, ms(120), PATIENCE), Look::Probe);
        assert_eq!(lull.look(ms(320), FLOW + 100, ms(120), PATIENCE), Look::Quiet);
    }

    #[test]
    fn a_few_packets_now_and_then_are_not_probed() {
        let mut lull = Lull::default();
        for second in 1..100 {
            assert_eq!(
                lull.look(ms(second * 1000), second * 1200, ms(second * 1000 - 100), PATIENCE),
                Look::Quiet
            );
        }
    }

    #[test]
    fn patience_follows_the_round_trip() {
        assert_eq!(Lull::patience(Span::from_millis(10)), LEAST);
        assert_eq!(Lull::patience(Span::from_millis(200)), Span::from_millis(300));
    }
}
