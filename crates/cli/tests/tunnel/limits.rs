//! Rate limits of paths, which both ends keep to.

use std::time::Instant;

use super::*;

#[test]
fn both_ends_keep_to_a_rate_that_one_sets_for_a_path() {
    let test = "both_ends_keep_to_a_rate_that_one_sets_for_a_path";
    let Some((machines, _turn)) = alone(test, &["iperf3"]) else { return };
    let tunnel = Tunnel::up(&machines, &[]);
    let (set, told) = ask(&tunnel, Side::Near, &["set", "path.path0=primary@5Mbit/s"]);
    assert!(set, "{told}");
    let limits = |side| {
        let status = tunnel.status(side);
        let paths = status["peers"][0]["paths"].as_array().cloned().unwrap_or_default();
        let limit = |path: &serde_json::Value| path["limit_mbit"].as_f64();
        paths.iter().filter_map(limit).collect::<Vec<f64>>()
    };
    for side in [Side::Near, Side::Far] {
        wait_for("the limit", || limits(side) == [5.0]);
    }
    for (side, options) in [(Side::Near, &["-t", "4"][..]), (Side::Far, &["-t", "4", "-R"])] {
        within_three_attempts(test, || {
            let (before, begin) = (machines.bytes_sent(side, 0).unwrap(), Instant::now());
            let all = tunnel.iperf(PUBLIC, options);
            let sent = machines.bytes_sent(side, 0).unwrap() - before;
            let rate = sent as f64 * 8e-6 / begin.elapsed().as_secs_f64();
            assert!(rate < 7.0, "{side:?}: {rate:.1} Mbit/s on the limited path");
            let found = format!("{side:?}: {rate:.1} of {all:.1} Mbit/s on the limited path");
            if all > 7.0 { Ok(found) } else { Err(found) }
        });
    }
}
