//! One path of a session: its packet numbers, round-trip times, pacing, size, proof and health.
//!
//! [`Path`] is one path. [`Paths`] has all paths of a session, with an index of the values needed for every packet.
//! Fields are private to this folder. A session changes a path through [`Paths::edit`], which marks the index stale, or
//! through methods of [`Paths`] that change only values outside the index.
//!
//! | file | contents |
//! |---|---|
//! | `state` | the states of a path and their transitions |
//! | `table` | all paths, indexed |
//! | `scoreboard` | packets sent: acknowledged, lost, in flight |
//! | `receipt` | packets received, and acknowledgements due |
//! | `health`, `trouble`, `bloat`, `trial` | when a path is suspected, failed, held back, tried again and readmitted |
//! | `lull` | a silence after much data, at the end that only acknowledges |
//! | `proof`, `validation` | challenges, their answers, and limits before an answer |
//! | `return_paths`, `delivery`, `mtu`, `marks`, `feedback` | measurements: round trips, rates, packet size, ECN, reports |
//! | `pacer`, `queued` | when packets are sent, and runs of streams that wait for this path |
//! | `usage` | how both ends want the path to be used |
//! | `churn`, `counters` | limits for the peer's new paths; counters |

mod address;
mod bloat;
mod churn;
mod counters;
mod delivery;
mod feedback;
mod health;
mod lull;
mod marks;
mod mtu;
mod pacer;
mod place_set;
mod proof;
mod queued;
mod receipt;
mod return_paths;
mod scoreboard;
mod state;
mod table;
mod timeouts;
mod trial;
mod trouble;
mod usage;
mod validation;

use anabranch_cc::RttEstimator;
use anabranch_wire::{PathId, PathStatus, PathUse, Pid, Rate, ResetToken, Span, Time};

use address::Address;
pub(crate) use bloat::{Bloat, Others};
pub(crate) use churn::Churn;
pub use counters::PathStats;
use delivery::Delivery;
use feedback::Feedback;
pub(crate) use health::{Alarm, Health};
pub(crate) use lull::{Look, Lull};
pub(crate) use marks::Marks;
pub(crate) use mtu::MtuSearch;
use pacer::Pacer;
use proof::Proof;
use queued::Queued;
pub(crate) use receipt::{Receipt, Received};
use return_paths::ReturnPaths;
pub(crate) use scoreboard::{AckOutcome, Content, Contents, Losses, Scoreboard, SentPacket};
pub(crate) use state::PathEvent;
pub use state::PathState;
use table::Cached;
pub(crate) use table::{Departure, Paths, Seen};
pub(crate) use trouble::{Answer, Trouble};
use usage::{Usage, Wishes};
pub(crate) use validation::{Allowance, CHALLENGE_BYTES, Challenge};

use crate::config::Config;
use crate::manager::{Meter, Standing};
use crate::route::Route;

/// A path.
///
/// Fields are in order of use, so that a packet touches few cache lines: first those for every packet, then those for
/// receiving, sending and acknowledgements, then rare ones.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Path {
    stats: PathStats,
    address: Address,
    allowance: Allowance,
    id: PathId,
    state: PathState,
    usage: Usage,
    receipt: Receipt,
    marks: Marks,
    mtu: MtuSearch,
    // A packet with data needs the fields before this one, its acknowledgement those after it.
    board: Scoreboard,
    cached: Cached,
    health: Health,
    returns: ReturnPaths,
    delivery: Delivery,
    queued: Queued,
    pacer: Pacer,
    wishes: Wishes,
    proof: Proof,
    trouble: Trouble,
    feedback: Feedback,
}

impl Path {
    /// The first bytes, which a packet with data needs, up to the first of the sending fields.
    pub(crate) const FOR_DATA: usize = std::mem::offset_of!(Self, board) + 64;
    /// The first bytes, which a packet with acknowledgements needs.
    pub(crate) const FOR_ACKS: usize = std::mem::offset_of!(Self, trouble) + 8;

    pub(crate) fn new(id: PathId, route: Route, config: &Config, now: Time) -> Self {
        Self {
            stats: PathStats::default(),
            address: Address { remote_pid: None, route },
            allowance: Allowance::default(),
            id,
            state: PathState::Validating,
            usage: Usage::default(),
            receipt: Receipt::default(),
            marks: Marks::new(config.ecn),
            mtu: MtuSearch::new(config.mtu.base, config.mtu.max),
            board: Scoreboard::new(config.acks.skip_numbers),
            cached: Cached::default(),
            health: Health::default(),
            returns: ReturnPaths::new(id, config.initial_rtt),
            delivery: Delivery::default(),
            queued: Queued::default(),
            pacer: Pacer::new(now, u64::from(config.mtu.base)),
            wishes: Wishes::default(),
            proof: Proof::default(),
            trouble: Trouble::default(),
            feedback: Feedback::default(),
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> PathId {
        self.id
    }

    #[inline]
    pub(crate) fn route(&self) -> Route {
        self.address.route
    }

    #[inline]
    pub(crate) fn state(&self) -> PathState {
        self.state
    }

    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.state == PathState::Active
    }

    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.state == PathState::Closing
    }

    #[inline]
    pub(crate) fn stats(&self) -> &PathStats {
        &self.stats
    }

    #[inline]
    pub(crate) fn remote_pid(&self) -> Option<Pid> {
        self.address.remote_pid
    }

    #[inline]
    pub(crate) fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    #[inline]
    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    #[inline]
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }

    #[inline]
    pub(crate) fn mtu(&self) -> &MtuSearch {
        &self.mtu
    }

    #[inline]
    pub(crate) fn board(&self) -> &Scoreboard {
        &self.board
    }

    #[inline]
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    #[inline]
    pub(crate) fn returns(&self) -> &ReturnPaths {
        &self.returns
    }

    #[inline]
    pub(crate) fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    pub(crate) fn queued(&self) -> &Queued {
        &self.queued
    }

    pub(crate) fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    #[inline]
    pub(crate) fn proof(&self) -> &Proof {
        &self.proof
    }

    #[inline]
    pub(crate) fn trouble(&self) -> &Trouble {
        &self.trouble
    }

    #[inline]
    pub(crate) fn feedback(&self) -> &Feedback {
        &self.feedback
    }

    /// Moves the path to the state after `event`; false if the event has no effect in its state.
    pub(crate) fn transition(&mut self, event: PathEvent) -> bool {
        let after = self.state.after(event);
        self.state = after.unwrap_or(self.state);
        after.is_some()
    }

    /// Abandons the path: it sends no more requests or copies, and late packets count until `forget_at`. False if it
    /// was already closing.
    pub(crate) fn abandon(&mut self, forget_at: Time) -> bool {
        let begins = self.transition(PathEvent::Abandoned);
        if begins {
            self.health.forget_path_at(forget_at);
            self.proof.clear();
            self.queued.clear_copies();
        }
        begins
    }

    /// Marks the path as failed and schedules its probes.
    pub(crate) fn fail(&mut self, now: Time) {
        self.transition(PathEvent::Silent);
        self.stats.failures += 1;
        self.queued.clear_copies();
        self.delivery.set_rate(Rate::ZERO);
        self.trouble.on_silence(now, self.health.timeouts().max(2));
        self.health.on_failure(now, self.returns.rtt().smoothed());
    }

    /// Uses the PID that the peer assigned to the path.
    pub(crate) fn set_remote_pid(&mut self, pid: Pid, reset_token: ResetToken) {
        self.address.remote_pid = Some(pid);
        self.proof.set_reset_token(reset_token);
    }

    /// Stops sending on the path.
    pub(crate) fn drop_remote_pid(&mut self) {
        self.address.remote_pid = None;
    }

    pub(crate) fn set_route(&mut self, route: Route) {
        self.address.route = route;
    }

    pub(crate) fn stats_mut(&mut self) -> &mut PathStats {
        &mut self.stats
    }

    pub(crate) fn usage_mut(&mut self) -> &mut Usage {
        &mut self.usage
    }

    pub(crate) fn allowance_mut(&mut self) -> &mut Allowance {
        &mut self.allowance
    }

    pub(crate) fn proof_mut(&mut self) -> &mut Proof {
        &mut self.proof
    }

    pub(crate) fn health_mut(&mut self) -> &mut Health {
        &mut self.health
    }

    pub(crate) fn trouble_mut(&mut self) -> &mut Trouble {
        &mut self.trouble
    }

    pub(crate) fn mtu_mut(&mut self) -> &mut MtuSearch {
        &mut self.mtu
    }

    pub(crate) fn marks_mut(&mut self) -> &mut Marks {
        &mut self.marks
    }

    pub(crate) fn board_mut(&mut self) -> &mut Scoreboard {
        &mut self.board
    }

    pub(crate) fn delivery_mut(&mut self) -> &mut Delivery {
        &mut self.delivery
    }

    pub(crate) fn queued_mut(&mut self) -> &mut Queued {
        &mut self.queued
    }

    pub(crate) fn pacer_mut(&mut self) -> &mut Pacer {
        &mut self.pacer
    }

    pub(crate) fn feedback_mut(&mut self) -> &mut Feedback {
        &mut self.feedback
    }

    /// The parts that an acknowledgement changes together.
    pub(crate) fn acknowledged_parts(&mut self) -> (&mut Scoreboard, &mut MtuSearch, &mut Trouble) {
        (&mut self.board, &mut self.mtu, &mut self.trouble)
    }

    /// Largest packet in bytes of UDP payload.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        usize::from(self.mtu.current())
    }

    /// The round-trip time over the current return path.
    #[inline]
    pub(crate) fn rtt(&self) -> &RttEstimator {
        self.returns.rtt()
    }

    /// Time until a packet sent now arrives: half the round trip without queues, plus all queueing, which is mostly in
    /// the direction of the data.
    pub(crate) fn one_way(&self) -> Span {
        let rtt = self.rtt();
        rtt.smoothed().saturating_sub(rtt.min() / 2)
    }

    /// Time until the last of `bytes` in flight has arrived; zero while no rate is known.
    pub(crate) fn drained_in(&self, bytes: u64) -> Span {
        self.delivery.drained_in(bytes, self.rtt().min() / 2)
    }

    /// Adds a round-trip sample that returned over `via`; true if earlier samples returned over another path.
    pub(crate) fn sample_rtt(&mut self, now: Time, via: PathId, sample: Span, ack_delay: Span) -> bool {
        self.returns.sample(now, via, sample, ack_delay)
    }

    /// Forgets the round-trip samples.
    pub(crate) fn forget_rtt(&mut self) {
        self.returns.forget(self.id);
    }

    /// Forgets all measurements after a change of address: they belong to the old network. A probe then takes the first
    /// sample, and readmits a path that was held.
    pub(crate) fn forget_measurements(&mut self) {
        self.forget_rtt();
        self.delivery.set_rate(Rate::ZERO);
        self.trouble = Trouble::default();
        self.health.on_nothing_out();
        self.health.want_probe();
    }

    /// When the first data is overdue, while only a handshake or a challenge was answered.
    pub(crate) fn first_answer_due(&self, ack_delay: Span) -> Option<Time> {
        let patience = self.returns.first_patience(ack_delay)?;
        Some(self.board.oldest_sent_at()? + patience)
    }

    /// The window to restore after trouble, once; see [`Trouble::take_recovery`].
    pub(crate) fn take_recovery(&mut self, now: Time, known: (u64, Span)) -> Option<u64> {
        self.trouble.take_recovery(now, known, &self.returns)
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.board.shrink();
        self.queued.shrink();
        self.proof.shrink();
    }

    /// The grade of the path for data: [`Self::BEST`] for a normal one, 0 for one that carries none.
    pub(crate) fn grade(&self) -> u8 {
        match (self.state, self.effective_use()) {
            _ if !self.is_reachable() || self.usage.left_out().is_some() => 0,
            (PathState::Active, PathUse::Normal) => Self::BEST,
            (PathState::Active, PathUse::Overflow) if self.usage.joins() => Self::BEST,
            (PathState::Active, PathUse::Overflow) => 4,
            (PathState::Active, PathUse::Backup) => 3,
            (PathState::Active, PathUse::Metered) => 2,
            (PathState::Suspect, used) if used < PathUse::Standby => 1,
            _ => 0,
        }
    }

    /// The grade of a path that carries data regardless of the others.
    pub(crate) const BEST: u8 = 5;

    /// True if larger packets are tried: not on metered or unused paths.
    pub(crate) fn searches_mtu(&self) -> bool {
        let wanted = self.effective_use() <= PathUse::Backup && self.usage.left_out().is_none();
        self.is_active() && wanted && self.rtt().has_sample()
    }

    /// True if packets can be addressed.
    #[inline]
    pub(crate) fn is_reachable(&self) -> bool {
        self.address.remote_pid.is_some()
    }

    /// True if the path may carry data once better ones do not work.
    pub(crate) fn can_stand_in(&self) -> bool {
        self.is_reachable() && self.effective_use() < PathUse::Standby
    }

    /// The use of the path: the more restrictive of both ends' wishes.
    #[inline]
    pub(crate) fn effective_use(&self) -> PathUse {
        self.usage.announced().max(self.wishes.peer_use())
    }

    /// The wishes of both ends for the path.
    #[inline]
    pub(crate) fn wishes(&self) -> &Wishes {
        &self.wishes
    }

    pub(crate) fn wishes_mut(&mut self) -> &mut Wishes {
        &mut self.wishes
    }

    /// Updates the use to announce to the peer; true if it changed.
    pub(crate) fn renew_wish(&mut self) -> bool {
        let renewed = self.usage.renew();
        if renewed {
            self.wishes.number_next();
        }
        renewed
    }

    /// The frame that announces this end's wish.
    pub(crate) fn status(&self) -> PathStatus {
        self.wishes.status(self.id, self.usage.announced())
    }

    /// Sets or removes the cap of the path; true if it changed.
    pub(crate) fn set_meter(&mut self, meter: Option<Meter>) -> bool {
        let spent = self.spent();
        self.usage.set_meter(meter, spent)
    }

    /// Applies the rest of the cap; true if the peer's limit changed.
    pub(crate) fn renew_limits(&mut self) -> bool {
        let (own, peer) = self.usage.limits();
        self.allowance.limit_here(own);
        self.wishes.set_peer_limit(peer)
    }

    /// Bytes that count against caps: this end's, and the peer's.
    fn spent(&self) -> (u64, u64) {
        (self.allowance.spent(), self.spent_by_peer())
    }

    fn spent_by_peer(&self) -> u64 {
        self.receipt.spent(self.size() as u64)
    }

    /// The use of the path, or why it carries nothing; `is_usable` when the scheduler may choose it.
    pub(crate) fn standing(&self, is_usable: bool) -> Standing {
        match self.usage.idle_reason(self.state, self.effective_use(), self.trouble.fault()) {
            None => Standing::InUse,
            Some(_) if is_usable => Standing::StandsIn,
            Some(reason) => Standing::Idle(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::Fault;

    #[test]
    fn a_held_path_is_probed_without_a_hold_after_a_change_of_address() {
        let route = Route { socket: 0, remote: "192.0.2.1:443".parse().unwrap() };
        let mut path = Path::new(PathId(2), route, &Config::default(), Time::ZERO);
        path.trouble_mut().hold(Time::ZERO, Fault::Stalls);
        path.health_mut().on_sent(Time::ZERO);
        path.forget_measurements();
        assert!(!path.trouble().is_held() && path.health().wants_probe());
        let sample = Some(Span::from_secs(1));
        assert!(path.trouble_mut().is_well(Time::ZERO, sample, Span::ZERO), "any round trip is usual");
    }
}
