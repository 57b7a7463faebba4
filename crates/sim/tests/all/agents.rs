//! The path agent in virtual time: the race at the start, relays that die or turn slow, and interfaces that come and go.

use std::sync::Arc;

use anabranch_engine::Config;
use anabranch_link::{LinkConfig, RateModel};
use anabranch_sim::network::{
    AgentPlan, Change, Decision, FlowPlan, InterfaceChange, LinkChange, Network, PathPlan, Plan,
};
use anabranch_wire::{Rate, Span, Time};

fn link(mbit: f64, millis: u64) -> LinkConfig {
    LinkConfig::fixed(Rate::from_mbit(mbit), Span::from_millis(millis), 120 * 1500)
}

fn secs(secs: f64) -> Time {
    Time::ZERO + Span::from_secs_f64(secs)
}

/// An endless flow over cables of these links; the first `direct` are direct paths.
fn plan(cables: &[LinkConfig], direct: usize, relays_at_once: usize) -> Plan {
    let links = cables.iter().flat_map(|cable| [cable.clone(), cable.clone()]).collect();
    let path = |cable: u32| PathPlan { forward: vec![cable * 2], back: vec![cable * 2 + 1] };
    let agent = AgentPlan { direct, relays_at_once, interfaces: Vec::new() };
    let paths = (0..cables.len() as u32).map(path).collect();
    let flow = FlowPlan::bulk(paths, Config::default(), (Time::ZERO, Time::NEVER));
    let flow = FlowPlan { agent: Some(Arc::new(agent)), ..flow };
    Plan { seed: 1, links, flows: vec![flow], ..Plan::default() }
}

/// Changes both directions of a cable.
fn change(plan: &mut Plan, at: f64, cable: u32, what: &LinkChange) {
    for link in [cable * 2, cable * 2 + 1] {
        plan.script.push(Change { at: secs(at), link, what: what.clone() });
    }
}

/// When the first such decision after `since` was made, in seconds.
fn decided(network: &Network, what: impl Fn(&Decision) -> bool, since: f64) -> Option<f64> {
    let decided = network.decisions(0).iter();
    decided
        .map(|one| (one.after.as_secs_f64(), one.what))
        .find(|(at, one)| *at >= since && what(one))
        .map(|(at, _)| at)
}

fn bytes_between(network: &mut Network, from: f64, to: f64) -> u64 {
    network.run(secs(from));
    let before = network.flow(0).bytes;
    network.run(secs(to));
    network.flow(0).bytes - before
}

#[test]
fn a_session_begins_although_its_first_path_is_dead_and_takes_it_up_when_it_works() {
    let mut plan = plan(&[link(10.0, 10), link(10.0, 20)], 2, 0);
    change(&mut plan, 0.0, 0, &LinkChange::Down(true));
    change(&mut plan, 20.0, 0, &LinkChange::Down(false));
    let mut network = Network::new(plan);
    assert!(bytes_between(&mut network, 0.0, 5.0) > 4_000_000, "{:?}", network.flow(0));
    let [alone, both] = [bytes_between(&mut network, 10.0, 20.0), bytes_between(&mut network, 100.0, 110.0)];
    assert!(both > alone * 8 / 5, "{alone} bytes over one path, {both} over two: {:?}", network.decisions(0));
}

#[test]
fn relays_carry_the_session_when_no_direct_path_works() {
    let mut plan = plan(&[link(10.0, 10), link(10.0, 20), link(10.0, 30)], 1, 1);
    change(&mut plan, 0.0, 0, &LinkChange::Down(true));
    let mut network = Network::new(plan);
    assert!(bytes_between(&mut network, 0.0, 5.0) > 3_000_000, "{:?}", network.decisions(0));
}

/// The direct path opens after ten seconds, and is slower than the one through the relay.
#[test]
fn a_direct_path_joins_the_one_through_a_relay_without_a_pause_and_both_carry_data() {
    let mut plan = plan(&[link(8.0, 10), link(12.0, 30)], 1, 1);
    change(&mut plan, 0.0, 0, &LinkChange::Down(true));
    change(&mut plan, 9.0, 0, &LinkChange::Down(false));
    let mut agent = AgentPlan::clone(plan.flows[0].agent.as_ref().unwrap());
    // As a peer's address that becomes known, this has the agent try the route at once.
    let interface = |after: u64, is_up| InterfaceChange { after: Span::from_secs(after), path: 0, is_up };
    agent.interfaces = vec![interface(5, false), interface(10, true)];
    plan.flows[0].agent = Some(Arc::new(agent));
    let mut network = Network::new(plan);
    let alone = bytes_between(&mut network, 5.0, 9.0);
    let (mut before, mut moved_at, mut pause) = (network.flow(0).bytes, 9.0, 0.0_f64);
    for step in 1..=200 {
        let now = 9.0 + 0.02 * f64::from(step);
        network.run(secs(now));
        let bytes = network.flow(0).bytes;
        pause = pause.max(now - moved_at);
        if bytes > before {
            (before, moved_at) = (bytes, now);
        }
    }
    let both = bytes_between(&mut network, 14.0, 18.0);
    // The relay's link alone carries 6,000,000 bytes in this time, and both links 10,000,000.
    assert!(
        alone > 4_500_000 && both > alone * 7 / 5,
        "{alone} bytes, then {both}: {:?}",
        network.decisions(0)
    );
    assert!(pause < 0.7, "{pause} s");
}

/// Four of six candidates are in use; two die and one turns slow, one after the other.
#[test]
fn relays_that_die_or_turn_slow_are_replaced_as_soon_as_over_sockets() {
    for (name, what, most) in [
        ("dies", LinkChange::Down(true), 2.0),
        ("has a fiftieth left", LinkChange::Rate(RateModel::Fixed(Rate::from_mbit(0.2))), 8.0),
        ("has a fifth left", LinkChange::Rate(RateModel::Fixed(Rate::from_mbit(2.0))), 10.0),
    ] {
        let cables: Vec<LinkConfig> = (0..7).map(|_| link(10.0, 20)).collect();
        let mut plan = plan(&cables, 1, 4);
        // Cable 2 is candidate 1.
        change(&mut plan, 10.0, 2, &what);
        let mut network = Network::new(plan);
        network.run(secs(60.0));
        let first: Vec<Decision> = network.decisions(0).iter().take(4).map(|one| one.what).collect();
        assert_eq!(first, [0, 1, 2, 3].map(|candidate| Decision::OpenThrough { candidate }), "{name}");
        let recruited = |one: &Decision| matches!(one, Decision::OpenThrough { candidate: 4 | 5 });
        let dropped = |one: &Decision| matches!(one, Decision::CloseThrough { candidate: 1, .. });
        let (recruited, dropped) = (decided(&network, recruited, 0.0), decided(&network, dropped, 0.0));
        let log = network.decisions(0);
        assert!(recruited.is_some_and(|at| (10.0..10.0 + most).contains(&at)), "{name}: {log:?}");
        assert!(dropped.is_some_and(|at| (10.0..10.0 + most).contains(&at)), "{name}: {log:?}");
    }
}

#[test]
fn relays_that_are_alike_are_not_replaced() {
    let cables: Vec<LinkConfig> = (0..7).map(|_| link(10.0, 20)).collect();
    let mut network = Network::new(plan(&cables, 1, 4));
    network.run(secs(60.0));
    assert_eq!(network.decisions(0).len(), 4, "{:?}", network.decisions(0));
}

#[test]
fn an_interface_that_goes_and_comes_back_has_its_path_closed_and_opened_again() {
    let mut plan = plan(&[link(10.0, 10), link(10.0, 20)], 2, 0);
    let mut agent = AgentPlan::clone(plan.flows[0].agent.as_ref().unwrap());
    let change = |after: u64, is_up| InterfaceChange { after: Span::from_secs(after), path: 0, is_up };
    agent.interfaces = vec![change(10, false), change(20, true)];
    plan.flows[0].agent = Some(Arc::new(agent));
    let mut network = Network::new(plan);
    let [both, alone, again] =
        [(5.0, 10.0), (13.0, 18.0), (25.0, 30.0)].map(|(from, to)| bytes_between(&mut network, from, to));
    assert!(
        both > alone * 8 / 5 && again > alone * 8 / 5,
        "{both}, {alone}, {again}: {:?}",
        network.decisions(0)
    );
    let opened = decided(&network, |one| *one == Decision::Open { path: 0 }, 15.0);
    assert!(opened.is_some_and(|at| at < 20.1), "{:?}", network.decisions(0));
    // The path and its successor over the same links carried data for about 20 s.
    let counted = network.counted_paths(0, true);
    let of_it = counted.iter().filter(|path| path.route.socket == 0);
    let carried: u64 = of_it.map(|path| path.stats.data_received).sum();
    assert!(carried > 16_000_000, "{carried} bytes");
}
