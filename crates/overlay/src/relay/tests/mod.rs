//! The relay against clients that keep the rules and clients that do not.

mod budgets;
mod control;
mod forwarding;
mod hostile;
mod messages;
mod queue;
mod random;
mod remembered;
mod strangers;
mod vectors;

use anabranch_secure::{NodeKey, TicketSecret};
use anabranch_wire::{Header, Kind, Rate};

use super::*;
use crate::admission::Owner;
use crate::grant::{ClockVerdict, Grant, GrantId, GrantSigner, Limits};

pub(super) const WALL: u64 = 1_000_000;
pub(super) const BACK: Pid = Pid(0xb0b0);

pub(super) fn key(byte: u8) -> PublicKey {
    NodeKey::from_random([byte; 32]).public()
}

pub(super) fn hop(text: &str) -> Hop {
    Hop { socket: 0, address: text.parse().unwrap() }
}

/// A socket bound to `local` whose interface leads to these networks.
pub(super) fn exit(socket: u32, local: &str, networks: &[&str]) -> Exit {
    let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
    Exit { socket, local: local.parse().unwrap(), networks, largest: 1_472 }
}

/// A guest with the ticket of this share.
pub(super) fn as_guest(byte: u8, share: ShareId) -> Newcomer {
    Newcomer { share: Some(share), ..Newcomer::new(key(byte), None) }
}

pub(super) fn limits(pids: u32, mbit: f64) -> Limits {
    Limits { pids, rate: Rate::from_mbit(mbit), bytes: u64::MAX, highest_tos: 15 }
}

pub(super) fn signer() -> GrantSigner {
    GrantSigner::from_random([99; 32])
}

pub(super) fn grant(id: u8, client: u8) -> Grant {
    Grant {
        id: GrantId([id; 16]),
        client: key(client),
        relays: vec![key(100)],
        limits: limits(8, 1_000.0),
        issued: UnixTime(WALL),
        not_before: UnixTime(WALL),
        not_after: UnixTime(WALL + 3_600),
    }
}

/// A relay with key 100 that lists keys 1 and 2 and trusts [`signer`].
pub(super) struct World {
    pub relay: Relay,
    pub now: Time,
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut RelayConfig)) -> Self {
        let mut config = RelayConfig::new(key(100));
        config.controllers = vec![signer().public()];
        config.listed = [(key(1), limits(1_000, 10_000.0)), (key(2), limits(1_000, 10_000.0))].into();
        config.exits = ["0.0.0.0", "::"].map(|local| exit(0, local, &[])).into();
        config.next_hops.own = vec!["198.18.0.1:9".parse().unwrap()];
        change(&mut config);
        let now = Time::ZERO + Span::from_secs(1);
        Self { relay: Relay::new(config, [7; 32], (now, UnixTime(WALL))), now }
    }

    /// Opens a session for a key, greeted, its path 0 at `address`.
    pub fn open(&mut self, number: u64, client: u8, address: &str) -> SessionId {
        let session = SessionId(number);
        let newcomer = Newcomer::new(key(client), Some(hop(address).address.ip()));
        self.relay.handle_session_opened(self.now, session, newcomer);
        self.relay.handle_session_path(session, PathId(0), Some(hop(address)));
        assert_eq!(
            self.ask(session, Request::Hello { version: RELAY_VERSION }),
            [Reply::Hello { version: 1 }]
        );
        session
    }

    pub fn ask(&mut self, session: SessionId, request: Request) -> Vec<Reply> {
        self.relay.handle_request(self.now, session, request, None);
        self.replies(session)
    }

    pub fn replies(&mut self, session: SessionId) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some((to, reply)) = self.relay.poll_reply() {
            assert_eq!(to, session);
            replies.push(reply);
        }
        replies
    }

    pub fn wait(&mut self, span: Span) {
        let until = self.now + span;
        while let Some(due) = self.relay.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.relay.handle_timeout(self.now);
            if self.relay.poll_timeout().is_some_and(|next| next <= self.now) {
                break;
            }
        }
        self.now = until;
        self.relay.handle_timeout(until);
    }

    pub fn sent(&mut self) -> Vec<Outgoing> {
        let now = self.now;
        std::iter::from_fn(|| self.relay.poll_transmit(now)).collect()
    }

    /// Allocates a flow to `next`, whose PID is `out`.
    pub fn allocate(
        &mut self,
        session: SessionId,
        next: &str,
        out: Pid,
    ) -> Result<(FlowId, Pid, Pid), Refused> {
        let target = Target::Address { address: next.parse().unwrap(), key: None };
        let request = Request::Allocate { request: 5, via: PathId(0), target, out, back: BACK };
        match self.ask(session, request)[..] {
            [Reply::Allocated { request: 5, flow, forward, back }] => Ok((flow, forward, back)),
            [Reply::Refused { request: 5, why }] => Err(why),
            ref other => panic!("{other:?}"),
        }
    }

    /// The next hop answers the relay's questions about these PIDs.
    pub fn consent(&mut self, session: SessionId, issued: &[Pid]) -> Vec<Reply> {
        for challenge in self.sent() {
            let answer = answer_challenge(&challenge.datagram, |pid| issued.contains(&pid), None);
            if let Some(mut answer) = answer {
                assert!(answer.len() <= challenge.datagram.len());
                assert!(self.run(challenge.to, &mut answer, 64).is_empty());
            }
        }
        self.replies(session)
    }

    /// A flow that its next hop agreed to.
    pub fn ready(&mut self, session: SessionId, next: &str, out: Pid) -> (FlowId, Pid, Pid) {
        let flow = self.allocate(session, next, out).unwrap();
        let state = FlowState::Ready;
        assert_eq!(self.consent(session, &[out]), [Reply::Flow { flow: flow.0, state }]);
        flow
    }

    pub fn run(&mut self, from: Hop, bytes: &mut [u8], stride: usize) -> Vec<Forward> {
        let mut out = Vec::new();
        self.relay.handle_run(self.now, Run { from, stride, ecn: 2 }, bytes, &mut out);
        out
    }

    /// One packet; returns its destination and its new header.
    pub fn packet(&mut self, from: Hop, pid: Pid) -> Option<(Hop, Header)> {
        let mut bytes = datagram(Kind::Data, pid, 4, 100);
        let out = self.run(from, &mut bytes, 100);
        let sent = out.first().map(|forward| (forward.to, Header::decode(&bytes).unwrap().0));
        sent.or_else(|| self.sent().first().map(|sent| (sent.to, Header::decode(&sent.datagram).unwrap().0)))
    }
}

pub(super) fn datagram(kind: Kind, pid: Pid, hop_limit: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xda; len];
    Header { kind, key_phase: false, tos: 3, hop_limit, pid, fsn: 77 }.encode(&mut bytes);
    bytes
}
