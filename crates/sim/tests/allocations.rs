//! In steady state the simulator allocates next to nothing: calendar and packets live in memory that is there already, links make
//! room for a burst and give it back afterwards. Sessions allocate for frames of credit, and for what is missing where packets are lost.

use std::alloc::System;

use anabranch_sim::network::Network;
use anabranch_sim::scenario::Scenario;
use anabranch_wire::{Span, Time};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PLAIN: &str = r#"
duration = "200 s"
[links]
rate = "10 Mbit/s"
delay = "5 ms"
queue = "20 packets"
random_drop = true
loss = "1 %"
[[link]]
name = "a"
[[link]]
name = "b"
[[cbr]]
name = "steady"
path = ["a", "b"]
rate = "8 Mbit/s"
[[cbr]]
name = "bursts"
path = "a"
rate = "20 Mbit/s"
on = "10 ms"
off = "30 ms"
"#;

/// Sessions of one path whose applications make less than it carries: nothing is lost or overtaken.
const QUIET: &str = r#"
duration = "20 s"
[topology]
kind = "dumbbell"
hosts = 4
access_rate = "100 Mbit/s"
[links]
rate = "50 Mbit/s"
delay = "5 ms"
[[flow]]
name = "a"
from = "s0"
to = "r0"
rate = "20 Mbit/s"
[[flow]]
name = "b"
from = "s1"
to = "r1"
rate = "10 Mbit/s"
"#;

const SEVERAL: &str = r#"
duration = "20 s"
[transport]
rule = "mptcp"
[topology]
kind = "fat-tree"
k = 4
[links]
rate = "10 Mbit/s"
delay = "100 us"
queue = "50 packets"
[[traffic]]
name = "all"
pattern = "permutation"
paths = 4
start_within = "100 ms"
"#;

/// What a run allocated between two seconds of it.
#[derive(Debug)]
struct Steady {
    calls: usize,
    hops: u64,
    data_packets: u64,
}

fn steady(text: &str, (from, to): (u64, u64)) -> Steady {
    let plan = Scenario::parse(text, "steady").expect("a scenario").build(1).expect("a network").plan;
    let flows = plan.flows.len();
    let mut network = Network::new(plan);
    let counts = |network: &Network| {
        let data: u64 = (0..flows).map(|flow| network.flow(flow).data_packets).sum();
        (network.packet_hops(), data)
    };
    network.run(Time::ZERO + Span::from_secs(from));
    let (before, region) = (counts(&network), Region::new(ALLOCATOR));
    network.run(Time::ZERO + Span::from_secs(to));
    let change = region.change();
    let after = counts(&network);
    let calls = change.allocations + change.reallocations;
    Steady { calls, hops: after.0 - before.0, data_packets: after.1 - before.1 }
}

// One test, for the counters are the whole program's.
#[test]
fn the_simulator_allocates_next_to_nothing_in_steady_state() {
    let plain = steady(PLAIN, (5, 200));
    println!("plain packets: {plain:?}");
    assert!(plain.hops > 200_000 && plain.calls as u64 * 1000 <= plain.hops, "{plain:?}");
    let quiet = steady(QUIET, (5, 20));
    println!("sessions without loss: {quiet:?}");
    assert!(quiet.data_packets > 30_000 && quiet.calls as u64 * 4 <= quiet.data_packets, "{quiet:?}");
    // Gaps in what came, and their acknowledgements, are lists that the engine makes room for.
    let several = steady(SEVERAL, (5, 10));
    println!("sessions of several paths that lose packets: {several:?}");
    assert!(several.data_packets > 30_000 && several.calls as u64 <= several.data_packets, "{several:?}");
}
