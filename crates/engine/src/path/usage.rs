//! The use of a path: the wishes of both ends, and the byte cap of the path.

use anabranch_wire::{PathId, PathRate, PathStatus, PathUse, Rate, VARINT_MAX};

use super::state::PathState;
use crate::manager::{Fault, IdleReason, Meter, PathMeter, Standing};

/// The wishes of this end for a path.
#[derive(Debug)]
pub(crate) struct Usage {
    /// The cap that the path's bytes count against.
    meter: Option<Box<PathMeter>>,
    announced: PathUse,
    /// The use that this end wants while the cap is not used up.
    wanted: PathUse,
    /// Why this end leaves the path out although it works.
    left_out: Option<IdleReason>,
    /// The primary paths are full: an overflow path is used like them.
    joins: bool,
    /// The standing reported last.
    standing: Standing,
}

/// The wishes that the ends have announced to each other for a path.
#[derive(Debug)]
pub(crate) struct Wishes {
    /// The use that the peer wants, with the sequence number of its wish.
    peer: (PathUse, u64),
    /// Sequence number of this end's wish.
    sequence: u64,
    /// Bytes in all that the peer may send on the path.
    peer_limit: u64,
    /// Most paths have no limit.
    rates: Option<Box<Rates>>,
}

/// The highest rates that the ends have set for a path (PSMC [T8]). Each end sends at the lower one, so neither can raise
/// that of the other.
#[derive(Debug, Default)]
struct Rates {
    own: Option<Rate>,
    /// Sequence number of this end's wish.
    sequence: u64,
    peer: Option<Rate>,
    /// Sequence number of the peer's wish.
    heard: u64,
}

/// The lowest rate that is kept to: a packet takes some seconds.
const LEAST_RATE: Rate = Rate::from_bits(1_000);

impl Default for Usage {
    fn default() -> Self {
        Self {
            meter: None,
            announced: PathUse::Normal,
            wanted: PathUse::Normal,
            left_out: None,
            joins: false,
            standing: Standing::Idle(IdleReason::Proving),
        }
    }
}

impl Default for Wishes {
    fn default() -> Self {
        Self { peer: (PathUse::Normal, 0), sequence: 0, peer_limit: u64::MAX, rates: None }
    }
}

impl Usage {
    #[inline]
    pub(crate) fn announced(&self) -> PathUse {
        self.announced
    }

    #[inline]
    pub(crate) fn left_out(&self) -> Option<IdleReason> {
        self.left_out
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    #[inline]
    pub(crate) fn is_metered(&self) -> bool {
        self.meter.is_some()
    }

    pub(crate) fn meter(&self) -> Option<&Meter> {
        self.meter.as_ref().map(|meter| meter.meter())
    }

    /// The size of the path's cap once the cap is used up.
    pub(crate) fn used_up_cap(&self) -> Option<u64> {
        self.meter.as_ref().filter(|meter| meter.is_used_up()).map(|meter| meter.meter().cap())
    }

    /// Bytes in all that this end and the peer may send.
    pub(super) fn limits(&self) -> (u64, u64) {
        self.meter.as_ref().map_or((u64::MAX, u64::MAX), |meter| meter.limits())
    }

    /// Sets or removes the cap, after both ends have `spent` this much.
    pub(super) fn set_meter(&mut self, meter: Option<Meter>, spent: (u64, u64)) -> bool {
        let changes = self.meter() != meter.as_ref();
        if changes {
            self.meter = meter.map(|meter| Box::new(PathMeter::new(meter, spent)));
        }
        changes
    }

    /// Records this end's total spending; true if the path took another slice of its cap or used it up.
    pub(super) fn on_sent(&mut self, spent: u64) -> bool {
        self.meter.as_mut().is_some_and(|meter| meter.on_sent(spent))
    }

    /// Records the peer's total spending; true as for [`Self::on_sent`].
    pub(super) fn on_received(&mut self, spent: u64) -> bool {
        self.meter.as_mut().is_some_and(|meter| meter.on_received(spent))
    }

    /// Reserves again from a used-up cap that has started anew; true if it did.
    pub(super) fn renew_cap(&mut self) -> bool {
        self.meter.as_mut().is_some_and(|meter| meter.renew())
    }

    pub(crate) fn set_wanted(&mut self, wanted: PathUse) {
        self.wanted = wanted;
    }

    /// Works out the use to announce to the peer; true when it differs from the one announced before.
    pub(super) fn renew(&mut self) -> bool {
        let used_up = self.meter.as_ref().is_some_and(|meter| meter.is_used_up());
        let usage = if used_up { PathUse::Standby } else { self.wanted };
        std::mem::replace(&mut self.announced, usage) != usage
    }

    #[inline]
    pub(crate) fn joins(&self) -> bool {
        self.joins
    }

    /// Uses an overflow path like a primary one, or keeps it again.
    pub(crate) fn set_joins(&mut self, joins: bool) {
        self.joins = joins;
    }

    /// Leaves the path out, or readmits it; true if that changed.
    pub(crate) fn leave_out(&mut self, reason: Option<IdleReason>) -> bool {
        std::mem::replace(&mut self.left_out, reason) != reason
    }

    /// Sets the path's standing; true if it changed.
    pub(super) fn stand(&mut self, standing: Standing) -> bool {
        std::mem::replace(&mut self.standing, standing) != standing
    }

    /// Why a path in this state, with this use by both ends and this fault, carries nothing.
    pub(super) fn idle_reason(
        &self,
        state: PathState,
        usage: PathUse,
        fault: Option<Fault>,
    ) -> Option<IdleReason> {
        Some(match (state, usage) {
            (PathState::Validating, _) => IdleReason::Proving,
            (PathState::Closing, _) => IdleReason::Closing,
            (PathState::Active, PathUse::Normal) if self.left_out.is_none() => return None,
            (PathState::Active, PathUse::Overflow) if self.joins && self.left_out.is_none() => return None,
            (state, usage) => match (self.used_up_cap(), self.left_out) {
                // Once the cap is reached the ends do not answer each other: the cap explains the silence.
                (Some(cap), _) => IdleReason::CapReached { cap },
                _ if state == PathState::Failed => IdleReason::Failed,
                _ if state == PathState::Suspect => fault.map_or(IdleReason::Overdue, IdleReason::Held),
                (None, Some(reason)) if usage == PathUse::Normal => reason,
                _ => IdleReason::Kept(usage),
            },
        })
    }
}

impl Wishes {
    #[inline]
    pub(super) fn peer_use(&self) -> PathUse {
        self.peer.0
    }

    /// Stores the peer's wish; false if a newer one arrived before.
    pub(crate) fn hear(&mut self, wish: (PathUse, u64)) -> bool {
        let newer = wish.1 > self.peer.1;
        if newer {
            self.peer = wish;
        }
        newer
    }

    /// Numbers another wish of this end.
    pub(super) fn number_next(&mut self) {
        self.sequence += 1;
    }

    /// Sets the peer's total limit; true if it changed.
    pub(super) fn set_peer_limit(&mut self, limit: u64) -> bool {
        std::mem::replace(&mut self.peer_limit, limit) != limit
    }

    /// The peer's total limit, as encoded on the wire.
    pub(crate) fn peer_limit(&self) -> u64 {
        self.peer_limit.min(VARINT_MAX)
    }

    /// Sets this end's highest rate; true if it changed.
    pub(crate) fn set_rate(&mut self, rate: Option<Rate>) -> bool {
        if rate.is_none() && self.rates.is_none() {
            return false;
        }
        let rates = self.rates.get_or_insert_default();
        let changes = std::mem::replace(&mut rates.own, rate) != rate;
        rates.sequence += u64::from(changes);
        changes
    }

    /// Stores the peer's highest rate; false if a newer one arrived before.
    pub(crate) fn hear_rate(&mut self, wish: PathRate) -> bool {
        let rates = self.rates.get_or_insert_default();
        let is_newer = wish.sequence > rates.heard;
        if is_newer {
            rates.heard = wish.sequence;
            rates.peer = (wish.bits > 0).then(|| Rate::from_bits(wish.bits).max(LEAST_RATE));
        }
        is_newer
    }

    /// The highest rate for packets to the peer.
    #[inline]
    pub(crate) fn rate_limit(&self) -> Option<Rate> {
        let rates = self.rates.as_ref()?;
        rates.own.into_iter().chain(rates.peer).min()
    }

    /// The frame that announces this end's highest rate.
    pub(crate) fn rate(&self, path: PathId) -> PathRate {
        let (own, sequence) = self.rates.as_ref().map_or((None, 0), |rates| (rates.own, rates.sequence));
        PathRate { path, sequence, bits: own.map_or(0, Rate::as_bits).min(VARINT_MAX) }
    }

    /// The frame that announces this end's wish.
    pub(super) fn status(&self, path: PathId, usage: PathUse) -> PathStatus {
        PathStatus { path, sequence: self.sequence, usage }
    }
}
