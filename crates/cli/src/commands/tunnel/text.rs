//! A tunnel's status for people.

use std::fmt::Write as _;

use anabranch_tunnel_io::status::{Flow, PeerStatus, Reorder, Status};

use crate::ui::human;

/// Flows shown for each peer.
const MOST_FLOWS: usize = 20;

/// The whole status.
pub fn status(status: &Status) -> String {
    let mut text = format!("{}\n", status.interface);
    if status.streams > 0 {
        let _ = writeln!(text, "  {} in the stream lane", human::count(status.streams as u64, "connection"));
    }
    if status.device_dropped > 0 {
        let _ = writeln!(text, "  {} refused by the kernel", human::count(status.device_dropped, "packet"));
    }
    status.peers.iter().for_each(|status| peer(status, &mut text));
    text
}

fn peer(peer: &PeerStatus, text: &mut String) {
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
        let _ = writeln!(
            text,
            "    path {:<2} {:<10} → {:<24} {:>8.1} Mbit/s  rtt {:>6.1} ms  {}",
            path.id, path.interface, path.remote, path.rate_mbit, path.rtt_ms, path.state
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

/// All flows of all peers.
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
