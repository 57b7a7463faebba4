//! Looks, while data arrives, whether a path falls silent; see `path::lull`.
//!
//! A packet only starts the timer. When it fires, a look at the paths decides whether to wait on. So a flow costs one
//! look per patience, and an idle session none.

use anabranch_wire::{Payload, Time};

use super::flight::Flight;
use crate::path::{Look, Lull};

/// Smaller packets belong to no flow.
const DATA: usize = 512;

pub(super) struct Lulls {
    /// [`Time::NEVER`] while no data arrives.
    pub look_at: Time,
}

impl Default for Lulls {
    fn default() -> Self {
        Self { look_at: Time::NEVER }
    }
}

impl Lulls {
    /// A packet of `size` bytes arrived that asks for an acknowledgement.
    #[inline]
    pub(super) fn on_received<P: Payload>(
        &mut self,
        now: Time,
        flight: &Flight<P>,
        (index, size): (usize, usize),
    ) {
        if self.look_at == Time::NEVER && size >= DATA {
            self.look_at = now + Lull::patience(flight.paths[index].rtt().smoothed());
        }
    }

    /// Probes paths whose flow fell silent.
    pub(super) fn handle_timeout<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>) {
        if self.look_at > now {
            return;
        }
        self.look_at = Time::NEVER;
        for index in 0..flight.paths.len() {
            if !flight.paths[index].state().is_alive() {
                continue;
            }
            let path = flight.paths.edit(index);
            let Some(silence) = path.receipt().silence(now) else { continue };
            let (received, last) = (path.stats().data_received, now - silence);
            let patience = Lull::patience(path.rtt().smoothed());
            match path.health_mut().lull().look(now, received, last, patience) {
                Look::Again(at) => self.look_at = self.look_at.min(at),
                // Packets in flight have a probe timeout.
                Look::Probe if path.board().pipe() == 0 => path.health_mut().want_probe(),
                _ => {}
            }
        }
    }
}
