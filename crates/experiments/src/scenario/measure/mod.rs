//! The metrics of a run, under flat names.
//!
//! Counters are read at the end of the warm-up and at the end of the run; metrics are made of their difference. Windows,
//! round-trip times and queues are sampled at even intervals and averaged.
//!
//! `goodput` counts the bytes that the receiving application read. `pkt_s` is the same in full packets, as simulators
//! without headers count: a packet's payload stands for its 1,500 bytes on the wire.

mod links;
mod results;
mod shared;
mod sheet;
mod snapshot;

use std::collections::BTreeSet;

use anabranch_engine::{Coupling, Verdict};
use anabranch_wire::{Span, Time};

use super::build::{Built, CableName, Detector};
use super::course::{Course, MAX_POINTS, Recorder};
use super::extras::Extras;
use anabranch_sim::network::{self, FlowPlan, Network};
use results::{Measured, Planned};
use shared::Observer;
pub use sheet::Metrics;
use sheet::{Sheet, jain};
use snapshot::Snapshot;

/// A mean over samples.
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

    /// `None` without samples.
    pub fn known(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct FlowSamples {
    /// Window in packets and round-trip time in milliseconds of each path.
    pub paths: Vec<(Mean, Mean)>,
    /// Kilobytes in the receive buffer that wait for earlier ones.
    pub buffer: Mean,
    /// The share of all windows together that remained after a reduction.
    pub kept: Mean,
    /// All windows together in bytes, and the number of reductions, at the last sample.
    windows: (u64, u64),
    /// Verdicts on its paths; `None` if its coupling needs none.
    pub together: Option<Together>,
}

/// Verdicts on shared bottlenecks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Together {
    /// The share of samples at which two paths counted as sharing a bottleneck.
    pub shared: Mean,
    /// The first such sample.
    pub since: Option<Time>,
    /// The share of samples at which two paths counted as having separate bottlenecks.
    pub separate: Mean,
}

/// The fractional parts of its multiples are spread evenly and never repeat.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Runs a network and measures it.
pub(crate) fn run(built: Built, extras: Extras<'_>) -> Result<(Metrics, Course), Exceeded> {
    fill(built, extras).map(|(sheet, course)| (sheet.measured, course))
}

fn fill(built: Built, extras: Extras<'_>) -> Result<(Sheet, Course), Exceeded> {
    let mut watch = Watch::new(&built, extras);
    let Built { plan, groups, tunnels, cables, arrivals, bursts, detectors, warm_up, end, sample } = built;
    let sees_two = |detector: &Detector| plan.flows[detector.flow].sees_paths() > 1;
    let detectors = detectors.into_iter().filter(sees_two);
    let mut observers: Vec<Observer> = detectors.map(|detector| Observer::new(detector, warm_up)).collect();
    let of_tunnels = plan.tunnels.iter().map(|tunnel| tunnel.paths.len());
    let flow_paths: Vec<usize> = plan.flows.iter().map(FlowPlan::sees_paths).chain(of_tunnels).collect();
    let judges =
        plan.flows.iter().map(|flow| flow.config.coupling == Coupling::Adaptive && flow.paths.len() > 1);
    let judges: Vec<bool> = judges.collect();
    let planned = plan.flows.iter().map(Planned::of).collect();
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
        // Even intervals could be in step with a source of plain packets, so queues are sampled at uneven times.
        watch.run(&mut network, &cables, at + next.since(at).mul_f64((f64::from(looks) * GOLDEN).fract()))?;
        look_at_queues(&mut network, &mut samples, &mut queues);
        watch.run(&mut network, &cables, next)?;
        look_at_paths(&network, &mut samples, sample);
        observers.iter_mut().for_each(|observer| observer.look(&mut network));
        (at, looks) = (next, looks.wrapping_add(1));
    }
    let after = Snapshot::take(&mut network, &counts);
    let delays = (0..flow_paths.len()).map(|flow| network.datagram_delays(flow).to_vec()).collect();
    let (begin, span) = (warm_up, end.since(warm_up));
    let measured = Measured { before, after, samples, queues, planned, begin, span, delays };
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
    measured.tunnels(&mut out, &network, &tunnels);
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

/// A run exceeded a limit.
#[derive(Clone, Debug)]
pub(crate) struct Exceeded {
    /// The time in the network.
    pub at: Time,
    pub limit: Limit,
}

/// A limit of a run.
#[derive(Clone, Debug)]
pub(crate) enum Limit {
    /// Packets in the network at once: how many are allowed, the fullest link, and how many are there.
    Packets { most: usize, link: String, there: u64 },
    /// The number of events allowed.
    Events { most: u64 },
    /// The caller stopped the run.
    Caller,
}

impl Exceeded {
    /// The limit that a network exceeded, if it did.
    fn of(network: &mut Network, cables: &[CableName]) -> Option<Self> {
        let at = network.now();
        let limit = match network.exceeded()? {
            network::Exceeded::Events => Limit::Events { most: network.limits().events },
            network::Exceeded::Packets => {
                let mut on_it = |link: usize| {
                    let stats = network.link(link);
                    stats.offered.packets.saturating_sub(stats.delivered.packets + stats.dropped.total())
                };
                let all = (0..cables.len() * 2).map(|link| (on_it(link), link));
                let (there, fullest) = all.max().unwrap_or_default();
                let link = cables.get(fullest / 2).map(|cable| cable.name.clone()).unwrap_or_default();
                Limit::Packets { most: network.limits().packets, link, there }
            }
        };
        Some(Self { at, limit })
    }
}

/// The names of all metrics that a run of this network can have.
pub(crate) fn names(built: Built) -> BTreeSet<String> {
    let nothing = Built { warm_up: Time::ZERO, end: Time::ZERO, ..built };
    fill(nothing, Extras::default()).map(|(sheet, _)| sheet.into_names()).unwrap_or_default()
}

/// Observes a network while it runs, without influence on the run.
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

    /// Runs the network up to a time, in steps.
    fn run(&mut self, network: &mut Network, cables: &[CableName], until: Time) -> Result<(), Exceeded> {
        while network.now() < until {
            let next = Time::ZERO
                + self.step * (network.now().since(Time::ZERO).as_nanos() / self.step.as_nanos() + 1);
            self.advance(network, next.min(until));
            if let Some(exceeded) = Exceeded::of(network, cables) {
                return Err(exceeded);
            }
            if let (Some(recorder), true) = (&mut self.recorder, next <= until) {
                recorder.look(network);
            }
            if let Some(progress) = &mut self.extras.progress {
                let at = network.now();
                let share = at.since(Time::ZERO).as_secs_f64() / self.end.since(Time::ZERO).as_secs_f64();
                if !progress(share) {
                    return Err(Exceeded { at, limit: Limit::Caller });
                }
            }
        }
        Ok(())
    }

    /// Runs the network up to a time, and passes captured packets on.
    fn advance(&mut self, network: &mut Network, until: Time) {
        loop {
            network.run(until);
            let Some(trace) = &mut self.extras.trace else { return };
            let captured = network.take_captured();
            captured.iter().for_each(&mut **trace);
            if captured.is_empty() || network.exceeded().is_some() {
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

    /// Adds a sample of all windows together and their reductions. A single reduction since a close last sample shows how
    /// much of the windows it left.
    fn on_windows(&mut self, windows: u64, reductions: u64, is_close: bool) {
        let (known, before) = std::mem::replace(&mut self.windows, (windows, reductions));
        if is_close && known > 0 && reductions == before + 1 {
            self.kept.add(windows as f64 / known as f64);
        }
    }
}

/// Samples windows and round-trip times, `step` after the last sample.
fn look_at_paths(network: &Network, samples: &mut [FlowSamples], step: Span) {
    for (flow, samples) in samples.iter_mut().enumerate() {
        let (mut windows, mut reductions, mut shortest) = (0, 0, Span::MAX);
        for path in network.path_windows(flow) {
            windows += path.window;
            reductions += path.reductions;
            shortest = shortest.min(path.rtt);
            if let Some((window, rtt)) = samples.paths.get_mut(path.route.socket as usize) {
                window.add(path.window as f64 / f64::from(path.mtu));
                // Zero means not measured yet.
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

/// Samples queues of links and receive buffers.
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
