//! Losses, and packets in flight whose data other paths may carry as well.

use anabranch_wire::{Span, Time};

use super::{Candidate, Contents, Losses, Runs, Scoreboard, SentPacket, State, Tail};
use crate::stream::SentRun;

impl Scoreboard {
    /// Finds packets lost by now, and adds them to `lost`.
    pub(crate) fn detect_losses(&mut self, now: Time, rtt: Span, lost: &mut Vec<SentPacket>) -> Losses {
        let mut losses = Losses { in_flight: self.pipe, ..Losses::default() };
        self.loss_at = None;
        let Some(largest) = self.largest_acked else { return losses };
        // Usually everything sent before the acknowledged packets has arrived as well.
        if self.cursor >= largest || self.slots.front().is_none_or(|first| first.number(self.next) >= largest)
        {
            self.cursor = self.cursor.max(largest);
            return losses;
        }
        let patience = (rtt * self.reordering.eighths / 8).max(Span::from_millis(1));
        let mut index = self.index_of(self.cursor);
        self.cursor = largest;
        while let Some(slot) = self.slots.get_mut(index) {
            let number = slot.number(self.next);
            if number >= largest {
                break;
            }
            if slot.state.is_outstanding() {
                let overdue_at = slot.sample.sent_at + patience;
                if largest < number + self.reordering.packets && overdue_at > now {
                    self.loss_at = Some(overdue_at);
                    self.cursor = number;
                    break;
                }
                self.past.lost += 1;
                self.pipe -= u64::from(slot.size);
                losses.packets += 1;
                losses.bytes += u64::from(slot.size);
                losses.sent_at = losses.sent_at.max(slot.sample.sent_at);
                lost.push(slot.lose());
            }
            index += 1;
        }
        losses
    }

    /// Declares everything lost, as a timeout does: `pipe` becomes 0 [M3].
    pub(crate) fn give_up(&mut self, lost: &mut Vec<SentPacket>) -> Losses {
        let mut losses = Losses { in_flight: self.pipe, ..Losses::default() };
        for slot in self.slots.iter_mut().filter(|slot| slot.state.is_outstanding()) {
            self.past.lost += 1;
            losses.packets += 1;
            losses.bytes += u64::from(slot.size);
            losses.sent_at = losses.sent_at.max(slot.sample.sent_at);
            lost.push(slot.lose());
        }
        self.pipe = 0;
        self.loss_at = None;
        self.cursor = self.next;
        self.forget_front();
        losses
    }

    /// Marks outstanding packets as doubted, and shows their contents, so that other paths can carry them as
    /// well.
    pub(crate) fn doubt(&mut self, mut carried: impl FnMut(&Contents)) {
        for slot in &mut self.slots {
            if slot.state == State::Outstanding {
                slot.state = State::Doubted;
                carried(&slot.contents);
            }
        }
    }

    /// True when packets are in flight that [`Self::next_to_copy`] never looked at.
    pub(crate) fn has_news(&self) -> bool {
        self.pipe > 0 && self.copies.looked_to.max(self.cursor) < self.next
    }

    /// The next outstanding packet with data that was sent after `since`, if it was not returned here before and its
    /// data was not given to another path.
    pub(crate) fn next_to_copy(&mut self, since: Time) -> Option<(u64, Runs)> {
        let from = self.index_of(self.copies.looked_to.max(self.cursor));
        for slot in self.slots.range(from..) {
            let number = slot.number(self.next);
            self.copies.looked_to = number + 1;
            if slot.state != State::Outstanding || slot.sample.sent_at <= since {
                continue;
            }
            let runs: Runs = slot.contents.runs().cloned().collect();
            if !runs.is_empty() {
                return Some((number, runs));
            }
        }
        None
    }

    /// The newest packet in flight with data that no other path is responsible for; looks at `most` packets
    /// at most.
    pub(crate) fn newest_to_copy(&mut self, most: usize) -> Option<Candidate> {
        if self.copies.tail.to != self.next {
            self.copies.tail = Tail { from: self.next, to: self.next, bytes: 0 };
        }
        let end = self.index_of(self.copies.tail.from);
        for slot in self.slots.range(..end).rev().take(most) {
            if slot.state == State::Outstanding {
                let runs: Runs = slot.contents.runs().cloned().collect();
                if !runs.is_empty() {
                    let ahead = self.pipe.saturating_sub(self.copies.tail.bytes);
                    return Some(Candidate {
                        number: slot.number(self.next),
                        sent_at: slot.sample.sent_at,
                        ahead,
                        runs,
                    });
                }
            }
            self.copies.tail.pass(slot, self.next);
        }
        None
    }

    /// Passes over the packet that [`Self::newest_to_copy`] returned last.
    pub(crate) fn pass_newest(&mut self) {
        let shown = self.index_of(self.copies.tail.from).checked_sub(1);
        if let Some(slot) = shown.and_then(|index| self.slots.get(index)) {
            self.copies.tail.pass(slot, self.next);
        }
    }

    /// Records that another path is responsible for a packet's data.
    pub(crate) fn on_copied(&mut self, number: u64) {
        let index = self.index_of(number);
        let next = self.next;
        let copied = self.slots.get_mut(index).filter(|slot| slot.number(next) == number);
        if let Some(slot) = copied.filter(|slot| slot.state == State::Outstanding) {
            slot.state = State::Doubted;
        }
    }

    /// Runs of the oldest outstanding packets, for a probe.
    pub(crate) fn oldest_runs(&self) -> impl Iterator<Item = &SentRun> {
        let outstanding = self.slots.iter().filter(|slot| slot.state.is_outstanding());
        outstanding.flat_map(|slot| slot.contents.runs())
    }

    /// Runs in outstanding packets that no other path is responsible for.
    pub(crate) fn runs_on_their_way(&self) -> impl Iterator<Item = &SentRun> {
        let carrying = self.slots.iter().filter(|slot| slot.state == State::Outstanding);
        carrying.flat_map(|slot| slot.contents.runs())
    }

    /// The runs of the packet sent last.
    pub(crate) fn latest_runs(&self) -> Vec<SentRun> {
        self.slots.back().into_iter().flat_map(|slot| slot.contents.runs()).cloned().collect()
    }
}
