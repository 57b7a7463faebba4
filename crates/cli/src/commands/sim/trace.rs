//! Packets of a run as a pcapng file, which Wireshark and its kin open.
//!
//! Sessions of the simulator exchange typed packets; here each gets the IPv4, UDP and clear headers it would have
//! on a wire, and what would be under the seal is cut off, as by a capture with a short snap length. What it says
//! stands in the packet's comment. Each end of each path is an interface, so a packet is there twice, sent and
//! received; one that is there once was lost.
//!
//! Addresses number flows and paths: 10.0.0.0/8 + (flow · 32 + path), with the highest of the 24 bits for servers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_sim::scenario::{Captured, Group, MAX_PATHS};
use anabranch_wire::{Frame, Header, Kind, Length, Message, Pid, Time};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::errors::Failure;

/// IPv4 and UDP headers.
const HEADERS: usize = 28;
/// Bytes kept of each packet: its headers.
const KEPT: usize = HEADERS + Header::LEN;

/// A pcapng file that is being written.
pub(super) struct Trace {
    path: PathBuf,
    writer: PcapNgWriter<BufWriter<File>>,
    /// Names of the plan's flows.
    names: Vec<String>,
    /// Interfaces by flow, path and whether it is the server's end.
    interfaces: BTreeMap<(usize, usize, bool), u32>,
    /// What went wrong first.
    error: Option<Failure>,
}

impl Trace {
    pub(super) fn create(path: &Path, groups: &[Group]) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| Failure::file("create", path, &error))?;
        let writer = PcapNgWriter::with_endianness(BufWriter::new(file), Endianness::Little)
            .map_err(|error| fault(path, error))?;
        let names = flow_names(groups);
        Ok(Self { path: path.to_owned(), writer, names, interfaces: BTreeMap::new(), error: None })
    }

    /// Writes a packet; what goes wrong is told in the end.
    pub(super) fn add(&mut self, packet: &Captured) {
        if self.error.is_none()
            && let Err(error) = self.write(packet)
        {
            self.error = Some(fault(&self.path, error));
        }
    }

    fn write(&mut self, packet: &Captured) -> Result<(), PcapError> {
        let interface_id = self.interface(packet)?;
        let data = headers(packet);
        let direction = if packet.sent { 2 } else { 1 };
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(packet.at.since(Time::ZERO).as_nanos()),
            original_len: packet.size + HEADERS as u32,
            data: Cow::Borrowed(&data),
            options: vec![
                EnhancedPacketOption::Flags(direction),
                EnhancedPacketOption::Comment(Cow::Owned(told(&packet.message))),
            ],
        };
        self.writer.write_pcapng_block(block).map(drop)
    }

    fn interface(&mut self, packet: &Captured) -> Result<u32, PcapError> {
        let at_server = packet.to_server != packet.sent;
        let key = (packet.flow, packet.path, at_server);
        if let Some(known) = self.interfaces.get(&key) {
            return Ok(*known);
        }
        let end = if at_server { "server" } else { "client" };
        let flow = self.names.get(packet.flow).cloned();
        let flow = flow.unwrap_or_else(|| format!("arrival place {}", packet.flow - self.names.len()));
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: KEPT as u32,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(format!(
                    "{flow} path {} {end}",
                    packet.path + 1
                ))),
                // Moments are in nanoseconds.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.writer.write_pcapng_block(block)?;
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(key, number);
        Ok(number)
    }

    /// Ends the file.
    pub(super) fn finish(self) -> Result<(), Failure> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut file = self.writer.into_inner();
        file.flush().map_err(|error| Failure::file("write", &self.path, &error))
    }
}

/// The names of a plan's flows, those of a group numbered.
pub(super) fn flow_names(groups: &[Group]) -> Vec<String> {
    let of_group = |group: &Group| -> Vec<String> {
        match group.count {
            1 => vec![group.name.clone()],
            count => (1..=count).map(|number| format!("{} {number}", group.name)).collect(),
        }
    };
    groups.iter().flat_map(of_group).collect()
}

fn fault(path: &Path, error: PcapError) -> Failure {
    match error {
        PcapError::IoError(error) => Failure::file("write", path, &error),
        other => Failure::local(format!("cannot write {}: {other}", path.display())),
    }
}

/// The headers that a packet would have on a wire.
fn headers(packet: &Captured) -> [u8; KEPT] {
    let mut bytes = [0; KEPT];
    let length = packet.size as usize + HEADERS;
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    // Don't fragment; 64 hops; UDP.
    (bytes[6], bytes[8], bytes[9]) = (0x40, 64, 17);
    let number = (packet.flow * MAX_PATHS + packet.path) as u32 & 0x007f_ffff;
    let (client, server) = ((0x0a00_0000 | number, 1000_u16), (0x0a80_0000 | number, 443_u16));
    let (from, to) = if packet.to_server { (client, server) } else { (server, client) };
    bytes[12..16].copy_from_slice(&from.0.to_be_bytes());
    bytes[16..20].copy_from_slice(&to.0.to_be_bytes());
    let checksum = internet_checksum(&bytes[..20]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes[20..22].copy_from_slice(&from.1.to_be_bytes());
    bytes[22..24].copy_from_slice(&to.1.to_be_bytes());
    bytes[24..26].copy_from_slice(&((length - 20) as u16).to_be_bytes());
    let (kind, fsn) = match &packet.message {
        Message::Init(_) => (Kind::Init, 0),
        Message::InitAck(_) => (Kind::InitAck, 0),
        Message::Packet(packet) => (Kind::Data, packet.fsn.0 as u32),
        Message::Reset(_) => (Kind::Reset, 0),
    };
    let header =
        Header { kind, key_phase: false, tos: 0, hop_limit: 0, pid: Pid(packet.path as u64 + 1), fsn };
    header.encode(&mut bytes[HEADERS..]);
    bytes
}

/// RFC 1071.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// What a packet says, for people.
fn told(message: &Message<Length>) -> String {
    match message {
        Message::Init(_) => "INIT".to_owned(),
        Message::InitAck(_) => "INIT-ACK".to_owned(),
        Message::Reset(_) => "RESET".to_owned(),
        Message::Packet(packet) => {
            let mut text = format!("path {} fsn {}", packet.path.0, packet.fsn.0);
            for frame in &packet.frames {
                // Writing to a string cannot fail.
                let _ = match frame {
                    Frame::Stream(stream) => {
                        let end = stream.offset + stream.data.0 as u64;
                        let fin = if stream.fin { " FIN" } else { "" };
                        write!(text, ", STREAM {} {}..{end}{fin}", stream.stream.0, stream.offset)
                    }
                    Frame::Ack(ack) => write!(text, ", ACK path {} {:?}", ack.path.0, ack.ranges),
                    other => write!(text, ", {other:?}"),
                };
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;
    use anabranch_sim::scenario::{Extras, Scenario};

    #[test]
    fn a_trace_is_a_pcapng_file_with_every_packet_sent_and_received() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pcapng");
        let scenario = Scenario::parse(include_str!("test.toml"), "test").unwrap();
        let mut trace = Trace::create(&path, &scenario.build(1).unwrap().groups).unwrap();
        let mut note = |packet: &Captured| trace.add(packet);
        scenario.run_with(1, Extras { trace: Some(&mut note), ..Extras::default() }).unwrap();
        trace.finish().unwrap();

        let mut reader = PcapNgReader::new(File::open(&path).unwrap()).unwrap();
        let (mut interfaces, mut sent, mut received, mut last) = (Vec::new(), 0, 0, Duration::ZERO);
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(block) => {
                    let name = block.options.iter().find_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    });
                    interfaces.push(name.unwrap());
                }
                Block::EnhancedPacket(packet) => {
                    assert_eq!((packet.data.len(), internet_checksum(&packet.data[..20])), (KEPT, 0));
                    assert!(Header::decode(&packet.data[HEADERS..]).is_ok() && packet.timestamp >= last);
                    last = packet.timestamp;
                    let outbound = packet.options.contains(&EnhancedPacketOption::Flags(2));
                    *(if outbound { &mut sent } else { &mut received }) += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        interfaces.sort_unstable();
        assert_eq!(interfaces, ["M path 1 client", "M path 1 server", "M path 2 client", "M path 2 server"]);
        // Two seconds of 15 Mbit/s, a hundredth of two thirds lost.
        assert!(received > 2000 && sent > received && sent < received * 11 / 10, "{sent} {received}");
    }
}
