//! Metrics from two snapshots and the samples between them.

use std::ops::Range;

use anabranch_wire::{PACKET_OVERHEAD, Span, Time};

use super::sheet::{Prefixed, jain, largest, mean, quantile, ratio};
use super::snapshot::{Snapshot, Trouble};
use super::{FlowSamples, Mean, Sheet, Together};
use crate::scenario::build::Group;
use anabranch_sim::network::{Decided, Decision, FlowPlan, FlowState, Network, Supply};

/// Stream bytes in a packet of 1,500 bytes.
const PAYLOAD: f64 = 1430.0;
/// Bytes of header of MPMTP-AR's control packets (§3.2).
const CONTROL_HEADER: u64 = 8;

/// All measurements of a run.
pub(super) struct Measured {
    pub before: Snapshot,
    pub after: Snapshot,
    pub samples: Vec<FlowSamples>,
    pub queues: Vec<Mean>,
    /// The plan of each flow.
    pub planned: Vec<Planned>,
    /// When measuring began, and for how long.
    pub begin: Time,
    pub span: Span,
    /// The delays of each flow's datagrams that arrived.
    pub delays: Vec<Vec<(u32, Span)>>,
}

/// The part of a flow's plan that its metrics need.
pub(super) struct Planned {
    start: Time,
    stop: Time,
    /// Whether it ends on its own.
    ends: bool,
    /// Interval and size of its datagrams.
    datagrams: Option<(Span, usize)>,
    /// If it has a path agent: how many direct paths it has, and how many relays.
    agent: Option<(usize, usize)>,
    /// Whether it is a stream of a tunnel's session, without a session of its own.
    is_stream: bool,
}

impl Planned {
    pub(super) fn of(flow: &FlowPlan) -> Self {
        let datagrams = match flow.supply {
            Supply::Datagrams { pause, size } => Some((pause, size)),
            _ => None,
        };
        let agent = flow.agent.as_ref().map(|agent| agent.direct);
        Self {
            start: flow.start,
            stop: flow.stop,
            ends: matches!(flow.supply, Supply::File(_) | Supply::Script(_)),
            datagrams,
            agent: agent.map(|direct| (direct, flow.paths.len().saturating_sub(direct))),
            is_stream: flow.tunnel.is_some_and(|tunnel| tunnel.lane.is_none()),
        }
    }
}

/// Datagrams sent later than this before the end are not counted: they may be under way.
const SETTLED: Span = Span::from_secs(1);

impl Measured {
    pub(super) fn mbit_s(&self, bytes: u64) -> f64 {
        bytes as f64 * 8e-6 / self.span.as_secs_f64()
    }

    fn pkt_s(&self, bytes: u64) -> f64 {
        bytes as f64 / PAYLOAD / self.span.as_secs_f64()
    }

    pub(super) fn bytes(&self, flow: usize) -> u64 {
        self.after.flows[flow].bytes - self.before.flows[flow].bytes
    }

    /// Bytes that arrived for the first time, in order or not, as simulators without streams count them.
    fn arrived(&self, flow: usize) -> u64 {
        let fresh = |paths: &[Trouble]| -> u64 { paths.iter().map(|path| path.fresh).sum() };
        fresh(&self.after.paths[flow]).saturating_sub(fresh(&self.before.paths[flow]))
    }

    /// Whether a flow was still running when measuring began.
    fn takes_part(&self, flow: usize) -> bool {
        self.before.flows[flow].finished_at.is_none() && self.planned[flow].stop > self.begin
    }

    /// The metrics of a group; returns the goodputs in Mbit/s of its flows that were still running.
    pub(super) fn group(&self, sheet: &mut Sheet, group: &Group, first: usize) -> Vec<f64> {
        let all = first..first + group.count;
        let flows: Vec<usize> = all.clone().filter(|flow| self.takes_part(*flow)).collect();
        let rates: Vec<f64> = flows.iter().map(|flow| self.mbit_s(self.bytes(*flow))).collect();
        let total: u64 = all.clone().map(|flow| self.bytes(flow)).sum();
        let each = self.mbit_s(total) / group.count as f64;
        let mut of_sessions = Sheet::default();
        let mut place = of_sessions.of("flow", &group.name);
        self.trouble(&mut place, all.clone());
        self.buffers(&mut place, &flows, each);
        if group.count == 1 {
            self.flow_paths(&mut place, first);
        }
        sheet.take(of_sessions, !self.planned[first].is_stream);
        let mut place = sheet.of("flow", &group.name);
        place.put("goodput_mbit_s", each);
        place.put("pkt_s", self.pkt_s(total) / group.count as f64);
        self.verdicts(&mut place, all.clone());
        let pauses = flows.iter().filter_map(|flow| self.after.flows[*flow].pause);
        place.put("pause_s", largest(pauses.map(Span::as_secs_f64)));
        if self.planned[first].ends {
            let done =
                |flow: usize| self.after.flows[flow].finished_at.map(|at| at.since(self.planned[flow].start));
            let times: Vec<f64> = all.clone().filter_map(done).map(|took| took.as_secs_f64()).collect();
            place.put("completion_s", mean(&times));
        }
        if let Some(datagrams) = self.planned[first].datagrams {
            self.datagrams(&mut place, all.clone(), datagrams);
        }
        if group.count == 1 {
            self.decisions(&mut place, first);
        } else {
            spread(&mut place, &rates);
            let arrived: Vec<f64> = flows.iter().map(|flow| self.mbit_s(self.arrived(*flow))).collect();
            place.put("jain_arrived", jain(&arrived));
        }
        if group.senders > 0 {
            place.put("per_host_mbit_s", self.mbit_s(total) / group.senders as f64);
            let arrived: u64 = all.map(|flow| self.arrived(flow)).sum();
            place.put("per_host_wire_mbit_s", self.pkt_s(arrived) * 1500.0 * 8e-6 / group.senders as f64);
        }
        rates
    }

    /// The metrics of the tunnels' sessions.
    pub(super) fn tunnels(&self, sheet: &mut Sheet, network: &Network, names: &[String]) {
        for (tunnel, name) in names.iter().enumerate() {
            let (session, mut place) = (network.tunnel_session(tunnel), sheet.of("tunnel", name));
            self.trouble(&mut place, session..session + 1);
            self.flow_paths(&mut place, session);
            let queue = network.tunnel_queue(tunnel);
            place.put("queue_dropped", (queue.dropped + queue.overflowed) as f64);
        }
    }

    /// Metrics of the receive buffers.
    fn buffers(&self, place: &mut Prefixed<'_>, flows: &[usize], goodput: f64) {
        let buffers = flows.iter().filter_map(|flow| self.samples[*flow].buffer.known());
        let buffered = mean(&buffers.collect::<Vec<_>>());
        place.put("buffer_kb", buffered);
        let most = flows.iter().map(|flow| self.after.flows[*flow].reassembling_max as f64 / 1e3);
        place.put("buffer_max_kb", largest(most));
        // Little's law: the backlog divided by the rate is the waiting time.
        place.put("reassembly_ms", buffered.filter(|_| goodput > 0.0).map(|kb| kb * 8.0 / goodput));
    }

    /// Window reductions, and verdicts on shared bottlenecks.
    fn verdicts(&self, place: &mut Prefixed<'_>, flows: Range<usize>) {
        let samples = &self.samples[flows];
        let kept = samples.iter().map(|flow| flow.kept);
        let (sum, count) = kept.fold((0.0, 0), |all, kept| (all.0 + kept.sum, all.1 + kept.count));
        place.put("kept_share", (count > 0).then(|| sum / count as f64));
        let together: Vec<_> = samples.iter().filter_map(|flow| flow.together).collect();
        if !together.is_empty() {
            let share =
                |of: fn(&Together) -> Option<f64>| mean(&together.iter().filter_map(of).collect::<Vec<_>>());
            place.put("shared_share", share(|told| told.shared.known()));
            place.put("separate_share", share(|told| told.separate.known()));
            let first = together.iter().filter_map(|told| Some(told.since?.since(self.begin).as_secs_f64()));
            place.put("shared_s", mean(&first.collect::<Vec<_>>()));
        }
    }

    fn trouble(&self, place: &mut Prefixed<'_>, flows: Range<usize>) {
        let late = |snapshot: &Snapshot, count: fn(&FlowState) -> u64| -> u64 {
            snapshot.flows[flows.clone()].iter().map(count).sum()
        };
        let came = |count| late(&self.after, count) - late(&self.before, count);
        place.put("late_share", ratio(came(|flow| flow.late_packets), came(|flow| flow.data_packets)));
        let (before, after) = (&self.before.paths[flows.clone()], &self.after.paths[flows.clone()]);
        let grown = |count: fn(&Trouble) -> u64| -> u64 {
            let sum = |list: &[Vec<Trouble>]| list.iter().flatten().map(count).sum::<u64>();
            sum(after).saturating_sub(sum(before))
        };
        let sent = grown(|trouble| trouble.sent);
        place.put("lost_share", ratio(grown(|trouble| trouble.lost), sent));
        place.put("spurious_share", ratio(grown(|trouble| trouble.spurious), sent));
        let received = grown(|trouble| trouble.fresh + trouble.duplicate);
        place.put("duplicate_share", ratio(grown(|trouble| trouble.duplicate), received));
        let extra = grown(|trouble| trouble.returned) + self.sent_again(flows.clone());
        place.put("overhead_share", ratio(extra, grown(|trouble| trouble.fresh)));
        let spared = (PACKET_OVERHEAD as u64 - CONTROL_HEADER) * grown(|trouble| trouble.packets_returned);
        let short = extra.saturating_sub(spared);
        place.put("overhead_share_short", ratio(short, grown(|trouble| trouble.fresh)));
        place.put("reductions", grown(|trouble| trouble.reductions) as f64);
        place.put("timeouts", grown(|trouble| trouble.timeouts) as f64);
        place.put("failures", grown(|trouble| trouble.failures) as f64);
    }

    /// Metrics of the datagrams sent after the warm-up, except in the last second.
    fn datagrams(&self, place: &mut Prefixed<'_>, flows: Range<usize>, (pause, size): (Span, usize)) {
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
        place.put("delivered_share", ratio(delays.len() as u64, sent));
        for (name, share) in [("delay_p50_ms", 0.5), ("delay_p99_ms", 0.99), ("delay_max_ms", 1.0)] {
            place.put(name, quantile(&delays, share));
        }
        let sum = |snapshot: &Snapshot, count: fn(&FlowState) -> u64| -> u64 {
            snapshot.flows[flows.clone()].iter().map(count).sum()
        };
        let grown = |count| sum(&self.after, count).saturating_sub(sum(&self.before, count));
        let mended = grown(|flow| flow.server.datagrams_mended);
        place.put("mended_share", ratio(mended, grown(|flow| flow.datagrams)));
        // Bytes of UDP payload with copies and parity, for each byte of the datagrams.
        let bytes = grown(|flow| flow.datagrams) * size as u64;
        place.put("spare_share", ratio(grown(|flow| flow.client.spare_bytes), bytes));
    }

    /// Stream bytes that were sent more than once.
    fn sent_again(&self, flows: Range<usize>) -> u64 {
        let sum = |flows: &[FlowState]| -> u64 {
            flows.iter().map(|flow| flow.client.bytes_resent + flow.client.bytes_copied).sum()
        };
        sum(&self.after.flows[flows.clone()]).saturating_sub(sum(&self.before.flows[flows]))
    }

    /// When the path agent last opened and closed each path and relay, after the flow's start.
    fn decisions(&self, place: &mut Prefixed<'_>, flow: usize) {
        let Some((direct, relays)) = self.planned[flow].agent else { return };
        let routes = (1..=direct).map(|path| format!("path{path}"));
        for route in routes.chain((1..=relays).map(|relay| format!("relay{relay}"))) {
            // A route without a decision has the metric without a value.
            place.put(&format!("{route}.opened_s"), None::<f64>);
            place.put(&format!("{route}.closed_s"), None::<f64>);
        }
        for Decided { after, what } in &self.after.decisions[flow] {
            let name = match what {
                Decision::OpenThrough { candidate } => format!("relay{}.opened_s", candidate + 1),
                Decision::CloseThrough { candidate, .. } => format!("relay{}.closed_s", candidate + 1),
                Decision::Open { path } => format!("path{}.opened_s", path + 1),
                Decision::Close { path } => format!("path{}.closed_s", path + 1),
            };
            place.put(&name, Some(after.as_secs_f64()));
        }
    }

    fn flow_paths(&self, place: &mut Prefixed<'_>, flow: usize) {
        for (path, (window, rtt)) in self.samples[flow].paths.iter().enumerate() {
            let (before, after) = (&self.before.paths[flow][path], &self.after.paths[flow][path]);
            let grown = |count: fn(&Trouble) -> u64| count(after).saturating_sub(count(before));
            let bytes = grown(|trouble| trouble.fresh);
            let mut put =
                |key: &str, value: Option<f64>| place.put(&format!("path{}.{key}", path + 1), value);
            put("goodput_mbit_s", Some(self.mbit_s(bytes)));
            put("pkt_s", Some(self.pkt_s(bytes)));
            put("lost_share", ratio(grown(|path| path.lost), grown(|path| path.sent)));
            put("reductions", Some(grown(|path| path.reductions) as f64));
            put("timeouts", Some(grown(|path| path.timeouts) as f64));
            put("window_pkt", window.known());
            put("rtt_ms", rtt.known());
        }
    }
}

fn spread(place: &mut Prefixed<'_>, rates: &[f64]) {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    place.put("total_mbit_s", rates.iter().sum::<f64>());
    place.put("jain", jain(rates));
    for (name, share) in [("min", 0.0), ("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("max", 1.0)] {
        place.put(&format!("goodput_{name}_mbit_s"), quantile(&sorted, share));
    }
}
