//! Replay windows: which numbers of a path have been taken already (RFC 6479's ring of words, so that sliding
//! moves no bits).
//!
//! A path in order needs two words. When numbers are missing and the window would slide past them it is doubled
//! instead, until it covers [`ReplayWindow::MAX_LEN`] numbers: 4 KiB for a path that reorders by thousands or whose sender
//! leaves numbers out, 16 bytes for one that is idle.

use anabranch_wire::Fsn;

const WORD: u64 = 64;
const FIRST_WORDS: usize = 2;

/// The numbers below the highest that were seen, as far as they are remembered; older ones count as seen.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// Word `n / 64` of the number line stands at index `n / 64 % words.len()`; a power of two of them.
    words: Box<[u64]>,
    /// One past the highest number seen.
    next: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { words: vec![0; FIRST_WORDS].into_boxed_slice(), next: 0 }
    }
}

impl ReplayWindow {
    /// Most numbers that are remembered, counted from the end of the word that the highest stands in.
    /// At a million packets a second this is a reordering of 32 ms.
    pub const MAX_LEN: u64 = 32_768;

    /// One past the highest number seen: what a truncated number is expanded against.
    #[must_use]
    pub fn next(&self) -> Fsn {
        Fsn(self.next)
    }

    /// Whether a packet with this number may be opened: it was not seen, and is not too old to tell.
    #[must_use]
    pub fn check(&self, fsn: Fsn) -> bool {
        fsn.0 != u64::MAX && (fsn.0 >= self.next || (fsn.0 >= self.floor() && !self.is_set(fsn.0)))
    }

    /// Notes the number of a packet that turned out to be authentic; false when it was noted before.
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

    /// Remembers the newest numbers only, as on a path in order: what comes late for older gaps is refused.
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

    /// Bytes it holds outside itself.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.words.len() * 8
    }

    /// The lowest number still remembered.
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

    /// Makes `highest` the highest number, and room for its word.
    fn slide_to(&mut self, highest: u64) {
        let old_next = self.next;
        while (self.words.len() as u64) * WORD < Self::MAX_LEN && self.would_forget_a_gap(highest) {
            self.double();
        }
        let first_new = old_next.div_ceil(WORD);
        let last_new = highest / WORD;
        // A jump further than the ring is long clears it once.
        for word in first_new.max((last_new + 1).saturating_sub(self.words.len() as u64))..=last_new {
            let index = self.index(word);
            self.words[index] = 0;
        }
        self.next = highest + 1;
    }

    /// Whether a number that was never seen would fall out of the window.
    fn would_forget_a_gap(&self, highest: u64) -> bool {
        let new_floor = (highest / WORD + 1).saturating_sub(self.words.len() as u64);
        let old_floor = self.floor() / WORD;
        let full = |word: u64| word * WORD < self.next && self.words[self.index(word)] == u64::MAX;
        // Beyond as many words as the ring has, a word was never reached: it is a gap.
        let leaving = old_floor..new_floor.min(old_floor + self.words.len() as u64 + 1);
        leaving.into_iter().any(|word| !full(word))
    }

    fn double(&mut self) {
        let mut words = vec![0; self.words.len() * 2];
        let (first, end) = (self.floor() / WORD, self.next.div_ceil(WORD));
        for word in first..end {
            words[(word % (self.words.len() as u64 * 2)) as usize] = self.words[self.index(word)];
        }
        // What had left the window before counts as seen still.
        for word in (end.saturating_sub(words.len() as u64))..first {
            let index = (word % words.len() as u64) as usize;
            words[index] = u64::MAX;
        }
        self.words = words.into_boxed_slice();
    }
}

#[cfg(test)]
mod tests;
