//! Chooses the next data and its path: mTCP's "when", "what" and "where" as separate steps (§3.1.4 [M5]).
//!
//! | file | contents |
//! |---|---|
//! | `placement` | showing the paths to the scheduler, and carrying out its decision |
//! | `packets`, `draft`, `spare_lists` | building a packet |
//! | `copies` | data that is sent on every path |
//! | `relief` | copies of data in flight on a slow path |
//! | `overflow` | using overflow paths while the primary ones are full |
//! | `binding` | early binding: buffers of paths |
//!
//! [`Sending`] handles data and acknowledgements. Handshake, proofs, probes and control frames come first; the session
//! sends those.

mod binding;
mod copies;
mod draft;
mod overflow;
mod packets;
mod placement;
mod relief;
mod spare_lists;

use anabranch_wire::{Payload, Span, Time};

use super::datagrams::Datagrams;
use super::flight::{Choice, Flight};
use crate::route::Transmit;
use crate::schedule::{PathView, Scheduler};
use crate::stream::Pick;
use binding::Binding;
use placement::{Next, Placement, Spot};

pub(super) use draft::Draft;
pub(super) use packets::{Packets, finish};
pub(super) use placement::fastest;

/// An acknowledgement waits at most this long for data on its path: while other paths have enough to send, none might
/// follow for long.
pub(super) const LATE: Span = Span::from_millis(1);

/// The parts needed to send on a given path.
pub(super) struct Outlet<'a, P> {
    pub packets: &'a mut Packets<P>,
    pub scheduler: &'a mut dyn Scheduler,
    pub views: &'a [PathView],
}

/// Sends data and acknowledgements.
pub(super) struct Sending<P> {
    placement: Placement,
    pub packets: Packets<P>,
    binding: Binding,
}

impl<P: Payload> Sending<P> {
    pub(super) fn new(scheduler: Box<dyn Scheduler>) -> Self {
        Self {
            placement: Placement::new(scheduler),
            packets: Packets::default(),
            binding: Binding::default(),
        }
    }

    pub(super) fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.placement.scheduler = scheduler;
    }

    /// The next packet with data, or otherwise with a due acknowledgement.
    #[inline]
    pub(super) fn poll_transmit(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        datagrams: &mut Datagrams<P>,
    ) -> Option<Transmit<P>> {
        if flight.paths.need_overflow_review() {
            overflow::review(now, flight, datagrams);
        }
        if may_have_data(flight, datagrams) {
            return self.transmit_data(now, flight, datagrams);
        }
        self.transmit_ack(now, flight, now)
    }

    #[inline(never)]
    fn transmit_data(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        datagrams: &mut Datagrams<P>,
    ) -> Option<Transmit<P>> {
        if let Some(most) = flight.config.early_binding {
            let sent = self.transmit_bound(now, flight, datagrams, most);
            return if sent.is_some() { sent } else { self.transmit_ack(now, flight, now) };
        }
        let streams = flight.streams.has_work();
        if streams && let Some(spot) = go_on(now, flight) {
            return self.transmit_at(now, flight, spot);
        }
        let others = flight.paths.have_copies() || datagrams.have_work();
        if !streams && !others {
            note_app_limited(flight);
            let relief = relief::transmit_relief(now, flight, &mut self.packets);
            return if relief.is_some() { relief } else { self.transmit_ack(now, flight, now) };
        }
        if others {
            let ahead = self.transmit_ahead(now, flight, datagrams);
            if ahead.is_some() {
                return ahead;
            }
        }
        match self.placement.place(now, flight, streams, datagrams.wait()) {
            Next::At(spot) => self.transmit_at(now, flight, spot),
            Next::Everywhere(paths) => {
                let sent = copies::send_everywhere(now, flight, &mut self.packets, &paths);
                if sent.is_some() { sent } else { self.transmit_ack(now, flight, now) }
            }
            Next::Nothing => self.transmit_ack(now, flight, now),
        }
    }

    /// With early binding: sends unbound data first.
    fn transmit_bound(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        datagrams: &mut Datagrams<P>,
        most: u64,
    ) -> Option<Transmit<P>> {
        if flight.paths.have_copies() || datagrams.have_work() {
            let ahead = self.transmit_ahead(now, flight, datagrams);
            if ahead.is_some() {
                return ahead;
            }
            self.placement.place(now, flight, false, datagrams.wait());
        }
        let outlets = (&mut self.packets, &mut self.placement);
        let (sent, is_idle) = self.binding.transmit(now, flight, outlets, most);
        if is_idle {
            note_app_limited(flight);
            return relief::transmit_relief(now, flight, &mut self.packets);
        }
        sent
    }

    /// Copies, which are late already, then datagrams.
    fn transmit_ahead(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        datagrams: &mut Datagrams<P>,
    ) -> Option<Transmit<P>> {
        if flight.is_full() {
            return None;
        }
        let views = self.placement.take_views(now, flight);
        let packets = &mut self.packets;
        let mut sent = None;
        if flight.paths.have_copies() {
            sent = copies::transmit_copy(now, flight, packets, &views);
        }
        if sent.is_none() && datagrams.have_work() && views.iter().any(|view| view.room > 0) {
            let scheduler = &mut *self.placement.scheduler;
            sent = datagrams.place(now, flight, &mut Outlet { packets, scheduler, views: &views });
        }
        self.placement.return_views(views);
        sent
    }

    fn transmit_at(&mut self, now: Time, flight: &mut Flight<P>, spot: Spot) -> Option<Transmit<P>> {
        let Spot { index, pick, choice } = spot;
        let mut draft = Packets::draft(flight, index);
        self.packets.fill(now, flight, index, pick, &mut draft);
        if draft.is_empty() {
            return self.transmit_ack(now, flight, now);
        }
        if let Some(choice) = choice {
            let left = choice.left.saturating_sub(draft.size() as u64);
            flight.choice = Some(Choice { left, ..choice });
        }
        finish(now, flight, index, draft)
    }

    /// An acknowledgement that was due at `due` or before and found no data to travel with.
    #[inline]
    pub(super) fn transmit_ack(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        due: Time,
    ) -> Option<Transmit<P>> {
        if flight.paths.wants().ack_at > due { None } else { self.transmit_due_ack(now, flight, due) }
    }

    fn transmit_due_ack(&mut self, now: Time, flight: &mut Flight<P>, due: Time) -> Option<Transmit<P>> {
        let index = flight.paths.owing_ack(due)?;
        let carrier = flight.acks.carrier(now, index, &flight.paths, &flight.config);
        let built = self.packets.build_ack(now, flight, carrier);
        if built.is_none() {
            flight.paths.postpone_ack(index, now + flight.config.acks.max_delay);
        }
        built
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.placement.shrink();
        self.packets = Packets::default();
    }
}

/// False if there is certainly no data to send and no path to inform. This holds for most packets of an end that only
/// receives.
#[inline]
fn may_have_data<P: Payload>(flight: &Flight<P>, datagrams: &Datagrams<P>) -> bool {
    flight.streams.may_have_work()
        || flight.paths.have_copies()
        || flight.paths.have_untold()
        || datagrams.have_work()
        || relief::may_relieve(flight)
        || flight.config.early_binding.is_some()
}

/// The next packet of the scheduler's last choice, while its path has room.
#[inline]
fn go_on<P: Payload>(now: Time, flight: &mut Flight<P>) -> Option<Spot> {
    let is_open = |choice: &Choice| choice.left > 0 && choice.resend == flight.streams.next_is_resend();
    let choice = flight.choice.filter(is_open)?;
    if flight.streams.next_is_redundant() || flight.streams.next_is_sparse() {
        return None;
    }
    let index = flight.paths.place_of(choice.path)?;
    let path = &flight.paths[index];
    let size = path.size() as u64;
    if flight.calm_window(now, index).is_some_and(|window| window < path.board().pipe() + size) {
        return None;
    }
    let open = path.state().is_alive()
        && flight.paths.pacing_budget(index, now) >= size
        && flight.paths.has_room(index);
    open.then_some(Spot { index, pick: Pick::MissingFirst, choice: Some(choice) })
}

/// Records on the paths that the application has no more data.
fn note_app_limited<P: Payload>(flight: &mut Flight<P>) {
    let mut next = 0;
    while let Some(index) = flight.paths.next_untold(next) {
        next = index + 1;
        flight.paths.on_app_limited(index);
    }
}
