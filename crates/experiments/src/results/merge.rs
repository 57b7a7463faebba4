//! Merges the parts of a sweep.

use std::collections::{BTreeMap, BTreeSet};

use super::{COSTS, RunRecord};

/// A run with its source.
#[derive(Clone, Debug)]
pub struct Found {
    pub run: RunRecord,
    /// Its file and line.
    pub place: String,
}

/// Two results of one run that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// The run, and both sources.
    pub message: String,
    /// The metric that differs.
    pub detail: String,
}

/// All runs in the order of one sweep, each once, and a warning for each scenario that misses runs.
///
/// # Errors
/// When a run occurs twice with different results.
pub fn merge(mut all: Vec<Found>) -> Result<(Vec<RunRecord>, Vec<String>), Conflict> {
    let order = |found: &Found| {
        let RunRecord { scenario, run, set, seed, .. } = &found.run;
        (scenario.clone(), *run, set.clone(), *seed)
    };
    all.sort_by_cached_key(order);
    let warnings = gaps(&all);
    let (mut first, mut once) = (BTreeMap::new(), Vec::new());
    for (index, found) in all.iter().enumerate() {
        let RunRecord { scenario, set, seed, .. } = &found.run;
        match first.insert((scenario, set, seed), index) {
            None => once.push(index),
            Some(known) => same(&all[known], found)?,
        }
    }
    let once: BTreeSet<usize> = once.into_iter().collect();
    let runs = all.into_iter().enumerate().filter(|(index, _)| once.contains(index));
    Ok((runs.map(|(_, found)| found.run).collect(), warnings))
}

/// Checks that two records of a run agree, apart from the metrics of the machine.
fn same(a: &Found, b: &Found) -> Result<(), Conflict> {
    let results = |found: &Found| {
        let metrics = found.run.metrics.iter().filter(|(name, _)| !COSTS.contains(&name.as_str()));
        let metrics = metrics.map(|(name, value)| (name.clone(), *value));
        let bounds = found.run.expect.iter();
        let bounds = bounds.filter_map(|bound| {
            let kept = if bound.ok { "kept" } else { "not kept" };
            Some((format!("expect.{} {}, {kept},", bound.name, bound.bound), bound.value?))
        });
        metrics.chain(bounds).collect::<BTreeMap<_, _>>()
    };
    let (of_a, of_b) = (results(a), results(b));
    let Some(name) = of_a.keys().chain(of_b.keys()).find(|name| of_a.get(*name) != of_b.get(*name)) else {
        return Ok(());
    };
    let value = |results: &BTreeMap<_, f64>| {
        // With all digits: they may differ in the last.
        results.get(name).map_or_else(|| "not there".to_owned(), f64::to_string)
    };
    let (seed, label, place) = (b.run.seed, b.run.label(), &b.place);
    let message = format!("{place}: seed {seed} of {label} has other results than at {}", a.place);
    let detail = format!("{name} is {} there and {} here", value(&of_a), value(&of_b));
    Err(Conflict { message, detail })
}

/// A warning for each scenario with gaps in its run numbers.
fn gaps(all: &[Found]) -> Vec<String> {
    let mut numbers: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for found in all {
        numbers.entry(&found.run.scenario).or_default().insert(found.run.run);
    }
    let gap = |(scenario, numbers): (&str, BTreeSet<usize>)| {
        let last = *numbers.last()?;
        let missing = last - (numbers.len() - 1);
        let first = numbers.iter().enumerate().find(|(index, number)| index != *number)?.0;
        let runs = if missing == 1 { "run is" } else { "runs are" };
        Some(format!(
            "{missing} {runs} missing of {scenario}, the first with \"run\":{first}; is a part left out, or was it stopped?"
        ))
    };
    numbers.into_iter().filter_map(gap).collect()
}
