//! Builds packets: selects the frames, and updates all counters when a packet leaves.

use anabranch_wire::{Frame, Message, NewPid, PACKET_OVERHEAD, Packet, Payload, Time};

use super::copies;
use super::draft::Draft;
use super::spare_lists::SpareLists;
use crate::path::{Content, Contents, Departure, PathState};
use crate::route::Transmit;
use crate::session::flight::Flight;
use crate::stream::{Pick, SentRun};

/// Bytes of a PADDING frame without its padding.
const PADDING_FRAME: usize = 3;

/// Builds packets, with lists to reuse.
pub(in crate::session) struct Packets<P> {
    pub spare: SpareLists<P>,
}

impl<P> Default for Packets<P> {
    fn default() -> Self {
        Self { spare: SpareLists::default() }
    }
}

impl<P: Payload> Packets<P> {
    /// An empty packet, limited by the path's packet size and allowance.
    #[inline]
    pub(in crate::session) fn draft(flight: &Flight<P>, index: usize) -> Draft<P> {
        let path = &flight.paths[index];
        let mut room = (path.size() as u64).min(path.allowance().left()) as usize;
        if !path.allowance().is_proven() {
            room = room.min(usize::try_from(flight.credit.left(&flight.paths)).unwrap_or(usize::MAX));
        }
        Draft::new(room.saturating_sub(PACKET_OVERHEAD), path.route())
    }

    /// Adds the acknowledgements that travel on this path.
    #[inline]
    pub(in crate::session) fn add_acks(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        draft: &mut Draft<P>,
    ) {
        let own = flight.acks.are_on_own_paths(&flight.config).then_some(index);
        if let Some(first) = flight.paths.next_to_acknowledge(0, own) {
            self.add_acks_from(now, flight, first, index, draft);
        }
    }

    /// Adds acknowledgements, starting at the path `first`. Out of line, since most packets with data carry none.
    #[inline(never)]
    fn add_acks_from(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        first: usize,
        index: usize,
        draft: &mut Draft<P>,
    ) {
        let own = flight.acks.are_on_own_paths(&flight.config).then_some(index);
        let mut next = Some(first);
        while let Some(other) = next {
            if flight.acks.carrier(now, other, &flight.paths, &flight.config) == index {
                self.add_ack(now, flight, other, draft);
            }
            next = flight.paths.next_to_acknowledge(other + 1, own);
        }
    }

    fn add_ack(&mut self, now: Time, flight: &mut Flight<P>, of: usize, draft: &mut Draft<P>) {
        // Arrival times are only useful for comparing paths.
        let timed = flight.paths.len() > 1 && flight.peer.as_ref().is_some_and(|peer| peer.arrival_times);
        let path = &flight.paths[of];
        self.spare.for_another(&mut draft.frames);
        if let Some(ack) = path.receipt().acknowledge(now, (path.id(), timed), || self.spare.for_ranges())
            && draft.push(Frame::Ack(ack))
        {
            flight.paths.on_acknowledged(of, now);
        }
    }

    /// A packet with only acknowledgements.
    pub(super) fn build_ack(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
    ) -> Option<Transmit<P>> {
        if !flight.paths[index].is_reachable() {
            return None;
        }
        let mut draft = Self::draft(flight, index);
        self.add_acks(now, flight, index, &mut draft);
        finish(now, flight, index, draft)
    }

    /// A challenge. On a path through relays, `reply` is the PID that the peer must use.
    pub(in crate::session) fn build_challenge(
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        reply: Option<NewPid>,
    ) -> Option<Transmit<P>> {
        let mut draft = Self::draft(flight, index);
        if let Some(reply) = reply {
            draft.push(Frame::NewPid(reply));
        }
        let path = flight.paths.edit(index);
        let route = path.route();
        let challenge = path.proof_mut().challenge_mut()?;
        challenge.on_sent(now);
        draft.route = challenge.route;
        draft.push(Frame::PathChallenge { token: challenge.token });
        if challenge.is_padded() && draft.route == route {
            // A path is useful only if it carries packets of the base size.
            let base = usize::from(flight.config.mtu.base);
            draft.whole = draft.whole.min(base.saturating_sub(PACKET_OVERHEAD));
            pad(&mut draft);
        }
        let sent = finish(now, flight, index, draft);
        let side = flight.life.side();
        let path = flight.paths.edit(index);
        if path.id().opener() == side {
            path.allowance_mut().allow_challenge();
        }
        sent
    }

    /// A packet that the peer must acknowledge: with missing data if there is any, otherwise a PING.
    pub(in crate::session) fn build_probe(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
    ) -> Option<Transmit<P>> {
        let path = &flight.paths[index];
        if path.trouble().is_on_trial() && path.allowance().left() < path.size() as u64 {
            flight.paths.edit(index).trouble_mut().put_off_trial(now);
        }
        let mut draft = Self::draft(flight, index);
        self.add_acks(now, flight, index, &mut draft);
        let path = &flight.paths[index];
        // Small probes are the fastest test of whether a held path has recovered, and leave more of a limit.
        let is_small = path.trouble().is_held() || path.allowance().waits_for_peer(path.size() as u64);
        let oldest = if is_small {
            None
        } else {
            path.board().oldest_runs().find_map(|run| flight.streams.copy_of(run, draft.room()))
        };
        match oldest {
            Some(frame) => drop(draft.add_stream(frame, &mut flight.paths, index)),
            None => drop(draft.push(Frame::Ping)),
        }
        if flight.paths[index].trouble().is_on_trial() {
            pad(&mut draft);
            let path = flight.paths.edit(index);
            let size = path.size() as u64;
            path.trouble_mut().on_probe_sent(size);
        }
        finish(now, flight, index, draft)
    }

    /// A probe of the path MTU.
    pub(in crate::session) fn build_mtu_probe(
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        size: u16,
    ) -> Option<Transmit<P>> {
        let route = flight.paths[index].route();
        let mut draft = Draft::new(usize::from(size) - PACKET_OVERHEAD, route);
        draft.push(Frame::Ping);
        pad(&mut draft);
        draft.contents = Contents::One(Content::MtuProbe(size));
        flight.paths.edit(index).mtu_mut().on_probe_sent();
        finish(now, flight, index, draft)
    }

    /// A packet of stream data, with the acknowledgements that travel on this path.
    pub(super) fn build_data(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        pick: Pick,
    ) -> Option<Transmit<P>> {
        let mut draft = Self::draft(flight, index);
        self.fill(now, flight, index, pick, &mut draft);
        finish(now, flight, index, draft)
    }

    /// Fills a packet with acknowledgements and stream data.
    #[inline]
    pub(super) fn fill(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        pick: Pick,
        draft: &mut Draft<P>,
    ) {
        self.add_acks(now, flight, index, draft);
        while draft.room() > 0 && !draft.is_full() {
            let next = flight.streams.next_frame(draft.room(), pick, &mut flight.out.events);
            let Some((frame, resend)) = next else { break };
            if resend {
                flight.stats.bytes_resent += frame.data.len() as u64;
            }
            self.spare.for_another(&mut draft.frames);
            let run = draft.add_stream(frame, &mut flight.paths, index);
            copies::copy_to_others(flight, index, &run, resend);
        }
        // The packet leaves even without data, since the acknowledgements in it count as sent.
        flight.paths.count_sent_data(index, draft.data);
    }

    /// A packet with copies of all these runs; `None` if they do not fit, or the peer already has some.
    pub(super) fn build_relief(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        runs: &[SentRun],
    ) -> Option<Transmit<P>> {
        let mut draft = Self::draft(flight, index);
        for run in runs {
            let frame = flight.streams.copy_of(run, draft.room())?;
            if frame.offset + (frame.data.len() as u64) < run.end() {
                return None;
            }
            draft.add_stream(frame, &mut flight.paths, index);
        }
        let copied = draft.data;
        self.add_acks(now, flight, index, &mut draft);
        flight.stats.bytes_copied += copied;
        flight.paths.count_sent_data(index, copied);
        finish(now, flight, index, draft)
    }
}

/// Fills a packet with padding.
fn pad<P: Payload>(draft: &mut Draft<P>) {
    let fill = draft.room().saturating_sub(PADDING_FRAME) as u16;
    draft.push(Frame::Padding(fill));
}

/// Numbers a packet and counts it everywhere.
pub(in crate::session) fn finish<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    index: usize,
    draft: Draft<P>,
) -> Option<Transmit<P>> {
    let path = &flight.paths[index];
    let pid = path.remote_pid()?;
    if draft.frames.is_empty() {
        return None;
    }
    let (id, size) = (path.id(), draft.size());
    // The acknowledgement of a challenge or answer on another route says nothing about the path, so none is expected.
    let strays = draft.route != path.route();
    if strays || !path.allowance().is_proven() {
        flight.sent_unproven = Some((draft.route.remote, size as u64));
    }
    let eliciting = draft.eliciting && !strays;
    let restarts = eliciting && path.board().pipe() == 0;
    if path.board().skip_is_due() {
        let random = flight.next_token();
        flight.paths.skip_number(index, random);
    }
    let fsn = flight.paths[index].board().next_fsn();
    if restarts {
        // The window may be smaller after an idle time.
        flight.paths.forget(index);
        if flight.paths[index].board().last_sent_at() > Time::ZERO {
            flight.cc.on_idle_restart(id, now);
        }
    }
    let is_probe = draft.contents.is_mtu_probe();
    let Draft { route, frames, contents, paced, .. } = draft;
    flight.paths.on_sent(index, Departure { now, size, eliciting, strays, paced, contents });
    let path = &flight.paths[index];
    // Probes of a failed path use nothing of a window that it shares with others.
    if eliciting && !is_probe && path.state() != PathState::Failed {
        flight.cc.on_sent(id, now, size as u64, path.board().pipe());
    }
    // Proofs, and probes of a path that does not work, do not keep a path alive.
    if path.state().is_alive() {
        flight.clock.last_sent = now;
    }
    let ecn = path.marks().is_enabled();
    if path.usage().is_metered() && flight.paths.meter_sent(index) {
        flight.new_slice = Some(index);
    }
    let message = Message::Packet(Packet { path: id, fsn, frames });
    Some(Transmit { route, pid, path: id, message, size, ecn })
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Ack, Frames, Fsn, Length, PathId, Pid, ResetToken, Span};

    use super::*;
    use crate::manager::Fault;
    use crate::path::{Answer, Path, PathEvent};
    use crate::route::Route;
    use crate::session::Session;
    use crate::session::handshake::local_params;
    use crate::{Arrival, Config, Ecn, Init, MemoryBudget, PidSource};

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

    /// A server that received INIT over the first route and has sent its answer.
    fn server(now: Time) -> Session<Length> {
        let params = local_params(&Config::default(), (Pid(9), ResetToken([2; 16])), 1 << 20);
        let budget = MemoryBudget::new(1 << 30);
        let mut session = Session::accept(
            Config::default(),
            Init { params, route: route(1) },
            Box::new(Pids(0)),
            budget,
            now,
        )
        .unwrap();
        while session.poll_transmit(now).is_some() {}
        session
    }

    /// A packet of path 0 arrives.
    fn arrive(session: &mut Session<Length>, now: Time, from: Route, (fsn, frame): (u64, Frame<Length>)) {
        let packet = Packet { path: PathId::FIRST, fsn: Fsn(fsn), frames: Frames::from_iter([frame]) };
        let arrival = Arrival { route: from, size: 60, ecn: Ecn::NotEct, waited: Span::ZERO };
        session.handle_message(now, &arrival, Message::Packet(packet));
    }

    #[test]
    fn an_acknowledgement_added_to_a_data_packet_leaves_even_without_data() {
        let now = Time::ZERO + Span::from_secs(1);
        let mut session = server(now);
        for fsn in 0..2 {
            arrive(&mut session, now, route(1), (fsn, Frame::Ping));
        }
        let sent =
            session.sending.packets.build_data(now, &mut session.flight, 0, Pick::MissingFirst).unwrap();
        assert!(matches!(sent.message.packet().unwrap().frames[..], [Frame::Ack(_)]));
    }

    #[test]
    fn an_unanswered_challenge_over_another_route_is_no_silence_of_the_path() {
        let mut now = Time::ZERO + Span::from_secs(1);
        let mut session = server(now);
        arrive(&mut session, now, route(1), (0, Frame::Ping));
        while session.poll_transmit(now).is_some() {}
        let ranges = std::iter::once(0..session.flight.paths[0].board().next_fsn().0).collect();
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
        assert_eq!(asked, 3, "challenges: as many as 180 bytes allow");
    }

    /// A session whose only path is on trial and may send nothing more until its limit rises.
    fn on_trial_at_its_limit(now: Time) -> Session<Length> {
        let mut session = server(now);
        arrive(&mut session, now, route(1), (0, Frame::Ping));
        for fsn in 1..4 {
            while session.poll_transmit(now).is_some() {}
            let ranges = std::iter::once(0..session.flight.paths[0].board().next_fsn().0).collect();
            let ack = Ack { path: PathId::FIRST, delay: Span::ZERO, arrived: None, ranges, ecn: None };
            arrive(&mut session, now, route(1), (fsn, Frame::Ack(ack)));
        }
        assert!(session.poll_transmit(now).is_none());
        let usual = Answer {
            now,
            smoothed: Span::from_millis(50),
            acked_bytes: 1_000,
            packets: 1,
            round_start: false,
            window: None,
            oldest: None,
            via: PathId::FIRST,
            blocks: false,
            is_bunched: false,
        };
        let path = session.flight.paths.edit(0);
        for millis in 0..1_000 {
            path.trouble_mut().on_ack(&Answer { now: now + Span::from_millis(millis), ..usual });
        }
        path.trouble_mut().hold(now, Fault::Stalls);
        path.transition(PathEvent::Doubted);
        while !path.trouble().is_on_trial() {
            assert!(!path.trouble_mut().is_well(now, Some(usual.smoothed), Span::ZERO));
        }
        let spent = path.allowance().spent();
        path.allowance_mut().limit_here(spent);
        session
    }

    /// Packets that leave until `until`.
    fn count_until(session: &mut Session<Length>, until: Time) -> usize {
        let mut count = 0;
        while let Some(now) = session.poll_timeout().filter(|at| *at <= until) {
            session.handle_timeout(now);
            count += std::iter::from_fn(|| session.poll_transmit(now)).count();
        }
        count
    }

    #[test]
    fn a_probe_that_may_not_leave_holds_up_none_of_another_path() {
        let now = Time::ZERO + Span::from_secs(1);
        let mut session = on_trial_at_its_limit(now);
        let flight = &mut session.flight;
        let mut other = Path::new(PathId(2), route(2), &flight.config, now);
        other.set_remote_pid(Pid(8), ResetToken([3; 16]));
        other.transition(PathEvent::Answered);
        other.allowance_mut().prove();
        flight.cc.add_path(other.id(), other.size() as u64, now);
        flight.paths.insert(other);
        (0..2).for_each(|index| flight.paths.edit(index).health_mut().want_probe());
        let sent = session.poll_transmit(now).expect("a probe");
        assert_eq!(sent.path, PathId(2));
        assert!(sent.message.packet().unwrap().frames.iter().any(|frame| matches!(frame, Frame::Ping)));
    }

    #[test]
    fn a_held_path_is_probed_after_its_limit_rises() {
        let now = Time::ZERO + Span::from_secs(1);
        let mut session = on_trial_at_its_limit(now);
        let later = now + Span::from_secs(1);
        assert_eq!(count_until(&mut session, later), 0);
        session.flight.paths.edit(0).allowance_mut().limit_here(u64::MAX);
        session.flight.clock.forget_timeout();
        assert!(count_until(&mut session, later + Span::from_millis(500)) > 0);
    }
}
