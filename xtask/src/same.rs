//! Checks that a seed gives the same bytes in a debug and in a release build, on one thread and on two.
//!
//! Each simulation runs four times; the outputs are compared, except for their costs.

use crate::cargo::cargo_output;

/// Simulations of a few seconds in a debug build: changing links, sessions next to a TCP, random networks.
const RUNS: [&[&str]; 4] = [
    &["nsdi11-fig17", "--seeds", "1..4", "--json"],
    &["nsdi11-wifi3g", "--seeds", "1..4", "--json"],
    &["two-links", "--seeds", "1..4", "--json"],
    &["failures", "--cells", "0..3", "--json"],
];

/// The costs of a run, which differ between machines.
const COSTS: [&str; 2] = ["\"run.cpu_s\"", "\"run.peak_rss_mb\""];

pub fn check() -> Result<(), String> {
    for words in RUNS {
        let expected = run(words, false, 1)?;
        for (release, threads) in [(false, 2), (true, 1), (true, 2)] {
            let found = run(words, release, threads)?;
            if found != expected {
                let build = if release { "release" } else { "debug" };
                let scenario = words[0];
                return Err(format!("{scenario}: {build} on {threads} threads differs from debug on one"));
            }
        }
    }
    Ok(())
}

fn run(what: &[&str], release: bool, threads: u32) -> Result<String, String> {
    let threads = threads.to_string();
    let mut words = vec!["run", "--quiet", "--package", "anabranch"];
    words.extend(release.then_some("--release"));
    words.extend(["--", "sim", "run"]);
    words.extend(what);
    words.extend(["--threads", &threads]);
    cargo_output(&words).map(|text| without_costs(&text))
}

/// Removes the costs of runs from JSON with one object on a line.
fn without_costs(text: &str) -> String {
    let mut kept = text.to_owned();
    for cost in COSTS {
        while let Some(start) = kept.find(cost) {
            let value = &kept[start..];
            let length = value
                .find([',', '}'])
                .map_or(value.len(), |end| end + usize::from(value[end..].starts_with(',')));
            kept.replace_range(start..start + length, "");
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_costs_of_a_run_are_removed() {
        let line = r#"{"metrics":{"jain":1.0,"run.cpu_s":2.5,"run.events":3.0,"run.peak_rss_mb":9.5,"total":4.0},"expect":[]}"#;
        let kept = r#"{"metrics":{"jain":1.0,"run.events":3.0,"total":4.0},"expect":[]}"#;
        assert_eq!(without_costs(line), kept);
        assert_eq!(without_costs(r#"{"a":1,"run.cpu_s":2.5}"#), r#"{"a":1,}"#);
    }
}
