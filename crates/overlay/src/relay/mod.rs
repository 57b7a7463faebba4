//! The core of a relay. It forwards packets between other nodes and reads only their header [R1, R2].
//!
//! ```text
//!             requests, on a stream of a session         RelayChallenge / RelayResponse
//!  client  ─────────────────────────────────────▶ relay ◀────────────────────────────▶ next hop
//!          ════ packets under the forward PID ══▶       ════ under the next hop's PID ══▶
//!          ◀═══ under the client's PID ══════════       ◀═══ under the back PID ═════════
//! ```
//! | file | what |
//! |---|---|
//! | `message` | messages between clients and relays |
//! | `control` | requests: grants, flows, guests |
//! | `account` | limits and usage of each key |
//! | `flow` | the flow table |
//! | `asking` | requests a next hop's consent, and again every 30 s |
//! | `policy` | addresses that are never forwarded to |
//! | `exit` | the socket for a next hop |
//! | `forward` | the fast path: runs of packets rewritten in place |
//! | `resets` | limits how many resets are looked up |
//! | `strangers` | sessions that may not use the relay yet, or not any more |
//! | `client` | a session, and a host's share |
//! | `config`, `stats`, `types` | configuration, counters, and types that several files use |
//! | `egress` | rate, fairness between keys, drop order |
//!
//! After each call of a `handle_` function, drain [`Relay::poll_transmit`], [`Relay::poll_reply`] and
//! [`Relay::poll_close`], and read [`Relay::poll_timeout`] again.
//!
//! The service around the core owns sockets, sessions and storage. It reports sessions and their proven addresses,
//! passes in requests and datagrams that belong to no session of its own, and sends the output. Time and randomness are
//! values. The core keeps no state for a peer without a session, and a flow ends with its session.

mod account;
mod asking;
mod client;
mod config;
mod control;
mod egress;
mod exit;
mod flow;
mod forward;
mod message;
mod policy;
mod resets;
mod stats;
mod strangers;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use anabranch_secure::{PublicKey, ShareId};
use anabranch_wire::{PathId, Pid, SourceLimit, Span, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

pub use account::Ended;
pub use anabranch_secure::consent::{CHALLENGE_LEN, RESPONSE_LEN, answer_challenge};
pub use config::RelayConfig;
pub use egress::{DEPTH, Outgoing};
pub use exit::Exit;
pub use flow::Tally;
pub use forward::{Forward, Run};
pub use message::{FlowState, MAX_MESSAGE, RELAY_VERSION, Refused, Reply, Request, Target};
pub use policy::NextHopPolicy;
pub use stats::{Dropped, KeyStats, RelayStats};
pub use strangers::Dismissal;
pub use types::{Admission, FlowId, GrantUse, Heard, Heartbeat, Hop, ListedUse, Newcomer, SessionId};

use crate::admission::Sessions;
use crate::grant::{UnixTime, WallClock};
use account::Accounts;
use client::{Client, Share};
use egress::Egress;
use flow::{Consent, FlowTable};

/// A relay. See the module's documentation.
pub struct Relay {
    config: RelayConfig,
    rng: ChaCha20Rng,
    clock: WallClock,
    clients: BTreeMap<SessionId, Client>,
    sessions: Sessions<SessionId>,
    accounts: Accounts,
    shares: BTreeMap<ShareId, Share>,
    table: FlowTable,
    egress: Egress,
    /// When next hops must be asked again, by slot of the flow.
    due: BTreeSet<(Time, u32)>,
    /// Challenges and answers to challenges.
    small: VecDeque<Outgoing>,
    replies: VecDeque<(SessionId, Reply)>,
    closing: VecDeque<(SessionId, Dismissal)>,
    sweep_at: Time,
    drain: Drain,
    resets: SourceLimit,
    stats: RelayStats,
}

/// Whether the relay accepts new flows.
///
/// No --drain--> Until --its time--> Over
///                ^--------drain------/
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    /// It accepts no paths, and existing flows end at this time.
    Until(Time),
    /// It accepts no paths, and has none.
    Over,
}

/// How often expired grants and sessions without a right to use the relay are looked for.
const SWEEP: Span = Span::from_secs(1);

impl Relay {
    /// A relay with 32 secret random bytes, at a time that the operating system calls `wall`.
    pub fn new(config: RelayConfig, seed: [u8; 32], (now, wall): (Time, UnixTime)) -> Self {
        let mut egress = Egress::new(config.rate);
        let accounts = Accounts::new(&config.listed, &mut egress);
        Self {
            rng: ChaCha20Rng::from_seed(seed),
            clock: WallClock::new(now, wall),
            clients: BTreeMap::new(),
            sessions: Sessions::new(config.sessions),
            accounts,
            shares: BTreeMap::new(),
            table: FlowTable::default(),
            egress,
            due: BTreeSet::new(),
            small: VecDeque::new(),
            replies: VecDeque::new(),
            closing: VecDeque::new(),
            sweep_at: now + SWEEP,
            drain: Drain::No,
            resets: resets::limit(now, &seed),
            stats: RelayStats::default(),
            config,
        }
    }

    /// Decides whether a peer may open a session. Guests may while their host has one.
    pub fn authorize(&self, key: &PublicKey, share: Option<ShareId>) -> Admission {
        let is_known = share.is_some_and(|share| self.shares.contains_key(&share));
        let may_ask = share.is_none() && (self.accounts.lets_in(key) || !self.config.controllers.is_empty());
        if (is_known || may_ask) && self.sessions.check_key(key).is_err() {
            return Admission::Busy;
        }
        let allowed = match share {
            Some(share) => match self.shares.get(&share) {
                Some(registered) => Admission::Guest(registered.hash.clone()),
                None => return Admission::Refused,
            },
            None if self.accounts.lets_in(key) => return Admission::ByKey,
            None if self.config.controllers.is_empty() => return Admission::Refused,
            None => Admission::ByKey,
        };
        if self.has_room_for(key) { allowed } else { Admission::Busy }
    }

    /// Whether the relay's own session with `key` may try an address that this key announced: only for a key that may use
    /// the relay, and only an address that the relay would forward to.
    pub fn may_probe(&self, key: &PublicKey, address: SocketAddr) -> bool {
        self.accounts.lets_in(key) && self.config.next_hops.allows(address)
    }

    /// A session was opened and confirmed by its first packet. Report its paths right after.
    pub fn handle_session_opened(&mut self, now: Time, session: SessionId, newcomer: Newcomer) {
        let Newcomer { owner, share, measures } = newcomer;
        match self.sessions.admit(session, owner) {
            Ok(candidates) => self.end_one_of(&candidates),
            Err(full) => return self.closing.push_back((session, Dismissal::Full(full))),
        }
        let key = owner.key;
        let account = match share {
            Some(share) => {
                let host = self.shares.get(&share).and_then(|share| self.clients.get(&share.session));
                let Some(host) = host else {
                    self.sessions.remove(session);
                    return self.closing.push_back((session, Dismissal::NoBusiness));
                };
                host.account
            }
            None => self.accounts.open(key, &mut self.egress),
        };
        let is_entitled = share.is_none() && self.accounts.may_use(account);
        if !is_entitled && !measures {
            self.make_room_for(&key);
        }
        self.accounts.at(account).sessions += 1;
        let client = Client {
            key,
            account,
            guest_of: share,
            greeted: false,
            dismissed: false,
            measures,
            unentitled_since: now,
            was_entitled: is_entitled,
            paths: BTreeMap::new(),
            flows: BTreeSet::new(),
            hosted: BTreeSet::new(),
        };
        self.clients.insert(session, client);
        self.tell_draining(now, session);
    }

    /// Records that a path of a session was proven to lead to this address, moved to it, or was closed. The client's
    /// flows follow; their address changes in no other way.
    pub fn handle_session_path(&mut self, session: SessionId, path: PathId, hop: Option<Hop>) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        let known = match hop {
            Some(hop) => client.paths.insert(path, hop),
            None => client.paths.remove(&path),
        };
        if known == hop || known.is_none() {
            return;
        }
        let (own, hosted): (Vec<u32>, Vec<u32>) =
            (client.flows.iter().copied().collect(), client.hosted.iter().copied().collect());
        for slot in own {
            let Some(flow) = self.table.at(slot).filter(|flow| flow.via == path) else { continue };
            match hop {
                Some(hop) => flow.ends[0] = hop,
                None => self.end_flow(slot, FlowState::PathGone),
            }
        }
        for slot in hosted {
            let is_there =
                |flow: &&mut flow::Flow| matches!(flow.consent, Consent::Host(_, at) if at == path);
            let Some(flow) = self.table.at(slot).filter(is_there) else { continue };
            match hop {
                Some(hop) => flow.ends[1] = hop,
                None => self.end_flow(slot, FlowState::PathGone),
            }
        }
    }

    /// A session is over. Its flows, its shares and the flows of its guests end with it.
    pub fn handle_session_closed(&mut self, session: SessionId) {
        let Some(client) = self.clients.get(&session) else { return };
        let (account, own, hosted) = (client.account, client.flows.clone(), client.hosted.clone());
        for slot in own {
            self.drop_flow(slot);
        }
        for slot in hosted {
            self.end_flow(slot, FlowState::PathGone);
        }
        self.clients.remove(&session);
        self.sessions.remove(session);
        self.shares.retain(|_, share| share.leave(session));
        self.accounts.at(account).sessions -= 1;
        self.accounts.close_if_idle(account, &mut self.egress);
    }

    /// Handles a controller's heartbeat, over a session that proves the controller's key.
    pub fn handle_heartbeat(&mut self, now: Time, controller: &PublicKey, heartbeat: &Heartbeat) -> Heard {
        let (clock, leap) = self.clock.on_heartbeat(now, (controller, heartbeat.time));
        if let Some(leap) = leap {
            self.accounts.move_ends(leap);
        }
        let remembered = self.accounts.revoke(self.clock.at(now), &heartbeat.revoked);
        self.sweep(now);
        Heard { clock, remembered }
    }

    /// Applies another configuration. Flows that it does not allow end; the others and their sessions continue. The
    /// relay's own key stays.
    pub fn reconfigure(&mut self, now: Time, config: RelayConfig) {
        self.egress.set_link_rate(config.rate);
        self.accounts.relist(&config.listed, &mut self.egress);
        self.accounts.distrust(&config.controllers, &mut self.egress);
        self.sessions.set_limits(config.sessions);
        self.config = RelayConfig { key: self.config.key, ..config };
        for slot in 0..self.table.slot_count() {
            let Some(flow) = self.table.at(slot) else { continue };
            if !matches!(flow.consent, Consent::Asked(_)) {
                continue;
            }
            let Hop { socket, address } = flow.ends[1];
            if !self.config.next_hops.allows(address) {
                self.end_flow(slot, FlowState::Denied);
            } else if self.config.exits.iter().all(|exit| exit.socket != socket) {
                self.end_flow(slot, FlowState::PathGone);
            }
        }
        self.sweep(now);
    }

    /// The current configuration.
    pub fn config(&self) -> &RelayConfig {
        &self.config
    }

    /// Accepts no new flows until the relay is restarted, and ends existing ones at `until`. All clients are notified.
    pub fn drain(&mut self, now: Time, until: Time) {
        self.drain = Drain::Until(until);
        for session in self.clients.keys().copied().collect::<Vec<_>>() {
            self.tell_draining(now, session);
        }
    }

    /// True when the relay was drained and no flow is left.
    pub fn is_drained(&self) -> bool {
        self.is_draining() && self.table.len() == 0
    }

    /// When to call [`Relay::handle_timeout`] and [`Relay::poll_transmit`].
    pub fn poll_timeout(&self) -> Option<Time> {
        let asking = self.due.first().map(|(time, _)| *time);
        let sweep = (!self.clients.is_empty()).then_some(self.sweep_at);
        let drained = match self.drain {
            Drain::Until(until) => Some(until),
            Drain::No | Drain::Over => None,
        };
        [asking, sweep, self.egress.poll_timeout(), drained].into_iter().flatten().min()
    }

    /// Handles all passed deadlines.
    pub fn handle_timeout(&mut self, now: Time) {
        self.ask_due(now);
        if now >= self.sweep_at {
            self.sweep(now);
        }
        if matches!(self.drain, Drain::Until(until) if now >= until) {
            for slot in 0..self.table.slot_count() {
                self.end_flow(slot, FlowState::Drained);
            }
            self.drain = Drain::Over;
        }
    }

    /// The next datagram to send. Consecutive ones of the same destination and size can be sent together.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
        self.small.pop_front().or_else(|| self.egress.take(now))
    }

    /// Charges bytes that the relay sends for itself, headers included, to its rate. Forwarded packets that wait go first.
    ///
    /// # Errors
    /// When to ask again, if they may not leave now.
    pub fn pass_own(&mut self, now: Time, bytes: u64) -> Result<(), Time> {
        self.egress.pass_own(now, bytes)
    }

    /// The next message to a client.
    pub fn poll_reply(&mut self) -> Option<(SessionId, Reply)> {
        self.replies.pop_front()
    }

    /// The next session to close, and why.
    pub fn poll_close(&mut self) -> Option<(SessionId, Dismissal)> {
        self.closing.pop_front()
    }

    /// True once the relay accepts no new flows.
    pub fn is_draining(&self) -> bool {
        self.drain != Drain::No
    }

    /// Whether this PID is in use.
    pub fn knows(&self, pid: Pid) -> bool {
        self.table.knows(pid)
    }

    /// Totals since the start and current counts.
    pub fn stats(&self) -> RelayStats {
        let flows = self.table.len();
        let sessions = self.clients.values().filter(|client| !client.measures).count();
        RelayStats { flows, sessions, waiting: self.egress.waiting(), ..self.stats }
    }

    /// Every key with an account, in order.
    pub fn keys(&self) -> Vec<KeyStats> {
        self.accounts.stats()
    }

    /// Usage of each grant, for a service that stores it over a restart.
    pub fn usage(&mut self) -> Vec<GrantUse> {
        self.accounts.usage()
    }

    /// Restores the usage of grants from an earlier run.
    pub fn restore_usage(&mut self, usage: impl IntoIterator<Item = GrantUse>) {
        self.accounts.restore(usage);
    }

    /// Usage of each listed key, for a service that stores it over a restart.
    pub fn listed_usage(&mut self) -> Vec<ListedUse> {
        self.accounts.listed_usage()
    }

    /// Restores the usage of listed keys from an earlier run.
    pub fn restore_listed_usage(&mut self, usage: impl IntoIterator<Item = ListedUse>) {
        self.accounts.restore_listed(usage, &mut self.egress);
    }

    /// Updates which sessions belong to measurers. A session that has requested something belongs to a client from then
    /// on.
    pub fn update_measurers(&mut self, now: Time, is_measurer: impl Fn(&PublicKey) -> bool) {
        for client in self.clients.values_mut().filter(|client| !client.greeted) {
            let measures = is_measurer(&client.key);
            if client.measures && !measures {
                client.unentitled_since = now;
            }
            client.measures = measures;
        }
    }

    fn sweep(&mut self, now: Time) {
        self.sweep_at = now + SWEEP;
        self.accounts.expire((now, &self.clock), &mut self.egress);
        for (slot, state) in self.accounts.over_limit() {
            self.end_flow(slot, state);
        }
        self.note_lost_rights(now);
        self.dismiss_unentitled(now);
    }

    fn tell_draining(&mut self, now: Time, session: SessionId) {
        let left = match self.drain {
            Drain::No => return,
            Drain::Until(until) => until.since(now),
            Drain::Over => Span::ZERO,
        };
        let seconds = (left.as_nanos() / 1_000_000_000).min(u32::MAX.into()) as u32;
        self.replies.push_back((session, Reply::Draining { seconds }));
    }

    /// Ends a flow and notifies its client.
    fn end_flow(&mut self, slot: u32, state: FlowState) {
        if let Some((session, flow)) = self.drop_flow(slot) {
            self.replies.push_back((session, Reply::Flow { flow, state }));
        }
    }

    fn drop_flow(&mut self, slot: u32) -> Option<(SessionId, FlowId)> {
        let flow = self.table.remove(slot)?;
        if let Some(client) = self.clients.get_mut(&flow.session) {
            client.flows.remove(&slot);
        }
        match &flow.consent {
            Consent::Asked(asked) => {
                self.due.remove(&(asked.due, slot));
            }
            Consent::Host(host, _) => {
                if let Some(host) = self.clients.get_mut(host) {
                    host.hosted.remove(&slot);
                }
            }
        }
        let account = self.accounts.at(flow.account);
        account.flows.remove(&slot);
        if flow.agreed_until == Time::ZERO {
            account.pending = account.pending.saturating_sub(1);
        }
        self.accounts.close_if_idle(flow.account, &mut self.egress);
        Some((flow.session, flow.id(slot)))
    }

    fn new_pid(&mut self) -> Pid {
        loop {
            let pid = Pid(self.rng.next_u64());
            if pid != Pid::HANDSHAKE && !self.table.knows(pid) {
                return pid;
            }
        }
    }
}
