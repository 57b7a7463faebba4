//! The status of a running tunnel: its link, its paths and its flows.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use anabranch_net::{Session, Time};
use anabranch_tunnel::entry::{FlowPlace, Lane};
use anabranch_tunnel::flow::FlowKey;
use anabranch_wire::Span;
use serde::{Deserialize, Serialize};

use crate::pump::{Link, Traffic};

/// How long a flow is listed after its last packet.
const LISTED: Span = Span::from_secs(30);
/// A flow's rate is measured over so long.
const MEASURED: Span = Span::from_secs(1);
/// Most flows that are remembered.
const MOST: usize = 4096;
/// How often old flows make room for new ones: a look at all of them for each packet of a flood would hold up the packets
/// of all other clients.
const SWEEP: Span = Span::from_secs(1);

/// A running tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The network device.
    pub interface: String,
    /// One for each other end.
    pub peers: Vec<PeerStatus>,
    /// TCP connections that the stream lane carries now.
    pub streams: usize,
    /// Packets that the kernel did not take.
    pub device_dropped: u64,
}

/// The other end of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its key.
    pub node: String,
    /// Its addresses in the tunnel, and the networks behind it.
    pub networks: Vec<String>,
    /// Whether there is a session with it.
    pub connected: bool,
    /// Largest inner packet, in bytes.
    pub mtu: u16,
    /// Inner packets and bytes sent.
    pub sent: Count,
    /// Inner packets and bytes received.
    pub received: Count,
    /// The entry queue.
    pub queue: Queue,
    /// Packets of striped flows that arrived out of order.
    pub reorder: Reorder,
    pub paths: Vec<Path>,
    /// Its recent flows, those with most bytes first.
    pub flows: Vec<Flow>,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
    /// Packets that were not allowed.
    pub refused: u64,
}

/// The entry queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Bytes that wait.
    pub bytes: usize,
    /// Packets dropped because they waited for too long.
    pub dropped: u64,
    /// Packets marked instead (ECN).
    pub marked: u64,
    /// Packets dropped because the queue was full.
    pub overflowed: u64,
}

/// Packets of striped flows that arrived out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reorder {
    /// Packets that waited for earlier ones.
    pub waited: u64,
    /// Gaps given up because packets waited for too long.
    pub timed_out: u64,
    /// Gaps given up because too many packets waited.
    pub overflowed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    pub id: u32,
    /// The interface here.
    pub interface: String,
    /// The address there.
    pub remote: String,
    /// Its state, with the reason.
    pub state: String,
    /// Round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Delivery rate in Mbit/s, when data was last acknowledged.
    pub rate_mbit: f64,
    /// The highest rate for packets to the other end in Mbit/s, if either end limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_mbit: Option<f64>,
    /// Largest UDP payload.
    pub mtu: u16,
    /// Bytes sent, with headers.
    pub bytes_sent: u64,
    /// Bytes received, with headers.
    pub bytes_received: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Protocol, addresses and ports.
    pub name: String,
    /// The lane: `routed`, `striped`, `low-latency`, `redundant` or `protected`.
    pub lane: String,
    /// The paths that it may take now.
    pub paths: Vec<u32>,
    /// Why it has this lane.
    pub reason: String,
    /// Mbit/s in the last second or so.
    pub rate_mbit: f64,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Seconds since its last packet.
    pub idle_s: f64,
}

/// Flows by number.
#[derive(Debug, Default)]
pub(crate) struct FlowBook {
    flows: BTreeMap<u32, Noted>,
    /// When old flows were looked for.
    swept: Option<Time>,
}

#[derive(Debug)]
struct Noted {
    key: FlowKey,
    last: Time,
    packets: u64,
    bytes: u64,
    lane: Lane,
    /// Time and bytes at the start of the running measurement of the rate, and the last result in Mbit/s.
    measured: (Time, u64),
    rate_mbit: f64,
}

/// Packets of a flow that were sent together.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) lane: Lane,
    pub(crate) packets: usize,
    pub(crate) bytes: usize,
}

impl FlowBook {
    /// Notes packets of a flow that were sent.
    pub(crate) fn note(&mut self, now: Time, flow: u32, key: &FlowKey, sent: Sent) {
        let Sent { lane, packets, bytes } = sent;
        if self.flows.len() >= MOST && !self.flows.contains_key(&flow) {
            if self.swept.is_none_or(|swept| now.since(swept) >= SWEEP) {
                self.swept = Some(now);
                self.flows.retain(|_, noted| now.since(noted.last) <= LISTED);
            }
            if self.flows.len() >= MOST {
                return;
            }
        }
        let noted = self.flows.entry(flow).or_insert_with(|| Noted {
            key: *key,
            last: now,
            packets: 0,
            bytes: 0,
            lane,
            measured: (now, 0),
            rate_mbit: 0.0,
        });
        noted.last = now;
        noted.lane = lane;
        noted.packets += packets as u64;
        noted.bytes += bytes as u64;
        let lasted = now.since(noted.measured.0);
        if lasted >= MEASURED {
            noted.rate_mbit = (noted.bytes - noted.measured.1) as f64 * 8e-6 / lasted.as_secs_f64();
            noted.measured = (now, noted.bytes);
        }
    }

    fn recent(&self, now: Time) -> Vec<(u32, &Noted)> {
        let recent = self.flows.iter().filter(|(_, noted)| now.since(noted.last) <= LISTED);
        let mut recent: Vec<_> = recent.map(|(flow, noted)| (*flow, noted)).collect();
        recent.sort_by_key(|(_, noted)| std::cmp::Reverse(noted.bytes));
        recent
    }
}

impl Link {
    /// The state of the link at `now`.
    pub(crate) fn status(&self, now: Time, node: String, networks: Vec<String>) -> PeerStatus {
        let session = self.session();
        let all: Vec<u32> =
            session.iter().flat_map(|session| session.paths()).map(|path| path.id.0).collect();
        let (mut queue, mut flows) = (Queue::default(), Vec::new());
        let book = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        self.entry.look(|entry| {
            let counts = entry.counts();
            queue = Queue {
                bytes: entry.bytes(),
                dropped: counts.dropped,
                marked: counts.marked,
                overflowed: counts.overflowed,
            };
            flows = book
                .recent(now)
                .into_iter()
                .map(|(flow, noted)| noted.describe(now, entry.place_of(flow), &all))
                .collect();
        });
        PeerStatus {
            node,
            networks,
            connected: session.is_some(),
            mtu: self.mtu.load(Ordering::Relaxed),
            sent: count(&self.sent),
            received: count(&self.received),
            queue,
            reorder: session.as_ref().map(reorder).unwrap_or_default(),
            paths: session.as_ref().map(paths).unwrap_or_default(),
            flows,
        }
    }
}

impl Noted {
    fn describe(&self, now: Time, place: Option<FlowPlace>, all: &[u32]) -> Flow {
        let path = place.and_then(|place| place.path).map(|path| path.0);
        let (lane, paths, reason) = match (self.lane, place) {
            (Lane::Auto, None) => ("routed", vec![], "no packet of it came recently"),
            (Lane::Auto, Some(FlowPlace { path: None })) => {
                ("striped", all.to_vec(), "a bulk flow, and all paths together carry more")
            }
            (Lane::Auto, Some(_)) => {
                ("routed", path.into_iter().collect(), "no bulk flow, or striping does not pay")
            }
            (Lane::Routed, _) => {
                ("routed", path.into_iter().collect(), "its class, or the lane that was set")
            }
            (Lane::Striped, _) => ("striped", all.to_vec(), "its class, or the lane that was set"),
            (Lane::LowLatency, _) => ("low-latency", vec![], "its class, its mark, or a ping or name query"),
            (Lane::Redundant, _) => ("redundant", all.to_vec(), "its class, or the lane that was set"),
            (Lane::Protected, _) => ("protected", all.to_vec(), "its class, or the lane that was set"),
        };
        let idle = now.since(self.last);
        Flow {
            name: self.key.to_string(),
            lane: lane.to_owned(),
            paths,
            reason: reason.to_owned(),
            rate_mbit: if idle > MEASURED { 0.0 } else { self.rate_mbit },
            packets: self.packets,
            bytes: self.bytes,
            idle_s: idle.as_secs_f64(),
        }
    }
}

fn reorder(session: &Session) -> Reorder {
    let stats = session.stats();
    Reorder {
        waited: stats.datagrams_reordered,
        timed_out: stats.gaps_timed_out,
        overflowed: stats.gaps_overflowed,
    }
}

fn count(traffic: &Traffic) -> Count {
    Count {
        packets: traffic.packets.load(Ordering::Relaxed),
        bytes: traffic.bytes.load(Ordering::Relaxed),
        refused: traffic.refused.load(Ordering::Relaxed),
    }
}

fn paths(session: &Session) -> Vec<Path> {
    let each = session.paths().into_iter().map(|path| Path {
        id: path.id.0,
        interface: session.interface(&path.route).unwrap_or_default(),
        remote: path.route.remote.to_string(),
        state: format!("{}, {}", format!("{:?}", path.state).to_lowercase(), path.standing),
        rtt_ms: path.rtt.as_secs_f64() * 1e3,
        rate_mbit: path.delivery_rate.as_bits() as f64 / 1e6,
        limit_mbit: path.rate_limit.map(|limit| limit.as_mbit()),
        mtu: path.mtu,
        bytes_sent: path.stats.bytes_sent,
        bytes_received: path.stats.bytes_received,
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use anabranch_tunnel::flow::Detail;
    use anabranch_wire::PathId;

    use super::*;

    #[test]
    fn flows_are_listed_by_bytes_and_forgotten_after_a_while() {
        let mut book = FlowBook::default();
        let key = |port| FlowKey {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: 6,
            detail: Detail::Ports(port, 80),
        };
        book.note(Time::ZERO, 1, &key(1), Sent { lane: Lane::Auto, packets: 1, bytes: 100 });
        book.note(Time::ZERO, 2, &key(2), Sent { lane: Lane::Auto, packets: 2, bytes: 3000 });
        let listed: Vec<u32> = book.recent(Time::ZERO).into_iter().map(|(flow, _)| flow).collect();
        assert_eq!(listed, [2, 1]);
        assert!(book.recent(Time::ZERO + Span::from_secs(31)).is_empty());
        for flow in 0..10_000 {
            book.note(Time::ZERO, flow, &key(9), Sent { lane: Lane::Auto, packets: 1, bytes: 1 });
        }
        assert!(book.flows.len() <= MOST);
    }

    #[test]
    fn a_flow_is_listed_with_lane_paths_rate_and_reason() {
        let mut book = FlowBook::default();
        let key = FlowKey {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: 17,
            detail: Detail::Ports(1, 2),
        };
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        for millis in 0..=1000 {
            book.note(at(millis), 1, &key, Sent { lane: Lane::Auto, packets: 1, bytes: 1250 });
        }
        let noted = &book.flows[&1];
        let routed = noted.describe(at(1000), Some(FlowPlace { path: Some(PathId(3)) }), &[3, 4]);
        assert_eq!((&routed.lane[..], &routed.paths[..]), ("routed", &[3][..]));
        assert!((9.9..10.2).contains(&routed.rate_mbit), "{routed:?}");
        let striped = noted.describe(at(9000), Some(FlowPlace { path: None }), &[3, 4]);
        assert_eq!((&striped.lane[..], &striped.paths[..], striped.rate_mbit), ("striped", &[3, 4][..], 0.0));
        assert_ne!(striped.reason, routed.reason);
    }
}
