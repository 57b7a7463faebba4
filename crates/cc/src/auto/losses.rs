//! Whether the losses of a path are congestion, judged by evidence.
//!
//! A full queue loses packets at its longest delay, always at about the same window, and the more the faster the path
//! is driven. Losses on the wire come at any delay and any window, as a constant share. So a loss is evidence
//!
//! - *against* congestion, if there was no queue although a quarter more than the window had arrived in an earlier
//!   round trip, or if the queue was shorter than half of the longest recent one;
//! - *for* congestion, if the queue was longer than that half;
//! - *for* congestion, strongly, if a round trip lost much more than the usual share: a short queue or a policer.
//!
//! The balance is bounded, so it turns within a few losses.

use anabranch_wire::{Span, Time};

use super::recent::Largest;

/// The balance at which losses are no congestion, and the most it reaches.
const VERDICT: i32 = 3;
const MOST: i32 = 6;
/// The weight of evidence for congestion.
const QUEUED: i32 = 2;
/// The weight of the past in the usual share of losses, after each round trip.
const FADING: f64 = 7.0 / 8.0;
/// The packets that are left of a usual loss after 40 round trips.
const CEASED: f64 = 1.0 / 192.0;
/// Standard deviations, and share of the window, by which a round trip exceeds the usual losses.
const DEVIATIONS: f64 = 4.0;
const EXCESS: f64 = 0.03;
/// Lost packets of a round trip that are never an excess.
const FEW: f64 = 2.0;
/// No link that is worth using loses more than this.
const WORST: f64 = 0.08;
/// A window this much smaller than what arrived in a recent round trip shows that a loss has another cause.
const SMALLER: f64 = 0.8;
/// The share of a round trip that slow start may lose on the wire.
const IN_SLOW_START: f64 = 0.03;

/// A loss, as the judge sees it. Volumes are in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) window: f64,
    pub(super) mss: f64,
    /// Bytes that the path delivers in its least round trip.
    pub(super) proven: f64,
    pub(super) slow_start: bool,
    /// The least round trip, the queueing delay before the loss, and the delay that counts as none.
    pub(super) base: Span,
    pub(super) queue: Span,
    pub(super) noise: Span,
}

/// The evidence on one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    balance: i32,
    /// Whether the current round trip has given its evidence.
    judged: bool,
    /// Bytes lost in the current round trip, and loss reports.
    lost: f64,
    reports: f64,
    /// Fading sums of bytes lost, of bytes sent, and of loss reports.
    usual: [f64; 3],
    /// Bytes lost and sent since the path explores.
    explored: [f64; 2],
    /// The longest recent round trip, in seconds.
    longest: Largest,
}

impl Losses {
    /// True if losses are not congestion.
    pub(super) fn are_random(&self) -> bool {
        self.balance >= VERDICT
    }

    /// Ends a round trip in which `acked` bytes arrived, the quickest after `least`. While the path `explores`, its losses
    /// are not usual.
    pub(super) fn end_round(&mut self, now: Time, (acked, least): (f64, Span), explores: bool) {
        let (lost, reports) = (std::mem::take(&mut self.lost), std::mem::take(&mut self.reports));
        self.judged = false;
        self.longest.add(now, least.as_secs_f64());
        if explores {
            self.explored[0] += lost;
            self.explored[1] += acked + lost;
            return;
        }
        self.explored = [0.0; 2];
        self.usual = self.usual.map(|sum| sum * FADING);
        self.usual[0] += lost;
        self.usual[1] += acked + lost;
        self.usual[2] += reports;
    }

    /// True after dozens of round trips without a loss.
    pub(super) fn have_ceased(&self, mss: f64) -> bool {
        self.usual[0] < CEASED * mss
    }

    /// The longest recent round trip.
    pub(super) fn longest(&self) -> Span {
        Span::from_secs_f64(self.longest.get())
    }

    /// Records lost bytes, reported together.
    pub(super) fn on_lost(&mut self, bytes: f64) {
        self.lost += bytes;
        self.reports += 1.0;
    }

    /// Judges a loss that is recorded already; true if it is no congestion. Nothing speaks against congestion while `trusted`
    /// is false.
    pub(super) fn spare(&mut self, loss: &Loss, trusted: bool) -> bool {
        if self.is_excess(loss) {
            self.refute();
            return false;
        }
        let has_queue = loss.queue > loss.noise;
        if loss.slow_start {
            self.weigh(i32::from(!has_queue && self.balance < VERDICT - 1));
            return !has_queue;
        }
        let longest = self.longest.get() - loss.base.as_secs_f64();
        let far = loss.queue.as_secs_f64() * 2.0 < longest;
        let small = loss.window < SMALLER * loss.proven;
        let evidence = match has_queue {
            false if small => 1,
            true if far => 1,
            true if !self.are_random() => -QUEUED,
            _ => 0,
        };
        self.weigh(if trusted { evidence } else { evidence.min(0) });
        self.are_random()
    }

    /// Records a loss behind another flow's queue.
    pub(super) fn congested(&mut self) {
        self.weigh(-QUEUED);
    }

    /// Forgets all evidence against congestion.
    pub(super) fn refute(&mut self) {
        self.balance = 0;
        self.judged = true;
    }

    fn weigh(&mut self, evidence: i32) {
        if !std::mem::replace(&mut self.judged, true) {
            self.balance = (self.balance + evidence).clamp(0, MOST);
        }
    }

    /// True if the path lost more than usual since it explores.
    pub(super) fn are_more(&self, loss: &Loss) -> bool {
        let (share, report) = self.usual_share(loss.mss);
        let [lost, sent] = self.explored;
        let usual = share * (sent + loss.window);
        lost + self.lost > usual + FEW * libm::sqrt(usual * report) + FEW * loss.mss
    }

    /// True if the round trip lost much more than usual.
    fn is_excess(&self, loss: &Loss) -> bool {
        if loss.slow_start {
            return self.lost > IN_SLOW_START * loss.window + FEW * loss.mss;
        }
        let (share, report) = self.usual_share(loss.mss);
        let usual = share * loss.window;
        let deviation = libm::sqrt(usual * report);
        share > WORST || self.lost > usual + DEVIATIONS * deviation + EXCESS * loss.window + FEW * loss.mss
    }

    /// The usual share of losses, and the bytes of one report.
    fn usual_share(&self, mss: f64) -> (f64, f64) {
        let [lost, sent, reports] = self.usual;
        let reports = reports + self.reports;
        let share = if sent > 0.0 { lost / sent } else { 0.0 };
        (share, if reports > 0.0 { (lost / reports).max(mss) } else { mss })
    }
}
