//! Limits and usage of each key.
//!
//! A key's limits are the sum of its listing and of the different grants that it has shown. Showing a grant twice adds
//! nothing; a renewed grant counts until its later end. Bytes are counted by grant id and remembered until the grant
//! ends, with or without a session of the client. Of several grants, the one that ends first is used first. When the
//! controllers' time leaps, the ends of the grants in use move with it ([`Accounts::move_ends`]).

use std::collections::{BTreeMap, BTreeSet};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};

use super::egress::Egress;
use super::message::{FlowState, Refused};
use super::stats::KeyStats;
use super::types::{GrantUse, ListedUse};
use crate::grant::{ControllerKey, Grant, GrantId, Leap, Limits, MAX_VALIDITY, UnixTime, WallClock};

/// Most grants that one key may use at a time.
const MAX_HELD: usize = 8;
/// Most grants that are remembered, and most revoked and unused ones in addition.
const MAX_KNOWN: usize = 65_536;
const MAX_REVOKED: usize = 16_384;
/// Most flows of one key whose next hop has not agreed.
pub(super) const MAX_PENDING: u32 = 64;
/// First requests to next hops that one key may cause at once, and the time until one more.
const FIRST_QUESTIONS: u64 = 128;
const FIRST_QUESTION_EVERY: Span = Span::from_millis(125);
/// How long a grant is remembered after its end, in seconds of the controllers' time: longer than any tolerance of
/// clocks. Then it is kept for [`KEPT`] by the monotonic clock, so a temporarily fast clock erases nothing.
const REMEMBERED: u64 = 600;
const KEPT: Span = Span::from_secs(3_600);

#[derive(Default)]
pub(super) struct Account {
    key: Option<PublicKey>,
    listed: Option<Limits>,
    held: Vec<Grant>,
    /// Bytes of the listing used.
    listed_used: u64,
    /// Bytes that may still be forwarded.
    left: u64,
    /// Bytes forwarded that are not yet counted against grants.
    unsettled: u64,
    limits: Option<Limits>,
    pub sessions: u32,
    /// Why the key may not use the relay any more, if it could.
    pub ended: Option<Ended>,
    pub flows: BTreeSet<u32>,
    /// Flows whose next hop has never agreed.
    pub pending: u32,
    /// When all first requests so far would have been made one at a time.
    asked_until: Time,
}

impl Account {
    /// Takes bytes off the quota; false if fewer are left. Then the rest counts as used, because larger packets could
    /// never use it up.
    #[inline]
    pub(super) fn charge(&mut self, bytes: u64) -> bool {
        let taken = bytes.min(self.left);
        self.left -= taken;
        self.unsettled += taken;
        taken == bytes
    }

    /// Counts a first question to a next hop, and `more` flows that wait for an answer.
    pub(super) fn ask(&mut self, now: Time, more: u32) -> Result<(), Refused> {
        let until = self.asked_until.max(now) + FIRST_QUESTION_EVERY;
        if self.pending + more > MAX_PENDING || until > now + FIRST_QUESTION_EVERY * FIRST_QUESTIONS {
            return Err(Refused::TooManyPending);
        }
        self.pending += more;
        self.asked_until = until;
        Ok(())
    }

    pub(super) fn limits(&self) -> Option<Limits> {
        self.limits.map(|limits| Limits { bytes: self.left, ..limits })
    }

    pub(super) fn highest_tos(&self) -> u8 {
        self.limits.map_or(0, |limits| limits.highest_tos)
    }

    /// Whether a further flow is within the limits.
    pub(super) fn has_room(&self) -> bool {
        let pids = self.limits.map_or(0, |limits| u64::from(limits.pids));
        (self.flows.len() as u64 + 1) * 2 <= pids
    }
}

/// Why a key may not use the relay any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The configuration does not list it any more.
    #[error("the relay's configuration no longer lists this key")]
    Unlisted,
    /// Its last grant has expired.
    #[error("the grant has expired")]
    Expired,
    /// Its last grant was revoked.
    #[error("the grant was revoked")]
    Revoked,
    /// The configuration does not name the controller of its last grant any more.
    #[error("the relay no longer accepts grants of the controller that signed this one")]
    Distrusted,
}

struct Usage {
    bytes: u64,
    until: UnixTime,
    revoked: bool,
    /// The controller that signed it, once it was shown.
    signer: Option<ControllerKey>,
    /// Since when its end lies further back than [`REMEMBERED`].
    over: Option<Time>,
}

impl Usage {
    /// Whether it is remembered only so that it is not accepted later.
    fn is_only_revoked(&self) -> bool {
        self.revoked && self.bytes == 0
    }
}

/// All accounts, by number and by key.
pub(super) struct Accounts {
    slots: Vec<Account>,
    by_key: BTreeMap<PublicKey, u32>,
    free: Vec<u32>,
    usage: BTreeMap<GrantId, Usage>,
}

impl Accounts {
    pub(super) fn new(listed: &BTreeMap<PublicKey, Limits>, egress: &mut Egress) -> Self {
        let mut accounts =
            Self { slots: Vec::new(), by_key: BTreeMap::new(), free: Vec::new(), usage: BTreeMap::new() };
        accounts.relist(listed, egress);
        accounts
    }

    /// Applies another list of keys; their usage is kept.
    pub(super) fn relist(&mut self, listed: &BTreeMap<PublicKey, Limits>, egress: &mut Egress) {
        for key in listed.keys() {
            self.open(*key, egress);
        }
        let known: Vec<(PublicKey, u32)> = self.by_key.iter().map(|(key, number)| (*key, *number)).collect();
        for (key, number) in known {
            // Count past usage under the old limits.
            self.settle(number, egress);
            let account = &mut self.slots[number as usize];
            let was_listed = account.listed.is_some();
            account.listed = listed.get(&key).copied();
            account.ended = match account.listed {
                Some(_) => None,
                None if was_listed => Some(Ended::Unlisted),
                None => account.ended,
            };
            self.settle(number, egress);
            self.close_if_idle(number, egress);
        }
    }

    /// The account of a key; opens one if needed.
    pub(super) fn open(&mut self, key: PublicKey, egress: &mut Egress) -> u32 {
        if let Some(number) = self.by_key.get(&key) {
            return *number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Account::default());
            self.slots.len() as u32 - 1
        });
        self.slots[number as usize] = Account { key: Some(key), ..Account::default() };
        self.by_key.insert(key, number);
        self.settle(number, egress);
        number
    }

    /// An open account. Numbers come from [`Accounts::open`] and are valid while the key has sessions or flows.
    #[inline]
    pub(super) fn at(&mut self, number: u32) -> &mut Account {
        &mut self.slots[number as usize]
    }

    pub(super) fn stats(&self) -> Vec<KeyStats> {
        let of = |(key, number): (&PublicKey, &u32)| {
            let account = &self.slots[*number as usize];
            let (sessions, flows) = (account.sessions, account.flows.len());
            KeyStats { key: *key, limits: account.limits(), sessions, flows }
        };
        self.by_key.iter().map(of).collect()
    }

    pub(super) fn key(&self, number: u32) -> Option<PublicKey> {
        self.slots[number as usize].key
    }

    pub(super) fn may_use(&self, number: u32) -> bool {
        self.slots[number as usize].limits.is_some()
    }

    /// Whether a key may use the relay by its listing or by grants that it has shown.
    pub(super) fn lets_in(&self, key: &PublicKey) -> bool {
        self.by_key.get(key).is_some_and(|number| self.may_use(*number))
    }

    /// Closes an account without sessions, flows and listing. Usage of its grants stays counted.
    pub(super) fn close_if_idle(&mut self, number: u32, egress: &mut Egress) {
        let account = &self.slots[number as usize];
        if account.sessions > 0 || !account.flows.is_empty() || account.listed.is_some() {
            return;
        }
        self.settle(number, egress);
        egress.forget(number);
        if let Some(key) = self.slots[number as usize].key.take() {
            self.by_key.remove(&key);
            self.slots[number as usize] = Account::default();
            self.free.push(number);
        }
    }

    /// Adds a valid grant to an account.
    pub(super) fn show(
        &mut self,
        number: u32,
        (grant, signer): (Grant, ControllerKey),
        egress: &mut Egress,
    ) -> Result<(), Refused> {
        if self.usage.get(&grant.id).is_some_and(|usage| usage.revoked) {
            return Err(Refused::GrantRevoked);
        }
        let account = &mut self.slots[number as usize];
        if let Some(held) = account.held.iter_mut().find(|held| held.id == grant.id) {
            // The same grant, renewed: only its end changes.
            if held.not_after < grant.not_after
                && let Some(usage) = self.usage.get_mut(&grant.id)
            {
                (usage.until, usage.signer) = (grant.not_after, Some(signer));
                *held = grant;
                account.held.sort_by_key(|held| (held.not_after, held.id));
                self.settle(number, egress);
            }
            return Ok(());
        }
        let has_place = self.usage.contains_key(&grant.id) || self.has_place_for_another();
        if self.slots[number as usize].held.len() >= MAX_HELD || !has_place {
            return Err(Refused::TooManyGrants);
        }
        self.settle(number, egress);
        let new = Usage { bytes: 0, until: grant.not_after, revoked: false, signer: None, over: None };
        let usage = self.usage.entry(grant.id).or_insert(new);
        // It may have been renewed since it was shown in another session.
        usage.until = usage.until.max(grant.not_after);
        usage.signer = Some(signer);
        let account = &mut self.slots[number as usize];
        account.held.push(grant);
        account.ended = None;
        account.held.sort_by_key(|held| (held.not_after, held.id));
        self.settle(number, egress);
        Ok(())
    }

    /// Whether a further grant can be remembered. Grants that were revoked before they were used leave the places of
    /// others free: a client may ask for grants and give them back without end.
    fn has_place_for_another(&self) -> bool {
        let len = self.usage.len();
        len < MAX_KNOWN || (len < MAX_KNOWN + MAX_REVOKED && len - self.only_revoked() < MAX_KNOWN)
    }

    fn only_revoked(&self) -> usize {
        self.usage.values().filter(|usage| usage.is_only_revoked()).count()
    }

    /// Revokes grants, and remembers each for as long as a grant can be valid. Returns those for which there was room;
    /// the controller must repeat the others.
    pub(super) fn revoke(&mut self, time: UnixTime, revoked: &[GrantId]) -> Vec<GrantId> {
        if revoked.is_empty() {
            return Vec::new();
        }
        let until = UnixTime(time.0.saturating_add(MAX_VALIDITY));
        let mut room = MAX_REVOKED.saturating_sub(self.only_revoked());
        let mut remember = |id: &GrantId| {
            let has_room = room > 0 && self.usage.len() < MAX_KNOWN + MAX_REVOKED;
            let known = self.usage.get_mut(id);
            let is_kept = known.is_some() || has_room;
            match known {
                Some(usage) => usage.revoked = true,
                None if has_room => {
                    let new = Usage { bytes: 0, until, revoked: true, signer: None, over: None };
                    self.usage.insert(*id, new);
                    room -= 1;
                }
                None => {}
            }
            is_kept
        };
        revoked.iter().copied().filter(|id| remember(id)).collect()
    }

    /// Drops the grants of controllers other than these.
    pub(super) fn distrust(&mut self, controllers: &[ControllerKey], egress: &mut Egress) {
        for number in 0..self.slots.len() as u32 {
            if self.slots[number as usize].held.is_empty() {
                continue;
            }
            self.settle(number, egress);
            let usage = &self.usage;
            let account = &mut self.slots[number as usize];
            let before = account.held.len();
            account.held.retain(|grant| {
                let signer = usage.get(&grant.id).and_then(|usage| usage.signer);
                signer.is_none_or(|signer| controllers.contains(&signer))
            });
            if account.held.len() < before {
                account.ended = Some(Ended::Distrusted);
            }
            self.settle(number, egress);
        }
    }

    /// Handles a leap of the controllers' time: grants in use keep their remaining time.
    pub(super) fn move_ends(&mut self, leap: Leap) {
        for held in self.slots.iter_mut().flat_map(|account| &mut account.held) {
            held.not_after = leap.moved(held.not_after);
            if let Some(usage) = self.usage.get_mut(&held.id) {
                usage.until = held.not_after;
            }
        }
    }

    /// Drops grants that have expired or were revoked.
    pub(super) fn expire(&mut self, (now, clock): (Time, &WallClock), egress: &mut Egress) {
        let time = clock.at(now);
        for number in 0..self.slots.len() as u32 {
            if self.slots[number as usize].held.is_empty() {
                continue;
            }
            self.settle(number, egress);
            let usage = &self.usage;
            let is_good = |grant: &Grant| {
                time.0 <= grant.not_after.0.saturating_add(clock.tolerance())
                    && usage.get(&grant.id).is_some_and(|usage| !usage.revoked)
            };
            let account = &mut self.slots[number as usize];
            let is_revoked =
                account.held.iter().any(|grant| usage.get(&grant.id).is_none_or(|usage| usage.revoked));
            let before = account.held.len();
            account.held.retain(is_good);
            if account.held.len() < before {
                account.ended = Some(if is_revoked { Ended::Revoked } else { Ended::Expired });
            }
            self.settle(number, egress);
        }
        // A clock that no controller confirmed may be ahead, and its expired grants valid again later.
        if clock.is_confirmed() {
            self.usage.retain(|_, usage| {
                let is_over = time.0 > usage.until.0.saturating_add(REMEMBERED);
                usage.over = is_over.then(|| usage.over.unwrap_or(now));
                usage.over.is_none_or(|since| now.since(since) < KEPT)
            });
        }
    }

    /// Flows beyond their key's limit, starting with the highest slots, and their final state.
    pub(super) fn over_limit(&self) -> Vec<(u32, FlowState)> {
        let mut over = Vec::new();
        for account in &self.slots {
            let most = account.limits.map_or(0, |limits| limits.pids as usize / 2);
            let state = match account.ended {
                Some(Ended::Unlisted) => FlowState::Denied,
                _ => FlowState::GrantEnded,
            };
            let excess = account.flows.iter().rev().take(account.flows.len().saturating_sub(most));
            over.extend(excess.map(|slot| (*slot, state)));
        }
        over
    }

    /// The account with most flows.
    pub(super) fn largest(&self) -> Option<u32> {
        (0..self.slots.len() as u32).max_by_key(|number| self.slots[*number as usize].flows.len())
    }

    pub(super) fn usage(&mut self) -> Vec<GrantUse> {
        for number in 0..self.slots.len() {
            self.count(number);
        }
        let known = |(grant, usage): (&GrantId, &Usage)| {
            let Usage { bytes, until, revoked, .. } = *usage;
            GrantUse { grant: *grant, bytes, until, revoked }
        };
        self.usage.iter().map(known).collect()
    }

    pub(super) fn restore(&mut self, known: impl IntoIterator<Item = GrantUse>) {
        for GrantUse { grant, bytes, until, revoked } in known.into_iter().take(MAX_KNOWN + MAX_REVOKED) {
            let new = Usage { bytes: 0, until, revoked, signer: None, over: None };
            let usage = self.usage.entry(grant).or_insert(new);
            usage.bytes = usage.bytes.saturating_add(bytes);
            usage.until = usage.until.max(until);
            usage.revoked |= revoked;
        }
    }

    /// Bytes that listed keys have used of their listings.
    pub(super) fn listed_usage(&mut self) -> Vec<ListedUse> {
        for number in 0..self.slots.len() {
            self.count(number);
        }
        let of = |account: &Account| {
            let key = account.key.filter(|_| account.listed.is_some() && account.listed_used > 0)?;
            Some(ListedUse { key, bytes: account.listed_used })
        };
        let mut used: Vec<ListedUse> = self.slots.iter().filter_map(of).collect();
        used.sort_unstable_by_key(|used| used.key);
        used
    }

    /// Restores the usage of listed keys; ignores keys that are not listed any more.
    pub(super) fn restore_listed(&mut self, known: impl IntoIterator<Item = ListedUse>, egress: &mut Egress) {
        for ListedUse { key, bytes } in known {
            let Some(number) = self.by_key.get(&key).copied() else { continue };
            let account = &mut self.slots[number as usize];
            account.listed_used = account.listed_used.saturating_add(bytes);
            self.settle(number, egress);
        }
    }

    /// Counts forwarded bytes against the grants, the one that ends first being used first.
    fn count(&mut self, number: usize) {
        let account = &mut self.slots[number];
        for grant in &account.held {
            let Some(usage) = self.usage.get_mut(&grant.id) else { continue };
            let part = account.unsettled.min(grant.limits.bytes.saturating_sub(usage.bytes));
            usage.bytes += part;
            account.unsettled -= part;
        }
        account.listed_used += std::mem::take(&mut account.unsettled);
    }

    /// Computes limits, rate and remaining bytes again.
    fn settle(&mut self, number: u32, egress: &mut Egress) {
        self.count(number as usize);
        let account = &mut self.slots[number as usize];
        let all = account.listed.iter().chain(account.held.iter().map(|grant| &grant.limits));
        account.limits = all.copied().reduce(|a, b| Limits {
            pids: a.pids.saturating_add(b.pids),
            rate: Rate::from_bits(a.rate.as_bits().saturating_add(b.rate.as_bits())),
            bytes: a.bytes.saturating_add(b.bytes),
            highest_tos: a.highest_tos.max(b.highest_tos),
        });
        let used = |grant: &Grant| self.usage.get(&grant.id).map_or(0, |usage| usage.bytes);
        let left = account.held.iter().map(|grant| grant.limits.bytes.saturating_sub(used(grant)));
        let of_listing = account.listed.map_or(0, |limits| limits.bytes.saturating_sub(account.listed_used));
        account.left = left.fold(of_listing, u64::saturating_add);
        egress.set_rate(number, Some(account.limits.map_or(Rate::ZERO, |limits| limits.rate)));
    }
}
