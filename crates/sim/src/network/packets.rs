//! Packets on their way, each in a place of its own; only the place's number travels from link to link.

use anabranch_wire::{Length, Message};

/// The end of a list of hops.
pub(crate) const LAST_HOP: u32 = u32::MAX;

/// A packet on its way.
#[derive(Debug)]
pub(crate) struct Flying {
    /// UDP payload in bytes.
    pub size: u32,
    pub to: Destination,
    /// `None` for a packet of no session.
    pub message: Option<Message<Length>>,
}

/// Who gets a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The place of its flow.
    pub flow: u32,
    /// Which of the sessions that had this place.
    pub generation: u32,
    /// Which end: 0 the client, 1 the server.
    pub end: u8,
    /// Which of the flow's paths it took.
    pub path: u8,
    /// Whether it is capable of ECN.
    pub ecn: bool,
}

/// All packets on their way.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    places: Vec<Flying>,
    free: Vec<u32>,
}

impl Packets {
    pub(crate) fn insert(&mut self, packet: Flying) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = packet;
            place
        } else {
            self.places.push(packet);
            self.places.len() as u32 - 1
        }
    }

    /// Frees a packet's place; what it carried is the caller's.
    pub(crate) fn remove(&mut self, place: u32) -> (Destination, u32, Option<Message<Length>>) {
        self.free.push(place);
        let packet = &mut self.places[place as usize];
        (packet.to, packet.size, packet.message.take())
    }

    /// Packets on their way now.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
