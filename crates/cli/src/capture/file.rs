//! Writes pcapng files for Wireshark and similar tools: interfaces, and packets with their IP headers.
//!
//! All interfaces have one link type, Linux's "cooked" header: libpcap, and so `tcpdump -r`, refuses a second interface with
//! plain IP packets.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::errors::Failure;

/// Size of the write buffer. Only whole blocks are written, so the file is readable at any time.
const KEPT: usize = 64 << 10;

/// Bytes before the IP header: direction, kind of device, no address, and protocol (LINKTYPE_LINUX_SLL).
pub const COOKED: usize = 16;

/// A writer of a pcapng file. After the first error it writes nothing more; [`PacketFile::finish`] returns that error.
pub struct PacketFile {
    path: PathBuf,
    file: File,
    writer: PcapNgWriter<Vec<u8>>,
    interfaces: u32,
    error: Option<PcapError>,
}

/// A packet to write.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    /// The number returned by [`PacketFile::interface`].
    pub interface: u32,
    /// Its time: since 1970, or since the start of a simulation.
    pub at: Duration,
    /// Whether the interface sent it; otherwise it was received.
    pub sent: bool,
    /// Its bytes from the IP header on, possibly truncated.
    pub data: &'a [u8],
    /// Its full length in bytes.
    pub whole: usize,
    /// A comment for readers.
    pub comment: Option<String>,
}

impl PacketFile {
    /// Creates the file, replacing an existing one.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| Failure::file("create", path, &error))?;
        let writer = PcapNgWriter::with_endianness(Vec::with_capacity(KEPT), Endianness::Little)
            .map_err(|error| fault(path, error))?;
        Ok(Self { path: path.to_owned(), file, writer, interfaces: 0, error: None })
    }

    /// Adds an interface and returns its number.
    pub fn interface(&mut self, name: String) -> u32 {
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::LINUX_SLL,
            // Packets may have any length: libpcap wants the same limit at all interfaces.
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name)),
                // Timestamps are in nanoseconds.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.write(block);
        self.interfaces += 1;
        self.interfaces - 1
    }

    pub fn packet(&mut self, packet: Packet<'_>) {
        let direction = if packet.sent { 2 } else { 1 };
        let data = [&cooked(&packet)[..], packet.data].concat();
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        options.extend(packet.comment.map(|text| EnhancedPacketOption::Comment(Cow::Owned(text))));
        let block = EnhancedPacketBlock {
            interface_id: packet.interface,
            timestamp: packet.at,
            original_len: (COOKED + packet.whole) as u32,
            data: Cow::Owned(data),
            options,
        };
        self.write(block);
    }

    fn write<'a, B: PcapNgBlock<'a>>(&mut self, block: B) {
        if self.error.is_none() {
            self.error = self.writer.write_pcapng_block(block).err();
        }
        if self.writer.get_ref().len() >= KEPT {
            self.flush();
        }
    }

    /// Whether a write has failed.
    pub fn is_broken(&self) -> bool {
        self.error.is_some()
    }

    /// Writes buffered blocks to the file.
    pub fn flush(&mut self) {
        if self.error.is_none() {
            self.error = self.file.write_all(self.writer.get_ref()).err().map(PcapError::IoError);
        }
        self.writer.get_mut().clear();
    }

    /// Completes the file.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.flush();
        self.error.take().map_or(Ok(()), |error| Err(fault(&self.path, error)))
    }
}

/// The header before a packet.
fn cooked(packet: &Packet<'_>) -> [u8; COOKED] {
    /// A device without addresses (`ARPHRD_NONE`).
    const DEVICE: [u8; 2] = 0xfffe_u16.to_be_bytes();
    let is_ipv6 = packet.data.first().is_some_and(|byte| byte >> 4 == 6);
    let protocol: u16 = if is_ipv6 { 0x86dd } else { 0x0800 };
    let mut header = [0; COOKED];
    header[1] = if packet.sent { 4 } else { 0 };
    header[2..4].copy_from_slice(&DEVICE);
    header[14..].copy_from_slice(&protocol.to_be_bytes());
    header
}

fn fault(path: &Path, error: PcapError) -> Failure {
    match error {
        PcapError::IoError(error) => Failure::file("write", path, &error),
        other => Failure::local(format!("cannot write {}: {other}", path.display())),
    }
}
