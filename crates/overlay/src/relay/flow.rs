//! The flow table: PID → next hop [R1].
//!
//! A flow is a pair of rows, one for each direction, that share their addresses. A packet from the client under the forward
//! PID goes to the next hop under the next hop's PID. A packet from the next hop under the back PID goes to the client under
//! the client's PID. Each row is bound to the address that its packets come from. One hash lookup finds a row. PIDs are random
//! and chosen by the relay, so their own bits serve as the hash.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::hint::black_box;

use anabranch_secure::PublicKey;
use anabranch_wire::{PathId, Pid, PidHasher, Time};

use super::types::{FlowId, Hop, SessionId};

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward = 0,
    Back = 1,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes of UDP payload forwarded.
    pub bytes: u64,
}

pub(super) struct Flow {
    pub generation: u32,
    /// The account whose quota it uses.
    pub account: u32,
    pub session: SessionId,
    /// The path of that session from whose address the client sends.
    pub via: PathId,
    /// Client, then next hop.
    pub ends: [Hop; 2],
    /// PIDs at this relay, by direction.
    pub own: [Pid; 2],
    /// PIDs on the packets that leave, by direction.
    pub out: [Pid; 2],
    /// The next hop's consent lasts until then; zero before the first.
    pub agreed_until: Time,
    pub consent: Consent,
}

/// Why the relay may send to the next hop.
pub(super) enum Consent {
    /// The next hop is a host that requested the flow: its session, and the path in use.
    Host(SessionId, PathId),
    /// The next hop agrees by answering challenges.
    Asked(Box<Asked>),
}

pub(super) struct Asked {
    /// Token of the current round of questions.
    pub token: u64,
    /// Questions since the last answer.
    pub tries: u8,
    pub due: Time,
    /// For questions about PID 0.
    pub key: Option<PublicKey>,
}

impl Flow {
    pub(super) fn id(&self, slot: u32) -> FlowId {
        FlowId(u64::from(self.generation) << 32 | u64::from(slot))
    }
}

/// All flows, by PID and by slot.
#[derive(Default)]
pub(super) struct FlowTable {
    /// Slot times two, plus the direction.
    rows: HashMap<Pid, u32, BuildHasherDefault<PidHasher>>,
    slots: Vec<Option<Flow>>,
    free: Vec<u32>,
    next_generation: u32,
}

impl FlowTable {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Slots are numbered below this.
    pub(super) fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(super) fn knows(&self, pid: Pid) -> bool {
        self.rows.contains_key(&pid)
    }

    #[inline]
    pub(super) fn find(&mut self, pid: Pid) -> Option<(u32, Direction, &mut Flow)> {
        let row = *self.rows.get(&pid)?;
        let direction = if row & 1 == 0 { Direction::Forward } else { Direction::Back };
        let flow = self.slots.get_mut((row >> 1) as usize)?.as_mut()?;
        Some((row >> 1, direction, flow))
    }

    /// Fetches the rows of these PIDs, and the fields of their flows that a packet needs, into the processor's cache.
    pub(super) fn touch(&self, pids: &[Pid]) {
        for pids in pids.chunks(16) {
            let mut slots = [u32::MAX; 16];
            for (slot, pid) in slots.iter_mut().zip(pids) {
                *slot = self.rows.get(pid).map_or(u32::MAX, |row| row >> 1);
            }
            for flow in slots.iter().filter_map(|slot| self.slots.get(*slot as usize)?.as_ref()) {
                let sockets = (flow.ends[0].socket, flow.ends[1].socket);
                black_box((flow.agreed_until, flow.account, sockets, flow.out));
            }
        }
    }

    /// The flow that sends to `at` under `pid`, and the direction of packets from there. Walks over all flows.
    pub(super) fn find_outgoing(&self, at: Hop, pid: Pid) -> Option<(u32, Direction)> {
        let side = |flow: &Flow| {
            [Direction::Forward, Direction::Back]
                .into_iter()
                .find(|from| flow.ends[*from as usize] == at && flow.out[1 - *from as usize] == pid)
        };
        let mut slots = self.slots.iter().enumerate();
        slots.find_map(|(slot, flow)| Some((slot as u32, flow.as_ref().and_then(side)?)))
    }

    /// Orders flows by age: a newer flow has a higher number, until numbers wrap.
    pub(super) fn age(&self, slot: u32) -> Option<u32> {
        Some(self.slots.get(slot as usize)?.as_ref()?.generation)
    }

    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Flow> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn by_id(&mut self, id: FlowId) -> Option<(u32, &mut Flow)> {
        let slot = id.0 as u32;
        let flow = self.at(slot)?;
        (flow.id(slot) == id).then_some((slot, flow))
    }

    /// Adds a flow and sets its generation.
    pub(super) fn insert(&mut self, mut flow: Flow) -> (u32, FlowId) {
        flow.generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1);
        let slot = self.free.pop().unwrap_or_else(|| {
            // Grow by an eighth: doubling would reserve memory that most relays never need.
            if self.slots.len() == self.slots.capacity() {
                self.slots.reserve_exact(self.slots.len() / 8 + 16);
            }
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let id = flow.id(slot);
        for (direction, pid) in flow.own.into_iter().enumerate() {
            self.rows.insert(pid, slot << 1 | direction as u32);
        }
        self.slots[slot as usize] = Some(flow);
        (slot, id)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Flow> {
        let flow = self.slots.get_mut(slot as usize)?.take()?;
        for pid in flow.own {
            self.rows.remove(&pid);
        }
        self.free.push(slot);
        Some(flow)
    }
}
