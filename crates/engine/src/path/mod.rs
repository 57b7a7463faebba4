//! One path of a session: its packet numbers, round-trip times, pacing, size, proof and health.
//!
//! ```text
//! Validating --answer--> Active <--ack--> Suspect
//!     |                    \                 /
//!     |                     \--χ·RTO silent-/--> Failed --answer--> Active
//!     \--unanswered--> Closing <--abandoned-- any
//! ```
//! A *suspect* path (acknowledgements overdue by the probe timeout, or no use: `trouble`) keeps its window and gets
//! probes only;
//! a *failed* one (mTCP §3.5 [M12]) has lost everything in flight and is probed now and then.

mod bloat;
mod bound;
mod churn;
mod health;
mod marks;
mod mtu;
mod pacer;
mod places;
mod receipt;
mod scoreboard;
mod table;
mod timeouts;
mod trial;
mod trouble;
mod validation;
mod ways_back;

use std::collections::VecDeque;
use std::net::SocketAddr;

use anabranch_cc::RttEstimator;
use anabranch_wire::{PathId, PathUse, Pid, Rate, ResetToken, Span, Time};

pub(crate) use bloat::{Bloat, Others};
pub(crate) use bound::Bound;
pub(crate) use churn::Churn;
pub(crate) use health::{Alarm, Health};
pub(crate) use marks::Marks;
pub(crate) use mtu::MtuSearch;
pub(crate) use pacer::Pacer;
pub(crate) use receipt::Receipt;
pub(crate) use scoreboard::{AckOutcome, Content, Contents, Losses, Scoreboard, SentPacket};
use table::Kept;
pub(crate) use table::Paths;
pub(crate) use trouble::{Answer, Trouble};
pub(crate) use validation::{Allowance, CHALLENGE_BYTES, Challenge};
pub(crate) use ways_back::WaysBack;

use crate::config::Config;
use crate::manager::{IdleReason, PathMeter, Standing};
use crate::route::Route;
use crate::stats::PathStats;
use crate::stream::SentRun;

/// Whether a path carries data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// Challenged, not answered yet.
    Validating,
    /// Carries data.
    Active,
    /// Acknowledgements are overdue, or the path delivers next to nothing; probed until it is well.
    Suspect,
    /// Silent for too long; only probed.
    Failed,
    /// Abandoned; the engine still accepts late packets, though a driver may have dropped the path's keys.
    Closing,
}

impl PathState {
    /// A word for people and for JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Active => "active",
            Self::Suspect => "suspect",
            Self::Failed => "failed",
            Self::Closing => "closing",
        }
    }
}

/// Most answers to challenges that wait on a path.
const MAX_ANSWERS: usize = 4;
/// Most copies that wait on a path.
const MAX_COPIES: usize = 1024;
/// Samples of the round trip that a challenge makes: by its answer, and by the acknowledgement of it.
const FIRST_SAMPLES: u8 = 2;
/// Added to what a first acknowledgement may take, for a packet or two on a slow link.
const FIRST_ANSWER_GRACE: Span = Span::from_millis(10);

/// A path. A packet should touch as little of it as can be, so the fields lie in the order of use: what every packet
/// needs, what arrives, what leaves, acknowledgements, and all that is rare.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Path {
    pub stats: PathStats,
    pub remote_pid: Option<Pid>,
    pub route: Route,
    /// The cap that it draws on.
    pub meter: Option<Box<PathMeter>>,
    pub allowance: Allowance,
    pub id: PathId,
    pub state: PathState,
    /// What this end asks of the peer and keeps to itself.
    pub usage: PathUse,
    /// What is wanted of it here while its cap lasts.
    pub wanted: PathUse,
    /// What it is for, as was told last.
    pub standing: Standing,
    /// Why this end leaves it out although it works.
    pub left_out: Option<IdleReason>,
    pub receipt: Receipt,
    pub marks: Marks,
    pub mtu: MtuSearch,
    // Up to here it is what a packet with data asks for where it arrives, from here on what its acknowledgement asks for.
    pub board: Scoreboard,
    kept: Kept,
    pub health: Health,
    pub ways_back: WaysBack,
    pub delivery_rate: Rate,
    /// The rate at which what is in flight arrives: the delivery rate, but in slow start the largest sample.
    drain_rate: Rate,
    /// Runs to send here although they are in flight elsewhere.
    copies: VecDeque<SentRun>,
    /// What the peer wants, and the number of that wish.
    pub peer_usage: (PathUse, u64),
    /// Answers owed: token, and the route that the challenge came over.
    pub answers: Vec<(u64, Route)>,
    pub challenge: Option<Box<Challenge>>,
    pub pacer: Pacer,
    pub reliability: f64,
    pub weight: f64,
    pub trouble: Trouble,
    // And this is asked for rarely, as is most of what comes before.
    pub bloat: Bloat,
    /// Packets lost in the latest episode that have not arrived after all.
    pub unproved_losses: u64,
    /// Runs that leave here and nowhere else, as soon as they may.
    pub bound: Bound,
    /// Sequence of our own wish.
    pub usage_sequence: u64,
    pub remote_reset: Option<ResetToken>,
    initial_rtt: Span,
    /// Where the peer saw us last.
    pub observed: Option<SocketAddr>,
    /// When a closing path is forgotten.
    pub forget_at: Time,
    /// Bytes that the peer may send on it in all, as it was told.
    pub peer_limit: u64,
    pub report: ReportMemory,
}

/// Sums at the last receiver reports (MPMTP-AR §3.5 [R6]).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReportMemory {
    pub packets: u64,
    pub sent: u64,
    pub count: u32,
}

impl Path {
    /// Bytes in front that a packet with data asks for where it arrives, up to the first of what leaves.
    pub(crate) const FOR_DATA: usize = std::mem::offset_of!(Self, board) + 64;
    /// The same of a packet that acknowledges.
    pub(crate) const FOR_ACKS: usize = std::mem::offset_of!(Self, trouble) + 8;

    pub(crate) fn new(id: PathId, route: Route, config: &Config, now: Time) -> Self {
        Self {
            id,
            route,
            state: PathState::Validating,
            usage: PathUse::Normal,
            wanted: PathUse::Normal,
            standing: Standing::Idle(IdleReason::Proving),
            left_out: None,
            meter: None,
            peer_limit: u64::MAX,
            peer_usage: (PathUse::Normal, 0),
            usage_sequence: 0,
            remote_pid: None,
            remote_reset: None,
            board: Scoreboard::new(config.skip_numbers),
            receipt: Receipt::default(),
            pacer: Pacer::new(now, u64::from(config.mtu.base)),
            mtu: MtuSearch::new(config.mtu.base, config.mtu.max),
            kept: Kept::default(),
            health: Health::default(),
            trouble: Trouble::default(),
            bloat: Bloat::default(),
            challenge: None,
            answers: Vec::new(),
            allowance: Allowance::default(),
            copies: VecDeque::new(),
            bound: Bound::default(),
            ways_back: WaysBack::new(id, config.initial_rtt),
            initial_rtt: config.initial_rtt,
            delivery_rate: Rate::ZERO,
            drain_rate: Rate::ZERO,
            unproved_losses: 0,
            observed: None,
            marks: Marks::new(config.ecn),
            forget_at: Time::NEVER,
            reliability: 1.0,
            weight: 1.0,
            report: ReportMemory::default(),
            stats: PathStats::default(),
        }
    }

    /// Largest packet, in bytes of UDP payload.
    pub(crate) fn size(&self) -> usize {
        usize::from(self.mtu.current())
    }

    /// The round-trip time over the path that acknowledgements come back on now: each return path has an
    /// estimate of its own, or a change of it would look like a change of the path.
    pub(crate) fn rtt(&self) -> &RttEstimator {
        self.ways_back.rtt()
    }

    /// How long a packet sent now takes to arrive: half the round trip without queues, and all that queues, as
    /// they are mostly where the data goes.
    pub(crate) fn one_way(&self) -> Span {
        let rtt = self.rtt();
        rtt.smoothed().saturating_sub(rtt.min() / 2)
    }

    /// Takes in a sample of the delivery rate; `searching` in slow start, where each round trip delivers more than the one before.
    pub(crate) fn note_delivery(&mut self, sample: Rate, app_limited: bool, searching: bool) {
        self.delivery_rate = smooth(self.delivery_rate, sample, app_limited);
        let followed = smooth(self.drain_rate, sample, app_limited);
        self.drain_rate = if searching { followed.max(sample) } else { followed };
    }

    /// Forgets the delivery rate, or takes it for the one that was found otherwise.
    pub(crate) fn set_delivery_rate(&mut self, found: Rate) {
        (self.delivery_rate, self.drain_rate) = (found, found);
    }

    /// How long until the last of so many bytes in flight arrives, at the rate of delivery: the first of them arrived already, and
    /// word of it is on its way back. Zero while no rate is known.
    pub(crate) fn drained_in(&self, bytes: u64) -> Span {
        if self.drain_rate == Rate::ZERO {
            return Span::ZERO;
        }
        self.drain_rate.time_for(bytes).saturating_sub(self.rtt().min() / 2)
    }

    /// Notes a sample of the round trip that came back over `via`; true when those before came back over another.
    pub(crate) fn sample_rtt(&mut self, now: Time, via: PathId, sample: Span, ack_delay: Span) -> bool {
        self.ways_back.sample(now, via, sample, ack_delay)
    }

    /// By when the first data should have been acknowledged, while only a handshake or a challenge was answered: half a
    /// round trip late. The probe timeout would allow for two round trips more, as the variation is not known yet.
    pub(crate) fn first_answer_due(&self, ack_delay: Span) -> Option<Time> {
        if !(1..=FIRST_SAMPLES).contains(&self.rtt().samples()) {
            return None;
        }
        let rtt = self.rtt().smoothed();
        let late = (rtt / 2 + ack_delay).max(ack_delay * 2 + FIRST_ANSWER_GRACE);
        Some(self.board.oldest_sent_at()? + rtt + late)
    }

    /// The path that acknowledgements come back on now.
    pub(crate) fn rtt_via(&self) -> PathId {
        self.ways_back.via()
    }

    /// Forgets what an old address taught.
    pub(crate) fn forget_rtt(&mut self) {
        self.ways_back = WaysBack::new(self.id, self.initial_rtt);
    }

    /// Queues a copy of data in flight elsewhere; the oldest copies make room.
    pub(crate) fn push_copy(&mut self, run: SentRun) {
        if self.copies.len() >= MAX_COPIES {
            self.copies.pop_front();
        }
        self.copies.push_back(run);
    }

    /// True when all of a run waits here to be copied; copies wait in the order of their bytes.
    pub(crate) fn will_copy(&self, run: &SentRun) -> bool {
        let mut next = run.offset;
        for copy in self.copies.iter().filter(|copy| copy.stream == run.stream) {
            if copy.range().contains(&next) {
                next = copy.end();
            }
        }
        next >= run.end() && run.length > 0
    }

    /// Puts back what is left of the copy taken last.
    pub(crate) fn return_copy(&mut self, run: SentRun) {
        self.copies.push_front(run);
    }

    pub(crate) fn pop_copy(&mut self) -> Option<SentRun> {
        self.copies.pop_front()
    }

    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    pub(crate) fn clear_copies(&mut self) {
        self.copies.clear();
    }

    /// Gives back what memory is not in use.
    pub(crate) fn rest(&mut self) {
        self.board.rest();
        self.copies.shrink_to_fit();
        self.answers.shrink_to_fit();
    }

    /// Owes an answer to a challenge.
    pub(crate) fn owe_answer(&mut self, token: u64, route: Route) {
        if self.answers.len() < MAX_ANSWERS && !self.answers.contains(&(token, route)) {
            self.answers.push((token, route));
        }
    }

    /// From when on a challenge, or an answer to one, may be due.
    fn proof_at(&self) -> Time {
        if !self.answers.is_empty() {
            return Time::ZERO;
        }
        let allowed = |challenge: &&Challenge| challenge.is_allowed() && self.allowance.left() > 0;
        self.challenge.as_deref().filter(allowed).map_or(Time::NEVER, |challenge| challenge.due)
    }

    /// How good the path is for data: [`Self::BEST`] for a normal one, less for a backup, a metered one and a suspect, 0 for
    /// none.
    pub(crate) fn grade(&self) -> u8 {
        match (self.state, self.effective_use()) {
            _ if !self.is_reachable() || self.left_out.is_some() => 0,
            (PathState::Active, PathUse::Normal) => Self::BEST,
            (PathState::Active, PathUse::Backup) => 3,
            (PathState::Active, PathUse::Metered) => 2,
            (PathState::Suspect, PathUse::Normal | PathUse::Backup | PathUse::Metered) => 1,
            _ => 0,
        }
    }

    /// The grade of a path that carries data whatever the others do.
    pub(crate) const BEST: u8 = 4;

    /// True when the largest packet that passes is looked for: not where bytes cost, or none should be sent.
    pub(crate) fn searches_mtu(&self) -> bool {
        let wanted = self.effective_use() <= PathUse::Backup && self.left_out.is_none();
        self.state == PathState::Active && wanted && self.rtt().has_sample()
    }

    /// True when packets can be addressed at all.
    pub(crate) fn is_reachable(&self) -> bool {
        self.remote_pid.is_some()
    }

    /// How the path is to be used: the more careful of both ends' wishes.
    pub(crate) fn effective_use(&self) -> PathUse {
        self.usage.max(self.peer_usage.0)
    }
}

/// Follows the delivery rate slowly, and not at all when the application was what limited it.
fn smooth(known: Rate, sample: Rate, app_limited: bool) -> Rate {
    let (known_bits, sample_bits) = (known.as_bits(), sample.as_bits());
    if known_bits == 0 {
        return sample;
    }
    if app_limited && sample_bits < known_bits {
        return known;
    }
    Rate::from_bits(known_bits / 8 * 7 + sample_bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_slow_start_what_is_in_flight_is_taken_to_arrive_at_the_largest_rate_seen() {
        let route = Route { socket: 0, remote: "192.0.2.1:4433".parse().unwrap() };
        let config = Config { initial_rtt: Span::from_millis(80), ..Config::default() };
        let mut path = Path::new(PathId(0), route, &config, Time::ZERO);
        assert_eq!(path.drained_in(100_000), Span::ZERO, "nothing is known");
        for mbit in [1.0, 2.0, 4.0, 8.0] {
            path.note_delivery(Rate::from_mbit(mbit), false, true);
        }
        assert_eq!(path.drained_in(100_000), Span::from_millis(100 - 40));
        assert!(path.delivery_rate < Rate::from_mbit(3.0), "{:?}", path.delivery_rate);
        for _ in 0..50 {
            path.note_delivery(Rate::from_mbit(4.0), false, false);
        }
        let (least, most) = (Span::from_millis(200 - 42), Span::from_millis(200 - 40));
        assert!((least..=most).contains(&path.drained_in(100_000)), "{:?}", path.drained_in(100_000));
    }
}
