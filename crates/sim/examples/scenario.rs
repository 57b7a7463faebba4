//! Runs a scenario file, for measuring. Arguments: file, last seed, metrics to show (a part of their names; `-` for
//! all), settings as `key=a,b`.
use std::time::Instant;

use anabranch_sim::scenario::{Scenario, Setting, Summary, variants};

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("a scenario file");
    let seeds: u64 = args.next().map_or(1, |seed| seed.parse().expect("a seed"));
    let shown = args.next().unwrap_or_else(|| "-".to_owned());
    let settings: Vec<Setting> = args.map(|setting| setting.parse().expect("a setting")).collect();
    let text = std::fs::read_to_string(&path).expect("the file can be read");
    let scenario = Scenario::parse(&text, &path).unwrap_or_else(|error| panic!("{error}"));
    for variant in variants(&scenario, &settings).unwrap_or_else(|error| panic!("{error}")) {
        let start = Instant::now();
        let run = |seed| variant.scenario.run(seed).unwrap_or_else(|error| panic!("{error}"));
        let reports: Vec<_> = (1..=seeds).map(run).collect();
        let took = start.elapsed().as_secs_f64();
        let metrics: Vec<_> = reports.iter().map(|report| &report.metrics).collect();
        let summary = Summary::of(&metrics);
        println!("{} {:?}", scenario.name, variant.set);
        let parts: Vec<&str> = shown.split(',').collect();
        for (name, spread) in &summary.metrics {
            if shown == "-" || parts.iter().any(|part| name.ends_with(part)) {
                println!("  {name:<44} {:>16.6} ± {:.6}", spread.mean, spread.ci95);
            }
        }
        let failed = reports.iter().flat_map(|report| &report.expect).filter(|outcome| !outcome.ok);
        failed.for_each(|outcome| println!("  FAIL {} {} {}", outcome.name, outcome.value, outcome.bound));
        let hops = summary.metrics["run.packet_hops"].mean * seeds as f64;
        println!("  {took:.2} s, {:.2} M packet-hops/s", hops / took * 1e-6);
    }
}
