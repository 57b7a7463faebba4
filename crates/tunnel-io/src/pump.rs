//! Packets from the device into entry queues, and from sessions into the device.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anabranch_net::{Clock, Session, SessionError};
use anabranch_tunnel::coalesce::Coalescer;
use anabranch_tunnel::entry::{DATAGRAM_OVERHEAD, Entry, Lane, Parcel, SharedEntry};
use anabranch_tunnel::flow::FlowKey;
use anabranch_tunnel::icmp;
use anabranch_tunnel::offload::{VirtioHeader, split};
use anabranch_tunnel::packet::Header;
use anabranch_tunnel::policy::Policy;
use anabranch_tunnel::queue::QueueLimits;
use anabranch_tunnel::rewrite::{clamp_segment_size, fragmented, fragmented_v6};
use bytes::{Bytes, BytesMut};

use crate::device::Device;
use crate::status::{FlowBook, Sent};

/// Datagrams taken from a session in one go.
const BATCH: usize = 256;

/// Counters of one direction.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub packets: AtomicU64,
    pub bytes: AtomicU64,
    /// Packets that were not allowed, and data that were not packets.
    pub refused: AtomicU64,
}

impl Traffic {
    pub(crate) fn count(&self, bytes: usize) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// State for the other end of a session: its entry queue and its counters.
pub(crate) struct Link {
    pub entry: SharedEntry<Bytes>,
    pub flows: Mutex<FlowBook>,
    pub sent: Traffic,
    pub received: Traffic,
    /// Largest inner packet that its paths carry.
    pub mtu: AtomicU16,
    /// Identification of the next IPv6 packet that becomes fragments; begins anywhere.
    fragments: AtomicU32,
    policy: RwLock<Policy>,
    session: Mutex<Option<Session>>,
    clock: Clock,
    /// Seed of the hash that numbers flows.
    seed: u64,
}

impl Link {
    pub(crate) fn new(clock: Clock, (seed, mtu): (u64, u16)) -> Arc<Self> {
        Arc::new(Self {
            entry: SharedEntry::new(QueueLimits::default()),
            flows: Mutex::default(),
            sent: Traffic::default(),
            received: Traffic::default(),
            mtu: AtomicU16::new(mtu),
            fragments: AtomicU32::new(clock.now().as_nanos() as u32),
            policy: RwLock::default(),
            session: Mutex::default(),
            clock,
            seed,
        })
    }

    /// How packets to the other end travel from now on.
    pub(crate) fn set_policy(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lane(&self, header: &Header, packet: &[u8]) -> Lane {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).lane_of(header, packet)
    }

    /// Sends through this session from now on.
    pub(crate) fn attach(&self, session: &Session) {
        session.set_datagram_source(Box::new(self.entry.clone()));
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        session.datagrams_wait();
    }

    /// Detaches the ended session. Waiting packets use the next one.
    pub(crate) fn detach(&self) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Memory of the packets that wait for the other end, in bytes.
    pub(crate) fn waiting(&self) -> usize {
        let mut waiting = 0;
        self.entry.look(|entry| waiting = entry.memory());
        waiting
    }

    /// Drops all packets that wait, and forgets all flows.
    pub(crate) fn clear(&self) {
        self.entry.with(Entry::clear);
        *self.flows.lock().unwrap_or_else(PoisonError::into_inner) = FlowBook::default();
    }

    pub(crate) fn session(&self) -> Option<Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues packets of one flow. Returns an answer for the sender if they are too large.
    fn push(&self, header: &Header, packets: &[Bytes], lane: Lane) -> Option<Vec<u8>> {
        let (first, now) = (packets.first()?, self.clock.now());
        let mtu = self.mtu.load(Ordering::Relaxed);
        let parts;
        let packets = if first.len() <= usize::from(mtu) {
            packets
        } else if let Some(all) = in_parts(packets, mtu, &self.fragments) {
            parts = all;
            &parts[..]
        } else {
            self.sent.refused.fetch_add(packets.len() as u64, Ordering::Relaxed);
            return icmp::too_big(first, mtu);
        };
        let key = FlowKey::of(header, first);
        let flow = key.hash(self.seed);
        let bytes = packets.iter().map(Bytes::len).sum();
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.note(now, flow, &key, Sent { lane, packets: packets.len(), bytes });
        drop(flows);
        self.sent.packets.fetch_add(packets.len() as u64, Ordering::Relaxed);
        self.sent.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let wake = self.entry.with(|entry| {
            for packet in packets {
                entry.push(now, flow, Parcel { data: packet.clone(), lane });
            }
        });
        if wake && let Some(session) = &*self.session.lock().unwrap_or_else(PoisonError::into_inner) {
            session.datagrams_wait();
        }
        None
    }
}

/// Reads the device until it fails; `route` names the link for a packet.
pub(crate) async fn from_device(
    device: &Device,
    route: impl Fn(&Header) -> Option<Arc<Link>>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; crate::device::LARGEST_READ];
    let mut arena = BytesMut::new();
    loop {
        let mut reads = 0;
        let result = device.read(&mut buffer, |read| {
            take(read, (device, &mut arena), &route);
            reads += 1;
            reads < BATCH
        });
        result.await?;
        // Give the sessions' tasks a turn even while the device always has packets.
        tokio::task::yield_now().await;
    }
}

fn take(
    read: &[u8],
    (device, arena): (&Device, &mut BytesMut),
    route: &impl Fn(&Header) -> Option<Arc<Link>>,
) {
    let Some((virtio, packet)) = VirtioHeader::read(read) else { return };
    let Some(header) = Header::read(packet) else { return };
    let Some(link) = route(&header) else { return };
    let lane = link.lane(&header, packet);
    let Some(mut packets) = split(&virtio, packet, arena) else { return };
    if packets.len() == 1 && is_syn(&header, &packets[0]) {
        packets[0] = clamped(&packets[0], link.mtu.load(Ordering::Relaxed));
    }
    if let Some(answer) = link.push(&header, &packets, lane) {
        device.write_packet(&answer);
    }
}

/// Which packets out of a tunnel are let in.
pub(crate) trait Gate {
    /// Judges a packet by its addresses.
    fn allow(&self, header: &Header) -> bool;

    /// Judges a packet that its addresses do not allow: true for an ICMP error that this end may expect.
    fn allow_error(&self, _header: &Header, _packet: &[u8]) -> bool {
        false
    }
}

impl<F: Fn(&Header) -> bool> Gate for F {
    fn allow(&self, header: &Header) -> bool {
        self(header)
    }
}

/// Passes the datagrams of a session that the gate allows to the device, until the session ends.
pub(crate) async fn to_device(
    (device, link): (&Device, &Link),
    session: &Session,
    gate: impl Gate,
) -> SessionError {
    let mut arrived = Vec::with_capacity(BATCH);
    let mut coalescer: Coalescer = device.coalescer();
    loop {
        if let Err(error) = session.recv_datagrams(&mut arrived, BATCH).await {
            return error;
        }
        // Packets of a batch are mostly of one flow: its addresses are looked up once.
        let mut allowed = None;
        for datagram in arrived.drain(..) {
            let packet = datagram.data;
            let header = Header::read(&packet).filter(|header| {
                let ends = (header.source, header.destination);
                let is_allowed = allowed == Some(ends) || gate.allow(header);
                allowed = is_allowed.then_some(ends);
                header.length == packet.len() && (is_allowed || gate.allow_error(header, &packet))
            });
            let Some(header) = header else {
                link.received.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            link.received.count(packet.len());
            let packet = if is_syn(&header, &packet) {
                clamped(&packet, link.mtu.load(Ordering::Relaxed))
            } else {
                packet
            };
            coalescer.push(packet);
        }
        coalescer.drain().for_each(|group| device.write(&group));
        // While packets always wait, the session's other work gets its turn, too.
        tokio::task::coop::consume_budget().await;
    }
}

/// Packets of at most `mtu` bytes; `None` if one must not be fragmented.
fn in_parts(packets: &[Bytes], mtu: u16, ids: &AtomicU32) -> Option<Vec<Bytes>> {
    let v6 = |packet: &Bytes| fragmented_v6(packet, mtu, ids.fetch_add(1, Ordering::Relaxed));
    let each = packets.iter().map(|packet| match packet.len() <= usize::from(mtu) {
        true => Some(vec![packet.clone()]),
        false => fragmented(packet, mtu).or_else(|| v6(packet)),
    });
    each.collect::<Option<Vec<_>>>().map(|parts| parts.concat())
}

fn is_syn(header: &Header, packet: &[u8]) -> bool {
    header.protocol == 6 && packet.get(header.payload + 13).is_some_and(|flags| flags & 2 != 0)
}

fn clamped(packet: &[u8], mtu: u16) -> Bytes {
    let mut copy = BytesMut::from(packet);
    clamp_segment_size(&mut copy, mtu);
    copy.freeze()
}

/// The largest inner packet that the paths carry now. The widest path counts: packets too large for a narrow path take the
/// others. A path that has failed, or is kept for later, carries none: packets that only fit there would wait in vain.
pub(crate) fn inner_mtu(session: &Session, most: u16) -> Option<u16> {
    let paths = session.paths();
    let in_use = paths.iter().filter(|path| !matches!(path.standing, anabranch_net::Standing::Idle(_)));
    let widest = in_use.map(|path| path.mtu).max()?;
    let inner = widest.saturating_sub(DATAGRAM_OVERHEAD as u16).min(most);
    Some(inner.max(576))
}
