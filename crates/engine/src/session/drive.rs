//! Drives a session: incoming messages, outgoing messages, time.
//!
//! This file only decides the order of work. It fixes three orders: [`Session::handle_ack`] for the facts of an
//! acknowledgement, [`Session::poll_transmit`] for outgoing messages, and [`Session::deadlines`] for due work.

use std::mem::offset_of;
use std::ops::Range;

use anabranch_prefetch::prefetch;
use anabranch_wire::{
    Ack, Frame, Message, PACKET_OVERHEAD, Packet, PathId, Payload, ResetToken, Span, StreamFrame, StreamId,
    Time,
};

use super::Session;
use super::coupling::Acked;
use super::flight::{AckFact, Flight};
use super::handshake::Handshake;
use super::liveness::Echo;
use super::reports;
use super::sending::{Draft, LATE, Packets, finish};
use crate::control::Control;
use crate::event::{CloseReason, Event, ProtocolError};
use crate::path::{CHALLENGE_BYTES, Challenge, Content, Path, PathState, Received};
use crate::route::{Arrival, Transmit};
use crate::state::{State, Trigger};
use crate::stream::Streams;

/// Room that a packet needs for another report.
const REPORT_ROOM: usize = 48;

impl<P: Payload> Session<P> {
    /// Handles a received message. Packets are already authenticated.
    pub fn handle_message(&mut self, now: Time, arrival: &Arrival, mut message: Message<P>) {
        self.take_in(now, arrival, &mut message);
    }

    /// Handles a received message, and leaves its emptied lists to the caller.
    pub fn take_in(&mut self, now: Time, arrival: &Arrival, message: &mut Message<P>) {
        let (flight, control) = (&mut self.flight, &mut self.control);
        flight.clock.forget_timeout();
        match message {
            Message::Init(_) => Handshake::handle_init(now, flight, control, arrival.route),
            Message::InitAck(params) => {
                self.handshake.handle_init_ack(now, flight, control, (arrival, params));
            }
            Message::Packet(packet) => self.handle_packet(now, arrival, packet),
            Message::Reset(token) => self.handle_stateless_reset(now, *token),
        }
        self.handshake.stop_if_over(self.flight.state());
    }

    /// The bytes of a session that a packet needs, in up to two ranges: a packet that may acknowledge
    /// something, or one that does not.
    #[must_use]
    pub fn bytes_needed(acknowledges: bool) -> [Range<usize>; 2] {
        let flight = offset_of!(Self, flight);
        let choice = flight + offset_of!(Flight<P>, choice);
        let streams = flight + offset_of!(Flight<P>, streams);
        let (sending, arriving) = (Streams::<P>::FOR_ACKS, Streams::<P>::FOR_DATA);
        if acknowledges {
            [0..streams + sending.end, 0..0]
        } else {
            [offset_of!(Self, reports)..choice, streams + arriving.start..streams + arriving.end]
        }
    }

    /// Prefetches a path and a stream for a packet that arrives soon and may acknowledge something. The session itself
    /// must be in the cache.
    pub fn prefetch(&self, path: PathId, acknowledges: bool) {
        let flight = &self.flight;
        if let Some(place) = flight.paths.place_of(path) {
            prefetch(&flight.paths[place], 0..if acknowledges { Path::FOR_ACKS } else { Path::FOR_DATA });
        }
        flight.streams.prefetch();
        if acknowledges {
            flight.cc.prefetch(path);
        }
    }

    /// Prefetches for a packet that arrives soon: if it may acknowledge packets, those in flight on its path and the
    /// received parts of the stream, otherwise the received packets. Path and first stream must be in the cache.
    pub fn prefetch_flight(&self, path: PathId, acknowledges: bool) {
        let Some(place) = self.flight.paths.place_of(path) else { return };
        if acknowledges {
            self.flight.paths[place].board().prefetch();
            self.flight.streams.prefetch_acked();
        } else {
            self.flight.paths[place].receipt().prefetch();
        }
    }

    /// Prefetches the index of a stream's pieces, for a piece that arrives soon. The first stream must be in the cache.
    pub fn prefetch_held(&self, stream: StreamId) {
        self.flight.streams.prefetch_held(stream);
    }

    /// Prefetches the neighbours of a piece that arrives soon, after [`Self::prefetch_held`] has taken effect.
    pub fn prefetch_place(&self, stream: StreamId, offset: u64) {
        self.flight.streams.prefetch_place(stream, offset);
    }

    fn handle_stateless_reset(&mut self, now: Time, token: ResetToken) {
        let mut known = self.flight.paths.iter().filter_map(|path| path.proof().reset_token());
        if known.any(|known| known == token) {
            self.flight.end(now, CloseReason::Reset);
        }
    }

    /// Handles a packet. Takes frames out of it in place, to avoid moving them.
    fn handle_packet(&mut self, now: Time, arrival: &Arrival, packet: &mut Packet<P>) {
        match self.flight.state() {
            State::Closed => return self.handle_while_closed(now, arrival, packet),
            State::InitSent => return self.flight.stats.packets_ignored += 1,
            State::InitRecv => {
                Handshake::handle_first_packet(now, &mut self.flight, &mut self.control, arrival);
            }
            _ => {}
        }
        let Some(mut index) = self.control.path_of_packet(now, &mut self.flight, packet.path, arrival) else {
            self.flight.stats.packets_ignored += 1;
            return;
        };
        let known = self.flight.paths[index].receipt().is_known(packet.fsn);
        let Some(eliciting) = (!known).then(|| self.look_at_frames(&packet.frames)).flatten() else {
            self.flight.stats.packets_ignored += 1;
            return;
        };
        self.flight.clock.last_heard = now;
        self.note_arrival(now, index, arrival, packet, eliciting);
        for frame in &mut packet.frames {
            // A frame may have closed the session, or moved or removed the path.
            if !self.flight.paths.is_at(index, packet.path) {
                let Some(place) = self.flight.paths.place_of(packet.path) else { return };
                index = place;
            }
            if self.flight.state() == State::Closed {
                return;
            }
            if let Err(error) = self.handle_frame(now, index, arrival, frame) {
                return self.flight.end(now, CloseReason::Protocol(error));
            }
        }
        self.advance_shutdown();
    }

    /// Answers a packet for a closed session with its CLOSE, now and then.
    fn handle_while_closed(&mut self, now: Time, arrival: &Arrival, packet: &Packet<P>) {
        let flight = &mut self.flight;
        let Some(index) = flight.paths.place_of(packet.path) else { return };
        let received = Received { fsn: packet.fsn, size: arrival.size, eliciting: false, ecn: arrival.ecn };
        if let Some(is_newest) = flight.paths.on_received_late(index, now, received, &flight.config) {
            flight.life.on_late_packet(&flight.paths[index], arrival, is_newest);
        }
    }

    /// Whether frames ask for an acknowledgement. `None` if their data would need too many pieces for reassembly, or
    /// there is no room for a stream: then the packet counts as lost.
    fn look_at_frames(&mut self, frames: &[Frame<P>]) -> Option<bool> {
        let streams = &mut self.flight.streams;
        let mut eliciting = false;
        for frame in frames {
            let is_taken = match frame {
                Frame::Stream(frame) => streams.admits(frame) && streams.has_room_for(frame.stream),
                Frame::ResetStream { stream, .. }
                | Frame::StopSending { stream, .. }
                | Frame::MaxStreamData { stream, .. } => streams.has_room_for(*stream),
                _ => true,
            };
            if !is_taken {
                return None;
            }
            eliciting |= frame.is_ack_eliciting();
        }
        Some(eliciting)
    }

    fn note_arrival(
        &mut self,
        now: Time,
        index: usize,
        arrival: &Arrival,
        packet: &Packet<P>,
        eliciting: bool,
    ) {
        let flight = &mut self.flight;
        let received = Received { fsn: packet.fsn, size: arrival.size, eliciting, ecn: arrival.ecn };
        let newest = flight.paths.on_received(index, now, received, &flight.config);
        let path = &flight.paths[index];
        let moved = path.route() != arrival.route;
        if !moved && !path.allowance().is_proven() {
            flight.paths.edit(index).allowance_mut().on_received(arrival.size as u64);
        } else if moved && newest && !is_answer(packet) {
            self.control.notice_route(now, flight, index, arrival, is_challenge(packet));
        }
        if flight.paths[index].usage().is_metered() && flight.paths.meter_received(index) {
            self.control.live.rules.on_slice(flight, index);
        }
        self.reports.on_received(arrival.size);
    }

    fn handle_frame(
        &mut self,
        now: Time,
        index: usize,
        arrival: &Arrival,
        frame: &mut Frame<P>,
    ) -> Result<(), ProtocolError> {
        match frame {
            Frame::Ack(ack) => self.handle_ack(now, index, ack),
            Frame::Stream(frame) => self.handle_stream(index, frame),
            other => self.handle_rare_frame(now, index, arrival, std::mem::replace(other, Frame::Ping)),
        }
    }

    fn handle_stream(&mut self, index: usize, frame: &mut StreamFrame<P>) -> Result<(), ProtocolError> {
        let flight = &mut self.flight;
        let length = frame.data.len() as u64;
        let out = (&mut flight.out.events, &mut flight.out.control);
        let inserted = flight.streams.on_frame(frame, out)?;
        flight.paths.count_received_data(index, inserted.new, length - inserted.new);
        if inserted.ignorant {
            self.repeat_on = Some(flight.paths[index].id());
        }
        Ok(())
    }

    fn handle_rare_frame(
        &mut self,
        now: Time,
        index: usize,
        arrival: &Arrival,
        frame: Frame<P>,
    ) -> Result<(), ProtocolError> {
        let (flight, control) = (&mut self.flight, &mut self.control);
        let (streams, events) = (&mut flight.streams, &mut flight.out.events);
        match frame {
            Frame::Ping | Frame::Padding(_) | Frame::Ack(_) | Frame::Stream(_) => {}
            Frame::ResetStream { stream, code, final_size } => {
                streams.on_reset(stream, code, final_size, (events, &mut flight.out.control))?;
            }
            Frame::StopSending { stream, code } => {
                streams.on_stop(stream, code, (events, &mut flight.out.control))?;
            }
            Frame::MaxData { limit } => streams.on_max_data(limit),
            Frame::MaxStreamData { stream, limit, received } => {
                let out = (events, &mut flight.out.control);
                streams.on_max_stream_data(stream, (limit, received), out)?;
            }
            Frame::MaxStreams { limit } => streams.on_max_streams(limit, events),
            Frame::Datagram(datagram) => self.datagrams.handle_datagram(now, flight, index, datagram)?,
            Frame::Marked(marked) => self.datagrams.handle_marked(now, flight, index, marked)?,
            Frame::Parity(parity) => self.datagrams.handle_parity(now, flight, parity)?,
            Frame::PathChallenge { token } => {
                flight.paths.edit(index).proof_mut().owe_answer(token, arrival.route);
            }
            Frame::PathResponse { token } => control.handle_path_response(now, flight, token),
            Frame::NewPid(new) => {
                let on = flight.paths[index].id();
                control.ids.handle_new_pid(flight, on, new)?;
            }
            Frame::PathAbandon { path, reason } => control.handle_path_abandon(now, flight, path, reason)?,
            Frame::PathStatus(status) => control.handle_path_status(flight, status),
            Frame::MaxPathData { path, limit } => control.handle_max_path_data(flight, path, limit),
            Frame::AckPath(wish) => flight.acks.hear(wish),
            Frame::AddAddress(added) => self.addresses.handle_add(&mut flight.out, added),
            Frame::RemoveAddress { id } => self.addresses.handle_remove(&mut flight.out, id),
            Frame::ObservedAddress { path, address } => flight.observe(path, address),
            Frame::Report(report) => reports::handle_report(flight, &report),
            Frame::Shutdown => self.handle_shutdown(),
            Frame::ShutdownAck => self.handle_shutdown_ack(now),
            Frame::Close(close) => {
                let finished = close.code == 0 && flight.state() == State::ShutdownAckSent;
                let peer = CloseReason::Peer { code: close.code, reason: close.reason.into() };
                flight.end(now, if finished { CloseReason::Finished } else { peer });
            }
        }
        Ok(())
    }

    /// Handles an acknowledgement that arrived on the path at `via`. Its facts are used in this order:
    ///
    /// 1. streams and path ids: data, resets and abandons that arrived;
    /// 2. the path: round trip, ECN marks, packet size; coupling: the packet's delay;
    /// 3. congestion control: bytes, rate, marks;
    /// 4. liveness: a suspect path may have recovered;
    /// 5. losses: queued again, then coupling, then congestion control, since coupling decides which windows they
    ///    reduce;
    /// 6. liveness: a path that answers may be useless;
    /// 7. reviews of pacing, send limit, groups and paths left out.
    fn handle_ack(&mut self, now: Time, via: usize, ack: &Ack) -> Result<(), ProtocolError> {
        let (flight, control) = (&mut self.flight, &mut self.control);
        let Some(index) = flight.paths.place_of(ack.path) else { return Ok(()) };
        let via = flight.paths[via].id();
        let (outcome, resized) = flight.take_ranges(now, index, &ack.ranges)?;
        let facts = flight.take_facts();
        for fact in &facts {
            let out = (&mut flight.out.events, &mut flight.out.control);
            match fact {
                AckFact::Arrived(run) => flight.streams.on_acked(run, out),
                AckFact::ResetKnown(stream) => flight.streams.on_reset_acked(*stream, out.1),
                AckFact::AbandonKnown(path) => control.ids.on_abandon_known(*path),
            }
        }
        flight.return_facts(facts);
        if outcome.packets == 0 {
            return Ok(());
        }
        if let Some(sample) = outcome.rtt {
            let most = flight.peer.as_ref().map_or(0, |peer| peer.max_ack_delay_us);
            let ack_delay = ack.delay.min(Span::from_micros(u64::from(most)));
            if flight.paths.edit(index).sample_rtt(now, via, sample, ack_delay) {
                flight.cc.on_return_path_changed(ack.path);
            }
            if flight.wants_evidence {
                let acked = Acked { sample, ack_delay, arrived: ack.arrived };
                control.live.coupling.on_delay(now, flight, index, acked);
            }
        }
        let marks = flight.paths.edit(index).marks_mut();
        let marks = marks.on_ack(outcome.packets, ack.ecn, outcome.rtt.is_some());
        if resized {
            flight.on_size_changed(now, index);
        }
        flight.feed_congestion_control(now, index, &outcome, marks);
        let live = &mut control.live;
        live.revive(now, flight, index, outcome.rtt.map(|sample| Echo { sample, via }));
        live.detect_losses(now, flight, index);
        live.watch(now, flight, index, &outcome);
        let path = flight.paths.edit(index);
        // A failed path that has not recovered is still probed.
        if path.state() != PathState::Failed {
            let more_out = path.board().pipe() > 0;
            path.health_mut().on_ack(now, more_out);
        }
        if ack.path == PathId::FIRST {
            control.stay(flight);
        }
        flight.update_pacing(now, index);
        flight.update_send_limit();
        if flight.wants_evidence {
            control.live.coupling.review_in_time(now, flight);
        }
        if flight.has_rules {
            let live = &mut control.live;
            live.rules.review_suppression(now, flight, &live.coupling);
        }
        Ok(())
    }

    /// Continues a shutdown when all written data has been acknowledged.
    pub(super) fn advance_shutdown(&mut self) {
        let flight = &mut self.flight;
        let state = flight.state();
        if !matches!(state, State::ShutdownPending | State::ShutdownRecv) {
            return;
        }
        if !flight.streams.is_drained() || self.datagrams.wait() {
            return;
        }
        flight.life.trigger(Trigger::Drained);
        let is_first = state == State::ShutdownPending;
        flight.out.want(if is_first { Control::Shutdown } else { Control::ShutdownAck });
    }

    fn handle_shutdown(&mut self) {
        let flight = &mut self.flight;
        let before = flight.state();
        if flight.life.trigger(Trigger::Shutdown) && flight.state() != before {
            if before == State::ShutdownSent {
                flight.out.want(Control::ShutdownAck);
            } else {
                flight.out.events.push_back(Event::PeerClosing);
            }
        }
    }

    fn handle_shutdown_ack(&mut self, now: Time) {
        if self.flight.state().next(Trigger::ShutdownAck).is_some() {
            self.flight.end(now, CloseReason::Finished);
        }
    }

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
            State::Closed => return self.transmit_close(now),
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

    fn transmit_close(&mut self, now: Time) -> Option<Transmit<P>> {
        let flight = &mut self.flight;
        let (path, route, message) = flight.life.next_close()?;
        let index = flight.paths.place_of(path)?;
        let mut draft = Draft::new(usize::MAX, route);
        draft.push(Frame::Close(message));
        finish(now, flight, index, draft)
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
                let reply = self.control.ids.reply_frame(flight.paths[index].id());
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
        if flight.paths.want_probes()
            && let Some(index) = flight.paths.iter().position(wants)
        {
            flight.paths.edit(index).health_mut().take_probe();
            return self.sending.packets.build_probe(now, flight, index);
        }
        if flight.paths.wants().check_at > now {
            return None;
        }
        let mut found = None;
        for (index, path) in flight.paths.edit_all().enumerate() {
            let searches = path.is_reachable() && path.searches_mtu();
            // In addition to the window, but not with one so small that larger packets would gain nothing.
            let (window, left) = (flight.cc.window(path.id()), path.allowance().left());
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
            Control::AddAddress(_) | Control::RemoveAddress(_) => self.addresses.frame(control),
            Control::Shutdown => Some(Frame::Shutdown),
            Control::ShutdownAck => Some(Frame::ShutdownAck),
            _ => self.flight.frame(now, control),
        }
    }

    /// When to call [`Self::handle_timeout`], if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let clock = &self.flight.clock;
        if let Some(known) = clock.next_timeout.get() {
            return known;
        }
        let next = match self.flight.state() {
            State::Closed => self.flight.life.forget_at(),
            State::InitSent | State::InitRecv => Some(self.handshake.next_timeout(&self.flight.config)),
            _ => self.deadlines().into_iter().min().filter(|at| *at < Time::NEVER),
        };
        clock.next_timeout.set(Some(next));
        next
    }

    /// When each part of an established session is due: pacing or the scheduler, silence, keep-alive, rest,
    /// datagrams, paths.
    fn deadlines(&self) -> [Time; 6] {
        let flight = &self.flight;
        [
            flight.clock.wake_at,
            self.idle_at(),
            self.keep_alive_at(),
            self.rest_at(),
            self.datagrams.next_timeout(),
            self.control.next_timeout(flight),
        ]
    }

    fn idle_at(&self) -> Time {
        self.flight.clock.idle_at(&self.flight.config, self.flight.peer.as_ref())
    }

    /// When to keep the session alive. Without a usable path there is nothing to do; failed paths are probed anyway.
    fn keep_alive_at(&self) -> Time {
        let flight = &self.flight;
        let at = flight.clock.keep_alive_at(&flight.config, flight.life.side());
        at.filter(|_| flight.paths.best().is_some()).unwrap_or(Time::NEVER)
    }

    fn rest_at(&self) -> Time {
        let works = self.flight.state() == State::Established && !self.is_at_rest();
        if works { self.flight.clock.rest_at() } else { Time::NEVER }
    }

    /// True if the session has been quiet for a while, apart from keep-alives. Then a driver may free memory as well.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let flight = &self.flight;
        flight.state() == State::Established && flight.clock.is_at_rest(|| flight.packets())
    }

    /// Does all due work.
    pub fn handle_timeout(&mut self, now: Time) {
        let flight = &mut self.flight;
        flight.clock.forget_timeout();
        match flight.state() {
            State::Closed => return flight.life.handle_timeout(now),
            State::InitSent | State::InitRecv => {
                self.handshake.handle_timeout(now, flight);
                return self.handshake.stop_if_over(flight.state());
            }
            _ => {}
        }
        if self.idle_at() <= now {
            // Both ends have delivered everything; only the peer's final message is missing.
            let over = self.flight.state() == State::ShutdownAckSent;
            let reason = if over { CloseReason::Finished } else { CloseReason::IdleTimeout };
            return self.flight.end(now, reason);
        }
        if self.flight.clock.wake_at <= now {
            self.flight.clock.wake_at = Time::NEVER;
        }
        if self.keep_alive_at() <= now
            && let Some(best) = self.flight.paths.best()
        {
            self.flight.paths.edit(best).health_mut().want_probe();
        }
        if self.rest_at() <= now {
            self.rest();
        }
        self.datagrams.handle_timeout(now, &mut self.flight);
        self.control.handle_timeout(now, &mut self.flight);
        self.advance_shutdown();
    }

    /// Frees memory that recent work needed.
    fn rest(&mut self) {
        let packets = self.flight.packets();
        self.flight.clock.rest(packets);
        self.flight.shrink();
        self.datagrams.shrink();
        self.handshake.shrink();
        self.sending.shrink();
    }
}

/// True for an answer to a challenge. It goes to the challenge's source, so its route does not show the peer's address.
fn is_answer<P>(packet: &Packet<P>) -> bool {
    packet.frames.iter().any(|frame| matches!(frame, Frame::PathResponse { .. }))
}

/// True for a packet that asks whether an address can be used.
fn is_challenge<P>(packet: &Packet<P>) -> bool {
    packet.frames.iter().any(|frame| matches!(frame, Frame::PathChallenge { .. }))
}
