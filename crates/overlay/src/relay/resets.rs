//! Limits how many resets are looked up. A reset names a PID that only a walk over all flows finds, and anyone can send
//! one.
//!
//! Each source has a few lookups per second. All sources together have a bounded number as well, because sources can be
//! forged. A reset beyond the limit is dropped; its receiver notices by silence that its peer is gone.

use anabranch_wire::{PerSecond, SourceLimit, Time};

/// Lookups per second for all sources: a walk over 50,000 flows takes 0.14 ms.
const MOST: u32 = 100;
/// Lookups a second for one source.
const MOST_OF_ONE: u8 = 5;

/// The limit on lookups of a relay with this secret seed.
pub(super) fn limit(now: Time, seed: &[u8; 32]) -> SourceLimit {
    let derived = blake3::derive_key("anabranch 2026 relay resets", seed);
    let key = u64::from_le_bytes(*derived.first_chunk().expect("it is longer"));
    SourceLimit::new(now, PerSecond { all: MOST, each: MOST_OF_ONE }, key)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use anabranch_wire::Span;

    use super::*;

    #[test]
    fn a_source_that_floods_leaves_lookups_to_others_and_the_total_is_bounded() {
        let (mut resets, now) = (limit(Time::ZERO, &[1; 32]), Time::ZERO + Span::from_millis(999));
        let source = |last: u32| IpAddr::from((0xc633_6400 + last).to_be_bytes());
        let mut admitted = |from, count| (0..count).filter(|_| resets.admit(now, from)).count();
        assert_eq!(admitted(source(1), 10_000), 5);
        assert_eq!(admitted("2001:db8::1".parse().unwrap(), 2), 2);
        assert_eq!(admitted("2001:db8::2".parse().unwrap(), 10), 3, "of the same network");
        let forged: usize = (2..100_000).map(|last| admitted(source(last), 1)).sum();
        assert_eq!(forged, 90);
        assert!(resets.admit(now + Span::from_millis(1), source(1)), "another second");
    }
}
