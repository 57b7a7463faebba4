//! One scenario in many variants: every combination of the values of some keys.
//!
//! A key is written as in results: `transport.rule`, `link.C.rate`, `flow.M.rule`; a table's name may be
//! `*` for all of them. Values are TOML, or text where that is no TOML.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::Scenario;
use super::build::{self, Built, Idle};
use super::error::{ScenarioError, from_toml, nearest, some_of};
use super::shape::{ONE, SEVERAL, WITHIN};

/// A key and the values it is to take, in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Where in the file.
    pub key: String,
    /// What it becomes.
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
    /// What comes of it.
    pub scenario: Scenario,
}

/// What makes no variant of a run.
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
    let places: Vec<Place<'_>> =
        settings.iter().map(|setting| Place::of(built.as_ref(), &setting.key)).collect();
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
    let settings_at = (settings, &places[..]);
    if !settings.is_empty() && !base.file.traffic.is_empty() {
        // Large networks take long to build: what no variant may say is told before any of them is.
        for number in 0..count {
            let written = written(base, settings_at, number)?;
            let file = Scenario::read(&written.text);
            let sketch = file.and_then(|file| build::sketch(&file, &written.text));
            sketch.map_err(|error| written.blame(error))?;
        }
    }
    let variants: Vec<Variant> =
        (0..count).map(|number| variant(base, settings_at, number)).collect::<Result<_, _>>()?;
    check_uses(base, &places, &variants)?;
    check_effects(settings, &variants)?;
    Ok(variants)
}

/// Checks that a key is one of what a run depends on.
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
        return error("not to be set", "results are told by names: set what they are of");
    }
    let tables = [&SEVERAL[..], &ONE].concat();
    match nearest(table, &tables).filter(|_| within.is_some() && !tables.contains(&table)) {
        Some(near) => error("there is no such table", &format!("did you mean `{near}`?")),
        None => Ok(()),
    }
}

/// Checks that what changes nothing in a variant does in another; what is set for all names has to for one of them.
fn check_uses(base: &Scenario, places: &[Place<'_>], variants: &[Variant]) -> Result<(), ScenarioError> {
    // What the file says has a line there.
    let tell = |variant: &Variant, idle: &Idle| {
        let own = base.idle.iter().find(|own| own.place() == idle.place());
        let told = || ScenarioError { line: None, ..variant.scenario.told(idle) };
        Err(own.map_or_else(told, |own| base.told(own)))
    };
    for variant in variants {
        if let Some(wrong) = variant.scenario.idle.iter().find(|idle| idle.is_wrong) {
            return tell(variant, wrong);
        }
    }
    let idle_in = |variant: &Variant| variant.scenario.idle.iter().map(Idle::place).collect();
    let Some((first, others)) = variants.split_first() else { return Ok(()) };
    let in_all: BTreeSet<_> = others.iter().fold(idle_in(first), |idle, other| &idle & &idle_in(other));
    if in_all.is_empty() {
        return Ok(());
    }
    let file: Table = first.scenario.text.parse().unwrap_or_default();
    let mut of_names: Vec<_> = places.iter().flat_map(|place| place.of_names(&file)).collect();
    of_names.retain(|names| !names.is_subset(&in_all));
    let is_told = |idle: &&Idle| {
        let place = idle.place();
        in_all.contains(&place) && !of_names.iter().any(|names| names.contains(&place))
    };
    first.scenario.idle.iter().find(is_told).map_or(Ok(()), |idle| tell(first, idle))
}

/// Largest networks, in paths and links, that are compared to see whether a key changes anything.
const COMPARED: usize = 10_000;

/// Most combinations of the other keys for which one is looked at.
const LOOKED_AT: usize = 64;

/// Checks that the values of each key lead to networks that differ somewhere, for one combination of the others at least.
fn check_effects(settings: &[Setting], variants: &[Variant]) -> Result<(), ScenarioError> {
    let mut step = 1;
    for setting in settings.iter().rev() {
        let values = setting.values.len();
        let firsts = (0..variants.len()).filter(|first| (first / step).is_multiple_of(values));
        let mut looks = firsts.take(LOOKED_AT + 1);
        let is_idle = |first: usize| all_alike((0..values).map(|value| &variants[first + value * step]));
        if values > 1 && looks.by_ref().take(LOOKED_AT).all(is_idle) && looks.next().is_none() {
            let hint =
                "what it is of says otherwise itself, or nothing asks for it: take it out, or set that";
            return Err(ScenarioError::new(&setting.key, "no value of it changes anything")
                .hint(hint)
                .of("--set"));
        }
        step *= values;
    }
    Ok(())
}

/// Whether variants lead to the same network, which is small enough to say.
fn all_alike<'a>(mut variants: impl Iterator<Item = &'a Variant>) -> bool {
    let shape = |variant: &Variant| {
        let built = variant.scenario.build(variant.scenario.seed()).ok()?;
        let paths: usize = built.plan.flows.iter().map(|flow| flow.paths.len()).sum();
        (paths + built.cables.len() <= COMPARED).then(|| format!("{built:?}"))
    };
    let first = variants.next().and_then(shape);
    first.is_some() && variants.all(|other| shape(other) == first)
}

/// The file of a variant.
struct Written {
    set: Vec<(String, String)>,
    text: String,
    origin: String,
}

impl Written {
    /// A mistake in it, which has no lines of its own.
    fn blame(&self, error: ScenarioError) -> ScenarioError {
        ScenarioError { line: None, ..error }.of(&self.origin)
    }
}

fn variant(
    base: &Scenario,
    settings: (&[Setting], &[Place<'_>]),
    number: usize,
) -> Result<Variant, ScenarioError> {
    if settings.0.is_empty() {
        return Ok(Variant { set: Vec::new(), scenario: base.clone() });
    }
    let written = written(base, settings, number)?;
    let parsed = Scenario::parse_base(&written.text, &written.origin);
    let scenario = parsed.map_err(|error| written.blame(error))?;
    Ok(Variant { set: written.set, scenario: Scenario { name: base.name.clone(), ..scenario } })
}

fn written(
    base: &Scenario,
    (settings, places): (&[Setting], &[Place<'_>]),
    mut number: usize,
) -> Result<Written, ScenarioError> {
    let mut set = Vec::new();
    for setting in settings.iter().rev() {
        set.insert(0, (setting.key.clone(), setting.values[number % setting.values.len()].clone()));
        number /= setting.values.len();
    }
    let mut table: Table = base.text.parse().map_err(|error| from_toml::<Table>(&error, &base.text))?;
    for ((key, value), place) in set.iter().zip(places) {
        if let Some(link) = place.generated {
            declare(&mut table, link);
        }
        apply(&mut table, &place.steps, &read(value)).map_err(|message| {
            ScenarioError::new(key.clone(), message)
                .hint("keys are written as transport.rule, link.NAME.rate or flow.NAME.rule; * stands for all names")
                .of("--set")
        })?;
    }
    let told: Vec<String> = set.iter().map(|(key, value)| format!("--set {key}={value}")).collect();
    Ok(Written { set, text: table.to_string(), origin: format!("{} {}", base.name, told.join(" ")) })
}

fn read(text: &str) -> Value {
    let parsed = format!("x = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("x"));
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// What a key leads to.
struct Place<'a> {
    /// Tables and keys, one in the other.
    steps: Vec<&'a str>,
    /// The link that it is of, where the network is generated.
    generated: Option<&'a str>,
}

impl<'a> Place<'a> {
    /// Reads a key; names of links that a generator made may have dots.
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

    /// If it is of all names: where this key, and each that it is within, is of each of them.
    fn of_names(&self, file: &Table) -> Vec<BTreeSet<(usize, String)>> {
        let [table, "*", within @ ..] = &self.steps[..] else { return Vec::new() };
        let list = file.get(*table).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let of_each = |key: &[&str]| {
            let place = |(index, entry): (usize, &Value)| {
                let name = entry.get("name").and_then(Value::as_str);
                let steps: Vec<&str> = [*table].into_iter().chain(name).chain(key.iter().copied()).collect();
                (index, steps.join("."))
            };
            list.iter().enumerate().map(place).collect()
        };
        (1..=within.len()).map(|end| of_each(&within[..end])).collect()
    }

    /// Whether two keys set the same somewhere: alike as far as the shorter goes, `*` being like any name.
    fn overlaps(&self, other: &Self) -> bool {
        self.steps.iter().zip(&other.steps).all(|(a, b)| a == b || *a == "*" || *b == "*")
    }
}

/// Writes down a link that a generator made, so that it can be set like those of the file.
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

/// Says that no table of a list has this name, and which has one like it.
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
