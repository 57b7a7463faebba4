//! In steady state the simulator allocates almost nothing. The calendar, the packets, and the lists of links and
//! sessions reuse their memory. Only two things allocate: nodes of the tree of data that arrived early, and lists that
//! become longer than ever.

#[path = "allocations/long_cut.rs"]
mod long_cut;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anabranch_experiments::scenario::Scenario;
use anabranch_sim::network::Network;
use anabranch_wire::{Span, Time};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The counters belong to the whole program, so its tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// Sessions of one path whose applications send less than its rate: no packet is lost or overtaken.
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

/// A session of one path that fills it, over the short queues of a switch, which overflow sometimes.
const BULK: &str = r#"
duration = "30 s"
[[link]]
name = "only"
rate = "50 Mbit/s"
delay = "5 ms"
queue = "100 packets"
[[flow]]
name = "bulk"
paths = ["only"]
"#;

/// Two equal paths.
const ALIKE: &str = r#"
duration = "40 s"
[transport]
rule = "mptcp"
[links]
rate = "20 Mbit/s"
delay = "10 ms"
queue = "50 packets"
[[link]]
name = "a"
[[link]]
name = "b"
[[flow]]
name = "both"
paths = ["a", "b"]
"#;

/// Two different paths with loss: much data arrives out of order or twice.
const MIXED: &str = r#"
duration = "60 s"
[transport]
rule = "mptcp"
[[link]]
name = "wifi"
rate = "20 Mbit/s"
delay = "5 ms"
queue = "50 packets"
loss = "1 %"
[[link]]
name = "lte"
rate = "10 Mbit/s"
delay = "30 ms"
queue = "1 BDP"
loss = "0.2 %"
[[flow]]
name = "both"
paths = ["wifi", "lte"]
"#;

/// Sixteen sessions of four paths each that meet in the middle of a network.
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

/// Allocations of a run in part of its time.
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

#[test]
fn the_simulator_allocates_next_to_nothing_in_steady_state() {
    let _turn = turn();
    let plain = steady(PLAIN, (5, 200));
    println!("plain packets: {plain:?}");
    assert!(plain.hops > 200_000 && plain.calls as u64 * 1000 <= plain.hops, "{plain:?}");
    // The last number is how many packets with data there must be for each allocation.
    let cases = [
        ("without loss", QUIET, (5, 20), 500),
        ("one path", BULK, (10, 30), 1000),
        ("two paths alike", ALIKE, (10, 40), 500),
        ("two paths not alike, with loss", MIXED, (20, 60), 300),
        ("a network of many", SEVERAL, (5, 10), 400),
    ];
    for (name, text, between, packets_each) in cases {
        let steady = steady(text, between);
        println!("{name}: {steady:?}, {:.5} a packet", steady.calls as f64 / steady.data_packets as f64);
        assert!(steady.data_packets > 30_000, "{name}: {steady:?}");
        assert!(steady.calls as u64 * packets_each <= steady.data_packets, "{name}: {steady:?}");
    }
}
