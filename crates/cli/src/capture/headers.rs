//! Builds the IP and UDP headers for captured datagrams: a capture above the system does not see them.

use std::net::{IpAddr, SocketAddr};

use anabranch_engine::Ecn;
use anabranch_tunnel::checksum::sum;

/// The IP and UDP headers of a datagram with `len` bytes of payload. Addresses of two families make IPv6 headers.
pub fn headers(from: SocketAddr, to: SocketAddr, ecn: Ecn, len: usize) -> Vec<u8> {
    let mark = match ecn {
        Ecn::NotEct => 0,
        Ecn::Ect1 => 1,
        Ecn::Ect0 => 2,
        Ecn::Ce => 3,
    };
    // A simulated packet may be longer than the UDP length field allows.
    let udp_len = u16::try_from(len + 8).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(48);
    if let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) {
        // Don't fragment; 64 hops; UDP; the checksum comes last.
        bytes.extend_from_slice(&[0x45, mark, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        bytes[2..4].copy_from_slice(&udp_len.saturating_add(20).to_be_bytes());
        bytes.extend_from_slice(&source.octets());
        bytes.extend_from_slice(&destination.octets());
        let checksum = !sum(&bytes, 0);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        bytes.extend_from_slice(&[0x60, mark << 4, 0, 0]);
        bytes.extend_from_slice(&udp_len.to_be_bytes());
        bytes.extend_from_slice(&[17, 64]);
        bytes.extend_from_slice(&octets(from.ip()));
        bytes.extend_from_slice(&octets(to.ip()));
    }
    for number in [from.port(), to.port(), udp_len, 0] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// Fills in the checksum of a UDP datagram over IPv6, which is mandatory there (RFC 8200 §8.1).
pub fn fill_checksum(packet: &mut [u8]) {
    if packet.first().is_none_or(|first| first >> 4 != 6) || packet.len() < 48 {
        return;
    }
    // Length and protocol, then addresses, header and payload.
    let start = sum(&packet[4..6], 17);
    let checksum = match !sum(&packet[8..], start) {
        0 => 0xffff,
        other => other,
    };
    packet[46..48].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_ipv4_carry_a_right_checksum_and_the_mark() {
        let (from, to) = ("192.0.2.1:7".parse().unwrap(), "198.51.100.2:9".parse().unwrap());
        let bytes = headers(from, to, Ecn::Ce, 100);
        assert_eq!((bytes.len(), !sum(&bytes[..20], 0), bytes[1]), (28, 0, 3));
        assert_eq!((&bytes[2..4], &bytes[24..26]), ([0, 128].as_slice(), [0, 108].as_slice()));
        assert_eq!(headers(from, to, Ecn::NotEct, 70_000)[2..4], [0xff; 2]);
    }

    #[test]
    fn a_datagram_over_ipv6_gets_the_checksum_that_it_has_to_have() {
        let (from, to) = ("[2001:db8::1]:7".parse().unwrap(), "[2001:db8::2]:9".parse().unwrap());
        for payload in [b"even".as_slice(), b"odd".as_slice()] {
            let mut packet = [headers(from, to, Ecn::Ect0, payload.len()), payload.to_vec()].concat();
            fill_checksum(&mut packet);
            assert_eq!(packet[1], 0x20);
            // Pseudo-header, header and payload together sum to zero (RFC 8200 §8.1).
            let pseudo = [&packet[8..40], &[0, 0], &packet[4..6], &[0, 0, 0, 17]].concat();
            let padding = vec![0; packet.len() % 2];
            assert_eq!(!sum(&[&pseudo, &packet[40..], &padding].concat(), 0), 0, "{payload:?}");
        }
    }
}
