//! The content of a network's packets: a length, and for an inner packet of a tunnel also its number.

use anabranch_engine::Ecn;
use anabranch_tunnel::entry::InnerPacket;
use anabranch_wire::Payload;

/// Set in [`Load::tag`] if the inner packet can carry a congestion mark.
const CAPABLE: u32 = 1 << 31;
/// Set in [`Load::tag`] if it carries one.
const MARKED: u32 = 1 << 30;
/// Set in [`Load::tag`] if it is of TCP.
const TCP: u32 = 1 << 29;

/// Bytes of a stream or datagram, of which only the number exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    length: u32,
    /// The number of an inner packet, with its congestion marks.
    tag: u32,
}

impl Load {
    /// The number of inner packets after which numbers repeat.
    pub(super) const NUMBERS: u32 = TCP;

    /// So many bytes, at most as many as a `u32` counts.
    pub fn of(length: u64) -> Self {
        Self { length: u32::try_from(length).unwrap_or(u32::MAX), tag: 0 }
    }

    /// The inner packet with this number.
    pub(super) fn inner(length: u32, number: u32, ecn: bool, is_tcp: bool) -> Self {
        let flags = if ecn { CAPABLE } else { 0 } | if is_tcp { TCP } else { 0 };
        Self { length, tag: (number % Self::NUMBERS) | flags }
    }

    /// The number of the inner packet.
    pub(super) fn number(self) -> u32 {
        self.tag % Self::NUMBERS
    }

    /// The congestion marks of the inner packet.
    pub(super) fn ecn(self) -> Ecn {
        match (self.tag & CAPABLE != 0, self.tag & MARKED != 0) {
            (false, _) => Ecn::NotEct,
            (true, false) => Ecn::Ect0,
            (true, true) => Ecn::Ce,
        }
    }
}

impl Payload for Load {
    fn len(&self) -> usize {
        self.length as usize
    }
    fn split_to(&mut self, at: usize) -> Self {
        let first = self.slice(0, at);
        self.length -= first.length;
        first
    }
    fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len(), "cannot take {start}+{len} of {} bytes", self.length);
        Self { length: len as u32, ..*self }
    }
    fn append(&mut self, other: &Self) {
        self.length += other.length;
    }
    const HAS_BYTES: bool = false;
    fn bytes(&self) -> &[u8] {
        &[]
    }
    fn copied(_: &[u8], len: usize) -> Self {
        Self::of(len as u64)
    }
}

impl InnerPacket for Load {
    fn mark_congestion(&mut self) -> bool {
        if self.tag & CAPABLE != 0 {
            self.tag |= MARKED;
        }
        self.tag & CAPABLE != 0
    }

    fn is_tcp(&self) -> bool {
        self.tag & TCP != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_takes_eight_bytes_and_keeps_its_number_when_marked() {
        let mut load = Load::inner(1380, Load::NUMBERS + 5, true, true);
        assert_eq!((size_of::<Load>(), load.len(), load.number(), load.ecn()), (8, 1380, 5, Ecn::Ect0));
        assert!(load.mark_congestion());
        assert_eq!((load.number(), load.ecn(), load.is_tcp()), (5, Ecn::Ce, true));
        assert!(!Load::inner(100, 7, false, false).mark_congestion());
    }
}
