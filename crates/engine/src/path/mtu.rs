//! Path MTU discovery without ICMP (RFC 8899).
//!
//! Packets of a path have one size, so that runs of them can be sent in one system call. It begins at
//! what every path must carry and grows to the largest probe that was acknowledged. The largest size is
//! tried first, since most paths carry it; after that the gap is halved. A probe that is lost says
//! nothing about congestion. When full-sized packets go on being lost while the path answers small
//! ones, the size falls back to the base and the search begins again later.

use anabranch_wire::{Span, Time};

/// A probe is repeated this often before its size counts as too large.
const TRIES: u8 = 3;
/// The search ends when the gap is at most this many bytes.
const PRECISION: u16 = 16;
/// Probe timeouts in a row after which large packets are suspected.
const BLACK_HOLE_TIMEOUTS: u32 = 3;
/// Pause before a search that ended in a black hole begins again.
const SEARCH_AGAIN: Span = Span::from_secs(600);

#[derive(Clone, Copy, Debug)]
pub(crate) struct MtuSearch {
    base: u16,
    current: u16,
    /// Smallest size known not to pass, or one past the largest to try.
    too_large: u16,
    probe: Option<Probe>,
    not_before: Time,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    size: u16,
    losses: u8,
    in_flight: bool,
}

impl MtuSearch {
    pub(crate) fn new(base: u16, max: u16) -> Self {
        Self {
            base,
            current: base,
            too_large: max.max(base).saturating_add(1),
            probe: None,
            not_before: Time::ZERO,
        }
    }

    /// Largest UDP payload that may be sent.
    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    /// Never larger than this from now on: the peer or the interface cannot take it.
    pub(crate) fn limit(&mut self, max: u16) {
        self.too_large = self.too_large.min(max.max(self.base).saturating_add(1));
        self.current = self.current.min(self.too_large - 1);
    }

    /// The size of the probe to send now.
    pub(crate) fn next_probe(&mut self, now: Time) -> Option<u16> {
        if now < self.not_before {
            return None;
        }
        if self.probe.is_none() && self.too_large - self.current > PRECISION.min(self.too_large - self.base) {
            let first = self.current == self.base;
            let size = if first { self.too_large - 1 } else { self.current.midpoint(self.too_large) };
            self.probe = Some(Probe { size, losses: 0, in_flight: false });
        }
        self.probe.filter(|probe| !probe.in_flight).map(|probe| probe.size)
    }

    pub(crate) fn on_probe_sent(&mut self) {
        if let Some(probe) = &mut self.probe {
            probe.in_flight = true;
        }
    }

    /// Returns true when packets may be larger from now on.
    pub(crate) fn on_probe_acked(&mut self, size: u16) -> bool {
        self.probe = self.probe.filter(|probe| probe.size != size);
        if size <= self.current || size >= self.too_large {
            return false;
        }
        self.current = size;
        true
    }

    pub(crate) fn on_probe_lost(&mut self, size: u16) {
        let Some(probe) = self.probe.as_mut().filter(|probe| probe.size == size) else { return };
        probe.in_flight = false;
        probe.losses += 1;
        if probe.losses < TRIES {
            return;
        }
        self.probe = None;
        if self.current == self.base
            && size == self.too_large - 1
            && self.too_large - self.base > PRECISION * 2
        {
            // The largest size failed: search below it.
            let size_below = self.base.midpoint(size);
            self.probe = Some(Probe { size: size_below, losses: 0, in_flight: false });
        }
        self.too_large = size;
    }

    /// The path was silent as a whole, which says nothing about sizes: search again at once.
    pub(crate) fn search_again(&mut self) {
        self.not_before = Time::ZERO;
    }

    /// Tells of the `timeouts`-th probe timeout in a row; true when packets become smaller.
    pub(crate) fn on_timeouts(&mut self, now: Time, timeouts: u32) -> bool {
        if timeouts != BLACK_HOLE_TIMEOUTS || self.current == self.base {
            return false;
        }
        let seen = self.current;
        *self = Self { not_before: now + SEARCH_AGAIN, ..Self::new(self.base, seen) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(limit: u16) -> u16 {
        let mut mtu = MtuSearch::new(1200, 1472);
        let mut probes = 0;
        while let Some(size) = mtu.next_probe(Time::ZERO) {
            mtu.on_probe_sent();
            if size <= limit {
                assert!(mtu.on_probe_acked(size))
            } else {
                mtu.on_probe_lost(size)
            }
            probes += 1;
            assert!(probes < 40);
        }
        mtu.current()
    }

    #[test]
    fn the_search_ends_just_below_what_passes() {
        assert_eq!(search(1500), 1472);
        for limit in [1200, 1210, 1280, 1372, 1400, 1452, 1471] {
            let found = search(limit);
            assert!(found <= limit && limit - found <= PRECISION, "{limit}: {found}");
        }
    }

    #[test]
    fn a_black_hole_brings_the_base_back() {
        let mut mtu = MtuSearch::new(1200, 1472);
        mtu.next_probe(Time::ZERO);
        mtu.on_probe_acked(1472);
        assert!(!mtu.on_timeouts(Time::ZERO, 2));
        assert!(mtu.on_timeouts(Time::ZERO, 3));
        assert_eq!((mtu.current(), mtu.next_probe(Time::ZERO)), (1200, None));
        assert!(mtu.next_probe(Time::ZERO + SEARCH_AGAIN).is_some());
    }
}
