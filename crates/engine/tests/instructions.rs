//! What a packet with data and its acknowledgements cost the engine at both ends, in instructions, so that a regression fails. Without valgrind
//! the test says so.

mod line;

use line::Line;

/// Most instructions, in the profile of the tests: 15 % over what was measured.
const MOST: u64 = 7_900;

/// Steps until windows no longer grow, and steps that are counted.
const SETTLED: usize = 1000;
const COUNTED: usize = 2000;

#[test]
fn a_packet_costs_no_more_instructions_than_it_did() {
    let Some(parts) = anabranch_counted::run("steady_state_for_the_count", None) else {
        println!("skipped: instructions are counted with valgrind, which is not here");
        return;
    };
    let each = parts[1].instructions / (parts[1].numbers[0] - parts[0].numbers[0]);
    println!("{each} instructions a packet with data and its acknowledgements");
    assert!(each <= MOST, "{each} instructions a packet, at most {MOST} wanted");
}

/// The part that runs under callgrind, and for nothing by itself.
#[test]
fn steady_state_for_the_count() {
    let steps = if anabranch_counted::is_counted() { COUNTED } else { 0 };
    let mut line = Line::new();
    for steps in [SETTLED, steps] {
        (0..steps).for_each(|_| line.step());
        anabranch_counted::end_of_part(&[line.data_packets]);
    }
    assert!(line.data_packets > 0);
}
