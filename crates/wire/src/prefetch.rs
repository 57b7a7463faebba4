//! Memory asked for before it is needed.
//!
//! Who has many packets to handle knows beforehand what memory the next ones will touch. Asked for side by side it comes in
//! the time that one piece takes. Nothing else happens: not even a wrong place does any harm.

use std::collections::VecDeque;
use std::ops::Range;

use prefetch_index::prefetch_index;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Has some bytes of a value fetched; the end of what is asked for may lie behind it.
#[inline]
pub fn prefetch<T>(value: &T, bytes: Range<usize>) {
    // Places are counted from a slice that there is, by wrapping around.
    let nothing: &[u8] = &[];
    let start = std::ptr::from_ref(value).addr().wrapping_sub(nothing.as_ptr().addr());
    let end = bytes.end.min(size_of::<T>());
    let aligned = align_of::<T>() >= LINE;
    let first = if aligned { bytes.start & !(LINE - 1) } else { bytes.start };
    for line in 0..end.saturating_sub(first).div_ceil(LINE) {
        prefetch_index(nothing, start.wrapping_add(first + line * LINE));
    }
    // What begins within a line may end in one more.
    if !aligned && first < end {
        prefetch_index(nothing, start.wrapping_add(end - 1));
    }
}

/// Has the beginning of an item fetched, or of where it would be.
#[inline]
pub fn prefetch_item<T>(items: &[T], index: usize) {
    prefetch_index(items, index);
}

/// Has the place fetched that the next item put into a ring will take.
#[inline]
pub fn prefetch_room<T>(ring: &VecDeque<T>) {
    let (first, second) = ring.as_slices();
    let last = if second.is_empty() { first } else { second };
    prefetch_index(last, last.len());
}
