//! In steady state, when lists of sent packets are returned, the engine allocates less than once in a thousand packets.
//! Counted at the allocator, so that a regression fails.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use crate::line::Line;
use crate::turn;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn packets_in_steady_state_allocate_nothing() {
    let _turn = turn();
    let mut line = Line::new();
    (0..20_000).for_each(|_| line.step());
    let (before, region) = (line.data_packets, Region::new(ALLOCATOR));
    (0..10_000).for_each(|_| line.step());
    let change = region.change();
    let packets = line.data_packets - before;
    let calls = change.allocations + change.reallocations;
    println!("{calls} allocations for {packets} packets with data and their acknowledgements");
    assert!(packets > 60_000, "{packets}");
    assert!(calls as f64 <= packets as f64 * 0.001, "{calls} allocations for {packets} packets");
}
