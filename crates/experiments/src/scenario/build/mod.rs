//! From a file to a [`Plan`]: names become numbers, defaults are filled in, bounds are kept.

mod below;
mod cut;
mod events;
mod idle;
mod limits;
mod links;
mod sessions;
mod supply;
mod traffic;
mod work;

pub(crate) use idle::Idle;

use std::collections::{BTreeMap, BTreeSet};

use anabranch_engine::FastRetransmits;
use anabranch_link::{LinkConfig, RateModel};
use anabranch_wire::{Span, Time};

use super::error::{ScenarioError, line_of};
use super::graph::Graph;
use super::model::File;
use super::units::SpanText;
use anabranch_sim::chance::{Chance, seed_of};
use anabranch_sim::network::{Limits, Plan};

/// Most flows of a scenario, however they are written.
pub const MAX_FLOWS: u64 = 100_000;
/// Most paths of a flow.
pub const MAX_PATHS: usize = 32;
/// Longest run.
const MAX_DURATION: Span = Span::from_secs(86_400);
/// IPv4 and UDP headers.
const HEADERS: u32 = 28;
/// Kinds of parties for seeds.
const STRUCTURE: u64 = 10;

/// A plan and what its parts are called.
#[derive(Clone, Debug, Default)]
pub struct Built {
    /// What runs.
    pub plan: Plan,
    /// Its flows, in groups that follow each other.
    pub groups: Vec<Group>,
    /// Names of its cables: cable `n` is links `2n` and `2n + 1`.
    pub cables: Vec<CableName>,
    /// Names of its sources of sessions.
    pub arrivals: Vec<String>,
    /// Names of its sources of plain packets.
    pub bursts: Vec<String>,
    /// Who looks for shared bottlenecks.
    pub detectors: Vec<Detector>,
    /// When measuring begins and when the run ends.
    pub warm_up: Time,
    /// When the run ends.
    pub end: Time,
    /// How often to look.
    pub sample: Span,
}

/// Flows that were declared together.
#[derive(Clone, Debug)]
pub struct Group {
    /// As declared.
    pub name: String,
    /// How many flows.
    pub count: usize,
    /// How many hosts they start from; 0 where there are none.
    pub senders: usize,
}

/// mTCP's detector beside a flow.
#[derive(Clone, Debug)]
pub struct Detector {
    /// As declared.
    pub name: String,
    /// Its flow, by number.
    pub flow: usize,
    /// What judges.
    pub rule: FastRetransmits,
}

/// What a cable is called.
#[derive(Clone, Debug)]
pub struct CableName {
    /// As declared or generated.
    pub name: String,
    /// Made by a generator: measured by class only, which is the name up to its first dot.
    pub generated: bool,
    /// Rates there and back, in bits a second.
    pub rates: [u64; 2],
}

impl CableName {
    /// The class of a generated link: its name up to the first dot.
    pub(in crate::scenario) fn class(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

struct Builder<'a> {
    file: &'a File,
    text: &'a str,
    graph: Graph,
    generated: usize,
    built: Built,
    chance: Chance,
    /// How many sessions are expected to arrive.
    arriving: f64,
    /// How many packets are expected of sources that nothing slows down.
    offered: f64,
    /// How many links the paths of all flows cross.
    crossed: usize,
    /// What events change: when, which link, and what of it.
    changed: BTreeSet<(Span, u32, u8)>,
    /// The links that sessions' data may take, and plain packets.
    taken: BTreeSet<u32>,
    /// Those that acknowledgements take unless they cross none.
    returning: BTreeSet<u32>,
    /// What is said that changes nothing.
    idle: Vec<Idle>,
    /// Which ways of links get a rate by an event: there, back.
    later: BTreeMap<&'a str, [bool; 2]>,
    /// Most flows of each pattern.
    most_pairs: usize,
}

/// Flows of each pattern that a sketch has.
const SKETCHED: usize = 64;

/// Builds a file with a few flows of each pattern only: paths through large networks take long to find, and most mistakes are
/// elsewhere. Its groups, cables and sources have the names of the whole.
pub(crate) fn sketch(file: &File, text: &str) -> Result<Built, ScenarioError> {
    let mut builder = builder(file, text, (file.seed, SKETCHED));
    builder.tables()?;
    Ok(builder.finish())
}

/// Builds a file for a seed; `text` is for the lines in errors.
pub(crate) fn build(file: &File, text: &str, seed: u64) -> Result<Built, ScenarioError> {
    Ok(whole(file, text, seed)?.finish())
}

/// Builds a file for its own seed, and tells what it says that changes nothing, whatever the seed.
pub(crate) fn check(file: &File, text: &str) -> Result<(Built, Vec<Idle>), ScenarioError> {
    let mut builder = whole(file, text, file.seed)?;
    builder.idle_ways();
    builder.note_cut();
    let idle = std::mem::take(&mut builder.idle);
    Ok((builder.finish(), idle))
}

fn whole<'a>(file: &'a File, text: &'a str, seed: u64) -> Result<Builder<'a>, ScenarioError> {
    let mut builder = builder(file, text, (seed, usize::MAX));
    builder.tables()?;
    builder.detection()?;
    builder.limits()?;
    builder.bound_work()?;
    builder.bound_looks()?;
    Ok(builder)
}

fn builder<'a>(file: &'a File, text: &'a str, (seed, most_pairs): (u64, usize)) -> Builder<'a> {
    let chance = Chance::new(seed_of(seed, STRUCTURE, 0));
    let (graph, built) = (Graph::default(), Built::default());
    let (arriving, offered, crossed) = (0.0, 0.0, 0);
    let mut builder = Builder {
        file,
        text,
        graph,
        generated: 0,
        built,
        chance,
        arriving,
        offered,
        crossed,
        changed: BTreeSet::new(),
        taken: BTreeSet::new(),
        returning: BTreeSet::new(),
        idle: Vec::new(),
        later: BTreeMap::new(),
        most_pairs,
    };
    builder.built.plan.seed = seed;
    if cfg!(test) {
        builder.built.plan.limits = Limits { packets: 100_000, sessions: 1_000 };
    }
    builder
}

impl Builder<'_> {
    /// Builds what each table says.
    fn tables(&mut self) -> Result<(), ScenarioError> {
        self.times()?;
        self.names()?;
        self.links()?;
        self.counts()?;
        let file = self.file;
        // What is wrong with what all have is told even where nobody has it.
        self.config("transport", (None, None, None), 1).map_err(|error| self.locate(error, "flow", 0))?;
        self.ends()?;
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
        Ok(())
    }

    /// Checks the nodes that flows go between, before paths are looked for: in a large network that takes long.
    fn ends(&self) -> Result<(), ScenarioError> {
        for (index, flow) in self.file.flow.iter().enumerate() {
            let (Some(from), Some(to)) = (&flow.from, &flow.to) else { continue };
            let key = |key: &str| format!("flow.{}.{key}", flow.name);
            self.graph.ends(&key, (from, to)).map_err(|error| self.locate(error, "flow", index))?;
        }
        Ok(())
    }

    /// Builds what each of the tables of a name says.
    fn each<T>(
        &mut self,
        table: &'static str,
        specs: &[T],
        build: impl Fn(&mut Self, &T) -> Result<(), ScenarioError>,
    ) -> Result<(), ScenarioError> {
        for (index, spec) in specs.iter().enumerate() {
            let known = self.idle.len();
            build(self, spec).map_err(|error| self.locate(error, table, index))?;
            self.idle[known..].iter_mut().for_each(|idle| (idle.table, idle.index) = (table, index));
        }
        Ok(())
    }

    /// Checks when something starts and stops.
    fn check_times(
        &mut self,
        key: &dyn Fn(&str) -> String,
        (start, within, stop): (Option<SpanText>, Option<SpanText>, Option<SpanText>),
    ) -> Result<(), ScenarioError> {
        let end = self.built.end;
        let start = start.map_or(Time::ZERO, |start| Time::ZERO + start.0);
        if start >= end {
            return Err(ScenarioError::new(key("start"), "after the end: it never starts")
                .hint("let it start before `duration` is over"));
        }
        if within.is_some_and(|within| start + within.0 > end) {
            return Err(ScenarioError::new(key("start_within"), "beyond the end: it may never start")
                .hint("start and start_within together are at most `duration`"));
        }
        if stop.is_some_and(|stop| Time::ZERO + stop.0 <= start) {
            return Err(ScenarioError::new(key("stop"), "it stops before it starts")
                .hint("stop has to be later than start"));
        }
        if stop.is_some_and(|stop| Time::ZERO + stop.0 > end) {
            self.note(
                ScenarioError::new(key("stop"), "after the end: it never stops")
                    .hint("take it out, or let it stop before `duration` is over"),
            );
        }
        Ok(())
    }

    fn locate(&self, error: ScenarioError, table: &str, index: usize) -> ScenarioError {
        locate(self.text, error, (table, index))
    }

    /// Names make the keys of results and of sweeps: each has to be there once and be one word of a key.
    fn names(&self) -> Result<(), ScenarioError> {
        let file = self.file;
        let mut tables: Vec<(&str, usize, &str)> = Vec::new();
        tables.extend(file.link.iter().enumerate().map(|(index, link)| ("link", index, link.name.as_str())));
        tables.extend(file.flow.iter().enumerate().map(|(index, flow)| ("flow", index, flow.name.as_str())));
        let traffic = file.traffic.iter().enumerate();
        tables.extend(traffic.map(|(index, traffic)| ("traffic", index, traffic.name.as_str())));
        let arrivals = file.arrivals.iter().enumerate();
        tables.extend(arrivals.map(|(index, arrivals)| ("arrivals", index, arrivals.name.as_str())));
        let detectors = file.detector.iter().enumerate();
        tables.extend(detectors.map(|(index, detector)| ("detector", index, detector.name.as_str())));
        tables.extend(file.cbr.iter().enumerate().map(|(index, cbr)| ("cbr", index, cbr.name.as_str())));
        if file.name.contains(char::is_control) {
            return Err(ScenarioError::new("name", "a name with control characters")
                .hint("it is one line of text")
                .at(line_of(self.text, "", 0, "name")));
        }
        for (index, link) in file.link.iter().enumerate() {
            let unnamed = |nodes: &[String; 2]| nodes.iter().any(|node| node.trim().is_empty());
            if link.between.as_ref().is_some_and(unnamed) {
                let error =
                    ScenarioError::new(format!("link.{}.between", link.name), "a node without a name");
                let hint = "name the nodes at both ends, such as `between = [\"a\", \"b\"]`";
                return Err(self.locate(error.hint(hint), "link", index));
            }
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
            // Flows that are declared and flows of a pattern are measured alike.
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
        if duration.is_zero() || duration > MAX_DURATION {
            return Err(ScenarioError::new("duration", "out of range")
                .hint("more than nothing, at most 24 h")
                .at(at("duration")));
        }
        let warm_up = self.file.warm_up.map_or(Span::ZERO, |warm_up| warm_up.0);
        if warm_up >= duration {
            return Err(ScenarioError::new("warm_up", "nothing is left to measure")
                .hint("warm_up has to be less than duration")
                .at(at("warm_up")));
        }
        let measured = duration.saturating_sub(warm_up);
        if self.file.sample.is_none() && measured < Span::from_micros(1) {
            let key = if self.file.warm_up.is_some() { "warm_up" } else { "duration" };
            return Err(ScenarioError::new(key, "hardly any time is left to measure")
                .hint("at least a microsecond: duration without warm_up")
                .at(at(key)));
        }
        let sample = self.file.sample.map_or((measured / 200).max(Span::from_micros(1)), |sample| sample.0);
        if sample > measured {
            return Err(ScenarioError::new("sample", "nothing is ever looked at")
                .hint("at most what is measured: duration without warm_up")
                .at(at("sample")));
        }
        if sample.is_zero() || measured.as_nanos() / sample.as_nanos() > 1_000_000 {
            return Err(ScenarioError::new("sample", "too short")
                .hint("at most a million samples fit in a run")
                .at(at("sample")));
        }
        (self.built.warm_up, self.built.end) = (Time::ZERO + warm_up, Time::ZERO + duration);
        self.built.sample = sample;
        Ok(())
    }

    fn finish(self) -> Built {
        let mut built = self.built;
        for (index, cable) in self.graph.cables.into_iter().enumerate() {
            let rate = |link: &LinkConfig| match link.rate {
                RateModel::Fixed(rate) => rate.as_bits(),
                _ => 0,
            };
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

/// Adds the line of an error's key: in the `index`-th table of this name, or in the table of what all of them have where the value
/// is from there.
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
        // A key that is missing in a table within this one belongs on the line of that.
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

/// Whether the file has a value in the `index`-th table of this name, under these keys one in the other.
fn says(text: &str, (table, index): (&str, usize), keys: &[&str]) -> bool {
    let Ok(file) = text.parse::<toml::Table>() else { return false };
    let known = match file.get(table) {
        Some(toml::Value::Array(tables)) => tables.get(index),
        known => known,
    };
    keys.iter().try_fold(known, |value, key| Some(value?.get(*key))).flatten().is_some()
}

/// Nothing but the first path, of which nobody says when it opens.
fn opens_at_once(key: &dyn Fn(&str) -> String) -> ScenarioError {
    ScenarioError::new(key("paths_within"), "there is one path, which is there from the start")
        .hint("take it out, or give the flow more paths")
}

/// Checks when the paths of a flow open that has so much time when it starts.
fn check_openings(
    key: &dyn Fn(&str) -> String,
    within: Option<SpanText>,
    time: Span,
) -> Result<(), ScenarioError> {
    if within.is_none_or(|within| within.0 <= time) {
        return Ok(());
    }
    Err(ScenarioError::new(key("paths_within"), "beyond the end: a path may never open").hint(
        "all paths may open by `duration`, and by `stop`: a shorter `paths_within`, or an earlier start",
    ))
}
