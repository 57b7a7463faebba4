//! How a run went: rates, windows, round-trip times and queues over time, and how they are distributed.
//!
//! Kept only on request, for plots: from the first moment on, warm-up included, at most [`MAX_POINTS`] points a
//! line. Groups of several flows have one line, their mean; links of generated networks have none.

use std::ops::Range;

use anabranch_wire::Time;

use super::build::Built;
use anabranch_sim::network::Network;

/// Most points of a line.
pub const MAX_POINTS: usize = 1000;

/// What the lines of one chart have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// What applications read, in Mbit/s; of a group, the mean of its flows.
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
    /// Its title and its unit.
    #[must_use]
    pub fn told(self) -> (&'static str, &'static str) {
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
    /// What is measured.
    pub quantity: Quantity,
    /// Of what: `M`, `M path 2`, `C1`.
    pub of: String,
    /// A value for each moment of the course; NaN where there was nothing to measure.
    pub values: Vec<f64>,
}

/// How one quantity is distributed over flows, links or files.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Of what, with its unit.
    pub of: String,
    /// The values, the smallest first.
    pub values: Vec<f64>,
}

/// A run over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// Moments in seconds: the ends of the stretches that rates are means over.
    pub times: Vec<f64>,
    /// Lines in order of their quantity.
    pub lines: Vec<Line>,
    /// Distributions over what was measured after the warm-up.
    pub distributions: Vec<Distribution>,
}

/// Where a line's values come from.
enum Probe {
    Flows(Range<usize>),
    Path { flow: usize, path: usize },
    Window { flow: usize, path: usize },
    Rtt { flow: usize, path: usize },
    Files(usize),
    Queue(usize),
    Link(usize),
}

/// Notes how a run goes.
pub(crate) struct Recorder {
    course: Course,
    /// For each line its source and the counter it stood at last.
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
                for path in 0..built.plan.flows[first].paths.len() {
                    let of = format!("{name} path {}", path + 1);
                    let flow = first;
                    found.push((Quantity::PathGoodput, of.clone(), Probe::Path { flow, path }));
                    found.push((Quantity::Window, of.clone(), Probe::Window { flow, path }));
                    found.push((Quantity::Rtt, of, Probe::Rtt { flow, path }));
                }
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
        let mut recorder = Self { course: Course::default(), probes: Vec::new(), last: Time::ZERO };
        for (quantity, of, probe) in found {
            recorder.course.lines.push(Line { quantity, of, values: Vec::new() });
            recorder.probes.push((probe, 0));
        }
        recorder
    }

    /// Notes how things stand.
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
                    let paths = network.paths(*flow, true);
                    let of_it = paths.iter().filter(|info| info.route.socket as usize == *path);
                    per_second(of_it.map(|info| info.stats.data_received).sum()) * 8e-6
                }
                Probe::Window { flow, path } => {
                    let paths = network.paths(*flow, false);
                    let info = paths.iter().find(|info| info.route.socket as usize == *path);
                    info.map_or(f64::NAN, |info| info.window as f64 / f64::from(info.mtu))
                }
                Probe::Rtt { flow, path } => {
                    let paths = network.paths(*flow, false);
                    let info = paths.iter().find(|info| info.route.socket as usize == *path);
                    info.filter(|info| !info.rtt.is_zero()).map_or(f64::NAN, |info| info.rtt.as_millis_f64())
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

    /// The course, with the distributions of what was measured.
    pub(crate) fn finish(mut self, distributions: Vec<Distribution>) -> Course {
        self.course.distributions = distributions;
        self.course
    }
}

/// A distribution of values in any order; `None` when there are fewer than two.
pub(crate) fn distribution(of: &str, mut values: Vec<f64>) -> Option<Distribution> {
    values.sort_by(f64::total_cmp);
    (values.len() > 1).then(|| Distribution { of: of.to_owned(), values })
}
