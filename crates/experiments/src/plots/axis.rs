//! The settings in which runs differ, and the one that becomes the x axis of a chart.

use std::collections::{BTreeMap, BTreeSet};

use crate::results::RunRecord;

/// Units, the unit of their axis, and the factor between them.
const UNITS: [(&str, &str, f64); 13] = [
    ("s", "s", 1.0),
    ("ms", "s", 1e-3),
    ("us", "s", 1e-6),
    ("µs", "s", 1e-6),
    ("ns", "s", 1e-9),
    ("Gbit/s", "Mbit/s", 1e3),
    ("Mbit/s", "Mbit/s", 1.0),
    ("kbit/s", "Mbit/s", 1e-3),
    ("bit/s", "Mbit/s", 1e-6),
    ("GB", "MB", 1e3),
    ("MB", "MB", 1.0),
    ("kB", "MB", 1e-3),
    ("B", "MB", 1e-6),
];
/// Fewest values of an axis if other keys differ, too.
const FEWEST: usize = 3;

/// A setting as an axis.
#[derive(Debug, PartialEq)]
pub struct Axis {
    pub key: String,
    /// The key with its unit.
    pub label: String,
    /// The values, as text and as numbers.
    places: BTreeMap<String, f64>,
}

impl Axis {
    /// The key with the most values that are all numbers, or lists of different lengths; `None` without such a key.
    pub fn of(runs: &[&RunRecord]) -> Option<Self> {
        let differing = differing(runs);
        let fewest = if differing.len() == 1 { 2 } else { FEWEST };
        let axes = differing.into_iter().filter_map(|key| Self::along(key, runs));
        axes.filter(|axis| axis.places.len() >= fewest).max_by_key(|axis| axis.places.len())
    }

    fn along(key: &str, runs: &[&RunRecord]) -> Option<Self> {
        let values: BTreeSet<&String> = runs.iter().map(|run| run.set.get(key)).collect::<Option<_>>()?;
        if values.iter().all(|value| value.starts_with('[')) {
            let places: BTreeMap<_, _> =
                values.iter().map(|value| ((*value).clone(), members(value))).collect();
            let label = format!("{key}, number of them");
            return is_one_to_one(&places).then(|| Self { key: key.to_owned(), label, places });
        }
        let parts: Vec<(f64, &str)> = values.iter().map(|value| split(value)).collect::<Option<_>>()?;
        let same = parts.iter().all(|(_, unit)| *unit == parts[0].1);
        let known = |unit: &str| UNITS.iter().find(|(name, _, _)| *name == unit);
        let (unit, factors): (&str, Vec<f64>) = if same {
            (parts[0].1, vec![1.0; parts.len()])
        } else {
            let known: Vec<_> = parts.iter().map(|(_, unit)| known(unit)).collect::<Option<_>>()?;
            let unit = known[0].1;
            if known.iter().any(|(_, other, _)| *other != unit) {
                return None;
            }
            (unit, known.iter().map(|(_, _, factor)| *factor).collect())
        };
        let places = values.iter().zip(parts.iter().zip(factors));
        let places =
            places.map(|(value, ((number, _), factor))| ((*value).clone(), number * factor)).collect();
        let label = if unit.is_empty() { key.to_owned() } else { format!("{key}, {unit}") };
        is_one_to_one(&places).then(|| Self { key: key.to_owned(), label, places })
    }

    /// Its values as text and as numbers, in order of the numbers.
    pub fn values(&self) -> Vec<(&str, f64)> {
        let mut values: Vec<_> = self.places.iter().map(|(value, place)| (value.as_str(), *place)).collect();
        values.sort_by(|a, b| a.1.total_cmp(&b.1));
        values
    }
}

/// The keys in which runs differ.
pub fn differing<'a>(runs: &[&'a RunRecord]) -> Vec<&'a str> {
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.set.keys()).collect();
    let first = |key: &String| runs.first().and_then(|run| run.set.get(key));
    keys.into_iter()
        .filter(|key| runs.iter().any(|run| run.set.get(*key) != first(key)))
        .map(String::as_str)
        .collect()
}

/// A run's values of the keys that differ, except one: `transport.rule=reno` as `reno`.
pub fn values_beside(run: &RunRecord, differing: &[&str], without: Option<&str>) -> String {
    let others = differing.iter().filter(|key| Some(**key) != without);
    let values = others.filter_map(|key| run.set.get(*key));
    let plain = |value: &String| value.replace(['[', ']', '"'], "").replace(',', " ");
    values.map(plain).collect::<Vec<_>>().join(", ")
}

/// A number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

/// How many members a list in TOML has.
fn members(list: &str) -> f64 {
    let mut depth = 0;
    let mut commas = 0;
    for letter in list.chars() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 1 => commas += 1,
            _ => {}
        }
    }
    f64::from(commas + 1)
}

fn is_one_to_one(places: &BTreeMap<String, f64>) -> bool {
    let mut all: Vec<f64> = places.values().copied().collect();
    all.sort_by(f64::total_cmp);
    all.windows(2).all(|two| two[0] < two[1]) && all.len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(key: &str, values: &[&str]) -> Vec<RunRecord> {
        let run = |value: &&str| RunRecord {
            scenario: "x".into(),
            seed: 1,
            run: 0,
            set: BTreeMap::from([(key.to_owned(), (*value).to_owned()), ("same".into(), "1".into())]),
            metrics: BTreeMap::new(),
            expect: vec![],
        };
        values.iter().map(run).collect()
    }

    fn axis(values: &[&str]) -> Option<(String, Vec<f64>)> {
        let runs = runs("a.b", values);
        let axis = Axis::of(&runs.iter().collect::<Vec<_>>())?;
        let places = axis.values().iter().map(|(_, place)| *place).collect();
        Some((axis.label, places))
    }

    #[test]
    fn numbers_and_lists_that_grow_make_an_axis_and_names_do_not() {
        assert_eq!(axis(&["10 ms", "5 ms", "10 ms"]), Some(("a.b, ms".into(), vec![5.0, 10.0])));
        assert_eq!(axis(&["2 Mbit/s", "16 kbit/s"]), Some(("a.b, Mbit/s".into(), vec![0.016, 2.0])));
        let lists = [r#"["a","b"]"#, r#"["a"]"#, r#"[["a","b"],["c","d"],["e"]]"#];
        assert_eq!(axis(&lists), Some(("a.b, number of them".into(), vec![1.0, 2.0, 3.0])));
        for none in [&["lia", "10 ms"][..], &["10 ms", "10 ms"], &["5 ms", "5 %"], &[r#"["a"]"#, r#"["b"]"#]]
        {
            assert_eq!(axis(none), None, "{none:?}");
        }
    }

    #[test]
    fn of_several_keys_the_one_with_most_numbers_is_the_axis_and_the_others_name_lines() {
        let mut all = runs("links.loss", &["1 %", "2 %", "5 %"]);
        let again = all.iter().cloned().map(|mut run| {
            run.set.insert("transport.rule".into(), "lia".into());
            run
        });
        let again: Vec<RunRecord> = again.collect();
        all.iter_mut().for_each(|run| drop(run.set.insert("transport.rule".into(), "reno".into())));
        all.extend(again);
        let all: Vec<&RunRecord> = all.iter().collect();
        let axis = Axis::of(&all).expect("an axis");
        assert_eq!(axis.key, "links.loss");
        let differing = differing(&all);
        assert_eq!(differing, ["links.loss", "transport.rule"]);
        assert_eq!(values_beside(all[4], &differing, Some("links.loss")), "lia");
        assert_eq!(values_beside(all[4], &differing, None), "2 %, lia");
    }
}
