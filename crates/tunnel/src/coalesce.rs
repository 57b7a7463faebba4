//! Joins packets of one flow into super-packets for the device, without copying their payloads.
//!
//! A [`Group`] has the first packet's headers, adapted to the whole, and the payloads of all its packets; the driver
//! writes them with one `writev`. The rules are those of the kernel's own receive offload: packets need the same
//! addresses, ports, type of service, hop limit, flags and options, consecutive sequence numbers, equal lengths except
//! for a shorter last one, and correct checksums. A packet that cannot join closes its flow's group, so the order
//! within a flow is kept.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::checksum;
use crate::offload::{Segmentation, VirtioHeader};
use crate::packet::{Header, IPV6_HEADER, be16, protocol};

/// Largest super-packet.
const LARGEST: usize = 65_535;
/// Groups that may still grow; a packet looks for its own among these.
const OPEN_GROUPS: usize = 16;
/// Most payloads in a group: with the headers, as many as one `writev` accepts.
const MOST_PAYLOADS: usize = 64;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

/// The parts of one write to the device.
#[derive(Debug)]
pub struct Group {
    /// The device's header.
    pub virtio: VirtioHeader,
    /// All headers of the first packet; the whole packet if none joined it.
    pub headers: SmallVec<[u8; 80]>,
    /// Payloads in order.
    pub payloads: SmallVec<[Bytes; 4]>,
}

/// Collects packets that arrived together.
#[derive(Debug, Default)]
pub struct Coalescer {
    groups: Vec<Growing>,
    /// Indices of groups that may grow.
    open: SmallVec<[usize; OPEN_GROUPS]>,
    /// Whether the device accepts UDP super-packets.
    joins_udp: bool,
}

#[derive(Debug)]
struct Growing {
    first: Bytes,
    /// Set for TCP and UDP packets that can be joined.
    shape: Option<Shape>,
    payloads: SmallVec<[Bytes; 4]>,
    length: usize,
    /// TCP: the next sequence number.
    next: u32,
    pushes: bool,
}

/// The positions of the parts of a packet that can be joined.
#[derive(Clone, Copy, Debug)]
struct Shape {
    transport: usize,
    payload: usize,
    end: usize,
    is_tcp: bool,
    sequence: u32,
    pushes: bool,
}

impl Coalescer {
    /// A coalescer that also joins UDP datagrams, if the device can split them.
    pub fn new(joins_udp: bool) -> Self {
        Self { joins_udp, ..Self::default() }
    }

    /// Adds the next packet.
    pub fn push(&mut self, packet: Bytes) {
        let Some(shape) = Shape::of(&packet, self.joins_udp) else {
            // Its flow's group closes: nothing may overtake this packet.
            self.open.retain(|index| !same_flow(&self.groups[*index].first, &packet));
            self.start(packet, None);
            return;
        };
        let place = self.open.iter().position(|index| self.groups[*index].is_same_flow(&packet, &shape));
        if let Some(place) = place {
            let index = self.open[place];
            if self.groups[index].join(&packet, &shape) {
                if self.groups[index].is_complete(&shape) {
                    self.open.remove(place);
                }
                return;
            }
            self.open.remove(place);
        }
        let may_grow = shape.payload < shape.end && !shape.pushes;
        let index = self.start(packet, Some(shape));
        if may_grow {
            if self.open.len() == OPEN_GROUPS {
                self.open.remove(0);
            }
            self.open.push(index);
        }
    }

    fn start(&mut self, packet: Bytes, shape: Option<Shape>) -> usize {
        let next = shape.map_or(0, |shape| shape.sequence.wrapping_add((shape.end - shape.payload) as u32));
        let (length, pushes) = (packet.len(), shape.is_some_and(|shape| shape.pushes));
        self.groups.push(Growing { first: packet, shape, payloads: SmallVec::new(), length, next, pushes });
        self.groups.len() - 1
    }

    /// Everything that was pushed, as groups in the order in which they began.
    pub fn drain(&mut self) -> impl Iterator<Item = Group> + '_ {
        self.open.clear();
        self.groups.drain(..).map(Growing::finish)
    }
}

impl Shape {
    fn of(packet: &Bytes, joins_udp: bool) -> Option<Self> {
        let header = Header::read(packet)?;
        let has_options = header.source.is_ipv4() && header.payload != 20
            || header.source.is_ipv6() && header.payload != IPV6_HEADER;
        if header.fragment.is_some() || has_options || header.length != packet.len() {
            return None;
        }
        let transport = header.payload;
        let (payload, is_tcp, sequence, pushes) = match header.protocol {
            protocol::TCP => {
                let flags = *packet.get(transport + 13)?;
                if flags & !PSH != ACK {
                    return None;
                }
                let length = usize::from(packet[transport + 12] >> 4) * 4;
                let sequence = u32::from_be_bytes(*packet.get(transport + 4..)?.first_chunk()?);
                (transport + length, true, sequence, flags & PSH != 0)
            }
            // Without a checksum there is nothing to check; the kernel joins no such datagrams either.
            protocol::UDP if joins_udp && be16(packet, transport + 6)? != 0 => {
                (transport + 8, false, 0, false)
            }
            _ => return None,
        };
        let is_whole = payload <= header.length && (!is_tcp || payload >= transport + 20);
        let start = checksum::pseudo_header(
            header.source,
            header.destination,
            header.protocol,
            header.length - transport,
        );
        let is_right = is_whole && checksum::sum(&packet[transport..], start) == 0xffff;
        is_right.then_some(Self { transport, payload, end: header.length, is_tcp, sequence, pushes })
    }
}

/// Same addresses and protocol. Ports are not compared: later fragments have none.
fn same_flow(one: &[u8], other: &[u8]) -> bool {
    let (Some(a), Some(b)) = (Header::read(one), Header::read(other)) else { return false };
    a.source == b.source && a.destination == b.destination && a.protocol == b.protocol
}

impl Growing {
    /// Same addresses and ports.
    fn is_same_flow(&self, packet: &[u8], shape: &Shape) -> bool {
        let Some(own) =
            self.shape.filter(|own| own.is_tcp == shape.is_tcp && own.transport == shape.transport)
        else {
            return false;
        };
        let addresses = if own.transport == 20 { 12..20 } else { 8..40 };
        let ports = own.transport..own.transport + 4;
        self.first[addresses.clone()] == packet[addresses] && self.first[ports.clone()] == packet[ports]
    }

    /// Adds the packet's payload if it continues the group.
    fn join(&mut self, packet: &Bytes, shape: &Shape) -> bool {
        let Some(own) = self.shape else { return false };
        let segment = own.end - own.payload;
        let length = shape.end - shape.payload;
        let continues = !own.is_tcp || shape.sequence == self.next;
        let fits = length > 0
            && length <= segment
            && self.length + length <= LARGEST
            && self.payloads.len() < MOST_PAYLOADS - 1;
        if !(continues && fits && own.payload == shape.payload && self.has_same_headers(packet, &own)) {
            return false;
        }
        self.payloads.push(packet.slice(shape.payload..shape.end));
        self.length += length;
        self.next = self.next.wrapping_add(length as u32);
        self.pushes |= shape.pushes;
        true
    }

    /// Same type of service, hop limit and fragmentation flag, and for TCP the same acknowledgement, window and options.
    fn has_same_headers(&self, packet: &[u8], own: &Shape) -> bool {
        let (a, b) = (&self.first, packet);
        let same_ip = if own.transport == 20 {
            a[1] == b[1] && a[6..9] == b[6..9]
        } else {
            a[..4] == b[..4] && a[7] == b[7]
        };
        let at = own.transport;
        let same_tcp = || {
            a[at + 8..at + 13] == b[at + 8..at + 13]
                && a[at + 14..at + 16] == b[at + 14..at + 16]
                && a[at + 18..own.payload] == b[at + 18..own.payload]
        };
        same_ip && (!own.is_tcp || same_tcp())
    }

    /// Nothing may follow: a shorter segment, a push, or no more room.
    fn is_complete(&self, last: &Shape) -> bool {
        let segment = self.shape.map_or(0, |own| own.end - own.payload);
        last.end - last.payload < segment || last.pushes || self.payloads.len() == MOST_PAYLOADS - 1
    }

    fn finish(self) -> Group {
        let Some(shape) = self.shape.filter(|_| !self.payloads.is_empty()) else {
            return Group {
                virtio: VirtioHeader::default(),
                headers: SmallVec::new(),
                payloads: SmallVec::from_iter([self.first]),
            };
        };
        let mut headers: SmallVec<[u8; 80]> = SmallVec::from_slice(&self.first[..shape.payload]);
        let transport_length = self.length - shape.transport;
        if shape.transport == 20 {
            headers[2..4].copy_from_slice(&(self.length as u16).to_be_bytes());
            headers[10..12].fill(0);
            let sum = !checksum::sum(&headers[..20], 0);
            headers[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            headers[4..6].copy_from_slice(&(transport_length as u16).to_be_bytes());
        }
        let (offset, kind) = if shape.is_tcp { (16, protocol::TCP) } else { (6, protocol::UDP) };
        if shape.is_tcp && self.pushes {
            headers[shape.transport + 13] |= PSH;
        }
        if !shape.is_tcp {
            headers[shape.transport + 4..shape.transport + 6]
                .copy_from_slice(&(transport_length as u16).to_be_bytes());
        }
        if let Some(ip) = Header::read(&self.first) {
            let sum = checksum::pseudo_header(ip.source, ip.destination, kind, transport_length);
            headers[shape.transport + offset..shape.transport + offset + 2]
                .copy_from_slice(&sum.to_be_bytes());
        }
        let segmentation = match (shape.is_tcp, shape.transport) {
            (false, _) => Segmentation::Udp,
            (true, 20) => Segmentation::TcpV4,
            (true, _) => Segmentation::TcpV6,
        };
        let virtio = VirtioHeader {
            needs_checksum: true,
            segmentation,
            headers: shape.payload as u16,
            segment: (shape.end - shape.payload) as u16,
            checksum_start: shape.transport as u16,
            checksum_offset: offset as u16,
        };
        let first = self.first.slice(shape.payload..shape.end);
        let payloads = std::iter::once(first).chain(self.payloads).collect();
        Group { virtio, headers, payloads }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;
    use crate::offload::split;
    use crate::samples;

    fn whole(group: &Group) -> Vec<u8> {
        let mut bytes = group.headers.to_vec();
        group.payloads.iter().for_each(|payload| bytes.extend_from_slice(payload));
        bytes
    }

    /// Coalesces and cuts again.
    fn round_trip(packets: &[Vec<u8>]) -> (usize, Vec<Bytes>) {
        let mut coalescer = Coalescer::new(true);
        packets.iter().for_each(|packet| coalescer.push(Bytes::from(packet.clone())));
        let groups: Vec<Group> = coalescer.drain().collect();
        let split_again = groups.iter().flat_map(|group| {
            split(&group.virtio, &whole(group), &mut BytesMut::new()).expect("what was joined can be cut")
        });
        let again = split_again.collect();
        (groups.len(), again)
    }

    #[test]
    fn consecutive_segments_become_one_and_come_apart_unchanged() {
        for make in [samples::tcp_v4, samples::tcp_v6] {
            let packets = [make(0, &[1; 1000]), make(1000, &[2; 1000]), make(2000, &[3; 400])];
            let (groups, again) = round_trip(&packets);
            assert_eq!(groups, 1);
            // IPv4 identifications count up; all other fields are unchanged.
            for (before, after) in packets.iter().zip(&again) {
                assert_eq!(before[20..], after[20..]);
            }
        }
    }

    #[test]
    fn datagrams_of_equal_length_are_joined_where_the_device_takes_them() {
        let packets = [samples::udp_v6(&[1; 700]), samples::udp_v6(&[2; 700]), samples::udp_v6(&[3; 10])];
        let (groups, again) = round_trip(&packets);
        assert_eq!((groups, again), (1, packets.into_iter().map(Bytes::from).collect()));
        let mut plain = Coalescer::new(false);
        (0..2).for_each(|_| plain.push(samples::udp_v6(&[1; 700]).into()));
        assert_eq!(plain.drain().count(), 2);
    }

    #[test]
    fn a_gap_a_flag_or_a_wrong_checksum_keeps_packets_apart() {
        let mut fin = samples::tcp_v4(1000, &[2; 1000]);
        fin[33] |= 1;
        samples::finish_checksum(&mut fin, 20, 16);
        let mut corrupt = samples::tcp_v4(1000, &[2; 1000]);
        corrupt[500] ^= 1;
        for second in [samples::tcp_v4(1001, &[2; 1000]), fin, corrupt, samples::tcp_v4(1000, &[2; 1001])] {
            let packets = [samples::tcp_v4(0, &[1; 1000]), second];
            let (groups, again) = round_trip(&packets);
            assert_eq!((groups, again), (2, packets.into_iter().map(Bytes::from).collect()));
        }
    }

    #[test]
    fn nothing_joins_a_group_that_a_packet_of_its_flow_has_passed() {
        let mut ack = samples::tcp_v4(1000, &[]);
        ack[33] = 0x14;
        samples::finish_checksum(&mut ack, 20, 16);
        let packets = [samples::tcp_v4(0, &[1; 1000]), ack, samples::tcp_v4(1000, &[2; 1000])];
        let (groups, again) = round_trip(&packets);
        assert_eq!((groups, again), (3, packets.into_iter().map(Bytes::from).collect()));
    }

    proptest! {
        #[test]
        fn any_packets_come_out_as_they_went_in(
            choices in proptest::collection::vec((0_u8..4, 0_usize..4, 1_usize..4), 1..40)
        ) {
            let mut sequence = 0_u32;
            let packets: Vec<Vec<u8>> = choices.iter().map(|(kind, length, fill)| {
                let data = vec![*fill as u8; length * 300];
                let packet = match kind {
                    0 | 1 => samples::tcp_v4(sequence, &data),
                    2 => samples::udp_v6(&data),
                    _ => samples::ipv4(99, &data),
                };
                if *kind < 2 { sequence += data.len() as u32; }
                packet
            }).collect();
            let (_, again) = round_trip(&packets);
            let contents = |packets: Vec<Vec<u8>>, kind: u8| -> Vec<Vec<u8>> {
                packets.into_iter().filter(|packet| packet[9] == kind || packet[6] == kind && packet[0] >> 4 == 6)
                    .map(|packet| packet[20..].to_vec()).collect()
            };
            for kind in [protocol::TCP, protocol::UDP, 99] {
                let after = again.iter().map(|packet| packet.to_vec()).collect();
                prop_assert_eq!(contents(packets.clone(), kind), contents(after, kind));
            }
        }
    }
}
