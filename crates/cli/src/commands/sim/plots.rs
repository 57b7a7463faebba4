//! Which charts are drawn of runs.
//!
//! Of the first seed of each variant, which their titles name, how things went over time, a chart a quantity; of all seeds how flows, links and
//! files are distributed, a line a variant; and metrics as bars over seeds with their 95 % intervals, or, where
//! the variants differ in numbers, as lines over those that differ most.

use std::collections::BTreeMap;

use anabranch_experiments::scenario::{Course, Quantity, Spread};

use super::PlotArgs;
use super::axis::{Axis, differing, values_beside};
use super::chart::{self, Bars, Curve, Labels};
use super::folder::Folder;
use super::merge;
use super::output::Run;
use crate::commands::Context;
use crate::errors::Failure;

/// What is drawn of metrics unless something else is asked for.
const USUAL: &str = "flow.*.goodput_mbit_s";
/// Most points of a distribution's line.
const MAX_STEPS: usize = 400;

/// Of each quantity, by name, the values of some variants.
pub(super) type Distributions = BTreeMap<String, Vec<(String, Vec<f64>)>>;

/// Collects what is to be drawn.
#[derive(Default)]
pub(super) struct Album {
    runs: Vec<Run>,
    /// The seed and the course of the first run of each variant.
    courses: Vec<(String, u64, Course)>,
    /// For each distribution, for each variant, the values of all its runs.
    distributions: Distributions,
}

impl Album {
    pub(super) fn add(&mut self, run: &Run, mut course: Course) {
        let variant = run.variant();
        for distribution in std::mem::take(&mut course.distributions) {
            let variants = self.distributions.entry(distribution.of).or_default();
            match variants.iter_mut().find(|(name, _)| *name == variant) {
                Some((_, values)) => values.extend(distribution.values),
                None => variants.push((variant.clone(), distribution.values)),
            }
        }
        if !self.courses.iter().any(|(known, ..)| *known == variant) {
            self.courses.push((variant, run.seed, course));
        }
        self.runs.push(run.clone());
    }

    /// Draws everything into a directory.
    pub(super) fn write(&self, folder: &mut Folder<'_>) -> Result<(), Failure> {
        let Some(scenario) = self.runs.first().map(|run| run.scenario.clone()) else { return Ok(()) };
        let several = self.courses.len() > 1;
        for (number, (variant, seed, course)) in self.courses.iter().enumerate() {
            let suffix = if several { format!("-{}", number + 1) } else { String::new() };
            let whose = format!("{scenario} {variant}").trim_end().to_owned();
            let which = self.which(variant, *seed);
            for (quantity, curves) in over_time(course) {
                let (title, unit) = quantity.told();
                let title = format!("{whose}: {title}, {which}");
                let labels = Labels { title, x: "time, s".into(), y: unit.into() };
                folder.save(&scenario, &format!("{quantity:?}{suffix}"), chart::lines(&labels, &curves))?;
            }
        }
        draw_distributions(&scenario, &self.distributions, folder)?;
        if self.runs.len() > 1 {
            metric(&self.runs, USUAL, folder)?;
        }
        Ok(())
    }

    /// Which of a variant's runs is drawn over time.
    fn which(&self, variant: &str, seed: u64) -> String {
        match self.runs.iter().filter(|run| run.variant() == variant).count() {
            0 | 1 => format!("seed {seed}"),
            seeds => format!("seed {seed} (the first of {seeds})"),
        }
    }
}

/// Draws distributions, a chart a quantity and a line a variant.
pub(super) fn draw_distributions(
    scenario: &str,
    distributions: &Distributions,
    folder: &mut Folder<'_>,
) -> Result<(), Failure> {
    for (of, variants) in distributions {
        let all = || variants.iter().flat_map(|(_, values)| values.iter().copied());
        let ends = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
        let some = variants.iter().filter(|(_, values)| !values.is_empty());
        let curves: Vec<Curve> = some.map(|(name, values)| cumulative(name, values, ends)).collect();
        let labels =
            Labels { title: format!("{scenario}: {of}"), x: of.clone(), y: "share with at most this".into() };
        folder.save(scenario, &format!("cdf {of}"), chart::lines(&labels, &curves))?;
    }
    Ok(())
}

/// Draws metrics of results that were written as JSON.
pub(super) fn run(args: &PlotArgs, context: &Context) -> Result<(), Failure> {
    let runs = merge::read(&args.files, context)?;
    let mut folder = Folder::prepare(&args.into)?;
    for (index, pattern) in args.metrics.iter().enumerate() {
        if args.metrics[..index].contains(pattern) {
            continue;
        }
        if metric(&runs, pattern, &mut folder)? == 0 {
            let failure = Failure::usage(format!("no run has a metric \"{pattern}\""));
            return Err(failure.hint("`anabranch sim merge FILE…` prints the names of all"));
        }
    }
    Ok(())
}

/// The lines of each chart over time.
fn over_time(course: &Course) -> BTreeMap<Quantity, Vec<Curve>> {
    let mut charts: BTreeMap<Quantity, Vec<Curve>> = BTreeMap::new();
    for line in &course.lines {
        let points = course.times.iter().zip(&line.values).map(|(at, value)| (*at, *value, 0.0)).collect();
        charts.entry(line.quantity).or_default().push(Curve {
            name: line.of.clone(),
            points,
            ..Curve::default()
        });
    }
    charts
}

/// The share of values that are at most each of them, from one end of the chart to the other: it rises where a value is, and
/// nowhere between.
fn cumulative(name: &str, values: &[f64], (first, end): (f64, f64)) -> Curve {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (count, every) = (sorted.len() as f64, sorted.len().div_ceil(MAX_STEPS).max(1));
    let last = sorted.len().saturating_sub(1);
    let kept = |(index, _): &(usize, &f64)| index % every == 0 || *index == last;
    let (mut points, mut below) = (vec![(first, 0.0, 0.0)], 0.0);
    for (index, value) in sorted.iter().enumerate().filter(kept) {
        let share = (index + 1) as f64 / count;
        points.extend([(*value, below, 0.0), (*value, share, 0.0)]);
        below = share;
    }
    points.push((end, below, 0.0));
    Curve { name: name.to_owned(), points, are_corners: true }
}

/// Draws the metrics that a pattern names, one chart a scenario; answers how many metrics there are.
fn metric(runs: &[Run], pattern: &str, folder: &mut Folder<'_>) -> Result<usize, Failure> {
    let mut scenarios: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        scenarios.entry(&run.scenario).or_default().push(run);
    }
    let mut found = 0;
    for (scenario, runs) in scenarios {
        let mut names: Vec<&String> = runs.iter().flat_map(|run| run.metrics.keys()).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| matches(pattern, name));
        found += names.len();
        if names.is_empty() {
            continue;
        }
        let unit = pattern.rsplit('.').next().unwrap_or(pattern).to_owned();
        let title = format!("{scenario}: {pattern}, means and 95 % intervals");
        let drawn = match Axis::of(&runs) {
            Some(axis) => {
                let curves = over_axis(&names, &axis, &runs);
                chart::lines(&Labels { title, x: axis.label, y: unit }, &curves)
            }
            None => {
                let (legend, groups) = as_bars(&names, &runs);
                chart::bars(&Labels { title, x: String::new(), y: unit }, &legend, &groups)
            }
        };
        folder.save(scenario, pattern, drawn)?;
    }
    Ok(found)
}

/// Mean and half width of the 95 % interval of a metric over some runs.
pub(super) fn spread(name: &str, runs: &[&Run], of_it: impl Fn(&Run) -> bool) -> Option<(f64, f64)> {
    let values: Vec<f64> =
        runs.iter().filter(|run| of_it(run)).filter_map(|run| run.metrics.get(name).copied()).collect();
    let spread = Spread::of(&values);
    (spread.runs > 0).then_some((spread.mean, spread.ci95))
}

/// A line for each metric and each variant of what is not on the axis.
fn over_axis(names: &[&String], axis: &Axis, runs: &[&Run]) -> Vec<Curve> {
    let differing = differing(runs);
    let beside = |run: &Run| values_beside(run, &differing, Some(&axis.key));
    let mut curves = Vec::new();
    for variant in names_of(runs, beside) {
        for metric in names {
            let point = |(value, place): (&str, f64)| {
                let is_it = |run: &Run| run.set[&axis.key] == value && beside(run) == variant;
                let (mean, error) = spread(metric, runs, is_it)?;
                Some((place, mean, error))
            };
            let name = match (names.len(), variant.as_str()) {
                (_, "") => (*metric).clone(),
                (1, variant) => variant.to_owned(),
                (_, variant) => format!("{}, {variant}", short(metric)),
            };
            let points = axis.values().into_iter().filter_map(point).collect();
            curves.push(Curve { name, points, ..Curve::default() });
        }
    }
    curves
}

/// What runs are called, each name once, in order of the first runs.
pub(super) fn names_of(runs: &[&Run], name: impl Fn(&Run) -> String) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        let name = name(run);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A group of bars a metric, a bar a variant; of one metric alone each variant stands by itself.
fn as_bars(names: &[&String], runs: &[&Run]) -> (Vec<String>, Vec<Bars>) {
    let differing = differing(runs);
    let variants = names_of(runs, |run| values_beside(run, &differing, None));
    let value = |name: &str, variant: &str| {
        spread(name, runs, |run| values_beside(run, &differing, None) == *variant)
    };
    if let ([name], true) = (names, variants.len() > 1) {
        let group = |variant: &String| Bars { name: variant.clone(), values: vec![value(name, variant)] };
        return (vec![short(name)], variants.iter().map(group).collect());
    }
    let group = |name: &&String| Bars {
        name: short(name),
        values: variants.iter().map(|variant| value(name, variant)).collect(),
    };
    (variants.clone(), names.iter().map(group).collect())
}

/// `flow.M.goodput_mbit_s` as `M`.
fn short(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    if parts.len() > 2 { parts[1..parts.len() - 1].join(" ") } else { name.to_owned() }
}

/// Whether a name fits a pattern in which each `*` stands for one part of a name, without dots.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), name.split('.').collect());
    pattern.len() == name.len()
        && pattern.iter().zip(name).all(|(part, of_name)| *part == "*" || *part == of_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_experiments::scenario::{Extras, Scenario, variants};

    fn album() -> Album {
        let text =
            include_str!("test.toml").replace("paths = [\"a\", \"b\"]", "paths = [\"a\", \"b\"]\ncount = 3");
        let base = Scenario::parse(&text, "test").unwrap();
        let mut album = Album::default();
        for variant in variants(&base, &["link.a.rate=5 Mbit/s,10 Mbit/s".parse().unwrap()]).unwrap() {
            for seed in 1..3 {
                let extras = Extras { course: true, ..Extras::default() };
                let (report, course) = variant.scenario.run_with(seed, extras).unwrap();
                album.add(&Run::new(report, 0, &variant.set), course);
            }
        }
        album
    }

    #[test]
    fn an_album_has_charts_over_time_distributions_and_metrics_over_what_was_set() {
        let folder = tempfile::tempdir().unwrap();
        album().write(&mut Folder::prepare(folder.path()).unwrap()).unwrap();
        let files = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        let wanted = [
            "test-cdf-goodput-of-each-flow-of-m-mbit-s.svg",
            "test-flow-goodput-mbit-s.svg",
            "test-goodput-1.svg",
            "test-goodput-2.svg",
            "test-queue-1.svg",
            "test-queue-2.svg",
            "test-utilisation-1.svg",
            "test-utilisation-2.svg",
        ];
        assert_eq!(names, wanted);
        for name in names {
            let text = std::fs::read_to_string(folder.path().join(&name)).unwrap();
            assert!(text.starts_with("<svg") && text.len() < 60_000, "{name}: {}", text.len());
            // What is of one seed alone says so.
            let is_of_one = !(name.contains("cdf") || name.contains("flow"));
            assert_eq!(text.contains(", seed 1 (the first of 2)"), is_of_one, "{name}");
        }
    }

    #[test]
    fn patterns_stand_for_parts_of_names() {
        assert!(matches("flow.*.jain", "flow.M.jain") && matches("jain", "jain"));
        assert!(!matches("flow.*.jain", "flow.M.path1.jain") && !matches("flow.*", "link.A"));
    }

    #[test]
    fn metrics_make_a_line_for_each_variant_beside_the_axis() {
        let run = |delay: &str, rule: &str, jain: f64| Run {
            scenario: "x".into(),
            seed: 1,
            run: 0,
            set: BTreeMap::from([
                ("a.delay".to_owned(), delay.to_owned()),
                ("rule".to_owned(), rule.to_owned()),
            ]),
            metrics: BTreeMap::from([("jain".to_owned(), jain)]),
            expect: vec![],
        };
        let runs = [
            run("10 ms", "lia", 0.5),
            run("5 ms", "lia", 0.7),
            run("20 ms", "lia", 0.2),
            run("5 ms", "reno", 0.1),
        ];
        let runs: Vec<&Run> = runs.iter().collect();
        let name = "jain".to_owned();
        let curves = over_axis(&[&name], &Axis::of(&runs).unwrap(), &runs);
        assert_eq!([&curves[0].name, &curves[1].name], ["lia", "reno"]);
        assert_eq!(curves[0].points, [(5.0, 0.7, 0.0), (10.0, 0.5, 0.0), (20.0, 0.2, 0.0)]);
        assert_eq!(curves[1].points, [(5.0, 0.1, 0.0)]);
        let (legend, groups) = as_bars(&[&name], &[runs[0], runs[3]]);
        assert_eq!(legend, ["jain"]);
        assert_eq!(
            groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(),
            ["10 ms, lia", "5 ms, reno"]
        );
    }

    #[test]
    fn a_distribution_rises_to_one_in_steps() {
        let points = |values: &[f64]| -> Vec<(f64, f64)> {
            cumulative("x", values, (0.0, 1e4)).points.iter().map(|point| (point.0, point.1)).collect()
        };
        let steps = [(0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (3.0, 0.5), (3.0, 1.0), (1e4, 1.0)];
        assert_eq!(points(&[3.0, 1.0]), steps);
        let many: Vec<f64> = (0..10_000).map(f64::from).collect();
        let points = points(&many);
        assert!(points.len() <= 2 * (MAX_STEPS + 2) && points.last() == Some(&(1e4, 1.0)));
        let is_step = |two: &[(f64, f64)]| two[0].0 == two[1].0 || two[0].1 == two[1].1;
        assert!(points.windows(2).all(is_step), "nothing rises between two values");
    }
}
