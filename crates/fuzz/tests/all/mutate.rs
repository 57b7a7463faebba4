//! Small changes to known inputs: bits, bytes, notable numbers, and pieces that are moved, repeated, dropped or copied.

/// Numbers at which decoders branch.
const NOTABLE: [u8; 12] = [0, 1, 2, 3, 0x3f, 0x40, 0x7f, 0x80, 0xbf, 0xc0, 0xfe, 0xff];
/// Longest input, in bytes.
const LONGEST: usize = 4096;

/// Makes inputs from a seed.
#[derive(Clone, Debug)]
pub struct Mutator(u64);

impl Mutator {
    /// The same inputs for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }

    /// Makes another input from one of `known`.
    pub fn next(&mut self, known: &[Vec<u8>]) -> Vec<u8> {
        let mut input = if known.is_empty() { Vec::new() } else { known[self.below(known.len())].clone() };
        for _ in 0..=self.below(6) {
            self.change(&mut input, known);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, known: &[Vec<u8>]) {
        let (at, len) = (self.below(input.len()), 1 + self.below(16));
        let end = (at + len).min(input.len());
        match self.below(8) {
            0 if !input.is_empty() => input[at] ^= 1 << self.below(8),
            1 if !input.is_empty() => input[at] = NOTABLE[self.below(NOTABLE.len())],
            2 if !input.is_empty() => input[at] = self.below(256) as u8,
            3 => drop(input.drain(at..end)),
            4 => {
                let piece = input[at..end].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            5 if !known.is_empty() => {
                let other = &known[self.below(known.len())];
                let from = self.below(other.len());
                let piece = other[from..(from + len * 4).min(other.len())].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            6 => input.truncate(at),
            _ => {
                let piece: Vec<u8> = (0..len).map(|_| self.below(256) as u8).collect();
                input.splice(at..at, piece);
            }
        }
    }
}
