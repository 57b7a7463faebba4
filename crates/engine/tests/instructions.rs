//! The cost of a packet with data and its acknowledgements at both ends of the engine, in instructions, so that a
//! regression fails. Without valgrind the test is skipped with a message.

#[path = "line/allocations.rs"]
mod allocations;
mod line;

use std::sync::{Mutex, MutexGuard, PoisonError};

use line::Line;

/// Most instructions, in the profile of the tests: 15 % more than measured.
const MOST: u64 = 7_900;

/// Steps until windows no longer grow, and steps counted.
const SETTLED: usize = 1000;
const COUNTED: usize = 2000;

/// Allocations are counted for the whole program, so its tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_packet_costs_no_more_instructions_than_before() {
    let _turn = turn();
    let Some(parts) = anabranch_counted::run("steady_state_for_the_count", None) else {
        println!("skipped: counting instructions needs valgrind, which is not installed");
        return;
    };
    let each = parts[1].instructions / (parts[1].numbers[0] - parts[0].numbers[0]);
    println!("{each} instructions a packet with data and its acknowledgements");
    assert!(each <= MOST, "{each} instructions a packet, more than {MOST}");
}

/// The part that runs under callgrind; it does nothing by itself.
#[test]
fn steady_state_for_the_count() {
    let _turn = turn();
    let steps = if anabranch_counted::is_counted() { COUNTED } else { 0 };
    let mut line = Line::new();
    for steps in [SETTLED, steps] {
        (0..steps).for_each(|_| line.step());
        anabranch_counted::end_of_part(&[line.data_packets]);
    }
    assert!(line.data_packets > 0);
}
