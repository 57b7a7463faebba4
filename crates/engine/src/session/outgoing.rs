//! Produces outgoing messages. [`Session::poll_transmit`] determines their order.

use anabranch_wire::{Frame, PACKET_OVERHEAD, Payload, Time};

use super::Session;
use super::sending::{Draft, LATE, Packets, finish};
use crate::control::Control;
use crate::path::{CHALLENGE_BYTES, Challenge, Content, Path};
use crate::route::Transmit;
use crate::state::State;

/// Room in a packet for another report, in bytes.
const REPORT_ROOM: usize = 48;

impl<P: Payload> Session<P> {
    /// The next message to send now. Packets of equal size over one route follow each other.
    ///
    /// The order is: handshake or closing messages; answers to late copies of INIT; challenges and their answers;
    /// probes; control frames and reports, on the fastest path; late acknowledgements; data, where the scheduler
    /// decides; due acknowledgements without data to travel with.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit<P>> {
        let wake_at = self.flight.clock.wake_at;
        let transmit = self.next_transmit(now);
        if let Some(index) = self.flight.new_slice.take() {
            self.control.live.rules.on_slice(&mut self.flight, index);
        }
        if let Some((address, bytes)) = self.flight.sent_unproven.take() {
            self.control.on_sent_unproven(&mut self.flight, address, bytes);
        }
        if transmit.is_some() || self.flight.clock.wake_at != wake_at {
            self.flight.clock.forget_timeout();
        }
        transmit
    }

    fn next_transmit(&mut self, now: Time) -> Option<Transmit<P>> {
        match self.flight.state() {
            State::Closed => {
                if self.flight.life.frees_memory() {
                    self.flight.streams.end();
                }
                return self.transmit_close(now);
            }
            State::InitSent | State::InitRecv => return self.transmit_handshake(now),
            _ => {}
        }
        self.flight.clock.wake_at = Time::NEVER;
        self.reports.prepare(&self.flight.paths);
        self.flight.refresh_paths();
        if self.has_urgent(now) {
            let urgent = self.transmit_urgent(now);
            if urgent.is_some() {
                return urgent;
            }
            self.flight.refresh_paths();
        }
        self.sending.poll_transmit(now, &mut self.flight, &mut self.datagrams)
    }

    /// True when something may leave before data, which is rare.
    #[inline]
    fn has_urgent(&self, now: Time) -> bool {
        let flight = &self.flight;
        let wants = flight.paths.wants();
        let by_time = wants.check_at <= now || wants.ack_at <= now - LATE;
        let asked = flight.paths.want_probes() || !flight.out.greetings.is_empty();
        by_time || asked || !flight.out.control.is_empty() || self.reports.are_pending()
    }

    #[inline(never)]
    fn transmit_urgent(&mut self, now: Time) -> Option<Transmit<P>> {
        let late = if !self.flight.out.greetings.is_empty() { self.transmit_handshake(now) } else { None };
        late.or_else(|| self.transmit_proof(now))
            .or_else(|| self.transmit_probe(now))
            .or_else(|| self.transmit_control(now))
            .or_else(|| self.sending.transmit_ack(now, &mut self.flight, now - LATE))
    }

    fn transmit_handshake(&mut self, now: Time) -> Option<Transmit<P>> {
        self.handshake.poll_transmit(now, &mut self.flight, &mut self.control.race)
    }

    /// The next CLOSE. It leaves for the address of an unproven path only if the peer has sent enough bytes. Answers to
    /// late packets from other addresses have a limit of their own.
    fn transmit_close(&mut self, now: Time) -> Option<Transmit<P>> {
        let (flight, control) = (&mut self.flight, &self.control);
        while let Some((id, route, message)) = flight.life.next_close() {
            let Some(index) = flight.paths.place_of(id) else { continue };
            let path = &flight.paths[index];
            let may_leave = path.route() != route || path.allowance().is_proven();
            let mut draft = Draft::new(usize::MAX, route);
            draft.push(Frame::Close(message));
            let has_credit = draft.size() as u64 <= flight.credit.left(&flight.paths);
            if may_leave || has_credit || control.is_proven(flight, route.remote) {
                return finish(now, flight, index, draft);
            }
        }
        None
    }

    /// Challenges and answers to them.
    fn transmit_proof(&mut self, now: Time) -> Option<Transmit<P>> {
        let flight = &mut self.flight;
        if flight.paths.wants().check_at > now {
            return None;
        }
        let wants = |path: &Path| {
            let challenge = path.proof().challenge();
            let asks = challenge.is_some_and(|challenge| challenge.due <= now && challenge.is_allowed());
            let owes = path.proof().owes_answers();
            path.is_reachable() && (owes || (asks && path.allowance().left() > 0))
        };
        while let Some(index) = flight.paths.iter().position(wants) {
            if flight.paths[index].proof().owes_answers() {
                return self.transmit_answer(now, index);
            }
            if self.control.spend_challenge(now, flight, index) {
                let path = &flight.paths[index];
                // A challenge to an address from which a packet came must be short.
                let stays = path.proof().challenge().is_some_and(|asked| asked.route == path.route());
                let reply = self.control.ids.reply_frame(path.id()).filter(|_| stays);
                return Packets::build_challenge(now, flight, index, reply);
            }
            if let Some(challenge) = flight.paths.edit(index).proof_mut().challenge_mut() {
                challenge.postpone(now);
            }
        }
        None
    }

    /// An answer to a challenge, with a challenge that is due over the same route.
    fn transmit_answer(&mut self, now: Time, index: usize) -> Option<Transmit<P>> {
        let (flight, control) = (&mut self.flight, &mut self.control);
        let mut draft = Packets::draft(flight, index);
        let (token, route) = flight.paths.edit(index).proof_mut().pop_answer()?;
        let has_credit = flight.credit.left(&flight.paths) >= CHALLENGE_BYTES;
        if !has_credit && !control.is_proven(flight, route.remote) {
            return None;
        }
        draft.route = route;
        draft.push(Frame::PathResponse { token });
        let is_due = |challenge: &Challenge| challenge.due <= now && challenge.route == route;
        let asks = flight.paths[index].proof().challenge().is_some_and(is_due);
        let room = draft.room() + PACKET_OVERHEAD >= CHALLENGE_BYTES as usize;
        if asks
            && room
            && control.spend_challenge(now, flight, index)
            && let Some(challenge) = flight.paths.edit(index).proof_mut().challenge_mut()
        {
            challenge.on_sent(now);
            draft.push(Frame::PathChallenge { token: challenge.token });
        }
        finish(now, flight, index, draft)
    }

    /// Probes of doubtful paths and of the path MTU, and keep-alives.
    fn transmit_probe(&mut self, now: Time) -> Option<Transmit<P>> {
        let flight = &mut self.flight;
        let wants = |path: &Path| path.health().wants_probe() && path.is_reachable();
        if flight.paths.want_probes() {
            while let Some(index) = flight.paths.iter().position(wants) {
                flight.paths.edit(index).health_mut().take_probe();
                // A path at its limit sends none, and holds up none of the others.
                let probe = self.sending.packets.build_probe(now, flight, index);
                if probe.is_some() {
                    return probe;
                }
            }
        }
        if flight.paths.wants().check_at > now {
            return None;
        }
        let mut found = None;
        for (index, path) in flight.paths.edit_all().enumerate() {
            let searches = path.is_reachable() && path.searches_mtu();
            // In addition to the window, but not with one so small that larger packets would gain nothing.
            let (window, left) = (flight.cc.window(path.id()), path.allowance().left_for_data());
            let spare = |size: &u16| window >= u64::from(*size) * 3 && left >= u64::from(*size);
            if searches && let Some(size) = path.mtu_mut().next_probe(now).filter(|size| spare(size)) {
                found = Some((index, size));
                break;
            }
        }
        let (index, size) = found?;
        Packets::build_mtu_probe(now, flight, index, size)
    }

    /// Sends control frames and reports on the fastest path, regardless of its window: they are few and small, and
    /// others wait for them. A repeated message is answered on the path on which it arrived: another path may be dead,
    /// and an end that only receives does not know.
    fn transmit_control(&mut self, now: Time) -> Option<Transmit<P>> {
        let paths = &self.flight.paths;
        if self.flight.out.control.is_empty() && !self.reports.are_pending() {
            return None;
        }
        let repeat = self.repeat_on.take().and_then(|path| paths.place_of(path));
        let repeat = repeat.filter(|index| paths.may_carry(&paths[*index]));
        let index = repeat.or_else(|| paths.best())?;
        let mut draft = Packets::draft(&self.flight, index);
        self.sending.packets.add_acks(now, &mut self.flight, index, &mut draft);
        let mut last = None;
        while let Some(control) = self.flight.out.control.after(last) {
            last = Some(control);
            let Some(frame) = self.frame_for(now, control) else {
                self.flight.out.control.remove(control);
                continue;
            };
            self.sending.packets.spare.for_another(&mut draft.frames);
            if !draft.push(frame) {
                break;
            }
            self.flight.out.control.remove(control);
            self.flight.paths.add_content(index, &mut draft.contents, Content::Control(control));
        }
        while draft.room() > REPORT_ROOM && self.reports.are_pending() {
            if let Some(report) = self.reports.next_frame(&self.flight) {
                draft.push(report);
            }
        }
        finish(now, &mut self.flight, index, draft)
    }

    /// Has the owner of a control frame write it; `None` if it is no longer needed.
    fn frame_for(&mut self, now: Time, control: Control) -> Option<Frame<P>> {
        match control {
            Control::AckPath => Some(self.flight.acks.frame()),
            Control::NewPid(_) | Control::PathAbandon(_) => self.control.ids.frame(control),
            Control::KeyExchange => self.exchanges.frame(),
            Control::AddAddress(_) | Control::RemoveAddress(_) => self.addresses.frame(control),
            Control::Shutdown => Some(Frame::Shutdown),
            Control::ShutdownAck => Some(Frame::ShutdownAck),
            _ => self.flight.frame(now, control),
        }
    }
}
