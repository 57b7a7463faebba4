//! Which charts are drawn of runs.
//!
//! Of the first seed of each variant how things went over time, a chart a quantity; of all seeds how flows, links and
//! files are distributed, a line a variant; and metrics as bars over seeds with their 95 % intervals, or, where
//! the variants differ in numbers, as lines over those that differ most.

use std::collections::BTreeMap;
use std::path::Path;

use anabranch_sim::scenario::{Course, Quantity, Spread};

use super::PlotArgs;
use super::axis::{Axis, differing, values_beside};
use super::chart::{self, Bars, Curve, Labels};
use super::merge;
use super::output::Run;
use crate::capture::qlog::file_part;
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
    /// The course of the first run of each variant.
    courses: Vec<(String, Course)>,
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
        if !self.courses.iter().any(|(known, _)| *known == variant) {
            self.courses.push((variant, course));
        }
        self.runs.push(run.clone());
    }

    /// Draws everything into a directory.
    pub(super) fn write(&self, folder: &Path) -> Result<(), Failure> {
        let Some(scenario) = self.runs.first().map(|run| run.scenario.clone()) else { return Ok(()) };
        let several = self.courses.len() > 1;
        for (number, (variant, course)) in self.courses.iter().enumerate() {
            let suffix = if several { format!("-{}", number + 1) } else { String::new() };
            for (quantity, curves) in over_time(course) {
                let (title, unit) = quantity.told();
                let title = format!("{scenario} {variant}: {title}").replace(" :", ":");
                let labels = Labels { title, x: "time, s".into(), y: unit.into() };
                let name = format!("{scenario}-{}{suffix}", file_part(&format!("{quantity:?}")));
                save(folder, &name, chart::lines(&labels, &curves))?;
            }
        }
        draw_distributions(&scenario, &self.distributions, folder)?;
        if self.runs.len() > 1 {
            metric(&self.runs, USUAL, folder)?;
        }
        Ok(())
    }
}

/// Makes the directory that drawings go into, and sees that it takes files: before the runs, which may take long.
pub(super) fn prepare(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| Failure::file("create", folder, &error))?;
    let probe = tempfile::tempfile_in(folder).map(drop);
    probe.map_err(|error| Failure::file("write into", folder, &error))
}

/// Draws distributions, a chart a quantity and a line a variant.
pub(super) fn draw_distributions(
    scenario: &str,
    distributions: &Distributions,
    folder: &Path,
) -> Result<(), Failure> {
    for (of, variants) in distributions {
        let curves: Vec<Curve> = variants.iter().map(|(name, values)| cumulative(name, values)).collect();
        let labels =
            Labels { title: format!("{scenario}: {of}"), x: of.clone(), y: "share at most this".into() };
        save(folder, &format!("{scenario}-cdf-{}", file_part(of)), chart::lines(&labels, &curves))?;
    }
    Ok(())
}

/// Draws metrics of results that were written as JSON.
pub(super) fn run(args: &PlotArgs, context: &Context) -> Result<(), Failure> {
    let runs = merge::read(&args.files, context)?;
    for pattern in &args.metrics {
        if metric(&runs, pattern, &args.into)? == 0 {
            let failure = Failure::local(format!("no run has a metric \"{pattern}\""));
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
        charts.entry(line.quantity).or_default().push(Curve { name: line.of.clone(), points });
    }
    charts
}

/// The share of values that are at most each of them.
fn cumulative(name: &str, values: &[f64]) -> Curve {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (count, every) = (sorted.len() as f64, sorted.len().div_ceil(MAX_STEPS).max(1));
    let point = |(index, value): (usize, &f64)| (*value, (index + 1) as f64 / count, 0.0);
    let last = sorted.len().saturating_sub(1);
    let kept = |(index, _): &(usize, &f64)| index % every == 0 || *index == last;
    Curve { name: name.to_owned(), points: sorted.iter().enumerate().filter(kept).map(point).collect() }
}

/// Draws the metrics that a pattern names, one chart a scenario; answers how many metrics there are.
fn metric(runs: &[Run], pattern: &str, folder: &Path) -> Result<usize, Failure> {
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
        let file = format!("{scenario}-{}", file_part(pattern));
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
        save(folder, &file, drawn)?;
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
            curves.push(Curve { name, points: axis.values().into_iter().filter_map(point).collect() });
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

fn save(folder: &Path, name: &str, drawn: Result<String, String>) -> Result<(), Failure> {
    let path = folder.join(format!("{name}.svg"));
    let text = drawn.map_err(|error| Failure::local(format!("cannot draw {}: {error}", path.display())))?;
    std::fs::create_dir_all(folder).map_err(|error| Failure::file("create", folder, &error))?;
    std::fs::write(&path, text).map_err(|error| Failure::file("write", &path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_sim::scenario::{Extras, Scenario, variants};

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
    fn a_directory_that_takes_no_drawings_is_told_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(prepare(&file.join("drawings")).unwrap_err().message.starts_with("cannot create "));
        assert!(
            prepare(Path::new("/proc/self")).unwrap_err().message.starts_with("cannot write into /proc/self")
        );
        assert_eq!(prepare(&folder.path().join("new/drawings")), Ok(()));
        assert!(folder.path().join("new/drawings").read_dir().unwrap().next().is_none());
    }

    #[test]
    fn an_album_has_charts_over_time_distributions_and_metrics_over_what_was_set() {
        let folder = tempfile::tempdir().unwrap();
        album().write(folder.path()).unwrap();
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
    fn a_distribution_rises_to_one() {
        let points = cumulative("x", &[3.0, 1.0, 2.0, 4.0]).points;
        assert_eq!(points, [(1.0, 0.25, 0.0), (2.0, 0.5, 0.0), (3.0, 0.75, 0.0), (4.0, 1.0, 0.0)]);
    }
}
