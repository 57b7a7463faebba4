//! An emulated path: its two links, and the clients behind it, tracked like in a NAT.
//!
//! The first packet from a new source makes it a *client*, with its own socket towards the server to receive the server's
//! answers. There are at most [`MAX_CLIENTS`]. A new client replaces the one silent for longest, if that one has been silent
//! for [`CLIENT_IDLE`].

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anabranch_link::{Arrival, Ecn, Link, LinkStats};
use anabranch_wire::{Span, Time};
use mio::Token;
use quinn_udp::EcnCodepoint;

use crate::config::{Direction, EmulatedPath};
use crate::datagram::{Datagram, Received};

/// Most clients of a path at a time.
pub const MAX_CLIENTS: usize = 64;
/// A client silent for this long can be replaced by a new one.
pub const CLIENT_IDLE: Span = Span::from_secs(30);
/// Bytes one direction of a path may hold, whatever its queue allows: an unlimited rate has no queue.
pub const MAX_HELD_BYTES: u64 = 64 << 20;

/// The modelled part of a path, shared by the emulation's thread and its handle.
#[derive(Debug)]
pub(crate) struct Links {
    forward: Link<Datagram>,
    reverse: Link<Datagram>,
    pub(crate) counts: PathStats,
    /// Chooses the byte to damage.
    damaged: usize,
}

/// The counts of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// From clients to the server.
    pub forward: LinkStats,
    /// From the server to clients.
    pub reverse: LinkStats,
    /// Current clients.
    pub clients: usize,
    /// Packets from sources beyond [`MAX_CLIENTS`], and packets to a client that do not come from the server.
    pub refused: u64,
    /// Packets beyond [`MAX_HELD_BYTES`].
    pub overflowed: u64,
    /// Packets that the operating system did not send.
    pub unsent: u64,
}

impl Links {
    pub(crate) fn new(config: &EmulatedPath) -> Self {
        Self {
            forward: Link::new(config.forward.clone()),
            reverse: Link::new(config.reverse.clone()),
            counts: PathStats::default(),
            damaged: 0,
        }
    }

    pub(crate) fn link(&mut self, direction: Direction) -> &mut Link<Datagram> {
        match direction {
            Direction::Forward => &mut self.forward,
            Direction::Reverse => &mut self.reverse,
        }
    }

    pub(crate) fn enqueue(&mut self, direction: Direction, client: Token, received: Received) {
        let link = self.link(direction);
        let size = u32::try_from(received.bytes.len()).unwrap_or(u32::MAX);
        if link.held_bytes() + u64::from(size) > MAX_HELD_BYTES {
            self.counts.overflowed += 1;
            return;
        }
        let ecn = match received.ecn {
            None => Ecn::NotCapable,
            Some(EcnCodepoint::Ce) => Ecn::Marked,
            Some(EcnCodepoint::Ect0 | EcnCodepoint::Ect1) => Ecn::Capable,
        };
        let datagram = Datagram { client, bytes: received.bytes, ecn: received.ecn };
        // The link counts the packets it drops.
        let _ = link.enqueue(received.at, size, datagram, ecn);
    }

    /// The next datagram that has arrived by `now`, marked and damaged by the link's decision.
    pub(crate) fn pop(&mut self, direction: Direction, now: Time) -> Option<Datagram> {
        let Arrival { item: mut datagram, ce, corrupt, .. } = self.link(direction).pop(now)?;
        if ce {
            datagram.ecn = Some(EcnCodepoint::Ce);
        }
        if corrupt && !datagram.bytes.is_empty() {
            self.damaged = self.damaged.wrapping_add(7919);
            let index = self.damaged % datagram.bytes.len();
            datagram.bytes[index] ^= 0x55;
        }
        Some(datagram)
    }

    pub(crate) fn next_arrival(&self) -> Option<Time> {
        [self.forward.next_arrival(), self.reverse.next_arrival()].into_iter().flatten().min()
    }

    pub(crate) fn stats(&self) -> PathStats {
        PathStats { forward: *self.forward.stats(), reverse: *self.reverse.stats(), ..self.counts }
    }
}

/// The clients of one path: the socket towards the server of each source.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_address: BTreeMap<SocketAddr, Client>,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    token: Token,
    last_heard: Time,
}

impl Clients {
    /// The socket of a known source, whose idle time starts again.
    pub(crate) fn hear(&mut self, address: SocketAddr, now: Time) -> Option<Token> {
        let client = self.by_address.get_mut(&address)?;
        client.last_heard = client.last_heard.max(now);
        Some(client.token)
    }

    pub(crate) fn insert(&mut self, address: SocketAddr, token: Token, now: Time) {
        self.by_address.insert(address, Client { token, last_heard: now });
    }

    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Makes room for one more client: `Err` without room, otherwise the socket to close, if any.
    pub(crate) fn make_room(&mut self, now: Time) -> Result<Option<Token>, ()> {
        if self.by_address.len() < MAX_CLIENTS {
            return Ok(None);
        }
        let oldest = self.by_address.iter().min_by_key(|(_, client)| client.last_heard);
        let (address, client) = oldest.map(|(address, client)| (*address, *client)).ok_or(())?;
        if now.since(client.last_heard) < CLIENT_IDLE {
            return Err(());
        }
        self.by_address.remove(&address);
        Ok(Some(client.token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_full_table_makes_room_only_by_removing_a_long_silent_client() {
        let mut clients = Clients::default();
        for port in 0..MAX_CLIENTS as u16 {
            assert_eq!(clients.make_room(Time::ZERO), Ok(None));
            clients.insert(source(port), Token(usize::from(port)), Time::ZERO);
        }
        let nearly = Time::ZERO + CLIENT_IDLE - Span::from_nanos(1);
        assert_eq!(clients.make_room(nearly), Err(()));
        assert_eq!(clients.hear(source(0), nearly), Some(Token(0)));
        assert_eq!(clients.make_room(Time::ZERO + CLIENT_IDLE), Ok(Some(Token(1))));
        assert_eq!(clients.hear(source(1), nearly), None);
        assert_eq!(clients.len(), MAX_CLIENTS - 1);
    }
}
