//! Acknowledgements in: what arrived, what was lost, what that means for windows and paths.

use anabranch_cc::{AckSample, LossEvent};
use anabranch_wire::{Ack, PathId, Payload, Ranges, Span, Time};

use super::Session;
use crate::control::Control;
use crate::event::ProtocolError;
use crate::path::{AckOutcome, Content, Losses, Path, PathState, SentPacket};
use crate::stream::SentRun;

impl<P: Payload> Session<P> {
    /// Takes in an acknowledgement that arrived on the path at `via`.
    pub(super) fn handle_ack(&mut self, now: Time, via: usize, ack: &Ack) -> Result<(), ProtocolError> {
        let Some(index) = self.path_index(ack.path) else { return Ok(()) };
        let via = self.paths[via].id;
        let (outcome, resized) = self.take_arrived(now, index, &ack.ranges)?;
        if outcome.packets == 0 {
            return Ok(());
        }
        if let Some(sample) = outcome.rtt {
            let most = self.peer.as_ref().map_or(0, |peer| peer.max_ack_delay_us);
            let delay = ack.delay.min(Span::from_micros(u64::from(most)));
            if self.paths[index].sample_rtt(now, via, sample, delay) {
                self.cc.on_return_path_changed(ack.path);
            }
            self.note_delay(now, index, (sample, delay), ack.arrived);
        }
        let marks = self.paths[index].marks.on_ack(outcome.packets, ack.ecn, outcome.rtt.is_some());
        if resized {
            self.on_size_changed(now, index);
        }
        self.feed_congestion_control(now, index, &outcome, marks);
        self.revive(now, index, outcome.rtt.map(|sample| (sample, via)));
        self.detect_losses(now, index);
        self.watch(now, index, &outcome);
        let path = &mut self.paths[index];
        // What has failed, and does not work again by this, is probed on.
        if path.state != PathState::Failed {
            path.health.on_ack(now, path.board.pipe() > 0);
        }
        if ack.path == PathId::FIRST {
            self.stay();
        }
        self.update_pacing(now, index);
        self.update_send_limit();
        self.regroup(now);
        self.review_suppression(now);
        Ok(())
    }

    /// Finds what an acknowledgement is the first for, and tells those whom what it carried concerns; true when packets become
    /// larger.
    fn take_arrived(
        &mut self,
        now: Time,
        index: usize,
        ranges: &Ranges,
    ) -> Result<(AckOutcome, bool), ProtocolError> {
        let Path { board, mtu, trouble, .. } = &mut self.paths[index];
        let mut resized = false;
        // Packets that left in a row most often arrive in a row: what they carried is one run then.
        let mut arrived: Option<SentRun> = None;
        let outcome = board.on_ack(now, ranges, |packet| {
            mtu.on_delivered(packet.sent_at, packet.size);
            trouble.on_arrived(now, packet.sent_at);
            for content in packet.contents {
                match content {
                    Content::Run(run) if arrived.as_mut().is_some_and(|before| before.extend(run)) => {}
                    Content::Run(run) => {
                        if let Some(before) = arrived.replace(run.clone()) {
                            self.streams.on_acked(&before, (&mut self.events, &mut self.control));
                        }
                    }
                    Content::Control(Control::ResetStream(stream)) => {
                        self.streams.on_reset_acked(*stream, &mut self.control);
                    }
                    Content::Control(Control::PathAbandon(path)) => {
                        self.abandoned.remove(path);
                    }
                    Content::Control(_) => {}
                    Content::MtuProbe(size) => resized |= mtu.on_probe_acked(*size),
                }
            }
        })?;
        if let Some(last) = arrived {
            self.streams.on_acked(&last, (&mut self.events, &mut self.control));
        }
        Ok((outcome, resized))
    }

    fn feed_congestion_control(&mut self, now: Time, index: usize, outcome: &AckOutcome, marks: u64) {
        let path = &mut self.paths[index];
        let searching = self.cc.in_slow_start(path.id);
        if let Some(rate) = outcome.delivery_rate {
            path.note_delivery(rate, outcome.app_limited, searching);
        }
        let window = self.cc.window(path.id);
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
        self.cc.on_ack(path.id, &sample, rtt);
        if outcome.spurious > 0 {
            path.stats.spurious_losses += outcome.spurious;
            path.unproved_losses = path.unproved_losses.saturating_sub(outcome.spurious);
            if path.unproved_losses == 0 {
                self.cc.on_spurious_loss(path.id);
            }
        }
        if marks > 0 {
            self.on_marks(now, index, outcome);
        }
    }

    /// Congestion marks that are new since the last acknowledgement (RFC 9002 §7.1).
    fn on_marks(&mut self, now: Time, index: usize, outcome: &AckOutcome) {
        let path = &mut self.paths[index];
        let sent_at = now - outcome.rtt.unwrap_or_else(|| path.rtt().smoothed());
        let event = LossEvent { now, lost_bytes: 0, in_flight: outcome.in_flight, sent_at };
        if self.cc.on_ecn(path.id, &event) {
            path.stats.congestion_events += 1;
        }
    }

    /// Looks for losses on a path and queues what was lost for any path [M6].
    pub(super) fn detect_losses(&mut self, now: Time, index: usize) {
        let path = &mut self.paths[index];
        let rtt = path.rtt();
        let patience = rtt.smoothed().max(rtt.latest());
        let mut losses = path.board.detect_losses(now, patience, &mut self.scratch.packets);
        if self.scratch.packets.is_empty() {
            return;
        }
        let mut lost = std::mem::take(&mut self.scratch.packets);
        self.requeue(now, index, (&mut lost, &mut losses));
        self.scratch.packets = lost;
        if losses.packets == 0 {
            return;
        }
        self.note_losses(now, index, &losses);
        let path = &mut self.paths[index];
        let event =
            LossEvent { now, lost_bytes: losses.bytes, in_flight: losses.in_flight, sent_at: losses.sent_at };
        if self.cc.on_loss(path.id, &event) {
            path.stats.congestion_events += 1;
            path.unproved_losses = losses.packets;
        } else {
            path.unproved_losses += losses.packets;
        }
    }

    /// Puts what lost packets carried back in line; path MTU probes do not count as losses.
    fn requeue(&mut self, now: Time, index: usize, (lost, losses): (&mut Vec<SentPacket>, &mut Losses)) {
        let mut shrinks = false;
        let beside = self.carried_beside(index);
        for packet in lost.drain(..) {
            let is_probe = packet.contents.iter().any(|content| matches!(content, Content::MtuProbe(_)));
            shrinks |= !is_probe && self.paths[index].mtu.on_lost(now, packet.sent_at, packet.size);
            for content in &packet.contents {
                match content {
                    Content::Run(run) if !packet.doubted => self.streams.on_lost_beyond(run, &beside),
                    Content::Run(_) => {}
                    Content::Control(control) => self.push_control(*control),
                    Content::MtuProbe(size) => {
                        self.paths[index].mtu.on_probe_lost(now, *size);
                        losses.packets -= 1;
                        losses.bytes -= u64::from(packet.size);
                    }
                }
            }
        }
        self.paths[index].stats.packets_lost += losses.packets;
        self.paths[index].trouble.on_lost(now, losses.packets, losses.sent_at);
        if shrinks {
            self.on_size_changed(now, index);
        }
    }

    /// The path takes packets of another size than before.
    pub(super) fn on_size_changed(&mut self, now: Time, index: usize) {
        let (id, size) = (self.paths[index].id, self.paths[index].size() as u64);
        self.cc.set_mss(id, size);
        self.update_pacing(now, index);
    }

    /// Everything in flight on a path goes back in line [M3].
    pub(super) fn give_up_flight(&mut self, now: Time, index: usize) {
        let mut lost = std::mem::take(&mut self.scratch.packets);
        let mut losses = self.paths[index].board.give_up(&mut lost);
        self.requeue(now, index, (&mut lost, &mut losses));
        self.scratch.packets = lost;
        self.run = None;
    }

    /// Everything in flight on a suspect path may go over the others as well.
    pub(super) fn doubt_flight(&mut self, index: usize) {
        let beside = self.carried_beside(index);
        let streams = &mut self.streams;
        let control = &mut self.control;
        self.paths[index].board.doubt(|contents| {
            for content in contents {
                match content {
                    Content::Run(run) => streams.on_lost_beyond(run, &beside),
                    Content::Control(item) => control.push(*item),
                    Content::MtuProbe(_) => {}
                }
            }
        });
        self.run = None;
    }

    pub(super) fn update_pacing(&mut self, now: Time, index: usize) {
        if !self.cc.is_paced() {
            return;
        }
        let path = &mut self.paths[index];
        let rate = self.cc.pacing_rate(path.id, path.rtt());
        let size = path.size() as u64;
        path.pacer.set_rate(now, rate, size);
    }

    /// Applications may queue what all windows together carry in a round trip, and a little more.
    pub(super) fn update_send_limit(&mut self) {
        self.look_at_paths();
        self.streams.set_unsent_limit((self.paths.total_window() * 2).max(256 << 10));
    }
}
