//! One UDP socket of the emulation: receives batches with time stamps and ECN, and sends packets.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use mio::net::UdpSocket;
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

use crate::clock::Clock;
use crate::datagram::{Datagram, Received};

/// Buffer size requested from the kernel for each socket, so that a late wake-up loses nothing; it may grant less.
const SOCKET_BUFFER: usize = 8 << 20;
/// Room for one receive of the largest size, which may be several joined datagrams.
const SLOT: usize = 1 << 16;
/// The most bytes joined in one send: what fits in one IP packet with its headers.
const MAX_JOINED: usize = 65_000;

/// A bound, non-blocking socket.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) socket: UdpSocket,
    state: UdpSocketState,
}

impl Port {
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&address.into())?;
        // A smaller buffer only costs packets under load.
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
        let state = UdpSocketState::new((&socket).into())?;
        make_room_for_ecn(&socket, address)?;
        Ok(Self { socket: UdpSocket::from_std(socket.into()), state })
    }

    /// Receives one batch; `Ok(false)` when there was nothing to receive.
    pub(crate) fn receive(
        &self,
        clock: &Clock,
        buffers: &mut Buffers,
        mut take: impl FnMut(Received),
    ) -> io::Result<bool> {
        let mut slots = buffers.bytes.chunks_exact_mut(SLOT).map(IoSliceMut::new);
        let mut slots: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| slots.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let count = match self.state.recv((&self.socket).into(), &mut slots, &mut buffers.metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let reading = clock.read();
        for (slot, meta) in slots.iter().zip(&buffers.metas).take(count) {
            let at = reading.time_of(meta.timestamp);
            let mut take =
                |bytes: &[u8]| take(Received { at, from: meta.addr, bytes: bytes.into(), ecn: meta.ecn });
            match meta.len {
                0 => take(&[]),
                length => slot[..length].chunks(meta.stride.max(1)).for_each(take),
            }
        }
        Ok(true)
    }

    /// Sends a run of datagrams, in one system call where the kernel can split them ([`joinable`](Self::joinable)); returns how
    /// many could not be sent.
    pub(crate) fn send(&self, to: SocketAddr, run: &[Datagram], joined: &mut Vec<u8>) -> u64 {
        if let [first, _, ..] = run {
            joined.clear();
            run.iter().for_each(|datagram| joined.extend_from_slice(&datagram.bytes));
            match self.transmit(to, joined, first.ecn, Some(first.bytes.len())) {
                Ok(()) => return 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return run.len() as u64,
                // Perhaps only joining failed.
                Err(_) => {}
            }
        }
        let unsent =
            run.iter().filter(|datagram| self.transmit(to, &datagram.bytes, datagram.ecn, None).is_err());
        unsent.count() as u64
    }

    /// How many datagrams from the first on fit in one send: those of one client, mark and size, and one shorter one.
    pub(crate) fn joinable(&self, datagrams: &[Datagram]) -> usize {
        let Some(first) = datagrams.first() else { return 0 };
        let size = first.bytes.len();
        let most = self.state.max_gso_segments().min(MAX_JOINED.checked_div(size).unwrap_or(1)).max(1);
        let alike = |other: &&Datagram| other.client == first.client && other.ecn == first.ecn;
        let same_size = |other: &&Datagram| alike(other) && other.bytes.len() == size;
        let count = datagrams.iter().take(most).take_while(same_size).count();
        let shorter = |other: &&Datagram| alike(other) && (1..size).contains(&other.bytes.len());
        let one_more = count < most && datagrams.get(count).as_ref().is_some_and(shorter);
        count + usize::from(one_more)
    }

    fn transmit(
        &self,
        destination: SocketAddr,
        contents: &[u8],
        ecn: Option<EcnCodepoint>,
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip: None };
        self.state.try_send((&self.socket).into(), &transmit)
    }
}

/// Receive buffers, shared by all ports.
#[derive(Debug)]
pub(crate) struct Buffers {
    bytes: Vec<u8>,
    metas: [RecvMeta; BATCH_SIZE],
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; SLOT * BATCH_SIZE], metas: [RecvMeta::default(); BATCH_SIZE] }
    }
}

/// Asks the kernel not to report the destination address, which is known. Without it there is room for the time stamp, the
/// size of joined datagrams and the ECN mark; otherwise the mark would be missing.
fn make_room_for_ecn(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    if address.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &false)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &false)?;
    }
    Ok(())
}
