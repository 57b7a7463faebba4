//! The fast path: one hash lookup for a run of packets, headers rewritten in place.
//!
//! Datagrams that the network card or the kernel joined (GRO) arrive as one run from one source. While they carry one
//! PID they leave as one run (GSO), and each packet costs reading its header and writing a new one. A run ends where
//! the PID changes or a packet is dropped. Only packets that must wait are copied.

use std::ops::Range;

use anabranch_wire::{Header, Kind, Pid, ResetToken, Time, rewrite_for_hop};

use super::egress::Outgoing;
use super::flow::Direction;
use super::message::FlowState;
use super::types::Hop;
use super::{Relay, exit};

const RESET_LEN: usize = Header::LEN + size_of::<ResetToken>();

/// Datagrams that arrived together.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The source.
    pub from: Hop,
    /// Bytes of each datagram but the last, which may be shorter.
    pub stride: usize,
    /// Their ECN bits.
    pub ecn: u8,
}

/// Datagrams to send at once, from the buffer in which they arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Their position.
    pub range: Range<usize>,
    /// Bytes of each but the last.
    pub stride: usize,
    /// The destination.
    pub to: Hop,
    /// Their ECN bits, as on arrival.
    pub ecn: u8,
}

/// Datagrams of one PID that follow each other.
struct Part {
    pid: Pid,
    kind: Kind,
    out: Pid,
    to: Hop,
    /// Longest datagram in this direction.
    largest: usize,
    account: u32,
    range: Range<usize>,
}

impl Relay {
    /// Prefetches the rows of the next packets. Otherwise each packet waits for memory, a third of the relay's work for
    /// a packet that arrives alone.
    pub fn look_ahead(&self, pids: &[Pid]) {
        self.table.touch(pids);
    }

    /// Handles datagrams that belong to no session of the service. Those that may be sent at once are added to `out`,
    /// to be sent from `bytes`; [`Relay::poll_transmit`] returns the others later.
    pub fn handle_run(&mut self, now: Time, run: Run, bytes: &mut [u8], out: &mut Vec<Forward>) {
        let stride = run.stride.max(1);
        let mut part: Option<Part> = None;
        let mut start = 0;
        while start < bytes.len() {
            let end = (start + stride).min(bytes.len());
            let range = start..end;
            start = end;
            let Some(header) = self.admit(&bytes[range.clone()]) else {
                self.finish(now, run, part.take(), (bytes, out));
                continue;
            };
            if part.as_ref().is_none_or(|part| part.pid != header.pid || part.kind != header.kind) {
                self.finish(now, run, part.take(), (bytes, out));
                part = self.find(now, run, (&header, &bytes[range.clone()]), range.start);
            }
            let Some(open) = part.as_mut() else { continue };
            if range.len() > open.largest {
                self.stats.dropped.too_long += 1;
                self.finish(now, run, part.take(), (bytes, out));
                continue;
            }
            if header.hop_limit > self.config.most_hops
                || rewrite_for_hop(&mut bytes[range.clone()], open.out).is_err()
            {
                self.stats.dropped.hop_limit += 1;
                self.finish(now, run, part.take(), (bytes, out));
                continue;
            }
            open.range.end = range.end;
        }
        self.finish(now, run, part, (bytes, out));
    }

    #[inline]
    fn admit(&mut self, datagram: &[u8]) -> Option<Header> {
        let header = Header::decode(datagram).ok();
        self.stats.dropped.malformed += u64::from(header.is_none());
        header.map(|(header, _)| header)
    }

    /// The destination of a datagram; `None` if it is not forwarded.
    fn find(
        &mut self,
        now: Time,
        run: Run,
        (header, datagram): (&Header, &[u8]),
        start: usize,
    ) -> Option<Part> {
        match header.kind {
            Kind::RelayChallenge => {
                self.handle_challenge(run.from, datagram);
                return None;
            }
            Kind::RelayResponse => {
                self.handle_response(now, (run.from, header.pid), &datagram[Header::LEN..]);
                return None;
            }
            Kind::Reset => return self.find_reset(now, run.from, (header.pid, start)),
            Kind::Init | Kind::InitAck | Kind::Cookie | Kind::Data => {}
        }
        let dropped = &mut self.stats.dropped;
        let Some((_, direction, flow)) = self.table.find(header.pid) else {
            dropped.unknown_pid += 1;
            return None;
        };
        let (here, there) = (direction as usize, 1 - direction as usize);
        if flow.ends[here] != run.from {
            dropped.wrong_source += 1;
            return None;
        }
        let is_kind = match (header.kind, direction) {
            (Kind::Data, Direction::Forward) => flow.out[0] != Pid::HANDSHAKE,
            // Towards the last relay of a chain, the datagram gets that relay's PID.
            (Kind::Init, Direction::Forward) => true,
            (Kind::Data | Kind::InitAck | Kind::Cookie, Direction::Back) => true,
            _ => false,
        };
        if !is_kind {
            dropped.wrong_kind += 1;
            return None;
        }
        if now >= flow.agreed_until {
            dropped.no_consent += 1;
            return None;
        }
        let (out, to, account) = (flow.out[here], flow.ends[there], flow.account);
        Some(Part {
            pid: header.pid,
            kind: header.kind,
            out,
            to,
            largest: exit::largest(&self.config.exits, to.socket),
            account,
            range: start..start,
        })
    }

    /// A reset names the PID that its receiver uses, which is not this relay's: the receiver sent it to this relay under
    /// another. Few are looked for, since all flows have to be looked through.
    fn find_reset(&mut self, now: Time, from: Hop, (pid, start): (Pid, usize)) -> Option<Part> {
        let is_looked_for = pid != Pid::HANDSHAKE && self.resets.admit(now, from.address.ip());
        let Some((slot, direction)) = is_looked_for.then(|| self.table.find_outgoing(from, pid)).flatten()
        else {
            self.stats.dropped.unknown_pid += 1;
            return None;
        };
        let flow = self.table.at(slot)?;
        if now >= flow.agreed_until {
            self.stats.dropped.no_consent += 1;
            return None;
        }
        let there = 1 - direction as usize;
        let (out, to, account) = (flow.own[there], flow.ends[there], flow.account);
        let largest = exit::largest(&self.config.exits, to.socket).min(RESET_LEN);
        let (kind, range) = (Kind::Reset, start..start);
        Some(Part { pid, kind, out, to, largest, account, range })
    }

    /// Sends a part on, or queues it. A packet counts against the quota even if the queue then drops it: its client
    /// sends too fast.
    fn finish(
        &mut self,
        now: Time,
        run: Run,
        part: Option<Part>,
        (bytes, out): (&mut [u8], &mut Vec<Forward>),
    ) {
        let Some(part) = part.filter(|part| !part.range.is_empty()) else { return };
        let stride = run.stride.max(1);
        let len = part.range.len() as u64;
        let packets = len.div_ceil(stride as u64);
        let account = self.accounts.at(part.account);
        if !account.charge(len) {
            self.stats.dropped.quota += packets;
            // Inform the owners now; new requests are refused for the same reason.
            for slot in account.flows.clone() {
                self.end_flow(slot, FlowState::QuotaUsed);
            }
            return;
        }
        let highest_tos = account.highest_tos();
        self.stats.forwarded.packets += packets;
        self.stats.forwarded.bytes += len;
        if self.egress.pass(now, part.account, len) {
            out.push(Forward { range: part.range, stride, to: part.to, ecn: run.ecn });
            return;
        }
        for datagram in bytes[part.range].chunks(stride) {
            let class = (datagram[1] >> 4).min(highest_tos);
            let packet = Outgoing { to: part.to, ecn: run.ecn, datagram: datagram.into() };
            let dropped = self.egress.enqueue(part.account, class, packet);
            self.stats.dropped.congested += dropped.packets;
            self.stats.forwarded.packets -= dropped.packets;
            self.stats.forwarded.bytes -= dropped.bytes;
        }
    }
}
