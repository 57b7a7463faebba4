//! Asks next hops for their consent.
//!
//! ```text
//! asking --answer--> agreed --30 s--> asking again, every 10 s --answer--> agreed
//!    \--2 s-----------------------------------\--60 s after the last answer--> over
//! ```
//! A first question is sent at once, and again after 0.3 and 0.9 s. So an uninvolved address receives at most three datagrams
//! of 48 bytes for each request of a known key, and [`MAX_PENDING`](super::account::MAX_PENDING) such requests may wait at
//! a time.

use anabranch_secure::consent::{Question, answer_challenge, challenge, read_response};
use anabranch_wire::{Pid, Span, Time};
use rand::Rng;

use super::Relay;
use super::egress::Outgoing;
use super::flow::{Asked, Consent};
use super::message::{FlowState, Reply};
use super::types::Hop;

/// How long a consent lasts.
const LAPSE: Span = Span::from_secs(60);
/// When a next hop is asked again.
const RENEW: Span = Span::from_secs(30);
const RENEW_AGAIN: Span = Span::from_secs(10);
/// Waits after the first questions.
const FIRST: [Span; 3] = [Span::from_millis(300), Span::from_millis(600), Span::from_millis(1_100)];
/// Most answers that wait to be sent; further questions are not answered.
const MAX_ANSWERS: usize = 1_024;

impl Relay {
    /// Begins a round of questions; the first is due at once.
    pub(super) fn begin_asking(&mut self, now: Time, slot: u32) {
        let token = self.rng.next_u64();
        let Some(flow) = self.table.at(slot) else { return };
        let Consent::Asked(asked) = &mut flow.consent else { return };
        self.due.remove(&(asked.due, slot));
        (asked.token, asked.tries, asked.due) = (token, 0, now);
        self.due.insert((now, slot));
    }

    pub(super) fn ask_due(&mut self, now: Time) {
        while let Some(&(due, slot)) = self.due.first().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, slot));
            self.ask(now, slot);
        }
    }

    fn ask(&mut self, now: Time, slot: u32) {
        let Some(flow) = self.table.at(slot) else { return };
        let reference = flow.id(slot).0;
        let (to, pid, agreed_until) = (flow.ends[1], flow.out[0], flow.agreed_until);
        let Consent::Asked(asked) = &mut flow.consent else { return };
        let is_first = agreed_until == Time::ZERO;
        let is_over = if is_first { usize::from(asked.tries) >= FIRST.len() } else { now >= agreed_until };
        if is_over {
            return self.end_flow(slot, FlowState::NoConsent);
        }
        let wait = if is_first { FIRST[usize::from(asked.tries)] } else { RENEW_AGAIN };
        asked.tries = asked.tries.saturating_add(1);
        asked.due = if is_first { now + wait } else { (now + wait).min(agreed_until) };
        self.due.insert((asked.due, slot));
        let question = Question { reference, token: asked.token };
        let datagram = challenge(pid, question, asked.key.as_ref());
        self.stats.challenges += 1;
        self.small.push_back(Outgoing { to, ecn: 0, datagram: Box::new(datagram) });
    }

    /// Handles a next hop's answer.
    pub(super) fn handle_response(&mut self, now: Time, (from, pid): (Hop, Pid), body: &[u8]) {
        let Some(question) = read_response(body) else { return self.stats.dropped.malformed += 1 };
        let next_token = self.rng.next_u64();
        let found = self.table.by_id(super::types::FlowId(question.reference));
        let Some((slot, flow)) = found else { return self.stats.dropped.unknown_pid += 1 };
        let expected = flow.ends[1] == from && flow.out[0] == pid;
        let (session, id, was_first) = (flow.session, flow.id(slot), flow.agreed_until == Time::ZERO);
        let account = flow.account;
        let Consent::Asked(asked) = &mut flow.consent else { return };
        if !expected || asked.token != question.token || asked.tries == 0 {
            return self.stats.dropped.wrong_source += 1;
        }
        self.due.remove(&(asked.due, slot));
        **asked = Asked { token: next_token, tries: 0, due: now + RENEW, key: asked.key };
        flow.agreed_until = now + LAPSE;
        self.due.insert((now + RENEW, slot));
        if was_first {
            let account = self.accounts.at(account);
            account.pending = account.pending.saturating_sub(1);
            self.replies.push_back((session, Reply::Flow { flow: id, state: FlowState::Ready }));
        }
    }

    /// Answers another relay's question about a PID, if the PID was issued for that relay.
    pub(super) fn handle_challenge(&mut self, from: Hop, datagram: &[u8]) {
        if self.small.len() >= MAX_ANSWERS {
            return;
        }
        let mut issued = |pid: Pid| {
            self.table.find(pid).is_some_and(|(_, direction, flow)| flow.ends[direction as usize] == from)
        };
        if let Some(response) = answer_challenge(datagram, &mut issued, Some(&self.config.key)) {
            self.small.push_back(Outgoing { to: from, ecn: 0, datagram: Box::new(response) });
        }
    }
}
