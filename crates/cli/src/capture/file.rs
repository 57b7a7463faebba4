//! Writes a pcapng file, which Wireshark and its kin open: interfaces, and packets from their IP headers on.

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

/// Bytes that are kept until they are written: whole blocks, so that what is in the file can be read at any time.
const KEPT: usize = 64 << 10;

/// A pcapng file that is being written. After the first error it takes no more; [`PacketFile::finish`] tells of it.
pub struct PacketFile {
    path: PathBuf,
    file: File,
    writer: PcapNgWriter<Vec<u8>>,
    interfaces: u32,
    error: Option<PcapError>,
}

/// A packet to be written.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    /// The number that [`PacketFile::interface`] gave.
    pub interface: u32,
    /// When it was there: since 1970, or since a simulation began.
    pub at: Duration,
    /// It left this interface; else it came.
    pub sent: bool,
    /// From its IP header on; perhaps not all of it.
    pub data: &'a [u8],
    /// The length of all of it in bytes.
    pub whole: usize,
    /// For people.
    pub comment: Option<String>,
}

impl PacketFile {
    /// Begins a file, in place of one that is there.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| Failure::file("create", path, &error))?;
        let writer = PcapNgWriter::with_endianness(Vec::with_capacity(KEPT), Endianness::Little)
            .map_err(|error| fault(path, error))?;
        Ok(Self { path: path.to_owned(), file, writer, interfaces: 0, error: None })
    }

    /// Adds an interface, of whose packets `kept` bytes are kept at most (0 for all); gives its number.
    pub fn interface(&mut self, name: String, kept: u32) -> u32 {
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: kept,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name)),
                // Moments are in nanoseconds.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.write(block);
        self.interfaces += 1;
        self.interfaces - 1
    }

    /// Adds a packet.
    pub fn packet(&mut self, packet: Packet<'_>) {
        let direction = if packet.sent { 2 } else { 1 };
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        options.extend(packet.comment.map(|text| EnhancedPacketOption::Comment(Cow::Owned(text))));
        let block = EnhancedPacketBlock {
            interface_id: packet.interface,
            timestamp: packet.at,
            original_len: packet.whole as u32,
            data: Cow::Borrowed(packet.data),
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

    /// Whether something could not be written.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.error.is_some()
    }

    /// Gives what was written so far to the system.
    pub fn flush(&mut self) {
        if self.error.is_none() {
            self.error = self.file.write_all(self.writer.get_ref()).err().map(PcapError::IoError);
        }
        self.writer.get_mut().clear();
    }

    /// Ends the file.
    ///
    /// # Errors
    /// What went wrong first.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.flush();
        self.error.take().map_or(Ok(()), |error| Err(fault(&self.path, error)))
    }
}

fn fault(path: &Path, error: PcapError) -> Failure {
    match error {
        PcapError::IoError(error) => Failure::file("write", path, &error),
        other => Failure::local(format!("cannot write {}: {other}", path.display())),
    }
}
