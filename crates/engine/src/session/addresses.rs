//! Addresses at which the ends can be reached, beyond those in use.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anabranch_wire::{AddressFrame, Frame, Payload};

use super::outbox::Outbox;
use crate::control::Control;
use crate::event::Event;

/// Most addresses of a peer that are remembered.
const MAX_PEER_ADDRESSES: usize = 32;

/// Addresses of both ends, by their ids.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Announced to the peer.
    ours: Vec<(u64, SocketAddr)>,
    peers: BTreeSet<u64>,
}

impl Addresses {
    /// Announces an address of this end.
    pub(super) fn advertise(&mut self, out: &mut Outbox, id: u64, address: SocketAddr) {
        self.ours.retain(|(known, _)| *known != id);
        self.ours.push((id, address));
        out.control.remove(Control::RemoveAddress(id));
        out.want(Control::AddAddress(id));
    }

    /// Announces that an address is gone.
    pub(super) fn withdraw(&mut self, out: &mut Outbox, id: u64) {
        let before = self.ours.len();
        self.ours.retain(|(known, _)| *known != id);
        if self.ours.len() < before {
            out.control.remove(Control::AddAddress(id));
            out.want(Control::RemoveAddress(id));
        }
    }

    /// The peer announced an address.
    pub(super) fn handle_add(&mut self, out: &mut Outbox, added: AddressFrame) {
        let AddressFrame { id, address } = added;
        if !self.peers.contains(&id)
            && self.peers.len() < MAX_PEER_ADDRESSES
            && out.tell_if_read(Event::PeerAddress { id, address })
        {
            self.peers.insert(id);
        }
    }

    /// An address of the peer is gone.
    pub(super) fn handle_remove(&mut self, out: &mut Outbox, id: u64) {
        if self.peers.remove(&id) {
            out.events.push_back(Event::PeerAddressGone { id });
        }
    }

    /// The frame for an address; `None` for other controls, or if the address was withdrawn or has returned.
    pub(super) fn frame<P: Payload>(&self, control: Control) -> Option<Frame<P>> {
        match control {
            Control::AddAddress(id) => {
                let (_, address) = self.ours.iter().find(|(known, _)| *known == id)?;
                Some(Frame::AddAddress(AddressFrame { id, address: *address }))
            }
            Control::RemoveAddress(id) => {
                let is_gone = self.ours.iter().all(|(known, _)| *known != id);
                is_gone.then_some(Frame::RemoveAddress { id })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_returns_is_not_withdrawn_by_an_earlier_frame() {
        let (mut addresses, mut out) = (Addresses::default(), Outbox::default());
        let address = SocketAddr::from(([192, 0, 2, 1], 443));
        addresses.advertise(&mut out, 1, address);
        addresses.withdraw(&mut out, 1);
        addresses.advertise(&mut out, 1, address);
        assert_eq!(out.control.after(Some(Control::AddAddress(1))), None, "nothing follows the address");
        // The frame was lost, so it is wanted again.
        let withdrawal = |addresses: &Addresses| addresses.frame::<bytes::Bytes>(Control::RemoveAddress(1));
        assert_eq!(withdrawal(&addresses), None);
        addresses.withdraw(&mut out, 1);
        assert_eq!(withdrawal(&addresses), Some(Frame::RemoveAddress { id: 1 }));
    }
}
