//! The status of a running tunnel: its link, its paths and its flows.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use anabranch_net::{Session, Time};
use anabranch_tunnel::flow::FlowKey;
use anabranch_wire::Span;
use serde::{Deserialize, Serialize};

use crate::pump::{Link, Traffic};

/// How long a flow is listed after its last packet.
const LISTED: Span = Span::from_secs(30);
/// Most flows that are remembered.
const MOST: usize = 4096;

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
    /// Its paths.
    pub paths: Vec<Path>,
    /// Its recent flows, those with most bytes first.
    pub flows: Vec<Flow>,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
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

/// A path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Its number.
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
    /// Largest UDP payload.
    pub mtu: u16,
    /// Bytes sent, with headers.
    pub bytes_sent: u64,
    /// Bytes received, with headers.
    pub bytes_received: u64,
}

/// A flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Protocol, addresses and ports.
    pub name: String,
    /// The lane, and for a routed flow its path.
    pub lane: String,
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
}

#[derive(Debug)]
struct Noted {
    key: FlowKey,
    last: Time,
    packets: u64,
    bytes: u64,
}

impl FlowBook {
    pub(crate) fn note(&mut self, now: Time, flow: u32, key: &FlowKey, (packets, bytes): (usize, usize)) {
        if self.flows.len() >= MOST && !self.flows.contains_key(&flow) {
            self.flows.retain(|_, noted| now.since(noted.last) <= LISTED);
            if self.flows.len() >= MOST {
                return;
            }
        }
        let noted =
            self.flows.entry(flow).or_insert_with(|| Noted { key: *key, last: now, packets: 0, bytes: 0 });
        noted.last = now;
        noted.packets += packets as u64;
        noted.bytes += bytes as u64;
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
                .map(|(flow, noted)| Flow {
                    name: noted.key.to_string(),
                    lane: match entry.place_of(flow).map(|place| place.path) {
                        None => "by class".to_owned(),
                        Some(None) => "striped over all paths".to_owned(),
                        Some(Some(path)) => format!("routed over path {}", path.0),
                    },
                    packets: noted.packets,
                    bytes: noted.bytes,
                    idle_s: now.since(noted.last).as_secs_f64(),
                })
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
            paths: session.as_ref().map(paths).unwrap_or_default(),
            flows,
        }
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
        state: format!("{:?}, {}", path.state, path.standing).to_lowercase(),
        rtt_ms: path.rtt.as_secs_f64() * 1e3,
        rate_mbit: path.delivery_rate.as_bits() as f64 / 1e6,
        mtu: path.mtu,
        bytes_sent: path.stats.bytes_sent,
        bytes_received: path.stats.bytes_received,
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use anabranch_tunnel::flow::Detail;

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
        book.note(Time::ZERO, 1, &key(1), (1, 100));
        book.note(Time::ZERO, 2, &key(2), (2, 3000));
        let listed: Vec<u32> = book.recent(Time::ZERO).into_iter().map(|(flow, _)| flow).collect();
        assert_eq!(listed, [2, 1]);
        assert!(book.recent(Time::ZERO + Span::from_secs(31)).is_empty());
        for flow in 0..10_000 {
            book.note(Time::ZERO, flow, &key(9), (1, 1));
        }
        assert!(book.flows.len() <= MOST);
    }
}
