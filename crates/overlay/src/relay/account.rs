//! What each key may use and has used.
//!
//! A key's limits are the sum of those it is listed with and of the different grants it has shown; showing a grant
//! twice adds nothing, and one that was renewed counts until its later end. Bytes are counted by grant id and remembered until the grant ends, whether the client is
//! there or not. When the controllers' time leaps, the ends of those that count move with it ([`Accounts::move_ends`]); of several grants the one that ends first is used first.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};

use super::asking::MAX_PENDING;
use super::egress::Egress;
use super::message::Refused;
use super::{GrantUse, KeyStats};
use crate::grant::{Grant, GrantId, Leap, Limits, MAX_VALIDITY, UnixTime, WallClock};

/// Most grants that one key may use at the same time.
const MAX_HELD: usize = 8;
/// Most grants that are remembered, and beyond them most that were revoked.
const MAX_KNOWN: usize = 65_536;
const MAX_REVOKED: usize = 16_384;
/// Next hops that one key may have asked for the first time at once, and how long until one more.
const FIRST_QUESTIONS: u64 = 128;
const FIRST_QUESTION_EVERY: Span = Span::from_millis(125);
/// How long a grant is remembered after its end, in seconds of the controllers' time, more than any tolerance of clocks; and then how long by
/// the monotonic clock, so that a clock that was ahead for a while has nothing forgotten.
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
    pub flows: BTreeSet<u32>,
    /// Flows whose next hop never agreed yet.
    pub pending: u32,
    /// When all first questions so far would have been asked, one at a time.
    asked_until: Time,
}

impl Account {
    /// Takes bytes off the quota; false when there are not enough left. The rest counts as used then: nothing but packets of its size could
    /// ever use it up.
    #[inline]
    pub(super) fn charge(&mut self, bytes: u64) -> bool {
        let taken = bytes.min(self.left);
        self.left -= taken;
        self.unsettled += taken;
        taken == bytes
    }

    /// A next hop is to be asked for the first time; with it so many `more` flows wait for an answer.
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

struct Usage {
    bytes: u64,
    until: UnixTime,
    revoked: bool,
    /// Since when it is over for longer than it is remembered.
    over: Option<Time>,
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

    /// Takes over another list of keys; what they have used stays counted.
    pub(super) fn relist(&mut self, listed: &BTreeMap<PublicKey, Limits>, egress: &mut Egress) {
        for key in listed.keys() {
            self.open(*key, egress);
        }
        let known: Vec<(PublicKey, u32)> = self.by_key.iter().map(|(key, number)| (*key, *number)).collect();
        for (key, number) in known {
            // Counted under the limits that it was used by.
            self.settle(number, egress);
            self.slots[number as usize].listed = listed.get(&key).copied();
            self.settle(number, egress);
            self.close_if_idle(number, egress);
        }
    }

    /// The account of a key, made if there is none.
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

    /// An account that is there: numbers come from [`Accounts::open`] and live as long as sessions and flows do.
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

    /// Whether a key may use the relay as it is known now.
    pub(super) fn lets_in(&self, key: &PublicKey) -> bool {
        self.by_key.get(key).is_some_and(|number| self.may_use(*number))
    }

    /// Forgets an account that nobody uses; what was used of its grants stays known.
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

    /// A grant that was found good is shown.
    pub(super) fn show(&mut self, number: u32, grant: Grant, egress: &mut Egress) -> Result<(), Refused> {
        if self.usage.get(&grant.id).is_some_and(|usage| usage.revoked) {
            return Err(Refused::GrantRevoked);
        }
        let account = &mut self.slots[number as usize];
        if let Some(held) = account.held.iter_mut().find(|held| held.id == grant.id) {
            // The same grant, renewed: it adds nothing but time.
            if held.not_after < grant.not_after
                && let Some(usage) = self.usage.get_mut(&grant.id)
            {
                usage.until = grant.not_after;
                *held = grant;
                account.held.sort_by_key(|held| (held.not_after, held.id));
                self.settle(number, egress);
            }
            return Ok(());
        }
        let is_new = !self.usage.contains_key(&grant.id);
        if account.held.len() >= MAX_HELD || (is_new && self.usage.len() >= MAX_KNOWN) {
            return Err(Refused::TooManyGrants);
        }
        self.settle(number, egress);
        let new = Usage { bytes: 0, until: grant.not_after, revoked: false, over: None };
        let usage = self.usage.entry(grant.id).or_insert(new);
        // Renewed since it was shown in another session.
        usage.until = usage.until.max(grant.not_after);
        let account = &mut self.slots[number as usize];
        account.held.push(grant);
        account.held.sort_by_key(|held| (held.not_after, held.id));
        self.settle(number, egress);
        Ok(())
    }

    /// Grants that do not count any more. Each is remembered for as long as a grant can be valid; gives those for which there was
    /// room, so that nobody takes the others for settled.
    pub(super) fn revoke(&mut self, time: UnixTime, revoked: &[GrantId]) -> Vec<GrantId> {
        let until = UnixTime(time.0.saturating_add(MAX_VALIDITY));
        let mut remember = |id: &GrantId| {
            let has_room = self.usage.len() < MAX_KNOWN + MAX_REVOKED;
            let known = self.usage.get_mut(id);
            let is_kept = known.is_some() || has_room;
            match known {
                Some(usage) => usage.revoked = true,
                None if has_room => {
                    self.usage.insert(*id, Usage { bytes: 0, until, revoked: true, over: None });
                }
                None => {}
            }
            is_kept
        };
        revoked.iter().copied().filter(|id| remember(id)).collect()
    }

    /// The controllers' time has leapt: what counts now goes on counting for as long as it would have.
    pub(super) fn move_ends(&mut self, leap: Leap) {
        for held in self.slots.iter_mut().flat_map(|account| &mut account.held) {
            held.not_after = leap.moved(held.not_after);
            if let Some(usage) = self.usage.get_mut(&held.id) {
                usage.until = held.not_after;
            }
        }
    }

    /// Lets go of grants whose time is over or that were revoked.
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
            self.slots[number as usize].held.retain(is_good);
            self.settle(number, egress);
        }
        // A clock that no controller confirmed may be ahead: what it calls over may come again.
        if clock.is_confirmed() {
            self.usage.retain(|_, usage| {
                let is_over = time.0 > usage.until.0.saturating_add(REMEMBERED);
                usage.over = is_over.then(|| usage.over.unwrap_or(now));
                usage.over.is_none_or(|since| now.since(since) < KEPT)
            });
        }
    }

    /// Flows beyond what their key may have, those in the highest slots first.
    pub(super) fn over_limit(&self) -> Vec<u32> {
        let mut over = Vec::new();
        for account in &self.slots {
            let most = account.limits.map_or(0, |limits| limits.pids as usize / 2);
            over.extend(account.flows.iter().rev().take(account.flows.len().saturating_sub(most)));
        }
        over
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
            let usage = self.usage.entry(grant).or_insert(Usage { bytes: 0, until, revoked, over: None });
            usage.bytes = usage.bytes.saturating_add(bytes);
            usage.until = usage.until.max(until);
            usage.revoked |= revoked;
        }
    }

    /// Counts what was forwarded against the grants, the one that ends first being used first.
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

    /// Works out limits, rate and what is left anew.
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
