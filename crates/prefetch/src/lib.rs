//! Prefetches memory before it is needed.
//!
//! A loop that handles many packets can compute which memory the next ones will touch. Fetching several cache lines at
//! once takes about as long as fetching one. A prefetch is only a hint: a wrong address does no harm.

use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches these bytes of a value; the range may end behind the value.
#[inline]
pub fn prefetch<T>(value: &T, bytes: Range<usize>) {
    let start = std::ptr::from_ref(value).addr();
    let end = bytes.end.min(size_of::<T>());
    let aligned = align_of::<T>() >= LINE;
    let first = if aligned { bytes.start & !(LINE - 1) } else { bytes.start };
    for line in 0..end.saturating_sub(first).div_ceil(LINE) {
        fetch(start.wrapping_add(first + line * LINE));
    }
    // Bytes that begin within a line may end in one more.
    if !aligned && first < end {
        fetch(start.wrapping_add(end - 1));
    }
}

/// Prefetches the beginning of an item, or the address where it would be.
#[inline]
pub fn prefetch_item<T>(items: &[T], index: usize) {
    fetch(items.as_ptr().wrapping_add(index).addr());
}

/// Prefetches the slot that the next item pushed into a ring will take.
#[inline]
pub fn prefetch_room<T>(ring: &VecDeque<T>) {
    let (first, second) = ring.as_slices();
    let last = if second.is_empty() { first } else { second };
    prefetch_item(last, last.len());
}

/// Prefetches the cache line of an address into the second-level cache. That was measured to be faster than the first
/// level, which can be too small for everything requested at once.
#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code)]
fn fetch(address: usize) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a prefetch reads and writes nothing, and an invalid address has no effect.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address)) }
}

/// Prefetches the cache line of an address.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch(address: usize) {
    // The crate takes an index into a slice: wrap around to reach any address.
    let nothing: &[u8] = &[];
    prefetch_index::prefetch_index(nothing, address.wrapping_sub(nothing.as_ptr().addr()));
}
