//! Changes that a tunnel makes to packets: the segment size that TCP announces, congestion marks, and fragments.

use bytes::{Bytes, BytesMut};

use crate::checksum;
use crate::entry::InnerPacket;
use crate::packet::{Header, IPV4_HEADER, IPV6_HEADER, IPV6_LEAST_MTU, be16, protocol};

const SYN: u8 = 0x02;
/// More fragments follow (RFC 791 §3.1).
const MORE: u16 = 0x2000;
/// The place of a fragment, in units of 8 bytes.
const PLACE: u16 = 0x1fff;
/// The same in IPv6 (RFC 8200 §4.5).
const MORE_V6: u16 = 1;
/// The place of a fragment of IPv6, in bytes.
const PLACE_V6: u16 = !7;
/// Type and length of IPv6's fragment header.
const FRAGMENT: u8 = 44;
const FRAGMENT_HEADER: usize = 8;
/// Bytes of a TCP header without options.
const TCP_HEADER: usize = 20;

/// Lowers the maximum segment size in a SYN to the inner MTU. Other packets do not change.
pub fn clamp_segment_size(packet: &mut [u8], mtu: u16) {
    let Some(header) = Header::read(packet) else { return };
    let at = header.payload;
    let is_syn = header.protocol == protocol::TCP
        && header.has_payload_header()
        && packet.get(at + 13).is_some_and(|flags| flags & SYN != 0);
    if !is_syn {
        return;
    }
    let ip = if header.source.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER };
    let most = mtu.saturating_sub((ip + TCP_HEADER) as u16);
    let end = (at + usize::from(packet[at + 12] >> 4) * 4).min(header.length);
    let Some(place) = segment_size_option(packet, at + TCP_HEADER, end) else { return };
    let Some(announced) = be16(packet, place).filter(|announced| *announced > most) else { return };
    // The checksum covers 16-bit words counted from the TCP header; an option may begin in the middle of one.
    let (before, after) = if (place - at).is_multiple_of(2) {
        (announced, most)
    } else {
        (announced.swap_bytes(), most.swap_bytes())
    };
    packet[place..place + 2].copy_from_slice(&most.to_be_bytes());
    if let Some(sum) = be16(packet, at + 16) {
        packet[at + 16..at + 18].copy_from_slice(&checksum::updated(sum, before, after).to_be_bytes());
    }
}

/// The position of the maximum segment size option's value.
fn segment_size_option(packet: &[u8], mut at: usize, end: usize) -> Option<usize> {
    while at < end {
        match *packet.get(at)? {
            0 => return None,
            1 => at += 1,
            2 if *packet.get(at + 1)? == 4 && at + 4 <= end => return Some(at + 2),
            _ => at += usize::from(*packet.get(at + 1)?).max(2),
        }
    }
    None
}

/// Sets "congestion experienced" in a packet whose sender supports it (RFC 3168). False for others, which do not
/// change.
pub fn mark_congestion(packet: &mut [u8]) -> bool {
    let Some(header) = Header::read(packet).filter(|header| header.ecn() != 0) else { return false };
    if header.source.is_ipv4() {
        let before = be16(packet, 0).unwrap_or(0);
        packet[1] |= 3;
        let sum = checksum::updated(be16(packet, 10).unwrap_or(0), before, be16(packet, 0).unwrap_or(0));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[1] |= 0x30;
    }
    true
}

/// Splits an IPv4 packet that is larger than `mtu` into fragments (RFC 791 §3.2). `None` for packets that must not be
/// fragmented, and for those with options.
pub fn fragmented(packet: &[u8], mtu: u16) -> Option<Vec<Bytes>> {
    let header = Header::read(packet)?;
    let room = usize::from(mtu).saturating_sub(IPV4_HEADER) / 8 * 8;
    let is_plain = header.source.is_ipv4() && header.payload == IPV4_HEADER;
    let data = packet.get(IPV4_HEADER..header.length)?;
    let flags = be16(packet, 6)?;
    // A last fragment beyond the largest packet would have a place that does not fit its field.
    let fits = usize::from(flags & PLACE) + data.len() / 8 <= usize::from(PLACE);
    if header.dont_fragment || !is_plain || !fits || room == 0 {
        return None;
    }
    let count = data.len().div_ceil(room);
    let each = data.chunks(room).enumerate().map(|(index, part)| {
        let more = if index + 1 == count { flags & MORE } else { MORE };
        let place = (flags & PLACE) + (index * room / 8) as u16;
        let mut fragment = BytesMut::with_capacity(IPV4_HEADER + part.len());
        fragment.extend_from_slice(&packet[..IPV4_HEADER]);
        fragment[2..4].copy_from_slice(&((IPV4_HEADER + part.len()) as u16).to_be_bytes());
        fragment[6..8].copy_from_slice(&(more | place).to_be_bytes());
        fragment[10..12].fill(0);
        let sum = !checksum::sum(&fragment[..], 0);
        fragment[10..12].copy_from_slice(&sum.to_be_bytes());
        fragment.extend_from_slice(part);
        fragment.freeze()
    });
    Some(each.collect())
}

/// Splits an IPv6 packet that every link has to carry into fragments for a path that does not, with this
/// identification. `None` for larger packets, because their senders react to a "too big" message, and for those with
/// other extension headers.
pub fn fragmented_v6(packet: &[u8], mtu: u16, id: u32) -> Option<Vec<Bytes>> {
    let header = Header::read(packet).filter(|header| header.source.is_ipv6())?;
    let (kind, id, first, begin) = match header.fragment {
        None if header.payload == IPV6_HEADER => (packet[6], id, 0, IPV6_HEADER),
        Some(fragment) if packet[6] == FRAGMENT => {
            (packet[IPV6_HEADER], fragment.id, be16(packet, IPV6_HEADER + 2)?, IPV6_HEADER + FRAGMENT_HEADER)
        }
        _ => return None,
    };
    let room = usize::from(mtu).saturating_sub(IPV6_HEADER + FRAGMENT_HEADER) / 8 * 8;
    let data = packet.get(begin..header.length)?;
    let fits = usize::from(first) + data.len() <= usize::from(u16::MAX);
    if header.length > usize::from(IPV6_LEAST_MTU) || !fits || room == 0 {
        return None;
    }
    let count = data.len().div_ceil(room);
    let each = data.chunks(room).enumerate().map(|(index, part)| {
        let more = if index + 1 == count { first & MORE_V6 } else { MORE_V6 };
        let place = (first & PLACE_V6) + (index * room) as u16;
        let mut fragment = BytesMut::with_capacity(IPV6_HEADER + FRAGMENT_HEADER + part.len());
        fragment.extend_from_slice(&packet[..IPV6_HEADER]);
        fragment[4..6].copy_from_slice(&((FRAGMENT_HEADER + part.len()) as u16).to_be_bytes());
        fragment[6] = FRAGMENT;
        fragment.extend_from_slice(&[kind, 0]);
        fragment.extend_from_slice(&(place | more).to_be_bytes());
        fragment.extend_from_slice(&id.to_be_bytes());
        fragment.extend_from_slice(part);
        fragment.freeze()
    });
    Some(each.collect())
}

impl InnerPacket for Bytes {
    fn mark_congestion(&mut self) -> bool {
        // Packets are copied only to be marked, which is rare.
        if Header::read(self).is_none_or(|header| header.ecn() == 0) {
            return false;
        }
        let mut copy = BytesMut::from(&self[..]);
        let is_marked = mark_congestion(&mut copy);
        *self = copy.freeze();
        is_marked
    }

    fn is_tcp(&self) -> bool {
        Header::read(self).is_some_and(|header| header.protocol == protocol::TCP)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples;

    /// A SYN with these options, padded to a multiple of four bytes.
    fn syn(options: &[u8], v6: bool) -> (Vec<u8>, usize) {
        let (mut packet, at) =
            if v6 { (samples::tcp_v6(1, options), 40) } else { (samples::tcp_v4(1, options), 20) };
        packet[at + 12] = ((5 + options.len() / 4) as u8) << 4;
        packet[at + 13] = SYN;
        samples::finish_checksum(&mut packet, at, 16);
        (packet, at)
    }

    #[test]
    fn a_syn_announces_what_fits_and_its_checksum_stays_right() {
        for v6 in [false, true] {
            for options in
                [&[2, 4, 0x05, 0xb4][..], &[1, 2, 4, 0x05, 0xb4, 1, 1, 0], &[8, 3, 0, 2, 4, 5, 0xb4, 0]]
            {
                let (mut packet, at) = syn(options, v6);
                clamp_segment_size(&mut packet, 1280);
                let place = segment_size_option(&packet, at + 20, packet.len()).unwrap();
                assert_eq!(be16(&packet, place), Some(if v6 { 1220 } else { 1240 }));
                assert_eq!(samples::transport_sum(&packet, at), 0xffff);
            }
        }
    }

    #[test]
    fn smaller_announcements_and_other_packets_stay_as_they_are() {
        let small = syn(&[2, 4, 2, 0], false).0;
        for packet in [small, samples::tcp_v4(1, &[2, 4, 0xff, 0xff]), samples::udp_v4(&[2, 4, 0xff, 0xff])] {
            let mut clamped = packet.clone();
            clamp_segment_size(&mut clamped, 1280);
            assert_eq!(clamped, packet);
        }
    }

    #[test]
    fn only_packets_that_understand_marks_are_marked() {
        let mut plain = Bytes::from(samples::udp_v4(b"x"));
        assert!(!plain.mark_congestion());
        let mut capable = samples::udp_v4(b"x");
        capable[1] = 2;
        capable[10..12].fill(0);
        let sum = !checksum::sum(&capable[..20], 0);
        capable[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut capable = Bytes::from(capable);
        assert!(capable.mark_congestion());
        assert_eq!((capable[1], checksum::sum(&capable[..20], 0)), (3, 0xffff));
        let mut six = samples::udp_v6(b"x");
        six[1] = 0x10;
        assert!(mark_congestion(&mut six));
        assert_eq!(Header::read(&six).unwrap().ecn(), 3);
    }

    #[test]
    fn a_large_packet_becomes_fragments_that_give_it_again() {
        let mut packet = samples::udp_v4(&(0..=255).cycle().take(3001).collect::<Vec<u8>>());
        assert_eq!(fragmented(&packet, 1300), None, "it must not be fragmented");
        packet[6] = 0;
        let fragments = fragmented(&packet, 1300).unwrap();
        let mut data = Vec::new();
        for (index, fragment) in fragments.iter().enumerate() {
            let header = Header::read(fragment).unwrap();
            assert!(fragment.len() <= 1300 && header.length == fragment.len());
            assert_eq!(checksum::sum(&fragment[..20], 0), 0xffff);
            assert_eq!(usize::from(be16(fragment, 6).unwrap() & PLACE) * 8, data.len());
            assert_eq!(be16(fragment, 6).unwrap() & MORE != 0, index + 1 < fragments.len());
            data.extend_from_slice(&fragment[20..]);
        }
        assert_eq!((fragments.len(), &data[..]), (3, &packet[20..]));
        // A fragment in the middle stays in the middle.
        let again = fragmented(&fragments[1], 700).unwrap();
        let flags: Vec<u16> = again.iter().map(|fragment| be16(fragment, 6).unwrap()).collect();
        assert_eq!(flags, [MORE | 160, MORE | 245]);
        assert_eq!(fragmented(&samples::udp_v6(&[0; 1400]), 1300), None);
    }

    #[test]
    fn an_ipv6_packet_that_every_link_carries_becomes_fragments_where_a_path_does_not() {
        let packet = samples::udp_v6(&(0..=255).cycle().take(1232).collect::<Vec<u8>>());
        let fragments = fragmented_v6(&packet, 700, 7).unwrap();
        let mut data = Vec::new();
        for (index, fragment) in fragments.iter().enumerate() {
            let header = Header::read(fragment).unwrap();
            assert!(fragment.len() <= 700 && header.length == fragment.len());
            assert_eq!(header.fragment.map(|fragment| fragment.id), Some(7));
            let place = be16(fragment, 42).unwrap();
            assert_eq!(usize::from(place & PLACE_V6), data.len());
            assert_eq!(place & MORE_V6 == 1, index + 1 < fragments.len());
            data.extend_from_slice(&fragment[48..]);
        }
        assert_eq!((fragments.len(), &data[..]), (2, &packet[40..]));
        // A fragment that is not the last one stays so.
        let again = fragmented_v6(&fragments[0], 400, 9).unwrap();
        let places: Vec<u16> = again.iter().map(|fragment| be16(fragment, 42).unwrap()).collect();
        assert_eq!((places, &again[0][44..48]), (vec![1, 353], &[0, 0, 0, 7][..]));
        assert_eq!(fragmented_v6(&samples::udp_v6(&[0; 1300]), 700, 7), None, "its sender is told");
    }

    proptest! {
        #[test]
        fn hostile_packets_never_panic(mut packet in proptest::collection::vec(any::<u8>(), 0..100), mtu: u16, first: bool) {
            if let Some(byte) = packet.first_mut() {
                *byte = if first { 0x45 } else { 0x60 };
            }
            if packet.len() > 40 {
                let length = (packet.len() as u16).to_be_bytes();
                packet[2..4].copy_from_slice(&length);
                packet[9] = protocol::TCP;
                packet[33] |= SYN;
            }
            let _ = fragmented(&packet, mtu);
            let _ = fragmented_v6(&packet, mtu, 1);
            clamp_segment_size(&mut packet, mtu);
            mark_congestion(&mut packet);
        }
    }
}
