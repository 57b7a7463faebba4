//! Addresses at which the ends can be reached, beyond those in use.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anabranch_wire::{PathId, Payload};

use super::Session;
use crate::control::Control;
use crate::event::Event;

/// Addresses of a peer that are remembered.
const MAX_PEER_ADDRESSES: usize = 32;

/// Addresses on both sides, beyond those in use.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Ours, told to the peer.
    pub ours: Vec<(u64, SocketAddr)>,
    pub peers: BTreeSet<u64>,
}

impl<P: Payload> Session<P> {
    /// Tells the peer an address at which this end can be reached.
    pub fn advertise_address(&mut self, id: u64, address: SocketAddr) {
        self.addresses.ours.retain(|(known, _)| *known != id);
        self.addresses.ours.push((id, address));
        self.push_control(Control::AddAddress(id));
    }

    /// Tells the peer that an address is gone.
    pub fn withdraw_address(&mut self, id: u64) {
        let before = self.addresses.ours.len();
        self.addresses.ours.retain(|(known, _)| *known != id);
        if self.addresses.ours.len() < before {
            self.control.remove(Control::AddAddress(id));
            self.push_control(Control::RemoveAddress(id));
        }
    }

    pub(super) fn handle_add_address(&mut self, id: u64, address: SocketAddr) {
        let known = self.addresses.peers.contains(&id);
        if !known
            && self.addresses.peers.len() < MAX_PEER_ADDRESSES
            && self.announce(Event::PeerAddress { id, address })
        {
            self.addresses.peers.insert(id);
        }
    }

    pub(super) fn handle_remove_address(&mut self, id: u64) {
        if self.addresses.peers.remove(&id) {
            self.events.push_back(Event::PeerAddressGone { id });
        }
    }

    /// The peer says where it sees us on a path.
    pub(super) fn handle_observed_address(&mut self, path: PathId, address: SocketAddr) {
        let Some(index) = self.path_index(path) else { return };
        if self.paths[index].observed != Some(address)
            && self.announce(Event::ObservedAddress { path, address })
        {
            self.paths[index].observed = Some(address);
        }
    }
}
