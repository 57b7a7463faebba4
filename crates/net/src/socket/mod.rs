//! A UDP socket for one local address, bound to its interface, that sends and receives in batches.
//!
//! - **Bound to its interface** by `SO_BINDTODEVICE`, since with two default routes a source address does not choose the
//!   interface. Since Linux 5.7 this needs no privilege on an unbound socket. If the system refuses, routes decide, and
//!   [`UdpSocket::is_bound_to_interface`] is false.
//! - **Never fragmented**: a datagram too long for the path is dropped, as path MTU probes require.
//! - **Segmentation offload is given up per destination**: after one refusal, quinn-udp turns it off for the whole socket.
//! - **ECN marks stay**: after any refusal, quinn-udp sends IPv4 without marks. If the system refuses the datagram without a mark
//!   too, the mark was not the cause, and a new quinn-udp state is used.
//! - **Batches of equal datagrams end with one of one byte** where the kernel damages them otherwise (`kernel.rs`).

use std::collections::BTreeSet;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use anabranch_engine::Ecn;
use anabranch_wire::Span;
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;

use crate::tap::{Seen, Taps};

mod kernel;
mod many;
mod refusals;
mod waits;

use refusals::Refusals;
pub(crate) use refusals::SendRefusal;
use waits::Waits;

/// Buffer size requested for each direction, in bytes; the system may grant less.
pub const BUFFER_SIZE: usize = 4 << 20;

/// Most destinations remembered for which segmentation offload was refused.
const MAX_REFUSALS: usize = 1024;

/// The address and interface to bind to.
#[derive(Clone, Debug)]
pub struct BindTo {
    /// The local address; port 0 for any free one.
    pub address: SocketAddr,
    /// The interface to stay on, if any.
    pub interface: Option<String>,
}

/// A bound socket.
#[derive(Debug)]
pub struct UdpSocket {
    io: tokio::net::UdpSocket,
    /// Replaced if it has wrongly disabled marks.
    state: RwLock<UdpSocketState>,
    local: SocketAddr,
    bound_to_interface: bool,
    no_offload: Mutex<BTreeSet<SocketAddr>>,
    /// True once `no_offload` has an entry; most sockets have none and need not lock it.
    any_refused: AtomicBool,
    /// The kernel damages batches of equal datagrams.
    needs_tail: bool,
    counters: Counters,
    refusals: Refusals,
    waits: Waits,
    taps: Taps,
}

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    send_calls: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    receive_calls: AtomicU64,
    unreachable: AtomicU64,
    too_long: AtomicU64,
    forbidden: AtomicU64,
    failed: AtomicU64,
}

/// Counters of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketStats {
    /// Datagrams handed to the system.
    pub sent: u64,
    /// System calls that sent them.
    pub send_calls: u64,
    /// Datagrams received.
    pub received: u64,
    /// Their bytes of UDP payload.
    pub received_bytes: u64,
    /// System calls that received them.
    pub receive_calls: u64,
    /// Datagrams for which the system knew no route.
    pub unreachable: u64,
    /// Datagrams too long for the interface or the path.
    pub too_long: u64,
    /// Datagrams that this machine's firewall refused.
    pub forbidden: u64,
    /// Datagrams that the system refused for another reason.
    pub failed: u64,
    /// Bytes of the send and receive buffer that the system granted.
    pub buffers: (usize, usize),
}

/// One or more datagrams of equal size (the last may be shorter) to one destination.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The destination.
    pub remote: SocketAddr,
    /// All datagrams, one after the other.
    pub contents: &'a [u8],
    /// Size of each but the last.
    pub segment: usize,
    /// Their ECN mark.
    pub ecn: Ecn,
}

/// The contents of a receive buffer: datagrams from one sender, `stride` bytes each, the last perhaps shorter.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// The sender.
    pub remote: SocketAddr,
    /// Bytes in the buffer.
    pub len: usize,
    /// Size of each datagram but the last.
    pub stride: usize,
    /// Their ECN mark.
    pub ecn: Ecn,
    /// How long they had waited in the socket, where the system reports that.
    pub waited: Span,
}

impl Batch<'_> {
    fn datagrams(&self) -> u64 {
        self.contents.len().div_ceil(self.segment.max(1)) as u64
    }
}

impl UdpSocket {
    /// Binds a socket.
    ///
    /// # Errors
    /// Those of the operating system; `AddrInUse` if the port is taken.
    pub fn bind(to: &BindTo) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to.address), Type::DGRAM, Some(Protocol::UDP))?;
        if to.address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        let bound_to_interface = to.interface.as_deref().is_some_and(|name| bind_to_interface(&socket, name));
        socket.bind(&to.address.into())?;
        // The system may grant less without an error; the counters show the real size.
        socket.set_recv_buffer_size(BUFFER_SIZE)?;
        socket.set_send_buffer_size(BUFFER_SIZE)?;
        socket.set_nonblocking(true)?;
        let std: std::net::UdpSocket = socket.into();
        let state = UdpSocketState::new((&std).into())?;
        told_less(&std, to.address)?;
        let io = tokio::net::UdpSocket::from_std(std)?;
        let local = without_zone(io.local_addr()?);
        Ok(Self {
            io,
            state: RwLock::new(state),
            local,
            bound_to_interface,
            no_offload: Mutex::default(),
            any_refused: AtomicBool::new(false),
            needs_tail: kernel::damages_equal_batches(&kernel::release()),
            counters: Counters::default(),
            refusals: Refusals::default(),
            waits: Waits::new(),
            taps: Taps::default(),
        })
    }

    /// Shows all sent and received datagrams to these taps.
    pub(crate) fn tapped(self, taps: Taps) -> Self {
        Self { taps, ..self }
    }

    /// The address it is bound to, with its port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// True if packets leave by its interface, whatever the routes are.
    pub fn is_bound_to_interface(&self) -> bool {
        self.bound_to_interface
    }

    /// How many datagrams a [`Batch`] to `remote` may hold.
    pub fn max_segments(&self, remote: SocketAddr) -> usize {
        // Read at the start, because after the first refusal quinn-udp does not know the system's limits any more.
        let refused = self.any_refused.load(Ordering::Relaxed)
            && self.no_offload.lock().expect("no panic while held").contains(&remote);
        if refused { 1 } else { MAX_SEGMENTS }
    }

    /// Sends a batch with one system call, or one for each datagram where the system requires it. A datagram that the
    /// system refuses is counted and dropped, as if the network had lost it.
    ///
    /// # Errors
    /// Only `WouldBlock`, if the socket's buffer is full. Nothing was sent then; wait for [`UdpSocket::writable`].
    pub fn send(&self, batch: &Batch<'_>) -> io::Result<()> {
        let result = self.try_send(batch, batch.contents);
        let count = batch.datagrams();
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(error) if count > 1 && is_offload_refusal(&error) => self.send_singly(batch),
            other => {
                if other.is_ok() {
                    self.show_sent(batch, batch.contents);
                }
                self.note(batch.remote, count, other);
                Ok(())
            }
        }
    }

    fn show_sent(&self, batch: &Batch<'_>, contents: &[u8]) {
        let Batch { remote, segment: stride, ecn, .. } = *batch;
        self.taps.show(|| Seen { sent: true, local: self.local, remote, ecn, contents, stride });
    }

    /// Waits until the socket may take datagrams again.
    pub async fn writable(&self) -> io::Result<()> {
        self.io.writable().await
    }

    /// Waits until datagrams may be there.
    pub async fn readable(&self) -> io::Result<()> {
        self.io.readable().await
    }

    /// Receives into `buffers`. Returns how many were filled, as described in `filled`.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing. Other errors concern one datagram (an ICMP message) or the system.
    pub fn receive(&self, buffers: &mut [IoSliceMut<'_>], filled: &mut [Received]) -> io::Result<usize> {
        let mut metas = [RecvMeta::default(); quinn_udp::BATCH_SIZE];
        let most = buffers.len().min(filled.len()).min(metas.len());
        let count = self.io.try_io(Interest::READABLE, || {
            let state = self.state.read().expect("no panic while held");
            state.recv((&self.io).into(), &mut buffers[..most], &mut metas[..most])
        })?;
        let reading = self.waits.reading();
        let (mut datagrams, mut bytes) = (0, 0);
        for (meta, filled) in metas[..count].iter().zip(filled) {
            let stride = meta.stride.max(1);
            datagrams += meta.len.div_ceil(stride) as u64;
            bytes += meta.len as u64;
            let (remote, ecn) = (without_zone(meta.addr), ecn_of(meta.ecn));
            *filled = Received { remote, len: meta.len, stride, ecn, waited: reading.since(meta.timestamp) };
        }
        for (meta, buffer) in metas[..count].iter().zip(buffers.iter()) {
            let (ecn, stride) = (ecn_of(meta.ecn), meta.stride.max(1));
            let contents = &buffer[..meta.len.min(buffer.len())];
            let (local, remote) = (self.local, without_zone(meta.addr));
            self.taps.show(|| Seen { sent: false, local, remote, ecn, contents, stride });
        }
        self.counters.received.fetch_add(datagrams, Ordering::Relaxed);
        self.counters.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters.receive_calls.fetch_add(1, Ordering::Relaxed);
        Ok(count)
    }

    /// Its counters.
    pub fn stats(&self) -> SocketStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let socket = socket2::SockRef::from(&self.io);
        SocketStats {
            sent: load(&self.counters.sent),
            send_calls: load(&self.counters.send_calls),
            received: load(&self.counters.received),
            received_bytes: load(&self.counters.received_bytes),
            receive_calls: load(&self.counters.receive_calls),
            unreachable: load(&self.counters.unreachable),
            too_long: load(&self.counters.too_long),
            forbidden: load(&self.counters.forbidden),
            failed: load(&self.counters.failed),
            buffers: (
                socket.send_buffer_size().unwrap_or_default(),
                socket.recv_buffer_size().unwrap_or_default(),
            ),
        }
    }

    /// Why the system refused the last datagram to `remote`, if it did.
    pub(crate) fn refusal(&self, remote: SocketAddr) -> Option<SendRefusal> {
        self.refusals.of(remote)
    }

    fn try_send(&self, batch: &Batch<'_>, contents: &[u8]) -> io::Result<()> {
        let with_tail;
        let contents = if self.needs_tail && kernel::is_equal_batch(contents, batch.segment) {
            // Too short for a header, so the peer drops it.
            with_tail = [contents, b"\0"].concat();
            &with_tail[..]
        } else {
            contents
        };
        let transmit = Transmit {
            destination: batch.remote,
            ecn: codepoint_of(batch.ecn),
            contents,
            segment_size: (contents.len() > batch.segment).then_some(batch.segment),
            src_ip: None,
        };
        self.counters.send_calls.fetch_add(1, Ordering::Relaxed);
        let send = || {
            let state = self.state.read().expect("no panic while held");
            state.try_send((&self.io).into(), &transmit)
        };
        // Try without asking the runtime, which does not know that a new socket is writable.
        let mut result = send();
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            // Informs the runtime, so that `writable` waits. It sees another attempt, since room may have come.
            result = self.io.try_io(Interest::WRITABLE, send);
        }
        if matches!(&result, Err(error) if is_offload_refusal(error)) {
            self.begin_anew();
        }
        result
    }

    /// A refused datagram was refused without a mark, too.
    fn begin_anew(&self) {
        let anew = UdpSocketState::new((&self.io).into()).and_then(|state| {
            told_less(&self.io, self.local)?;
            *self.state.write().expect("no panic while held") = state;
            Ok(())
        });
        if let Err(error) = anew {
            tracing::debug!(%error, "datagrams leave without marks");
        }
    }

    /// Sends the datagrams of a refused batch one by one. Those that do not fit into the socket's buffer are lost. If
    /// the system takes them like this, it cannot cut batches for this destination, which is remembered. Otherwise the
    /// cause was another: Linux refuses a batch too when the interface became too small or lost its address.
    fn send_singly(&self, batch: &Batch<'_>) -> io::Result<()> {
        let (mut is_taken, mut is_too_long) = (false, false);
        for datagram in batch.contents.chunks(batch.segment) {
            let result = self.try_send(batch, datagram);
            match &result {
                Ok(()) => {
                    is_taken = true;
                    self.show_sent(batch, datagram);
                }
                Err(error) => is_too_long |= quinn_udp::is_msg_size_err(error),
            }
            self.note(batch.remote, 1, result);
        }
        if is_taken && !is_too_long {
            self.give_up_offload(batch.remote);
        }
        Ok(())
    }

    fn give_up_offload(&self, remote: SocketAddr) {
        tracing::debug!(%remote, "no segmentation offload");
        let mut refused = self.no_offload.lock().expect("no panic while held");
        if refused.len() >= MAX_REFUSALS {
            refused.clear();
        }
        refused.insert(remote);
        drop(refused);
        self.any_refused.store(true, Ordering::Relaxed);
    }

    fn note(&self, remote: SocketAddr, datagrams: u64, result: io::Result<()>) {
        use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
        let counter = match result {
            Ok(()) => {
                self.refusals.on_sent(self.local.ip(), remote);
                &self.counters.sent
            }
            Err(error) if quinn_udp::is_msg_size_err(&error) => {
                self.refusals.on_refused(self.local.ip(), remote, SendRefusal::TooLong);
                &self.counters.too_long
            }
            Err(error) if matches!(error.kind(), NetworkUnreachable | HostUnreachable | NetworkDown) => {
                &self.counters.unreachable
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.refusals.on_refused(self.local.ip(), remote, SendRefusal::Firewall);
                &self.counters.forbidden
            }
            Err(_) => &self.counters.failed,
        };
        counter.fetch_add(datagrams, Ordering::Relaxed);
    }
}

/// Most datagrams that the system cuts out of one send (Linux: `UDP_MAX_SEGMENTS` is 64 or more).
pub const MAX_SEGMENTS: usize = 64;

/// Pause after a receive error that would otherwise repeat at once.
pub(crate) const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// True for receive errors that concern one datagram; receiving continues.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

fn is_offload_refusal(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    matches!(error.raw_os_error(), Some(EIO)) || error.kind() == io::ErrorKind::InvalidInput
}

fn codepoint_of(ecn: Ecn) -> Option<EcnCodepoint> {
    match ecn {
        Ecn::NotEct => None,
        Ecn::Ect0 => Some(EcnCodepoint::Ect0),
        Ecn::Ect1 => Some(EcnCodepoint::Ect1),
        Ecn::Ce => Some(EcnCodepoint::Ce),
    }
}

fn ecn_of(mark: Option<EcnCodepoint>) -> Ecn {
    match mark {
        None => Ecn::NotEct,
        Some(EcnCodepoint::Ect0) => Ecn::Ect0,
        Some(EcnCodepoint::Ect1) => Ecn::Ect1,
        Some(EcnCodepoint::Ce) => Ecn::Ce,
    }
}

fn bind_to_interface(socket: &Socket, name: &str) -> bool {
    let result = socket.bind_device(Some(name.as_bytes()));
    if let Err(error) = &result {
        tracing::warn!(
            interface = name,
            %error,
            "cannot bind to the interface; routes decide where packets from its address leave"
        );
    }
    result.is_ok()
}

/// Turns off control messages that quinn-udp requests and this crate does not use: receive times and the local address. With
/// receive times, quinn-udp's buffer is too small for GRO's segment size and the ECN mark, and marks are lost.
fn told_less(socket: &impl std::os::fd::AsFd, local: SocketAddr) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};

    setsockopt(socket, sockopt::ReceiveTimestampns, &false)?;
    match local {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &false)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &false)?,
    }
    Ok(())
}

/// The address without the zone of a link-local one. The zone is always the interface of the socket, so routes and
/// tickets do not have it.
pub(crate) fn without_zone(mut address: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut address {
        v6.set_scope_id(0);
    }
    address
}

/// Adds to an error which port is taken, and what to do.
pub(crate) fn explain_bind_error(error: &io::Error, address: SocketAddr) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "UDP port {} of {} is taken by another program: stop it, or choose another port (0 for any)",
            address.port(),
            address.ip()
        ),
        io::ErrorKind::PermissionDenied => format!(
            "no permission to use UDP port {} of {}: ports below 1024 need privileges",
            address.port(),
            address.ip()
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!("{} is not an address of this machine", shown(address.ip()))
        }
        _ => format!("cannot use UDP port {} of {}: {error}", address.port(), address.ip()),
    };
    io::Error::new(error.kind(), what)
}

fn shown(address: IpAddr) -> String {
    address.to_string()
}

#[cfg(test)]
mod tests;
