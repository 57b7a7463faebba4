//! Counters of a network at a time. Two snapshots give rates and shares.

use anabranch_engine::{PathInfo, PathStats};
use anabranch_link::LinkStats;
use anabranch_wire::Span;

use anabranch_sim::network::{BurstState, Decided, FlowState, Network};

/// The size of a network: paths of each flow, cables, sources of sessions, sources of plain packets.
pub(super) type Counts = (Vec<usize>, usize, usize, usize);

/// Counters of a network.
pub(super) struct Snapshot {
    pub flows: Vec<FlowState>,
    /// The counters of each path of each flow.
    pub paths: Vec<Vec<Trouble>>,
    /// For each flow what its path agent decided.
    pub decisions: Vec<Vec<Decided>>,
    pub links: Vec<LinkStats>,
    /// How long each link has been sending.
    pub busy: Vec<Span>,
    pub bursts: Vec<BurstState>,
    pub arrivals: Vec<Arrived>,
    pub packet_hops: u64,
    pub events: u64,
}

/// Counters of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trouble {
    pub sent: u64,
    pub lost: u64,
    pub spurious: u64,
    pub reductions: u64,
    pub timeouts: u64,
    pub failures: u64,
    /// Bytes of UDP payload that the receiving end sent.
    pub returned: u64,
    pub packets_returned: u64,
    /// New stream bytes received, and duplicates.
    pub fresh: u64,
    pub duplicate: u64,
}

impl Trouble {
    /// Of one path of a flow, by its place in the plan.
    fn of(path: usize, client: &[PathInfo], server: &[PathInfo]) -> Self {
        let sum = |paths: &[PathInfo], count: fn(&PathStats) -> u64| {
            let of_it = paths.iter().filter(|info| info.route.socket as usize == path);
            of_it.map(|info| count(&info.stats)).sum()
        };
        Self {
            sent: sum(client, |stats| stats.packets_sent),
            lost: sum(client, |stats| stats.packets_lost),
            spurious: sum(client, |stats| stats.spurious_losses),
            reductions: sum(client, |stats| stats.congestion_events),
            timeouts: sum(client, |stats| stats.probe_timeouts),
            failures: sum(client, |stats| stats.failures),
            returned: sum(server, |stats| stats.bytes_sent),
            packets_returned: sum(server, |stats| stats.packets_sent),
            fresh: sum(server, |stats| stats.data_received),
            duplicate: sum(server, |stats| stats.data_duplicate),
        }
    }
}

/// Counters of a source of sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub arrived: u64,
    pub refused: u64,
    pub completed: usize,
    pub bytes: u64,
}

impl Arrived {
    fn of(network: &Network, source: usize) -> Self {
        let state = network.arrivals(source);
        let (arrived, refused, bytes) = (state.arrived, state.refused, state.bytes);
        Self { arrived, refused, completed: state.completed.len(), bytes }
    }
}

impl Snapshot {
    pub(super) fn take(network: &mut Network, counts: &Counts) -> Self {
        let (flows, cables, arrivals, bursts) = counts;
        let trouble = |(flow, paths): (usize, &usize)| {
            let (client, server) = (network.counted_paths(flow, false), network.counted_paths(flow, true));
            (0..*paths).map(|path| Trouble::of(path, &client, &server)).collect()
        };
        let paths = flows.iter().enumerate().map(trouble).collect();
        Self {
            paths,
            flows: (0..flows.len()).map(|flow| network.flow(flow)).collect(),
            decisions: (0..flows.len()).map(|flow| network.decisions(flow).to_vec()).collect(),
            arrivals: (0..*arrivals).map(|source| Arrived::of(network, source)).collect(),
            bursts: (0..*bursts).map(|source| network.burst(source)).collect(),
            links: (0..cables * 2).map(|link| network.link(link)).collect(),
            busy: (0..cables * 2).map(|link| network.link_busy(link)).collect(),
            packet_hops: network.packet_hops(),
            events: network.events(),
        }
    }
}
