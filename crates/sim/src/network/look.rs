//! What can be seen of a network between two runs.

use anabranch_engine::{PathInfo, PathWindow, Session, SessionStats};
use anabranch_link::LinkStats;
use anabranch_wire::{Span, Time};

use super::flow::{CLIENT, SERVER};
use super::source::Burst;
use super::{Decided, Network};

/// What a flow has done, to be read between two runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowState {
    /// Bytes that the server has read, of streams and of datagrams.
    pub bytes: u64,
    /// Packets with data that reached the server.
    pub data_packets: u64,
    /// Of these, those that came after data behind theirs: reordered, or sent again.
    pub late_packets: u64,
    /// Counters of the client's session, while there is one.
    pub client: SessionStats,
    /// Counters of the server's session, while there is one.
    pub server: SessionStats,
    /// When a file had arrived and was acknowledged in full.
    pub finished_at: Option<Time>,
    /// Datagrams that the client's application has sent.
    pub datagrams: u64,
    /// The longest time for which the server's application had nothing to take, once something had come, since
    /// [`Network::begin_measures`]; `None` where nothing came.
    pub pause: Option<Span>,
    /// Most bytes that waited for earlier ones at the server since then.
    pub reassembling_max: u64,
}

/// What a source of sessions has done.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalState<'a> {
    /// Sessions that arrived.
    pub arrived: u64,
    /// Those turned away because too many were open.
    pub refused: u64,
    /// Moment of completion, time taken and size in bytes of each file, in order of completion.
    pub completed: &'a [(Time, Span, u64)],
    /// Bytes of the files completed.
    pub bytes: u64,
}

/// What became of the packets of a source of plain packets; those on their way are in `sent` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BurstState {
    /// Packets sent.
    pub sent: u64,
    /// Those that arrived.
    pub received: u64,
    /// Those that a link lost.
    pub lost: u64,
}

impl Network {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// What the path agent of a flow decided, oldest first; nothing of a flow without one.
    #[must_use]
    pub fn decisions(&self, flow: usize) -> &[Decided] {
        self.flows[flow].decisions()
    }

    /// Packets that crossed a link so far.
    #[must_use]
    pub fn packet_hops(&self) -> u64 {
        self.wires.packet_hops()
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Packets with data that reached any server so far, of flows and of sessions that arrived.
    #[must_use]
    pub fn data_packets(&self) -> u64 {
        self.flows.iter().map(|flow| flow.counts.data_packets).sum()
    }

    /// Counters of a link.
    ///
    /// # Panics
    /// When the plan has no such link.
    #[must_use]
    pub fn link(&mut self, link: usize) -> LinkStats {
        self.wires.stats(self.now, link)
    }

    /// For how long a link had something on its way out so far.
    ///
    /// # Panics
    /// When the plan has no such link.
    #[must_use]
    pub fn link_busy(&mut self, link: usize) -> Span {
        self.wires.busy(self.now, link)
    }

    /// Packets waiting at a link now, the one on its way out included.
    ///
    /// # Panics
    /// When the plan has no such link.
    #[must_use]
    pub fn backlog(&mut self, link: usize) -> usize {
        self.wires.backlog(self.now, link)
    }

    /// What a flow of the plan has done.
    ///
    /// # Panics
    /// When the plan has no such flow.
    #[must_use]
    pub fn flow(&self, flow: usize) -> FlowState {
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

    /// Stream bytes that wait for earlier ones at a flow's server.
    ///
    /// # Panics
    /// When the plan has no such flow.
    #[must_use]
    pub fn reassembling(&self, flow: usize) -> u64 {
        self.flows[flow].sessions[SERVER].as_ref().map_or(0, Session::bytes_reassembling)
    }

    /// Looks for what is longest and largest from now on: pauses, what waits in receive buffers and at links.
    pub fn begin_measures(&mut self) {
        self.flows.iter_mut().for_each(|flow| flow.begin_measures(self.now));
        self.wires.restart_peaks(self.now);
    }

    /// The datagrams that reached a flow's server, in the order in which they did: their number, and how long they took
    /// from the one application to the other.
    ///
    /// # Panics
    /// When the plan has no such flow.
    #[must_use]
    pub fn datagram_delays(&self, flow: usize) -> &[(u32, Span)] {
        &self.flows[flow].delays
    }

    /// The paths of a flow's client or server; the route's socket is the path's place in the plan. Empty
    /// while there is no session.
    ///
    /// # Panics
    /// When the plan has no such flow.
    #[must_use]
    pub fn paths(&self, flow: usize, server: bool) -> Vec<PathInfo> {
        self.flows[flow].sessions[usize::from(server)].as_ref().map(Session::paths).unwrap_or_default()
    }

    /// As [`Self::paths`], with what was counted on them when the flow ended where it is over: for counters, not for what
    /// changes up and down.
    ///
    /// # Panics
    /// When the plan has no such flow.
    #[must_use]
    pub fn counted_paths(&self, flow: usize, server: bool) -> Vec<PathInfo> {
        self.flows[flow].counted_paths(usize::from(server))
    }

    /// Windows and round-trip times of the paths of a flow's client, as [`Self::paths`] has them.
    ///
    /// # Panics
    /// When the plan has no such flow.
    pub fn path_windows(&self, flow: usize) -> impl Iterator<Item = PathWindow> {
        self.flows[flow].sessions[CLIENT].iter().flat_map(Session::path_windows)
    }

    /// What a source of sessions has done.
    ///
    /// # Panics
    /// When the plan has no such source.
    #[must_use]
    pub fn arrivals(&self, source: usize) -> ArrivalState<'_> {
        let arrivals = &self.arrivals[source].0;
        ArrivalState {
            arrived: arrivals.arrived,
            refused: arrivals.refused,
            completed: &arrivals.completed,
            bytes: arrivals.bytes,
        }
    }

    /// What became of the packets of a source of plain packets.
    ///
    /// # Panics
    /// When the plan has no such source.
    #[must_use]
    pub fn burst(&self, source: usize) -> BurstState {
        let Burst { sent, received, .. } = &self.bursts[source];
        BurstState { sent: *sent, received: *received, lost: self.wires.lost_of(source) }
    }
}
