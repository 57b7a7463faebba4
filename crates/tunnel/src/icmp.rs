//! Answers to packets that the tunnel cannot carry: "fragmentation needed" (RFC 792, RFC 1191) and "packet too big" (RFC 4443 §3.2).

use crate::checksum;
use crate::packet::{Header, IPV6_LEAST_MTU, protocol};

/// Most quoted bytes of a packet in an ICMP error, so that the error has at most 576 bytes.
const QUOTE_V4: usize = 548;
/// And an ICMPv6 error within 1,280 bytes.
const QUOTE_V6: usize = 1232;

/// The error for a packet that is larger than the inner MTU and must not be fragmented. `None` for packets without an
/// error: fragmentable ones, later fragments, ICMP errors, and packets to or from groups.
pub fn too_big(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let header = Header::read(packet)?;
    let is_group =
        header.destination.is_multicast() || header.source.is_multicast() || header.source.is_unspecified();
    let is_error = crate::packet::quoted(&header, packet).is_some();
    if !header.dont_fragment || !header.has_payload_header() || is_group || is_error {
        return None;
    }
    let is_v4 = header.source.is_ipv4();
    let (kind, code, most) = if is_v4 { (3, 4, QUOTE_V4) } else { (2, 0, QUOTE_V6) };
    let mut message = vec![kind, code, 0, 0, 0, 0];
    // IPv6 hosts ignore a smaller one (RFC 8201 §4).
    let mtu = if is_v4 { mtu } else { mtu.max(IPV6_LEAST_MTU) };
    message.extend(mtu.to_be_bytes());
    message.extend(&packet[..header.length.min(most)]);
    let mut answer =
        if is_v4 { header_v4(&header, message.len()) } else { header_v6(&header, message.len()) };
    // The packet's destination is the source of the answer.
    let start = if is_v4 {
        0
    } else {
        checksum::pseudo_header(header.destination, header.source, protocol::ICMPV6, message.len())
    };
    let sum = !checksum::sum(&message, start);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    answer.extend(message);
    Some(answer)
}

fn header_v4(of: &Header, payload: usize) -> Vec<u8> {
    let mut head = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol::ICMP, 0, 0];
    head[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
    for address in [of.destination, of.source] {
        if let std::net::IpAddr::V4(address) = address {
            head.extend(address.octets());
        }
    }
    let sum = !checksum::sum(&head, 0);
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    head
}

fn header_v6(of: &Header, payload: usize) -> Vec<u8> {
    let mut head = vec![0x60, 0, 0, 0, 0, 0, protocol::ICMPV6, 64];
    head[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    for address in [of.destination, of.source] {
        if let std::net::IpAddr::V6(address) = address {
            head.extend(address.octets());
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::FlowKey;
    use crate::samples;

    #[test]
    fn the_error_names_the_mtu_and_quotes_the_packet() {
        for packet in [samples::udp_v4(&[7; 1400]), samples::udp_v6(&[7; 1400])] {
            let answer = too_big(&packet, 1280).unwrap();
            let header = Header::read(&answer).unwrap();
            let sent = Header::read(&packet).unwrap();
            assert_eq!((header.source, header.destination), (sent.destination, sent.source));
            assert_eq!(answer[header.payload + 6..header.payload + 8], 1280_u16.to_be_bytes());
            let start = if header.source.is_ipv4() {
                0
            } else {
                checksum::pseudo_header(header.source, header.destination, 58, answer.len() - 40)
            };
            assert_eq!(checksum::sum(&answer[header.payload..], start), 0xffff);
            let (back, forth) = (FlowKey::of(&header, &answer), FlowKey::of(&sent, &packet));
            assert_eq!((back.source, back.destination), (forth.destination, forth.source));
            assert!(answer.len() <= 1280);
        }
    }

    #[test]
    fn an_ipv6_host_is_asked_for_no_packets_that_it_would_not_make() {
        let answer = too_big(&samples::udp_v6(&[7; 1400]), 900).unwrap();
        assert_eq!(answer[46..48], 1280_u16.to_be_bytes());
    }

    #[test]
    fn packets_that_may_be_fragmented_and_errors_get_no_error() {
        let mut may = samples::udp_v4(&[7; 1400]);
        may[6] = 0;
        assert_eq!(too_big(&may, 1280), None);
        let error = too_big(&samples::udp_v4(&[7; 1400]), 1280).unwrap();
        let mut forbidden = error;
        forbidden[6] = 0x40;
        assert_eq!(too_big(&forbidden, 100), None);
    }
}
