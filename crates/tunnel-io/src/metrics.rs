//! A tunnel's status as metrics for Prometheus (text format 0.0.4).

use std::fmt::Write as _;

use crate::status::{Path, PeerStatus, Status};

/// A metric's name and type, and its value for a peer or a path.
type Metric<T, V> = (&'static str, fn(&T) -> V);

impl Status {
    /// All metrics.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        let whole = [
            ("anabranch_tunnel_streams gauge", self.streams as u64),
            ("anabranch_tunnel_device_dropped_packets_total counter", self.device_dropped),
        ];
        for (what, value) in whole {
            let name = head(&mut text, what);
            let _ = writeln!(text, "{name} {value}");
        }
        let of_peers: [Metric<PeerStatus, u64>; 15] = [
            ("anabranch_tunnel_peer_connected gauge", |peer| u64::from(peer.connected)),
            ("anabranch_tunnel_peer_mtu_bytes gauge", |peer| u64::from(peer.mtu)),
            ("anabranch_tunnel_sent_packets_total counter", |peer| peer.sent.packets),
            ("anabranch_tunnel_sent_bytes_total counter", |peer| peer.sent.bytes),
            ("anabranch_tunnel_too_large_packets_total counter", |peer| peer.sent.refused),
            ("anabranch_tunnel_received_packets_total counter", |peer| peer.received.packets),
            ("anabranch_tunnel_received_bytes_total counter", |peer| peer.received.bytes),
            ("anabranch_tunnel_refused_packets_total counter", |peer| peer.received.refused),
            ("anabranch_tunnel_waiting_bytes gauge", |peer| peer.queue.bytes as u64),
            ("anabranch_tunnel_dropped_packets_total counter", |peer| peer.queue.dropped),
            ("anabranch_tunnel_marked_packets_total counter", |peer| peer.queue.marked),
            ("anabranch_tunnel_overflowed_packets_total counter", |peer| peer.queue.overflowed),
            ("anabranch_tunnel_reordered_packets_total counter", |peer| peer.reorder.waited),
            ("anabranch_tunnel_reorder_timeouts_total counter", |peer| peer.reorder.timed_out),
            ("anabranch_tunnel_reorder_overflows_total counter", |peer| peer.reorder.overflowed),
        ];
        for (what, value) in of_peers {
            let name = head(&mut text, what);
            for peer in &self.peers {
                let _ = writeln!(text, "{name}{{peer=\"{}\"}} {}", peer.node, value(peer));
            }
        }
        self.write_paths(&mut text);
        text
    }

    fn write_paths(&self, text: &mut String) {
        let of_paths: [Metric<Path, f64>; 4] = [
            ("anabranch_tunnel_path_sent_bytes_total counter", |path| path.bytes_sent as f64),
            ("anabranch_tunnel_path_received_bytes_total counter", |path| path.bytes_received as f64),
            ("anabranch_tunnel_path_rtt_seconds gauge", |path| path.rtt_ms / 1e3),
            ("anabranch_tunnel_path_rate_bits gauge", |path| path.rate_mbit * 1e6),
        ];
        for (what, value) in of_paths {
            let name = head(text, what);
            for peer in &self.peers {
                for path in &peer.paths {
                    // The kernel allows a quote in an interface's name.
                    let interface = path.interface.replace(['"', '\\', '\n'], "_");
                    let labels =
                        format!("peer=\"{}\",path=\"{}\",interface=\"{interface}\"", peer.node, path.id);
                    let _ = writeln!(text, "{name}{{{labels}}} {}", value(path));
                }
            }
        }
    }
}

/// Writes the line with a metric's type; returns its name.
fn head<'a>(text: &mut String, what: &'a str) -> &'a str {
    let _ = writeln!(text, "# TYPE {what}");
    what.split(' ').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Reorder;

    #[test]
    fn every_peer_and_path_has_its_lines() {
        let path = Path { id: 2, interface: "a\"b".into(), bytes_sent: 7, ..Path::default() };
        let reorder = Reorder { overflowed: 3, ..Reorder::default() };
        let node = "ab1x".to_owned();
        let peer = PeerStatus { node, connected: true, reorder, paths: vec![path], ..PeerStatus::default() };
        let text = Status { peers: vec![peer], ..Status::default() }.to_prometheus();
        for line in [
            "# TYPE anabranch_tunnel_peer_connected gauge",
            "anabranch_tunnel_peer_connected{peer=\"ab1x\"} 1",
            "anabranch_tunnel_reorder_overflows_total{peer=\"ab1x\"} 3",
            "anabranch_tunnel_path_sent_bytes_total{peer=\"ab1x\",path=\"2\",interface=\"a_b\"} 7",
            "anabranch_tunnel_streams 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
