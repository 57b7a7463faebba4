//! Replay windows: which packet numbers of a path were received (RFC 6479's ring of words, so that sliding moves no bits).
//!
//! A path in order needs two words. When numbers are missing and the window would slide past them, it doubles instead, up
//! to [`ReplayWindow::MAX_LEN`] numbers: 4 KiB for a path that reorders by thousands or whose sender skips numbers,
//! 16 bytes for an idle one.

use anabranch_wire::Fsn;

const WORD: u64 = 64;
const FIRST_WORDS: usize = 2;

/// The packet numbers received, as far back as the window reaches; older numbers count as received.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// Word `n / 64` of the number line is at index `n / 64 % words.len()`; the length is a power of two.
    words: Box<[u64]>,
    /// One past the highest number received.
    next: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { words: vec![0; FIRST_WORDS].into_boxed_slice(), next: 0 }
    }
}

impl ReplayWindow {
    /// Largest window, counted from the end of the word that holds the highest number. At a million packets a second it
    /// allows reordering by 32 ms.
    pub const MAX_LEN: u64 = 32_768;

    /// One past the highest number received, for expanding truncated numbers.
    pub fn next(&self) -> Fsn {
        Fsn(self.next)
    }

    /// Whether a packet with this number may be opened: it was not received and is not too old for the window.
    #[must_use]
    pub fn check(&self, fsn: Fsn) -> bool {
        fsn.0 != u64::MAX && (fsn.0 >= self.next || (fsn.0 >= self.floor() && !self.is_set(fsn.0)))
    }

    /// Records the number of an authentic packet; false when it was recorded before.
    pub fn mark(&mut self, fsn: Fsn) -> bool {
        if !self.check(fsn) {
            return false;
        }
        if fsn.0 >= self.next {
            self.slide_to(fsn.0);
        }
        let word = self.index(fsn.0 / WORD);
        self.words[word] |= 1 << (fsn.0 % WORD);
        true
    }

    /// Shrinks the window to its newest numbers, as on a path in order: late packets for older gaps are refused.
    pub fn rest(&mut self) {
        if self.words.len() > FIRST_WORDS {
            let newest = self.next.saturating_sub(1) / WORD;
            let mut words = vec![0; FIRST_WORDS];
            for word in (newest + 1).saturating_sub(FIRST_WORDS as u64)..=newest {
                words[(word % FIRST_WORDS as u64) as usize] = self.words[self.index(word)];
            }
            self.words = words.into_boxed_slice();
        }
    }

    /// Bytes allocated for the window.
    pub fn memory(&self) -> usize {
        self.words.len() * 8
    }

    /// The lowest number in the window.
    fn floor(&self) -> u64 {
        let newest_word = self.next.saturating_sub(1) / WORD;
        (newest_word + 1).saturating_sub(self.words.len() as u64) * WORD
    }

    fn index(&self, word: u64) -> usize {
        (word % self.words.len() as u64) as usize
    }

    fn is_set(&self, number: u64) -> bool {
        self.words[self.index(number / WORD)] >> (number % WORD) & 1 == 1
    }

    /// Makes `highest` the highest number, with room for its word.
    fn slide_to(&mut self, highest: u64) {
        let old_next = self.next;
        while (self.words.len() as u64) * WORD < Self::MAX_LEN && self.would_forget_a_gap(highest) {
            self.double();
        }
        let first_new = old_next.div_ceil(WORD);
        let last_new = highest / WORD;
        // A jump longer than the ring clears it once.
        for word in first_new.max((last_new + 1).saturating_sub(self.words.len() as u64))..=last_new {
            let index = self.index(word);
            self.words[index] = 0;
        }
        self.next = highest + 1;
    }

    /// Whether a number that was never received would leave the window.
    fn would_forget_a_gap(&self, highest: u64) -> bool {
        let new_floor = (highest / WORD + 1).saturating_sub(self.words.len() as u64);
        let old_floor = self.floor() / WORD;
        let full = |word: u64| word * WORD < self.next && self.words[self.index(word)] == u64::MAX;
        // A jump longer than the ring skips whole words: a gap.
        let leaving = old_floor..new_floor.min(old_floor + self.words.len() as u64 + 1);
        leaving.into_iter().any(|word| !full(word))
    }

    fn double(&mut self) {
        let mut words = vec![0; self.words.len() * 2];
        let (first, end) = (self.floor() / WORD, self.next.div_ceil(WORD));
        for word in first..end {
            words[(word % (self.words.len() as u64 * 2)) as usize] = self.words[self.index(word)];
        }
        // Numbers that had left the window still count as received.
        for word in (end.saturating_sub(words.len() as u64))..first {
            let index = (word % words.len() as u64) as usize;
            words[index] = u64::MAX;
        }
        self.words = words.into_boxed_slice();
    }
}

#[cfg(test)]
mod tests;
