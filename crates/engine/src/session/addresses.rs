//! Addresses at which the ends can be reached, and what may be sent to those that have not answered.
//!
//! A peer can name any address. Until one has answered a challenge it may be a third party's, so all such addresses
//! together are sent no more bytes than the peer has sent to this end, and few challenges in a row.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anabranch_wire::{PathId, Payload, Span, Time};

use super::Session;
use crate::control::Control;
use crate::event::Event;
use crate::path::{CHALLENGE_BYTES, Path};
use crate::route::Route;
use crate::stream::next_turn;

/// Addresses of a peer that are remembered.
const MAX_PEER_ADDRESSES: usize = 32;
/// Addresses without a path whose answers are remembered.
const MAX_PROVEN: usize = 32;
/// Challenges to addresses without proof that may be sent at once ...
const CHALLENGES_AT_ONCE: u64 = 64;
/// ... and the pause until the next one.
const CHALLENGE_PAUSE: Span = Span::from_millis(250);

/// Addresses on both sides, beyond those in use.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Ours, told to the peer.
    pub ours: Vec<(u64, SocketAddr)>,
    pub peers: BTreeSet<u64>,
    /// Where the peer answered on paths that are gone, the latest last.
    proven: Vec<SocketAddr>,
    /// Bytes received in the handshake and on paths that are gone.
    received: u64,
    /// Bytes sent to addresses without proof.
    spent: u64,
    /// When the next challenge would be due if none were sent at once.
    next_challenge: Time,
}

impl Addresses {
    /// The peer has sent so many bytes outside the paths that are left.
    pub(super) fn on_received(&mut self, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
    }

    fn remember(&mut self, address: SocketAddr) {
        self.proven.retain(|known| *known != address);
        if self.proven.len() >= MAX_PROVEN {
            self.proven.remove(0);
        }
        self.proven.push(address);
    }
}

impl<P: Payload> Session<P> {
    /// True when the peer has answered at this address, in the handshake or on a path.
    #[must_use]
    pub fn is_proven(&self, address: SocketAddr) -> bool {
        let proves = |path: &Path| path.route.remote == address && path.allowance.is_proven();
        self.paths.iter().any(|path| proves(path) && !self.reply_pids.contains_key(&path.id))
            || self.addresses.proven.contains(&address)
            || self.race.is_heard_at(address)
    }

    /// A path leaves its address, or is gone.
    pub(super) fn remember_address(&mut self, index: usize) {
        let path = &self.paths[index];
        let (address, is_direct) = (path.route.remote, !self.reply_pids.contains_key(&path.id));
        if path.allowance.is_proven() && is_direct {
            self.addresses.remember(address);
        }
    }

    /// Bytes that may still be sent to addresses without proof.
    pub(super) fn unproven_credit(&self) -> u64 {
        let received: u64 = self.paths.iter().map(|path| path.receipt.bytes).sum();
        received.saturating_add(self.addresses.received).saturating_sub(self.addresses.spent)
    }

    /// Notes what was sent, if it went to an address without proof.
    pub(super) fn note_unproven(&mut self, route: Route, bytes: u64) {
        if !self.is_proven(route.remote) {
            self.addresses.spent = self.addresses.spent.saturating_add(bytes);
        }
    }

    /// True when a path's challenge may be sent; one to an address without proof takes of the credit. Routes of the
    /// handshake were the user's choice.
    pub(super) fn spend_challenge(&mut self, now: Time, index: usize) -> bool {
        let Some(challenge) = &self.paths[index].challenge else { return false };
        let (route, is_relayed) = (challenge.route, self.reply_pids.contains_key(&self.paths[index].id));
        if is_relayed || self.race.is_chosen_here(route) || self.is_proven(route.remote) {
            return true;
        }
        let next = next_turn(now, self.addresses.next_challenge, CHALLENGE_PAUSE, CHALLENGES_AT_ONCE);
        match next.filter(|_| self.unproven_credit() >= 2 * CHALLENGE_BYTES) {
            Some(next) => self.addresses.next_challenge = next,
            None => return false,
        }
        true
    }

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

    /// The addresses at which the peer sees this end, by its own report, on the paths there are.
    pub fn observed_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.paths.iter().filter_map(|path| path.observed)
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
