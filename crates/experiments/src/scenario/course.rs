//! A run over time: rates, windows, round-trip times and queues, and their distributions.
//!
//! Recorded on request, for plots: from time zero, warm-up included, with at most [`MAX_POINTS`] points a line. A group of
//! several flows has one line, their mean; generated links have none. A path that is not active has no window. A path
//! without recent arrivals has no round-trip time: the last one would be stale.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anabranch_engine::{PathInfo, PathState};
use anabranch_sim::network::{LinkChange, Network};
use anabranch_wire::{Span, Time};

use super::build::Built;

/// Most points of a line.
pub const MAX_POINTS: usize = 1000;

/// The quantity of a line; lines of one quantity share a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Bytes that applications read, in Mbit/s; of a group, the mean of its flows.
    Goodput,
    /// The same by path.
    PathGoodput,
    /// Congestion windows in packets.
    Window,
    /// Smoothed round-trip times in milliseconds.
    Rtt,
    /// Packets that wait at links.
    Queue,
    /// Shares of links' rates in use.
    Utilisation,
}

impl Quantity {
    pub fn title_and_unit(self) -> (&'static str, &'static str) {
        match self {
            Self::Goodput => ("goodput", "Mbit/s"),
            Self::PathGoodput => ("goodput of each path", "Mbit/s"),
            Self::Window => ("congestion window", "packets"),
            Self::Rtt => ("round-trip time", "ms"),
            Self::Queue => ("queue", "packets"),
            Self::Utilisation => ("utilisation", "share of the rate"),
        }
    }
}

/// One quantity of one thing over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub quantity: Quantity,
    /// The flow, path or link: `M`, `M path 2`, `C1`. A flow with one path is named without it.
    pub of: String,
    /// A value for each time of the course; NaN if there was none.
    pub values: Vec<f64>,
}

/// The distribution of a quantity over flows, links or files.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// The quantity, with its unit.
    pub of: String,
    /// The values, the smallest first.
    pub values: Vec<f64>,
}

/// Changes of links at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The time in seconds.
    pub at: f64,
    /// The change: `wifi down`, `3 links rate, delay`.
    pub what: String,
}

/// A run over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// When measuring began, in seconds.
    pub warm_up: f64,
    /// When links changed, in order.
    pub events: Vec<Event>,
    /// The ends of the intervals over which rates are averaged, in seconds.
    pub times: Vec<f64>,
    /// Lines in order of their quantity.
    pub lines: Vec<Line>,
    /// Distributions of measurements after the warm-up.
    pub distributions: Vec<Distribution>,
}

/// The source of a line's values.
enum Probe {
    Flows(Range<usize>),
    Path { flow: usize, path: usize },
    Window { flow: usize, path: usize },
    Rtt { flow: usize, path: usize, arrival: Time },
    Files(usize),
    Queue(usize),
    Link(usize),
}

pub(crate) struct Recorder {
    course: Course,
    /// The source of each line, and its counter at the last sample.
    probes: Vec<(Probe, u64)>,
    last: Time,
}

impl Recorder {
    pub(crate) fn new(built: &Built) -> Self {
        let mut found: Vec<(Quantity, String, Probe)> = Vec::new();
        let mut first = 0;
        for group in &built.groups {
            let name = &group.name;
            found.push((Quantity::Goodput, name.clone(), Probe::Flows(first..first + group.count)));
            if group.count == 1 {
                found.extend(paths_of(built, first, name));
            }
            first += group.count;
        }
        for (source, name) in built.arrivals.iter().enumerate() {
            found.push((Quantity::Goodput, name.clone(), Probe::Files(source)));
        }
        for (index, cable) in built.cables.iter().enumerate().filter(|(_, cable)| !cable.generated) {
            let link = index * 2;
            found.push((Quantity::Queue, cable.name.clone(), Probe::Queue(link)));
            if cable.rates[0] > 0 {
                found.push((Quantity::Utilisation, cable.name.clone(), Probe::Link(link)));
            }
        }
        found.sort_by_key(|(quantity, ..)| *quantity);
        let warm_up = built.warm_up.since(Time::ZERO).as_secs_f64();
        let course = Course { warm_up, events: events(built), ..Course::default() };
        let mut recorder = Self { course, probes: Vec::new(), last: Time::ZERO };
        for (quantity, of, probe) in found {
            recorder.course.lines.push(Line { quantity, of, values: Vec::new() });
            recorder.probes.push((probe, 0));
        }
        recorder
    }

    /// Takes a sample.
    pub(crate) fn look(&mut self, network: &mut Network) {
        let now = network.now();
        let seconds = now.since(self.last).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        for ((probe, before), line) in self.probes.iter_mut().zip(&mut self.course.lines) {
            let mut per_second = |count: u64| {
                let grown = count.saturating_sub(*before);
                *before = count;
                grown as f64 / seconds
            };
            let value = match probe {
                Probe::Flows(flows) => {
                    let bytes = flows.clone().map(|flow| network.flow(flow).bytes).sum();
                    per_second(bytes) * 8e-6 / flows.len() as f64
                }
                Probe::Path { flow, path } => {
                    let paths = network.counted_paths(*flow, true);
                    let of_it = paths.iter().filter(|info| info.route.socket as usize == *path);
                    per_second(of_it.map(|info| info.stats.data_received).sum()) * 8e-6
                }
                Probe::Window { flow, path } => {
                    let info = active_path(network, *flow, *path);
                    info.map_or(f64::NAN, |info| info.window as f64 / f64::from(info.mtu))
                }
                Probe::Rtt { flow, path, arrival } => {
                    let info = active_path(network, *flow, *path);
                    let of_it = |info: &&PathInfo| info.route.socket as usize == *path;
                    let arrived = network
                        .paths(*flow, true)
                        .iter()
                        .filter(of_it)
                        .map(|info| info.stats.packets_received)
                        .sum();
                    if std::mem::replace(before, arrived) != arrived {
                        *arrival = now;
                    }
                    let is_recent = |rtt: Span| !rtt.is_zero() && now.since(*arrival) <= rtt * 2;
                    info.filter(|info| is_recent(info.rtt)).map_or(f64::NAN, |info| info.rtt.as_millis_f64())
                }
                Probe::Files(source) => per_second(network.arrivals(*source).bytes) * 8e-6,
                Probe::Queue(link) => network.backlog(*link) as f64,
                Probe::Link(link) => per_second(network.link_busy(*link).as_nanos()) * 1e-9,
            };
            line.values.push(value);
        }
        self.course.times.push(now.since(Time::ZERO).as_secs_f64());
        self.last = now;
    }

    /// The course, with these distributions.
    pub(crate) fn finish(mut self, distributions: Vec<Distribution>) -> Course {
        self.course.distributions = distributions;
        self.course
    }
}

/// The lines of a flow's paths. The session of a flow in a tunnel sees one path, which has the name of the flow.
fn paths_of(built: &Built, flow: usize, name: &str) -> Vec<(Quantity, String, Probe)> {
    let plan = &built.plan.flows[flow];
    let mut found = Vec::new();
    for path in 0..plan.sees_paths() {
        let of = if plan.sees_paths() == 1 { name.to_owned() } else { format!("{name} path {}", path + 1) };
        if plan.sees_paths() > 1 {
            found.push((Quantity::PathGoodput, of.clone(), Probe::Path { flow, path }));
        }
        found.push((Quantity::Window, of.clone(), Probe::Window { flow, path }));
        found.push((Quantity::Rtt, of, Probe::Rtt { flow, path, arrival: Time::ZERO }));
    }
    found
}

/// The changes of links, in order of their times.
fn events(built: &Built) -> Vec<Event> {
    let mut times: BTreeMap<Time, (BTreeSet<&str>, BTreeSet<&str>)> = BTreeMap::new();
    for change in &built.plan.script {
        let (links, kinds) = times.entry(change.at).or_default();
        // A cable has two links, one for each direction.
        links.insert(&built.cables[change.link as usize / 2].name);
        kinds.insert(match change.what {
            LinkChange::Down(true) => "down",
            LinkChange::Down(false) => "up",
            LinkChange::Rate(_) => "rate",
            LinkChange::Delay(_) => "delay",
            LinkChange::Loss(_) => "loss",
        });
    }
    let event = |(at, (links, kinds)): (Time, (BTreeSet<&str>, BTreeSet<&str>))| {
        let whose = match links.first() {
            Some(link) if links.len() == 1 => (*link).to_owned(),
            _ => format!("{} links", links.len()),
        };
        let what = format!("{whose} {}", kinds.into_iter().collect::<Vec<_>>().join(", "));
        Event { at: at.since(Time::ZERO).as_secs_f64(), what }
    };
    times.into_iter().map(event).collect()
}

/// A path of a flow's client, if it is active.
fn active_path(network: &Network, flow: usize, path: usize) -> Option<PathInfo> {
    let is_it = |info: &PathInfo| info.route.socket as usize == path && info.state == PathState::Active;
    network.paths(flow, false).into_iter().find(is_it)
}

/// A distribution of values in any order; `None` without values. A single value counts when several runs are drawn.
pub(crate) fn distribution(of: &str, mut values: Vec<f64>) -> Option<Distribution> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| Distribution { of: of.to_owned(), values })
}
