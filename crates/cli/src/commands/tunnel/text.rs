//! A tunnel's status for people.

use std::fmt::Write as _;

use anabranch_tunnel_io::status::{Flow, PeerStatus, Reorder, Status};

use crate::commands::service::Earlier;
use crate::ui::human;

/// Flows shown for each peer.
const MOST_FLOWS: usize = 20;

/// The whole status, with the paths' rates since the earlier one.
pub fn status(status: &Status, before: &Earlier<'_, Status>) -> String {
    let mut text = format!("{}\n", status.interface);
    if status.streams > 0 {
        let _ = writeln!(text, "  {} in the stream lane", human::count(status.streams as u64, "connection"));
    }
    if status.device_dropped > 0 {
        let _ = writeln!(text, "  {} refused by the kernel", human::count(status.device_dropped, "packet"));
    }
    status.peers.iter().for_each(|status| peer(status, before, &mut text));
    text
}

fn peer(peer: &PeerStatus, before: &Earlier<'_, Status>, text: &mut String) {
    let node = if peer.node.is_empty() { "no session" } else { &peer.node };
    let networks = peer.networks.join(", ");
    let state = if peer.connected { "connected" } else { "not connected" };
    let _ = writeln!(text, "\n  {node}  {networks}  {state}, packets up to {} bytes", peer.mtu);
    let _ = writeln!(
        text,
        "    sent {}, received {}, {} waiting, {} dropped in the queue, {} refused",
        human::bytes(peer.sent.bytes),
        human::bytes(peer.received.bytes),
        human::bytes(peer.queue.bytes as u64),
        peer.queue.dropped + peer.queue.overflowed,
        peer.sent.refused + peer.received.refused,
    );
    for path in &peer.paths {
        let was = |status: &Status| {
            let peer = status.peers.iter().find(|earlier| earlier.node == peer.node)?;
            peer.paths.iter().find(|earlier| earlier.id == path.id).cloned()
        };
        let limit = path.limit_mbit.map_or_else(String::new, |limit| format!("; at most {limit} Mbit/s out"));
        let sent = before.rate(|status| Some(was(status)?.bytes_sent), path.bytes_sent);
        let received = before.rate(|status| Some(was(status)?.bytes_received), path.bytes_received);
        let _ = writeln!(
            text,
            "    path {:<2} {:<10} → {:<24} {sent:>12} out  {received:>12} in  rtt {:>6.1} ms  {}{limit}",
            path.id, path.interface, path.remote, path.rtt_ms, path.state
        );
    }
    if peer.reorder.waited > 0 {
        let Reorder { waited, timed_out, overflowed } = peer.reorder;
        let waited = human::count(waited, "packet");
        let _ = writeln!(
            text,
            "    {waited} waited for earlier ones, {timed_out} gaps given up in time, {overflowed} for size"
        );
    }
    list(&peer.flows[..peer.flows.len().min(MOST_FLOWS)], text);
    if peer.flows.len() > MOST_FLOWS {
        let more = human::count((peer.flows.len() - MOST_FLOWS) as u64, "flow");
        let _ = writeln!(text, "    and {more} more: `anabranch tunnel flows`");
    }
}

pub fn flows(peers: &[PeerStatus]) -> String {
    let mut text = String::new();
    peers.iter().for_each(|peer| list(&peer.flows, &mut text));
    text
}

fn list(flows: &[Flow], text: &mut String) {
    for flow in flows {
        let paths: Vec<String> = flow.paths.iter().map(u32::to_string).collect();
        let on = if paths.is_empty() { String::new() } else { format!(" on path {}", paths.join(", ")) };
        let _ = writeln!(
            text,
            "    {:<56} {:>10} {:>8.1} Mbit/s  {}{on}: {}",
            flow.name,
            human::bytes(flow.bytes),
            flow.rate_mbit,
            flow.lane,
            flow.reason
        );
    }
}

#[cfg(test)]
mod tests {
    use anabranch_tunnel_io::status::Path;

    use super::*;

    #[test]
    fn a_path_that_carries_nothing_has_no_rate_of_earlier() {
        let path = |id, bytes_sent| Path { id, bytes_sent, rate_mbit: 47.0, ..Path::default() };
        let with = |paths| {
            let peer = PeerStatus { paths, ..PeerStatus::default() };
            Status { peers: vec![peer], ..Status::default() }
        };
        let was = with(vec![path(0, 500), path(1, 500)]);
        let now = with(vec![path(0, 500), path(1, 1_000_500)]);
        let text = status(&now, &Earlier { was: &was, ago: 0.5 });
        assert!(text.contains(" 0.0 kbit/s out") && text.contains("16.0 Mbit/s out"), "{text}");
        assert!(!text.contains("47.0"), "{text}");
    }
}
