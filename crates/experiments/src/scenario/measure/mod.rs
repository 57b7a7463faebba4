//! What is measured of a run, under flat names.
//!
//! Counters are read at the end of the warm-up and at the end of the run; their difference is what counts.
//! Windows, round-trip times and queues are looked at in between at even steps and averaged.
//!
//! `goodput` is what the receiving application read. `pkt_s` is the same in full packets, as
//! simulators without headers count: a packet's payload stands for its 1,500 bytes on the wire.

mod links;
mod results;
mod shared;
mod sheet;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};

use anabranch_engine::{Coupling, Verdict};
use anabranch_wire::{Span, Time};

use super::Extras;
use super::build::{Built, CableName, Detector};
use super::course::{Course, MAX_POINTS, Recorder};
use anabranch_sim::network::{Network, Supply};
use results::Measured;
use shared::Observer;
use sheet::{Sheet, jain};
use snapshot::Snapshot;

/// Names and values, in order of the names.
pub type Metrics = BTreeMap<String, f64>;

/// Sums over the moments at which things were looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// `None` when there was nothing to look at.
    pub fn known(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// What is looked at of a flow.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowSamples {
    /// Window in packets and round-trip time in milliseconds of each path.
    pub paths: Vec<(Mean, Mean)>,
    /// Kilobytes that wait in the receive buffer for earlier ones.
    pub buffer: Mean,
    /// The share of all windows together that a reduction left.
    pub kept: Mean,
    /// All windows together in bytes, and reductions, when last looked at.
    windows: (u64, u64),
    /// What it believes of two of its paths; `None` where it asks for no evidence.
    pub together: Option<Together>,
}

/// What is believed of its paths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Together {
    /// The share of looks at which two were believed to share a bottleneck.
    pub shared: Mean,
    /// When that was first so.
    pub since: Option<Time>,
    /// The share of looks at which two were believed to have bottlenecks of their own.
    pub separate: Mean,
}

/// Multiples of it, without their whole numbers, are spread evenly and never come again.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Runs a network and measures it.
///
/// # Errors
/// When there are too many packets at once.
pub(crate) fn run(built: Built, extras: Extras<'_>) -> Result<(Metrics, Course), Overfull> {
    fill(built, extras).map(|(sheet, course)| (sheet.measured, course))
}

fn fill(built: Built, extras: Extras<'_>) -> Result<(Sheet, Course), Overfull> {
    let mut watch = Watch::new(&built, extras);
    let Built { plan, groups, cables, arrivals, bursts, detectors, warm_up, end, sample } = built;
    let sees_two = |detector: &Detector| plan.flows[detector.flow].sees_paths() > 1;
    let detectors = detectors.into_iter().filter(sees_two);
    let mut observers: Vec<Observer> = detectors.map(|detector| Observer::new(detector, warm_up)).collect();
    let flow_paths: Vec<usize> = plan.flows.iter().map(|flow| flow.paths.len()).collect();
    let starts: Vec<Time> = plan.flows.iter().map(|flow| flow.start).collect();
    let stops = plan.flows.iter().map(|flow| flow.stop).collect();
    let judges =
        plan.flows.iter().map(|flow| flow.config.coupling == Coupling::Adaptive && flow.paths.len() > 1);
    let judges: Vec<bool> = judges.collect();
    let datagrams = plan.flows.iter().map(|flow| match flow.supply {
        Supply::Datagrams { pause, size } => Some((pause, size)),
        _ => None,
    });
    let datagrams = datagrams.collect();
    let ends = |supply: &Supply| matches!(supply, Supply::File(_) | Supply::Script(_));
    let ends = plan.flows.iter().map(|flow| ends(&flow.supply)).collect();
    let counts = (flow_paths.clone(), cables.len(), arrivals.len(), bursts.len());
    let mut network = Network::new(plan);
    if watch.extras.trace.is_some() {
        network.capture();
    }
    watch.run(&mut network, &cables, warm_up)?;
    network.begin_measures();
    let before = Snapshot::take(&mut network, &counts);
    let mut samples: Vec<FlowSamples> = flow_paths.iter().map(|paths| FlowSamples::new(*paths)).collect();
    for (samples, judges) in samples.iter_mut().zip(judges) {
        samples.together = judges.then(Together::default);
    }
    let mut queues = vec![Mean::default(); cables.len() * 2];
    let (mut at, mut looks) = (warm_up, 0_u32);
    while at < end {
        let next = (at + sample).min(end);
        // What goes in step with a source of plain packets would be seen at one of its moments only, so these looks are out of step.
        watch.run(&mut network, &cables, at + next.since(at).mul_f64((f64::from(looks) * GOLDEN).fract()))?;
        look_at_queues(&mut network, &mut samples, &mut queues);
        watch.run(&mut network, &cables, next)?;
        look_at_paths(&network, &mut samples, sample);
        observers.iter_mut().for_each(|observer| observer.look(&mut network));
        (at, looks) = (next, looks.wrapping_add(1));
    }
    let after = Snapshot::take(&mut network, &counts);
    let delays = (0..flow_paths.len()).map(|flow| network.datagram_delays(flow).to_vec()).collect();
    let span = end.since(warm_up);
    let begin = warm_up;
    let measured =
        Measured { before, after, samples, queues, starts, stops, ends, begin, span, datagrams, delays };
    let mut out = Sheet::default();
    let mut first = 0;
    let mut rates = Vec::new();
    for group in &groups {
        rates.extend(measured.group(&mut out, group, first));
        first += group.count;
    }
    if !groups.is_empty() {
        out.put("jain".to_owned(), jain(&rates));
        out.put("total.goodput_mbit_s".to_owned(), rates.iter().sum::<f64>());
    }
    observers.iter().for_each(|observer| observer.tell(&mut out, end));
    measured.links(&mut out, &cables);
    measured.sources(&mut out, &network, &arrivals, &bursts);
    out.put("run.packet_hops".to_owned(), measured.after.packet_hops as f64);
    out.put("run.events".to_owned(), measured.after.events as f64);
    out.put("run.data_packets".to_owned(), network.data_packets() as f64);
    let course = watch.recorder.map_or_else(Course::default, |recorder| {
        let times =
            |(source, name): (usize, &String)| (name.clone(), measured.completion_times(&network, source));
        let files: Vec<_> = arrivals.iter().enumerate().map(times).collect();
        recorder.finish(measured.distributions(&groups, &cables, &files))
    });
    Ok((out, course))
}

/// There were too many packets at once.
#[derive(Clone, Debug)]
pub(crate) struct Overfull {
    pub at: Time,
    /// On which link the most of them were.
    pub link: String,
    /// How many.
    pub there: u64,
    /// How many there may be in all.
    pub most: usize,
}

impl Overfull {
    fn of(network: &mut Network, cables: &[CableName]) -> Self {
        let mut on_it = |link: usize| {
            let stats = network.link(link);
            stats.offered.packets.saturating_sub(stats.delivered.packets + stats.dropped.total())
        };
        let all = (0..cables.len() * 2).map(|link| (on_it(link), link));
        let (there, most) = all.max().unwrap_or_default();
        let link = cables.get(most / 2).map(|cable| cable.name.clone()).unwrap_or_default();
        Self { at: network.now(), link, there, most: network.limits().packets }
    }
}

/// The names of all metrics that a run of this network can have.
pub(crate) fn names(built: Built) -> BTreeSet<String> {
    let nothing = Built { warm_up: Time::ZERO, end: Time::ZERO, ..built };
    fill(nothing, Extras::default()).map(|(sheet, _)| sheet.into_names()).unwrap_or_default()
}

/// Looks on while a network runs. How often it looks changes nothing of the run.
struct Watch<'a> {
    extras: Extras<'a>,
    recorder: Option<Recorder>,
    step: Span,
    end: Time,
}

impl<'a> Watch<'a> {
    fn new(built: &Built, extras: Extras<'a>) -> Self {
        let recorder = extras.course.then(|| Recorder::new(built));
        let step = (built.end.since(Time::ZERO) / MAX_POINTS as u64).max(built.sample);
        Self { extras, recorder, step, end: built.end }
    }

    /// Runs the network up to a moment, in steps.
    fn run(&mut self, network: &mut Network, cables: &[CableName], until: Time) -> Result<(), Overfull> {
        while network.now() < until {
            let next = Time::ZERO
                + self.step * (network.now().since(Time::ZERO).as_nanos() / self.step.as_nanos() + 1);
            self.advance(network, next.min(until));
            if network.is_overfull() {
                return Err(Overfull::of(network, cables));
            }
            if let (Some(recorder), true) = (&mut self.recorder, next <= until) {
                recorder.look(network);
            }
            if let Some(progress) = &mut self.extras.progress {
                let total = self.end.since(Time::ZERO).as_secs_f64();
                progress(network.now().since(Time::ZERO).as_secs_f64() / total);
            }
        }
        Ok(())
    }

    /// Runs the network up to a moment, and hands on what it captures as it comes.
    fn advance(&mut self, network: &mut Network, until: Time) {
        loop {
            network.run(until);
            let Some(trace) = &mut self.extras.trace else { return };
            let captured = network.take_captured();
            captured.iter().for_each(&mut **trace);
            if captured.is_empty() || network.is_overfull() {
                return;
            }
        }
    }
}

impl Together {
    fn look(&mut self, network: &Network, flow: usize) {
        let verdicts = network.verdicts(flow);
        let is = |verdict| verdicts.contains(&verdict);
        self.shared.add(f64::from(u8::from(is(Verdict::Shared))));
        self.separate.add(f64::from(u8::from(is(Verdict::Separate))));
        if is(Verdict::Shared) {
            self.since.get_or_insert(network.now());
        }
    }
}

impl FlowSamples {
    fn new(paths: usize) -> Self {
        Self { paths: vec![Default::default(); paths], ..Self::default() }
    }

    /// All windows together are so large after so many reductions; a single one since the last look tells what it left, where that
    /// was so short ago that nothing has grown since.
    fn on_windows(&mut self, windows: u64, reductions: u64, is_close: bool) {
        let (known, before) = std::mem::replace(&mut self.windows, (windows, reductions));
        if is_close && known > 0 && reductions == before + 1 {
            self.kept.add(windows as f64 / known as f64);
        }
    }
}

/// Looks at windows and round trips, so long after the last time.
fn look_at_paths(network: &Network, samples: &mut [FlowSamples], step: Span) {
    for (flow, samples) in samples.iter_mut().enumerate() {
        let (mut windows, mut reductions, mut shortest) = (0, 0, Span::MAX);
        for path in network.path_windows(flow) {
            windows += path.window;
            reductions += path.reductions;
            shortest = shortest.min(path.rtt);
            if let Some((window, rtt)) = samples.paths.get_mut(path.route.socket as usize) {
                window.add(path.window as f64 / f64::from(path.mtu));
                // What has not been measured yet is no round trip of nothing.
                if !path.rtt.is_zero() {
                    rtt.add(path.rtt.as_millis_f64());
                }
            }
        }
        samples.on_windows(windows, reductions, step <= shortest);
        if let Some(together) = &mut samples.together {
            together.look(network, flow);
        }
    }
}

/// Looks at what waits at links and in receive buffers.
fn look_at_queues(network: &mut Network, samples: &mut [FlowSamples], queues: &mut [Mean]) {
    for (flow, samples) in samples.iter_mut().enumerate() {
        samples.buffer.add(network.reassembling(flow) as f64 / 1e3);
    }
    for (link, queue) in queues.iter_mut().enumerate() {
        queue.add(network.backlog(link) as f64);
    }
}

#[cfg(test)]
mod tests;
