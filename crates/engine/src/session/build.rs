//! One packet: which frames go in, and what is noted about it when it leaves.

use anabranch_wire::{
    AckPath, AddressFrame, Frame, Message, NewPid, Packet, PathStatus, PathUse, Payload, Time,
};

use super::draft::Draft;
use super::{OVERHEAD, Session};
use crate::config::AckPolicy;
use crate::control::Control;
use crate::path::{CHALLENGE_BYTES, Challenge, Content, Contents, PathState};
use crate::route::Transmit;
use crate::stream::{Pick, SentRun};

impl<P: Payload> Session<P> {
    pub(super) fn draft(&self, index: usize) -> Draft<P> {
        let path = &self.paths[index];
        let mut room = (path.size() as u64).min(path.allowance.left()) as usize;
        if !path.allowance.is_proven() {
            room = room.min(usize::try_from(self.unproven_credit()).unwrap_or(usize::MAX));
        }
        Draft::new(room.saturating_sub(OVERHEAD), path.route)
    }

    /// Adds the acknowledgements that travel on this path.
    pub(super) fn add_acks(&mut self, now: Time, index: usize, draft: &mut Draft<P>) {
        let on_their_own = self.config.ack_policy == AckPolicy::SamePath && self.ack_path.0.is_none();
        let own = on_their_own.then_some(index);
        if let Some(first) = self.paths.next_to_acknowledge(0, own) {
            self.add_acks_from(now, (index, own), first, draft);
        }
    }

    /// The same from the first on that there is something to tell of: kept apart, for most packets with data have none.
    #[inline(never)]
    fn add_acks_from(
        &mut self,
        now: Time,
        (index, own): (usize, Option<usize>),
        first: usize,
        draft: &mut Draft<P>,
    ) {
        let mut next = Some(first);
        while let Some(other) = next {
            if self.ack_carrier(now, other) == index {
                self.add_ack(now, other, draft);
            }
            next = self.paths.next_to_acknowledge(other + 1, own);
        }
    }

    fn add_ack(&mut self, now: Time, of: usize, draft: &mut Draft<P>) {
        // Of a single path nothing is to be found out.
        let timed = self.paths.len() > 1 && self.peer.as_ref().is_some_and(|peer| peer.arrival_times);
        let path = &self.paths[of];
        self.room.for_another(&mut draft.frames);
        if let Some(ack) = path.receipt.acknowledge(now, (path.id, timed), || self.room.for_ranges())
            && draft.push(Frame::Ack(ack))
        {
            self.paths.change_receipt(of, |path| {
                let rtt = || path.ways_back.rtt().smoothed();
                path.receipt.on_acknowledged(now, rtt);
                path.stats.acks_sent += 1;
            });
        }
    }

    pub(super) fn build_ack(&mut self, now: Time, index: usize) -> Option<Transmit<P>> {
        if !self.paths[index].is_reachable() {
            return None;
        }
        let mut draft = self.draft(index);
        self.add_acks(now, index, &mut draft);
        self.finish_draft(now, index, draft)
    }

    pub(super) fn build_challenge(&mut self, now: Time, index: usize) -> Option<Transmit<P>> {
        let mut draft = self.draft(index);
        if let Some(reply) = self.reply_pid_frame(self.paths[index].id) {
            draft.push(Frame::NewPid(reply));
        }
        let path = &mut self.paths[index];
        let challenge = path.challenge.as_mut()?;
        challenge.on_sent(now);
        draft.route = challenge.route;
        draft.push(Frame::PathChallenge { token: challenge.token });
        if challenge.is_padded() && draft.route == path.route {
            // A path has to carry packets of the base size, or it is none.
            draft.whole = draft.whole.min(usize::from(self.config.mtu.base).saturating_sub(OVERHEAD));
            let fill = draft.room().saturating_sub(3) as u16;
            draft.push(Frame::Padding(fill));
        }
        let challenge = self.finish_draft(now, index, draft);
        let path = &mut self.paths[index];
        if path.id.opener() == self.side {
            path.allowance.allow_challenge();
        }
        challenge
    }

    pub(super) fn build_answer(&mut self, now: Time, index: usize) -> Option<Transmit<P>> {
        let mut draft = self.draft(index);
        let (token, route) = self.paths[index].answers.pop()?;
        if !self.is_proven(route.remote) && self.unproven_credit() < CHALLENGE_BYTES {
            return None;
        }
        draft.route = route;
        draft.push(Frame::PathResponse { token });
        let due = |challenge: &Challenge| challenge.due <= now && challenge.route == route;
        let asks = self.paths[index].challenge.as_deref().is_some_and(due);
        let room = draft.room() + OVERHEAD >= CHALLENGE_BYTES as usize;
        if asks
            && room
            && self.spend_challenge(now, index)
            && let Some(challenge) = &mut self.paths[index].challenge
        {
            challenge.on_sent(now);
            draft.push(Frame::PathChallenge { token: challenge.token });
        }
        self.finish_draft(now, index, draft)
    }

    /// A packet that makes the peer answer: data that is missing where there is some, else a PING.
    pub(super) fn build_probe(&mut self, now: Time, index: usize) -> Option<Transmit<P>> {
        let mut draft = self.draft(index);
        self.add_acks(now, index, &mut draft);
        // A path that is held back answers soonest when little is asked of it.
        let held = self.paths[index].trouble.is_held();
        let runs = || self.paths[index].board.oldest_runs();
        let copy = if held { None } else { runs().find_map(|run| self.streams.copy_of(run, draft.room())) };
        match copy {
            Some(frame) => drop(draft.add_stream(frame, &mut self.paths.aside(index).board)),
            None => drop(draft.push(Frame::Ping)),
        }
        if self.paths[index].trouble.is_on_trial() {
            let fill = draft.room().saturating_sub(3) as u16;
            draft.push(Frame::Padding(fill));
            let path = &mut self.paths[index];
            path.trouble.on_probe_sent(path.size() as u64);
        }
        self.finish_draft(now, index, draft)
    }

    pub(super) fn build_mtu_probe(&mut self, now: Time, index: usize, size: u16) -> Option<Transmit<P>> {
        let mut draft = Draft::new(usize::from(size) - OVERHEAD, self.paths[index].route);
        draft.push(Frame::Ping);
        let fill = draft.room().saturating_sub(3) as u16;
        draft.push(Frame::Padding(fill));
        draft.contents = Contents::One(Content::MtuProbe(size));
        self.paths[index].mtu.on_probe_sent();
        self.finish_draft(now, index, draft)
    }

    pub(super) fn build_control(&mut self, now: Time, index: usize) -> Option<Transmit<P>> {
        let mut draft = self.draft(index);
        self.add_acks(now, index, &mut draft);
        let mut last = None;
        while let Some(control) = self.control.after(last) {
            last = Some(control);
            let Some(frame) = self.control_frame(now, control) else {
                self.control.remove(control);
                continue;
            };
            self.room.for_another(&mut draft.frames);
            if !draft.push(frame) {
                break;
            }
            self.control.remove(control);
            self.paths.aside(index).board.add(&mut draft.contents, Content::Control(control));
        }
        while draft.room() > 48 && self.has_reports() {
            if let Some(report) = self.next_report() {
                draft.push(report);
            }
        }
        self.finish_draft(now, index, draft)
    }

    /// Builds a control frame from what is true now; `None` when it has become pointless.
    fn control_frame(&mut self, now: Time, control: Control) -> Option<Frame<P>> {
        let rtt = self.longest_rtt();
        Some(match control {
            Control::AckPath => Frame::AckPath(AckPath { sequence: self.primary.1, path: self.primary.0 }),
            Control::NewPid(path) => {
                let (pid, reset_token) = *self.local_pids.get(&path)?;
                Frame::NewPid(NewPid { path, pid, reset_token })
            }
            Control::PathAbandon(path) => Frame::PathAbandon { path, reason: *self.abandoned.get(&path)? },
            Control::PathStatus(path) => {
                let known = self.path(path)?;
                let usage: PathUse = known.usage;
                Frame::PathStatus(PathStatus { path, sequence: known.usage_sequence, usage })
            }
            Control::MaxPathData(path) => {
                let limit = self.path(path)?.peer_limit.min(anabranch_wire::VARINT_MAX);
                Frame::MaxPathData { path, limit }
            }
            Control::ResetStream(stream) => {
                let (code, final_size) = self.streams.reset_frame(stream)?;
                Frame::ResetStream { stream, code, final_size }
            }
            Control::StopSending(stream) => {
                Frame::StopSending { stream, code: self.streams.stop_code(stream)? }
            }
            Control::MaxData => Frame::MaxData { limit: self.streams.renew_data(now, rtt) },
            Control::MaxStreamData(stream) => {
                let (limit, received) = self.streams.renew_stream(stream, now, rtt)?;
                Frame::MaxStreamData { stream, limit, received }
            }
            Control::MaxStreams => Frame::MaxStreams { limit: self.streams.stream_limit() },
            Control::AddAddress(id) => {
                let (_, address) = self.addresses.ours.iter().find(|(known, _)| *known == id)?;
                Frame::AddAddress(AddressFrame { id, address: *address })
            }
            Control::RemoveAddress(id) => Frame::RemoveAddress { id },
            Control::ObservedAddress(path) => {
                Frame::ObservedAddress { path, address: self.path(path)?.route.remote }
            }
            Control::Shutdown => Frame::Shutdown,
            Control::ShutdownAck => Frame::ShutdownAck,
        })
    }

    fn longest_rtt(&self) -> anabranch_wire::Span {
        let live = self.paths.iter().filter(|path| path.rtt().has_sample());
        live.map(|path| path.rtt().smoothed()).max().unwrap_or(self.config.initial_rtt)
    }

    /// A packet of stream data, with the acknowledgements that travel on this path.
    pub(super) fn build_data(&mut self, now: Time, index: usize, pick: Pick) -> Option<Transmit<P>> {
        let mut draft = self.draft(index);
        self.fill_draft(now, index, pick, &mut draft);
        self.finish_draft(now, index, draft)
    }

    pub(super) fn fill_draft(&mut self, now: Time, index: usize, pick: Pick, draft: &mut Draft<P>) {
        self.add_acks(now, index, draft);
        while draft.room() > 0 && !draft.is_full() {
            let next = self.streams.next_frame(draft.room(), pick, &mut self.events);
            let Some((frame, resend)) = next else { break };
            if resend {
                self.stats.bytes_resent += frame.data.len() as u64;
            }
            self.room.for_another(&mut draft.frames);
            let run = draft.add_stream(frame, &mut self.paths.aside(index).board);
            self.copy_elsewhere(index, &run, resend);
        }
        // Without data, acknowledgements that are in it leave all the same: they count as told.
        self.paths.aside(index).stats.data_sent += draft.data;
    }

    /// A packet with all of these runs once more; `None` when they do not fit or the peer has some already.
    pub(super) fn build_relief(&mut self, now: Time, index: usize, runs: &[SentRun]) -> Option<Transmit<P>> {
        let mut draft = self.draft(index);
        for run in runs {
            let frame = self.streams.copy_of(run, draft.room())?;
            if frame.offset + (frame.data.len() as u64) < run.end() {
                return None;
            }
            draft.add_stream(frame, &mut self.paths.aside(index).board);
        }
        let copied = draft.data;
        self.add_acks(now, index, &mut draft);
        self.stats.bytes_copied += copied;
        self.paths.aside(index).stats.data_sent += copied;
        self.finish_draft(now, index, draft)
    }

    /// Numbers a packet and notes it with everything that counts what leaves.
    pub(super) fn finish_draft(&mut self, now: Time, index: usize, draft: Draft<P>) -> Option<Transmit<P>> {
        let pid = self.paths[index].remote_pid?;
        if draft.frames.is_empty() {
            return None;
        }
        let size = draft.size();
        // That a question or an answer arrived by another way says nothing of the path: nobody waits for it to be acknowledged.
        let strays = draft.route != self.paths[index].route;
        if strays || !self.paths[index].allowance.is_proven() {
            self.note_unproven(draft.route, size as u64);
        }
        let eliciting = draft.eliciting && !strays;
        // What restarts may find its window smaller.
        let restarts = eliciting && self.paths[index].board.pipe() == 0;
        let path = if restarts { &mut self.paths[index] } else { self.paths.aside(index) };
        if path.board.skip_is_due() {
            path.board.skip(self.pids.next_pid().0.0);
        }
        // A probe of the path MTU that vanishes says nothing about the path, and nobody may notice for long:
        // it counts neither as in flight nor as owed an acknowledgement.
        let is_probe = draft.contents.is_mtu_probe();
        let fsn = path.board.next_fsn();
        if eliciting {
            if restarts && path.board.last_sent_at() > Time::ZERO {
                self.cc.on_idle_restart(path.id, now);
            }
            if !is_probe {
                path.health.on_sent(now);
            }
            // Control frames and probes, which pacing never holds back, use up no credit either: under a low rate
            // they would leave none to data for ever.
            if draft.paced {
                path.pacer.on_sent(size as u64);
            }
        }
        if strays {
            path.board.on_stray();
        } else {
            path.board.on_sent(now, if is_probe { 0 } else { size as u16 }, eliciting, draft.contents);
        }
        // What probes a failed path takes nothing from a window that it shares with others.
        if eliciting && !is_probe && path.state != PathState::Failed {
            self.cc.on_sent(path.id, now, size as u64, path.board.pipe());
        }
        path.allowance.on_sent(size as u64);
        path.stats.packets_sent += 1;
        path.stats.bytes_sent += size as u64;
        // What proves or probes a path that does not work keeps nothing alive.
        if matches!(path.state, PathState::Active | PathState::Suspect) {
            self.last_sent = now;
        }
        let (id, ecn, metered) = (path.id, path.marks.is_enabled(), path.meter.is_some());
        self.paths.on_sent(index, eliciting);
        if metered {
            self.note_spent(index);
        }
        let message = Message::Packet(Packet { path: id, fsn, frames: draft.frames });
        Some(Transmit { route: draft.route, pid, path: id, message, size, ecn })
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Ack, Frames, Fsn, Length, PathId, Pid, ResetToken, Span};

    use super::super::handshake::local_params;
    use super::*;
    use crate::route::Route;
    use crate::{Arrival, Config, Ecn, MemoryBudget, PidSource};

    struct Pids(u64);

    impl PidSource for Pids {
        fn next_pid(&mut self) -> (Pid, ResetToken) {
            self.0 += 1;
            (Pid(self.0), ResetToken([1; 16]))
        }
    }

    fn route(host: u8) -> Route {
        Route { socket: 0, remote: ([192, 0, 2, host], 443).into() }
    }

    /// A server that was called over the first route, and has sent what it sends at once.
    fn server(now: Time) -> Session<Length> {
        let params = local_params(&Config::default(), (Pid(9), ResetToken([2; 16])), 1 << 20);
        let budget = MemoryBudget::new(1 << 30);
        let mut session =
            Session::accept(Config::default(), (params, route(1)), Box::new(Pids(0)), budget, now).unwrap();
        while session.poll_transmit(now).is_some() {}
        session
    }

    /// A packet of path 0 arrives.
    fn arrive(session: &mut Session<Length>, now: Time, from: Route, (fsn, frame): (u64, Frame<Length>)) {
        let packet = Packet { path: PathId::FIRST, fsn: Fsn(fsn), frames: Frames::from_iter([frame]) };
        let arrival = Arrival { route: from, size: 60, ecn: Ecn::NotEct };
        session.handle_message(now, &arrival, Message::Packet(packet));
    }

    #[test]
    fn an_acknowledgement_taken_along_by_data_leaves_when_there_is_no_data_after_all() {
        let now = Time::ZERO + Span::from_secs(1);
        let mut session = server(now);
        for fsn in 0..2 {
            arrive(&mut session, now, route(1), (fsn, Frame::Ping));
        }
        let sent = session.build_data(now, 0, Pick::MissingFirst).unwrap();
        assert!(matches!(sent.message.packet().unwrap().frames[..], [Frame::Ack(_)]));
    }

    #[test]
    fn a_question_that_went_another_way_and_is_not_answered_is_no_silence_of_the_path() {
        let mut now = Time::ZERO + Span::from_secs(1);
        let mut session = server(now);
        arrive(&mut session, now, route(1), (0, Frame::Ping));
        while session.poll_transmit(now).is_some() {}
        let ranges = std::iter::once(0..session.paths[0].board.next_fsn().0).collect();
        let ack = Ack { path: PathId::FIRST, delay: Span::ZERO, arrived: None, ranges, ecn: None };
        arrive(&mut session, now, route(1), (1, Frame::Ack(ack)));
        arrive(&mut session, now, route(2), (2, Frame::Ping));
        let mut asked = 0;
        while let Some(next) = session.poll_timeout().filter(|at| *at < Time::ZERO + Span::from_secs(20)) {
            now = now.max(next);
            session.handle_timeout(now);
            while let Some(sent) = session.poll_transmit(now) {
                asked += u32::from(sent.route == route(2));
            }
        }
        let path = &session.paths()[0];
        assert_eq!((path.state, path.route, path.stats.probe_timeouts), (PathState::Active, route(1), 0));
        assert_eq!(asked, 3, "questions: as many as 180 bytes allow");
    }
}
