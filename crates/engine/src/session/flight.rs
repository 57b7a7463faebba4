//! The shared state of a session's components: paths, streams, congestion control, and packets in flight.
//!
//! [`Flight`] applies an acknowledgement to packets and streams, queues lost data again, and updates the index of the
//! paths. [`super::liveness`] applies it to the paths' states.

use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_cc::{AckSample, Controller, LossEvent};
use anabranch_wire::{Frame, Params, PathId, Payload, Ranges, Side, Span, StreamId, Time};

use super::ack_routes::AckRoutes;
use super::clock::Clock;
use super::lifecycle::Lifecycle;
use super::outbox::Outbox;
use super::unproven::Credit;
use crate::config::Config;
use crate::control::Control;
use crate::event::{CloseReason, Event, PathChange, PidSource, ProtocolError};
use crate::path::{AckOutcome, Content, Losses, PathState, Paths, SentPacket};
use crate::state::State;
use crate::stats::SessionStats;
use crate::stream::{Carried, SentRun, Streams};

/// A scheduler's choice: bytes to send on a path before the scheduler is asked again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub path: PathId,
    pub left: u64,
    pub resend: bool,
}

/// A fact learned from an acknowledgement, apart from its numbers.
#[derive(Debug)]
pub(super) enum AckFact {
    /// Bytes of a stream arrived.
    Arrived(SentRun),
    /// The peer knows that this end reset a stream.
    ResetKnown(StreamId),
    /// The peer knows that this end gave up a path.
    AbandonKnown(PathId),
}

/// Lists that are kept to avoid allocation.
#[derive(Default)]
struct Scratch {
    lost: Vec<SentPacket>,
    facts: Vec<AckFact>,
}

/// The data plane of a session. Fields are in the order of use: fields that every packet needs, then those
/// for sending and acknowledgements, then rare ones.
#[repr(C)]
pub(super) struct Flight<P> {
    pub life: Lifecycle,
    /// Shared by all sessions with the same settings.
    pub config: Arc<Config>,
    pub clock: Clock,
    pub out: Outbox,
    pub peer: Option<Params>,
    pub acks: AckRoutes,
    /// Whether evidence of shared bottlenecks is needed. Stored here because every acknowledgement checks it.
    pub wants_evidence: bool,
    /// There are path rules.
    pub has_rules: bool,
    /// A path that took another slice of its cap, or used it up.
    pub new_slice: Option<usize>,
    /// A packet that left on a path or over a route without proof: its address, and its bytes.
    pub sent_unproven: Option<(SocketAddr, u64)>,
    /// The controller's revision that the cached windows belong to.
    windows_as_of: Option<u64>,
    pub paths: Paths,
    // A packet with data needs the fields up to here, an acknowledgement those from here on.
    pub choice: Option<Choice>,
    /// The scheduler has sent data on several paths at once.
    pub duplicates: bool,
    scratch: Scratch,
    pub cc: Controller,
    pub streams: Streams<P>,
    pub stats: SessionStats,
    pub pids: Box<dyn PidSource + Send>,
    /// Bytes that may be sent to addresses without proof.
    pub credit: Credit,
}

impl<P: Payload> Flight<P> {
    pub(super) fn new(
        config: Arc<Config>,
        side: Side,
        pids: Box<dyn PidSource + Send>,
        streams: Streams<P>,
        now: Time,
    ) -> Self {
        Self {
            life: Lifecycle::new(side),
            clock: Clock::new(now),
            out: Outbox::default(),
            peer: None,
            acks: AckRoutes::default(),
            wants_evidence: false,
            has_rules: false,
            new_slice: None,
            sent_unproven: None,
            windows_as_of: None,
            paths: Paths::default(),
            choice: None,
            duplicates: false,
            scratch: Scratch::default(),
            cc: Controller::new(config.cc),
            streams,
            stats: SessionStats::default(),
            pids,
            credit: Credit::default(),
            config,
        }
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        self.life.state()
    }

    /// An unguessable number, from the source of PIDs, which are as hard to guess.
    pub(super) fn next_token(&mut self) -> u64 {
        self.pids.next_pid().0.0
    }

    /// Most paths that both ends allow at the same time.
    pub(super) fn max_paths(&self) -> u32 {
        self.peer.as_ref().map_or(1, |peer| peer.max_paths.min(self.config.max_paths))
    }

    /// Ends the session for `reason`.
    pub(super) fn end(&mut self, now: Time, reason: CloseReason) {
        if self.life.end(now, &reason, &self.paths, &self.config) {
            self.out.events.push_back(Event::Closed(reason));
            // The unspent part of what paths reserved of a cap is free for other sessions.
            for index in 0..self.paths.len() {
                self.paths.edit(index).set_meter(None);
            }
        }
    }

    /// Brings the index of the paths up to date.
    #[inline]
    pub(super) fn refresh_paths(&mut self) {
        let revision = self.cc.revision();
        let known = revision.is_some() && revision == self.windows_as_of;
        if !known || !self.paths.are_fresh(|path| self.cc.window(path)) {
            self.refresh_stale(known, revision);
        }
    }

    /// Updates stale paths, or all if windows may have changed. Out of line, because most packets need none.
    #[inline(never)]
    fn refresh_stale(&mut self, known: bool, revision: Option<u64>) {
        if !known {
            self.windows_as_of = revision;
            self.paths.forget_all();
        }
        let cc = &self.cc;
        self.paths.refresh(|path| cc.window(path));
    }

    /// Packets of all current paths in both directions.
    pub(super) fn packets(&self) -> u64 {
        self.paths.iter().map(|path| path.stats().packets_sent + path.stats().packets_received).sum()
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.paths.edit_all().for_each(crate::path::Path::shrink);
        self.streams.rest();
        self.out.shrink();
        self.scratch = Scratch::default();
    }

    /// Handles the ranges of an acknowledgement for the path at `index`. Returns the consequences for the path, and
    /// whether its packets become larger; [`Self::take_facts`] has the rest.
    pub(super) fn take_ranges(
        &mut self,
        now: Time,
        index: usize,
        ranges: &Ranges,
    ) -> Result<(AckOutcome, bool), ProtocolError> {
        let (board, mtu, trouble) = self.paths.edit(index).acknowledged_parts();
        let facts = &mut self.scratch.facts;
        let mut resized = false;
        let outcome = board.on_ack(now, ranges, |packet| {
            mtu.on_delivered(packet.sent_at, packet.size);
            trouble.on_arrived(now, packet.sent_at);
            for content in packet.contents {
                match content {
                    // Packets that left in a row usually arrive in a row: their data is one run then.
                    Content::Run(run) => {
                        let extends = match facts.last_mut() {
                            Some(AckFact::Arrived(before)) => before.extend(run),
                            _ => false,
                        };
                        if !extends {
                            facts.push(AckFact::Arrived(run.clone()));
                        }
                    }
                    Content::Control(Control::ResetStream(stream)) => {
                        facts.push(AckFact::ResetKnown(*stream));
                    }
                    Content::Control(Control::PathAbandon(path)) => facts.push(AckFact::AbandonKnown(*path)),
                    Content::Control(_) => {}
                    Content::MtuProbe(size) => resized |= mtu.on_probe_acked(*size),
                }
            }
        })?;
        Ok((outcome, resized))
    }

    /// The facts of the last acknowledgement; [`Self::return_facts`] returns the list.
    pub(super) fn take_facts(&mut self) -> Vec<AckFact> {
        std::mem::take(&mut self.scratch.facts)
    }

    pub(super) fn return_facts(&mut self, mut facts: Vec<AckFact>) {
        facts.clear();
        self.scratch.facts = facts;
    }

    /// Feeds an acknowledgement with `marks` new ECN marks to congestion control.
    pub(super) fn feed_congestion_control(
        &mut self,
        now: Time,
        index: usize,
        outcome: &AckOutcome,
        marks: u64,
    ) {
        let path = self.paths.edit(index);
        let id = path.id();
        let searching = self.cc.in_slow_start(id);
        if let Some(rate) = outcome.delivery_rate {
            path.delivery_mut().sample(rate, outcome.app_limited, searching);
        }
        let window = self.cc.window(id);
        let slack = if searching { window / 2 } else { window / 4 };
        let rtt = path.rtt();
        let sample = AckSample {
            now,
            acked_bytes: outcome.acked_bytes,
            rtt: outcome.rtt.unwrap_or_else(|| rtt.smoothed()),
            in_flight: outcome.in_flight,
            delivery_rate: outcome.delivery_rate,
            round_start: outcome.round_start,
            app_limited: outcome.app_limited,
            window_limited: outcome.in_flight + slack + path.size() as u64 >= window,
            ce_marks: marks,
        };
        self.cc.on_ack(id, &sample, rtt);
        if outcome.spurious > 0 {
            path.stats_mut().spurious_losses += outcome.spurious;
            if path.delivery_mut().on_spurious(outcome.spurious) {
                self.cc.on_spurious_loss(id);
            }
        }
        if marks > 0 {
            self.on_marks(now, index, outcome);
        }
    }

    /// New congestion marks (RFC 9002 §7.1).
    fn on_marks(&mut self, now: Time, index: usize, outcome: &AckOutcome) {
        let path = self.paths.edit(index);
        let sent_at = now - outcome.rtt.unwrap_or_else(|| path.rtt().smoothed());
        let event = LossEvent { now, lost_bytes: 0, in_flight: outcome.in_flight, sent_at };
        if self.cc.on_ecn(path.id(), &event) {
            path.stats_mut().congestion_events += 1;
        }
    }

    /// Finds lost packets of a path, and queues their contents for any path [M6].
    pub(super) fn find_losses(&mut self, now: Time, index: usize) -> Option<Losses> {
        let path = self.paths.edit(index);
        let rtt = path.rtt();
        let patience = rtt.smoothed().max(rtt.latest());
        let mut losses = path.board_mut().detect_losses(now, patience, &mut self.scratch.lost);
        if self.scratch.lost.is_empty() {
            return None;
        }
        let mut lost = std::mem::take(&mut self.scratch.lost);
        self.requeue(now, index, &mut lost, &mut losses);
        self.scratch.lost = lost;
        (losses.packets > 0).then_some(losses)
    }

    /// Feeds losses to congestion control.
    pub(super) fn feed_losses(&mut self, now: Time, index: usize, losses: &Losses) {
        let path = self.paths.edit(index);
        let (lost_bytes, in_flight, sent_at) = (losses.bytes, losses.in_flight, losses.sent_at);
        let begins_episode = self.cc.on_loss(path.id(), &LossEvent { now, lost_bytes, in_flight, sent_at });
        path.stats_mut().congestion_events += u64::from(begins_episode);
        path.delivery_mut().on_lost(losses.packets, begins_episode);
        let cause = self.cc.loss_cause(path.id());
        if path.delivery_mut().set_loss_cause(cause) {
            self.out.tell(path.id(), PathChange::Losses(cause));
        }
    }

    /// Queues the contents of lost packets again. Probes of the path MTU do not count as losses.
    fn requeue(&mut self, now: Time, index: usize, lost: &mut Vec<SentPacket>, losses: &mut Losses) {
        let mut shrinks = false;
        let elsewhere = self.carried_elsewhere(index);
        for packet in lost.drain(..) {
            let path = self.paths.edit(index);
            let is_probe = packet.contents.iter().any(|content| matches!(content, Content::MtuProbe(_)));
            shrinks |= !is_probe && path.mtu_mut().on_lost(now, packet.sent_at, packet.size);
            for content in &packet.contents {
                match content {
                    Content::Run(run) if !packet.doubted => self.streams.on_lost_beyond(run, &elsewhere),
                    Content::Run(_) => {}
                    Content::Control(control) => self.out.want(*control),
                    Content::MtuProbe(size) => {
                        path.mtu_mut().on_probe_lost(now, *size);
                        losses.packets -= 1;
                        losses.bytes -= u64::from(packet.size);
                    }
                }
            }
        }
        let path = self.paths.edit(index);
        path.stats_mut().packets_lost += losses.packets;
        path.trouble_mut().on_lost(now, losses.packets, losses.sent_at);
        if shrinks {
            self.on_size_changed(now, index);
        }
    }

    /// Queues everything in flight on a path again [M3].
    pub(super) fn give_up_flight(&mut self, now: Time, index: usize) {
        let mut lost = std::mem::take(&mut self.scratch.lost);
        let mut losses = self.paths.edit(index).board_mut().give_up(&mut lost);
        self.requeue(now, index, &mut lost, &mut losses);
        self.scratch.lost = lost;
        self.choice = None;
    }

    /// Allows the data in flight on a suspect path to be sent on others as well.
    pub(super) fn doubt_flight(&mut self, index: usize) {
        let elsewhere = self.carried_elsewhere(index);
        let (streams, out) = (&mut self.streams, &mut self.out);
        self.paths.edit(index).board_mut().doubt(|contents| {
            for content in contents {
                match content {
                    Content::Run(run) => streams.on_lost_beyond(run, &elsewhere),
                    Content::Control(control) => out.want(*control),
                    Content::MtuProbe(_) => {}
                }
            }
        });
        self.choice = None;
    }

    /// Allows the data of suspect paths to be sent on others as well, now that another path is active.
    pub(super) fn doubt_suspects(&mut self) {
        for index in 0..self.paths.len() {
            if self.paths[index].state() == PathState::Suspect {
                self.doubt_flight(index);
            }
        }
    }

    /// True for streams that leave on several paths at once.
    pub(super) fn is_copied(&self, stream: StreamId) -> bool {
        self.duplicates || self.streams.is_redundant(stream)
    }

    /// Data of streams that are sent on several paths, as far as other active paths carry it.
    fn carried_elsewhere(&self, index: usize) -> Carried {
        let mut carried = Carried::default();
        if !self.duplicates && !self.streams.has_redundant() {
            return carried;
        }
        let others = self.paths.iter().enumerate();
        for (_, path) in others.filter(|(other, path)| *other != index && path.is_active()) {
            let runs = path.board().runs_on_their_way();
            runs.filter(|run| self.is_copied(run.stream)).for_each(|run| carried.add(run));
        }
        carried
    }

    /// The packet size of a path changed.
    pub(super) fn on_size_changed(&mut self, now: Time, index: usize) {
        let path = &self.paths[index];
        self.cc.set_mss(path.id(), path.size() as u64);
        self.update_pacing(now, index);
    }

    pub(super) fn update_pacing(&mut self, now: Time, index: usize) {
        if self.is_paced() {
            self.renew_pacing(now, index);
        }
    }

    fn renew_pacing(&mut self, now: Time, index: usize) {
        let path = self.paths.edit(index);
        let rate = self.cc.pacing_rate(path.id(), path.rtt());
        let rate = rate.into_iter().chain(path.wishes().rate_limit()).min();
        let size = path.size() as u64;
        path.pacer_mut().set_rate(now, rate, size);
    }

    /// Follows a change of a path's rate limit.
    pub(super) fn on_rate_limit(&mut self, now: Time, index: usize) {
        self.paths.renew_limited();
        self.renew_pacing(now, index);
        self.choice = None;
        self.clock.forget_timeout();
    }

    /// True when congestion control or a rate limit paces packets.
    #[inline]
    pub(super) fn is_paced(&self) -> bool {
        self.cc.is_paced() || self.paths.are_limited()
    }

    /// Sets the data that applications may queue: two round trips of all windows, or 256 KiB.
    pub(super) fn update_send_limit(&mut self) {
        self.refresh_paths();
        self.streams.set_unsent_limit((self.paths.total_window() * 2).max(256 << 10));
    }

    /// The longest smoothed round-trip time of all paths.
    fn longest_rtt(&self) -> Span {
        let live = self.paths.iter().filter(|path| path.rtt().has_sample());
        live.map(|path| path.rtt().smoothed()).max().unwrap_or(self.config.initial_rtt)
    }

    /// Records this end's address on a path, as the peer sees it. The peer repeats it when the path falls silent, and
    /// sends it for path 0 only then or after a move: an idle path is then probed, because a NAT may have forgotten it.
    pub(super) fn observe(&mut self, path: PathId, address: SocketAddr) {
        let Some(index) = self.paths.place_of(path) else { return };
        let known = &self.paths[index];
        let is_known = known.feedback().observed() == Some(address);
        if (is_known || path == PathId::FIRST) && known.is_active() && known.board().pipe() == 0 {
            self.paths.edit(index).health_mut().want_probe();
        }
        if !is_known && self.out.tell_if_read(Event::ObservedAddress { path, address }) {
            self.paths.edit(index).feedback_mut().set_observed(address);
        }
    }

    /// A control frame for a path or a stream, with its current values; `None` if it is no longer needed.
    pub(super) fn frame(&mut self, now: Time, control: Control) -> Option<Frame<P>> {
        let rtt = self.longest_rtt();
        let path = |path| self.paths.place_of(path).map(|index| &self.paths[index]);
        Some(match control {
            Control::PathStatus(id) => Frame::PathStatus(path(id)?.status()),
            Control::MaxPathData(id) => {
                Frame::MaxPathData { path: id, limit: path(id)?.wishes().peer_limit() }
            }
            Control::MaxPathRate(id) if self.peer.as_ref().is_some_and(|peer| peer.path_rates) => {
                Frame::MaxPathRate(path(id)?.wishes().rate(id))
            }
            Control::ObservedAddress(id) => {
                Frame::ObservedAddress { path: id, address: path(id)?.route().remote }
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
            _ => return None,
        })
    }

    /// True if no window has room, so the scheduler need not be asked.
    pub(super) fn is_full(&self) -> bool {
        !self.paths.have_room() && !self.is_paced() && self.config.early_binding.is_none()
    }

    /// Bytes that bulk data may have in flight on a path that keeps its queue short. In slow start its rate is unknown.
    pub(super) fn calm_window(&self, now: Time, index: usize) -> Option<u64> {
        self.paths.calm_window(now, index).filter(|_| !self.cc.in_slow_start(self.paths[index].id()))
    }

    /// True when a path may send a full packet now.
    pub(super) fn may_send(&mut self, now: Time, index: usize) -> bool {
        if !self.paths.has_room(index) || !self.paths.is_usable(index) {
            return false;
        }
        !self.is_paced() || self.paths.pacing_budget(index, now) >= self.paths[index].size() as u64
    }
}
