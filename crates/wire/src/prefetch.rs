//! Memory asked for before it is needed.
//!
//! Who has many packets to handle knows beforehand what memory the next ones will touch. Asked for side by side it comes in
//! the time that one piece takes. Nothing else happens: not even a wrong place does any harm.

use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Has some bytes of a value fetched; the end of what is asked for may lie behind it.
#[inline]
pub fn prefetch<T>(value: &T, bytes: Range<usize>) {
    let start = std::ptr::from_ref(value).addr();
    let end = bytes.end.min(size_of::<T>());
    let aligned = align_of::<T>() >= LINE;
    let first = if aligned { bytes.start & !(LINE - 1) } else { bytes.start };
    for line in 0..end.saturating_sub(first).div_ceil(LINE) {
        fetch(start.wrapping_add(first + line * LINE));
    }
    // What begins within a line may end in one more.
    if !aligned && first < end {
        fetch(start.wrapping_add(end - 1));
    }
}

/// Has the beginning of an item fetched, or of where it would be.
#[inline]
pub fn prefetch_item<T>(items: &[T], index: usize) {
    fetch(items.as_ptr().wrapping_add(index).addr());
}

/// Has the place fetched that the next item put into a ring will take.
#[inline]
pub fn prefetch_room<T>(ring: &VecDeque<T>) {
    let (first, second) = ring.as_slices();
    let last = if second.is_empty() { first } else { second };
    prefetch_item(last, last.len());
}

/// Has the line of memory fetched that an address lies in, into the second cache. That was faster than into the first, which
/// may be too small for all that is asked for side by side.
#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code)]
fn fetch(address: usize) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: it is a hint, which reads and writes nothing, and with an address that nothing is at does nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address)) }
}

/// Has the line of memory fetched that an address lies in.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch(address: usize) {
    // An address is told as an index, by wrapping around.
    let nothing: &[u8] = &[];
    prefetch_index::prefetch_index(nothing, address.wrapping_sub(nothing.as_ptr().addr()));
}
