//! Results of runs: metrics, bounds, and means over many runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::error::{ScenarioError, nearest};
use super::measure::Metrics;
use super::model::Bound;

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// The seed it ran with.
    pub seed: u64,
    /// Everything measured, by name.
    pub metrics: Metrics,
    /// Every bound of `[expect]`, in order of the names.
    pub expect: Vec<Outcome>,
}

impl Report {
    /// Whether all bounds were kept.
    pub fn ok(&self) -> bool {
        self.expect.iter().all(|outcome| outcome.ok)
    }
}

/// One bound and whether it was kept.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Outcome {
    /// The metric.
    pub name: String,
    /// Its value; `None` when it was not measured, for example because no file was completed.
    pub value: Option<f64>,
    /// The bound as text: `≥ 3`.
    pub bound: String,
    /// Whether it was kept.
    pub ok: bool,
}

/// Checks bounds: the metrics exist, and the limits make sense.
pub(crate) fn check(bounds: &BTreeMap<String, Bound>, known: &BTreeSet<String>) -> Result<(), ScenarioError> {
    for (name, bound) in bounds {
        let fault = |message: String| ScenarioError::new(format!("expect.{name}"), message);
        for metric in [Some(name), bound.above.as_ref(), bound.below.as_ref()].into_iter().flatten() {
            if !known.contains(metric) {
                return Err(
                    fault(format!("nothing measured is called \"{metric}\"")).hint(hint(metric, known))
                );
            }
        }
        if [bound.min, bound.max].into_iter().flatten().any(|limit| !limit.is_finite()) {
            return Err(
                fault("a bound that is no number".to_owned()).hint("give `min` and `max` as plain numbers")
            );
        }
        if bound.min.zip(bound.max).is_some_and(|(min, max)| min > max) {
            return Err(fault("min is above max: nothing can be both".to_owned()).hint("swap them"));
        }
        if [&bound.above, &bound.below].contains(&&Some(name.clone())) {
            return Err(fault("it is compared with itself".to_owned()).hint("name another metric"));
        }
        if bound.min.is_none() && bound.max.is_none() && bound.above.is_none() && bound.below.is_none() {
            return Err(fault("no bound is given".to_owned()).hint(
                "say `{ min = … }`, `{ max = … }`, `{ above = \"other metric\" }` or `{ below = \"…\" }`",
            ));
        }
    }
    Ok(())
}

/// The remedy for the name of a metric that the scenario does not have.
fn hint(metric: &str, known: &BTreeSet<String>) -> String {
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    // A name without its unit is likelier than another name.
    let longer = |name: &&&str| {
        name.strip_prefix(metric).is_some_and(|rest| !metric.is_empty() && rest.starts_with(['_', '.']))
    };
    let begun = names.iter().filter(longer).min_by_key(|name| name.len()).copied();
    match begun.or_else(|| nearest(metric, &names)) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => {
            "`anabranch sim run` prints the names of all metrics of a scenario without [expect]".to_owned()
        }
    }
}

/// Compares metrics with checked bounds. A metric that was not measured violates its bound.
pub(crate) fn judge(bounds: &BTreeMap<String, Bound>, metrics: &Metrics) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (name, bound) in bounds {
        let value = metrics.get(name).copied();
        let mut add = |sign: &str, limit: String, than: Option<f64>, kept: fn(&f64, &f64) -> bool| {
            let ok = value.zip(than).is_some_and(|(value, than)| kept(&value, &than));
            outcomes.push(Outcome { name: name.clone(), value, bound: format!("{sign} {limit}"), ok });
        };
        if let Some(min) = bound.min {
            add("≥", min.to_string(), Some(min), f64::ge);
        }
        if let Some(max) = bound.max {
            add("≤", max.to_string(), Some(max), f64::le);
        }
        for (sign, other, kept) in
            [("≥", &bound.above, f64::ge as fn(&f64, &f64) -> bool), ("≤", &bound.below, f64::le)]
        {
            let Some(other) = other else { continue };
            let than = metrics.get(other).copied();
            let missing = if than.is_none() { ", which was not measured" } else { "" };
            add(sign, format!("{other}{missing}"), than, kept);
        }
    }
    outcomes
}

/// A metric over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Runs that had it.
    pub runs: usize,
    pub mean: f64,
    /// Half the width of the 95 % confidence interval of the mean (Student's t); zero for one run.
    pub ci95: f64,
}

/// Metrics over many runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Every metric that any of them had.
    pub metrics: BTreeMap<String, Spread>,
}

impl Summary {
    /// Summarises runs.
    pub fn of(runs: &[&Metrics]) -> Self {
        let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.keys()).collect();
        let spread = |name: &String| {
            let values: Vec<f64> = runs.iter().filter_map(|run| run.get(name).copied()).collect();
            (name.clone(), Spread::of(&values))
        };
        Self { metrics: names.into_iter().map(spread).collect() }
    }
}

impl Spread {
    /// Mean and interval of some values.
    pub fn of(values: &[f64]) -> Self {
        let runs = values.len();
        let mean = values.iter().sum::<f64>() / runs.max(1) as f64;
        if runs < 2 {
            return Self { runs, mean, ci95: 0.0 };
        }
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let error = (squares / (runs - 1) as f64 / runs as f64).sqrt();
        Self { runs, mean, ci95: student(runs - 1) * error }
    }
}

/// The two-sided 95 % quantile of Student's t for this many degrees of freedom.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    TABLE.get(freedom - 1).copied().unwrap_or(1.96 + 2.5 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        let spread = Spread::of(&[1.0, 2.0, 3.0]);
        assert_eq!((spread.runs, spread.mean), (3, 2.0));
        assert!((spread.ci95 - 4.303 / 3_f64.sqrt()).abs() < 1e-9);
        assert_eq!(Spread::of(&[5.0]), Spread { runs: 1, mean: 5.0, ci95: 0.0 });
        assert!((student(40) - 2.021).abs() < 0.005);
    }

    #[test]
    fn what_was_not_measured_keeps_no_bound() {
        let metrics = Metrics::from([("jain".to_owned(), 0.9)]);
        let text = "jain = { min = 0.8, above = \"late\", below = \"late\" }\nlate = { min = 0, max = 9 }";
        let outcomes = judge(&toml::from_str(text).unwrap(), &metrics);
        let told: Vec<_> = outcomes.iter().map(|outcome| (outcome.value, outcome.ok)).collect();
        assert_eq!(
            told,
            [(Some(0.9), true), (Some(0.9), false), (Some(0.9), false), (None, false), (None, false)]
        );
    }

    #[test]
    fn bounds_are_told_apart_and_an_unknown_metric_is_answered_with_the_nearest() {
        let metrics = Metrics::from([("jain".to_owned(), 0.9), ("total".to_owned(), 0.5)]);
        let bound = |text: &str| toml::from_str::<BTreeMap<String, Bound>>(text).unwrap();
        let outcomes = judge(&bound("jain = { min = 0.8, max = 0.85, above = \"total\" }"), &metrics);
        let told: Vec<_> = outcomes.iter().map(|outcome| (outcome.bound.as_str(), outcome.ok)).collect();
        assert_eq!(told, [("≥ 0.8", true), ("≤ 0.85", false), ("≥ total", true)]);
        let known: BTreeSet<String> = metrics.keys().cloned().collect();
        let told = |text: &str| check(&bound(text), &known).unwrap_err();
        assert_eq!(told("jane = { min = 0.8 }").hint, "did you mean \"jain\"?");
        assert_eq!(told("jain = { above = \"totals\" }").hint, "did you mean \"total\"?");
        assert!(told("jain = { min = nan }").message.contains("no number"));
        assert!(told("jain = { min = 2, max = 1 }").message.contains("min is above max"));
        assert!(told("jain = {}").message.contains("no bound"));
        assert!(check(&bound("jain = { min = 0.8, above = \"total\" }"), &known).is_ok());
    }
}
