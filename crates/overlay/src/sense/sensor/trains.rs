//! A sensor's packet trains: which link gets the next one, and when; and the cost of the sessions that trains and
//! probes need.

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};

use super::{ACK, CARS_ACKNOWLEDGED, Measured, PROBE_COST, Sensor};
use crate::sense::bucket::Bucket;
use crate::sense::link::State;
use crate::sense::message::{CAR, Seen};
use crate::sense::train::Train;

/// A train without a report counts as over after this time.
const TRAIN_TAKES: Span = Span::from_secs(15);
/// How long bytes for trains are saved up: enough for the longest.
pub(super) const TRAINS_SAVED: u64 = 420;

/// Size of a handshake message as an IPv6 packet.
const HANDSHAKE: u64 = 40 + 8 + 1_200;
/// Bytes of a session for the node that opens it: the first message without and with a cookie, the last one, and the
/// close.
pub const CALL_COST: u64 = 2 * HANDSHAKE + 2 * ACK;
/// Bytes of a session for the other node: the cookie, the second message, and acknowledgements of the two at the end.
pub const CALLED_COST: u64 = HANDSHAKE + 3 * ACK;
/// Additional bytes of an attempt that is not answered: the first message repeated.
const UNANSWERED_COST: u64 = 2 * HANDSHAKE;
/// No session is opened while trains and sessions exceed the budget by more than this. At its start a node opens
/// sessions to all its neighbours, and as many nodes open one to it.
const MOST_OWED: u64 = 24 * CALL_COST;
/// Bytes that one node's trains and sessions may cost this one: two trains each ten minutes.
const CALLS_OF_ONE: u64 = 2 * (CALLED_COST + 160 * ACK / CARS_ACKNOWLEDGED);
const CALLS_FOR: Span = Span::from_secs(600);

/// Bytes of a train: its session, its packets, its end, and the acknowledgement of the report.
fn train_cost(packets: u16) -> u64 {
    CALL_COST + u64::from(packets) * CAR + PROBE_COST
}

/// Bytes that one node's trains and sessions have cost. The excess over its share is not charged, so it delays no one
/// else.
#[derive(Clone, Debug)]
pub(super) struct Calls(Bucket);

impl Calls {
    pub(super) fn new(now: Time) -> Self {
        Self(Bucket::new(Rate::from_bytes_in(CALLS_OF_ONE, CALLS_FOR), CALLS_FOR, now))
    }
}

/// A train on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) to: PublicKey,
    number: u32,
    is_paced: bool,
    limit: Option<Rate>,
    until: Time,
}

impl Sensor {
    /// Sets the rate limit. Trains keep to it, and the caller charges them to it.
    pub fn limit(&mut self, rate: Option<Rate>) {
        self.limit = rate;
    }

    /// Charges a session with a node, if it may be opened now.
    ///
    /// # Errors
    /// When to ask again.
    pub fn call(&mut self, now: Time) -> Result<(), Time> {
        if !self.trains.owes_less_than(now, MOST_OWED) {
            return Err(now + Span::from_secs(1));
        }
        self.pay(now, CALL_COST);
        Ok(())
    }

    /// An attempt to open a session was not answered.
    pub fn on_call_failed(&mut self, now: Time) {
        self.pay(now, UNANSWERED_COST);
    }

    /// Counts a session that a measuring node has opened.
    pub fn on_called(&mut self, now: Time, from: &PublicKey) {
        self.pay_for(now, from, CALLED_COST);
    }

    /// Charges bytes that another node caused, up to that node's share.
    pub(super) fn pay_for(&mut self, now: Time, from: &PublicKey, bytes: u64) {
        if self.serve(now, from).is_some_and(|served| served.calls.0.take(now, bytes)) {
            self.pay(now, bytes);
        }
    }

    fn pay(&mut self, now: Time, bytes: u64) {
        self.trains.charge(now, bytes);
        self.stats.bytes += bytes;
    }

    /// The next train to send: its packets ([`Train::car`], each at its [`Train::offset`]), and then
    /// [`SenseMessage::End`] until [`SenseMessage::Seen`] arrives. There is one train at a time.
    pub fn poll_train(&mut self, now: Time) -> Option<Train> {
        if self.train.is_some_and(|train| now < train.until) {
            return None;
        }
        self.train = None;
        let (_, to) = self.next_train(now).filter(|(at, _)| *at <= now)?;
        let link = &mut self.links.get_mut(&to)?.link;
        let (packets, rate) = link.capacity.next();
        if !self.trains.take(now, train_cost(packets)) {
            return None;
        }
        link.capacity.on_train(now, rate.is_some());
        self.stats.trains += 1;
        self.stats.bytes += train_cost(packets);
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        let (is_paced, limit) = (rate.is_some(), self.limit);
        self.train = Some(Running { to, number, is_paced, limit, until: now + TRAIN_TAKES });
        Some(Train { to, number, packets, rate, limit })
    }

    /// The link that gets the next train, and when: requested ones first, then those with fewest trains.
    fn next_train(&self, now: Time) -> Option<(Time, PublicKey)> {
        let up = self.links.iter().filter(|(_, known)| known.link.state == State::Up);
        let due = up.map(|(node, Measured { link, is_wanted, .. })| {
            let (at, turn) = link.capacity.due();
            let (packets, _) = link.capacity.next();
            let order = (at > now, !is_wanted || turn.0 > 0, turn, at);
            (order, at.max(self.trains.ready_at(train_cost(packets))), *node)
        });
        due.min().map(|(_, at, node)| (at, node))
    }

    /// When to call [`Self::poll_train`] again.
    pub fn train_timeout(&self, now: Time) -> Option<Time> {
        let (at, _) = self.next_train(now)?;
        Some(self.train.map_or(at, |train| at.max(train.until)))
    }

    pub(super) fn take_seen(&mut self, now: Time, from: &PublicKey, seen: &Seen) {
        let is_it = |train: &Running| train.to == *from && train.number == seen.number && now < train.until;
        let Some(Running { is_paced, limit, .. }) = self.train.filter(is_it) else { return };
        self.train = None;
        let link = self.links.get_mut(from).map(|known| &mut known.link.capacity);
        // A client may request the link again.
        if let Some(capacity) = link.or_else(|| self.kept.get_mut(from)) {
            capacity.on_seen(now, seen, (is_paced, limit));
        }
    }
}
