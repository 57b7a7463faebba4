//! The demo performs as the README promises. It runs in real time, so it gets three attempts.

mod common;

use common::programs::program;
use common::within_three_attempts;
use serde_json::Value;

/// Runs the demo once and checks its result.
fn attempt() -> Result<String, String> {
    let output = program(&["demo", "--json", "--size", "32MiB"]).output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("no {key} in {report}"));
    assert_eq!(report["verified"], true);
    let share = number("multipath_mbit_s") / number("sum_mbit_s");
    let right = share >= 0.95
        && number("multipath_mbit_s") > number("best_single_mbit_s")
        && number("failover_gap_ms") <= 200.0;
    if right { Ok(report.to_string()) } else { Err(report.to_string()) }
}

#[test]
fn three_paths_give_the_sum_of_their_rates_and_a_cut_is_bridged_in_200_ms() {
    within_three_attempts("three_paths_give_the_sum", attempt);
}
