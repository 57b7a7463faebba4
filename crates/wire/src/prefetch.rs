//! Memory asked for before it is needed.
//!
//! Who has many packets to handle knows beforehand what memory the next ones will touch. Asked for side by side it comes in
//! the time that one piece takes. Nothing else happens: not even a wrong place does any harm.

use std::collections::VecDeque;

use prefetch_index::prefetch_index;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Has a value fetched, or its first so many bytes.
#[inline]
pub fn prefetch<T>(value: &T, most: usize) {
    // Places are counted from a slice that there is, by wrapping around.
    let nothing: &[u8] = &[];
    let start = std::ptr::from_ref(value).addr().wrapping_sub(nothing.as_ptr().addr());
    for line in 0..size_of::<T>().min(most).div_ceil(LINE) {
        prefetch_index(nothing, start.wrapping_add(line * LINE));
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
