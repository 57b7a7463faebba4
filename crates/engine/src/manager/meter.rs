//! Byte caps that always hold: bytes are reserved in slices before they are spent.
//!
//! A [`Meter`] holds the unreserved rest of a cap, shared by all paths and sessions under one rule. Each path has two
//! spenders: this end for its packets, and the peer, which MAX_PATH_DATA limits, for the packets that it sends here. Each
//! spender gets a slice, and another when half of it is spent. The next slice is twice as large, but at most a quarter of
//! the rest. So slices never exceed the cap together, and they do not delay a sender whose rate grows. When a path closes,
//! its unspent bytes return to the meter.
//!
//! Every packet costs [`PACKET_COST`] in addition to its UDP payload, so this count is never below the provider's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_wire::PACKET_COST;

/// The smallest slice. A cap with less than two of them left is used up.
const LEAST: u64 = 16 << 10;
/// Bytes that are never handed out: they cover handshakes, and packets that a peer sends before it knows its limit.
const RESERVE: u64 = 64 << 10;

/// A byte cap and its unreserved rest; clones draw on the same cap.
#[derive(Clone)]
pub struct Meter {
    cap: u64,
    resets_on: Option<u8>,
    shares: Arc<Shares>,
}

/// The division of a cap.
struct Shares {
    /// Bytes that no path here has reserved.
    left: AtomicU64,
    /// Of those, bytes that other programs use.
    elsewhere: AtomicU64,
    /// How often the cap has started anew.
    period: AtomicU64,
}

impl Meter {
    /// The smallest useful cap, in bytes.
    pub const SMALLEST: u64 = 256 << 10;

    /// A cap of this many bytes, at least [`Meter::SMALLEST`].
    pub fn new(cap: u64) -> Self {
        let cap = cap.max(Self::SMALLEST);
        let (left, elsewhere, period) = (AtomicU64::new(cap - RESERVE), AtomicU64::new(0), AtomicU64::new(0));
        let shares = Shares { left, elsewhere, period };
        Self { cap, resets_on: None, shares: Arc::new(shares) }
    }

    /// The same cap, which starts anew on this day of each month; a driver keeps its use until then.
    #[must_use]
    pub fn resetting_on(self, day: u8) -> Self {
        Self { resets_on: Some(day), ..self }
    }

    /// The day of the month on which it starts anew.
    pub fn resets_on(&self) -> Option<u8> {
        self.resets_on
    }

    /// Bytes that paths here have used or reserved.
    pub fn taken(&self) -> u64 {
        (self.cap - RESERVE).saturating_sub(self.shares.left.load(Ordering::Relaxed))
    }

    /// Takes bytes that no path reserves; false if there are not so many.
    pub fn charge(&self, bytes: u64) -> bool {
        let rest = |left: u64| left.checked_sub(bytes);
        self.shares.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
    }

    /// Sets the bytes of the cap that other programs use.
    pub fn set_elsewhere(&self, bytes: u64) {
        self.shares.elsewhere.store(bytes, Ordering::Relaxed);
    }

    /// Makes the whole cap available again, on its day of the month.
    pub fn begin_anew(&self) {
        self.shares.left.store(self.cap - RESERVE, Ordering::Relaxed);
        self.set_elsewhere(0);
        self.shares.period.fetch_add(1, Ordering::Relaxed);
    }

    fn period(&self) -> u64 {
        self.shares.period.load(Ordering::Relaxed)
    }

    /// Counts what a path reserved before the cap started anew and has yet to spend.
    fn carry_over(&self, bytes: u64) {
        let rest = |left: u64| Some(left.saturating_sub(bytes));
        let _ = self.shares.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    }

    /// The cap in bytes.
    pub fn cap(&self) -> u64 {
        self.cap
    }

    /// Unreserved bytes.
    pub fn left(&self) -> u64 {
        let Shares { left, elsewhere, .. } = &*self.shares;
        left.load(Ordering::Relaxed).saturating_sub(elsewhere.load(Ordering::Relaxed))
    }

    /// True when no further path can be opened under the cap.
    pub fn is_used_up(&self) -> bool {
        self.left() < LEAST * 2
    }

    /// True when both are the same cap.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shares, &other.shares)
    }

    /// Takes up to `wanted` bytes, at most a quarter of the rest, and at least [`LEAST`] if available; otherwise nothing.
    fn take(&self, wanted: u64) -> u64 {
        let mut taken = 0;
        // The closure always returns a value, so the update cannot fail.
        let elsewhere = self.shares.elsewhere.load(Ordering::Relaxed);
        let _ = self.shares.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            let free = left.saturating_sub(elsewhere);
            let most = wanted.min(free / 4).max(LEAST);
            taken = if most <= free { most } else { 0 };
            Some(left - taken)
        });
        taken
    }

    fn give_back(&self, bytes: u64) {
        self.shares.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("cap", &self.cap).field("left", &self.left()).finish()
    }
}

/// Equal if it is the same cap; an equally large one is different.
impl PartialEq for Meter {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

/// One spender's limit and spending.
#[derive(Clone, Copy, Debug, Default)]
struct Spender {
    /// Bytes reserved so far.
    limit: u64,
    /// The latest slice.
    slice: u64,
    spent: u64,
}

impl Spender {
    fn beginning_at(spent: u64) -> Self {
        Self { limit: spent, slice: 0, spent }
    }

    /// True when half of the latest slice is spent.
    fn runs_short(&self) -> bool {
        self.spent + self.slice / 2 >= self.limit
    }

    /// Reserves another slice; false without one.
    fn extend(&mut self, meter: &Meter) -> bool {
        let taken = meter.take(self.slice.saturating_mul(2));
        if taken > 0 {
            self.limit += taken;
            self.slice = taken;
        }
        taken > 0
    }
}

/// One path's reservations from a cap, in both directions. Dropping it returns the unspent bytes.
#[derive(Debug)]
pub(crate) struct PathMeter {
    meter: Meter,
    own: Spender,
    peer: Spender,
    /// The period of the cap that its reservations count in.
    period: u64,
    /// No slice was left for one of the spenders.
    used_up: bool,
}

impl PathMeter {
    /// A path on which this end and the peer spent this much before counting started.
    pub(crate) fn new(meter: Meter, (own, peer): (u64, u64)) -> Self {
        let (own, peer) = (Spender::beginning_at(own), Spender::beginning_at(peer));
        let period = meter.period();
        let mut path = Self { meter, own, peer, period, used_up: false };
        path.used_up = !path.own.extend(&path.meter) || !path.peer.extend(&path.meter);
        path
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// True when the path may carry no more data.
    pub(crate) fn is_used_up(&self) -> bool {
        self.used_up
    }

    /// Total bytes that this end and the peer may spend.
    pub(crate) fn limits(&self) -> (u64, u64) {
        (self.own.limit, self.peer.limit)
    }

    /// Records this end's total spending; true if the limits changed or the cap is used up.
    pub(crate) fn on_sent(&mut self, spent: u64) -> bool {
        self.follow_period();
        self.own.spent = spent;
        spend(&mut self.own, &self.meter, &mut self.used_up)
    }

    /// Records the peer's total spending; true if the limits changed or the cap is used up.
    pub(crate) fn on_received(&mut self, spent: u64) -> bool {
        self.follow_period();
        self.peer.spent = spent;
        spend(&mut self.peer, &self.meter, &mut self.used_up)
    }

    /// Reserves again if the cap was used up and has started anew since; true if it did.
    pub(crate) fn renew(&mut self) -> bool {
        if !self.used_up || self.period == self.meter.period() {
            return false;
        }
        self.follow_period();
        for spender in [&mut self.own, &mut self.peer] {
            spender.limit = spender.limit.max(spender.spent);
        }
        self.used_up = !self.own.extend(&self.meter) || !self.peer.extend(&self.meter);
        !self.used_up
    }

    fn unspent(&self) -> u64 {
        let unspent = |spender: &Spender| spender.limit.saturating_sub(spender.spent);
        unspent(&self.own) + unspent(&self.peer)
    }

    fn follow_period(&mut self) {
        let period = self.meter.period();
        if period != self.period {
            self.period = period;
            self.meter.carry_over(self.unspent());
        }
    }
}

impl Drop for PathMeter {
    fn drop(&mut self) {
        // A new period has freed the reservations of earlier ones already.
        if self.period == self.meter.period() {
            self.meter.give_back(self.unspent());
        }
    }
}

fn spend(spender: &mut Spender, meter: &Meter, used_up: &mut bool) -> bool {
    if *used_up || !spender.runs_short() {
        return false;
    }
    *used_up = !spender.extend(meter);
    true
}

/// The cost of this many packets with this many bytes in total.
pub(crate) fn cost(bytes: u64, packets: u64) -> u64 {
    bytes + packets * PACKET_COST
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spends a cap over two paths, as fast as slices come; returns the spending of each direction.
    fn spend_all(cap: u64, packet: u64) -> (Meter, Vec<u64>) {
        let meter = Meter::new(cap);
        let mut paths: Vec<PathMeter> = (0..2).map(|_| PathMeter::new(meter.clone(), (0, 0))).collect();
        let mut spent = vec![[0, 0]; 2];
        for _ in 0..cap {
            for (path, spent) in paths.iter_mut().zip(&mut spent) {
                if spent[0] + packet <= path.limits().0 {
                    spent[0] += packet;
                    path.on_sent(spent[0]);
                }
                if spent[1] + packet <= path.limits().1 {
                    spent[1] += packet;
                    path.on_received(spent[1]);
                }
            }
            if paths.iter().all(PathMeter::is_used_up) {
                break;
            }
        }
        (meter, spent.into_iter().flatten().collect())
    }

    #[test]
    fn four_spenders_never_spend_more_than_the_cap_and_leave_little_of_it() {
        for cap in [1_000_000, 10_000_000, 500_000_000] {
            let (meter, spent) = spend_all(cap, 1_520);
            let total: u64 = spent.iter().sum();
            assert!(total <= cap && total + meter.left() <= cap, "{spent:?} of {cap}");
            let wasted = cap - total;
            assert!(wasted <= 4 * LEAST + RESERVE + cap / 10, "{wasted} of {cap} were never spent");
        }
    }

    #[test]
    fn bytes_of_other_programs_are_not_handed_out() {
        let meter = Meter::new(10_000_000).resetting_on(15);
        meter.set_elsewhere(9_900_000);
        assert!(meter.left() < 100_000 && meter.taken() == 0 && meter.resets_on() == Some(15));
        let path = PathMeter::new(meter.clone(), (0, 0));
        assert!(meter.taken() <= 100_000 && !path.is_used_up());
        meter.set_elsewhere(20_000_000);
        assert!(meter.is_used_up() && PathMeter::new(meter.clone(), (0, 0)).is_used_up());
        drop(path);
        meter.begin_anew();
        assert_eq!((meter.taken(), meter.left()), (0, 10_000_000 - RESERVE));
    }

    #[test]
    fn what_a_path_did_not_spend_serves_another() {
        let meter = Meter::new(1 << 20);
        let before = meter.left();
        let mut first = PathMeter::new(meter.clone(), (0, 0));
        assert!(meter.left() < before);
        first.on_sent(1_000);
        drop(first);
        assert_eq!(meter.left(), before - 1_000);
    }

    #[test]
    fn a_path_that_used_its_cap_up_reserves_again_once_the_cap_starts_anew() {
        let meter = Meter::new(Meter::SMALLEST);
        let mut path = PathMeter::new(meter.clone(), (0, 0));
        while !path.is_used_up() {
            path.on_sent(path.limits().0);
        }
        let (own, peer) = path.limits();
        assert!(!path.renew());
        meter.begin_anew();
        assert!(path.renew() && !path.is_used_up() && !path.renew());
        assert!(path.limits().0 > own && path.limits().1 > peer);
    }

    #[test]
    fn a_spender_that_hurries_gets_larger_slices() {
        let meter = Meter::new(1 << 30);
        let mut path = PathMeter::new(meter, (0, 0));
        let mut slices = 0;
        for packet in 1..=10_000 {
            slices += u32::from(path.on_sent(packet * 1_520));
            assert!(packet * 1_520 < path.limits().0, "held up after {packet} packets");
        }
        assert!(slices < 15, "{slices} slices for 15 MB");
    }
}
