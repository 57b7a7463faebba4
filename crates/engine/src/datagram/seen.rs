//! Which numbers of a class came: a window of bits below the highest, so that each datagram is handed up once.

/// Numbers that are told apart; what is further behind the highest counts as seen.
pub(super) const WINDOW: u64 = 16 << 10;

#[derive(Debug)]
pub(super) struct Seen {
    /// A bit for each number, at its remainder by [`WINDOW`].
    bits: Box<[u64]>,
    /// One more than the highest.
    end: u64,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self { bits: vec![0; (WINDOW / 64) as usize].into(), end: 0 }
    }

    /// True when the number came before, or is too far behind to tell.
    pub(super) fn contains(&self, number: u64) -> bool {
        if number >= self.end {
            return false;
        }
        let (word, bit) = place(number);
        self.end - number > WINDOW || self.bits[word] & bit != 0
    }

    /// Notes a number; false when it came before, or is too far behind to tell.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        if number >= self.end {
            // The numbers in between take the places of those that fall out of the window.
            self.clear(self.end.max((number + 1).saturating_sub(WINDOW)), number);
            self.end = number + 1;
        }
        let (word, bit) = place(number);
        self.bits[word] |= bit;
        true
    }

    /// Forgets the places of these numbers, a word at a time: a peer that jumps each time costs a few hundred steps.
    fn clear(&mut self, mut first: u64, end: u64) {
        while first < end {
            let (word, bit) = place(first);
            let (offset, left) = (bit.trailing_zeros(), (end - first).min(64));
            let count = left.min(64 - u64::from(offset));
            self.bits[word] &= !(u64::MAX >> (64 - count) << offset);
            first += count;
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    let index = number % WINDOW;
    ((index / 64) as usize, 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_new_once_in_whatever_order() {
        let mut seen = Seen::new();
        let numbers = [3, 0, 1, 700, 2, 69, 701, 4];
        assert!(numbers.iter().all(|number| seen.insert(*number)));
        assert!(numbers.iter().all(|number| !seen.insert(*number) && seen.contains(*number)));
        assert!(!seen.contains(5) && !seen.contains(702));
    }

    #[test]
    fn what_lies_between_is_new_however_far_a_number_jumps() {
        for jump in [1, 2, 63, 64, 65, 127, 1_000, WINDOW - 65, WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW] {
            for start in [0, 1, 63, 64, 100, WINDOW - 1] {
                let mut seen = Seen::new();
                assert!((start..start + WINDOW).all(|number| seen.insert(number)));
                let last = start + WINDOW - 1;
                assert!(seen.insert(last + jump));
                let window = (last + jump + 1).saturating_sub(WINDOW)..last + jump;
                let wrong = window.into_iter().find(|number| seen.contains(*number) != (*number <= last));
                assert_eq!(wrong, None, "from {start} by {jump}");
            }
        }
    }

    #[test]
    fn numbers_that_jump_leave_nothing_of_what_fell_out_of_the_window() {
        let mut seen = Seen::new();
        assert!((0..100).all(|number| seen.insert(number)));
        assert!(seen.insert(50 + WINDOW));
        assert!(!seen.insert(49) && !seen.insert(50), "too far behind, and seen");
        assert!(seen.insert(WINDOW) && seen.insert(WINDOW + 20) && seen.insert(WINDOW + 49));
        let far = (1 << 62) - 1;
        assert!(seen.insert(far) && !seen.insert(far) && !seen.insert(51 + WINDOW));
        assert!((far - WINDOW + 1..far).all(|number| seen.insert(number)));
    }
}
