//! Encodes the engine's messages, seals them in place, and sends them in batches.
//!
//! Packets of equal size over one route, the last perhaps shorter, become one buffer and one system call. Batches that a socket
//! cannot take wait in order. Few wait, since congestion windows limit sending. Keys are locked while a batch is sealed, not
//! while the system sends it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use anabranch_engine::{Ecn, Route, Transmit};
use anabranch_secure::{Envelope, Protection, SealError};
use anabranch_wire::{
    Frame, Fsn, Header, Kind, MarkedFrame, Packet, PathId, Pid, TAG_LEN, Time, encode_frames,
};
use bytes::{BufMut, Bytes};
use smallvec::SmallVec;

use crate::endpoint::sockets::{BoundSocket, Sockets};
use crate::fault::lock;
use crate::resets::Peer;
use crate::socket::Batch;

/// Most bytes in one batch: the system accepts it as one large UDP datagram and splits it.
const MAX_BATCH: usize = 64_800;

/// Most bytes that wait for one socket; more are dropped, as in a full queue.
const MAX_WAITING: usize = 1 << 20;

/// Type of service of packets without a datagram; a datagram brings its own.
const STREAM_TOS: u8 = 8;

/// The hop limit of packets: relays drop packets that have passed more relays than a chain may have.
const MOST_RELAYS: u8 = 4;

/// Something to send.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A packet from the engine, to be sealed.
    Packet(Transmit<Bytes>),
    /// A complete handshake message.
    Ready {
        /// Its destination.
        route: Route,
        /// The whole datagram.
        bytes: Vec<u8>,
    },
}

impl Outgoing {
    fn path(&self) -> Option<PathId> {
        match self {
            Self::Packet(transmit) => Some(transmit.path),
            Self::Ready { .. } => None,
        }
    }
}

/// Most pairs of address and PID remembered of a session, enough for several on each of its paths.
const MOST_PEERS: usize = 64;

/// The result of sending a queue.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) peers: NewPeers,
    /// This end's half of a fresh key exchange is due.
    pub(crate) wants_exchange: bool,
}

/// Pairs used for the first time, and older ones forgotten in exchange.
#[derive(Debug, Default)]
pub(crate) struct NewPeers {
    pub(crate) used: SmallVec<[Peer; 2]>,
    pub(crate) in_place_of: SmallVec<[Peer; 2]>,
}

/// The sending side of one session.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    blocked: Vec<Blocked>,
    sockets: SmallVec<[Arc<BoundSocket>; 4]>,
    /// The latest [`MOST_PEERS`] pairs from which resets for this session may come.
    peers: SmallVec<[Peer; 4]>,
    acked: Acked,
}

/// Acknowledged packets that the keys wait for.
#[derive(Debug, Default)]
struct Acked {
    /// The keys wait for an acknowledgement.
    is_awaited: bool,
    /// Then the highest acknowledged number of each path. The list is reused, since each acknowledgement fills it.
    highest: Vec<(PathId, Fsn)>,
}

/// Memory for one pass of a pump. It belongs to the thread, so that idle sessions use none.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Filled from the engine, emptied by [`Outbox::send`].
    pub(crate) queue: Vec<Outgoing>,
    /// Indices into the queue, sorted by path.
    order: Vec<usize>,
    buffer: Vec<u8>,
}

/// Batches that a socket could not take yet.
#[derive(Debug)]
struct Blocked {
    socket: Arc<BoundSocket>,
    waiting: VecDeque<(Head, Vec<u8>)>,
    bytes: usize,
}

/// The properties shared by all packets of a batch.
#[derive(Clone, Copy, Debug)]
struct Head {
    route: Route,
    segment: usize,
    ecn: Ecn,
}

/// The batch being filled.
#[derive(Clone, Copy, Debug)]
struct Open {
    head: Head,
    /// How many packets may still be added.
    room: usize,
    /// The PID at the first relay, on a path through relays.
    forward: Option<Pid>,
}

impl Outbox {
    /// Drops waiting batches, as if the network had lost them.
    pub(crate) fn clear(&mut self) {
        self.blocked.clear();
        self.sockets.clear();
    }

    /// The sockets for which batches wait.
    pub(crate) fn blocked_on(&self) -> SmallVec<[Arc<BoundSocket>; 2]> {
        self.blocked.iter().map(|blocked| blocked.socket.clone()).collect()
    }

    /// How many sockets batches wait for.
    pub(crate) fn blocked_count(&self) -> usize {
        self.blocked.len()
    }

    /// The addresses and PIDs used last.
    pub(crate) fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// Drops sockets whose addresses were removed, so that their ports are free if the addresses return.
    pub(crate) fn forget_gone(&mut self) {
        self.sockets.retain(|socket| !socket.is_gone());
        self.blocked.retain(|blocked| !blocked.socket.is_gone());
    }

    /// Takes the highest acknowledged number of each path, which the next packet may need for its key.
    pub(crate) fn note_acked(&mut self, acked: impl Iterator<Item = (PathId, Fsn)>) {
        if self.acked.is_awaited {
            self.acked.highest.clear();
            self.acked.highest.extend(acked);
        }
    }

    /// Seals and sends everything in the queue.
    ///
    /// # Errors
    /// If the keys may not seal any more; then the session must end.
    pub(crate) fn send(
        &mut self,
        sockets: &Sockets,
        protection: &Mutex<Option<Protection>>,
        (now, scratch): (Time, &mut Scratch),
    ) -> Result<Sent, SealError> {
        let Scratch { queue, order, buffer } = scratch;
        // Sort by path: a scheduler that spreads packets would cause many small batches. Order matters only within a
        // path, and a stable sort keeps it.
        order.clear();
        order.extend(0..queue.len());
        order.sort_by_key(|at| queue[*at].path());
        buffer.clear();
        let acked = std::mem::take(&mut self.acked);
        let mut keys = Keys { protection, held: None, phase: false, wants_exchange: false, acked, now };
        let result = self.send_in_order(sockets, order.iter().map(|at| &queue[*at]), (&mut keys, buffer));
        self.acked = keys.acked;
        queue.clear();
        Ok(Sent { peers: result?, wants_exchange: keys.wants_exchange })
    }

    fn send_in_order<'a>(
        &mut self,
        sockets: &Sockets,
        queue: impl Iterator<Item = &'a Outgoing>,
        (keys, buffer): (&mut Keys<'_>, &mut Vec<u8>),
    ) -> Result<NewPeers, SealError> {
        let mut new = NewPeers::default();
        let mut open: Option<Open> = None;
        for outgoing in queue {
            let transmit = match outgoing {
                Outgoing::Packet(transmit) => transmit,
                Outgoing::Ready { route, bytes } => {
                    self.dispatch(sockets, open.take(), (keys, buffer));
                    buffer.extend_from_slice(bytes);
                    let head = Head { route: *route, segment: bytes.len(), ecn: Ecn::NotEct };
                    self.dispatch(sockets, Some(Open { head, room: 0, forward: None }), (keys, buffer));
                    continue;
                }
            };
            let Some(packet) = transmit.message.packet() else { continue };
            if open.as_ref().is_some_and(|open| !open.takes(transmit, buffer.len())) {
                self.dispatch(sockets, open.take(), (keys, buffer));
            }
            let open = match &mut open {
                Some(open) => open,
                none => none.insert(self.begin(sockets, transmit)),
            };
            let pid = open.forward.unwrap_or(transmit.pid);
            self.note_peer((transmit.route.remote, pid), &mut new);
            keys.append(buffer, (transmit, pid), packet)?;
            open.room = if transmit.size < open.head.segment { 0 } else { open.room - 1 };
        }
        self.dispatch(sockets, open, (keys, buffer));
        Ok(new)
    }

    /// Tries to send waiting batches again.
    pub(crate) fn retry(&mut self) {
        for blocked in &mut self.blocked {
            while let Some((head, contents)) = blocked.waiting.front() {
                if !head.send(&blocked.socket, contents) {
                    break;
                }
                blocked.bytes -= contents.len();
                blocked.waiting.pop_front();
            }
        }
        self.blocked.retain(|blocked| !blocked.waiting.is_empty());
    }

    fn begin(&mut self, sockets: &Sockets, transmit: &Transmit<Bytes>) -> Open {
        let head = Head { route: transmit.route, segment: transmit.size, ecn: mark(transmit.ecn) };
        let socket = self.socket(sockets, transmit.route.socket);
        let room = socket.map_or(1, |socket| socket.udp.max_segments(transmit.route.remote));
        let forward = sockets.relayed.find(transmit.route.socket).map(|via| via.chain.forward);
        Open { head, room, forward }
    }

    /// Sends the batch in the buffer, or queues it.
    fn dispatch(
        &mut self,
        sockets: &Sockets,
        open: Option<Open>,
        (keys, buffer): (&mut Keys<'_>, &mut Vec<u8>),
    ) {
        keys.release();
        let Some(Open { head, .. }) = open else { return };
        // Packets for a removed socket count as lost.
        if let Some(socket) = self.socket(sockets, head.route.socket) {
            let waits = self.blocked.iter().position(|blocked| blocked.socket.id == socket.id);
            match waits {
                Some(index) => self.blocked[index].push(head, buffer),
                None if head.send(&socket, buffer) => {}
                None => {
                    let mut blocked = Blocked { socket, waiting: VecDeque::new(), bytes: 0 };
                    blocked.push(head, buffer);
                    self.blocked.push(blocked);
                }
            }
        }
        buffer.clear();
    }

    fn socket(&mut self, sockets: &Sockets, id: u32) -> Option<Arc<BoundSocket>> {
        let id = sockets.relayed.real_socket(id)?;
        if let Some(socket) = self.sockets.iter().find(|socket| socket.id == id && !socket.is_gone()) {
            return Some(socket.clone());
        }
        let socket = sockets.get(id)?;
        self.sockets.push(socket.clone());
        Some(socket)
    }

    fn note_peer(&mut self, peer: Peer, new: &mut NewPeers) {
        // The last one used is the most likely.
        if self.peers.iter().rev().any(|known| *known == peer) {
            return;
        }
        if self.peers.len() == MOST_PEERS {
            // The oldest most likely belongs to a closed path. If not, its next packet adds it again.
            new.in_place_of.push(self.peers.remove(0));
        }
        self.peers.push(peer);
        new.used.push(peer);
    }
}

impl Blocked {
    fn push(&mut self, head: Head, contents: &[u8]) {
        if self.bytes + contents.len() <= MAX_WAITING {
            self.bytes += contents.len();
            self.waiting.push_back((head, contents.to_vec()));
        }
    }
}

impl Head {
    /// False if the socket has no room now.
    fn send(&self, socket: &BoundSocket, contents: &[u8]) -> bool {
        let Self { route, segment, ecn } = *self;
        socket.udp.send(&Batch { remote: route.remote, contents, segment, ecn }).is_ok()
    }
}

impl Open {
    fn takes(&self, transmit: &Transmit<Bytes>, filled: usize) -> bool {
        self.room > 0
            && transmit.route == self.head.route
            && mark(transmit.ecn) == self.head.ecn
            && transmit.size <= self.head.segment
            && filled + transmit.size <= MAX_BATCH
    }
}

/// The session's keys, locked from the first packet of a batch to its last.
struct Keys<'a> {
    protection: &'a Mutex<Option<Protection>>,
    held: Option<MutexGuard<'a, Option<Protection>>>,
    phase: bool,
    wants_exchange: bool,
    acked: Acked,
    now: Time,
}

impl Keys<'_> {
    fn release(&mut self) {
        self.held = None;
    }

    /// Encodes and seals one packet at the end of `buffer`.
    fn append(
        &mut self,
        buffer: &mut Vec<u8>,
        (transmit, pid): (&Transmit<Bytes>, Pid),
        packet: &Packet<Bytes>,
    ) -> Result<(), SealError> {
        if self.held.is_none() {
            let mut guard = lock_keys(self.protection);
            if let Some(keys) = guard.as_mut() {
                for (path, highest) in self.acked.highest.drain(..) {
                    keys.handle_acked(path, highest);
                }
                self.phase = keys.key_phase(self.now);
                self.wants_exchange |= keys.wants_exchange(self.now);
                self.acked.is_awaited = keys.awaits_ack();
                if !self.acked.is_awaited {
                    self.acked.highest = Vec::new();
                }
            }
            self.held = Some(guard);
        }
        let Some(keys) = self.held.as_mut().and_then(|guard| guard.as_mut()) else {
            // The engine sends no packets before the handshake has set keys.
            return Err(SealError::Exhausted);
        };
        let header = Header {
            kind: Kind::Data,
            key_phase: self.phase,
            tos: type_of_service(packet),
            hop_limit: MOST_RELAYS,
            pid,
            fsn: packet.fsn.0 as u32,
        };
        let start = buffer.len();
        buffer.put_bytes(0, Header::LEN);
        header.encode(&mut buffer[start..]);
        encode_frames(&packet.frames, buffer);
        buffer.put_bytes(0, TAG_LEN);
        debug_assert_eq!(buffer.len() - start, transmit.size, "the engine foretold another size");
        keys.seal(&Envelope::new(&header, packet.path, packet.fsn), &mut buffer[start + Header::LEN..])
    }
}

/// Locks a session's keys. A panic under the lock removes them, and the session ends.
pub(crate) fn lock_keys(protection: &Mutex<Option<Protection>>) -> MutexGuard<'_, Option<Protection>> {
    lock(protection, |keys| *keys = None)
}

fn mark(ecn: bool) -> Ecn {
    if ecn { Ecn::Ect0 } else { Ecn::NotEct }
}

fn type_of_service(packet: &Packet<Bytes>) -> u8 {
    let class = |frame: &Frame<Bytes>| match frame {
        Frame::Datagram(datagram) | Frame::Marked(MarkedFrame { datagram, .. }) => Some(datagram.class),
        Frame::Parity(parity) => Some(parity.class),
        _ => None,
    };
    packet.frames.iter().filter_map(class).max().unwrap_or(STREAM_TOS)
}

/// A datagram of a kind without frames.
pub(crate) fn plain_datagram(kind: Kind, pid: Pid, body: &[u8]) -> Vec<u8> {
    let header = Header { kind, key_phase: false, tos: STREAM_TOS, hop_limit: MOST_RELAYS, pid, fsn: 0 };
    let mut datagram = vec![0; Header::LEN + body.len()];
    header.encode(&mut datagram);
    datagram[Header::LEN..].copy_from_slice(body);
    datagram
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use anabranch_secure::{Dial, Initiator, Limits, NodeKey, read_init};
    use anabranch_wire::{Message, Span, expand_fsn};

    use super::*;
    use crate::interfaces::InterfaceAddress;
    use crate::socket::{BindTo, UdpSocket};

    #[tokio::test]
    async fn what_waits_for_a_socket_is_bounded() {
        let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let udp = UdpSocket::bind(&BindTo { address, interface: None }).expect("it binds");
        let place = InterfaceAddress {
            interface: "lo".into(),
            index: 1,
            address: address.ip(),
            prefix: 8,
            mtu: 65_536,
            loopback: true,
            routes: [].into(),
            spare: false,
        };
        let socket = Arc::new(BoundSocket::new(0, udp, place));
        let mut blocked = Blocked { socket, waiting: VecDeque::new(), bytes: 0 };
        let head = Head { route: Route { socket: 0, remote: address }, segment: 1_200, ecn: Ecn::NotEct };
        for _ in 0..1_000 {
            blocked.push(head, &[0; 12_000]);
        }
        let held: usize = blocked.waiting.iter().map(|(_, contents)| contents.len()).sum();
        assert!(held == blocked.bytes && held <= MAX_WAITING && held > MAX_WAITING - 12_000, "{held}");
    }

    #[test]
    fn of_very_many_peers_the_latest_are_remembered() {
        let mut outbox = Outbox::default();
        let peer = |number: u64| (SocketAddr::from(([192, 0, 2, 1], 4_433)), Pid(number));
        let mut note = |number| {
            let mut new = NewPeers::default();
            outbox.note_peer(peer(number), &mut new);
            (new.used.len(), new.in_place_of.to_vec())
        };
        let most = MOST_PEERS as u64;
        assert!((0..most).all(|number| note(number) == (1, Vec::new())));
        assert_eq!(note(0), (0, Vec::new()), "it is known");
        assert_eq!(note(most), (1, vec![peer(0)]));
        assert_eq!(note(0), (1, vec![peer(1)]), "one still in use comes back");
        assert_eq!(outbox.peers().len(), MOST_PEERS);
    }

    /// The keys of a client and a server.
    fn protections(now: Time) -> [Protection; 2] {
        let (client, server) = (NodeKey::from_random([1; 32]), NodeKey::from_random([2; 32]));
        let dial = Dial { remote: server.public(), credential: None };
        let mut initiator = Initiator::new(&client, &dial, Pid(7), b"", [3; 32]).unwrap();
        let accepted =
            read_init(&server, &initiator.init_body(None), [4; 32]).unwrap().accept(None, b"").unwrap();
        let (keys, _) = initiator.handle_ack(&accepted.body).unwrap();
        [&keys, &accepted.keys].map(|keys| Protection::new(keys, Limits::default(), now))
    }

    /// Seals a packet after these acknowledgements.
    fn seal(
        protection: &Mutex<Option<Protection>>,
        (now, fsn): (Time, u64),
        acked: Acked,
    ) -> (Vec<u8>, Acked) {
        let mut keys = Keys { protection, held: None, phase: false, wants_exchange: false, acked, now };
        let (path, frames) = (PathId::FIRST, [Frame::Ping].into_iter().collect());
        let packet = Packet { path, fsn: Fsn(fsn), frames };
        let route = Route { socket: 0, remote: ([192, 0, 2, 1], 443).into() };
        let size = Header::LEN + 1 + TAG_LEN;
        let message = Message::Packet(packet.clone());
        let transmit = Transmit { route, pid: Pid(1), path, message, size, ecn: false };
        let mut buffer = Vec::new();
        keys.append(&mut buffer, (&transmit, Pid(1)), &packet).unwrap();
        (buffer, keys.acked)
    }

    #[test]
    fn the_list_of_acknowledgements_is_kept_until_the_keys_have_theirs() {
        let (begin, later) = (Time::ZERO, Time::ZERO + Span::from_secs(120));
        let [here, there] = protections(begin).map(|keys| Mutex::new(Some(keys)));
        let (back, forth) = ((&there, &here), (&here, &there));
        for ((from, to), now, fsn) in [(back, begin, 0), (forth, begin, 0), (back, later, 1)] {
            let (mut datagram, _) = seal(from, (now, fsn), Acked::default());
            let (header, _) = Header::decode(&datagram).unwrap();
            let mut guard = lock_keys(to);
            let keys = guard.as_mut().unwrap();
            let fsn = expand_fsn(header.fsn, keys.expected_fsn(PathId::FIRST));
            let envelope = Envelope::new(&header, PathId::FIRST, fsn);
            assert!(keys.open(now, &envelope, &mut datagram[Header::LEN..]).is_ok());
        }
        // The third packet began a phase, and this end followed.
        let (_, mut acked) = seal(&here, (later, 1), Acked::default());
        for (fsn, highest, is_awaited) in [(2, 0, true), (3, 1, false)] {
            assert!(acked.is_awaited && acked.highest.is_empty());
            acked.highest.push((PathId::FIRST, Fsn(highest)));
            (_, acked) = seal(&here, (later, fsn), acked);
            assert_eq!((acked.is_awaited, acked.highest.capacity() > 0), (is_awaited, is_awaited));
        }
    }
}
