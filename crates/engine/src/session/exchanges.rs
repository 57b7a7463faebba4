//! Carries the halves of fresh key exchanges between the drivers of both ends.
//!
//! Protection of packets is the driver's work. The session sends this end's latest half until it is acknowledged, and
//! keeps the peer's latest half until the driver takes it. So a peer cannot make either grow.

use anabranch_wire::{Frame, KeyExchange};

use super::outbox::Outbox;
use crate::control::Control;

/// The latest half of each end.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    ours: Option<Box<KeyExchange>>,
    /// Of the peer: with the highest number so far. Taken when the driver has it.
    theirs: Option<Box<Half>>,
}

#[derive(Debug)]
struct Half {
    half: KeyExchange,
    is_taken: bool,
}

impl Exchanges {
    pub(super) fn send(&mut self, out: &mut Outbox, half: KeyExchange) {
        self.ours = Some(Box::new(half));
        out.want(Control::KeyExchange);
    }

    /// Takes the peer's half. A repeat, or one of an earlier exchange that comes late, changes nothing.
    pub(super) fn handle(&mut self, half: KeyExchange) {
        if self.theirs.as_ref().is_none_or(|known| known.half.number < half.number) {
            self.theirs = Some(Box::new(Half { half, is_taken: false }));
        }
    }

    pub(super) fn poll(&mut self) -> Option<KeyExchange> {
        let theirs = self.theirs.as_mut().filter(|theirs| !theirs.is_taken)?;
        theirs.is_taken = true;
        Some(theirs.half)
    }

    pub(super) fn frame<P>(&self) -> Option<Frame<P>> {
        self.ours.as_deref().copied().map(Frame::KeyExchange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(number: u64) -> KeyExchange {
        KeyExchange { number, key: [number as u8; 32] }
    }

    #[test]
    fn the_peers_latest_half_is_given_once_and_late_copies_of_earlier_ones_change_nothing() {
        let mut exchanges = Exchanges::default();
        assert_eq!(exchanges.poll(), None);
        exchanges.handle(half(1));
        assert_eq!(exchanges.poll(), Some(half(1)));
        exchanges.handle(half(1));
        assert_eq!(exchanges.poll(), None, "a repeat");
        exchanges.handle(half(3));
        exchanges.handle(half(2));
        assert_eq!(exchanges.poll(), Some(half(3)));
        assert_eq!(exchanges.poll(), None);
    }

    #[test]
    fn the_latest_half_of_this_end_is_the_one_that_is_sent_again() {
        let (mut exchanges, mut out) = (Exchanges::default(), Outbox::default());
        assert_eq!(exchanges.frame::<bytes::Bytes>(), None);
        exchanges.send(&mut out, half(1));
        exchanges.send(&mut out, half(2));
        assert_eq!(out.control.first(), Some(Control::KeyExchange));
        assert_eq!(exchanges.frame::<bytes::Bytes>(), Some(Frame::KeyExchange(half(2))));
    }
}
