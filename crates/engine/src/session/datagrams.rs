//! Datagrams in and out, their copies and their parity.
//!
//! Datagrams wait here until a path may carry them, and are sent before streams. The state of [`crate::datagram`] is
//! created by the first datagram that needs it, so a session with only streams has none.

use std::collections::VecDeque;

use anabranch_wire::{
    DatagramFrame, Frame, LARGEST_MARKS, LARGEST_PARITY_OVERHEAD, MarkedFrame, PACKET_OVERHEAD, ParityFrame,
    PathId, Payload, Time, datagram_frame_overhead,
};

use super::flight::Flight;
use super::sending::{Outlet, Packets, fastest, finish};
use crate::datagram::{
    Arrived, Carrier, DatagramMode, DatagramSource, Inflow, Mending, Ordering, Pulled, Sending, Spares,
};
use crate::event::{Event, ProtocolError};
use crate::inbox::Inbox;
use crate::path::Path;
use crate::route::Transmit;
use crate::schedule::{Decision, Item, PathView, SessionView};
use crate::stats::SessionStats;
use crate::stream::MemoryBudget;

const CLASSES: usize = 16;

/// Why a datagram was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// Larger than the paths or the peer take.
    #[error("datagrams may have at most {most} bytes")]
    TooLarge {
        /// The most bytes that they take.
        most: usize,
    },
    /// The session is not established, or over.
    #[error("the session carries no data")]
    NotConnected,
}

pub(super) struct Datagrams<P> {
    /// Present once a datagram was sent or received.
    queues: Option<Box<Queues<P>>>,
    /// How the datagrams of each class are protected against loss.
    modes: [DatagramMode; CLASSES],
    /// Provides a datagram when a path has room and none wait here.
    source: Option<Box<dyn DatagramSource<P>>>,
    budget: MemoryBudget,
}

/// Waiting datagrams, and state for the others.
struct Queues<P> {
    outgoing: VecDeque<DatagramFrame<P>>,
    incoming: Inbox<P>,
    /// Present once a class is redundant or protected.
    sending: Option<Box<Sending<P>>>,
    /// Present once the peer sent datagrams with numbers.
    mending: Option<Box<Mending<P>>>,
    /// Present once datagrams arrived of a class that this end wants in order.
    ordering: Option<Box<Ordering<P>>>,
    /// Empty; keeps its memory from one datagram to the next.
    ready: Vec<DatagramFrame<P>>,
}

impl<P: Payload> Datagrams<P> {
    pub(super) fn new(modes: [DatagramMode; CLASSES], budget: MemoryBudget) -> Self {
        Self { queues: None, modes, source: None, budget }
    }

    fn queues(&mut self, flight: &Flight<P>) -> &mut Queues<P> {
        let (budget, most) = (&self.budget, flight.config.memory.datagrams);
        self.queues.get_or_insert_with(|| {
            Box::new(Queues {
                outgoing: VecDeque::new(),
                incoming: Inbox::new(budget.clone(), most),
                sending: None,
                mending: None,
                ordering: None,
                ready: Vec::new(),
            })
        })
    }

    /// Queues a datagram to send. When the queue is full, the oldest of the lowest class makes room.
    pub(super) fn send(
        &mut self,
        flight: &mut Flight<P>,
        mut datagram: DatagramFrame<P>,
    ) -> Result<(), DatagramError> {
        let Some(peer) = flight.peer.as_ref().filter(|_| flight.state().carries_data()) else {
            return Err(DatagramError::NotConnected);
        };
        datagram.class = datagram.class.min(CLASSES as u8 - 1);
        let marks = match self.mode_of(flight, datagram.class) {
            DatagramMode::Once if !peer_orders(flight, datagram.class) => 0,
            DatagramMode::Once | DatagramMode::Redundant => LARGEST_MARKS,
            DatagramMode::Protected => LARGEST_PARITY_OVERHEAD + 1,
        };
        let header = PACKET_OVERHEAD + datagram_frame_overhead(datagram.flow, datagram.data.len()) + marks;
        let fits = usize::from(flight.config.mtu.base) - header;
        let path = flight.paths.iter().map(Path::size).min().map_or(fits, |size| size - header);
        let most = path.min(usize::from(peer.max_datagram));
        if datagram.data.len() > most {
            return Err(DatagramError::TooLarge { most });
        }
        let outgoing = &mut self.queues(flight).outgoing;
        if outgoing.len() >= flight.config.memory.datagrams {
            flight.stats.datagrams_dropped += 1;
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

    /// Removes the oldest received datagram; returns it with its time of arrival.
    pub(super) fn receive(&mut self) -> Option<(Time, DatagramFrame<P>)> {
        self.queues.as_mut()?.incoming.pop()
    }

    /// Takes datagrams from `source` whenever a path has room and none wait here.
    pub(super) fn set_source(&mut self, source: Box<dyn DatagramSource<P>>) {
        self.source = Some(source);
    }

    pub(super) fn set_mode(&mut self, class: u8, mode: DatagramMode) {
        self.modes[usize::from(class).min(CLASSES - 1)] = mode;
    }

    /// The mode of a class, limited to what the peer supports.
    fn mode_of(&self, flight: &Flight<P>, class: u8) -> DatagramMode {
        if takes_numbers(flight) {
            self.modes[usize::from(class).min(CLASSES - 1)]
        } else {
            DatagramMode::Once
        }
    }

    /// True while datagrams, copies of them or parity wait for a path.
    #[inline]
    pub(super) fn have_work(&self) -> bool {
        if self.source.as_ref().is_some_and(|source| source.is_waiting()) {
            return true;
        }
        let Some(queues) = &self.queues else { return false };
        !queues.outgoing.is_empty() || queues.sending.as_ref().is_some_and(|sending| sending.has_spares())
    }

    /// True while datagrams wait that have not left yet.
    #[inline]
    pub(super) fn wait(&self) -> bool {
        self.queues.as_ref().is_some_and(|queues| !queues.outgoing.is_empty())
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        if let Some(queues) = &mut self.queues {
            queues.outgoing.shrink_to_fit();
        }
    }

    /// The next packet with datagrams: first parity, which soon becomes useless, then datagrams, then copies.
    pub(super) fn place(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        outlet: &mut Outlet<'_, P>,
    ) -> Option<Transmit<P>> {
        if let Some(sent) = self.place_spare(now, flight, outlet, Spares::Parity) {
            return Some(sent);
        }
        if let Some(sent) = self.place_datagram(now, flight, outlet) {
            return Some(sent);
        }
        let sent = self.place_spare(now, flight, outlet, Spares::All);
        if sent.is_none() && self.have_work() {
            // They wait for certain paths.
            let ready = outlet.views.iter().map(|view| view.ready_at).filter(|at| *at > now).min();
            flight.clock.wake_at = flight.clock.wake_at.min(ready.unwrap_or(Time::NEVER));
        }
        sent
    }

    fn place_datagram(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        outlet: &mut Outlet<'_, P>,
    ) -> Option<Transmit<P>> {
        let Some(front) = self.queues.as_ref().and_then(|queues| queues.outgoing.front()) else {
            return self.pull(now, flight, outlet);
        };
        if self.mode_of(flight, front.class) == DatagramMode::Redundant {
            let fastest = fastest(outlet.views)?;
            return self.build(now, flight, outlet, fastest, false);
        }
        if outlet.views.iter().all(|view| view.budget == 0) {
            return None;
        }
        let (class, flow, bytes) = (front.class, front.flow, front.data.len() as u64);
        let item = Item { bytes, resend: false, class, flow };
        let session = SessionView { now, more_expected: flight.streams.more_expected(), window: u64::MAX };
        match outlet.scheduler.pick(&session, outlet.views, &item) {
            Decision::Send { path, .. } => self.build(now, flight, outlet, path, false),
            Decision::Duplicate(paths) => self.build(now, flight, outlet, *paths.first()?, true),
            Decision::Wait(until) => {
                flight.clock.wake_at = flight.clock.wake_at.min(until);
                None
            }
        }
    }

    /// A packet with a datagram from the source, if it has one for these paths.
    fn pull(&mut self, now: Time, flight: &mut Flight<P>, outlet: &mut Outlet<'_, P>) -> Option<Transmit<P>> {
        let source = self.source.as_mut().filter(|source| source.is_waiting())?;
        if !flight.state().carries_data() {
            return None;
        }
        let session = SessionView { now, more_expected: flight.streams.more_expected(), window: u64::MAX };
        match source.next(&session, outlet.views) {
            Pulled::Send { path, datagram } => {
                self.queues(flight).outgoing.push_front(datagram);
                self.build(now, flight, outlet, path, false)
            }
            Pulled::Wait(until) => {
                flight.clock.wake_at = flight.clock.wake_at.min(until);
                None
            }
        }
    }

    /// A packet with the next datagram for this path; `everywhere` when the scheduler wants it on all paths.
    fn build(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        outlet: &mut Outlet<'_, P>,
        path: PathId,
        everywhere: bool,
    ) -> Option<Transmit<P>> {
        let index = flight.paths.place_of(path)?;
        // Acknowledgements use the remaining room: a datagram may be as large as the packet.
        let mut draft = Packets::draft(flight, index);
        while let Some(datagram) = self.queues.as_mut()?.outgoing.pop_front() {
            let length = datagram.data.len() as u64;
            if flight.config.datagrams.urgent_classes >> datagram.class & 1 == 1 {
                flight.paths.on_urgent(now, path);
            }
            let mode = match self.mode_of(flight, datagram.class) {
                DatagramMode::Once if everywhere && takes_numbers(flight) => DatagramMode::Redundant,
                mode => mode,
            };
            let frame = if mode == DatagramMode::Once && !peer_orders(flight, datagram.class) {
                Frame::Datagram(datagram)
            } else {
                let carrier = carrier(&flight.paths[index]);
                self.sending(flight).mark(mode, carrier, datagram)
            };
            let marked = if let Frame::Marked(marked) = &frame { Some(marked.clone()) } else { None };
            if draft.push(frame) {
                flight.paths.count_sent_data(index, length);
                flight.stats.datagrams_sent += 1;
                if let Some(marked) = marked {
                    let others = outlet.views.iter().map(|view: &PathView| view.id).filter(|id| *id != path);
                    self.sending(flight).on_sent(now, path, &marked, others);
                }
                break;
            }
            // The path's packets have become smaller since the source gave the datagram.
            flight.stats.datagrams_dropped += 1;
        }
        outlet.packets.add_acks(now, flight, index, &mut draft);
        finish(now, flight, index, draft)
    }

    fn sending(&mut self, flight: &Flight<P>) -> &mut Sending<P> {
        let wanted = flight.peer.as_ref().map_or((0, 0), |peer| (peer.max_block, peer.ordered_classes));
        let protection = flight.config.datagrams.protection;
        self.queues(flight).sending.get_or_insert_with(|| Box::new(Sending::new(protection, wanted)))
    }

    /// A packet with a copy of a datagram, or a piece of parity.
    fn place_spare(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        outlet: &mut Outlet<'_, P>,
        which: Spares,
    ) -> Option<Transmit<P>> {
        while let Some((path, frame)) =
            self.queues.as_mut()?.sending.as_mut()?.next_spare(now, outlet.views, which)
        {
            let Some(index) = flight.paths.place_of(path) else { continue };
            let length = match &frame {
                Frame::Parity(parity) => parity.data.len(),
                Frame::Marked(marked) => marked.datagram.data.len(),
                _ => 0,
            };
            let mut draft = Packets::draft(flight, index);
            if !draft.push(frame) {
                continue;
            }
            outlet.packets.add_acks(now, flight, index, &mut draft);
            let sent = finish(now, flight, index, draft)?;
            flight.paths.count_sent_data(index, length as u64);
            flight.stats.spares_sent += 1;
            flight.stats.spare_bytes += sent.size as u64;
            return Some(sent);
        }
        None
    }

    pub(super) fn handle_datagram(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        datagram: DatagramFrame<P>,
    ) -> Result<(), ProtocolError> {
        check_size(flight, datagram.data.len())?;
        flight.paths.edit(index).stats_mut().data_received += datagram.data.len() as u64;
        self.hand_up(now, flight, datagram);
        Ok(())
    }

    pub(super) fn handle_marked(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        marked: MarkedFrame<P>,
    ) -> Result<(), ProtocolError> {
        let length = marked.datagram.data.len();
        check_size(flight, length)?;
        let taken = self.mending(flight).on_datagram(now, marked);
        let stats = flight.paths.edit(index).stats_mut();
        if taken.is_empty() {
            stats.data_duplicate += length as u64;
            flight.stats.datagrams_repeated += 1;
            return Ok(());
        }
        stats.data_received += length as u64;
        flight.stats.datagrams_mended += taken.len() as u64 - 1;
        // The first is the one that arrived; the others were restored.
        let paths = std::iter::once(Some(flight.paths[index].id())).chain(std::iter::repeat(None));
        taken.into_iter().zip(paths).for_each(|(taken, path)| self.put_in_order(now, flight, (taken, path)));
        Ok(())
    }

    pub(super) fn handle_parity(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        parity: ParityFrame<P>,
    ) -> Result<(), ProtocolError> {
        // It may be longer than the longest datagram by one.
        check_size(flight, parity.data.len().saturating_sub(1))?;
        let taken = self.mending(flight).on_parity(now, parity);
        flight.stats.datagrams_mended += taken.len() as u64;
        taken.into_iter().for_each(|taken| self.put_in_order(now, flight, (taken, None)));
        Ok(())
    }

    fn mending(&mut self, flight: &Flight<P>) -> &mut Mending<P> {
        let budget = self.budget.clone();
        self.queues(flight).mending.get_or_insert_with(|| Box::new(Mending::new(budget)))
    }

    /// Passes a datagram to the application, in order if its class requires that.
    fn put_in_order(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        ((datagram, place), path): ((DatagramFrame<P>, Option<u64>), Option<PathId>),
    ) {
        if check_size(flight, datagram.data.len()).is_err() {
            // Parity has an even length, so what it restores may be too long by one.
            return;
        }
        let is_ordered = flight.config.datagrams.ordered_classes >> datagram.class.min(15) & 1 == 1;
        let Some(place) = place.filter(|_| is_ordered) else { return self.hand_up(now, flight, datagram) };
        let config = &flight.config.datagrams;
        let (waits, budget) = ((config.patience, config.burst_classes), self.budget.clone());
        let place_of =
            |id| flight.paths.place_of(id).map(|index| (id, flight.paths[index].receipt().missing()));
        let path = path.and_then(place_of);
        let queues = self.queues(flight);
        let ordering = queues.ordering.get_or_insert_with(|| Box::new(Ordering::new(waits, budget)));
        if ordering.wants_look(now) {
            let usual = flight.config.initial_rtt;
            let inflow = |path: &Path| {
                let rtt = path.rtt();
                let rtt = if rtt.has_sample() { rtt.smoothed() } else { usual };
                let received = (path.receipt().bytes(), path.receipt().packets());
                Inflow { path: path.id(), one_way: rtt / 2, received }
            };
            ordering.look(now, flight.paths.iter().map(inflow).collect());
        }
        let mut ready = std::mem::take(&mut queues.ready);
        ordering.insert(now, Arrived { place, path, datagram }, &mut ready);
        ready.drain(..).for_each(|datagram| self.hand_up(now, flight, datagram));
        self.queues(flight).ready = ready;
    }

    fn hand_up(&mut self, now: Time, flight: &mut Flight<P>, datagram: DatagramFrame<P>) {
        flight.stats.datagrams_received += 1;
        let incoming = &mut self.queues(flight).incoming;
        let first = incoming.is_empty();
        flight.stats.datagrams_dropped += incoming.push(now, datagram);
        if first && !incoming.is_empty() {
            flight.out.events.push_back(Event::DatagramReceived);
        }
    }

    /// When something is due.
    #[inline]
    pub(super) fn next_timeout(&self) -> Time {
        let Some(queues) = &self.queues else { return Time::NEVER };
        let sending = queues.sending.as_ref().map_or(Time::NEVER, |sending| sending.next_timeout());
        let mending = queues.mending.as_ref().map_or(Time::NEVER, |mending| mending.next_timeout());
        let ordering = queues.ordering.as_ref().map_or(Time::NEVER, |ordering| ordering.next_timeout());
        sending.min(mending).min(ordering)
    }

    pub(super) fn handle_timeout(&mut self, now: Time, flight: &mut Flight<P>) {
        let Some(queues) = &mut self.queues else { return };
        if let Some(sending) = &mut queues.sending {
            sending.handle_timeout(now, flight.paths.iter().map(carrier));
        }
        if let Some(mending) = &mut queues.mending {
            mending.handle_timeout(now);
        }
        if let Some(ordering) = &mut queues.ordering {
            let mut ready = Vec::new();
            ordering.handle_timeout(now, &mut ready);
            ready.into_iter().for_each(|datagram| self.hand_up(now, flight, datagram));
        }
    }

    /// Adds the datagram counters to the session's.
    pub(super) fn add_stats(&self, stats: SessionStats) -> SessionStats {
        let ordering = self.queues.as_ref().and_then(|queues| queues.ordering.as_ref());
        let order = ordering.map(|ordering| ordering.counts).unwrap_or_default();
        SessionStats {
            datagrams_reordered: order.waited,
            gaps_overflowed: order.overflowed,
            gaps_timed_out: order.timed_out,
            datagrams_repeated: stats.datagrams_repeated + order.repeated,
            ..stats
        }
    }
}

/// True when the peer wants the datagrams of a class in order.
fn peer_orders<P>(flight: &Flight<P>, class: u8) -> bool {
    flight.peer.as_ref().is_some_and(|peer| peer.ordered_classes >> class.min(15) & 1 == 1)
}

/// True if the peer accepts numbered datagrams.
fn takes_numbers<P>(flight: &Flight<P>) -> bool {
    flight.peer.as_ref().is_some_and(|peer| peer.max_block > 0)
}

fn check_size<P>(flight: &Flight<P>, length: usize) -> Result<(), ProtocolError> {
    if length > usize::from(flight.config.datagrams.largest) {
        return Err(ProtocolError::DatagramSize);
    }
    Ok(())
}

/// The path that a datagram leaves on, as protection sees it.
fn carrier(path: &Path) -> Carrier {
    let lost = path.stats().packets_lost.saturating_sub(path.stats().spurious_losses);
    Carrier { path: path.id(), totals: (path.stats().packets_sent, lost) }
}
