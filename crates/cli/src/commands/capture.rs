//! `anabranch capture`: says what a captured file holds.

use std::fs::{self, File};
use std::io::BufReader;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_net::CapturedSession;
use anabranch_wire::{Header, Kind, Packet, decode_frames};
use bytes::Bytes;
use clap::{Args, ValueHint};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};

use crate::capture::told;
use crate::errors::Failure;
use crate::ui::out;

const EXAMPLES: &str = "\
Examples:
  anabranch receive TICKET --capture bad.pcapng --capture-keys bad.keys    make a capture
  anabranch capture bad.pcapng                                             sizes, times, kinds of packets
  anabranch capture bad.pcapng --keys bad.keys                             and what is in them
  wireshark bad.pcapng                                                     the same file elsewhere";

/// Say what a capture of sealed packets holds
///
/// Reads pcapng as `--capture` writes it, and as `tcpdump -w` and Wireshark do after `editcap -F pcapng`. With the keys of
/// a session, which `--capture-keys` wrote, its packets are opened.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CaptureArgs {
    /// The capture
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The keys of its sessions
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub keys: Option<PathBuf>,
}

/// Prints a line for each packet.
///
/// # Errors
/// When a file cannot be read or is not what it should be.
pub fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let mut sessions = args.keys.as_deref().map_or(Ok(Vec::new()), read_keys)?;
    let file = File::open(&args.file).map_err(|error| Failure::file("read", &args.file, &error))?;
    let broken = |error: pcap_file::PcapError| {
        Failure::local(format!("{} is no capture: {error}", args.file.display()))
            .hint("this reads pcapng; `editcap -F pcapng OLD NEW` turns other captures into it")
    };
    let mut reader = PcapNgReader::new(BufReader::new(file)).map_err(broken)?;
    let (mut interfaces, mut began, mut found) = (Vec::new(), None, false);
    while let Some(block) = reader.next_block() {
        match block.map_err(broken)? {
            Block::SectionHeader(_) => interfaces.clear(),
            Block::InterfaceDescription(block) => interfaces.push(Interface::of(&block)),
            Block::EnhancedPacket(packet) => {
                let Some(interface) = interfaces.get(packet.interface_id as usize) else { continue };
                let at = interface.seconds(packet.timestamp);
                let since = at - *began.get_or_insert(at);
                if let Some(said) = interface.ip(&packet.data).and_then(|ip| say(ip, &mut sessions)) {
                    out::print(&format!("{since:12.6} {said}\n"))?;
                    found = true;
                }
            }
            _ => {}
        }
    }
    if found { Ok(()) } else { Err(nothing(&args.file)) }
}

fn nothing(path: &Path) -> Failure {
    Failure::local(format!("{} holds no packets of Anabranch", path.display()))
        .hint("capture where the session's datagrams pass: `--capture` at one of its ends always sees them")
}

/// Where packets were captured.
struct Interface {
    /// Bytes before the IP header; `None` when it is not known where that begins.
    skip: Option<usize>,
    /// Units of time in a second.
    units: f64,
}

impl Interface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let skip = match block.linktype {
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Some(0),
            DataLink::ETHERNET => Some(14),
            // `tcpdump -i any`
            DataLink::LINUX_SLL => Some(16),
            DataLink::LINUX_SLL2 => Some(20),
            _ => None,
        };
        let resolution = block.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        // A negative power of ten, or of two with the highest bit set; microseconds unless said (pcapng §4.2).
        let units = match resolution.unwrap_or(6) {
            tens @ 0..0x80 => 10_f64.powi(tens.into()),
            twos => 2_f64.powi((twos & 0x7f).into()),
        };
        Self { skip, units }
    }

    /// A packet's time, which the reader takes for nanoseconds whatever its unit is.
    fn seconds(&self, timestamp: Duration) -> f64 {
        timestamp.as_nanos() as f64 / self.units
    }

    /// The packet from its IP header on.
    fn ip<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        packet.get(self.skip?..)
    }
}

fn read_keys(path: &Path) -> Result<Vec<CapturedSession>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |(number, line)| {
        CapturedSession::from_line(line).map_err(|error| {
            Failure::local(format!("{}, line {}: {error}", path.display(), number + 1))
                .hint("the file has to be as `--capture-keys` wrote it")
        })
    };
    lines.map(read).collect()
}

/// What is to be said of one packet; `None` when it is none of ours.
fn say(packet: &[u8], sessions: &mut [CapturedSession]) -> Option<String> {
    let (from, to, datagram) = udp(packet)?;
    let (header, body) = Header::decode(datagram).ok()?;
    let start = format!("{from} > {to} {} bytes, {:?}", datagram.len(), header.kind);
    if header.kind != Kind::Data {
        return Some(start);
    }
    let start = format!("{start} to {:016x}", header.pid.0);
    let mut body = body.to_vec();
    let opened = sessions.iter_mut().find_map(|session| session.open(&header, &mut body));
    let Some(opened) = opened else { return Some(format!("{start}, sealed, number ends in {}", header.fsn)) };
    body.truncate(opened.len);
    Some(match decode_frames(Bytes::from(body)) {
        Ok(frames) => {
            format!("{start}, {}", told::packet(&Packet { path: opened.path, fsn: opened.fsn, frames }))
        }
        Err(error) => format!("{start}, path {} fsn {}: {error}", opened.path.0, opened.fsn.0),
    })
}

/// The addresses and the payload of a UDP datagram in an IP packet that is no fragment.
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
                // Nothing panics, whatever is missing.
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
