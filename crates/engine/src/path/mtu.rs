//! Path MTU discovery without ICMP (RFC 8899).
//!
//! All packets of a path have one size, so that many can be sent in one system call. The size starts at the base, which
//! every path must carry, and grows to the largest acknowledged probe. The largest size is tried first, because most
//! paths carry it, then that of Ethernet; then the gap is halved. A lost probe does not indicate congestion.
//!
//! A size that worked may stop working (a black hole): full-size packets are lost, while small ones arrive. Congestion
//! differs: after it, large packets sent later do arrive. After a black hole the size falls back to the base at once,
//! and the search restarts. If the path only paused, the first probe restores the old size a round trip later. A search
//! that ended below the largest size is repeated occasionally.

use anabranch_wire::{Span, Time};

/// A probe is repeated this often before its size counts as too large.
const TRIES: u8 = 3;
/// The search ends when the gap is at most this many bytes.
const PRECISION: u16 = 16;
/// Largest UDP payload over IPv4 in an Ethernet frame of the usual size, which most paths between larger ones carry.
const ETHERNET: u16 = 1472;
/// Timeouts without an arriving full-size packet after which that size is suspected.
const BLACK_HOLE_TIMEOUTS: u32 = 3;
/// Losses of packets above the base, without one as large arriving since, after which that size is suspected.
const BLACK_HOLE_LOSSES: u32 = 8;
/// The same with few packets in flight: rounds of losses, each of packets sent after the previous round was noticed.
const BLACK_HOLE_ROUNDS: u32 = 3;
/// Pause before a search that ended below the largest size is repeated (RFC 8899 §5.1.1).
const SEARCH_AGAIN: Span = Span::from_secs(600);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MtuSearch {
    base: u16,
    /// The largest size that configuration and peer admit, and the local interface as well.
    most: u16,
    max: u16,
    current: u16,
    /// Smallest size known to be lost, or one more than the largest to try.
    too_large: u16,
    probe: Option<Probe>,
    /// When the search is repeated.
    again_at: Time,
    /// When the latest full-size packet that arrived was sent.
    full_sent_at: Time,
    /// The same for a smaller packet above the base, with its size.
    large_sent: (Time, u16),
    /// Timeouts since then, and lost packets above the base.
    timeouts: u32,
    losses: u32,
    /// The smallest of the lost packets.
    lost_size: u16,
    /// Rounds of such losses, and when the latest began to be noticed.
    rounds: u32,
    round_at: Time,
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
            most: max.max(base),
            max: max.max(base),
            current: base,
            too_large: max.max(base).saturating_add(1),
            probe: None,
            again_at: Time::NEVER,
            full_sent_at: Time::ZERO,
            large_sent: (Time::ZERO, 0),
            timeouts: 0,
            losses: 0,
            lost_size: u16::MAX,
            rounds: 0,
            round_at: Time::ZERO,
        }
    }

    /// Largest UDP payload that may be sent.
    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    /// Never larger than this from now on: the peer cannot take it.
    pub(crate) fn limit(&mut self, max: u16) {
        self.most = self.most.min(max.max(self.base));
        self.limit_here(self.max);
    }

    /// No larger than this while the local interface cannot take it. If it takes more than before, the search is
    /// repeated.
    pub(crate) fn limit_here(&mut self, max: u16) {
        let before = std::mem::replace(&mut self.max, self.most.min(max.max(self.base)));
        if self.max > before {
            return self.search_again();
        }
        self.too_large = self.too_large.min(self.max.saturating_add(1));
        self.current = self.current.min(self.too_large - 1);
        self.probe = self.probe.filter(|probe| probe.size < self.too_large);
    }

    /// The size of the probe to send now.
    pub(crate) fn next_probe(&mut self, now: Time) -> Option<u16> {
        if now >= self.again_at {
            self.search_again();
        }
        if self.probe.is_none() && self.too_large - self.current > PRECISION.min(self.too_large - self.base) {
            self.probe = Some(Probe { size: self.next_size(), losses: 0, in_flight: false });
        }
        self.probe.filter(|probe| !probe.in_flight).map(|probe| probe.size)
    }

    fn next_size(&self) -> u16 {
        let none_failed = self.too_large > self.max;
        if self.current == self.base && none_failed {
            self.too_large - 1
        } else if (self.current + 1..self.too_large).contains(&ETHERNET) && !none_failed {
            ETHERNET
        } else {
            self.current.midpoint(self.too_large)
        }
    }

    /// From when on [`Self::next_probe`] may return a size.
    pub(crate) fn probe_at(&self) -> Time {
        let gap = self.too_large - self.current;
        let waits = match self.probe {
            Some(probe) => !probe.in_flight,
            None => gap > PRECISION.min(self.too_large - self.base),
        };
        if waits { Time::ZERO } else { self.again_at }
    }

    pub(crate) fn on_probe_sent(&mut self) {
        if let Some(probe) = &mut self.probe {
            probe.in_flight = true;
        }
    }

    /// Records the arrival of a packet of `size` bytes that was sent at `sent_at`.
    pub(crate) fn on_delivered(&mut self, sent_at: Time, size: u16) {
        if self.is_full(size) {
            self.full_sent_at = self.full_sent_at.max(sent_at);
            self.trust();
        } else if size > self.base {
            self.large_sent = self.large_sent.max((sent_at, size));
            if size >= self.lost_size {
                self.trust();
            }
        }
    }

    /// Records a lost packet; true if packets become smaller.
    pub(crate) fn on_lost(&mut self, now: Time, sent_at: Time, size: u16) -> bool {
        let (large_sent_at, large) = self.large_sent;
        let passed = sent_at <= self.full_sent_at || (sent_at <= large_sent_at && size <= large);
        if size <= self.base || passed {
            return false;
        }
        self.losses += 1;
        self.lost_size = self.lost_size.min(size);
        if self.rounds == 0 || sent_at > self.round_at {
            self.rounds += 1;
            self.round_at = now;
        }
        let suspected = self.losses >= BLACK_HOLE_LOSSES || self.rounds >= BLACK_HOLE_ROUNDS;
        suspected && self.fall_back()
    }

    /// Records a timeout; true if packets become smaller.
    pub(crate) fn on_timeout(&mut self) -> bool {
        self.timeouts += 1;
        self.timeouts >= BLACK_HOLE_TIMEOUTS && self.fall_back()
    }

    fn is_full(&self, size: u16) -> bool {
        size.saturating_add(PRECISION) > self.current
    }

    /// The size in use is proven: forgets the evidence against it.
    fn trust(&mut self) {
        (self.timeouts, self.losses, self.rounds) = (0, 0, 0);
        self.lost_size = u16::MAX;
    }

    fn fall_back(&mut self) -> bool {
        self.trust();
        let falls = self.current > self.base;
        self.current = self.base;
        if falls {
            self.search_again();
        }
        falls
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

    pub(crate) fn on_probe_lost(&mut self, now: Time, size: u16) {
        let Some(probe) = self.probe.as_mut().filter(|probe| probe.size == size) else { return };
        probe.in_flight = false;
        probe.losses += 1;
        if probe.losses < TRIES {
            return;
        }
        self.probe = None;
        self.too_large = size;
        self.again_at = now + SEARCH_AGAIN;
    }

    /// Searches again up to the largest size: one that failed before may pass now, or may have failed only because the
    /// path did.
    pub(crate) fn search_again(&mut self) {
        self.too_large = self.max.saturating_add(1);
        self.probe = None;
        self.again_at = Time::NEVER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches up to `most` where `limit` passes. Returns the size found, and how many probes were lost.
    fn search_up_to(most: u16, limit: u16) -> (u16, u32) {
        let mut mtu = MtuSearch::new(1200, most);
        let (mut probes, mut lost) = (0, 0);
        while let Some(size) = mtu.next_probe(Time::ZERO) {
            mtu.on_probe_sent();
            if size <= limit {
                assert!(mtu.on_probe_acked(size));
            } else {
                mtu.on_probe_lost(Time::ZERO, size);
                lost += 1;
            }
            probes += 1;
            assert!(probes < 40);
        }
        (mtu.current(), lost)
    }

    fn search(limit: u16) -> u16 {
        search_up_to(1472, limit).0
    }

    #[test]
    fn the_usual_size_is_found_at_once_below_a_larger_one() {
        assert_eq!(search_up_to(8972, 8972), (8972, 0));
        let mut mtu = MtuSearch::new(1200, 8972);
        for _ in 0..TRIES {
            assert_eq!(mtu.next_probe(Time::ZERO), Some(8972));
            mtu.on_probe_sent();
            mtu.on_probe_lost(Time::ZERO, 8972);
        }
        assert_eq!(mtu.next_probe(Time::ZERO), Some(1472));
        for limit in [1200, 1300, 1464, 1472, 1500, 4000, 8971] {
            let (found, lost) = search_up_to(8972, limit);
            assert!(found <= limit && limit - found <= PRECISION, "{limit}: {found}");
            assert!(lost <= 30, "{limit}: {lost} probes lost");
        }
    }

    #[test]
    fn the_search_ends_just_below_what_passes() {
        assert_eq!(search(1500), 1472);
        for limit in [1200, 1210, 1280, 1372, 1400, 1452, 1471] {
            let found = search(limit);
            assert!(found <= limit && limit - found <= PRECISION, "{limit}: {found}");
        }
    }

    fn found(size: u16) -> MtuSearch {
        let mut mtu = MtuSearch::new(1200, 1472);
        mtu.next_probe(Time::ZERO);
        mtu.on_probe_acked(size);
        mtu.on_delivered(at(1), size);
        mtu
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn timeouts_without_a_full_sized_arrival_bring_the_base_back_and_a_new_search() {
        let mut mtu = found(1472);
        assert!(!mtu.on_timeout());
        assert!(!mtu.on_timeout());
        mtu.on_delivered(at(2), 100);
        assert!(mtu.on_timeout());
        assert_eq!((mtu.current(), mtu.next_probe(at(3))), (1200, Some(1472)));
    }

    #[test]
    fn a_burst_of_losses_is_no_black_hole_when_a_later_full_sized_packet_arrived() {
        let mut mtu = found(1472);
        mtu.on_delivered(at(50), 1460);
        assert!((2..50).all(|sent| !mtu.on_lost(at(90), at(sent), 1472)));
        let falls: Vec<_> = (51..59).map(|sent| mtu.on_lost(at(90), at(sent), 1472)).collect();
        assert_eq!(falls, [false, false, false, false, false, false, false, true]);
        assert_eq!(mtu.current(), 1200);
    }

    #[test]
    fn where_few_are_in_flight_the_third_round_of_losses_tells() {
        let mut mtu = found(1472);
        let rounds: Vec<_> = [(60, 10), (61, 20), (120, 70), (121, 80), (180, 130)]
            .map(|(now, sent)| (at(now), at(sent)))
            .into();
        let falls: Vec<_> = rounds.iter().map(|(now, sent)| mtu.on_lost(*now, *sent, 1472)).collect();
        assert_eq!(falls, [false, false, false, false, true]);
        let mut mtu = found(1472);
        assert!(!mtu.on_lost(at(60), at(10), 1472) && !mtu.on_lost(at(120), at(70), 1472));
        mtu.on_delivered(at(125), 1472);
        assert!(!mtu.on_lost(at(180), at(130), 1472));
    }

    #[test]
    fn a_packet_a_little_smaller_that_never_arrives_tells_as_well() {
        let mut mtu = found(1472);
        assert!(!mtu.on_lost(at(60), at(10), 1435) && !mtu.on_lost(at(120), at(70), 1435));
        mtu.on_delivered(at(125), 1400);
        assert!(mtu.on_lost(at(180), at(130), 1435), "what arrived was smaller");
        let mut mtu = found(1472);
        assert!(!mtu.on_lost(at(60), at(10), 1435) && !mtu.on_lost(at(120), at(70), 1435));
        mtu.on_delivered(at(125), 1440);
        assert!(!mtu.on_lost(at(180), at(130), 1435), "a larger one arrived");
    }

    #[test]
    fn a_burst_of_losses_among_messages_of_one_size_is_no_black_hole() {
        let mut mtu = found(1472);
        mtu.on_delivered(at(50), 1300);
        assert!((2..50).all(|sent| !mtu.on_lost(at(90), at(sent), 1300)));
    }

    #[test]
    fn a_search_that_ended_early_is_repeated_after_a_while() {
        let mut mtu = MtuSearch::new(1200, 1472);
        while let Some(size) = mtu.next_probe(at(5)) {
            mtu.on_probe_sent();
            mtu.on_probe_lost(at(5), size);
        }
        assert_eq!(mtu.next_probe(at(5) + SEARCH_AGAIN), Some(1472));
    }

    #[test]
    fn the_size_follows_the_interface_down_and_up_but_never_beyond_the_peer() {
        let mut mtu = found(1472);
        mtu.limit(1460);
        mtu.limit_here(1300);
        assert_eq!((mtu.current(), mtu.next_probe(at(2))), (1300, None));
        mtu.limit_here(1500);
        assert_eq!((mtu.current(), mtu.next_probe(at(2))), (1300, Some(1380)));
        mtu.limit_here(1500);
        assert_eq!(mtu.next_probe(at(2)), Some(1380), "nothing has changed");
    }

    #[test]
    fn a_probe_beyond_the_interface_is_not_repeated_when_it_is_lost() {
        let mut mtu = MtuSearch::new(1200, 1472);
        assert_eq!(mtu.next_probe(at(1)), Some(1472));
        mtu.on_probe_sent();
        mtu.limit_here(1300);
        mtu.on_probe_lost(at(2), 1472);
        assert_eq!(mtu.next_probe(at(2)), Some(1300));
    }
}
