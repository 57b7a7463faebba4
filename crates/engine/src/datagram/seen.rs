//! The numbers of a class that were received: a window of bits below the highest, so that each datagram is delivered once.
//!
//! The window is narrow and stored in place until its owner has memory for a wide one; at rest it becomes narrow again.
//! Numbers that leave the window count as seen.

/// Length of a wide window; numbers further below the highest count as seen.
pub(super) const WINDOW: u64 = 16 << 10;
/// Length of a narrow window.
pub(super) const NARROW: u64 = 256;
pub(super) const WIDE_COST: u64 = WINDOW / 8;

#[derive(Debug, Default)]
pub(super) struct Seen {
    narrow: [u64; (NARROW / 64) as usize],
    wide: Option<Box<[u64; (WINDOW / 64) as usize]>>,
    /// One more than the highest number.
    end: u64,
}

impl Seen {
    /// True when the number was received, or is too far below the highest.
    pub(super) fn contains(&self, number: u64) -> bool {
        if number >= self.end {
            return false;
        }
        let (word, bit) = self.position(number);
        self.end - number > self.window() || self.bits()[word] & bit != 0
    }

    /// Records a number; false when it was received, or is too far below the highest.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        if number >= self.end {
            // The numbers in between take the bits of those that leave the window.
            self.clear(self.end.max((number + 1).saturating_sub(self.window())), number + 1);
            self.end = number + 1;
        }
        let (word, bit) = self.position(number);
        self.bits_mut()[word] |= bit;
        true
    }

    /// True when a wide window would help to distinguish numbers up to this one.
    pub(super) fn wants_more(&self, number: u64) -> bool {
        self.wide.is_none() && number.max(self.end) >= NARROW
    }

    pub(super) fn is_wide(&self) -> bool {
        self.wide.is_some()
    }

    /// Makes the window wide; numbers that had left the narrow one count as seen.
    pub(super) fn widen(&mut self) {
        let known = self.end.saturating_sub(NARROW)..self.end;
        let mut wide = Self { wide: Some(Box::new([u64::MAX; _])), end: self.end, ..Self::default() };
        wide.clear(known.start, known.end);
        for number in known.filter(|number| self.contains(*number)) {
            let (word, bit) = wide.position(number);
            wide.bits_mut()[word] |= bit;
        }
        *self = wide;
    }

    /// Makes the window narrow.
    pub(super) fn narrow(&mut self) {
        if !self.is_wide() {
            return;
        }
        let mut narrow = Self { end: self.end, ..Self::default() };
        for number in (self.end.saturating_sub(NARROW)..self.end).filter(|number| self.contains(*number)) {
            let (word, bit) = narrow.position(number);
            narrow.bits_mut()[word] |= bit;
        }
        *self = narrow;
    }

    /// Clears the bits of these numbers, at most a window, with two fills: a peer whose numbers jump costs little.
    fn clear(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let (before, after) = (!(u64::MAX << (first % 64)), u64::MAX << (end % 64));
        let bits = self.bits_mut();
        let words = bits.len();
        let (low, high) = ((first / 64) as usize, (end / 64) as usize);
        if low == high {
            bits[low % words] &= before | after;
            return;
        }
        bits[low % words] &= before;
        bits[high % words] &= after;
        let (start, count) = ((low + 1) % words, high - low - 1);
        let upper = count.min(words - start);
        bits[start..start + upper].fill(0);
        bits[..count - upper].fill(0);
    }

    fn bits(&self) -> &[u64] {
        self.wide.as_ref().map_or(&self.narrow, |wide| &wide[..])
    }

    fn bits_mut(&mut self) -> &mut [u64] {
        self.wide.as_mut().map_or(&mut self.narrow, |wide| &mut wide[..])
    }

    fn window(&self) -> u64 {
        self.bits().len() as u64 * 64
    }

    fn position(&self, number: u64) -> (usize, u64) {
        ((number / 64) as usize % self.bits().len(), 1 << (number % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide() -> Seen {
        let mut seen = Seen::default();
        seen.widen();
        seen
    }

    #[test]
    fn each_number_is_new_once_in_whatever_order() {
        for (mut seen, far) in [(wide(), 700), (Seen::default(), 200)] {
            let numbers = [3, 0, 1, far, 2, 69, far + 1, 4];
            assert!(numbers.iter().all(|number| seen.insert(*number)));
            assert!(numbers.iter().all(|number| !seen.insert(*number) && seen.contains(*number)));
            assert!(!seen.contains(5) && !seen.contains(far + 2));
        }
    }

    #[test]
    fn numbers_between_are_new_however_far_a_number_jumps() {
        for (window, empty) in [(NARROW, Seen::default as fn() -> Seen), (WINDOW, wide)] {
            let jumps = [
                1,
                2,
                63,
                64,
                65,
                127,
                200,
                window / 2,
                window - 65,
                window - 1,
                window,
                window + 1,
                5 * window,
            ];
            for (jump, start) in
                jumps.into_iter().flat_map(|jump| [0, 1, 63, 64, 100].map(|start| (jump, start)))
            {
                let mut seen = empty();
                assert!((start..start + window).all(|number| seen.insert(number)));
                let last = start + window - 1;
                assert!(seen.insert(last + jump));
                let mut inside = (last + jump + 1).saturating_sub(window)..last + jump;
                let wrong = inside.find(|number| seen.contains(*number) != (*number <= last));
                assert_eq!(wrong, None, "from {start} by {jump}");
            }
        }
    }

    #[test]
    fn a_jump_leaves_no_trace_of_numbers_that_left_the_window() {
        let mut seen = wide();
        assert!((0..100).all(|number| seen.insert(number)));
        assert!(seen.insert(50 + WINDOW));
        assert!(!seen.insert(49) && !seen.insert(50), "too far below, and seen");
        assert!(seen.insert(WINDOW) && seen.insert(WINDOW + 20) && seen.insert(WINDOW + 49));
        let far = (1 << 62) - 1;
        assert!(seen.insert(far) && !seen.insert(far) && !seen.insert(51 + WINDOW));
        assert!((far - WINDOW + 1..far).all(|number| seen.insert(number)));
    }

    #[test]
    fn a_wide_window_takes_two_kibibytes_for_16384_numbers_and_a_narrow_one_holds_256() {
        for (mut seen, window) in [(Seen::default(), 256), (wide(), 16_384)] {
            assert!(seen.insert(99_999));
            assert!(!seen.insert(99_999 - window) && seen.insert(100_000 - window));
        }
        assert_eq!((size_of_val(wide().bits()) as u64, WIDE_COST), (2048, 2048));
        assert!(size_of::<Seen>() <= 64);
    }

    #[test]
    fn a_window_that_becomes_wide_or_narrow_keeps_its_numbers_and_delivers_nothing_twice() {
        for end in [3, 255, 256, 257, 1_000, 20_000, 40_001] {
            let came = |number: &u64| number.is_multiple_of(3) || *number + 1 == end;
            let mut seen = wide();
            assert!((0..end).filter(came).all(|number| seen.insert(number)));
            for _ in 0..2 {
                seen.narrow();
                assert!(seen.wants_more(end) == (end >= NARROW));
                let known = (0..end).map(|number| seen.contains(number));
                let expected = (0..end).map(|number| end - number > NARROW || came(&number));
                assert!(known.eq(expected), "narrow at {end}");
                seen.widen();
                let known = (0..end).map(|number| seen.contains(number));
                assert!(
                    known.eq((0..end).map(|number| end - number > NARROW || came(&number))),
                    "wide at {end}"
                );
            }
            assert!((end..end + 2 * WINDOW).all(|number| seen.insert(number)));
        }
    }
}
