//! The core of a relay: it forwards packets between others and reads nothing behind their header [R1, R2].
//!
//! ```text
//!             requests, on a stream of a session         RelayChallenge / RelayResponse
//!  client  ─────────────────────────────────────▶ relay ◀────────────────────────────▶ next hop
//!          ════ packets under the forward PID ══▶       ════ under the next hop's PID ══▶
//!          ◀═══ under the client's PID ══════════       ◀═══ under the back PID ═════════
//! ```
//! | file | what |
//! |---|---|
//! | `message` | what clients and relays say to each other |
//! | `control` | requests: grants, flows, guests |
//! | `account` | what each key may use and has used |
//! | `flow` | the flow table |
//! | `asking` | a next hop is asked before it is sent anything, and again every 30 s |
//! | `policy` | addresses that are never forwarded to |
//! | `exit` | by which socket a next hop is reached |
//! | `forward` | the fast path: runs of packets rewritten in place |
//! | `resets` | how many resets are looked for |
//! | `strangers` | places of sessions that may not use the relay yet |
//! | `config`, `stats` | how it is set up, what it counts |
//! | `egress` | rate, fairness between keys, what is dropped first |
//!
//! After each call of a `handle_` function there may be something in [`Relay::poll_transmit`], [`Relay::poll_reply`] and
//! [`Relay::poll_close`], and another [`Relay::poll_timeout`].
//!
//! The service around it owns sockets, sessions and storage: it tells the core of sessions and their proven addresses,
//! hands it the requests and the datagrams that are not its sessions', and sends what comes back. Time and randomness are
//! values. Nothing is kept for anybody who is not in a session; flows live no longer than theirs.

mod account;
mod asking;
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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use anabranch_secure::{PublicKey, ShareId, TicketSecret};
use anabranch_wire::{PathId, Pid, SourceLimit, Span, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

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

use crate::grant::{GrantId, Told, UnixTime, WallClock};
use account::Accounts;
use egress::Egress;
use flow::{Consent, FlowTable};

/// Names a flow of a relay: a pair of PIDs, one a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// Names a session of the service with a client; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// An address, and the socket through which it is reached. An IPv4 address is never written in the form of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The service's number of the socket.
    pub socket: u32,
    /// The address.
    pub address: SocketAddr,
}

/// Whether somebody may open a session to the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// By its key: it is listed, or may show a grant.
    ByKey,
    /// As a guest, if it knows this.
    Guest(TicketSecret),
    /// Not now: its key has as many sessions as it may without showing anything.
    Busy,
    /// No.
    Refused,
}

/// What a controller says in a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// What time it is.
    pub time: UnixTime,
    /// Grants that do not count any more.
    pub revoked: Vec<GrantId>,
}

/// What a relay has to remember of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantUse {
    /// Which.
    pub grant: GrantId,
    /// Bytes forwarded on it.
    pub bytes: u64,
    /// Until when it can be shown.
    pub until: UnixTime,
    /// It counts no more.
    pub revoked: bool,
}

/// What became of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What the controller's time was worth.
    pub clock: Told,
    /// Which of the revoked grants are remembered; a controller must not take others for known.
    pub remembered: Vec<GrantId>,
}

/// A session of the service, as the core knows it.
struct Client {
    key: PublicKey,
    account: u32,
    guest_of: Option<ShareId>,
    greeted: bool,
    /// The service was told to close it.
    dismissed: bool,
    opened: Time,
    paths: BTreeMap<PathId, Hop>,
    flows: BTreeSet<u32>,
    /// Flows of guests that lead here.
    hosted: BTreeSet<u32>,
}

/// What a host registered for a ticket.
struct Share {
    session: SessionId,
    hash: TicketSecret,
    /// Most flows of all its guests.
    most: u32,
}

/// A relay. See the module's documentation.
pub struct Relay {
    config: RelayConfig,
    rng: ChaCha20Rng,
    clock: WallClock,
    clients: BTreeMap<SessionId, Client>,
    accounts: Accounts,
    shares: BTreeMap<ShareId, Share>,
    table: FlowTable,
    egress: Egress,
    /// When flows have to be asked about, by slot.
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

/// Whether flows are still taken.
///
/// No --drain--> Until --its time--> Over
///                ^--------drain------/
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    /// None is taken, and those there are end then.
    Until(Time),
    /// None is taken, and there are none.
    Over,
}

/// How often grants and silent strangers are looked after.
const SWEEP: Span = Span::from_secs(1);

impl Relay {
    /// A relay with 32 secret random bytes, at a time that the operating system calls `wall`.
    #[must_use]
    pub fn new(config: RelayConfig, seed: [u8; 32], (now, wall): (Time, UnixTime)) -> Self {
        let mut egress = Egress::new(config.rate);
        let accounts = Accounts::new(&config.listed, &mut egress);
        Self {
            rng: ChaCha20Rng::from_seed(seed),
            clock: WallClock::new(now, wall),
            clients: BTreeMap::new(),
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
            resets: resets::limit(now),
            stats: RelayStats::default(),
            config,
        }
    }

    /// Who may open a session. Guests are let in while their host is there.
    #[must_use]
    pub fn authorize(&self, key: &PublicKey, share: Option<ShareId>) -> Admission {
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

    /// True when the relay's own session with `key` may try an address that this key announced: one who may not use the relay
    /// has nothing tried, and others what the relay would forward to.
    #[must_use]
    pub fn may_probe(&self, key: &PublicKey, address: SocketAddr) -> bool {
        self.accounts.lets_in(key) && self.config.next_hops.allows(address)
    }

    /// A session was opened and confirmed by its first packet. Its paths follow at once.
    pub fn handle_session_opened(
        &mut self,
        now: Time,
        session: SessionId,
        (key, share): (PublicKey, Option<ShareId>),
    ) {
        let account = match share {
            Some(share) => {
                let host = self.shares.get(&share).and_then(|share| self.clients.get(&share.session));
                let Some(host) = host else {
                    return self.closing.push_back((session, Dismissal::NoBusiness));
                };
                host.account
            }
            None => self.accounts.open(key, &mut self.egress),
        };
        if share.is_some() || !self.accounts.may_use(account) {
            self.make_room_for(&key);
        }
        self.accounts.at(account).sessions += 1;
        let client = Client {
            key,
            account,
            guest_of: share,
            greeted: false,
            dismissed: false,
            opened: now,
            paths: BTreeMap::new(),
            flows: BTreeSet::new(),
            hosted: BTreeSet::new(),
        };
        self.clients.insert(session, client);
        self.tell_draining(now, session);
    }

    /// A path of a session was proven to lead to this address, has moved to it, or is gone. The client's flows follow:
    /// this is the only way in which their address changes.
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

    /// A session is over; its flows, its shares and the flows of its guests are, too.
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
        self.shares.retain(|_, share| share.session != session);
        self.accounts.at(account).sessions -= 1;
        self.accounts.close_if_idle(account, &mut self.egress);
    }

    /// What a controller said, in a session that proves that it is this one.
    pub fn handle_heartbeat(&mut self, now: Time, controller: &PublicKey, heartbeat: &Heartbeat) -> Heard {
        let (clock, leap) = self.clock.on_heartbeat(now, (controller, heartbeat.time));
        if let Some(leap) = leap {
            self.accounts.move_ends(leap);
        }
        let remembered = self.accounts.revoke(self.clock.at(now), &heartbeat.revoked);
        self.sweep(now);
        Heard { clock, remembered }
    }

    /// Takes over another configuration while sessions and flows go on, but for those that it does not allow any more.
    /// Its own key cannot change.
    pub fn reconfigure(&mut self, now: Time, config: RelayConfig) {
        self.egress.set_link_rate(config.rate);
        self.accounts.relist(&config.listed, &mut self.egress);
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

    /// How it is set up now.
    #[must_use]
    pub fn config(&self) -> &RelayConfig {
        &self.config
    }

    /// No new flows from now on, for as long as the relay runs; those there are end at `until`. Every client is told.
    pub fn drain(&mut self, now: Time, until: Time) {
        self.drain = Drain::Until(until);
        for session in self.clients.keys().copied().collect::<Vec<_>>() {
            self.tell_draining(now, session);
        }
    }

    /// True when the relay was drained and no flow is left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_draining() && self.table.len() == 0
    }

    /// When [`Relay::handle_timeout`] and [`Relay::poll_transmit`] want to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let asking = self.due.first().map(|(time, _)| *time);
        let sweep = (!self.clients.is_empty()).then_some(self.sweep_at);
        let drained = match self.drain {
            Drain::Until(until) => Some(until),
            Drain::No | Drain::Over => None,
        };
        [asking, sweep, self.egress.poll_timeout(), drained].into_iter().flatten().min()
    }

    /// Does what is due.
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

    /// The next datagram to send; those of one destination and size can be sent together.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
        self.small.pop_front().or_else(|| self.egress.take(now))
    }

    /// Whether so many bytes that the relay sends for itself, headers included, may leave now beside what it forwards; they count as sent at
    /// its rate then.
    ///
    /// # Errors
    /// When to ask again.
    pub fn pass_own(&mut self, now: Time, bytes: u64) -> Result<(), Time> {
        self.egress.pass_own(now, bytes)
    }

    /// The next thing to say to a client.
    pub fn poll_reply(&mut self) -> Option<(SessionId, Reply)> {
        self.replies.pop_front()
    }

    /// The next session to close, and why.
    pub fn poll_close(&mut self) -> Option<(SessionId, Dismissal)> {
        self.closing.pop_front()
    }

    /// True once no new flows are taken.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain != Drain::No
    }

    /// Whether somebody was given this PID.
    #[must_use]
    pub fn knows(&self, pid: Pid) -> bool {
        self.table.knows(pid)
    }

    /// What the relay did and has.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        let (flows, sessions) = (self.table.len(), self.clients.len());
        RelayStats { flows, sessions, waiting: self.egress.waiting(), ..self.stats }
    }

    /// Packets and bytes of a flow, forwards and back.
    pub fn flow_stats(&mut self, flow: FlowId) -> Option<[Tally; 2]> {
        self.table.by_id(flow).map(|(_, flow)| flow.tally)
    }

    /// Every key that the relay knows now, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<KeyStats> {
        self.accounts.stats()
    }

    /// What was used of each grant and which were revoked, for a service that keeps it over a restart.
    pub fn usage(&mut self) -> Vec<GrantUse> {
        self.accounts.usage()
    }

    /// Takes over what an earlier run knew.
    pub fn restore_usage(&mut self, usage: impl IntoIterator<Item = GrantUse>) {
        self.accounts.restore(usage);
    }

    fn sweep(&mut self, now: Time) {
        self.sweep_at = now + SWEEP;
        self.accounts.expire((now, &self.clock), &mut self.egress);
        for slot in self.accounts.over_limit() {
            self.end_flow(slot, FlowState::GrantEnded);
        }
        self.dismiss_silent(now);
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

    /// Ends a flow and tells its client.
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
