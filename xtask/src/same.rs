//! The same seed gives the same bytes, in a debug and in a release build, on one thread and on two.
//!
//! Simulations that come along are run four times each; all they print is compared, but for what they cost.

use crate::cargo_output;

/// Short ones, so that a debug build is done in seconds: links that change, sessions with a TCP beside, networks that are drawn.
const RUNS: [&[&str]; 4] = [
    &["nsdi11-fig17", "--seeds", "1..4", "--json"],
    &["nsdi11-wifi3g", "--seeds", "1..4", "--json"],
    &["two-links", "--seeds", "1..4", "--json"],
    &["failures", "--cells", "0..3", "--json"],
];

/// What a run costs, and no other machine's run has to.
const COSTS: [&str; 2] = ["\"run.cpu_s\"", "\"run.peak_rss_mb\""];

/// # Errors
/// When two of the four differ, or one cannot be run.
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

/// Leaves what a run cost out of JSON on one line an object.
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
    fn what_a_run_costs_is_left_out_and_nothing_else() {
        let line = r#"{"metrics":{"jain":1.0,"run.cpu_s":2.5,"run.events":3.0,"run.peak_rss_mb":9.5,"total":4.0},"expect":[]}"#;
        let kept = r#"{"metrics":{"jain":1.0,"run.events":3.0,"total":4.0},"expect":[]}"#;
        assert_eq!(without_costs(line), kept);
        assert_eq!(without_costs(r#"{"a":1,"run.cpu_s":2.5}"#), r#"{"a":1,}"#);
    }
}
