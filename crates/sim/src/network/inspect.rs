//! The state of a network, between two calls of [`Network::run`].
//!
//! Methods panic if the plan has no such flow, link, tunnel or source.

use anabranch_engine::{PathInfo, PathWindow, Session, SessionStats, Verdict};
use anabranch_link::LinkStats;
use anabranch_tunnel::queue::QueueCounts;
use anabranch_wire::{PathId, Span, Time};

use super::flow::{CLIENT, Flow, SERVER};
use super::source::Burst;
use super::{Decided, Network};

/// Counters of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowState {
    /// Bytes that the server has read, of streams and of datagrams.
    pub bytes: u64,
    /// Packets with data that reached the server.
    pub data_packets: u64,
    /// Those that arrived after later data: reordered or retransmitted.
    pub late_packets: u64,
    /// Counters of the client's session, if there is one.
    pub client: SessionStats,
    /// Counters of the server's session, if there is one.
    pub server: SessionStats,
    /// When its file was completely acknowledged.
    pub finished_at: Option<Time>,
    /// Datagrams that the client's application has sent.
    pub datagrams: u64,
    /// The longest time without data for the server's application since [`Network::begin_measures`], after the first data;
    /// `None` without data.
    pub pause: Option<Span>,
    /// Most bytes that waited for earlier ones at the server in that time.
    pub reassembling_max: u64,
}

/// Counters of a source of sessions.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalState<'a> {
    /// Sessions that arrived.
    pub arrived: u64,
    /// Sessions refused because too many were open.
    pub refused: u64,
    /// Time of completion, duration and size in bytes of each file, in order of completion.
    pub completed: &'a [(Time, Span, u64)],
    /// Bytes of the files completed.
    pub bytes: u64,
}

/// Counters of a source of plain packets; packets in flight are in `sent` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BurstState {
    /// Packets sent.
    pub sent: u64,
    /// Packets that arrived.
    pub received: u64,
    /// Packets that a link lost.
    pub lost: u64,
}

impl Network {
    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Decisions of a flow's path agent, oldest first; empty without an agent.
    pub fn decisions(&self, flow: usize) -> &[Decided] {
        self.flows[flow].decisions()
    }

    /// Packets that crossed a link so far.
    pub fn packet_hops(&self) -> u64 {
        self.wires.packet_hops()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Packets with data that reached any server so far, of flows and of arrived sessions.
    pub fn data_packets(&self) -> u64 {
        self.flows.iter().map(|flow| flow.counts.data_packets).sum()
    }

    /// Counters of a link.
    pub fn link(&mut self, link: usize) -> LinkStats {
        self.wires.stats(self.now, link)
    }

    /// How long a link has been sending so far.
    pub fn link_busy(&mut self, link: usize) -> Span {
        self.wires.busy(self.now, link)
    }

    /// Packets waiting at a link now, including the one being sent.
    pub fn backlog(&mut self, link: usize) -> usize {
        self.wires.backlog(self.now, link)
    }

    /// Counters of a flow of the plan.
    pub fn flow(&self, flow: usize) -> FlowState {
        if let Some(carrier) = self.carrier_of(flow) {
            return self.stream_state(&self.flows[carrier], flow);
        }
        let flow = &self.flows[flow];
        FlowState {
            bytes: flow.bytes_read(),
            data_packets: flow.counts.data_packets,
            late_packets: flow.counts.late_packets,
            client: flow.stats(CLIENT),
            server: flow.stats(SERVER),
            finished_at: flow.finished_at,
            datagrams: flow.counts.datagrams,
            pause: flow.pause(self.now),
            reassembling_max: flow.counts.reassembling_max,
        }
    }

    /// Counters of a flow in the stream lane of this tunnel.
    fn stream_state(&self, carrier: &Flow, flow: usize) -> FlowState {
        let Some(stream) = carrier.stream_of(flow) else { return FlowState::default() };
        let is_over = stream.finished_at.is_some() || carrier.sessions[SERVER].is_none();
        FlowState {
            bytes: stream.counts.bytes,
            finished_at: stream.finished_at,
            pause: stream.counts.longest_pause(self.now, is_over),
            ..FlowState::default()
        }
    }

    /// The number of a tunnel's session among the flows, for their counters.
    pub fn tunnel_session(&self, tunnel: usize) -> usize {
        self.tunnels[tunnel].carrier
    }

    /// Counts of packets that the entry queue of a tunnel's client dropped and marked.
    pub fn tunnel_queue(&self, tunnel: usize) -> QueueCounts {
        self.tunnels[tunnel].counts(CLIENT)
    }

    /// Stream bytes that wait for earlier ones at a flow's server.
    pub fn reassembling(&self, flow: usize) -> u64 {
        self.flows[flow].sessions[SERVER].as_ref().map_or(0, Session::bytes_reassembling)
    }

    /// Restarts all maxima: pauses, receive buffers and queues.
    pub fn begin_measures(&mut self) {
        self.flows.iter_mut().for_each(|flow| flow.begin_measures(self.now));
        self.wires.restart_peaks(self.now);
    }

    /// The datagrams that reached a flow's server, in order of arrival: number and delay between the applications.
    pub fn datagram_delays(&self, flow: usize) -> &[(u32, Span)] {
        &self.flows[flow].datagrams.delays
    }

    /// The paths of a flow's client or server; the route's socket is the path's number in the plan. Empty without a session.
    pub fn paths(&self, flow: usize, server: bool) -> Vec<PathInfo> {
        self.flows[flow].sessions[usize::from(server)].as_ref().map(Session::paths).unwrap_or_default()
    }

    /// As [`Self::paths`], but after the flow's end with its last counters. With a path agent also closed ones.
    pub fn counted_paths(&self, flow: usize, server: bool) -> Vec<PathInfo> {
        self.flows[flow].counted_paths(usize::from(server))
    }

    /// Windows and round-trip times of the paths of a flow's client.
    pub fn path_windows(&self, flow: usize) -> impl Iterator<Item = PathWindow> {
        self.flows[flow].sessions[CLIENT].iter().flat_map(Session::path_windows)
    }

    /// The verdicts of a flow's client on each pair of its paths: do they share a bottleneck?
    pub fn verdicts(&self, flow: usize) -> Vec<Verdict> {
        let Some(session) = &self.flows[flow].sessions[CLIENT] else { return Vec::new() };
        let paths: Vec<PathId> = session.paths().iter().map(|path| path.id).collect();
        let pairs =
            paths.iter().enumerate().flat_map(|(count, b)| paths[..count].iter().map(move |a| (*a, *b)));
        pairs.map(|(a, b)| session.shared_bottleneck(a, b)).collect()
    }

    /// Counters of a source of sessions.
    pub fn arrivals(&self, source: usize) -> ArrivalState<'_> {
        let arrivals = &self.arrivals[source].0;
        ArrivalState {
            arrived: arrivals.arrived,
            refused: arrivals.refused,
            completed: &arrivals.completed,
            bytes: arrivals.bytes,
        }
    }

    /// Counters of a source of plain packets.
    pub fn burst(&self, source: usize) -> BurstState {
        let Burst { sent, received, .. } = &self.bursts[source];
        BurstState { sent: *sent, received: *received, lost: self.wires.lost_of(source) }
    }
}
