//! An attacker with the keys of a session, who sends any typed packet.

use std::alloc::System;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use anabranch_engine::{
    Arrival, CloseReason, Config, Ecn, Event, Init, MemoryBudget, PathState, PidChange, PidSource,
    ProtocolError, Route, Session, State, Transmit,
};
use anabranch_wire::{
    Ack, DatagramFrame, DatagramNumber, Frame, Fsn, MarkedFrame, Message, NewPid, PACKET_OVERHEAD, Packet,
    Params, ParityFrame, PathId, Pid, ResetToken, Span, StreamFrame, StreamId, Time, packet_encoded_len,
};
use bytes::Bytes;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Counts what is allocated during its lifetime; one test at a time, because there is one allocator.
pub struct Meter {
    region: Region<'static, System>,
    _turn: MutexGuard<'static, ()>,
}

impl Meter {
    pub fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Self { region: Region::new(ALLOCATOR), _turn: turn }
    }

    /// Bytes allocated and not freed since the start.
    pub fn held(&self) -> i64 {
        let change = self.region.change();
        change.bytes_allocated as i64 - change.bytes_deallocated as i64
    }
}

struct Pids(u64);

impl PidSource for Pids {
    fn next_pid(&mut self) -> (Pid, ResetToken) {
        // Scattered, so that skipped numbers cannot be guessed in these tests either.
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (Pid(self.0 | 1), ResetToken([7; 16]))
    }
}

/// A session attacked by its peer, which is established on path 0.
pub struct Victim {
    pub session: Session<Bytes>,
    pub now: Time,
    /// PIDs registered, minus those retired.
    pub pids: i64,
    /// Packets sent to the session or received from it.
    pub packets: u64,
    /// Bytes sent to it.
    pub bytes: u64,
    next: BTreeMap<PathId, u64>,
}

pub fn route() -> Route {
    Route { socket: 0, remote: "198.51.100.7:4433".parse().unwrap() }
}

/// An address that is not the peer's.
pub fn elsewhere() -> Route {
    Route { socket: 0, remote: "203.0.113.9:53".parse().unwrap() }
}

pub fn params() -> Params {
    Params {
        pid: Pid(99),
        reset_token: ResetToken([9; 16]),
        initial_max_data: 1 << 62,
        initial_max_stream_data: 1 << 62,
        initial_max_streams: 1 << 60,
        max_paths: 64,
        max_udp_payload: 65_535,
        max_datagram: 65_535,
        idle_timeout_ms: 0,
        max_block: 32,
        ordered_classes: 0,
        arrival_times: false,
        path_rates: true,
        max_ack_delay_us: 16_384_000,
    }
}

pub fn stream_frame(stream: u64, offset: u64, len: usize) -> Frame<Bytes> {
    let data = Bytes::from(vec![0; len]);
    Frame::Stream(StreamFrame { stream: StreamId(stream), offset, fin: false, data })
}

/// A PID of the peer for a path.
pub fn new_pid(path: u32, pid: u64) -> Frame<Bytes> {
    Frame::NewPid(NewPid { path: PathId(path), pid: Pid(pid), reset_token: ResetToken([1; 16]) })
}

pub fn ack(path: u32, ranges: impl IntoIterator<Item = std::ops::Range<u64>>) -> Frame<Bytes> {
    let ranges = ranges.into_iter().collect();
    Frame::Ack(Ack { path: PathId(path), delay: Span::ZERO, arrived: None, ranges, ecn: None })
}

/// A datagram of class `class` with a number, for which parity may follow.
pub fn marked_frame((class, number): (u8, u64), is_coded: bool, len: usize) -> Frame<Bytes> {
    let datagram = DatagramFrame { class, flow: 0, data: Bytes::from(vec![0; len]) };
    let number = Some(DatagramNumber { value: number, is_coded });
    Frame::Marked(MarkedFrame { datagram, number, place: None })
}

/// A piece of parity for the 32 datagrams from `first` on; there are 32 pieces.
pub fn parity_frame((class, first): (u8, u64), index: u8, len: usize) -> Frame<Bytes> {
    let data = Bytes::from(vec![7; len]);
    Frame::Parity(ParityFrame { class, first, count: 32, parities: 32, index, head: [0; 12], data })
}

/// Highest number on path 0 among these packets.
pub fn highest(sent: &[Transmit<Bytes>]) -> Option<u64> {
    sent.iter().filter_map(|sent| sent.message.packet()).map(|packet| packet.fsn.0).max()
}

/// The token of the first challenge to this address among these packets.
pub fn challenge(sent: &[Transmit<Bytes>], to: Route) -> u64 {
    let frames = sent.iter().filter(|sent| sent.route == to).filter_map(|sent| sent.message.packet());
    let token = frames.flat_map(|packet| &packet.frames).find_map(|frame| match frame {
        Frame::PathChallenge { token } => Some(*token),
        _ => None,
    });
    token.expect("a challenge")
}

impl Victim {
    pub fn new() -> Self {
        Self::with(Config::default(), MemoryBudget::new(1 << 40))
    }

    pub fn with(config: Config, budget: MemoryBudget) -> Self {
        Self::begin(config, budget, params()).established()
    }

    /// A victim whose peer offers these parameters.
    pub fn offered(params: Params) -> Self {
        Self::begin(Config::default(), MemoryBudget::new(1 << 40), params).established()
    }

    /// A victim that has answered and received nothing since.
    pub fn unheard(config: Config) -> Self {
        Self::begin(config, MemoryBudget::new(1 << 40), params())
    }

    /// Delivers a copy of INIT from this address.
    pub fn greet_from(&mut self, route: Route) {
        let arrival = Arrival { route, size: 1_200, ecn: Ecn::NotEct, waited: Span::ZERO };
        self.take_counted(&arrival, Message::Init(params()));
        self.drain();
    }

    fn established(mut self) -> Self {
        self.say([Frame::Ping]);
        assert_eq!(self.session.state(), State::Established);
        self
    }

    /// Opens the second path of a victim, and answers its challenge after 100 ms.
    pub fn opening(mut self, path: PathId, at: Route) -> Self {
        self.say([new_pid(path.0, 7)]);
        let sent = self.say_as((path.0, 0), at, [Frame::Ping]);
        self.now += Span::from_millis(100);
        self.say_as((path.0, 1), at, [Frame::PathResponse { token: challenge(&sent, at) }]);
        assert_eq!(self.session.paths()[1].state, PathState::Active);
        self
    }

    fn begin(config: Config, budget: MemoryBudget, params: Params) -> Self {
        let now = Time::ZERO + Span::from_secs(1);
        let pids = Box::new(Pids(now.as_nanos()));
        let session = Session::accept(config, Init { params, route: route() }, pids, budget, now).unwrap();
        let mut victim = Self { session, now, pids: 0, packets: 0, bytes: 0, next: BTreeMap::new() };
        victim.drain();
        victim
    }

    /// Delivers one packet on path 0; returns everything sent because of it.
    pub fn say(&mut self, frames: impl IntoIterator<Item = Frame<Bytes>>) -> Vec<Transmit<Bytes>> {
        let number = *self.next.entry(PathId::FIRST).or_default();
        self.say_as((0, number), route(), frames)
    }

    /// Delivers one packet with this path and number from this address; returns everything sent because of it.
    pub fn say_as(
        &mut self,
        (path, number): (u32, u64),
        route: Route,
        frames: impl IntoIterator<Item = Frame<Bytes>>,
    ) -> Vec<Transmit<Bytes>> {
        let path = PathId(path);
        let packet = Packet { path, fsn: Fsn(number), frames: frames.into_iter().collect() };
        let size = PACKET_OVERHEAD + packet_encoded_len(&packet.frames);
        let arrival = Arrival { route, size, ecn: Ecn::NotEct, waited: Span::ZERO };
        self.next.insert(path, number + 1);
        self.packets += 1;
        self.bytes += size as u64;
        self.take_counted(&arrival, Message::Packet(packet));
        self.drain()
    }

    /// The session's own work: `hostile_work` counts functions with this suffix. None of these calls another.
    #[inline(never)]
    fn take_counted(&mut self, arrival: &Arrival, message: Message<Bytes>) {
        self.session.handle_message(self.now, arrival, message);
    }

    #[inline(never)]
    fn send_counted(&mut self) -> Option<Transmit<Bytes>> {
        self.session.poll_transmit(self.now)
    }

    #[inline(never)]
    fn time_counted(&mut self) {
        self.session.handle_timeout(self.now);
    }

    /// Everything the session wants to send now.
    pub fn drain(&mut self) -> Vec<Transmit<Bytes>> {
        let sent: Vec<_> = std::iter::from_fn(|| self.send_counted()).collect();
        self.packets += sent.len() as u64;
        while let Some(change) = self.session.poll_pid_change() {
            self.pids += if matches!(change, PidChange::Register { .. }) { 1 } else { -1 };
        }
        sent
    }

    /// Lets time pass, with all timers due in between.
    pub fn wait(&mut self, span: Span) -> Vec<Transmit<Bytes>> {
        let until = self.now + span;
        let mut sent = Vec::new();
        while let Some(at) = self.session.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.time_counted();
            sent.extend(self.drain());
        }
        self.now = until;
        sent.extend(self.drain());
        sent
    }

    pub fn closed_for(&mut self) -> Option<CloseReason> {
        std::iter::from_fn(|| self.session.poll_event()).find_map(|event| match event {
            Event::Closed(reason) => Some(reason),
            _ => None,
        })
    }

    pub fn assert_closed_for(&mut self, error: ProtocolError) {
        assert_eq!(self.closed_for(), Some(CloseReason::Protocol(error)));
    }

    pub fn assert_alive(&mut self) {
        assert_eq!(self.session.state(), State::Established, "{:?}", self.closed_for());
    }
}
