//! A relay's counters and state, for people, programs and Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anabranch_net::{Endpoint, EndpointStats, SocketInfo};
use anabranch_overlay::relay::{Dropped, KeyStats, RelayStats};
use anabranch_overlay::sense::{LinkTold, SensorStats};
use serde::{Deserialize, Serialize};

use crate::controller::registration::Standing;
use anabranch_node::ControllerHint;

/// A relay's state at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its public key.
    pub node: String,
    /// The addresses it listens on.
    pub addresses: Vec<String>,
    /// The interfaces of these addresses.
    #[serde(default)]
    pub interfaces: Vec<InterfaceStatus>,
    /// Seconds since it was started.
    pub uptime_s: f64,
    /// Whether it is draining and accepts no new paths.
    pub draining: bool,
    /// Sessions of clients.
    pub sessions: usize,
    /// Paths through it.
    pub flows: usize,
    pub forwarded_packets: u64,
    /// Bytes of UDP payload forwarded.
    pub forwarded_bytes: u64,
    /// Bytes that wait in queues.
    pub waiting_bytes: u64,
    /// Questions sent to next hops.
    pub challenges: u64,
    /// Packets dropped, by reason.
    pub dropped: Dropped,
    /// Sessions refused.
    pub refused: u64,
    /// The users.
    pub users: Vec<UserStatus>,
    /// The controllers that it registers with.
    pub controllers: Vec<ControllerStatus>,
    /// Its links to the relays that it measures.
    #[serde(default)]
    pub links: Vec<LinkStatus>,
    /// Bytes sent for measurements, headers included.
    #[serde(default)]
    pub sensing_bytes: u64,
}

/// An address on an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// The interface's name.
    pub name: String,
    /// The address with its port.
    pub address: String,
    /// Packets received there, and sent.
    pub packets: [u64; 2],
    /// Bytes of UDP payload received there.
    #[serde(default)]
    pub received_bytes: u64,
}

impl InterfaceStatus {
    fn new(socket: &SocketInfo) -> Self {
        Self {
            name: socket.place.interface.to_string(),
            address: socket.local.to_string(),
            packets: [socket.stats.received, socket.stats.sent],
            received_bytes: socket.stats.received_bytes,
        }
    }
}

/// A link to another relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The other relay's key.
    pub to: String,
    /// Whether anything gets through.
    pub up: bool,
    /// Round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Loss there and back, 0 to 1.
    pub loss: [f64; 2],
    /// Queueing delay there and back, in milliseconds.
    pub queue_ms: [f64; 2],
    /// Capacity towards the other relay in Mbit/s, if a packet train has measured it.
    #[serde(default)]
    pub capacity_mbit_s: Option<f64>,
    /// The part of the capacity that is unused.
    #[serde(default)]
    pub available_mbit_s: Option<f64>,
}

impl LinkStatus {
    fn new(told: &LinkTold) -> Self {
        Self {
            to: told.to.to_string(),
            up: told.up,
            rtt_ms: f64::from(told.rtt[0]) / 1e3,
            loss: told.loss.map(|loss| f64::from(loss) / 1e4),
            queue_ms: told.queue.map(|micros| f64::from(micros) / 1e3),
            capacity_mbit_s: mbits(told.capacity),
            available_mbit_s: mbits(told.available),
        }
    }
}

fn mbits(kbits: u32) -> Option<f64> {
    (kbits > 0).then(|| f64::from(kbits) / 1e3)
}

/// A relay's registration with a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerStatus {
    /// The controller's key and addresses.
    pub at: String,
    /// Whether it knows the relay.
    pub registered: bool,
    /// The state in words, with the reason if it is not registered.
    pub standing: String,
}

/// Limits and usage of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStatus {
    /// The user's key.
    pub key: String,
    /// The user's name in the configuration; empty without one.
    #[serde(default)]
    pub name: String,
    /// Sessions, those of guests included.
    pub sessions: u32,
    /// Paths, those of guests included.
    pub flows: usize,
    /// Bytes that may still be forwarded; `None` without a limit.
    pub bytes_left: Option<u64>,
}

impl Status {
    pub(super) fn new(
        endpoint: &Endpoint,
        (stats, keys): (&RelayStats, &[KeyStats]),
        (uptime, draining): (Duration, bool),
    ) -> Self {
        let EndpointStats { malformed, refused, busy, unknown_pid, .. } = endpoint.stats();
        let drop = stats.dropped;
        let user = |key: &KeyStats| UserStatus {
            key: key.key.to_string(),
            name: String::new(),
            sessions: key.sessions,
            flows: key.flows,
            bytes_left: key.limits.map(|limits| limits.bytes).filter(|bytes| *bytes < u64::MAX / 2),
        };
        Self {
            node: endpoint.node().to_string(),
            addresses: endpoint.local_addresses().iter().map(ToString::to_string).collect(),
            interfaces: endpoint.sockets().iter().map(InterfaceStatus::new).collect(),
            uptime_s: uptime.as_secs_f64(),
            draining,
            sessions: stats.sessions,
            flows: stats.flows,
            forwarded_packets: stats.forwarded.packets,
            forwarded_bytes: stats.forwarded.bytes,
            waiting_bytes: stats.waiting,
            challenges: stats.challenges,
            dropped: Dropped {
                malformed: drop.malformed + malformed,
                unknown_pid: drop.unknown_pid + unknown_pid,
                ..drop
            },
            refused: refused + busy,
            users: keys.iter().map(user).collect(),
            controllers: Vec::new(),
            links: Vec::new(),
            sensing_bytes: 0,
        }
    }

    /// Adds registrations and links.
    pub(super) fn with(
        mut self,
        standings: &[(ControllerHint, Standing)],
        (links, sensor): &(Vec<LinkTold>, SensorStats),
    ) -> Self {
        self.links = links.iter().map(LinkStatus::new).collect();
        self.sensing_bytes = sensor.bytes;
        let status = |(hint, standing): &(ControllerHint, Standing)| ControllerStatus {
            at: hint.to_string(),
            registered: standing.is_registered(),
            standing: standing.to_string(),
        };
        self.controllers = standings.iter().map(status).collect();
        self
    }

    /// Adds the names of users by their keys.
    pub(super) fn named(mut self, names: &BTreeMap<String, String>) -> Self {
        for user in &mut self.users {
            user.name = names.get(&user.key).cloned().unwrap_or_default();
        }
        self
    }

    /// Bytes of UDP payload received on all interfaces.
    pub fn received_bytes(&self) -> u64 {
        self.interfaces.iter().map(|interface| interface.received_bytes).sum()
    }

    /// The status in Prometheus' text format 0.0.4.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        let mut put = |kind: &str, name: &str, help: &str, samples: &[(String, f64)]| {
            // Writing to a string does not fail.
            let _ =
                writeln!(text, "# HELP anabranch_relay_{name} {help}\n# TYPE anabranch_relay_{name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "anabranch_relay_{name}{labels} {value}");
            }
        };
        let one = |value: f64| vec![(String::new(), value)];
        put("gauge", "uptime_seconds", "Seconds since the start", &one(self.uptime_s));
        put("gauge", "draining", "1 while no new paths are taken", &one(f64::from(u8::from(self.draining))));
        put("gauge", "sessions", "Sessions of clients", &one(self.sessions as f64));
        put("gauge", "flows", "Paths through the relay", &one(self.flows as f64));
        put("gauge", "waiting_bytes", "Bytes that wait to leave", &one(self.waiting_bytes as f64));
        put("counter", "forwarded_packets_total", "Packets forwarded", &one(self.forwarded_packets as f64));
        put("counter", "forwarded_bytes_total", "UDP payload forwarded", &one(self.forwarded_bytes as f64));
        put("counter", "received_bytes_total", "UDP payload received", &one(self.received_bytes() as f64));
        put("counter", "challenges_total", "Questions sent to next hops", &one(self.challenges as f64));
        put("counter", "refused_sessions_total", "Sessions refused", &one(self.refused as f64));
        let reasons = [
            ("malformed", self.dropped.malformed),
            ("unknown_pid", self.dropped.unknown_pid),
            ("wrong_source", self.dropped.wrong_source),
            ("wrong_kind", self.dropped.wrong_kind),
            ("hop_limit", self.dropped.hop_limit),
            ("no_consent", self.dropped.no_consent),
            ("too_long", self.dropped.too_long),
            ("quota", self.dropped.quota),
            ("congested", self.dropped.congested),
        ];
        let dropped = reasons.map(|(why, count)| (format!("{{reason=\"{why}\"}}"), count as f64));
        put("counter", "dropped_packets_total", "Packets dropped", &dropped);
        let users = self.users.iter().map(|user| (format!("{{key=\"{}\"}}", user.key), user.flows as f64));
        let controllers = self.controllers.iter().map(|controller| {
            let node = controller.at.split('@').next().unwrap_or_default();
            (format!("{{key=\"{node}\"}}"), f64::from(u8::from(controller.registered)))
        });
        let label = |link: &LinkStatus| format!("{{to=\"{}\"}}", link.to);
        let rtts = self.links.iter().map(|link| (label(link), link.rtt_ms / 1e3)).collect::<Vec<_>>();
        let up =
            self.links.iter().map(|link| (label(link), f64::from(u8::from(link.up)))).collect::<Vec<_>>();
        put("gauge", "link_rtt_seconds", "Round-trip time to another relay", &rtts);
        put("gauge", "link_up", "1 while anything gets through to another relay", &up);
        put("counter", "sensing_bytes_total", "Sent to measure links", &one(self.sensing_bytes as f64));
        put("gauge", "registered", "1 while a controller knows the relay", &controllers.collect::<Vec<_>>());
        put("gauge", "user_flows", "Paths of a user", &users.collect::<Vec<_>>());
        text
    }
}
