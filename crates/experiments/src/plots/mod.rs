//! Charts of runs, as SVG.
//!
//! - Over time: a chart for each quantity, of the first seed of each variant. The warm-up is grey, and dashed lines mark
//!   events.
//! - Distributions over all seeds, with a line for each variant.
//! - Metrics over all seeds, with 95 % intervals: lines over the setting with the most numeric values, or else bars.

mod axis;
mod canvas;
mod chart;

use std::collections::BTreeMap;

use crate::scenario::{Course, Quantity};

use crate::results::{RunRecord, matches, names_of, spread};
use axis::{Axis, differing, values_beside};
use chart::{Bars, Curve, Labels, Marks};

/// The metrics that are drawn by default.
const USUAL: &str = "flow.*.goodput_mbit_s";
/// Most points of a distribution's line.
const MAX_STEPS: usize = 400;

/// Values by quantity and variant.
pub type Distributions = BTreeMap<String, Vec<(String, Vec<f64>)>>;

/// One chart.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// The scenario.
    pub scenario: String,
    /// The quantity. Scenario and quantity together name the file.
    pub what: String,
    /// The chart as SVG, or why it cannot be drawn.
    pub svg: Result<String, String>,
}

/// Collects runs and draws them.
#[derive(Default)]
pub struct Album {
    runs: Vec<RunRecord>,
    /// The seed and the course of the first run of each variant.
    courses: Vec<(String, u64, Course)>,
    distributions: Distributions,
}

impl Album {
    /// Adds a run; its course is drawn if it is the first of its variant.
    pub fn add(&mut self, run: &RunRecord, mut course: Course) {
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

    /// Draws everything, with these metrics over all runs. Without patterns, those are the goodputs of the flows.
    pub fn draw(&self, patterns: &[String]) -> Vec<Drawing> {
        let Some(scenario) = self.runs.first().map(|run| run.scenario.clone()) else { return Vec::new() };
        let mut drawings = Vec::new();
        let several = self.courses.len() > 1;
        for (number, (variant, seed, course)) in self.courses.iter().enumerate() {
            let suffix = if several { format!("-{}", number + 1) } else { String::new() };
            let whose = format!("{scenario} {variant}").trim_end().to_owned();
            let which = self.which(variant, *seed);
            for (quantity, curves) in over_time(course) {
                let (title, unit) = quantity.title_and_unit();
                // A chart with one line has no legend.
                let of =
                    if let [curve] = &curves[..] { format!(" of {}", curve.name) } else { String::new() };
                let title = format!("{whose}: {title}{of}, {which}");
                let marks = Some(Marks { warm_up: course.warm_up, events: course.events.clone() });
                let labels = Labels { title, x: "time, s".into(), y: unit.into(), marks };
                drawings.push(Drawing {
                    scenario: scenario.clone(),
                    what: format!("{quantity:?}{suffix}"),
                    svg: chart::lines(&labels, &curves),
                });
            }
        }
        let mut distributions = self.distributions.clone();
        distributions.retain(|_, variants| variants.iter().flat_map(|(_, values)| values).count() > 1);
        drawings.extend(draw_distributions(&scenario, &distributions));
        if self.runs.len() > 1 || !patterns.is_empty() {
            let usual = [USUAL.to_owned()];
            let patterns = if patterns.is_empty() { &usual } else { patterns };
            drawings.extend(patterns.iter().flat_map(|pattern| draw_metric(&self.runs, pattern)));
        }
        drawings
    }

    /// The run of a variant that is drawn over time, for titles.
    fn which(&self, variant: &str, seed: u64) -> String {
        match self.runs.iter().filter(|run| run.variant() == variant).count() {
            0 | 1 => format!("seed {seed}"),
            seeds => format!("seed {seed} (the first of {seeds})"),
        }
    }
}

/// Draws distributions: a chart for each quantity, a line for each variant.
pub fn draw_distributions(scenario: &str, distributions: &Distributions) -> Vec<Drawing> {
    let draw = |(of, variants): (&String, &Vec<(String, Vec<f64>)>)| {
        let all = || variants.iter().flat_map(|(_, values)| values.iter().copied());
        let counted = counted(variants.iter().map(|(_, values)| values.len()), "value");
        let ends = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
        let some = variants.iter().filter(|(_, values)| !values.is_empty());
        let curves: Vec<Curve> = some.map(|(name, values)| cumulative(name, values, ends)).collect();
        let labels = Labels {
            title: format!("{scenario}: {of}, {counted}"),
            x: of.clone(),
            y: "share with at most this".into(),
            ..Labels::default()
        };
        Drawing {
            scenario: scenario.to_owned(),
            what: format!("cdf {of}"),
            svg: chart::lines(&labels, &curves),
        }
    };
    distributions.iter().map(draw).collect()
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

/// The cumulative distribution of values as steps, over the whole width of a chart.
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

/// Draws the metrics that a pattern names, one chart for each scenario that has any.
pub fn draw_metric(runs: &[RunRecord], pattern: &str) -> Vec<Drawing> {
    let mut scenarios: BTreeMap<&str, Vec<&RunRecord>> = BTreeMap::new();
    for run in runs {
        scenarios.entry(&run.scenario).or_default().push(run);
    }
    let mut drawings = Vec::new();
    for (scenario, runs) in scenarios {
        let mut names: Vec<&String> = runs.iter().flat_map(|run| run.metrics.keys()).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| matches(pattern, name));
        if names.is_empty() {
            continue;
        }
        let unit = pattern.rsplit('.').next().unwrap_or(pattern).to_owned();
        let title = format!("{scenario}: {pattern}, means and 95 % intervals of {}", seeds_of(&runs));
        let drawn = match Axis::of(&runs) {
            Some(axis) => {
                let curves = over_axis(&names, &axis, &runs);
                let labels = Labels { title, x: axis.label, y: unit, ..Labels::default() };
                chart::lines(&labels, &curves)
            }
            None => {
                let (legend, groups) = as_bars(&names, &runs);
                chart::bars(&Labels { title, y: unit, ..Labels::default() }, &legend, &groups)
            }
        };
        drawings.push(Drawing { scenario: scenario.to_owned(), what: pattern.to_owned(), svg: drawn });
    }
    drawings
}

/// How many seeds each variant ran with.
fn seeds_of(runs: &[&RunRecord]) -> String {
    let variants = names_of(runs, RunRecord::variant);
    let count = |variant: &String| runs.iter().filter(|run| run.variant() == *variant).count();
    counted(variants.iter().map(count), "seed")
}

/// The counts of several lines: `1 seed`, `3 seeds`, `2 to 4 seeds`.
fn counted(counts: impl Iterator<Item = usize> + Clone, what: &str) -> String {
    match (counts.clone().min(), counts.max()) {
        (Some(1), Some(1)) => format!("1 {what}"),
        (Some(least), Some(most)) if least == most => format!("{most} {what}s"),
        (Some(least), Some(most)) => format!("{least} to {most} {what}s"),
        _ => format!("no {what}s"),
    }
}

/// A line for each metric and each variant that differs in other settings than the axis.
fn over_axis(names: &[&String], axis: &Axis, runs: &[&RunRecord]) -> Vec<Curve> {
    let differing = differing(runs);
    let beside = |run: &RunRecord| values_beside(run, &differing, Some(&axis.key));
    let mut curves = Vec::new();
    for variant in names_of(runs, beside) {
        for metric in names {
            let point = |(value, place): (&str, f64)| {
                let is_it = |run: &RunRecord| run.set[&axis.key] == value && beside(run) == variant;
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

/// A group of bars for each metric, with a bar for each variant; a single metric has a group for each variant instead.
fn as_bars(names: &[&String], runs: &[&RunRecord]) -> (Vec<String>, Vec<Bars>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Extras, Scenario, variants};

    fn album() -> Album {
        let text =
            include_str!("test.toml").replace("paths = [\"a\", \"b\"]", "paths = [\"a\", \"b\"]\ncount = 3");
        let base = Scenario::parse(&text, "test").unwrap();
        let mut album = Album::default();
        for variant in variants(&base, &["link.a.rate=5 Mbit/s,10 Mbit/s".parse().unwrap()]).unwrap() {
            for seed in 1..3 {
                let extras = Extras { course: true, ..Extras::default() };
                let (report, course) = variant.scenario.run_with(seed, extras).unwrap();
                album.add(&RunRecord::new(report, 0, &variant.set), course);
            }
        }
        album
    }

    #[test]
    fn an_album_has_charts_over_time_distributions_and_metrics_over_what_was_set() {
        let mut drawings = album().draw(&[]);
        drawings.sort_by(|a, b| a.what.cmp(&b.what));
        let names: Vec<&str> = drawings.iter().map(|drawing| drawing.what.as_str()).collect();
        let wanted = [
            "Goodput-1",
            "Goodput-2",
            "Queue-1",
            "Queue-2",
            "Utilisation-1",
            "Utilisation-2",
            "cdf goodput of each flow of M, Mbit/s",
            "flow.*.goodput_mbit_s",
        ];
        assert_eq!(names, wanted);
        for Drawing { scenario, what, svg } in drawings {
            let text = svg.unwrap();
            assert!(text.starts_with("<svg") && text.len() < 60_000, "{what}: {}", text.len());
            // Charts of one seed name it.
            let is_of_one = !(what.contains("cdf") || what.contains("flow"));
            assert_eq!(text.contains(", seed 1 (the first of 2)"), is_of_one, "{what}");
            // Others count their seeds or values: three flows with two seeds each.
            assert_eq!(text.contains("6 values") || text.contains("2 seeds"), !is_of_one, "{what}");
            assert_eq!(scenario, "test");
        }
        let drawings = album().draw(&["jain".to_owned()]);
        assert_eq!(drawings.last().unwrap().what, "jain");
        assert!(drawings.iter().all(|drawing| drawing.what != USUAL));
    }

    #[test]
    fn a_metric_has_a_line_for_each_variant_of_the_other_settings() {
        let run = |delay: &str, rule: &str, jain: f64| RunRecord {
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
        let runs: Vec<&RunRecord> = runs.iter().collect();
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
