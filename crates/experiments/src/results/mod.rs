//! Records of runs, and tables of them. A JSON file of results has a [`RunRecord`] on each line.

mod columns;
pub mod merge;

pub use columns::table as columns;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::scenario::{Metrics, Outcome, Report, Spread, Summary};
use serde::{Deserialize, Serialize};

/// A run, as a file of results has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RunRecord {
    /// The scenario's name.
    pub scenario: String,
    /// The seed of the run.
    pub seed: u64,
    /// Its number in the sweep, from 0.
    #[serde(default)]
    pub run: usize,
    /// The settings of the sweep.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    pub metrics: Metrics,
    /// The bounds of `[expect]`, judged.
    pub expect: Vec<Outcome>,
}

/// Metrics of the machine, which differ between two runs with the same result.
pub const COSTS: [&str; 2] = ["run.cpu_s", "run.peak_rss_mb"];

impl RunRecord {
    /// The record of a report: the run's number in its sweep, and what the sweep set.
    pub fn new(report: Report, run: usize, set: &[(String, String)]) -> Self {
        Self {
            scenario: report.scenario,
            seed: report.seed,
            run,
            set: set.iter().cloned().collect(),
            metrics: report.metrics,
            expect: report.expect,
        }
    }

    /// The record without the metrics of the machine.
    #[must_use]
    pub fn without_usage(mut self) -> Self {
        self.metrics.retain(|name, _| !COSTS.contains(&name.as_str()));
        self
    }

    /// The settings of the sweep, as text.
    pub fn variant(&self) -> String {
        let set: Vec<String> = self.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        set.join(" ")
    }

    /// The scenario and the settings of the sweep.
    pub fn label(&self) -> String {
        format!("{} {}", self.scenario, self.variant()).trim_end().to_owned()
    }
}

/// Means over the seeds of each variant with 95 % intervals, then the bounds; `about` is printed above.
///
/// Several variants are followed by a table that compares them.
pub fn table(about: &str, runs: &[RunRecord]) -> String {
    let mut text =
        about.trim().lines().map(|line| line.replace(char::is_control, " ") + "\n").collect::<String>();
    let mut variants: Vec<String> = Vec::new();
    for run in runs {
        if !variants.contains(&run.variant()) {
            variants.push(run.variant());
        }
    }
    for variant in variants {
        let of_it: Vec<&RunRecord> = runs.iter().filter(|run| run.variant() == variant).collect();
        let metrics: Vec<&Metrics> = of_it.iter().map(|run| &run.metrics).collect();
        let count = of_it.len();
        let plural = if count == 1 { "run" } else { "runs" };
        let title = format!("{} {variant}", of_it[0].scenario);
        let _ = writeln!(text, "{} ({count} {plural})", title.trim_end());
        for (name, spread) in &Summary::of(&metrics).metrics {
            let (mean, interval) = rounded(spread.mean, spread.ci95);
            let interval = interval.map(|interval| format!(" ± {interval}")).unwrap_or_default();
            let _ = writeln!(text, "  {name:<44} {mean:>12}{interval}");
        }
        text += &bounds(&of_it);
    }
    text + &comparison(runs)
}

/// The metrics by which variants are compared: those with bounds, or else goodputs.
fn comparison(runs: &[RunRecord]) -> String {
    let all: Vec<&RunRecord> = runs.iter().collect();
    if names_of(&all, RunRecord::label).len() < 2 {
        return String::new();
    }
    let mut patterns: Vec<String> =
        runs.iter().flat_map(|run| run.expect.iter().map(|outcome| outcome.name.clone())).collect();
    patterns.sort_unstable();
    patterns.dedup();
    if patterns.is_empty() {
        patterns.push("flow.*.goodput_mbit_s".to_owned());
    }
    columns(runs, &patterns).map_or_else(|_| String::new(), |table| format!("\n{table}"))
}

/// A line for each bound: in how many runs of a variant it was kept.
fn bounds(runs: &[&RunRecord]) -> String {
    let mut text = String::new();
    for (index, Outcome { name, bound, .. }) in
        runs.first().map_or(&[][..], |run| &run.expect).iter().enumerate()
    {
        let kept = runs.iter().filter(|run| run.expect.get(index).is_some_and(|bound| bound.ok)).count();
        let told = match (kept, runs.len()) {
            (1, 1) => "as expected".to_owned(),
            (0, 1) => "not as expected".to_owned(),
            (kept, all) => format!("as expected in {kept} of {all}"),
        };
        let _ = writeln!(text, "  {name:<44} {bound}: {told}");
    }
    text
}

/// A number with four significant digits, and with all digits before the point.
pub fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let places = places(value, 4);
    if places > 9 { format!("{value:.3e}") } else { format!("{value:.places$}") }
}

/// A mean and its interval, both to the second significant digit of the interval; no interval if nothing varies.
pub fn rounded(mean: f64, ci95: f64) -> (String, Option<String>) {
    let places = places(ci95, 2).min(places(mean, 7));
    let interval = format!("{ci95:.places$}");
    if !interval.contains(|digit| ('1'..='9').contains(&digit)) {
        return (number(mean), None);
    }
    (format!("{mean:.places$}"), Some(interval))
}

/// Number of decimals that show `digits` significant digits.
fn places(value: f64, digits: i32) -> usize {
    if value == 0.0 {
        return 0;
    }
    (digits - 1 - value.abs().log10().floor() as i32).clamp(0, 15) as usize
}

/// Comma-separated values: a head, then a line for each run.
pub fn csv(runs: &[RunRecord]) -> String {
    let settings: BTreeSet<&String> = runs.iter().flat_map(|run| run.set.keys()).collect();
    let metrics: BTreeSet<&String> = runs.iter().flat_map(|run| run.metrics.keys()).collect();
    let heads = ["scenario", "seed"].into_iter().chain(settings.iter().map(|name| name.as_str()));
    let mut lines = vec![row(heads.chain(metrics.iter().map(|name| name.as_str())).map(str::to_owned))];
    for run in runs {
        let set = settings.iter().map(|key| run.set.get(*key).cloned().unwrap_or_default());
        let values =
            metrics.iter().map(|name| run.metrics.get(*name).map(f64::to_string).unwrap_or_default());
        lines.push(row([run.scenario.clone(), run.seed.to_string()].into_iter().chain(set).chain(values)));
    }
    lines.concat()
}

fn row(cells: impl Iterator<Item = String>) -> String {
    let quoted = cells.map(|cell| {
        if cell.contains([',', '"', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
    });
    quoted.collect::<Vec<_>>().join(",") + "\n"
}

/// Mean and half width of the 95 % interval of a metric over those runs that `of_it` selects.
pub fn spread(name: &str, runs: &[&RunRecord], of_it: impl Fn(&RunRecord) -> bool) -> Option<(f64, f64)> {
    let values: Vec<f64> =
        runs.iter().filter(|run| of_it(run)).filter_map(|run| run.metrics.get(name).copied()).collect();
    let spread = Spread::of(&values);
    (spread.runs > 0).then_some((spread.mean, spread.ci95))
}

/// The names of runs, each once, in order.
pub fn names_of(runs: &[&RunRecord], name: impl Fn(&RunRecord) -> String) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        let name = name(run);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Whether a name matches a pattern in which `*` stands for one part between dots.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), name.split('.').collect());
    pattern.len() == name.len()
        && pattern.iter().zip(name).all(|(part, of_name)| *part == "*" || *part == of_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64, value: f64) -> RunRecord {
        RunRecord {
            scenario: "x".into(),
            seed,
            run: 0,
            set: BTreeMap::from([("a.b".into(), "1, 2".into())]),
            metrics: Metrics::from([("jain".into(), value)]),
            expect: vec![],
        }
    }

    #[test]
    fn a_table_shows_the_mean_and_the_interval() {
        let text = table("Two runs.", &[run(1, 0.5), run(2, 0.7)]);
        assert!(text.starts_with("Two runs.\nx a.b=1, 2 (2 runs)\n  jain "), "{text}");
        assert!(text.contains(" 0.6 ± 1.3\n"), "{text}");
    }

    #[test]
    fn several_variants_are_compared() {
        let other = RunRecord { set: BTreeMap::from([("a.b".into(), "3".into())]), ..run(1, 0.25) };
        let goodput = |mut run: RunRecord| {
            run.metrics.insert("flow.M.goodput_mbit_s".into(), 5.0);
            run
        };
        let text = table("", &[goodput(run(1, 0.5)), goodput(other)]);
        assert!(text.ends_with("| x a.b=1, 2 | 1 | 5 |\n| x a.b=3 | 1 | 5 |\n"), "{text}");
        assert!(!table("", &[goodput(run(1, 0.5))]).contains('|'));
    }

    #[test]
    fn a_table_ends_with_what_was_expected() {
        let judged = |seed, ok| {
            let bound = Outcome { name: "jain".into(), value: Some(0.5), bound: "≥ 0.5".into(), ok };
            RunRecord { expect: vec![bound], ..run(seed, 0.5) }
        };
        for (runs, end) in [
            (vec![judged(1, true)], "≥ 0.5: as expected\n"),
            (vec![judged(1, false)], "≥ 0.5: not as expected\n"),
            (vec![judged(1, true), judged(2, false)], "≥ 0.5: as expected in 1 of 2\n"),
        ] {
            let text = table("", &runs);
            assert!(
                text.lines().last().is_some_and(|line| line.starts_with("  jain ")) && text.ends_with(end),
                "{text}"
            );
        }
    }

    #[test]
    fn numbers_have_the_digits_that_say_something_and_no_interval_where_nothing_varies() {
        let cases = [
            (290.347, 2.894, "290.3 ± 2.9"),
            (0.000_253_1, 0.000_004_8, "0.0002531 ± 0.0000048"),
            (0.987_31, 0.006_313, "0.9873 ± 0.0063"),
            (12_345.6, 731.2, "12346 ± 731"),
            (13.322_7, 0.0, "13.32"),
            (0.3, 1e-17, "0.3000"),
            (25.0, 0.0, "25"),
            (0.0, 0.0, "0"),
            (0.000_000_012, 0.0, "1.200e-8"),
        ];
        for (mean, ci95, wanted) in cases {
            let (mean, interval) = rounded(mean, ci95);
            let interval = interval.map(|interval| format!(" ± {interval}")).unwrap_or_default();
            assert_eq!(mean + &interval, wanted);
        }
    }

    #[test]
    fn csv_quotes_what_holds_commas() {
        assert_eq!(csv(&[run(3, 0.5)]), "scenario,seed,a.b,jain\nx,3,\"1, 2\",0.5\n");
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let line = serde_json::to_string(&run(3, 0.1)).unwrap();
        assert_eq!(serde_json::from_str::<RunRecord>(&line).unwrap(), run(3, 0.1));
    }

    #[test]
    fn patterns_stand_for_parts_of_names() {
        assert!(matches("flow.*.jain", "flow.M.jain") && matches("jain", "jain"));
        assert!(!matches("flow.*.jain", "flow.M.path1.jain") && !matches("flow.*", "link.A"));
    }
}
