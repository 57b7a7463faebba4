//! Runs a scenario file and prints its metrics and how fast it went. Arguments: file, seed.
use std::time::Instant;

use anabranch_sim::scenario::Scenario;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("a scenario file");
    let seed = args.next().map_or(1, |seed| seed.parse().expect("a seed"));
    let text = std::fs::read_to_string(&path).expect("the file can be read");
    let scenario = Scenario::parse(&text, &path).unwrap_or_else(|error| panic!("{error}"));
    let start = Instant::now();
    let report = scenario.run(seed).unwrap_or_else(|error| panic!("{error}"));
    let took = start.elapsed().as_secs_f64();
    for (name, value) in &report.metrics {
        println!("{name:<44} {value:>14.4}");
    }
    for outcome in &report.expect {
        println!(
            "{} {} {} {}",
            if outcome.ok { "ok  " } else { "FAIL" },
            outcome.name,
            outcome.value,
            outcome.bound
        );
    }
    let hops = report.metrics["run.packet_hops"];
    println!(
        "{took:.2} s, {:.2} M packet-hops/s, {:.2} µs a data packet",
        hops / took * 1e-6,
        took * 1e6 / report.metrics["run.data_packets"]
    );
}
