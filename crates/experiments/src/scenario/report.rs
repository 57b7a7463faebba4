//! What a run gave, whether it was as expected, and what many runs gave on average.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::error::{ScenarioError, nearest};
use super::measure::Metrics;
use super::model::Bound;

/// What a run gave.
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
    /// Whether everything was as expected.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.expect.iter().all(|outcome| outcome.ok)
    }
}

/// One bound and whether it was kept.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Outcome {
    /// The metric.
    pub name: String,
    /// Its value; `None` when it was not measured, as nothing was completed.
    pub value: Option<f64>,
    /// What it had to be, as text: `≥ 3`.
    pub bound: String,
    /// Whether it was.
    pub ok: bool,
}

/// Checks that bounds can be judged: they name metrics that a run has, and say something.
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

/// Metrics that not every flow has, by how they begin.
const ONLY: [(&str, &str); 6] = [
    ("completion_", "a flow that ends, with a `size` or a `script`,"),
    ("delay_", "a flow of `datagrams`"),
    ("delivered_", "a flow of `datagrams`"),
    ("shared_", "a flow of several paths whose coupling is adaptive"),
    ("separate_", "a flow of several paths whose coupling is adaptive"),
    ("jain", "several flows, by `count` or of a [[traffic]],"),
];

/// Names that are listed where none is near.
const SOME: usize = 5;

/// What to say of a metric of something that is not there.
fn nobody(metric: &str, known: &BTreeSet<String>) -> Option<String> {
    if metric == "jain" {
        return Some("it is of flows: there is no [[flow]] and no [[traffic]]".to_owned());
    }
    let (kind, rest) = metric.split_once('.')?;
    let (name, _) = rest.split_once('.')?;
    let is_kind = ["flow", "arrivals", "cbr", "detector"].contains(&kind);
    let of_kind = || known.iter().filter_map(|known| known.strip_prefix(kind)?.strip_prefix('.'));
    if !is_kind || of_kind().any(|known| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))) {
        return None;
    }
    let names: BTreeSet<&str> = of_kind().filter_map(|known| Some(known.split_once('.')?.0)).collect();
    let names: Vec<&str> = names.into_iter().collect();
    Some(match nearest(name, &names) {
        Some(near) => format!("there is no {kind} \"{name}\"; did you mean \"{near}\"?"),
        None if kind == "detector" => {
            format!("there is no detector \"{name}\" of a flow of several paths, which is what one measures")
        }
        None if (1..=SOME).contains(&names.len()) => {
            format!("there is no {kind} \"{name}\" that is measured; there is \"{}\"", names.join("\", \""))
        }
        None => format!("there is no {kind} \"{name}\" that is measured"),
    })
}

fn hint(metric: &str, known: &BTreeSet<String>) -> String {
    if let Some(hint) = nobody(metric, known) {
        return hint;
    }
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    // The unit left out is likelier than another word.
    let longer = |name: &&&str| {
        name.strip_prefix(metric).is_some_and(|rest| !metric.is_empty() && rest.starts_with(['_', '.']))
    };
    // What each path has may be asked of the whole.
    let (whole, part) = metric.rsplit_once('.').unwrap_or(("", metric));
    let of_part = |name: &&&str| {
        name.strip_prefix(whole)
            .and_then(|rest| rest.strip_suffix(part))
            .is_some_and(|between| between.len() > 2 && between.starts_with('.') && between.ends_with('.'))
    };
    let begun = names.iter().filter(longer).min_by_key(|name| name.len());
    let begun = begun.or_else(|| names.iter().find(of_part)).copied();
    let of = metric.rsplit_once('.').map(|(_, last)| last);
    // Who has others of the kind is one of those that have it: only the word is wrong.
    let has_like = |only: &str| names.iter().any(|name| name.starts_with(&format!("{whole}.{only}")));
    let only = ONLY.iter().find(|(only, _)| of.is_some_and(|of| of.starts_with(only)) && !has_like(only));
    if let (None, Some((_, whose))) = (begun, only) {
        return format!("only {whose} has it");
    }
    match begun.or_else(|| nearest(metric, &names)) {
        _ if matches!(metric, "run.cpu_s" | "run.peak_rss_mb") => {
            "what a run costs the machine is no result of it and cannot be expected".to_owned()
        }
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "`anabranch sim run` prints the names of all metrics".to_owned(),
    }
}

/// Holds metrics against bounds, which were checked. What was not measured, as nothing was completed, keeps no bound.
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
    /// Their mean.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval of the mean (Student's t); zero for one run.
    pub ci95: f64,
}

/// Many runs together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Every metric that any of them had.
    pub metrics: BTreeMap<String, Spread>,
}

impl Summary {
    /// Puts runs together.
    #[must_use]
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
    /// Mean and interval of some values, which are not none.
    #[must_use]
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

/// The two-sided 95 % quantile of Student's t for so many degrees of freedom.
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
        assert!(told("\"run.cpu_s\" = { max = 1 }").hint.contains("costs the machine"));
        assert!(check(&bound("jain = { min = 0.8, above = \"total\" }"), &known).is_ok());
    }
}
