//! Writes results as a table, as JSON (an object a line and run) or as CSV (a line a run).

use anabranch_experiments::results::{RunRecord, columns, csv, number, table};

use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    Json,
    Csv,
}

/// Counts violated bounds.
#[derive(Default)]
pub(super) struct Bounds {
    failed: Vec<String>,
    all: usize,
}

/// The failure for a pattern that names no metric.
pub(super) fn no_metric(pattern: &str) -> Failure {
    Failure::usage(format!("no run has a metric \"{pattern}\""))
}

/// How many violated bounds are listed.
const LISTED: usize = 20;

impl Bounds {
    fn add(&mut self, run: &RunRecord) {
        self.all += run.expect.len();
        for bound in run.expect.iter().filter(|bound| !bound.ok) {
            let value = bound.value.map_or_else(|| "not measured".to_owned(), number);
            let (label, seed) = (run.label(), run.seed);
            self.failed.push(format!("{label}, seed {seed}: {} is {value}, not {}", bound.name, bound.bound));
        }
    }

    /// The failure that lists the violated bounds, if there are any.
    pub(super) fn outcome(self) -> Result<(), Failure> {
        let count = self.failed.len();
        if count == 0 {
            return Ok(());
        }
        let failure = Failure::local(format!("{count} of {} expectations were not met", self.all));
        let failure = self.failed.into_iter().take(LISTED).fold(failure, Failure::detail);
        Err(if count > LISTED { failure.detail(format!("and {} more", count - LISTED)) } else { failure })
    }
}

pub(super) struct Writer {
    format: Format,
    /// The description above a table.
    about: String,
    /// The metrics of the table; all when empty.
    metrics: Vec<String>,
    runs: Vec<RunRecord>,
    bounds: Bounds,
}

impl Writer {
    pub(super) fn new(format: Format, about: &str) -> Self {
        let (metrics, runs, bounds) = (Vec::new(), Vec::new(), Bounds::default());
        Self { format, about: about.to_owned(), metrics, runs, bounds }
    }

    /// The same with a Markdown table of only these metrics, unless there are none.
    pub(super) fn of_metrics(self, metrics: &[String]) -> Self {
        Self { metrics: metrics.to_owned(), ..self }
    }

    /// Writes JSON at once, so that complete runs are there if the command is stopped.
    pub(super) fn add(&mut self, run: RunRecord) -> Result<(), Failure> {
        self.bounds.add(&run);
        if self.format == Format::Json {
            return Stream::Stdout.json(&run);
        }
        self.runs.push(run);
        Ok(())
    }

    /// Writes tables, which need all runs.
    pub(super) fn finish(self) -> Result<(), Failure> {
        match self.format {
            Format::Table if self.metrics.is_empty() => out::page(&table(&self.about, &self.runs))?,
            Format::Table => out::print(&columns(&self.runs, &self.metrics).map_err(|pattern| {
                no_metric(&pattern).hint("without --metric all are printed, with their names")
            })?)?,
            Format::Csv => out::print(&csv(&self.runs))?,
            Format::Json => {}
        }
        self.bounds.outcome()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use anabranch_experiments::scenario::{Metrics, Outcome, Report};

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

    /// The outcome of all bounds of these runs.
    fn outcome(runs: &[RunRecord]) -> Result<(), Failure> {
        let mut bounds = Bounds::default();
        runs.iter().for_each(|run| bounds.add(run));
        bounds.outcome()
    }

    #[test]
    fn a_bound_on_what_was_not_measured_is_told_as_one_that_is_not_kept() {
        let report = Report {
            scenario: "tiny".to_owned(),
            seed: 7,
            metrics: Metrics::new(),
            expect: vec![Outcome {
                name: "flow.M.completion_s".to_owned(),
                value: None,
                bound: "≤ 3".to_owned(),
                ok: false,
            }],
        };
        let run = RunRecord::new(report, 0, &[]);
        let text = serde_json::to_string(&run).unwrap();
        assert!(text.contains(r#""value":null"#), "{text}");
        assert_eq!(serde_json::from_str::<RunRecord>(&text).unwrap(), run);
        let mut writer = Writer::new(Format::Csv, "");
        writer.add(run).unwrap();
        assert_eq!(writer.bounds.failed, ["tiny, seed 7: flow.M.completion_s is not measured, not ≤ 3"]);
    }

    #[test]
    fn a_bound_that_is_not_kept_is_told_with_its_variant_and_of_very_many_how_many_more() {
        let broken = |seed, value| {
            let bound =
                Outcome { name: "jain".into(), value: Some(value), bound: "≥ 0.9".into(), ok: false };
            RunRecord { expect: vec![bound], ..run(seed, value) }
        };
        let kept = RunRecord {
            expect: vec![Outcome { ok: true, ..broken(3, 1.0).expect.remove(0) }],
            ..run(3, 1.0)
        };
        let failure = outcome(&[broken(2, 0.5), kept.clone()]).unwrap_err();
        assert_eq!(failure.message, "1 of 2 expectations were not met");
        assert_eq!(failure.details, ["x a.b=1, 2, seed 2: jain is 0.5000, not ≥ 0.9"]);
        assert_eq!(outcome(&[kept]), Ok(()));
        let many: Vec<RunRecord> = (0..25).map(|seed| broken(seed, 0.5)).collect();
        let details = outcome(&many).unwrap_err().details;
        assert_eq!((details.len(), details[20].as_str()), (21, "and 5 more"));
        assert_eq!(outcome(&many[..20]).unwrap_err().details.len(), 20);
    }
}
