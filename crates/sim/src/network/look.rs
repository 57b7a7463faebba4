//! What can be seen of a network between two runs.

use anabranch_engine::{PathInfo, PathWindow, Session, SessionStats};
use anabranch_link::LinkStats;
use anabranch_wire::{Span, Time};

use super::Network;
use super::flow::{CLIENT, SERVER};

/// What a flow has done, to be read between two runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowState {
    /// Stream bytes that the server has read.
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
    /// [`Network::begin_pauses`].
    pub pause: Span,
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

impl Network {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
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
        }
    }

    /// Counts the pauses of all flows from now on.
    pub fn begin_pauses(&mut self) {
        self.flows.iter_mut().for_each(|flow| flow.begin_pauses(self.now));
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

    /// Packets sent and received of a source of plain packets.
    ///
    /// # Panics
    /// When the plan has no such source.
    #[must_use]
    pub fn burst(&self, source: usize) -> (u64, u64) {
        (self.bursts[source].sent, self.bursts[source].received)
    }
}
