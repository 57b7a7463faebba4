use anabranch_engine::Config;
use anabranch_engine::cc::RuleKind;
use anabranch_link::{LinkConfig, LossModel};
use anabranch_wire::{Rate, Span};

use super::*;

mod ahead;
mod tunnels;

fn link(mbit: f64, millis: u64, packets: u64) -> LinkConfig {
    let link = LinkConfig::fixed(Rate::from_mbit(mbit), Span::from_millis(millis), packets * 1500);
    LinkConfig { overhead: 28, ..link }
}

/// A plan with cables of these links, each both ways: cable `n` is link `2n` and back `2n + 1`.
fn plan(cables: &[LinkConfig]) -> Plan {
    let links = cables.iter().flat_map(|cable| [cable.clone(), cable.clone()]).collect();
    Plan { seed: 1, links, ..Plan::default() }
}

fn path(cable: u32) -> PathPlan {
    PathPlan { forward: vec![cable * 2], back: vec![cable * 2 + 1] }
}

fn flow(cables: &[u32], rule: RuleKind, supply: Supply) -> FlowPlan {
    let mut config = Config::tcp();
    config.cc.rule = rule;
    let paths = cables.iter().map(|cable| path(*cable)).collect();
    FlowPlan { supply, ..FlowPlan::bulk(paths, config, (Time::ZERO, Time::NEVER)) }
}

fn secs(secs: f64) -> Time {
    Time::ZERO + Span::from_secs_f64(secs)
}

fn mbit(network: &Network, flow: usize, seconds: f64) -> f64 {
    network.flow(flow).bytes as f64 * 8e-6 / seconds
}

#[test]
fn a_tcp_alone_fills_its_link_and_two_share_it() {
    let mut plan = plan(&[link(10.0, 10, 20)]);
    plan.flows.push(flow(&[0], RuleKind::Reno, Supply::Bulk));
    let mut network = Network::new(plan.clone());
    network.run(secs(20.0));
    assert!(mbit(&network, 0, 20.0) > 8.5, "{}", mbit(&network, 0, 20.0));
    plan.flows.push(flow(&[0], RuleKind::Reno, Supply::Bulk));
    plan.links[0].queue.random_drop = Some(anabranch_link::RandomDrop { places: 4500, probability: 0.1 });
    let mut network = Network::new(plan);
    network.run(secs(60.0));
    let shares = [mbit(&network, 0, 60.0), mbit(&network, 1, 60.0)];
    assert!(shares[0] + shares[1] > 8.5, "{shares:?}");
    assert!((shares[0] / shares[1]).ln().abs() < 0.4, "{shares:?}");
}

#[test]
fn a_multipath_flow_uses_the_sum_of_two_links() {
    let mut plan = plan(&[link(10.0, 10, 40), link(5.0, 20, 40)]);
    plan.flows.push(flow(&[0, 1], RuleKind::Mptcp, Supply::Bulk));
    let mut network = Network::new(plan);
    network.run(secs(20.0));
    assert!(mbit(&network, 0, 20.0) > 12.0, "{}", mbit(&network, 0, 20.0));
    assert_eq!(network.paths(0, false).len(), 2);
}

#[test]
fn a_file_ends_and_its_packets_leave_nothing_behind() {
    let mut plan = plan(&[link(10.0, 10, 20)]);
    plan.links[0].loss = LossModel::Bernoulli(0.02);
    plan.flows.push(flow(&[0], RuleKind::Reno, Supply::File(500_000)));
    let mut network = Network::new(plan);
    network.run(secs(30.0));
    let state = network.flow(0);
    assert_eq!(state.bytes, 500_000);
    assert!(state.finished_at.is_some_and(|at| at > secs(0.4) && at < secs(20.0)), "{state:?}");
    assert_eq!(network.wires.count(), 0);
    assert!(network.link(0).dropped.loss > 0);
}

#[test]
fn a_steady_application_gets_its_rate_and_no_more() {
    let mut plan = plan(&[link(10.0, 10, 20)]);
    let supply = Supply::Steady { rate: Rate::from_mbit(2.0), chunk: 10_000 };
    plan.flows.push(flow(&[0], RuleKind::Reno, supply));
    let mut network = Network::new(plan);
    network.run(secs(20.0));
    let rate = mbit(&network, 0, 20.0);
    assert!(rate > 1.9 && rate < 2.02, "{rate}");
}

#[test]
fn a_script_is_written_at_its_times_and_ends() {
    let mut plan = plan(&[link(10.0, 10, 20)]);
    let entries = [(0.0, 100_000), (2.0, 50_000), (2.0, 10_000)];
    let entries = entries.map(|(at, bytes)| (Span::from_secs_f64(at), bytes));
    let scripted = flow(&[0], RuleKind::Reno, Supply::Script(entries.into()));
    plan.flows.push(FlowPlan { start: secs(1.0), ..scripted });
    let mut network = Network::new(plan);
    let mut read = |at: f64| {
        network.run(secs(at));
        (network.flow(0).bytes, network.flow(0).finished_at)
    };
    assert_eq!(read(0.9), (0, None));
    assert_eq!(read(2.9), (100_000, None));
    let (bytes, finished_at) = read(5.0);
    assert_eq!(bytes, 160_000);
    assert!(finished_at.is_some_and(|at| at > secs(3.04) && at < secs(3.5)), "{finished_at:?}");
}

#[test]
fn a_path_opens_at_its_time_and_not_before_though_nothing_is_sent() {
    let mut plan = plan(&[link(10.0, 10, 40), link(5.0, 20, 40)]);
    let script = Supply::Script([(Span::ZERO, 10_000), (Span::from_secs(9), 10_000)].into());
    let openings = vec![Span::from_secs(2)];
    plan.flows.push(FlowPlan { openings, start: secs(1.0), ..flow(&[0, 1], RuleKind::Reno, script) });
    let mut network = Network::new(plan);
    network.run(secs(2.9));
    assert_eq!(network.paths(0, false).len(), 1);
    network.run(secs(3.1));
    assert_eq!(network.paths(0, false).len(), 2);
}

#[test]
fn acknowledgements_over_no_link_arrive_at_once_and_all_of_them() {
    let mut plan = plan(&[link(10.0, 10, 20)]);
    plan.links[1].loss = LossModel::Bernoulli(1.0);
    let mut wanted = flow(&[0], RuleKind::Reno, Supply::Bulk);
    wanted.paths[0].back.clear();
    plan.flows.push(wanted);
    let mut network = Network::new(plan);
    network.run(secs(10.0));
    assert!(mbit(&network, 0, 10.0) > 8.5, "{}", mbit(&network, 0, 10.0));
    let rtt = network.paths(0, false)[0].min_rtt;
    assert!(rtt >= Span::from_millis(10) && rtt < Span::from_millis(12), "{rtt:?}");
}

#[test]
fn bursts_send_at_their_rate_for_their_share_of_the_time() {
    let mut plan = plan(&[link(100.0, 1, 100)]);
    plan.bursts.push(BurstPlan {
        links: vec![0],
        every: Rate::from_mbit(50.0).time_for(1500),
        packet: 1472,
        on: Duration::Exponential(Span::from_millis(10)),
        off: Duration::Uniform(Span::from_millis(30)),
        start: Time::ZERO,
        stop: secs(100.0),
    });
    let mut network = Network::new(plan);
    network.run(secs(101.0));
    let BurstState { sent, received, lost } = network.burst(0);
    let mbit = sent as f64 * 1472.0 * 8e-6 / 100.0;
    assert_eq!((sent, lost), (received, 0));
    assert!((mbit - 12.5).abs() < 0.8, "{mbit}");
}

#[test]
fn arrivals_come_at_their_rate_and_leave_when_their_file_is_there() {
    let mut plan = plan(&[link(100.0, 1, 100)]);
    plan.arrivals.push(ArrivalPlan {
        phases: vec![(10.0, Span::from_secs(10)), (40.0, Span::from_secs(10))],
        sizes: Sizes::Pareto { mean: 50_000.0, shape: 1.8 },
        paths: vec![path(0)],
        config: Config::tcp().into(),
        start: Time::ZERO,
        stop: secs(100.0),
    });
    let mut network = Network::new(plan);
    network.run(secs(130.0));
    let state = network.arrivals(0);
    assert!((state.arrived as f64 - 2500.0).abs() < 200.0, "{}", state.arrived);
    assert_eq!((state.refused, state.completed.len() as u64), (0, state.arrived));
    assert!(network.flows.len() < 100, "{} places", network.flows.len());
    assert_eq!(network.wires.count(), 0);
}

#[test]
fn the_script_cuts_and_mends_links() {
    let mut plan = plan(&[link(10.0, 10, 20)]);
    plan.flows.push(flow(&[0], RuleKind::Reno, Supply::Bulk));
    for (at, down) in [(5.0, true), (10.0, false)] {
        plan.script.push(Change { at: secs(at), link: 0, what: LinkChange::Down(down) });
    }
    let mut network = Network::new(plan);
    network.run(secs(5.5));
    let before = network.flow(0).bytes;
    network.run(secs(10.0));
    assert_eq!(network.flow(0).bytes, before);
    network.run(secs(20.0));
    assert!(network.flow(0).bytes > before * 3 / 2, "{} after {before}", network.flow(0).bytes);
}

#[test]
fn the_same_plan_gives_the_same_run_and_another_seed_another() {
    let run = |seed| {
        let mut plan = plan(&[link(10.0, 10, 20), link(5.0, 20, 20)]);
        plan.seed = seed;
        plan.links[0].loss = LossModel::Bernoulli(0.01);
        plan.flows.push(flow(&[0, 1], RuleKind::Mptcp, Supply::Bulk));
        plan.flows.push(flow(&[0], RuleKind::Reno, Supply::Bulk));
        let mut network = Network::new(plan);
        network.run(secs(5.0));
        (network.flow(0).bytes, network.flow(1).bytes, network.events(), network.packet_hops())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_queue_that_fills_over_a_long_round_trip_is_no_timeout() {
    // Acknowledgements arrive ever later; RFC 6298 §5.3 restarts the timer each time.
    let mut plan = plan(&[link(3.0, 250, 125)]);
    plan.flows.push(flow(&[0], RuleKind::Reno, Supply::Bulk));
    let mut network = Network::new(plan);
    network.run(secs(120.0));
    let stats = network.paths(0, false)[0].stats;
    assert!(stats.probe_timeouts <= 1 && stats.spurious_losses * 1000 < stats.packets_sent, "{stats:?}");
    assert!(mbit(&network, 0, 120.0) > 2.0, "{}", mbit(&network, 0, 120.0));
}

#[test]
fn packets_taken_in_side_by_side_change_nothing() {
    // Two senders and two receivers with their own links around one shared cable: links may run ahead.
    let mut plan = Plan { seed: 1, links: vec![link(100.0, 1, 20); 10], ..Plan::default() };
    for hops in [([0, 2, 3], [5, 6, 7]), ([1, 2, 4], [8, 6, 9])] {
        let mut flow = flow(&[0], RuleKind::Reno, Supply::Bulk);
        flow.paths = vec![PathPlan { forward: hops.0.to_vec(), back: hops.1.to_vec() }];
        plan.flows.push(flow);
    }
    let run = |looks_on: bool| {
        let mut network = Network::new(plan.clone());
        assert!(network.wires.ahead_of(Time::ZERO).is_some());
        if looks_on {
            // Capturing delivers packets one by one.
            network.capture();
        }
        run_on(&mut network, 3.0);
        let flows =
            [network.flow(0), network.flow(1)].map(|flow| (flow.bytes, flow.data_packets, flow.client));
        (flows, network.packet_hops(), network.link(2), network.batch.rounds)
    };
    let (side_by_side, in_turn) = (run(false), run(true));
    assert!(side_by_side.3 > 1000 && in_turn.3 == 0, "{} and {}", side_by_side.3, in_turn.3);
    assert_eq!((side_by_side.0, side_by_side.1, side_by_side.2), (in_turn.0, in_turn.1, in_turn.2));
}

#[test]
fn sessions_of_all_arrivals_together_are_bounded() {
    let mut plan = plan(&[link(0.1, 1, 100)]);
    plan.limits.sessions = 1_000;
    for _ in 0..3 {
        plan.arrivals.push(ArrivalPlan {
            phases: vec![(1_000.0, Span::from_secs(10))],
            sizes: Sizes::Fixed(1_000_000),
            paths: vec![path(0)],
            config: Config::tcp().into(),
            start: Time::ZERO,
            stop: secs(1.0),
        });
    }
    let mut network = Network::new(plan);
    network.run(secs(1.0));
    let states = [0, 1, 2].map(|source| network.arrivals(source));
    let (arrived, refused): (u64, u64) =
        (states.iter().map(|state| state.arrived).sum(), states.iter().map(|state| state.refused).sum());
    assert!(arrived > 2_500, "{arrived}");
    assert_eq!((network.flows.len(), arrived - refused), (1_000, 1_000));
}

/// Runs a network up to a time, and takes captured packets whenever it waits for that.
fn run_on(network: &mut Network, until: f64) -> Vec<Captured> {
    let mut packets = Vec::new();
    loop {
        network.run(secs(until));
        let captured = network.take_captured();
        if captured.is_empty() {
            return packets;
        }
        packets.extend(captured);
    }
}

#[test]
fn time_does_not_go_back_for_anybody() {
    // Many flows over links with short queues: sometimes a path's probe timeout becomes shorter than its silence.
    let mut plan = plan(&[link(10.0, 1, 10), link(10.0, 5, 10), link(2.0, 1, 60), link(10.0, 2, 30)]);
    for _ in 0..40 {
        plan.flows.push(flow(&[0, 1, 2, 3], RuleKind::Mptcp, Supply::Bulk));
    }
    let mut network = Network::new(plan);
    network.capture();
    let packets = run_on(&mut network, 10.0);
    let back = packets.windows(2).filter(|pair| pair[1].at < pair[0].at).count();
    assert_eq!((packets.len() > 10_000, back), (true, 0));
}
