//! Variants of a scenario: every combination of the values of some keys.
//!
//! Keys are written as in results: `transport.rule`, `link.C.rate`, `flow.M.rule`; `*` stands for all names of a table.
//! Values are TOML, or else text.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::Scenario;
use super::build::Built;
use super::error::{ScenarioError, from_toml, nearest, some_of};

/// Keys whose values are tables.
const WITHIN: [&str; 5] = ["agent", "back", "datagrams", "leave_out", "reports"];
/// Tables that a file has once.
const ONE: [&str; 4] = ["expect", "links", "topology", "transport"];
/// Tables that a file may have several times.
const SEVERAL: [&str; 8] = ["arrivals", "cbr", "detector", "event", "flow", "link", "traffic", "tunnel"];

/// A key and the values that it takes in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Where in the file.
    pub key: String,
    pub values: Vec<String>,
}

impl std::str::FromStr for Setting {
    type Err = String;

    /// Reads `key=a,b,c`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text.split_once('=').ok_or("write it as key=value,value,…")?;
        let (mut depth, mut quoted) = (0, false);
        // A comma within a list, a table or text is part of a value.
        let between = |letter: char| {
            quoted ^= letter == '"';
            depth += i32::from(matches!(letter, '[' | '{')) - i32::from(matches!(letter, ']' | '}'));
            letter == ',' && depth == 0 && !quoted
        };
        let values: Vec<String> = values.split(between).map(|value| value.trim().to_owned()).collect();
        if key.trim().is_empty() || values.iter().any(String::is_empty) {
            return Err("write it as key=value,value,…".to_owned());
        }
        // The same runs once more would count as others.
        let mut known = BTreeSet::new();
        if let Some(value) = values.iter().find(|value| !known.insert(read(value).to_string())) {
            return Err(format!("`{value}` is there twice: give each value once"));
        }
        Ok(Self { key: key.trim().to_owned(), values })
    }
}

/// A scenario with some keys set.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Keys and the values they have here.
    pub set: Vec<(String, String)>,
    /// The scenario with these values.
    pub scenario: Scenario,
}

/// Keys that a sweep cannot set.
const NOT_SET: [&str; 4] = ["seed", "name", "about", "expect"];
/// Most variants of a sweep.
const MAX_VARIANTS: usize = 100_000;

/// Every combination of the settings' values; the last key changes fastest.
///
/// # Errors
/// When a key names nothing, or a variant is no scenario.
pub fn variants(base: &Scenario, settings: &[Setting]) -> Result<Vec<Variant>, ScenarioError> {
    let count = settings.iter().try_fold(1_usize, |count, setting| count.checked_mul(setting.values.len()));
    let count = count.filter(|count| *count <= MAX_VARIANTS).ok_or_else(|| {
        let hint = format!("at most {MAX_VARIANTS}: give fewer values, or sweep one part after the other");
        ScenarioError::new("", "too many combinations").hint(hint).of("--set")
    })?;
    settings.iter().try_for_each(|setting| may_be_set(&setting.key))?;
    let built = base.file.topology.as_ref().and_then(|_| base.sketch().ok());
    let places: Vec<KeyPath<'_>> =
        settings.iter().map(|setting| KeyPath::of(built.as_ref(), &setting.key)).collect();
    for (index, setting) in settings.iter().enumerate() {
        let refused = |message: String, hint: String| {
            Err(ScenarioError::new(&setting.key, message).hint(hint).of("--set"))
        };
        let Some(earlier) = (0..index).find(|earlier| places[*earlier].overlaps(&places[index])) else {
            continue;
        };
        let earlier = &settings[earlier].key;
        if *earlier == setting.key {
            return refused(
                "set twice".to_owned(),
                format!("give all its values at once: --set '{earlier}=…,…'"),
            );
        }
        let hint = "take one of them out: results would not tell which of them counts";
        return refused(format!("sets what `{earlier}` sets"), hint.to_owned());
    }
    (0..count).map(|number| variant(base, settings, &places, number)).collect()
}

/// Checks that a sweep can set a key.
fn may_be_set(key: &str) -> Result<(), ScenarioError> {
    let (table, within) = key.split_once('.').map_or((key, None), |(table, within)| (table, Some(within)));
    let error = |message: &str, hint: &str| Err(ScenarioError::new(key, message).hint(hint).of("--set"));
    if key == "seed" {
        return error("not to be set", "seeds are given with --seeds, as --seeds 1..3");
    }
    if NOT_SET.contains(&table) {
        return error("not to be set", "it changes nothing of a run: take it out");
    }
    if within.is_some_and(|within| within.ends_with(".name")) {
        return error("not to be set", "results are named after it: set another key");
    }
    let tables = [&SEVERAL[..], &ONE].concat();
    match nearest(table, &tables).filter(|_| within.is_some() && !tables.contains(&table)) {
        Some(near) => error("there is no such table", &format!("did you mean `{near}`?")),
        None => Ok(()),
    }
}

/// The variant with this number.
fn variant(
    base: &Scenario,
    settings: &[Setting],
    keys: &[KeyPath<'_>],
    mut number: usize,
) -> Result<Variant, ScenarioError> {
    if settings.is_empty() {
        return Ok(Variant { set: Vec::new(), scenario: base.clone() });
    }
    let mut set = Vec::new();
    for setting in settings.iter().rev() {
        set.insert(0, (setting.key.clone(), setting.values[number % setting.values.len()].clone()));
        number /= setting.values.len();
    }
    let mut table: Table = base.text.parse().map_err(|error| from_toml::<Table>(&error, &base.text))?;
    for ((key, value), path) in set.iter().zip(keys) {
        if let Some(link) = path.generated {
            declare(&mut table, link);
        }
        apply(&mut table, &path.steps, &read(value)).map_err(|message| {
            ScenarioError::new(key.clone(), message)
                .hint("keys are written as transport.rule, link.NAME.rate or flow.NAME.rule; * stands for all names")
                .of("--set")
        })?;
    }
    let options: Vec<String> = set.iter().map(|(key, value)| format!("--set {key}={value}")).collect();
    let origin = format!("{} {}", base.name, options.join(" "));
    // The text of a variant is not the user's, so its lines say nothing.
    let parsed = Scenario::with_traces(&table.to_string(), &origin, &base.traces);
    let scenario = parsed.map_err(|error| ScenarioError { line: None, ..error })?;
    Ok(Variant { set, scenario: Scenario { name: base.name.clone(), ..scenario } })
}

fn read(text: &str) -> Value {
    let parsed = format!("x = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("x"));
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A key, split into its parts.
struct KeyPath<'a> {
    /// Nested tables and keys.
    steps: Vec<&'a str>,
    /// The generated link that it belongs to.
    generated: Option<&'a str>,
}

impl<'a> KeyPath<'a> {
    /// Splits a key; names of generated links may have dots.
    fn of(generated: Option<&Built>, key: &'a str) -> Self {
        let is_link =
            |name: &str| generated.is_some_and(|built| built.cables.iter().any(|cable| cable.name == name));
        let name_and_rest = |rest: &'a str| {
            let mut splits = rest.rmatch_indices('.').map(|(place, _)| rest.split_at(place));
            splits.find(|(name, _)| is_link(name))
        };
        match key.strip_prefix("link.").and_then(name_and_rest) {
            Some((name, rest)) => {
                let steps = ["link", name].into_iter().chain(rest[1..].split('.')).collect();
                Self { steps, generated: Some(name) }
            }
            None => Self { steps: key.split('.').collect(), generated: None },
        }
    }

    /// Whether two keys may set the same value: one is a prefix of the other, and `*` matches any name.
    fn overlaps(&self, other: &Self) -> bool {
        self.steps.iter().zip(&other.steps).all(|(a, b)| a == b || *a == "*" || *b == "*")
    }
}

/// Declares a generated link, so that it can be set like those of the file.
fn declare(table: &mut Table, name: &str) {
    let links = table.entry("link").or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(links) = links else { return };
    let declared = links.iter().any(|link| link.get("name").and_then(Value::as_str) == Some(name));
    if !declared {
        links.push(Value::Table(Table::from_iter([("name".to_owned(), Value::String(name.to_owned()))])));
    }
}

fn apply(table: &mut Table, steps: &[&str], value: &Value) -> Result<(), String> {
    let (step, rest) = steps.split_first().ok_or("which of its keys?")?;
    let Some(next) = rest.first() else {
        table.insert((*step).to_owned(), value.clone());
        return Ok(());
    };
    let is_several = SEVERAL.contains(step);
    if !is_several && !ONE.contains(step) && !WITHIN.contains(step) {
        return Err(format!("{step} has no parts"));
    }
    let absent = || if is_several { Value::Array(Vec::new()) } else { Value::Table(Table::new()) };
    match table.entry(*step).or_insert_with(absent) {
        Value::Table(inner) => apply(inner, rest, value),
        Value::Array(list) => {
            let mut found = false;
            for entry in list.iter_mut().filter_map(Value::as_table_mut) {
                let named = entry.get("name").and_then(Value::as_str);
                if *next == "*" || named == Some(*next) {
                    found = true;
                    apply(entry, &rest[1..], value)?;
                }
            }
            if found { Ok(()) } else { Err(nothing_called(step, next, list)) }
        }
        _ => Err(format!("{step} has no parts")),
    }
}

/// The message for a name that no table of a list has.
fn nothing_called(step: &str, name: &str, list: &[Value]) -> String {
    let names: Vec<&str> = list.iter().filter_map(|entry| entry.get("name")?.as_str()).collect();
    match nearest(name, &names) {
        _ if step == "event" && list.is_empty() => "the file has no [[event]]".to_owned(),
        _ if step == "event" => "events have no names: event.*.at and its like are of all of them".to_owned(),
        _ if (step, name) == ("link", "*") => {
            "the file has no [[link]]; links.rate and its like are of all".to_owned()
        }
        Some(near) => format!("there is no {step} \"{name}\"; did you mean \"{near}\"?"),
        None if names.is_empty() => format!("there is no {step} \"{name}\""),
        None => format!("there is no {step} \"{name}\"; there are {}", some_of(&names)),
    }
}
