//! Inner flows through the tunnel's core, over modelled links.

use anabranch_engine::MtuConfig;
use anabranch_tunnel::entry::Lane;
use anabranch_tunnel::session::{MTU, session_config};

use super::*;
use crate::network::{InTunnel, TunnelPlan};

/// UDP payload of the largest inner packet.
const INNER: u16 = MTU - 28;

/// A tunnel over these cables with a TCP flow in each of these lanes.
fn tunnel(cables: &[LinkConfig], lanes: &[Option<Lane>]) -> Plan {
    let mut plan = plan(cables);
    let paths = (0..cables.len() as u32).map(path).collect();
    plan.tunnels.push(TunnelPlan { paths, config: session_config().into() });
    for lane in lanes {
        let mut inner = flow(&[], RuleKind::Cubic, Supply::Bulk);
        let mut config = Config::clone(&inner.config);
        config.mtu = MtuConfig { base: INNER, max: INNER };
        inner.config = config.into();
        inner.tunnel = Some(InTunnel { tunnel: 0, lane: *lane, is_tcp: true });
        plan.flows.push(inner);
    }
    plan
}

/// Goodput in Mbit/s of one TCP flow over two links of 20 Mbit/s, from the fifth to the fifteenth second.
fn over_two(lane: Option<Lane>, millis: [u64; 2]) -> f64 {
    let cables = millis.map(|millis| link(20.0, millis, 100));
    let mut network = Network::new(tunnel(&cables, &[lane]));
    network.run(secs(5.0));
    let before = network.flow(0).bytes;
    network.run(secs(15.0));
    (network.flow(0).bytes - before) as f64 * 8e-7
}

#[test]
fn one_inner_tcp_gets_both_links_as_a_stream_and_striped_and_one_when_routed() {
    let [stream, striped, auto, routed] = [None, Some(Lane::Striped), Some(Lane::Auto), Some(Lane::Routed)]
        .map(|lane| over_two(lane, [10, 12]));
    println!("stream {stream:.2}, striped {striped:.2}, auto {auto:.2}, routed {routed:.2} Mbit/s");
    assert!(stream > 37.0, "{stream}");
    assert!(striped > 35.0 && auto > 35.0, "{striped} {auto}");
    assert!((17.0..19.0).contains(&routed), "{routed}");
}

#[test]
fn a_stream_gets_both_links_and_auto_one_of_them_when_their_delays_differ_much() {
    let [stream, auto] = [None, Some(Lane::Auto)].map(|lane| over_two(lane, [5, 80]));
    println!("stream {stream:.2}, auto {auto:.2} Mbit/s");
    assert!(stream > 36.0 && auto > 17.0, "{stream} {auto}");
}

#[test]
fn files_end_and_flows_share_a_tunnel() {
    let cables = [link(20.0, 10, 100), link(20.0, 12, 100)];
    let mut plan = tunnel(&cables, &[None, Some(Lane::Striped), Some(Lane::Routed)]);
    plan.flows.iter_mut().for_each(|flow| flow.supply = Supply::File(2_000_000));
    let mut network = Network::new(plan);
    network.run(secs(10.0));
    for flow in 0..3 {
        let state = network.flow(flow);
        assert!(state.finished_at.is_some_and(|at| at < secs(4.0)), "{flow}: {state:?}");
        assert_eq!(state.bytes, 2_000_000, "{flow}");
        assert!(state.pause.is_some_and(|pause| pause < secs(4.0).since(Time::ZERO)), "{flow}: {state:?}");
    }
}

#[test]
fn the_data_of_one_stream_is_not_late_because_another_has_sent_more() {
    let mut plan = tunnel(&[link(20.0, 10, 100)], &[None, None]);
    plan.flows[1].start = secs(5.0);
    let mut network = Network::new(plan);
    let carrier = network.tunnel_session(0);
    network.run(secs(5.0));
    let before = network.flow(carrier);
    network.run(secs(8.0));
    let after = network.flow(carrier);
    let late = after.late_packets - before.late_packets;
    assert!(late * 4 < after.data_packets - before.data_packets, "{before:?} {after:?}");
}

#[test]
fn many_streams_with_small_windows_fill_a_near_and_a_far_path() {
    let mut plan = tunnel(&[link(50.0, 5, 250), link(20.0, 50, 250)], &[None; 8]);
    let mut config = session_config();
    config.memory.initial_window = 256 << 10;
    plan.tunnels[0].config = config.into();
    let mut network = Network::new(plan);
    let bytes = |network: &Network| (0..8).map(|flow| network.flow(flow).bytes).sum::<u64>();
    network.run(secs(3.0));
    let before = bytes(&network);
    network.run(secs(8.0));
    let mbit = (bytes(&network) - before) as f64 * 8e-6 / 5.0;
    assert!(mbit > 63.0, "{mbit}");
}
