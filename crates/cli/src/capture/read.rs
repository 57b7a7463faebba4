//! Reads a capture file: every datagram of the protocol, decrypted if the session's keys are known.
//!
//! The file and its packets are untrusted: unreadable parts are errors or skipped.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anabranch_net::CapturedSession;
use anabranch_wire::{DecodeError, Fsn, Header, Kind, Packet, PathId, decode_frames};
use bytes::Bytes;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};

use super::file::COOKED;
use super::told;

/// An Anabranch datagram in a capture.
#[derive(Debug)]
pub struct Found {
    /// Its time, in seconds since the first packet of the capture.
    pub at: f64,
    /// Its source.
    pub from: SocketAddr,
    /// Its destination.
    pub to: SocketAddr,
    /// Its length in bytes.
    pub size: usize,
    /// Its clear header.
    pub header: Header,
    /// The content after the header.
    pub inside: Inside,
}

/// The content after a header.
#[derive(Debug)]
pub enum Inside {
    /// A kind of packet without frames.
    Plain,
    /// Encrypted frames for which there is no key.
    Sealed,
    /// Decrypted frames.
    Opened {
        /// The index of its session.
        session: usize,
        /// Whether the end that wrote the keys sent it.
        sent: bool,
        /// The frames.
        packet: Packet<Bytes>,
    },
    /// Decrypted content that is not valid frames.
    Malformed(PathId, Fsn, DecodeError),
}

impl Found {
    /// Its time and a description, on one line.
    pub fn line(&self) -> String {
        let Self { at, from, to, size, header, .. } = self;
        let start = format!("{at:12.6} {from} > {to} {size} bytes, {:?}", header.kind);
        let data = || format!("{start} to {}", header.pid);
        match &self.inside {
            Inside::Plain => start,
            Inside::Sealed => format!("{}, sealed, number ends in {}", data(), header.fsn),
            Inside::Opened { packet, .. } => format!("{}, {}", data(), told::packet(packet)),
            Inside::Malformed(path, fsn, error) => {
                format!("{}, path {} fsn {}: {error}", data(), path.0, fsn.0)
            }
        }
    }
}

/// A reader of a pcapng file.
pub struct Reading<R: Read> {
    reader: PcapNgReader<R>,
    interfaces: Vec<Interface>,
    /// Time of the first packet, in seconds.
    began: Option<f64>,
}

impl<R: Read> Reading<R> {
    /// Starts to read.
    pub fn new(file: R) -> Result<Self, PcapError> {
        Ok(Self { reader: PcapNgReader::new(file)?, interfaces: Vec::new(), began: None })
    }

    /// The next datagram of the protocol; `None` at the end of the file.
    pub fn next_packet(&mut self, sessions: &mut [CapturedSession]) -> Result<Option<Found>, PcapError> {
        while let Some(block) = self.reader.next_block() {
            match block? {
                Block::SectionHeader(_) => self.interfaces.clear(),
                Block::InterfaceDescription(block) => self.interfaces.push(Interface::of(&block)),
                Block::EnhancedPacket(packet) => {
                    let Some(interface) = self.interfaces.get(packet.interface_id as usize) else { continue };
                    let seconds = interface.seconds(packet.timestamp);
                    let at = seconds - *self.began.get_or_insert(seconds);
                    let found = interface.ip(&packet.data).and_then(|ip| find(at, ip, sessions));
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

/// The interface on which packets were captured.
struct Interface {
    /// Bytes before the IP header; `None` for unknown link types.
    skip: Option<usize>,
    /// Ticks of its clock per second.
    units: f64,
}

impl Interface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let skip = match block.linktype {
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Some(0),
            DataLink::ETHERNET => Some(14),
            // Our own, and `tcpdump -i any`.
            DataLink::LINUX_SLL => Some(COOKED),
            DataLink::LINUX_SLL2 => Some(20),
            _ => None,
        };
        let resolution = block.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        // A negative power of ten, or of two if the highest bit is set; microseconds by default (pcapng §4.2).
        let units = match resolution.unwrap_or(6) {
            tens @ 0..0x80 => 10_f64.powi(tens.into()),
            twos => 2_f64.powi((twos & 0x7f).into()),
        };
        Self { skip, units }
    }

    /// A packet's time in seconds. The reader assumes nanoseconds regardless of the interface's resolution.
    fn seconds(&self, timestamp: Duration) -> f64 {
        timestamp.as_nanos() as f64 / self.units
    }

    /// The packet, starting at its IP header.
    fn ip<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        packet.get(self.skip?..)
    }
}

/// The datagram in an IP packet; `None` for foreign packets.
fn find(at: f64, packet: &[u8], sessions: &mut [CapturedSession]) -> Option<Found> {
    let (from, to, datagram) = udp(packet)?;
    let (header, body) = Header::decode(datagram).ok()?;
    let inside = if header.kind == Kind::Data { open(&header, body, sessions) } else { Inside::Plain };
    Some(Found { at, from, to, size: datagram.len(), header, inside })
}

fn open(header: &Header, body: &[u8], sessions: &mut [CapturedSession]) -> Inside {
    let mut body = body.to_vec();
    let mut sessions = sessions.iter_mut().enumerate();
    let opened = sessions.find_map(|(number, session)| Some((number, session.open(header, &mut body)?)));
    let Some((session, opened)) = opened else { return Inside::Sealed };
    body.truncate(opened.len);
    match decode_frames(Bytes::from(body)) {
        Ok(frames) => Inside::Opened {
            session,
            sent: opened.sent,
            packet: Packet { path: opened.path, fsn: opened.fsn, frames },
        },
        Err(error) => Inside::Malformed(opened.path, opened.fsn, error),
    }
}

/// The addresses and the payload of a UDP datagram in an unfragmented IP packet.
fn udp(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let address4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
    let address6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
    let (from, to, protocol, rest) = match packet.first()? >> 4 {
        4 => {
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
            let header = usize::from(packet[0] & 15) * 4;
            (address4(12)?, address4(16)?, packet[9], packet.get(header..).filter(|_| fragment == 0)?)
        }
        6 => (address6(8)?, address6(24)?, *packet.get(6)?, packet.get(40..)?),
        _ => return None,
    };
    let number = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
    let len = usize::from(number(4)?);
    let payload = rest.get(8..len.min(rest.len())).filter(|_| protocol == 17)?;
    Some((SocketAddr::new(from, number(0)?), SocketAddr::new(to, number(2)?), payload))
}

#[cfg(test)]
mod tests {
    use anabranch_engine::Ecn;

    use super::*;
    use crate::capture::headers::headers;

    #[test]
    fn addresses_and_payload_are_found_behind_both_kinds_of_headers() {
        for (from, to) in [("192.0.2.1:7", "198.51.100.2:9"), ("[2001:db8::1]:7", "[2001:db8::2]:9")] {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let packet = [headers(from, to, Ecn::Ect0, 5), b"hello".to_vec()].concat();
            assert_eq!(udp(&packet), Some((from, to, b"hello".as_slice())));
            for cut in 0..packet.len() {
                // Truncated packets must not cause a panic.
                let _ = udp(&packet[..cut]);
            }
        }
    }

    #[test]
    fn times_are_in_the_unit_that_each_interface_names() {
        let interface = |options| {
            Interface::of(&InterfaceDescriptionBlock { linktype: DataLink::LINUX_SLL2, snaplen: 0, options })
        };
        let raw = Duration::from_nanos(3_000_000);
        let unit = InterfaceDescriptionOption::IfTsResol;
        assert_eq!(interface(vec![]).seconds(raw), 3.0);
        assert_eq!(interface(vec![unit(9)]).seconds(raw), 0.003);
        assert_eq!(interface(vec![unit(0x80 | 10)]).seconds(Duration::from_nanos(512)), 0.5);
        assert_eq!(interface(vec![]).ip(&[7; 21]), Some([7].as_slice()));
        assert_eq!(interface(vec![]).ip(&[7; 19]), None);
    }
}
