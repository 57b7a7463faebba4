//! Super-packets of the device: their virtio header, and splitting them into packets.
//!
//! With `IFF_VNET_HDR` each read from a TUN device is a 10-byte `virtio_net_hdr` and a packet. The kernel passes up to
//! 64 KiB of one flow at once ("generic segmentation offload"), with incomplete checksums. [`split`] does the work of a
//! network card.
//!
//! The header's `hdr_len` is not used: on forwarded packets it may cover the whole first segment.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

use crate::checksum;
use crate::packet::{Header, be16, protocol};

/// A `virtio_net_hdr` in native byte order, the default of the kernel's TUN driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioHeader {
    /// The checksum is not complete: it holds the sum over the pseudo header only.
    pub needs_checksum: bool,
    /// How to cut the packet into segments.
    pub segmentation: Segmentation,
    /// Length of all headers.
    pub headers: u16,
    /// Payload of a segment, in bytes.
    pub segment: u16,
    /// Start of the range that the checksum covers.
    pub checksum_start: u16,
    /// Position of the checksum, from `checksum_start`.
    pub checksum_offset: u16,
}

/// How a super-packet is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// A single packet.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of equal length but the last.
    Udp,
}

const NEEDS_CHECKSUM: u8 = 1;
/// Set in the type when the segments carry ECN; it changes nothing here.
const WITH_ECN: u8 = 0x80;

impl VirtioHeader {
    /// Length in bytes.
    pub const LEN: usize = 10;

    /// Reads the header in front of a packet. `None` if it is truncated or of an unknown kind.
    pub fn read(buffer: &[u8]) -> Option<(Self, &[u8])> {
        let (head, packet) = buffer.split_first_chunk::<{ Self::LEN }>()?;
        let word = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let segmentation = match head[1] & !WITH_ECN {
            0 => Segmentation::None,
            1 => Segmentation::TcpV4,
            4 => Segmentation::TcpV6,
            5 => Segmentation::Udp,
            _ => return None,
        };
        let header = Self {
            needs_checksum: head[0] & NEEDS_CHECKSUM != 0,
            segmentation,
            headers: word(2),
            segment: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        };
        Some((header, packet))
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = if self.needs_checksum { NEEDS_CHECKSUM } else { 0 };
        bytes[1] = match self.segmentation {
            Segmentation::None => 0,
            Segmentation::TcpV4 => 1,
            Segmentation::TcpV6 => 4,
            Segmentation::Udp => 5,
        };
        let words = [self.headers, self.segment, self.checksum_start, self.checksum_offset];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Super-packets of at least so many bytes share the arena's allocation.
const LARGE: usize = 32 << 10;

/// The packets of one read.
pub type Packets = SmallVec<[Bytes; 1]>;

/// Splits a read from the device into packets with complete checksums. Those of a large super-packet share one
/// allocation, taken from `arena`. All others have one of their own size: a small packet that waits must not keep the
/// allocation of a large one alive.
///
/// `None` when the header and the packet contradict each other.
#[must_use]
pub fn split(header: &VirtioHeader, packet: &[u8], arena: &mut BytesMut) -> Option<Packets> {
    if header.segmentation == Segmentation::None {
        let mut single = packet[..Header::read(packet)?.length].to_vec();
        if header.needs_checksum {
            finish(&mut single, header)?;
        }
        return Some(SmallVec::from_iter([Bytes::from(single)]));
    }
    let plan = Plan::new(header, packet)?;
    let count = plan.payload(packet).len().div_ceil(plan.segment).max(1);
    let needed = packet.len() + count * plan.headers;
    let mut own = BytesMut::new();
    let arena = if needed >= LARGE { arena } else { &mut own };
    let start = arena.len();
    let mut places: SmallVec<[Range<usize>; 64]> = SmallVec::new();
    arena.reserve(needed);
    for index in 0..count {
        let begin = arena.len() - start;
        plan.write(packet, index, index + 1 == count, arena);
        places.push(begin..arena.len() - start);
    }
    let all = arena.split_off(start).freeze();
    Some(places.into_iter().map(|place| all.slice(place)).collect())
}

/// Completes the checksum of a single packet.
fn finish(packet: &mut [u8], header: &VirtioHeader) -> Option<()> {
    let start = usize::from(header.checksum_start);
    let place = start + usize::from(header.checksum_offset);
    if place + 2 > packet.len() {
        return None;
    }
    // The field holds the sum over the pseudo header, which the sum over the rest includes.
    let sum = !checksum::sum(&packet[start..], 0);
    // A UDP checksum of 0 would mean that there is no checksum.
    let sum = if sum == 0 { 0xffff } else { sum };
    packet[place..place + 2].copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// How one super-packet is cut.
struct Plan {
    ip: Header,
    is_tcp: bool,
    headers: usize,
    segment: usize,
}

impl Plan {
    fn new(header: &VirtioHeader, packet: &[u8]) -> Option<Self> {
        let ip = Header::read(packet)?;
        let is_tcp = match header.segmentation {
            Segmentation::Udp => false,
            Segmentation::TcpV4 if ip.source.is_ipv4() => true,
            Segmentation::TcpV6 if ip.source.is_ipv6() => true,
            _ => return None,
        };
        let expected = if is_tcp { protocol::TCP } else { protocol::UDP };
        let transport = if is_tcp { usize::from(*packet.get(ip.payload + 12)? >> 4) * 4 } else { 8 };
        let headers = ip.payload + transport;
        let shortest = if is_tcp { 20 } else { 8 };
        let is_sound =
            ip.protocol == expected && transport >= shortest && headers <= ip.length && ip.fragment.is_none();
        (is_sound && header.segment > 0).then_some(Self {
            ip,
            is_tcp,
            headers,
            segment: header.segment.into(),
        })
    }

    fn payload<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[self.headers..self.ip.length]
    }

    fn write(&self, packet: &[u8], index: usize, is_last: bool, arena: &mut BytesMut) {
        let payload = self.payload(packet);
        let offset = index * self.segment;
        let data = &payload[offset..payload.len().min(offset + self.segment)];
        let begin = arena.len();
        arena.put_slice(&packet[..self.headers]);
        arena.put_slice(data);
        let segment = &mut arena[begin..];
        self.write_ip(segment, index);
        let transport = self.ip.payload;
        if self.is_tcp {
            let sequence = segment[transport + 4..transport + 8].try_into().map_or(0, u32::from_be_bytes);
            let sequence = sequence.wrapping_add(offset as u32);
            segment[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
            const FIN: u8 = 0x01;
            const PSH: u8 = 0x08;
            const CWR: u8 = 0x80;
            let cleared = if is_last { 0 } else { FIN | PSH } | if index == 0 { 0 } else { CWR };
            segment[transport + 13] &= !cleared;
        } else {
            let length = (8 + data.len()) as u16;
            segment[transport + 4..transport + 6].copy_from_slice(&length.to_be_bytes());
        }
        let field = transport + if self.is_tcp { 16 } else { 6 };
        segment[field..field + 2].fill(0);
        let length = segment.len() - transport;
        let start = checksum::pseudo_header(self.ip.source, self.ip.destination, self.ip.protocol, length);
        let sum = !checksum::sum(&segment[transport..], start);
        let sum = if sum == 0 && !self.is_tcp { 0xffff } else { sum };
        segment[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn write_ip(&self, segment: &mut [u8], index: usize) {
        let length = segment.len();
        if self.ip.source.is_ipv4() {
            segment[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            let id = be16(segment, 4).unwrap_or(0).wrapping_add(index as u16);
            segment[4..6].copy_from_slice(&id.to_be_bytes());
            segment[10..12].fill(0);
            let sum = !checksum::sum(&segment[..self.ip.payload.min(length)], 0);
            segment[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let length = (length - crate::packet::IPV6_HEADER) as u16;
            segment[4..6].copy_from_slice(&length.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples;

    fn tcp_header(segmentation: Segmentation, segment: u16) -> VirtioHeader {
        VirtioHeader { needs_checksum: true, segmentation, segment, ..VirtioHeader::default() }
    }

    #[test]
    fn a_header_survives_its_bytes() {
        let header = VirtioHeader {
            needs_checksum: true,
            segmentation: Segmentation::TcpV6,
            headers: 60,
            segment: 1400,
            checksum_start: 40,
            checksum_offset: 16,
        };
        assert_eq!(VirtioHeader::read(&header.to_bytes()), Some((header, &[][..])));
        assert_eq!(VirtioHeader::read(&[0; 9]), None);
    }

    #[test]
    fn a_super_packet_becomes_segments_with_sequence_numbers_and_checksums() {
        for (packet, segmentation, transport) in [
            (samples::tcp_v4(5, &[7; 3000]), Segmentation::TcpV4, 20),
            (samples::tcp_v6(5, &[7; 3000]), Segmentation::TcpV6, 40),
        ] {
            let packets = split(&tcp_header(segmentation, 1400), &packet, &mut BytesMut::new()).unwrap();
            let lengths: Vec<usize> = packets.iter().map(|packet| packet.len() - transport - 20).collect();
            assert_eq!(lengths, [1400, 1400, 200]);
            for (index, packet) in packets.iter().enumerate() {
                let header = Header::read(packet).unwrap();
                assert_eq!(header.length, packet.len());
                assert_eq!(samples::transport_sum(packet, transport), 0xffff);
                let sequence = u32::from_be_bytes(packet[transport + 4..transport + 8].try_into().unwrap());
                assert_eq!(sequence, 5 + 1400 * index as u32);
                if transport == 20 {
                    assert_eq!(checksum::sum(&packet[..20], 0), 0xffff);
                }
            }
        }
    }

    #[test]
    fn only_the_last_segment_ends_the_stream_and_only_the_first_carries_cwr() {
        let mut packet = samples::tcp_v4(5, &[7; 300]);
        packet[20 + 13] = 0x10 | 0x80 | 0x08 | 0x01;
        let packets = split(&tcp_header(Segmentation::TcpV4, 100), &packet, &mut BytesMut::new()).unwrap();
        let flags: Vec<u8> = packets.iter().map(|packet| packet[33]).collect();
        assert_eq!(flags, [0x90, 0x10, 0x19]);
    }

    #[test]
    fn datagrams_of_one_super_packet_keep_their_lengths() {
        let packet = samples::udp_v6(&[9; 2500]);
        let packets = split(&tcp_header(Segmentation::Udp, 1000), &packet, &mut BytesMut::new()).unwrap();
        let lengths: Vec<usize> = packets.iter().map(|packet| packet.len() - 48).collect();
        assert_eq!(lengths, [1000, 1000, 500]);
        assert!(packets.iter().all(|packet| samples::transport_sum(packet, 40) == 0xffff));
    }

    #[test]
    fn an_unfinished_checksum_is_finished() {
        let whole = samples::tcp_v4(1, b"data");
        let mut packet = whole.clone();
        let header = Header::read(&packet).unwrap();
        let pseudo = checksum::pseudo_header(header.source, header.destination, 6, packet.len() - 20);
        packet[36..38].copy_from_slice(&pseudo.to_be_bytes());
        let header = VirtioHeader {
            needs_checksum: true,
            checksum_start: 20,
            checksum_offset: 16,
            ..VirtioHeader::default()
        };
        let packets = split(&header, &packet, &mut BytesMut::new()).unwrap();
        assert_eq!(packets[0], whole);
    }

    #[test]
    fn a_small_packet_keeps_no_large_allocation_alive() {
        let mut arena = BytesMut::new();
        let large = samples::tcp_v4(1, &[7; 60_000]);
        drop(split(&tcp_header(Segmentation::TcpV4, 1400), &large, &mut arena).unwrap());
        let small = samples::udp_v4(b"x");
        let mut packets = split(&VirtioHeader::default(), &small, &mut arena).unwrap();
        let capacity = packets.pop().unwrap().try_into_mut().unwrap().capacity();
        assert!(capacity <= 2 * small.len(), "{capacity} bytes for {}", small.len());
    }

    proptest! {
        #[test]
        fn hostile_reads_never_panic(mut buffer in proptest::collection::vec(any::<u8>(), 0..200), kind in 0_u8..6, family: bool) {
            if buffer.len() > VirtioHeader::LEN {
                buffer[1] = kind;
                buffer[VirtioHeader::LEN] = if family { 0x45 } else { 0x60 };
            }
            if let Some((header, packet)) = VirtioHeader::read(&buffer) {
                let packets = split(&header, packet, &mut BytesMut::new()).unwrap_or_default();
                prop_assert!(packets.iter().all(|packet| Header::read(packet).is_some()));
            }
        }
    }
}
