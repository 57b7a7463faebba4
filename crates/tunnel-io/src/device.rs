//! The TUN device: reads and writes super-packets.
//!
//! The device puts a virtio header in front of each packet. So the kernel passes up to 64 KiB of one flow in one read,
//! and accepts as much in one `writev`. The device is not persistent: it disappears with this process, together with
//! its addresses, routes and name servers.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anabranch_tunnel::coalesce::{Coalescer, Group};
use anabranch_tunnel::offload::{Segmentation, VirtioHeader};
use bytes::Bytes;
use smallvec::SmallVec;
use tun_rs::{AsyncDevice, DeviceBuilder};

use crate::error::TunnelError;

/// Largest read: the virtio header and a super-packet.
pub const LARGEST_READ: usize = VirtioHeader::LEN + 65_535;
/// Packets that the device queues for a late reader. The kernel's default of 500 loses packets of bulk TCP.
const QUEUE: u32 = 10_000;

/// A TUN device.
pub struct Device {
    io: AsyncDevice,
    name: String,
    /// Whether the kernel splits super-packets: false after it refused one.
    joins: AtomicBool,
    joins_udp: bool,
    dropped: AtomicU64,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Device {
    /// Makes a device with this name and this largest packet, without addresses.
    pub fn create(name: &str, mtu: u16) -> Result<Self, TunnelError> {
        let failed = |error| TunnelError::Device { name: name.to_owned(), error };
        let io = DeviceBuilder::new().name(name).offload(true).mtu(mtu).build_async().map_err(failed)?;
        io.set_tx_queue_len(QUEUE).map_err(failed)?;
        let joins_udp = io.udp_gso();
        let name = name.to_owned();
        Ok(Self { io, name, joins: AtomicBool::new(true), joins_udp, dropped: AtomicU64::new(0) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Packets that the kernel did not take.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// A coalescer for the super-packets that this device can split.
    pub fn coalescer(&self) -> Coalescer {
        Coalescer::new(self.joins_udp)
    }

    /// Waits until something can be read, then calls `take` with each read until nothing is left or it returns false.
    pub async fn read(&self, buffer: &mut [u8], mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        let mut length = self.io.recv(buffer).await?;
        while take(&buffer[..length]) {
            length = match self.io.try_recv(buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// Hands a group to the kernel. Packets that it does not take are dropped and counted, as on any network card.
    pub fn write(&self, group: &Group) {
        let is_joined = group.virtio.segmentation != Segmentation::None;
        if is_joined && !self.joins.load(Ordering::Relaxed) {
            self.write_apart(group);
            return;
        }
        match self.write_vectored(&group.virtio, &group.headers, &group.payloads) {
            Ok(()) => {}
            // Some kernels refuse super-packets that they should take.
            Err(error) if is_joined && error.raw_os_error() == Some(nix::libc::EINVAL) => {
                if self.joins.swap(false, Ordering::Relaxed) {
                    tracing::warn!(
                        device = self.name,
                        "the kernel refuses super-packets; packets are written one by one"
                    );
                }
                self.write_apart(group);
            }
            Err(error) => self.drop_one(&error),
        }
    }

    pub fn write_packet(&self, packet: &[u8]) {
        let header = VirtioHeader::default().to_bytes();
        let slices = [IoSlice::new(&header), IoSlice::new(packet)];
        if let Err(error) = self.io.try_send_vectored(&slices) {
            self.drop_one(&error);
        }
    }

    fn write_vectored(&self, virtio: &VirtioHeader, headers: &[u8], payloads: &[Bytes]) -> io::Result<()> {
        let header = virtio.to_bytes();
        let mut slices: SmallVec<[IoSlice<'_>; 68]> = SmallVec::new();
        slices.push(IoSlice::new(&header));
        if !headers.is_empty() {
            slices.push(IoSlice::new(headers));
        }
        slices.extend(payloads.iter().map(|payload| IoSlice::new(payload)));
        self.io.try_send_vectored(&slices).map(drop)
    }

    /// Splits a group as the kernel would, and writes its packets.
    fn write_apart(&self, group: &Group) {
        let mut whole = group.headers.to_vec();
        group.payloads.iter().for_each(|payload| whole.extend_from_slice(payload));
        let packets = anabranch_tunnel::offload::split(&group.virtio, &whole, &mut bytes::BytesMut::new());
        packets.unwrap_or_default().iter().for_each(|packet| self.write_packet(packet));
    }

    fn drop_one(&self, error: &io::Error) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(device = self.name, %error, "the kernel did not take a packet");
    }
}
