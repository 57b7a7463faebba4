//! Packets for tests.

use crate::checksum;
use crate::packet::protocol;

/// An IPv4 packet from 192.0.2.1 to 198.51.100.2 with this payload.
pub fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let mut packet =
        vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2];
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    let sum = !checksum::sum(&packet, 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// An IPv6 packet from 2001:db8::1 to 2001:db8::2 with this payload.
pub fn ipv6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    for last in [1, 2] {
        packet.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    packet.extend(payload);
    packet
}

/// A UDP packet from port 1000 to port 2000, without a checksum.
pub fn udp_v4(data: &[u8]) -> Vec<u8> {
    ipv4(protocol::UDP, &udp(data))
}

fn udp(data: &[u8]) -> Vec<u8> {
    let mut payload = vec![0x03, 0xe8, 0x07, 0xd0, 0, 0, 0, 0];
    payload.extend(data);
    let length = (payload.len() as u16).to_be_bytes();
    payload[4..6].copy_from_slice(&length);
    payload
}

/// A UDP packet over IPv6 with a checksum.
pub fn udp_v6(data: &[u8]) -> Vec<u8> {
    let mut packet = ipv6(protocol::UDP, &udp(data));
    finish_checksum(&mut packet, 40, 6);
    packet
}

/// A TCP segment from port 1000 to port 2000 with ACK and PSH, this sequence number and a right checksum.
pub fn tcp_v4(sequence: u32, data: &[u8]) -> Vec<u8> {
    let mut packet = ipv4(protocol::TCP, &tcp(sequence, data));
    finish_checksum(&mut packet, 20, 16);
    packet
}

/// The same over IPv6.
pub fn tcp_v6(sequence: u32, data: &[u8]) -> Vec<u8> {
    let mut packet = ipv6(protocol::TCP, &tcp(sequence, data));
    finish_checksum(&mut packet, 40, 16);
    packet
}

fn tcp(sequence: u32, data: &[u8]) -> Vec<u8> {
    let mut payload = vec![0x03, 0xe8, 0x07, 0xd0];
    payload.extend(sequence.to_be_bytes());
    payload.extend(77_u32.to_be_bytes());
    payload.extend([0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
    payload.extend(data);
    payload
}

/// Computes the transport checksum at this place of the payload anew.
pub fn finish_checksum(packet: &mut [u8], payload: usize, at: usize) {
    packet[payload + at..payload + at + 2].fill(0);
    let sum = transport_sum(packet, payload);
    packet[payload + at..payload + at + 2].copy_from_slice(&(!sum).to_be_bytes());
}

/// 0xffff when the transport checksum is right.
pub fn transport_sum(packet: &[u8], payload: usize) -> u16 {
    let header = crate::packet::Header::read(packet).unwrap();
    let length = header.length - payload;
    let start = checksum::pseudo_header(header.source, header.destination, header.protocol, length);
    checksum::sum(&packet[payload..header.length], start)
}
