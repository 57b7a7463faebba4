//! Results as a table, as JSON (an object a line and run) or as CSV (a line a run).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anabranch_experiments::scenario::{Metrics, Report, Summary};
use serde::{Deserialize, Serialize};

use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    Json,
    Csv,
}

/// One run, as it is written and read again.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Run {
    pub scenario: String,
    pub seed: u64,
    /// Which of the sweep's runs it is, from 0.
    #[serde(default)]
    pub run: usize,
    /// What a sweep set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    pub metrics: Metrics,
    pub expect: Vec<Expected>,
}

/// What a run costs, which the same run need not cost again.
pub(super) const COSTS: [&str; 2] = ["run.cpu_s", "run.peak_rss_mb"];

/// One bound.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Expected {
    pub name: String,
    /// `null` when it was not measured.
    pub value: Option<f64>,
    pub bound: String,
    pub ok: bool,
}

impl Run {
    pub(super) fn new(report: Report, run: usize, set: &[(String, String)]) -> Self {
        let expected = |outcome: anabranch_experiments::scenario::Outcome| Expected {
            name: outcome.name,
            value: outcome.value,
            bound: outcome.bound,
            ok: outcome.ok,
        };
        Self {
            scenario: report.scenario,
            seed: report.seed,
            run,
            set: set.iter().cloned().collect(),
            metrics: report.metrics,
            expect: report.expect.into_iter().map(expected).collect(),
        }
    }

    /// What does not depend on the machine.
    #[cfg(test)]
    pub(super) fn without_usage(mut self) -> Self {
        self.metrics.retain(|name, _| !COSTS.contains(&name.as_str()));
        self
    }

    /// What a sweep set, as text.
    pub(super) fn variant(&self) -> String {
        let set: Vec<String> = self.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        set.join(" ")
    }

    /// The scenario and what a sweep set.
    pub(super) fn label(&self) -> String {
        format!("{} {}", self.scenario, self.variant()).trim_end().to_owned()
    }
}

/// Which bounds were not kept.
#[derive(Default)]
pub(super) struct Bounds {
    failed: Vec<String>,
    all: usize,
}

/// Bounds that are told one by one.
const TOLD: usize = 20;

impl Bounds {
    /// Of these runs.
    pub(super) fn of(runs: &[Run]) -> Self {
        let mut bounds = Self::default();
        runs.iter().for_each(|run| bounds.add(run));
        bounds
    }

    fn add(&mut self, run: &Run) {
        self.all += run.expect.len();
        for bound in run.expect.iter().filter(|bound| !bound.ok) {
            let value = bound.value.map_or_else(|| "not measured".to_owned(), number);
            let (label, seed) = (run.label(), run.seed);
            self.failed.push(format!("{label}, seed {seed}: {} is {value}, not {}", bound.name, bound.bound));
        }
    }

    /// A failure that names those that were not kept, if there are any.
    pub(super) fn outcome(self) -> Result<(), Failure> {
        let count = self.failed.len();
        if count == 0 {
            return Ok(());
        }
        let failure = Failure::local(format!("{count} of {} expectations were not met", self.all));
        let failure = self.failed.into_iter().take(TOLD).fold(failure, Failure::detail);
        Err(if count > TOLD { failure.detail(format!("and {} more", count - TOLD)) } else { failure })
    }
}

/// Takes runs and writes them.
pub(super) struct Writer {
    format: Format,
    /// What the scenario shows, above a table.
    about: String,
    runs: Vec<Run>,
    bounds: Bounds,
}

impl Writer {
    pub(super) fn new(format: Format, about: &str) -> Self {
        Self { format, about: about.to_owned(), runs: Vec::new(), bounds: Bounds::default() }
    }

    /// JSON is written at once, so that what is complete stays when the command is stopped.
    pub(super) fn add(&mut self, run: Run) -> Result<(), Failure> {
        self.bounds.add(&run);
        if self.format == Format::Json {
            return Stream::Stdout.json(&run);
        }
        self.runs.push(run);
        Ok(())
    }

    /// Writes what waited for the last run.
    pub(super) fn finish(self) -> Result<(), Failure> {
        match self.format {
            Format::Table => out::print(&table(&self.about, &self.runs))?,
            Format::Csv => out::print(&csv(&self.runs))?,
            Format::Json => {}
        }
        self.bounds.outcome()
    }
}

/// A column a variant: the mean over its seeds, with the 95 % interval where there are several.
fn table(about: &str, runs: &[Run]) -> String {
    let mut text =
        about.trim().lines().map(|line| line.replace(char::is_control, " ") + "\n").collect::<String>();
    let mut variants: Vec<String> = Vec::new();
    for run in runs {
        if !variants.contains(&run.variant()) {
            variants.push(run.variant());
        }
    }
    for variant in variants {
        let of_it: Vec<&Run> = runs.iter().filter(|run| run.variant() == variant).collect();
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
    text
}

/// What was expected of the runs of a variant, a line each bound, and in how many it was so.
fn bounds(runs: &[&Run]) -> String {
    let mut text = String::new();
    for (index, Expected { name, bound, .. }) in
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

/// A number with four significant digits, or all that it has before the point.
pub(super) fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let places = places(value, 4);
    if places > 9 { format!("{value:.3e}") } else { format!("{value:.places$}") }
}

/// A mean to as many places as its interval has with two significant digits, and the interval; none where nothing varies.
pub(super) fn rounded(mean: f64, ci95: f64) -> (String, Option<String>) {
    let places = places(ci95, 2).min(places(mean, 7));
    let interval = format!("{ci95:.places$}");
    if !interval.contains(|digit| ('1'..='9').contains(&digit)) {
        return (number(mean), None);
    }
    (format!("{mean:.places$}"), Some(interval))
}

/// Places after the point that show so many significant digits.
fn places(value: f64, digits: i32) -> usize {
    if value == 0.0 {
        return 0;
    }
    (digits - 1 - value.abs().log10().floor() as i32).clamp(0, 15) as usize
}

fn csv(runs: &[Run]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64, value: f64) -> Run {
        Run {
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
        let text = table("What it shows.", &[run(1, 0.5), run(2, 0.7)]);
        assert!(text.starts_with("What it shows.\nx a.b=1, 2 (2 runs)\n  jain "), "{text}");
        assert!(text.contains(" 0.6 ± 1.3\n"), "{text}");
    }

    #[test]
    fn a_table_ends_with_what_was_expected() {
        let judged = |seed, ok| {
            let bound = Expected { name: "jain".into(), value: Some(0.5), bound: "≥ 0.5".into(), ok };
            Run { expect: vec![bound], ..run(seed, 0.5) }
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
    fn a_bound_on_what_was_not_measured_is_told_as_one_that_is_not_kept() {
        let report = Report {
            scenario: "tiny".to_owned(),
            seed: 7,
            metrics: Metrics::new(),
            expect: vec![anabranch_experiments::scenario::Outcome {
                name: "flow.M.completion_s".to_owned(),
                value: None,
                bound: "≤ 3".to_owned(),
                ok: false,
            }],
        };
        let run = Run::new(report, 0, &[]);
        let text = serde_json::to_string(&run).unwrap();
        assert!(text.contains(r#""value":null"#), "{text}");
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run);
        let mut writer = Writer::new(Format::Csv, "");
        writer.add(run).unwrap();
        assert_eq!(writer.bounds.failed, ["tiny, seed 7: flow.M.completion_s is not measured, not ≤ 3"]);
    }

    #[test]
    fn a_bound_that_is_not_kept_is_told_with_its_variant_and_of_very_many_how_many_more() {
        let broken = |seed, value| {
            let bound =
                Expected { name: "jain".into(), value: Some(value), bound: "≥ 0.9".into(), ok: false };
            Run { expect: vec![bound], ..run(seed, value) }
        };
        let kept =
            Run { expect: vec![Expected { ok: true, ..broken(3, 1.0).expect.remove(0) }], ..run(3, 1.0) };
        let failure = Bounds::of(&[broken(2, 0.5), kept.clone()]).outcome().unwrap_err();
        assert_eq!(failure.message, "1 of 2 expectations were not met");
        assert_eq!(failure.details, ["x a.b=1, 2, seed 2: jain is 0.5000, not ≥ 0.9"]);
        assert_eq!(Bounds::of(&[kept]).outcome(), Ok(()));
        let many: Vec<Run> = (0..25).map(|seed| broken(seed, 0.5)).collect();
        let details = Bounds::of(&many).outcome().unwrap_err().details;
        assert_eq!((details.len(), details[20].as_str()), (21, "and 5 more"));
        assert_eq!(Bounds::of(&many[..20]).outcome().unwrap_err().details.len(), 20);
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
        let line = out::json_line(&run(3, 0.1));
        assert_eq!(serde_json::from_str::<Run>(&line).unwrap(), run(3, 0.1));
    }
}
