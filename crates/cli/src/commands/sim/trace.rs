//! Packets of a run as a pcapng file, for Wireshark.
//!
//! The simulator's packets are typed values. Here each gets its IPv4, UDP and clear headers; the encrypted part is cut off,
//! as by a short snap length, and described in the packet's comment. Each end of each path is an interface, so a packet
//! occurs twice, sent and received; a lost packet occurs once.
//!
//! Addresses number flows and paths: 10.0.0.0/8 + (flow · 32 + path), with the highest of the 24 bits for servers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anabranch_engine::Ecn;
use anabranch_experiments::scenario::{Captured, Group, MAX_PATHS};
use anabranch_wire::{Header, Kind, Message, Payload, Pid, Time};

use crate::capture::file::{Packet, PacketFile};
use crate::capture::headers::headers;
use crate::capture::told;
use crate::errors::Failure;

/// IPv4 and UDP headers.
const HEADERS: usize = 28;
/// Captured bytes of each packet: its headers.
const KEPT: usize = HEADERS + Header::LEN;

/// The pcapng file of a run.
pub(super) struct Trace {
    file: PacketFile,
    /// Names of the plan's flows.
    names: Vec<String>,
    /// Interfaces by flow, session, path and whether it is the server's end.
    interfaces: BTreeMap<(usize, u32, usize, bool), u32>,
}

impl Trace {
    pub(super) fn create(path: &Path, groups: &[Group]) -> Result<Self, Failure> {
        let file = PacketFile::create(path)?;
        Ok(Self { file, names: flow_names(groups), interfaces: BTreeMap::new() })
    }

    /// Writes a packet; false if the file takes no more. `finish` returns the error.
    pub(super) fn add(&mut self, packet: &Captured) -> bool {
        let interface = self.interface(packet);
        let data = kept(packet);
        self.file.packet(Packet {
            interface,
            at: Duration::from_nanos(packet.at.since(Time::ZERO).as_nanos()),
            sent: packet.sent,
            data: &data,
            whole: packet.size as usize + HEADERS,
            comment: Some(told(&packet.message)),
        });
        !self.file.is_broken()
    }

    fn interface(&mut self, packet: &Captured) -> u32 {
        let at_server = packet.to_server != packet.sent;
        let key = (packet.flow, packet.session, packet.path, at_server);
        if let Some(known) = self.interfaces.get(&key) {
            return *known;
        }
        let end = if at_server { "server" } else { "client" };
        let flow = flow_name(&self.names, packet);
        let number = self.file.interface(format!("{flow} path {} {end}", packet.path + 1));
        self.interfaces.insert(key, number);
        number
    }

    /// Completes the file.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.file.finish()
    }
}

/// The names of a plan's flows; flows of a group are numbered.
pub(super) fn flow_names(groups: &[Group]) -> Vec<String> {
    let of_group = |group: &Group| -> Vec<String> {
        match group.count {
            1 => vec![group.name.clone()],
            count => (1..=count).map(|number| format!("{} {number}", group.name)).collect(),
        }
    };
    groups.iter().flat_map(of_group).collect()
}

/// The name of a packet's flow; sessions of arrivals are numbered by their slots, which are reused.
pub(super) fn flow_name(names: &[String], packet: &Captured) -> String {
    let Captured { flow, session, .. } = packet;
    let named = names.get(*flow).cloned();
    named.unwrap_or_else(|| format!("arrival place {} session {}", flow - names.len() + 1, session + 1))
}

/// The headers that a packet would have on a wire.
fn kept(packet: &Captured) -> Vec<u8> {
    let number = (packet.flow * MAX_PATHS + packet.path) as u32 & 0x007f_ffff;
    let client = SocketAddr::from((Ipv4Addr::from(0x0a00_0000 | number), 1000));
    let server = SocketAddr::from((Ipv4Addr::from(0x0a80_0000 | number), 443));
    let (from, to) = if packet.to_server { (client, server) } else { (server, client) };
    let mut bytes = headers(from, to, Ecn::NotEct, packet.size as usize);
    let (kind, fsn) = match &packet.message {
        Message::Init(_) => (Kind::Init, 0),
        Message::InitAck(_) => (Kind::InitAck, 0),
        Message::Packet(packet) => (Kind::Data, packet.fsn.0 as u32),
        Message::Reset(_) => (Kind::Reset, 0),
    };
    let header =
        Header { kind, key_phase: false, tos: 0, hop_limit: 0, pid: Pid(packet.path as u64 + 1), fsn };
    bytes.resize(KEPT, 0);
    header.encode(&mut bytes[HEADERS..]);
    bytes
}

/// A description of a packet's content.
fn told<P: Payload>(message: &Message<P>) -> String {
    match message {
        Message::Init(_) => "INIT".to_owned(),
        Message::InitAck(_) => "INIT-ACK".to_owned(),
        Message::Reset(_) => "RESET".to_owned(),
        Message::Packet(packet) => told::packet(packet),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use pcap_file::DataLink;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;
    use crate::capture::file::COOKED;
    use anabranch_experiments::scenario::{Extras, Scenario};
    use anabranch_tunnel::checksum::sum;

    #[test]
    fn a_trace_is_a_pcapng_file_with_every_packet_sent_and_received() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pcapng");
        let scenario = Scenario::parse(include_str!("test.toml"), "test").unwrap();
        let mut trace = Trace::create(&path, &scenario.build(1).unwrap().groups).unwrap();
        let mut note = |packet: &Captured| assert!(trace.add(packet));
        scenario.run_with(1, Extras { trace: Some(&mut note), ..Extras::default() }).unwrap();
        trace.finish().unwrap();

        let mut reader = PcapNgReader::new(File::open(&path).unwrap()).unwrap();
        let (mut interfaces, mut sent, mut received, mut last) = (Vec::new(), 0, 0, Duration::ZERO);
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(block) => {
                    assert_eq!((block.linktype, block.snaplen), (DataLink::LINUX_SLL, 0));
                    let name = block.options.iter().find_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    });
                    interfaces.push(name.unwrap());
                }
                Block::EnhancedPacket(packet) => {
                    let ip = &packet.data[COOKED..];
                    assert_eq!((ip.len(), !sum(&ip[..20], 0)), (KEPT, 0));
                    assert!(Header::decode(&ip[HEADERS..]).is_ok() && packet.timestamp >= last);
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
