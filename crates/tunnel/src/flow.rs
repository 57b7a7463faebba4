//! Which flow an inner packet belongs to.
//!
//! - TCP and UDP: addresses and ports.
//! - Fragments: all of one packet share a flow by their identification, since later ones have no ports.
//! - ICMP errors belong to the flow that they quote, in the other direction: they must not overtake or outlive it.
//! - ICMP echo: addresses and identifier. ESP: addresses and SPI, so that each security association is a flow.
//! - Everything else: addresses and protocol.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::packet::{self, Header, protocol};

/// Identifies an inner flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol number.
    pub protocol: u8,
    /// The part that distinguishes flows of one protocol between two addresses.
    pub detail: Detail,
}

/// The part that distinguishes flows of one protocol between two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Detail {
    /// Nothing.
    None,
    /// Source and destination port.
    Ports(u16, u16),
    /// Identification of a packet in fragments.
    Fragments(u32),
    /// Identifier of ICMP echo.
    Echo(u16),
    /// Security parameters index of ESP.
    Spi(u32),
}

impl FlowKey {
    /// The flow of a packet whose headers were read.
    pub fn of(header: &Header, packet: &[u8]) -> Self {
        if let Some(quote) = packet::quoted(header, packet)
            && let Some((inner, ports)) = packet::read_quoted(quote)
        {
            let detail =
                ports.map_or(Detail::None, |(source, destination)| Detail::Ports(destination, source));
            return Self {
                source: inner.destination,
                destination: inner.source,
                protocol: inner.protocol,
                detail,
            };
        }
        let detail = match header.fragment {
            Some(fragment) => Detail::Fragments(fragment.id),
            None => detail(header, packet),
        };
        Self { source: header.source, destination: header.destination, protocol: header.protocol, detail }
    }

    /// A number for the flow that does not depend on the machine. `seed` keeps others from choosing collisions.
    pub fn hash(&self, seed: u64) -> u32 {
        let mut state = Mixer(seed);
        state.address(self.source);
        state.address(self.destination);
        let detail = match self.detail {
            Detail::None => 0,
            Detail::Ports(source, destination) => 1 << 40 | u64::from(source) << 16 | u64::from(destination),
            Detail::Fragments(id) => 2 << 40 | u64::from(id),
            Detail::Echo(id) => 3 << 40 | u64::from(id),
            Detail::Spi(spi) => 4 << 40 | u64::from(spi),
        };
        state.add(u64::from(self.protocol) << 48 | detail);
        (state.0 >> 32) as u32
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            protocol::TCP => "tcp",
            protocol::UDP => "udp",
            protocol::ICMP | protocol::ICMPV6 => "icmp",
            protocol::ESP => "esp",
            other => return write!(f, "protocol {other} {} → {}", self.source, self.destination),
        };
        let (source, destination) = (self.source, self.destination);
        match self.detail {
            Detail::Ports(from, to) => {
                write!(f, "{name} {} → {}", SocketAddr::new(source, from), SocketAddr::new(destination, to))
            }
            Detail::Fragments(id) => write!(f, "{name} fragments {id} {source} → {destination}"),
            _ => write!(f, "{name} {source} → {destination}"),
        }
    }
}

fn detail(header: &Header, packet: &[u8]) -> Detail {
    if let Some((source, destination)) = header.ports(packet) {
        return Detail::Ports(source, destination);
    }
    let at = header.payload;
    match header.protocol {
        protocol::ICMP | protocol::ICMPV6 => {
            let is_echo = matches!(packet.get(at), Some(0 | 8 | 128 | 129));
            packet::be16(packet, at + 4).filter(|_| is_echo).map_or(Detail::None, Detail::Echo)
        }
        protocol::ESP => {
            let spi = packet.get(at..).and_then(|esp| esp.first_chunk());
            spi.map_or(Detail::None, |spi| Detail::Spi(u32::from_be_bytes(*spi)))
        }
        _ => Detail::None,
    }
}

/// A 64-bit multiply-and-fold mixer.
struct Mixer(u64);

impl Mixer {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.add(u64::from(u32::from(address))),
            IpAddr::V6(address) => {
                let bits = u128::from(address);
                self.add((bits >> 64) as u64);
                self.add(bits as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::samples;

    fn key(packet: &[u8]) -> FlowKey {
        FlowKey::of(&Header::read(packet).unwrap(), packet)
    }

    #[test]
    fn packets_of_one_connection_share_a_flow() {
        assert_eq!(key(&samples::tcp_v4(1, b"a")), key(&samples::tcp_v4(900, b"bc")));
        assert_ne!(key(&samples::tcp_v4(1, b"a")), key(&samples::udp_v4(b"a")));
        assert_eq!(key(&samples::udp_v4(b"a")).to_string(), "udp 192.0.2.1:1000 → 198.51.100.2:2000");
    }

    #[test]
    fn all_fragments_of_a_packet_share_a_flow() {
        let (mut first, mut second) = (samples::udp_v4(b"some data"), samples::udp_v4(b"more"));
        first[6] = 0x20;
        second[7] = 2;
        assert_eq!(key(&first), key(&second));
        assert_eq!(key(&first).detail, Detail::Fragments(0x1234));
    }

    #[test]
    fn an_error_belongs_to_the_flow_whose_packet_it_quotes() {
        let quoted = samples::udp_v4(&[0; 40]);
        let mut payload = vec![3, 1, 0, 0, 0, 0, 0, 0];
        payload.extend(&quoted[..28]);
        let error = key(&samples::ipv4(protocol::ICMP, &payload));
        let back = key(&quoted);
        assert_eq!((error.source, error.destination), (back.destination, back.source));
        assert_eq!(error.detail, Detail::Ports(2000, 1000));
    }

    #[test]
    fn each_security_association_and_each_ping_is_a_flow() {
        let esp = |spi: u8| key(&samples::ipv4(protocol::ESP, &[0, 0, 0, spi, 0, 0, 0, 1]));
        assert_ne!(esp(1), esp(2));
        let echo = |id: u8| key(&samples::ipv4(protocol::ICMP, &[8, 0, 0, 0, 0, id, 0, 1]));
        assert_ne!(echo(1), echo(2));
    }

    #[test]
    fn hashes_spread_and_depend_on_the_seed() {
        let base = key(&samples::udp_v4(b""));
        let hash = |port: u16, seed| FlowKey { detail: Detail::Ports(port, 80), ..base }.hash(seed);
        let spread: BTreeSet<u32> = (0..10_000).map(|port| hash(port, 1) >> 16).collect();
        assert!(spread.len() > 9_000, "{} of 10,000 differ in their upper half", spread.len());
        assert_ne!(hash(1, 1), hash(1, 2));
    }
}
