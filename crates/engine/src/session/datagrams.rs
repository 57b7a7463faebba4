//! Datagrams: in, out, and what is done so that they arrive.
//!
//! They wait here until a path may carry them, like streams, and go first. What [`crate::datagram`] keeps begins to exist
//! with the first datagram that needs it: sessions with streams alone have none of it.

use std::collections::VecDeque;

use super::{CLASSES, OVERHEAD, Session};
use crate::datagram::{Carrier, DatagramMode, Inflow, Mending, Ordering, Sending, Spares};
use crate::event::{Event, ProtocolError};
use crate::path::Path;
use crate::route::Transmit;
use crate::schedule::{Decision, Item, PathView, SessionView};
use anabranch_wire::{
    DatagramFrame, Frame, LARGEST_MARKS, LARGEST_PARITY_OVERHEAD, MarkedFrame, ParityFrame, PathId, Payload,
    Time, datagram_frame_overhead,
};

/// Why a datagram was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// Larger than the paths or the peer take.
    #[error("datagrams may have at most {most} bytes")]
    TooLarge {
        /// What they take, in bytes.
        most: usize,
    },
    /// The session is not established, or over.
    #[error("the session carries no data")]
    NotConnected,
}

/// What a session with datagrams keeps of them.
pub(super) struct Datagrams<P> {
    outgoing: VecDeque<DatagramFrame<P>>,
    /// Kept once a class is redundant or protected.
    sending: Option<Box<Sending<P>>>,
    /// Kept once the peer sent datagrams with numbers.
    mending: Option<Box<Mending<P>>>,
    /// Kept once datagrams came that are wanted in order.
    pub ordering: Option<Box<Ordering<P>>>,
}

impl<P> Default for Datagrams<P> {
    fn default() -> Self {
        Self { outgoing: VecDeque::new(), sending: None, mending: None, ordering: None }
    }
}

impl<P: Payload> Session<P> {
    /// Queues a datagram; when the queue is full, the oldest of the lowest class makes room.
    ///
    /// # Errors
    /// [`DatagramError`] when it can never be sent.
    pub fn send_datagram(&mut self, mut datagram: DatagramFrame<P>) -> Result<(), DatagramError> {
        let Some(peer) = self.peer.as_ref().filter(|_| self.state.carries_data()) else {
            return Err(DatagramError::NotConnected);
        };
        datagram.class = datagram.class.min(CLASSES as u8 - 1);
        let marks = match self.mode_of(datagram.class) {
            DatagramMode::Once if !self.peer_orders(datagram.class) => 0,
            DatagramMode::Once | DatagramMode::Redundant => LARGEST_MARKS,
            DatagramMode::Protected => LARGEST_PARITY_OVERHEAD + 1,
        };
        let header = OVERHEAD + datagram_frame_overhead(datagram.flow, datagram.data.len()) + marks;
        let fits = usize::from(self.config.mtu.base) - header;
        let path = self.paths.iter().map(Path::size).min().map_or(fits, |size| size - header);
        let most = path.min(usize::from(peer.max_datagram));
        if datagram.data.len() > most {
            return Err(DatagramError::TooLarge { most });
        }
        let outgoing = &mut self.datagrams.get_or_insert_default().outgoing;
        if outgoing.len() >= self.config.memory.datagrams {
            self.stats.datagrams_dropped += 1;
            let lowest = outgoing.iter().map(|queued| queued.class).min().unwrap_or(0);
            if lowest > datagram.class {
                return Ok(());
            }
            let oldest = outgoing.iter().position(|queued| queued.class == lowest);
            oldest.map(|index| outgoing.remove(index));
        }
        outgoing.push_back(datagram);
        Ok(())
    }

    /// Takes a datagram that arrived, and the time when it did.
    pub fn recv_datagram(&mut self) -> Option<(Time, DatagramFrame<P>)> {
        self.incoming.pop()
    }

    /// What is done from now on so that the datagrams of a class, 0 to 15, arrive; [`Config::datagrams`](crate::Config::datagrams) says
    /// what is done at first.
    pub fn set_datagram_mode(&mut self, class: u8, mode: DatagramMode) {
        self.modes[usize::from(class).min(CLASSES - 1)] = mode;
    }

    /// What is done for a class, as far as the peer knows of it.
    fn mode_of(&self, class: u8) -> DatagramMode {
        let is_known = self.peer.as_ref().is_some_and(|peer| peer.max_block > 0);
        if is_known { self.modes[usize::from(class).min(CLASSES - 1)] } else { DatagramMode::Once }
    }

    /// True while datagrams, copies of them or parity wait for a path.
    pub(super) fn has_datagrams(&self) -> bool {
        let Some(datagrams) = &self.datagrams else { return false };
        !datagrams.outgoing.is_empty()
            || datagrams.sending.as_ref().is_some_and(|sending| sending.has_spares())
    }

    /// True while datagrams wait that have not left yet.
    pub(super) fn datagrams_wait(&self) -> bool {
        self.datagrams.as_ref().is_some_and(|datagrams| !datagrams.outgoing.is_empty())
    }

    /// Gives back what memory is not in use.
    pub(super) fn rest_datagrams(&mut self) {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.outgoing.shrink_to_fit();
        }
    }

    /// Parity first, which is of use only soon; then what leaves for the first time, then copies.
    pub(super) fn place_datagrams(&mut self, now: Time, views: &[PathView]) -> Option<Transmit<P>> {
        if let Some(sent) = self.place_spare(now, (views, Spares::Parity)) {
            return Some(sent);
        }
        if let Some(sent) = self.place_datagram(now, views) {
            return Some(sent);
        }
        let sent = self.place_spare(now, (views, Spares::All));
        if sent.is_none() && self.has_datagrams() {
            // They wait for paths of their own.
            let ready = views.iter().map(|view| view.ready_at).filter(|at| *at > now).min();
            self.wake_at = self.wake_at.min(ready.unwrap_or(Time::NEVER));
        }
        sent
    }

    fn place_datagram(&mut self, now: Time, views: &[PathView]) -> Option<Transmit<P>> {
        let front = self.datagrams.as_ref()?.outgoing.front()?;
        if self.mode_of(front.class) == DatagramMode::Redundant {
            let open = views.iter().filter(|view| view.budget > 0);
            let fastest = open.min_by_key(|view| (view.rtt, view.id))?.id;
            return self.build_datagram(now, fastest, (views, false));
        }
        let (class, flow, bytes) = (front.class, front.flow, front.data.len() as u64);
        let item = Item { bytes, resend: false, class, flow };
        let session = SessionView { now, more_expected: self.streams.more_expected(), window: u64::MAX };
        match self.scheduler.pick(&session, views, &item) {
            Decision::Send { path, .. } => self.build_datagram(now, path, (views, false)),
            Decision::Duplicate(paths) => self.build_datagram(now, *paths.first()?, (views, true)),
            Decision::Wait(until) => {
                self.wake_at = until;
                None
            }
        }
    }

    /// The next datagram on this path; `everywhere` when the scheduler wants it on all.
    fn build_datagram(
        &mut self,
        now: Time,
        path: PathId,
        (views, everywhere): (&[PathView], bool),
    ) -> Option<Transmit<P>> {
        let index = self.path_index(path)?;
        // Acknowledgements take what room it leaves: datagrams may be as large as the packet.
        let mut draft = self.draft(index);
        while let Some(datagram) = self.datagrams.as_mut()?.outgoing.pop_front() {
            let length = datagram.data.len() as u64;
            let mode = match self.mode_of(datagram.class) {
                DatagramMode::Once if everywhere && self.takes_numbers() => DatagramMode::Redundant,
                mode => mode,
            };
            let frame = if mode == DatagramMode::Once && !self.peer_orders(datagram.class) {
                Frame::Datagram(datagram)
            } else {
                let carrier = carrier(&self.paths[index]);
                self.sending_mut().mark(mode, carrier, datagram)
            };
            let marked = if let Frame::Marked(marked) = &frame { Some(marked.clone()) } else { None };
            if draft.push(frame) {
                self.paths.aside(index).stats.data_sent += length;
                self.stats.datagrams_sent += 1;
                if let Some(marked) = marked {
                    let others = views.iter().map(|view| view.id).filter(|id| *id != path);
                    self.sending_mut().on_sent(now, path, &marked, others);
                }
                break;
            }
            // The path has become smaller since the datagram was taken.
            self.stats.datagrams_dropped += 1;
        }
        self.add_acks(now, index, &mut draft);
        self.finish_draft(now, index, draft)
    }

    /// True when the peer wants the datagrams of a class in order.
    fn peer_orders(&self, class: u8) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.ordered_classes >> class.min(15) & 1 == 1)
    }

    fn takes_numbers(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.max_block > 0)
    }

    fn sending_mut(&mut self) -> &mut Sending<P> {
        let wanted = self.peer.as_ref().map_or((0, 0), |peer| (peer.max_block, peer.ordered_classes));
        let protection = self.config.protection;
        let datagrams = self.datagrams.get_or_insert_default();
        datagrams.sending.get_or_insert_with(|| Box::new(Sending::new(protection, wanted)))
    }

    /// A copy of a datagram, or a piece of parity.
    fn place_spare(&mut self, now: Time, (views, which): (&[PathView], Spares)) -> Option<Transmit<P>> {
        while let Some((path, frame)) =
            self.datagrams.as_mut()?.sending.as_mut()?.next_spare(now, views, which)
        {
            let Some(index) = self.path_index(path) else { continue };
            let length = match &frame {
                Frame::Parity(parity) => parity.data.len(),
                Frame::Marked(marked) => marked.datagram.data.len(),
                _ => 0,
            };
            let mut draft = self.draft(index);
            if !draft.push(frame) {
                continue;
            }
            self.add_acks(now, index, &mut draft);
            let sent = self.finish_draft(now, index, draft)?;
            self.paths.aside(index).stats.data_sent += length as u64;
            self.stats.spares_sent += 1;
            self.stats.spare_bytes += sent.size as u64;
            return Some(sent);
        }
        None
    }

    pub(super) fn handle_datagram(
        &mut self,
        (now, index): (Time, usize),
        datagram: DatagramFrame<P>,
    ) -> Result<(), ProtocolError> {
        self.check_size(datagram.data.len())?;
        self.paths[index].stats.data_received += datagram.data.len() as u64;
        self.hand_up(now, datagram);
        Ok(())
    }

    pub(super) fn handle_marked(
        &mut self,
        (now, index): (Time, usize),
        marked: MarkedFrame<P>,
    ) -> Result<(), ProtocolError> {
        let length = marked.datagram.data.len();
        self.check_size(length)?;
        let taken = self.mending_mut().on_datagram(now, marked);
        let stats = &mut self.paths[index].stats;
        if taken.is_empty() {
            self.stats.datagrams_repeated += 1;
            stats.data_duplicate += length as u64;
            return Ok(());
        }
        stats.data_received += length as u64;
        self.stats.datagrams_mended += taken.len() as u64 - 1;
        taken.into_iter().for_each(|taken| self.put_in_order(now, taken));
        Ok(())
    }

    pub(super) fn handle_parity(&mut self, now: Time, parity: ParityFrame<P>) -> Result<(), ProtocolError> {
        // It may be longer than the longest datagram by one.
        self.check_size(parity.data.len().saturating_sub(1))?;
        let taken = self.mending_mut().on_parity(now, parity);
        self.stats.datagrams_mended += taken.len() as u64;
        taken.into_iter().for_each(|taken| self.put_in_order(now, taken));
        Ok(())
    }

    fn check_size(&self, length: usize) -> Result<(), ProtocolError> {
        if length > usize::from(self.config.max_datagram) {
            return Err(ProtocolError::DatagramSize);
        }
        Ok(())
    }

    fn mending_mut(&mut self) -> &mut Mending<P> {
        let budget = &self.budget;
        let datagrams = self.datagrams.get_or_insert_default();
        datagrams.mending.get_or_insert_with(|| Box::new(Mending::new(budget.clone())))
    }

    /// Hands a datagram up, in its turn if its class is wanted in order.
    fn put_in_order(&mut self, now: Time, (datagram, place): (DatagramFrame<P>, Option<u64>)) {
        let is_ordered = self.local.ordered_classes >> datagram.class.min(15) & 1 == 1;
        let Some(place) = place.filter(|_| is_ordered) else { return self.hand_up(now, datagram) };
        let (patience, budget) = (self.config.order_patience, &self.budget);
        let datagrams = self.datagrams.get_or_insert_default();
        let ordering =
            datagrams.ordering.get_or_insert_with(|| Box::new(Ordering::new(patience, budget.clone())));
        if ordering.wants_look(now) {
            let usual = self.config.initial_rtt;
            let inflow = |path: &Path| {
                let rtt = path.rtt();
                let rtt = if rtt.has_sample() { rtt.smoothed() } else { usual };
                let received = (path.receipt.bytes, path.receipt.packets);
                Inflow { path: path.id, one_way: rtt / 2, received }
            };
            ordering.look(now, self.paths.iter().map(inflow).collect());
        }
        let mut ready = Vec::new();
        ordering.insert(now, (place, datagram), &mut ready);
        ready.into_iter().for_each(|datagram| self.hand_up(now, datagram));
    }

    fn hand_up(&mut self, now: Time, datagram: DatagramFrame<P>) {
        self.stats.datagrams_received += 1;
        let first = self.incoming.is_empty();
        self.stats.datagrams_dropped += self.incoming.push(now, datagram);
        if first && !self.incoming.is_empty() {
            self.events.push_back(Event::DatagramReceived);
        }
    }

    pub(super) fn datagrams_timeout(&self) -> Time {
        let Some(datagrams) = &self.datagrams else { return Time::NEVER };
        let sending = datagrams.sending.as_ref().map_or(Time::NEVER, |sending| sending.next_timeout());
        let mending = datagrams.mending.as_ref().map_or(Time::NEVER, |mending| mending.next_timeout());
        let ordering = datagrams.ordering.as_ref().map_or(Time::NEVER, |ordering| ordering.next_timeout());
        sending.min(mending).min(ordering)
    }

    pub(super) fn handle_datagrams_timeout(&mut self, now: Time) {
        let Some(datagrams) = &mut self.datagrams else { return };
        if let Some(sending) = &mut datagrams.sending {
            sending.handle_timeout(now, self.paths.iter().map(carrier));
        }
        if let Some(mending) = &mut datagrams.mending {
            mending.handle_timeout(now);
        }
        if let Some(ordering) = &mut datagrams.ordering {
            let mut ready = Vec::new();
            ordering.handle_timeout(now, &mut ready);
            ready.into_iter().for_each(|datagram| self.hand_up(now, datagram));
        }
    }
}

/// What is to be known of a path that a datagram leaves on.
fn carrier(path: &Path) -> Carrier {
    let lost = path.stats.packets_lost.saturating_sub(path.stats.spurious_losses);
    Carrier { path: path.id, totals: (path.stats.packets_sent, lost) }
}
