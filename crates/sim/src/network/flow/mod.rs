//! One flow of a network: two sessions, the routes of their paths, and the applications at both ends.
//!
//! The client connects over the first path and opens the others as soon as the server allows it. Then it writes its
//! [`Supply`] to one stream. The server reads at once. The flow of a file ends when all of it was acknowledged.

mod application;
mod guided;
mod streams;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use anabranch_engine::{Arrival, Config, Ecn, Init, MemoryBudget, PathInfo, Route, Session, SessionStats};
use anabranch_prefetch::prefetch;
use anabranch_tunnel::entry::{Lane, SharedEntry};
use anabranch_wire::{Frame, Message, Payload, Span, StreamId, Time};

use super::load::Load;
use super::plan::{AgentPlan, Decided, Supply};
use super::wires::Envelope;
use crate::pair::CountedPids;
use guided::Guided;
use streams::TunnelStream;

/// Bytes that the windows of one session may promise: more than any session needs.
const BUDGET: u64 = 1 << 40;

/// Index of an end's session.
pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

/// The address of each end's peer.
const REMOTE: [SocketAddr; 2] = [
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 443)),
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 1000)),
];

/// The result of a call of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    Nothing,
    Something,
    /// The flow has ended.
    Over,
}

/// The packets of a flow in a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InnerPackets {
    pub lane: Lane,
    /// They are of TCP.
    pub is_tcp: bool,
}

/// How a flow's data travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// As packets over links.
    Links,
    /// As packets through the tunnel with this number.
    Packets(u32, InnerPackets),
    /// As packets over links, with those of a tunnel's inner flows: it is the session of this tunnel.
    Carrier(u32),
    /// As a stream of this tunnel's session.
    Stream(u32),
}

/// Index of each path's routes in the route table: to the server, and back.
pub(crate) type Routes = Arc<[[u32; 2]]>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowCounts {
    /// Stream bytes read by earlier sessions of this slot, and all bytes of datagrams.
    pub bytes: u64,
    /// Packets with data that reached the server.
    pub data_packets: u64,
    /// Those that arrived after later data.
    pub late_packets: u64,
    /// Datagrams that the application has sent.
    pub datagrams: u64,
    /// When the server's application last read something; zero before.
    took_at: Time,
    /// The longest time without data so far.
    pause: Span,
    /// Most bytes that waited for earlier ones at the server.
    pub reassembling_max: u64,
}

impl FlowCounts {
    /// Records that the server's application read something.
    fn took(&mut self, now: Time) {
        self.pause = self.pause_until(now);
        self.took_at = now;
    }

    /// Forgets earlier times without data.
    fn restart_pause(&mut self, now: Time) {
        self.pause = Span::ZERO;
        if self.took_at != Time::ZERO {
            self.took_at = now;
        }
    }

    /// The longest time without data, after the first data; `None` without data. Time after the end does not count.
    pub(crate) fn longest_pause(&self, now: Time, is_over: bool) -> Option<Span> {
        let longest = if is_over { self.pause } else { self.pause_until(now) };
        (self.took_at != Time::ZERO).then_some(longest)
    }

    /// The longest time without data, if no data arrives until `now`.
    fn pause_until(&self, now: Time) -> Span {
        let waits = if self.took_at == Time::ZERO { Span::ZERO } else { now.since(self.took_at) };
        self.pause.max(waits)
    }
}

/// Counters of an end when its session ended.
pub(crate) struct Ended {
    paths: Vec<PathInfo>,
    stats: SessionStats,
}

impl Ended {
    fn of(session: &Session<Load>) -> Box<Self> {
        // A closed session holds no data.
        let stats = SessionStats { bytes_reassembling: 0, ..session.stats() };
        Box::new(Self { paths: session.paths(), stats })
    }
}

/// The data that the client's application still has to write.
struct Writer {
    /// When a steady or scripted application has its next data.
    next_chunk: Time,
    stream: Option<StreamId>,
    /// Bytes that are due but not written yet.
    left: u64,
    /// Number of entries of the script that were used.
    played: usize,
}

/// The paths that the client has yet to open.
struct Opening {
    /// When the next delayed path may be opened.
    next: Time,
    /// A bit for each path.
    unopened: u64,
}

/// The datagrams of a flow.
pub(crate) struct Datagrams {
    /// When the first was sent.
    first: Time,
    /// Those that arrived, in that order: number and delay.
    pub delays: Vec<(u32, Span)>,
}

/// The queues and streams of a tunnel's session.
#[derive(Default)]
struct Tunnelled {
    /// The entry queues of both ends, if it is a tunnel's session.
    entries: Option<Box<[SharedEntry<Load>; 2]>>,
    streams: Vec<TunnelStream>,
}

/// A slot for successive flows.
///
/// Fields are ordered by access, before the large sessions: first those for every packet, then for packets to the
/// client, then for packets to the server.
#[repr(C)]
pub(crate) struct Flow {
    pub routes: Routes,
    supply: Supply,
    /// Number of the session in this slot.
    pub generation: u32,
    redundant: bool,
    pub passage: Passage,
    pub stop: Time,
    // The client's end:
    writer: Writer,
    opening: Opening,
    config: Arc<Config>,
    /// First PID of the next sessions.
    pids: u64,
    // Data at the server:
    /// End of the data that arrived, including gaps.
    highest: u64,
    pub counts: FlowCounts,
    // Rarely accessed:
    /// Counters of the slot's first sessions at their end.
    ended: [Option<Box<Ended>>; 2],
    pub start: Time,
    /// Earliest times of opening further paths, after the start.
    openings: Vec<Span>,
    /// When a file was completely acknowledged.
    pub finished_at: Option<Time>,
    pub datagrams: Datagrams,
    tunnel: Tunnelled,
    /// The path agent of this flow, if it has one.
    guided: Option<Box<Guided>>,
    pub sessions: [Option<Session<Load>>; 2],
}

impl Flow {
    pub(crate) fn new(
        routes: Routes,
        config: Arc<Config>,
        supply: Supply,
        (start, stop): (Time, Time),
    ) -> Self {
        Self {
            routes,
            config,
            supply,
            generation: 0,
            sessions: [None, None],
            ended: [None, None],
            start,
            stop,
            redundant: false,
            writer: Writer { next_chunk: Time::NEVER, stream: None, left: 0, played: 0 },
            opening: Opening { next: Time::NEVER, unopened: 0 },
            openings: Vec::new(),
            highest: 0,
            pids: 0,
            counts: FlowCounts::default(),
            passage: Passage::Links,
            tunnel: Tunnelled::default(),
            finished_at: None,
            datagrams: Datagrams { first: Time::NEVER, delays: Vec::new() },
            guided: None,
        }
    }

    /// Lets the path agent open and close the paths.
    pub(crate) fn guided(self, plan: Option<Arc<AgentPlan>>) -> Self {
        let guided = plan.map(|plan| Box::new(Guided::new(plan, self.routes.len())));
        Self { guided, ..self }
    }

    /// Decisions of the path agent at the client.
    pub(crate) fn decisions(&self) -> &[Decided] {
        self.guided.as_ref().map_or(&[], |guided| &guided.decisions)
    }

    /// Sends its data through a tunnel.
    pub(crate) fn through(self, passage: Passage) -> Self {
        Self { passage, ..self }
    }

    /// Carries the packets of these entry queues, of the tunnel with this number.
    pub(crate) fn carrying(self, tunnel: u32, entries: &[SharedEntry<Load>; 2]) -> Self {
        let entries = Some(Box::new(entries.clone()));
        Self { passage: Passage::Carrier(tunnel), tunnel: Tunnelled { entries, ..self.tunnel }, ..self }
    }

    /// Its data.
    pub(crate) fn supply(&self) -> &Supply {
        &self.supply
    }

    /// Prefetches this flow and an end's session for a packet that arrives soon.
    pub(crate) fn prefetch(&self, end: usize, acknowledges: bool) {
        let (client, server) = (std::mem::offset_of!(Self, writer), std::mem::offset_of!(Self, highest));
        prefetch(self, 0..client);
        prefetch(
            self,
            if end == CLIENT { client..server } else { server..std::mem::offset_of!(Self, ended) },
        );
        let session = &self.sessions[end];
        let [first, second] = Session::<Load>::bytes_needed(acknowledges);
        prefetch(session, first);
        prefetch(session, second);
    }

    /// True if it runs until it is stopped.
    pub(crate) fn is_endless(&self) -> bool {
        !matches!(self.supply, Supply::File(_) | Supply::Script(_))
    }

    /// Sets the earliest times of opening further paths, after the start.
    pub(crate) fn opening(self, openings: Vec<Span>) -> Self {
        Self { openings, ..self }
    }

    /// Sends the stream on every path if `redundant`.
    pub(crate) fn redundant(self, redundant: bool) -> Self {
        Self { redundant, ..self }
    }

    /// All paths except the first, a bit each.
    fn further_paths(&self) -> u64 {
        if self.guided.is_some() { 0 } else { (1_u64 << (self.routes.len() - 1)) - 1 }
    }

    /// Starts another flow in this slot.
    pub(crate) fn reuse(&mut self, supply: Supply, start: Time) {
        (self.supply, self.start, self.finished_at) = (supply, start, None);
    }

    fn route(end: usize, path: usize) -> Route {
        Route { socket: path as u32, remote: REMOTE[end] }
    }

    fn next_pids(&mut self) -> Box<CountedPids> {
        self.pids += 1 << 32;
        Box::new(CountedPids(self.pids))
    }

    /// Connects the client.
    fn begin(&mut self, now: Time) {
        let pids = self.next_pids();
        let first = Self::route(CLIENT, 0);
        let routes = self.guided.as_mut().map_or_else(|| vec![first], |guided| guided.begin(now));
        let mut session =
            Session::connect(Arc::clone(&self.config), &routes, pids, MemoryBudget::new(BUDGET), now);
        self.attach(CLIENT, &mut session);
        self.sessions = [Some(session), None];
        self.writer.left = match self.supply {
            Supply::Bulk => u64::MAX,
            Supply::File(bytes) => bytes,
            Supply::Steady { .. } | Supply::Script(_) | Supply::Datagrams { .. } | Supply::Tunnel => 0,
        };
        self.opening.unopened = self.further_paths();
        (self.writer.stream, self.highest) = (None, 0);
    }

    /// Lets an end's session take packets from its entry queue.
    fn attach(&self, end: usize, session: &mut Session<Load>) {
        if let Some(entries) = &self.tunnel.entries {
            session.set_datagram_source(Box::new(entries[end].clone()));
        }
    }

    /// Ends both sessions; packets in flight are lost.
    pub(crate) fn end(&mut self) {
        self.counts.bytes += self.live_bytes();
        let sessions = std::mem::take(&mut self.sessions);
        if self.generation == 0 {
            self.ended = sessions.map(|session| session.as_ref().map(Ended::of));
        }
        self.generation += 1;
        (self.writer.next_chunk, self.opening.next) = (Time::NEVER, Time::NEVER);
    }

    fn live_bytes(&self) -> u64 {
        self.sessions[SERVER].as_ref().map_or(0, |session| session.stats().bytes_read)
    }

    /// An end's paths with their counters, also after the flow's end; with a path agent, also the closed ones.
    pub(crate) fn counted_paths(&self, end: usize) -> Vec<PathInfo> {
        let ended = || self.ended[end].as_ref().map(|ended| ended.paths.clone());
        let mut paths = self.sessions[end].as_ref().map(Session::paths).or_else(ended).unwrap_or_default();
        if let Some(guided) = &self.guided {
            let closed = guided.closed_besides(end, &paths);
            paths.extend(closed);
        }
        paths
    }

    /// An end's counters, also after the flow's end.
    pub(crate) fn stats(&self, end: usize) -> SessionStats {
        let ended = || self.ended[end].as_ref().map(|ended| ended.stats);
        self.sessions[end].as_ref().map(Session::stats).or_else(ended).unwrap_or_default()
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.counts.bytes + self.live_bytes()
    }

    /// Restarts the maxima at `now`.
    pub(crate) fn begin_measures(&mut self, now: Time) {
        let counts = &mut self.counts;
        counts.reassembling_max = self.sessions[SERVER].as_ref().map_or(0, Session::bytes_reassembling);
        let streams = self.tunnel.streams.iter_mut().map(|stream| &mut stream.counts);
        for counts in std::iter::once(&mut self.counts).chain(streams) {
            counts.restart_pause(now);
        }
    }

    /// The longest time without data for the server's application, after the first data; `None` without data.
    pub(crate) fn pause(&self, now: Time) -> Option<Span> {
        self.counts.longest_pause(now, self.sessions[SERVER].is_none())
    }

    /// Handles a timeout of an end; false if the flow is over.
    pub(crate) fn handle_timeout(&mut self, now: Time, end: usize) -> bool {
        if now >= self.stop {
            if self.sessions[SERVER].is_some() {
                self.counts.pause = self.counts.pause_until(now);
            }
            self.end();
            return false;
        }
        if end == CLIENT && self.sessions[CLIENT].is_none() && now >= self.start && self.finished_at.is_none()
        {
            self.begin(now);
        }
        if end == CLIENT && now >= self.writer.next_chunk {
            self.add_chunk(now);
        }
        let Some(session) = &mut self.sessions[end] else { return true };
        if session.poll_timeout().is_some_and(|at| at <= now) {
            session.handle_timeout(now);
        }
        true
    }

    /// Hands a packet to its session.
    #[inline]
    pub(crate) fn handle_packet(
        &mut self,
        now: Time,
        Envelope { to, size, ce }: Envelope,
        message: &mut Message<Load>,
    ) {
        let end = usize::from(to.end);
        if end == CLIENT && self.guided.as_ref().is_some_and(|guided| guided.is_cut(to.path.into())) {
            return;
        }
        let route = Self::route(end, usize::from(to.path));
        let ecn = match (ce, to.ecn) {
            (true, _) => Ecn::Ce,
            (false, true) => Ecn::Ect0,
            (false, false) => Ecn::NotEct,
        };
        let arrival = Arrival { route, size: size as usize, ecn, waited: Span::ZERO };
        if end == SERVER {
            self.note_order(message);
        }
        if let Some(session) = &mut self.sessions[end] {
            session.take_in(now, &arrival, message);
            if end == SERVER {
                let most = &mut self.counts.reassembling_max;
                *most = session.bytes_reassembling().max(*most);
            }
        } else if let Message::Init(params) = message {
            let pids = self.next_pids();
            let budget = MemoryBudget::new(BUDGET);
            // The client's own parameters are in range.
            let init = Init { params: params.clone(), route };
            let mut session = Session::accept(Arc::clone(&self.config), init, pids, budget, now).ok();
            session.iter_mut().for_each(|session| self.attach(SERVER, session));
            self.sessions[SERVER] = session;
        }
    }

    fn note_order(&mut self, message: &Message<Load>) {
        let Some(packet) = message.packet() else { return };
        for frame in &packet.frames {
            if let Frame::Stream(frame) = frame {
                let highest = self.highest_of(frame.stream);
                let is_late = frame.offset < *highest;
                *highest = (*highest).max(frame.offset + frame.data.len() as u64);
                self.counts.data_packets += 1;
                self.counts.late_packets += u64::from(is_late);
            }
        }
    }

    /// The next timeout of an end.
    pub(crate) fn next_call(&self, end: usize) -> Time {
        let session = self.sessions[end].as_ref().and_then(Session::poll_timeout).unwrap_or(Time::NEVER);
        let guided = |guided: &Guided| guided.next_at(end).min(session);
        let session = match &self.guided {
            Some(agents) if self.sessions[end].is_some() => guided(agents),
            _ => session,
        };
        if end == CLIENT {
            session.min(self.writer.next_chunk).min(self.opening.next).min(self.stop)
        } else {
            session
        }
    }
}
