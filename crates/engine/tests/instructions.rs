//! What a packet with data and its acknowledgements cost the engine at both ends, in instructions, counted by callgrind: the same on a
//! busy machine as on an idle one, so that a regression fails. Without valgrind the test says so.

mod line;

use std::process::Command;

use line::Line;

/// Most instructions, in the profile of the tests: 15 % over what was measured.
const MOST: u64 = 8_800;

/// Read by the run under callgrind.
const STEPS: &str = "ANABRANCH_COUNTED_STEPS";

/// Steps until windows no longer grow.
const SETTLED: usize = 1000;

#[test]
fn a_packet_costs_no_more_instructions_than_it_did() {
    let Some((short, long)) = counted(0).zip(counted(2000)) else {
        println!("skipped: instructions are counted with valgrind, which is not here");
        return;
    };
    let each = (long.0 - short.0) / (long.1 - short.1);
    println!("{each} instructions a packet with data and its acknowledgements");
    assert!(each <= MOST, "{each} instructions a packet, at most {MOST} wanted");
}

/// The part that runs under callgrind, and for nothing by itself.
#[test]
fn steady_state_for_the_count() {
    let steps = std::env::var(STEPS).ok().and_then(|steps| steps.parse::<usize>().ok());
    let mut line = Line::new();
    (0..SETTLED + steps.unwrap_or_default()).for_each(|_| line.step());
    assert!(line.data_packets > 0);
    println!("data packets: {}", line.data_packets);
}

/// Instructions and data packets of so many steps in steady state and all that was before; none without valgrind.
fn counted(steps: usize) -> Option<(u64, u64)> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("a test knows its executable"))
        .args(["--exact", "steady_state_for_the_count", "--nocapture", "--test-threads=1"])
        .env(STEPS, steps.to_string())
        .output()
        .ok()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "valgrind failed:\n{out}{err}");
    let number = |text: &str, label: &str| {
        let rest = text.split_once(label).unwrap_or_else(|| panic!("no {label:?} in:\n{text}")).1;
        rest.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).expect("a number")
    };
    Some((number(&err, "Collected :"), number(&out, "data packets:")))
}
