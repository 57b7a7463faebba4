//! What two snapshots and the samples between them say, under flat names.

use std::collections::BTreeMap;
use std::ops::Range;

use anabranch_wire::{PACKET_OVERHEAD, Span, Time};

use super::snapshot::{Snapshot, Trouble};
use super::{FlowSamples, Mean, Metrics, Together};
use crate::network::{FlowState, Network};
use crate::scenario::build::{CableName, Group};
use crate::scenario::course::{Distribution, distribution};

/// Stream bytes in a packet of 1,500 bytes.
const PAYLOAD: f64 = 1430.0;
/// Bytes of header of MPMTP-AR's control packets (§3.2).
const CONTROL_HEADER: u64 = 8;

/// All that was measured of a run.
pub(super) struct Measured {
    pub before: Snapshot,
    pub after: Snapshot,
    pub samples: Vec<FlowSamples>,
    pub queues: Vec<Mean>,
    pub starts: Vec<Time>,
    pub stops: Vec<Time>,
    /// When measuring began, and for how long.
    pub begin: Time,
    pub span: Span,
    /// Of each flow with datagrams, from one to the next; and how long each one that came took.
    pub datagrams: Vec<Option<(Span, usize)>>,
    pub delays: Vec<Vec<(u32, Span)>>,
}

/// Datagrams sent so long before the end have had time to come.
const SETTLED: Span = Span::from_secs(1);

/// Metrics of datagrams, which there are none of where none were sent early enough.
pub(super) const DELIVERED: &str = "delivered_share";
pub(super) const DELAYS: [(&str, f64); 3] =
    [("delay_p50_ms", 0.5), ("delay_p99_ms", 0.99), ("delay_max_ms", 1.0)];

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

    /// Bytes that came for the first time, in order or not: what a simulator counts whose flows are packets and no streams.
    fn arrived(&self, flow: usize) -> u64 {
        let fresh = |paths: &[Trouble]| -> u64 { paths.iter().map(|path| path.fresh).sum() };
        fresh(&self.after.paths[flow]).saturating_sub(fresh(&self.before.paths[flow]))
    }

    /// False when a flow was over before measuring began.
    fn takes_part(&self, flow: usize) -> bool {
        self.before.flows[flow].finished_at.is_none() && self.stops[flow] > self.begin
    }

    /// Measures a group; returns the goodput in Mbit/s of each of its flows that was not over before.
    pub(super) fn group(&self, out: &mut Metrics, group: &Group, first: usize) -> Vec<f64> {
        let flows = (first..first + group.count).filter(|flow| self.takes_part(*flow));
        let rates: Vec<f64> = flows.clone().map(|flow| self.mbit_s(self.bytes(flow))).collect();
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
        let buffered = buffers.iter().map(|flow| flow.buffer.get()).sum::<f64>() / group.count as f64;
        put("buffer_kb", buffered);
        // Little's law: what waits over what passes is how long each waits.
        let rate = self.mbit_s(total) / group.count as f64;
        put("reassembly_ms", if rate > 0.0 { buffered * 8.0 / rate } else { 0.0 });
        if buffers.iter().any(|flow| flow.kept.count > 0) {
            let kept = buffers.iter().map(|flow| flow.kept);
            let (sum, count) = kept.fold((0.0, 0), |all, kept| (all.0 + kept.sum, all.1 + kept.count));
            put("kept_share", sum / count as f64);
        }
        let together: Vec<_> = buffers.iter().filter_map(|flow| flow.together).collect();
        if !together.is_empty() {
            let share = |of: fn(&Together) -> f64| mean(&together.iter().map(of).collect::<Vec<_>>());
            put("shared_share", share(|told| told.shared.get()));
            put("separate_share", share(|told| told.separate.get()));
            let first = together.iter().filter_map(|told| Some(told.since?.since(self.begin).as_secs_f64()));
            let first: Vec<f64> = first.collect();
            if !first.is_empty() {
                put("shared_s", mean(&first));
            }
        }
        let pauses = self.after.flows[first..first + group.count].iter().map(|flow| flow.pause);
        put("pause_s", pauses.max().unwrap_or_default().as_secs_f64());
        put("buffer_max_kb", buffers.iter().map(|flow| flow.buffer.max).fold(0.0, f64::max));
        let done = |flow: usize| self.after.flows[flow].finished_at.map(|at| at.since(self.starts[flow]));
        let times: Vec<f64> =
            (first..first + group.count).filter_map(done).map(|took| took.as_secs_f64()).collect();
        if !times.is_empty() {
            put("completion_s", mean(&times));
        }
        if let Some(datagrams) = self.datagrams[first] {
            self.datagrams(&mut put, first..first + group.count, datagrams);
        }
        if group.count == 1 {
            self.flow_paths(&mut put, first);
        } else {
            spread(&mut put, &rates);
            let arrived = flows.map(|flow| self.mbit_s(self.arrived(flow)));
            put("jain_arrived", jain(&arrived.collect::<Vec<_>>()));
        }
        if group.senders > 0 {
            put("per_host_mbit_s", self.mbit_s(total) / group.senders as f64);
            put("per_host_wire_mbit_s", self.pkt_s(total) * 1500.0 * 8e-6 / group.senders as f64);
        }
        rates
    }

    fn trouble(&self, put: &mut impl FnMut(&str, f64), flows: Range<usize>) {
        let (before, after) = (&self.before.paths[flows.clone()], &self.after.paths[flows.clone()]);
        let grown = |count: fn(&Trouble) -> u64| -> u64 {
            let sum = |list: &[Vec<Trouble>]| list.iter().flatten().map(count).sum::<u64>();
            sum(after).saturating_sub(sum(before))
        };
        let sent = grown(|trouble| trouble.sent);
        put("lost_share", ratio(grown(|trouble| trouble.lost), sent));
        put("spurious_share", ratio(grown(|trouble| trouble.spurious), sent));
        let received = grown(|trouble| trouble.fresh + trouble.duplicate);
        put("duplicate_share", ratio(grown(|trouble| trouble.duplicate), received));
        let extra = grown(|trouble| trouble.returned) + self.sent_again(flows.clone());
        put("overhead_share", ratio(extra, grown(|trouble| trouble.fresh)));
        let spared = (PACKET_OVERHEAD as u64 - CONTROL_HEADER) * grown(|trouble| trouble.packets_returned);
        put("overhead_share_short", ratio(extra.saturating_sub(spared), grown(|trouble| trouble.fresh)));
        put("reductions", grown(|trouble| trouble.reductions) as f64);
        put("timeouts", grown(|trouble| trouble.timeouts) as f64);
        put("failures", grown(|trouble| trouble.failures) as f64);
    }

    /// What became of the datagrams sent from the end of the warm-up on, but for the last second's.
    fn datagrams(&self, put: &mut impl FnMut(&str, f64), flows: Range<usize>, (pause, size): (Span, usize)) {
        let (mut sent, mut delays) = (0, Vec::new());
        for flow in flows.clone() {
            let settled = SETTLED.as_nanos() / pause.as_nanos().max(1);
            let last = self.after.flows[flow].datagrams.saturating_sub(settled);
            let window = self.before.flows[flow].datagrams..last;
            sent += last.saturating_sub(window.start);
            let counted = self.delays[flow].iter().filter(|(number, _)| window.contains(&u64::from(*number)));
            delays.extend(counted.map(|(_, took)| took.as_millis_f64()));
        }
        delays.sort_by(f64::total_cmp);
        if sent > 0 {
            put(DELIVERED, ratio(delays.len() as u64, sent));
        }
        for (name, share) in DELAYS.iter().filter(|_| !delays.is_empty()) {
            put(name, quantile(&delays, *share));
        }
        let sum = |snapshot: &Snapshot, count: fn(&FlowState) -> u64| -> u64 {
            snapshot.flows[flows.clone()].iter().map(count).sum()
        };
        let grown = |count| sum(&self.after, count).saturating_sub(sum(&self.before, count));
        put("mended_share", ratio(grown(|flow| flow.server.datagrams_mended), grown(|flow| flow.datagrams)));
        // Bytes of UDP payload with copies and parity, for each byte of the datagrams.
        let bytes = grown(|flow| flow.datagrams) * size as u64;
        put("spare_share", ratio(grown(|flow| flow.client.spare_bytes), bytes));
    }

    /// Stream bytes that were sent more than once.
    fn sent_again(&self, flows: Range<usize>) -> u64 {
        let sum = |flows: &[FlowState]| -> u64 {
            flows.iter().map(|flow| flow.client.bytes_resent + flow.client.bytes_copied).sum()
        };
        sum(&self.after.flows[flows.clone()]).saturating_sub(sum(&self.before.flows[flows]))
    }

    fn flow_paths(&self, put: &mut impl FnMut(&str, f64), flow: usize) {
        for (path, (window, rtt)) in self.samples[flow].paths.iter().enumerate() {
            let number = path + 1;
            let (before, after) = (&self.before.paths[flow][path], &self.after.paths[flow][path]);
            let grown = |count: fn(&Trouble) -> u64| count(after).saturating_sub(count(before));
            let bytes = grown(|trouble| trouble.fresh);
            put(&format!("path{number}.goodput_mbit_s"), self.mbit_s(bytes));
            put(&format!("path{number}.lost_share"), ratio(grown(|path| path.lost), grown(|path| path.sent)));
            put(&format!("path{number}.reductions"), grown(|path| path.reductions) as f64);
            put(&format!("path{number}.timeouts"), grown(|path| path.timeouts) as f64);
            put(&format!("path{number}.pkt_s"), self.pkt_s(bytes));
            // Of a flow that was over before, there are none.
            if let Some(window) = window.known() {
                put(&format!("path{number}.window_pkt"), window);
            }
            if let Some(rtt) = rtt.known() {
                put(&format!("path{number}.rtt_ms"), rtt);
            }
        }
    }

    pub(super) fn links(&self, out: &mut Metrics, cables: &[CableName]) {
        let mut classes: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (index, cable) in cables.iter().enumerate() {
            for way in 0..2 {
                let (loss, used) = self.link(index * 2 + way);
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

    /// How goodput is spread over the flows of each group, loss over the links of each class, and times over files.
    pub(super) fn distributions(
        &self,
        groups: &[Group],
        cables: &[CableName],
        files: &[(String, Vec<f64>)],
    ) -> Vec<Distribution> {
        let mut found = Vec::new();
        let mut first = 0;
        for group in groups {
            let rates = (first..first + group.count).map(|flow| self.mbit_s(self.bytes(flow))).collect();
            found.extend(distribution(&format!("goodput of each flow of {}, Mbit/s", group.name), rates));
            first += group.count;
        }
        let mut classes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (index, cable) in cables.iter().enumerate().filter(|(_, cable)| cable.generated) {
            let class = cable.name.split('.').next().unwrap_or_default();
            let losses = (0..2).map(|way| 100.0 * self.link(index * 2 + way).0);
            classes.entry(class).or_default().extend(losses);
        }
        let losses = classes.into_iter().map(|(class, losses)| (format!("loss on links {class}, %"), losses));
        let times =
            files.iter().map(|(name, times)| (format!("completion time of {name}, s"), times.clone()));
        found.extend(losses.chain(times).filter_map(|(of, values)| distribution(&of, values)));
        found
    }

    /// Share of packets lost, of those offered, and share of the time in which something was on its way out: that of the
    /// rate which is used, also where the rate changes.
    fn link(&self, link: usize) -> (f64, f64) {
        let (before, after) = (&self.before.links[link], &self.after.links[link]);
        let loss = ratio(
            after.dropped.total() - before.dropped.total(),
            after.offered.packets - before.offered.packets,
        );
        let busy = self.after.busy[link].saturating_sub(self.before.busy[link]);
        (loss, busy.as_secs_f64() / self.span.as_secs_f64())
    }

    /// Seconds that the files completed while measuring took.
    pub(super) fn completion_times(&self, network: &Network, source: usize) -> Vec<f64> {
        let done = &network.arrivals(source).completed[self.before.arrivals[source].1..];
        done.iter().map(|file| file.1.as_secs_f64()).collect()
    }

    pub(super) fn sources(
        &self,
        out: &mut Metrics,
        network: &Network,
        arrivals: &[String],
        bursts: &[String],
    ) {
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
            let mut times = self.completion_times(network, index);
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
pub(super) fn jain(values: &[f64]) -> f64 {
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
    let last = sorted.len().saturating_sub(1);
    sorted.get(((last as f64 * share + 0.5) as usize).min(last)).copied().unwrap_or_default()
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
