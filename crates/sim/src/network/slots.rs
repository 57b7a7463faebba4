//! The occupied slots of a ring.

/// Slots of a ring. A bitmap marks the occupied slots, and a second one the non-zero words of the first.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
pub(crate) const SLOT_BITS: u32 = 12;

/// A bit for each slot, and one for each non-zero word of these.
#[derive(Debug)]
pub(crate) struct Occupied {
    bits: [u64; SLOTS / 64],
    words: u64,
}

impl Occupied {
    pub(crate) fn new() -> Self {
        Self { bits: [0; SLOTS / 64], words: 0 }
    }

    #[inline]
    pub(crate) fn set(&mut self, slot: usize) {
        self.bits[slot / 64] |= 1 << (slot % 64);
        self.words |= 1 << (slot / 64);
    }

    pub(crate) fn clear(&mut self, slot: usize) {
        self.bits[slot / 64] &= !(1 << (slot % 64));
        self.words &= !(u64::from(self.bits[slot / 64] == 0) << (slot / 64));
    }

    pub(crate) fn has(&self, slot: usize) -> bool {
        self.bits[slot / 64] & 1 << (slot % 64) != 0
    }

    /// The first occupied slot after `slot`.
    pub(crate) fn after(&self, slot: usize) -> Option<usize> {
        let beyond = |index: usize| u64::MAX.checked_shl(index as u32 + 1).unwrap_or(0);
        let word = slot / 64;
        let bits = self.bits[word] & beyond(slot % 64);
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let words = self.words & beyond(word);
        let word = words.trailing_zeros() as usize;
        let bits = self.bits.get(word).filter(|_| words != 0)?;
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The distance from `slot` to the next occupied one around the ring; never itself.
    pub(crate) fn next(&self, slot: usize) -> Option<usize> {
        let round = || if self.has(0) { Some(0) } else { self.after(0) };
        let next = self.after(slot).or_else(round).filter(|next| *next != slot)?;
        Some((next + SLOTS - slot) % SLOTS)
    }
}
