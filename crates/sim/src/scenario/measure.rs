//! What is measured of a run, under flat names.
//!
//! Counters are read at the end of the warm-up and at the end of the run; their difference is what counts.
//! Windows, round-trip times and queues are looked at in between at even steps and averaged.
//!
//! `goodput` is what the receiving application read. `pkt_s` is the same in full packets, as
//! simulators without headers count: a packet's payload stands for its 1,500 bytes on the wire.

use std::collections::BTreeMap;
use std::ops::Range;

use anabranch_engine::{PathInfo, PathStats};
use anabranch_link::LinkStats;
use anabranch_wire::{Span, Time};

use super::build::{Built, CableName, Group};
use crate::network::{FlowState, Network};

/// Stream bytes in a packet of 1,500 bytes.
const PAYLOAD: f64 = 1430.0;

/// Names and values, in order of the names.
pub type Metrics = BTreeMap<String, f64>;

/// Counters at a moment.
struct Snapshot {
    flows: Vec<FlowState>,
    /// For each flow the server's counters of each path: bytes of new data.
    paths: Vec<Vec<u64>>,
    /// For each flow what happened on all its paths.
    trouble: Vec<Trouble>,
    links: Vec<LinkStats>,
    bursts: Vec<(u64, u64)>,
    arrivals: Vec<(u64, usize, u64)>,
    packet_hops: u64,
    events: u64,
}

/// What can go wrong on paths, counted.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    sent: u64,
    lost: u64,
    spurious: u64,
    reductions: u64,
    timeouts: u64,
    failures: u64,
    /// Stream bytes received, and those among them that were there already.
    received: u64,
    duplicate: u64,
}

impl Trouble {
    fn of(client: &[PathInfo], server: &[PathInfo]) -> Self {
        let sum = |paths: &[PathInfo], count: fn(&PathStats) -> u64| {
            paths.iter().map(|path| count(&path.stats)).sum()
        };
        let duplicate = sum(server, |stats| stats.data_duplicate);
        Self {
            sent: sum(client, |stats| stats.packets_sent),
            lost: sum(client, |stats| stats.packets_lost),
            spurious: sum(client, |stats| stats.spurious_losses),
            reductions: sum(client, |stats| stats.congestion_events),
            timeouts: sum(client, |stats| stats.probe_timeouts),
            failures: sum(client, |stats| stats.failures),
            received: sum(server, |stats| stats.data_received) + duplicate,
            duplicate,
        }
    }
}

/// Sums over the moments at which things were looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u64,
    max: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
        self.max = self.max.max(value);
    }

    fn get(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

/// What is looked at of a flow.
#[derive(Clone, Debug, Default)]
struct FlowSamples {
    /// Window in packets and round-trip time in milliseconds of each path.
    paths: Vec<(Mean, Mean)>,
    /// Kilobytes that wait in the receive buffer for earlier ones.
    buffer: Mean,
}

/// Runs a network and measures it.
pub(crate) fn run(built: Built) -> Metrics {
    let Built { plan, groups, cables, arrivals, bursts, warm_up, end, sample } = built;
    let flow_paths: Vec<usize> = plan.flows.iter().map(|flow| flow.paths.len()).collect();
    let starts: Vec<Time> = plan.flows.iter().map(|flow| flow.start).collect();
    let counts = (flow_paths.clone(), cables.len(), arrivals.len(), bursts.len());
    let mut network = Network::new(plan);
    network.run(warm_up);
    let before = Snapshot::take(&mut network, &counts);
    let mut samples: Vec<FlowSamples> = flow_paths.iter().map(|paths| FlowSamples::new(*paths)).collect();
    let mut queues = vec![Mean::default(); cables.len() * 2];
    let mut at = warm_up;
    while at < end {
        at = (at + sample).min(end);
        network.run(at);
        look(&mut network, &mut samples, &mut queues);
    }
    let after = Snapshot::take(&mut network, &counts);
    let measured = Measured { before, after, samples, queues, starts, span: end.since(warm_up) };
    let mut out = Metrics::new();
    let mut first = 0;
    let mut rates = Vec::new();
    for group in &groups {
        rates.extend(measured.group(&mut out, group, first));
        first += group.count;
    }
    if !rates.is_empty() {
        out.insert("jain".to_owned(), jain(&rates));
        out.insert("total.goodput_mbit_s".to_owned(), rates.iter().sum());
    }
    measured.links(&mut out, &cables);
    measured.sources(&mut out, &network, &arrivals, &bursts);
    out.insert("run.packet_hops".to_owned(), measured.after.packet_hops as f64);
    out.insert("run.events".to_owned(), measured.after.events as f64);
    let delivered: u64 = measured.after.flows.iter().map(|flow| flow.data_packets).sum();
    out.insert("run.data_packets".to_owned(), delivered as f64);
    out
}

impl FlowSamples {
    fn new(paths: usize) -> Self {
        Self { paths: vec![Default::default(); paths], buffer: Mean::default() }
    }
}

fn look(network: &mut Network, samples: &mut [FlowSamples], queues: &mut [Mean]) {
    for (flow, samples) in samples.iter_mut().enumerate() {
        for path in network.path_windows(flow) {
            if let Some((window, rtt)) = samples.paths.get_mut(path.route.socket as usize) {
                window.add(path.window as f64 / f64::from(path.mtu));
                rtt.add(path.rtt.as_millis_f64());
            }
        }
        samples.buffer.add(network.flow(flow).server.bytes_reassembling as f64 / 1e3);
    }
    for (link, queue) in queues.iter_mut().enumerate() {
        queue.add(network.backlog(link) as f64);
    }
}

impl Snapshot {
    fn take(network: &mut Network, counts: &(Vec<usize>, usize, usize, usize)) -> Self {
        let (flows, cables, arrivals, bursts) = counts;
        let path_bytes = |(flow, paths): (usize, &usize)| {
            let mut bytes = vec![0; *paths];
            for path in network.paths(flow, true) {
                add_to(&mut bytes, &path);
            }
            bytes
        };
        let paths = flows.iter().enumerate().map(path_bytes).collect();
        let trouble = |flow| Trouble::of(&network.paths(flow, false), &network.paths(flow, true));
        let trouble = (0..flows.len()).map(trouble).collect();
        Self {
            paths,
            trouble,
            flows: (0..flows.len()).map(|flow| network.flow(flow)).collect(),
            arrivals: (0..*arrivals)
                .map(|source| {
                    let state = network.arrivals(source);
                    (state.arrived, state.completed.len(), state.bytes)
                })
                .collect(),
            bursts: (0..*bursts).map(|source| network.burst(source)).collect(),
            links: (0..cables * 2).map(|link| network.link(link)).collect(),
            packet_hops: network.packet_hops(),
            events: network.events(),
        }
    }
}

fn add_to(bytes: &mut [u64], path: &PathInfo) {
    if let Some(bytes) = bytes.get_mut(path.route.socket as usize) {
        *bytes += path.stats.data_received;
    }
}

struct Measured {
    before: Snapshot,
    after: Snapshot,
    samples: Vec<FlowSamples>,
    queues: Vec<Mean>,
    starts: Vec<Time>,
    span: Span,
}

impl Measured {
    fn mbit_s(&self, bytes: u64) -> f64 {
        bytes as f64 * 8e-6 / self.span.as_secs_f64()
    }

    fn pkt_s(&self, bytes: u64) -> f64 {
        bytes as f64 / PAYLOAD / self.span.as_secs_f64()
    }

    fn bytes(&self, flow: usize) -> u64 {
        self.after.flows[flow].bytes - self.before.flows[flow].bytes
    }

    /// Measures a group; returns the goodput of each of its flows in Mbit/s.
    fn group(&self, out: &mut Metrics, group: &Group, first: usize) -> Vec<f64> {
        let rates: Vec<f64> =
            (first..first + group.count).map(|flow| self.mbit_s(self.bytes(flow))).collect();
        let mut put = |key: &str, value: f64| {
            out.insert(format!("flow.{}.{key}", group.name), value);
        };
        let total: u64 = (first..first + group.count).map(|flow| self.bytes(flow)).sum();
        put("goodput_mbit_s", self.mbit_s(total) / group.count as f64);
        put("pkt_s", self.pkt_s(total) / group.count as f64);
        let late = |flows: &[FlowState]| -> (u64, u64) {
            let flows = &flows[first..first + group.count];
            let sum = |count: fn(&FlowState) -> u64| flows.iter().map(count).sum();
            (sum(|flow| flow.late_packets), sum(|flow| flow.data_packets))
        };
        let (before, after) = (late(&self.before.flows), late(&self.after.flows));
        put("late_share", ratio(after.0 - before.0, after.1 - before.1));
        self.trouble(&mut put, first..first + group.count);
        let buffers = &self.samples[first..first + group.count];
        put("buffer_kb", buffers.iter().map(|flow| flow.buffer.get()).sum::<f64>() / group.count as f64);
        put("buffer_max_kb", buffers.iter().map(|flow| flow.buffer.max).fold(0.0, f64::max));
        let done = |flow: usize| self.after.flows[flow].finished_at.map(|at| at.since(self.starts[flow]));
        let times: Vec<f64> =
            (first..first + group.count).filter_map(done).map(|took| took.as_secs_f64()).collect();
        if !times.is_empty() {
            put("completion_s", mean(&times));
        }
        if group.count == 1 {
            self.flow_paths(&mut put, first);
        } else {
            spread(&mut put, &rates);
        }
        if group.senders > 0 {
            put("per_host_mbit_s", self.mbit_s(total) / group.senders as f64);
            put("per_host_wire_mbit_s", self.pkt_s(total) * 1500.0 * 8e-6 / group.senders as f64);
        }
        rates
    }

    fn trouble(&self, put: &mut impl FnMut(&str, f64), flows: Range<usize>) {
        let (before, after) = (&self.before.trouble[flows.clone()], &self.after.trouble[flows]);
        let grown = |count: fn(&Trouble) -> u64| -> u64 {
            let sum = |list: &[Trouble]| list.iter().map(count).sum::<u64>();
            sum(after).saturating_sub(sum(before))
        };
        let sent = grown(|trouble| trouble.sent);
        put("lost_share", ratio(grown(|trouble| trouble.lost), sent));
        put("spurious_share", ratio(grown(|trouble| trouble.spurious), sent));
        put("duplicate_share", ratio(grown(|trouble| trouble.duplicate), grown(|trouble| trouble.received)));
        put("reductions", grown(|trouble| trouble.reductions) as f64);
        put("timeouts", grown(|trouble| trouble.timeouts) as f64);
        put("failures", grown(|trouble| trouble.failures) as f64);
    }

    fn flow_paths(&self, put: &mut impl FnMut(&str, f64), flow: usize) {
        for (path, (window, rtt)) in self.samples[flow].paths.iter().enumerate() {
            let number = path + 1;
            let bytes = self.after.paths[flow][path].saturating_sub(self.before.paths[flow][path]);
            put(&format!("path{number}.goodput_mbit_s"), self.mbit_s(bytes));
            put(&format!("path{number}.pkt_s"), self.pkt_s(bytes));
            put(&format!("path{number}.window_pkt"), window.get());
            put(&format!("path{number}.rtt_ms"), rtt.get());
        }
    }

    fn links(&self, out: &mut Metrics, cables: &[CableName]) {
        let mut classes: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (index, cable) in cables.iter().enumerate() {
            for way in 0..2 {
                let (loss, used) = self.link(index * 2 + way, cable.rates[way]);
                if cable.generated {
                    let class = cable.name.split('.').next().unwrap_or_default();
                    classes.entry(class).or_default().push((loss, used));
                    continue;
                }
                let name = if way == 0 { cable.name.clone() } else { format!("{}.back", cable.name) };
                let mut put = |key: &str, value: f64| {
                    out.insert(format!("link.{name}.{key}"), value);
                };
                put("loss", loss);
                put("utilisation", used);
                if way == 0 {
                    put("queue_pkt", self.queues[index * 2].get());
                    put("queue_max_pkt", self.after.links[index * 2].max_queue_packets as f64);
                }
            }
        }
        for (class, links) in classes {
            let losses: Vec<f64> = links.iter().map(|link| link.0).collect();
            let mut put = |key: &str, value: f64| {
                out.insert(format!("links.{class}.{key}"), value);
            };
            put("loss_mean", mean(&losses));
            put("loss_max", losses.iter().copied().fold(0.0, f64::max));
            put("utilisation_mean", links.iter().map(|link| link.1).sum::<f64>() / links.len() as f64);
        }
    }

    /// Share of packets lost, of those offered, and share of the rate used.
    fn link(&self, link: usize, rate: u64) -> (f64, f64) {
        let (before, after) = (&self.before.links[link], &self.after.links[link]);
        let loss = ratio(
            after.dropped.total() - before.dropped.total(),
            after.offered.packets - before.offered.packets,
        );
        let packets = after.delivered.packets - before.delivered.packets;
        let bytes = after.delivered.bytes - before.delivered.bytes + packets * 28;
        let used = if rate == 0 { 0.0 } else { bytes as f64 * 8.0 / rate as f64 / self.span.as_secs_f64() };
        (loss, used)
    }

    fn sources(&self, out: &mut Metrics, network: &Network, arrivals: &[String], bursts: &[String]) {
        for (index, name) in arrivals.iter().enumerate() {
            let state = network.arrivals(index);
            let ((arrived, done, bytes), after) = (self.before.arrivals[index], self.after.arrivals[index]);
            let mut put = |key: &str, value: f64| {
                out.insert(format!("arrivals.{name}.{key}"), value);
            };
            put("arrived", (after.0 - arrived) as f64);
            put("completed", (after.1 - done) as f64);
            put("refused", state.refused as f64);
            put("goodput_mbit_s", self.mbit_s(after.2 - bytes));
            let mut times: Vec<f64> =
                state.completed[done..].iter().map(|file| file.1.as_secs_f64()).collect();
            times.sort_by(f64::total_cmp);
            if !times.is_empty() {
                put("completion_s", mean(&times));
                put("completion_p50_s", quantile(&times, 0.5));
                put("completion_p99_s", quantile(&times, 0.99));
            }
        }
        for (index, name) in bursts.iter().enumerate() {
            let (before, after) = (self.before.bursts[index], self.after.bursts[index]);
            let (sent, received) = (after.0 - before.0, after.1 - before.1);
            out.insert(format!("cbr.{name}.sent_pkt_s"), sent as f64 / self.span.as_secs_f64());
            out.insert(format!("cbr.{name}.loss"), ratio(sent.saturating_sub(received), sent));
        }
    }
}

fn spread(put: &mut impl FnMut(&str, f64), rates: &[f64]) {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    put("total_mbit_s", rates.iter().sum());
    put("jain", jain(rates));
    for (name, share) in [("min", 0.0), ("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("max", 1.0)] {
        put(&format!("goodput_{name}_mbit_s"), quantile(&sorted, share));
    }
}

/// Jain's index of fairness: 1 when all are equal, 1/n when one has everything.
pub(crate) fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The value below which a share of a sorted list lies (nearest rank).
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len() - 1;
    sorted[((last as f64 * share + 0.5) as usize).min(last)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_one_nth_for_one_alone() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
    }

    #[test]
    fn quantiles_are_values_of_the_list() {
        let list = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!([0.0, 0.5, 0.9, 1.0].map(|share| quantile(&list, share)), [1.0, 3.0, 5.0, 5.0]);
    }
}
