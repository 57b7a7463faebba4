//! A Markdown table that compares variants: a row for each variant, a column for each metric.

use super::{RunRecord, matches, names_of, rounded, spread};

/// The table of the metrics that match the patterns: means over the seeds, with 95 % intervals.
///
/// # Errors
/// The first pattern that no metric matches.
pub fn table(runs: &[RunRecord], patterns: &[String]) -> Result<String, String> {
    let mut known: Vec<&String> = runs.iter().flat_map(|run| run.metrics.keys()).collect();
    known.sort_unstable();
    known.dedup();
    let mut names: Vec<&String> = Vec::new();
    for pattern in patterns {
        let fitting: Vec<&String> = known.iter().copied().filter(|name| matches(pattern, name)).collect();
        if fitting.is_empty() {
            return Err(pattern.clone());
        }
        names.extend(fitting.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    let runs: Vec<&RunRecord> = runs.iter().collect();
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = row(["", "runs"]
        .into_iter()
        .map(str::to_owned)
        .chain(names.iter().map(|name| (*name).clone()))
        .collect());
    text.push_str(&"|---".repeat(names.len() + 2));
    text.push_str("|\n");
    for variant in names_of(&runs, RunRecord::label) {
        let is_its = |run: &RunRecord| run.label() == variant;
        let cell = |name: &&String| match spread(name, &runs, is_its) {
            Some((mean, ci95)) => match rounded(mean, ci95) {
                (mean, Some(interval)) => format!("{mean} ± {interval}"),
                (mean, None) => mean,
            },
            None => String::new(),
        };
        let count = runs.iter().filter(|run| is_its(run)).count().to_string();
        text.push_str(&row([variant.clone(), count].into_iter().chain(names.iter().map(cell)).collect()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::scenario::Metrics;

    use super::*;

    fn run(seed: u64, rule: &str, value: f64) -> RunRecord {
        RunRecord {
            scenario: "x".into(),
            seed,
            run: 0,
            set: BTreeMap::from([("rule".to_owned(), rule.to_owned())]),
            metrics: Metrics::from([("flow.M.pkt_s".to_owned(), value), ("jain".to_owned(), 1.0)]),
            expect: vec![],
        }
    }

    #[test]
    fn each_variant_has_a_row_with_its_means_and_intervals() {
        let runs = [run(1, "lia", 20.0), run(2, "lia", 30.0), run(1, "reno", 40.0)];
        let text = table(&runs, &["flow.*.pkt_s".to_owned(), "jain".to_owned()]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "|  | runs | flow.M.pkt_s | jain |");
        assert_eq!(lines[1], "|---|---|---|---|");
        assert_eq!(lines[2], "| x rule=lia | 2 | 25 ± 64 | 1 |");
        assert_eq!(lines[3], "| x rule=reno | 1 | 40 | 1 |");
        assert_eq!(lines.len(), 4);
        assert!(table(&runs, &["nothing".to_owned()]) == Err("nothing".to_owned()));
    }
}
