//! Reads the headers of inner packets: addresses, ports, fragments, and packets quoted in ICMP errors.
//!
//! A [`Header`] has the fields that the rest of the tunnel needs. A packet with truncated headers, or headers that
//! contradict its length, is invalid, and the tunnel drops it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol numbers of the Internet (IANA).
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    /// Encapsulating security payload (IPsec).
    pub const ESP: u8 = 50;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// Shortest IPv4 header.
pub const IPV4_HEADER: usize = 20;
/// The fixed IPv6 header.
pub const IPV6_HEADER: usize = 40;
/// Every link carries IPv6 packets of this size (RFC 8200 §5).
pub const IPV6_LEAST_MTU: u16 = 1280;
/// Most IPv6 extension headers that are walked over.
const MAX_EXTENSIONS: usize = 8;

/// A packet's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol of the payload, behind any extension headers.
    pub protocol: u8,
    /// Offset of the payload in bytes.
    pub payload: usize,
    /// Length of the whole packet in bytes, as its header states it.
    pub length: usize,
    /// Type of service or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Set for one of several fragments.
    pub fragment: Option<Fragment>,
    /// Fragmentation is forbidden: always for IPv6.
    pub dont_fragment: bool,
}

/// A packet's place among its fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Equal in all fragments of one packet.
    pub id: u32,
    /// True for the first fragment, which has the payload's header.
    pub is_first: bool,
}

impl Header {
    /// Reads a packet's headers. `None` for anything but a complete IPv4 or IPv6 packet.
    pub fn read(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::read_v4(packet),
            6 => Self::read_v6(packet),
            _ => None,
        }
    }

    fn read_v4(packet: &[u8]) -> Option<Self> {
        let head: &[u8; IPV4_HEADER] = packet.first_chunk()?;
        let payload = usize::from(head[0] & 0xf) * 4;
        let length = usize::from(be16(packet, 2)?);
        if payload < IPV4_HEADER || length < payload || packet.len() < length {
            return None;
        }
        let flags = be16(packet, 6)?;
        let (more, offset) = (flags & 0x2000 != 0, flags & 0x1fff);
        let fragment = (more || offset > 0).then(|| Fragment {
            id: u32::from(u16::from_be_bytes([head[4], head[5]])),
            is_first: offset == 0,
        });
        Some(Self {
            source: Ipv4Addr::new(head[12], head[13], head[14], head[15]).into(),
            destination: Ipv4Addr::new(head[16], head[17], head[18], head[19]).into(),
            protocol: head[9],
            payload,
            length,
            traffic_class: head[1],
            fragment,
            dont_fragment: flags & 0x4000 != 0,
        })
    }

    fn read_v6(packet: &[u8]) -> Option<Self> {
        let head: &[u8; IPV6_HEADER] = packet.first_chunk()?;
        let length = IPV6_HEADER + usize::from(be16(packet, 4)?);
        if packet.len() < length {
            return None;
        }
        let packet = &packet[..length];
        let (mut next, mut at, mut fragment) = (head[6], IPV6_HEADER, None);
        for _ in 0..MAX_EXTENSIONS {
            match next {
                // Hop-by-hop options, routing, destination options: the length counts 8 bytes beyond the first 8.
                0 | 43 | 60 => {
                    let long = (usize::from(*packet.get(at + 1)?) + 1) * 8;
                    next = packet[at];
                    at += long;
                }
                44 => {
                    let offset = be16(packet, at + 2)? >> 3;
                    let id = u32::from_be_bytes(*packet.get(at + 4..)?.first_chunk()?);
                    fragment = Some(Fragment { id, is_first: offset == 0 });
                    next = packet[at];
                    at += 8;
                    if offset > 0 {
                        // Data follow, whatever the first fragment has there.
                        break;
                    }
                }
                _ => break,
            }
        }
        if at > length {
            return None;
        }
        Some(Self {
            source: address_v6(packet, 8)?.into(),
            destination: address_v6(packet, 24)?.into(),
            protocol: next,
            payload: at,
            length,
            traffic_class: head[0] << 4 | head[1] >> 4,
            fragment,
            dont_fragment: true,
        })
    }

    /// True for a packet with the payload's own header: a whole packet or a first fragment.
    pub fn has_payload_header(&self) -> bool {
        self.fragment.is_none_or(|fragment| fragment.is_first)
    }

    /// Source and destination port of a TCP or UDP packet.
    pub fn ports(&self, packet: &[u8]) -> Option<(u16, u16)> {
        let has = matches!(self.protocol, protocol::TCP | protocol::UDP) && self.has_payload_header();
        let source = be16(packet, self.payload).filter(|_| has)?;
        Some((source, be16(packet, self.payload + 2)?))
    }

    /// The ECN field: 0 not capable, 1 and 2 capable, 3 congestion experienced (RFC 3168).
    pub fn ecn(&self) -> u8 {
        self.traffic_class & 3
    }

    /// The differentiated services code point (RFC 2474).
    pub fn dscp(&self) -> u8 {
        self.traffic_class >> 2
    }
}

/// The quoted part of the packet in an ICMP or ICMPv6 error. `None` for other packets.
pub fn quoted<'a>(header: &Header, packet: &'a [u8]) -> Option<&'a [u8]> {
    let kind = packet.get(header.payload).filter(|_| header.has_payload_header())?;
    let is_error = match header.protocol {
        protocol::ICMP => matches!(kind, 3 | 4 | 5 | 11 | 12),
        protocol::ICMPV6 => *kind < 128,
        _ => false,
    };
    packet.get(header.payload + 8..header.length).filter(|quote| is_error && !quote.is_empty())
}

/// Addresses, protocol and ports of a packet that may be cut off behind its first header.
pub fn read_quoted(quote: &[u8]) -> Option<(Header, Option<(u16, u16)>)> {
    // The quote is shorter than its packet: read a copy of the headers with the quoted length.
    let mut head = [0; IPV6_HEADER + 24];
    let kept = quote.len().min(head.len());
    head[..kept].copy_from_slice(&quote[..kept]);
    match quote.first()? >> 4 {
        4 => head[2..4].copy_from_slice(&(kept as u16).to_be_bytes()),
        _ => head[4..6].copy_from_slice(&(kept.checked_sub(IPV6_HEADER)? as u16).to_be_bytes()),
    }
    let header = Header::read(&head[..kept])?;
    Some((header, header.ports(&head[..kept])))
}

/// A big-endian number at a place of the packet.
pub(crate) fn be16(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?))
}

fn address_v6(packet: &[u8], at: usize) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples;

    #[test]
    fn addresses_and_ports_of_both_families_are_read() {
        let packet = samples::udp_v4(b"hello");
        let header = Header::read(&packet).unwrap();
        assert_eq!((header.protocol, header.payload, header.length), (protocol::UDP, 20, 33));
        assert_eq!(header.ports(&packet), Some((1000, 2000)));
        let packet = samples::tcp_v6(1, b"hello");
        let header = Header::read(&packet).unwrap();
        assert_eq!((header.protocol, header.payload), (protocol::TCP, 40));
        assert_eq!(header.destination, "2001:db8::2".parse::<IpAddr>().unwrap());
        assert_eq!(header.ports(&packet), Some((1000, 2000)));
    }

    #[test]
    fn later_fragments_have_no_ports() {
        let mut packet = samples::udp_v4(b"hello");
        packet[7] = 3;
        let header = Header::read(&packet).unwrap();
        assert_eq!(header.fragment, Some(Fragment { id: 0x1234, is_first: false }));
        assert_eq!(header.ports(&packet), None);
    }

    #[test]
    fn data_of_a_later_fragment_are_not_read_as_headers() {
        let packet = samples::ipv6(44, &[60, 0, 0, 8, 0, 0, 0, 7, 17, 255, 0, 0, 0, 0, 0, 0]);
        let header = Header::read(&packet).unwrap();
        assert_eq!((header.protocol, header.payload), (60, 48));
        assert_eq!(header.fragment, Some(Fragment { id: 7, is_first: false }));
    }

    #[test]
    fn an_error_names_the_flow_that_it_quotes() {
        let inner = samples::udp_v4(&[0; 64]);
        let mut error = samples::ipv4(protocol::ICMP, &[]);
        error.extend([3, 4, 0, 0, 0, 0, 5, 0]);
        error.extend(&inner[..28]);
        let length = (error.len() as u16).to_be_bytes();
        error[2..4].copy_from_slice(&length);
        let header = Header::read(&error).unwrap();
        let (quoted, ports) = read_quoted(quoted(&header, &error).unwrap()).unwrap();
        assert_eq!((quoted.protocol, ports), (protocol::UDP, Some((1000, 2000))));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(packet in proptest::collection::vec(any::<u8>(), 0..120), family in 4_u8..7) {
            let mut packet = packet;
            if let Some(first) = packet.first_mut() {
                *first = family << 4 | (*first & 0xf);
            }
            if let Some(header) = Header::read(&packet) {
                prop_assert!(header.length <= packet.len() && header.payload <= header.length);
                let _ = header.ports(&packet);
                if let Some(quote) = quoted(&header, &packet) {
                    let _ = read_quoted(quote);
                }
            }
            let _ = read_quoted(&packet);
        }
    }
}
