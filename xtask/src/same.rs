//! The same seed gives the same bytes, in a debug and in a release build, on one thread and on two.
//!
//! Two simulations that come along are run four times; all they print is compared, but for what they cost.

use crate::cargo_output;

/// Short ones, so that a debug build is done in seconds: one with many kinds of traffic, one with many hops.
const SCENARIOS: [&str; 2] = ["nsdi11-fig17", "nsdi11-wifi3g"];

/// # Errors
/// When two of the four differ, or one cannot be run.
pub fn check() -> Result<(), String> {
    for scenario in SCENARIOS {
        let expected = run(scenario, false, 1)?;
        for (release, threads) in [(false, 2), (true, 1), (true, 2)] {
            let found = run(scenario, release, threads)?;
            if found != expected {
                let build = if release { "release" } else { "debug" };
                return Err(format!("{scenario}: {build} on {threads} threads differs from debug on one"));
            }
        }
    }
    Ok(())
}

fn run(scenario: &str, release: bool, threads: u32) -> Result<String, String> {
    let threads = threads.to_string();
    let mut words = vec!["run", "--quiet", "--package", "anabranch"];
    words.extend(release.then_some("--release"));
    words.extend(["--", "sim", "run", scenario, "--seeds", "1..4", "--json", "--threads", &threads]);
    cargo_output(&words).map(|text| without_usage(&text))
}

/// Leaves `run.*` out of JSON on one line an object.
fn without_usage(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some(start) = rest.find("\"run.") {
        kept.push_str(&rest[..start]);
        let end = rest[start..].find([',', '}']).map_or(rest.len(), |length| start + length);
        rest = rest[end..].trim_start_matches(',');
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_costs_is_left_out_and_nothing_else() {
        let line = r#"{"metrics":{"jain":1.0,"run.cpu_s":2.5,"run.events":3.0,"total":4.0},"expect":[]}"#;
        assert_eq!(without_usage(line), r#"{"metrics":{"jain":1.0,"total":4.0},"expect":[]}"#);
    }
}
