//! From a scenario file to a [`Plan`]: names become numbers, defaults are filled in, values are checked.

mod events;
mod links;
mod sessions;
mod supply;
mod traffic;
mod tunnels;

use std::collections::BTreeSet;

use anabranch_engine::FastRetransmits;
use anabranch_link::{LinkConfig, RateModel};
use anabranch_sim::chance::{Chance, seed_of};
use anabranch_sim::network::{Limits, Plan};
use anabranch_wire::{Rate, Span, Time};

use super::error::{ScenarioError, in_range, line_of};
use super::graph::Graph;
use super::model::{File, Profile};
use super::traces::Traces;
use super::units::SpanText;

/// Most flows of a scenario, over all its tables.
pub const MAX_FLOWS: u64 = 100_000;
/// Most paths of a flow.
pub const MAX_PATHS: usize = 32;
/// Longest run.
const MAX_DURATION: Span = Span::from_secs(86_400);
/// IPv4 and UDP headers.
const HEADERS: u32 = 28;
/// Most samples of a run.
const MAX_SAMPLES: u64 = 1_000_000;
/// The kind of the builder's own seed, next to those of links and sources.
const STRUCTURE: u64 = 10;
/// Flows of each traffic pattern in a sketch.
const SKETCHED: usize = 64;

/// A plan and the names of its parts.
#[derive(Clone, Debug, Default)]
pub struct Built {
    /// The network and its traffic.
    pub plan: Plan,
    /// The flows of the plan, in consecutive groups.
    pub groups: Vec<Group>,
    /// Names of the plan's tunnels.
    pub tunnels: Vec<String>,
    /// Names of its cables: cable `n` is links `2n` and `2n + 1`.
    pub cables: Vec<CableName>,
    /// Names of its sources of sessions.
    pub arrivals: Vec<String>,
    /// Names of its sources of plain packets.
    pub bursts: Vec<String>,
    /// Detectors of shared bottlenecks.
    pub detectors: Vec<Detector>,
    /// When measuring begins.
    pub warm_up: Time,
    /// When the run ends.
    pub end: Time,
    /// The time between two samples.
    pub sample: Span,
}

/// Flows of one table.
#[derive(Clone, Debug)]
pub struct Group {
    /// The table's name.
    pub name: String,
    /// How many flows.
    pub count: usize,
    /// How many hosts they start from; 0 without hosts.
    pub senders: usize,
}

/// mTCP's detector, applied to one flow.
#[derive(Clone, Debug)]
pub struct Detector {
    /// The table's name.
    pub name: String,
    /// Its flow, by number.
    pub flow: usize,
    /// The rule that decides.
    pub rule: FastRetransmits,
}

/// The name and rates of a cable.
#[derive(Clone, Debug)]
pub struct CableName {
    /// As declared or generated.
    pub name: String,
    /// Made by a generator, so measured only as part of its class.
    pub generated: bool,
    /// Rates there and back, in bits a second; of a trace the mean, 0 if unlimited.
    pub rates: [u64; 2],
}

impl CableName {
    /// The class of a generated link: its name up to the first dot.
    pub(in crate::scenario) fn class(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

/// The parts of a network.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) file: &'a File,
    /// The text of the file, for the lines in errors.
    pub(crate) text: &'a str,
    pub(crate) traces: &'a Traces,
}

struct Builder<'a> {
    file: &'a File,
    text: &'a str,
    traces: &'a Traces,
    graph: Graph,
    /// How many cables a generator made.
    generated: usize,
    built: Built,
    chance: Chance,
    /// The changes of events: when, which link, which property.
    changed: BTreeSet<(Span, u32, u8)>,
    /// Most flows of each traffic pattern.
    most_pairs: usize,
}

/// Builds a file with a few flows of each traffic pattern only.
///
/// Finding paths through large networks takes long, and most mistakes are elsewhere. The names are those of the whole.
pub(crate) fn sketch(source: Source<'_>) -> Result<Built, ScenarioError> {
    Builder::new(source, source.file.seed, SKETCHED).build()
}

/// Builds a file for a seed.
pub(crate) fn build(source: Source<'_>, seed: u64) -> Result<Built, ScenarioError> {
    Builder::new(source, seed, usize::MAX).build()
}

impl<'a> Builder<'a> {
    fn new(Source { file, text, traces }: Source<'a>, seed: u64, most_pairs: usize) -> Self {
        let mut built = Built::default();
        built.plan.seed = seed;
        if cfg!(test) {
            built.plan.limits = Limits { packets: 100_000, sessions: 1_000, events: 20_000_000 };
        }
        Self {
            file,
            text,
            traces,
            graph: Graph::default(),
            generated: 0,
            built,
            chance: Chance::new(seed_of(seed, STRUCTURE, 0)),
            changed: BTreeSet::new(),
            most_pairs,
        }
    }

    fn build(mut self) -> Result<Built, ScenarioError> {
        self.times()?;
        self.names()?;
        self.links()?;
        self.counts()?;
        let file = self.file;
        // [transport] is checked even if no flow uses it.
        self.config("transport", Settings::default(), 1).map_err(|error| self.locate(error, "flow", 0))?;
        self.ends()?;
        self.each("tunnel", &file.tunnel, Self::tunnel)?;
        self.each("flow", &file.flow, Self::flow)?;
        self.each("traffic", &file.traffic, Self::traffic)?;
        self.each("arrivals", &file.arrivals, Self::arrivals)?;
        self.each("cbr", &file.cbr, Self::cbr)?;
        self.each("event", &file.event, Self::event)?;
        self.each("detector", &file.detector, Self::detector)?;
        if self.built.groups.is_empty() && file.arrivals.is_empty() && file.cbr.is_empty() {
            let end = self.text.lines().count().max(1);
            return Err(ScenarioError::new("", "nothing sends anything")
                .hint("add a [[flow]], [[traffic]], [[arrivals]] or [[cbr]]")
                .at(Some(end)));
        }
        Ok(self.finish())
    }

    /// Checks the number of flows; the error names the table with the most.
    fn counts(&self) -> Result<(), ScenarioError> {
        let counts = self.file.flow.iter().map(|flow| flow.count.unwrap_or(1));
        let sum = counts.clone().fold(0, u64::saturating_add);
        let most = counts.clone().enumerate().max_by_key(|(_, count)| *count);
        let none = counts.enumerate().find(|(_, count)| *count == 0);
        let Some((index, count)) = none.or(most.filter(|_| sum > MAX_FLOWS)) else { return Ok(()) };
        let key = format!("flow.{}.count", self.file.flow[index].name);
        let error = ScenarioError::new(key, format!("{count} flows"))
            .hint(format!("a scenario has from 1 to {MAX_FLOWS} flows in all"));
        Err(self.locate(error, "flow", index))
    }

    /// Checks the nodes of each flow before paths are searched, which takes long in a large network.
    fn ends(&self) -> Result<(), ScenarioError> {
        for (index, flow) in self.file.flow.iter().enumerate() {
            let (Some(from), Some(to)) = (&flow.from, &flow.to) else { continue };
            let key = |key: &str| format!("flow.{}.{key}", flow.name);
            self.graph.ends(&key, (from, to)).map_err(|error| self.locate(error, "flow", index))?;
        }
        Ok(())
    }

    /// Builds every table of one name.
    fn each<T>(
        &mut self,
        table: &'static str,
        specs: &[T],
        build: impl Fn(&mut Self, &T) -> Result<(), ScenarioError>,
    ) -> Result<(), ScenarioError> {
        for (index, spec) in specs.iter().enumerate() {
            build(self, spec).map_err(|error| self.locate(error, table, index))?;
        }
        Ok(())
    }

    /// Checks that something starts within the run and stops after it started.
    fn check_times(&self, key: &dyn Fn(&str) -> String, times: Times) -> Result<(), ScenarioError> {
        let end = self.built.end;
        let start = times.start.map_or(Time::ZERO, |start| Time::ZERO + start.0);
        if start >= end {
            return Err(ScenarioError::new(key("start"), "after the end of the run")
                .hint("start before `duration` is over"));
        }
        if times.within.is_some_and(|within| start + within.0 > end) {
            return Err(ScenarioError::new(key("start_within"), "after the end of the run")
                .hint("start and start_within together are at most `duration`"));
        }
        if times.stop.is_some_and(|stop| Time::ZERO + stop.0 <= start) {
            return Err(ScenarioError::new(key("stop"), "it stops before it starts")
                .hint("stop has to be later than start"));
        }
        Ok(())
    }

    fn locate(&self, error: ScenarioError, table: &str, index: usize) -> ScenarioError {
        locate(self.text, error, (table, index))
    }

    /// Checks names: they are parts of the keys of results and sweeps, so each has to be unique and free of dots.
    fn names(&self) -> Result<(), ScenarioError> {
        let file = self.file;
        let mut tables: Vec<(&str, usize, &str)> = Vec::new();
        let mut add = |table, names: &mut dyn Iterator<Item = &'a String>| {
            tables.extend(names.enumerate().map(|(index, name)| (table, index, name.as_str())));
        };
        add("link", &mut file.link.iter().map(|link| &link.name));
        add("flow", &mut file.flow.iter().map(|flow| &flow.name));
        add("tunnel", &mut file.tunnel.iter().map(|tunnel| &tunnel.name));
        add("traffic", &mut file.traffic.iter().map(|traffic| &traffic.name));
        add("arrivals", &mut file.arrivals.iter().map(|arrivals| &arrivals.name));
        add("detector", &mut file.detector.iter().map(|detector| &detector.name));
        add("cbr", &mut file.cbr.iter().map(|cbr| &cbr.name));
        if file.name.contains(char::is_control) {
            return Err(ScenarioError::new("name", "a name with control characters")
                .hint("it is one line of text")
                .at(line_of(self.text, "", 0, "name")));
        }
        let mut seen = BTreeSet::new();
        for (table, index, name) in tables {
            let fault = |message: String, hint: &str| {
                let error = ScenarioError::new(format!("{table}.name"), message).hint(hint);
                Err(self.locate(error, table, index))
            };
            let generated = table == "link" && self.file.topology.is_some();
            let odd = |c: char| c == '*' || c.is_control() || (c == '.' && !generated);
            if name.trim().is_empty() || name.contains(odd) {
                return fault(
                    format!("\"{name}\" cannot be a name"),
                    "names are parts of the keys of results: not empty, without \".\", \"*\" and control characters",
                );
            }
            // Flows of both tables are measured under `flow.`.
            let family = if table == "traffic" { "flow" } else { table };
            if !seen.insert((family, name)) {
                return fault(
                    format!("there are two {}s \"{name}\"", family.trim_end_matches('s')),
                    "give each a name of its own",
                );
            }
        }
        Ok(())
    }

    fn times(&mut self) -> Result<(), ScenarioError> {
        let at = |key: &str| line_of(self.text, "", 0, key);
        let duration = self.file.duration.0;
        let is_good = !duration.is_zero() && duration <= MAX_DURATION;
        in_range(is_good, "duration", "more than nothing, at most 24 h")
            .map_err(|error| error.at(at("duration")))?;
        let warm_up = self.file.warm_up.map_or(Span::ZERO, |warm_up| warm_up.0);
        if warm_up >= duration {
            return Err(ScenarioError::new("warm_up", "not less than `duration`")
                .hint("leave time to measure")
                .at(at("warm_up")));
        }
        let measured = duration.saturating_sub(warm_up);
        let sample = self.file.sample.map_or((measured / 200).max(Span::from_micros(1)), |sample| sample.0);
        if sample > measured || sample.is_zero() || measured.as_nanos() / sample.as_nanos() > MAX_SAMPLES {
            return Err(ScenarioError::new("sample", "out of range")
                .hint("one sample to a million fit into what is measured: `duration` without `warm_up`")
                .at(at("sample").or_else(|| at("duration"))));
        }
        (self.built.warm_up, self.built.end) = (Time::ZERO + warm_up, Time::ZERO + duration);
        self.built.sample = sample;
        Ok(())
    }

    fn finish(self) -> Built {
        let mut built = self.built;
        for (index, cable) in self.graph.cables.into_iter().enumerate() {
            let rate = |link: &LinkConfig| mean_rate(link).map_or(0, Rate::as_bits);
            built.cables.push(CableName {
                generated: index < self.generated
                    && !self.file.link.iter().any(|link| link.name == cable.name),
                name: cable.name,
                rates: [rate(&cable.links[0]), rate(&cable.links[1])],
            });
            built.plan.links.extend(cable.links);
        }
        built
    }
}

/// The rate of a link; of a trace its mean, `None` if unlimited.
fn mean_rate(link: &LinkConfig) -> Option<Rate> {
    match &link.rate {
        RateModel::Unlimited => None,
        RateModel::Fixed(rate) => Some(*rate),
        RateModel::Trace(trace) => Some(trace.mean_rate()),
    }
}

/// Adds the line of an error's key: in the `index`-th table of this name, or in the table of defaults if the value is
/// from there.
fn locate(text: &str, mut error: ScenarioError, (table, index): (&str, usize)) -> ScenarioError {
    let words: Vec<&str> = error.key.split('.').collect();
    let [before @ .., last] = &words[..] else { return error };
    if let ["transport", outer] = before {
        let line = line_of(text, &format!("transport.{outer}"), 0, last);
        return error.at(line);
    }
    let outer = before.last().filter(|outer| says(text, (table, index), &[outer, last]));
    let shared = match table {
        "link" | "topology" => "links",
        "flow" | "traffic" | "arrivals" => "transport",
        _ => "",
    };
    let is_own = outer.is_some() || says(text, (table, index), &[last]);
    if words[0] != "transport" && (is_own || !says(text, (shared, 0), &[last])) {
        // A key that is missing from a nested table is reported at that table.
        let within = before.last().filter(|_| !is_own).filter(|within| says(text, (table, index), &[within]));
        let line = match (outer, within) {
            (Some(outer), _) => line_of(text, &format!("{table}.{outer}"), index, last),
            (None, Some(within)) => line_of(text, table, index, within),
            (None, None) => line_of(text, table, index, last),
        };
        return error.at(line);
    }
    let line = line_of(text, shared, 0, last);
    error.key = format!("{shared}.{last}");
    error.at(line)
}

/// Whether the `index`-th table of this name has a value under these nested keys.
fn says(text: &str, (table, index): (&str, usize), keys: &[&str]) -> bool {
    let Ok(file) = text.parse::<toml::Table>() else { return false };
    let known = match file.get(table) {
        Some(toml::Value::Array(tables)) => tables.get(index),
        known => known,
    };
    keys.iter().try_fold(known, |value, key| Some(value?.get(*key))).flatten().is_some()
}

/// Checks that all paths of a flow open while it runs.
fn check_openings(
    key: &dyn Fn(&str) -> String,
    within: Option<SpanText>,
    time: Span,
) -> Result<(), ScenarioError> {
    if within.is_none_or(|within| within.0 <= time) {
        return Ok(());
    }
    Err(ScenarioError::new(key("paths_within"), "a path may open after the end")
        .hint("a shorter `paths_within`, or an earlier start"))
}

/// When something starts and stops.
#[derive(Clone, Copy, Default)]
struct Times {
    start: Option<SpanText>,
    /// How long after `start` it starts at the latest, at random.
    within: Option<SpanText>,
    stop: Option<SpanText>,
}

/// Settings of a table of sessions, which override `[transport]`.
#[derive(Clone, Copy, Default)]
struct Settings<'a> {
    profile: Option<Profile>,
    rule: Option<&'a String>,
    scheduler: Option<&'a String>,
}
