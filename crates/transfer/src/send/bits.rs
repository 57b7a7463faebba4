//! A set of numbers.

/// A set of entries, by number.
#[derive(Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// Adds an entry; false if it was already there.
    pub fn set(&mut self, index: usize) -> bool {
        let (word, bit) = (index / 64, 1 << (index % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    pub fn has(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }
}
