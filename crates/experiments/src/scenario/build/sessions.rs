//! Sessions, declared or arriving at random: their paths, settings and data.

use std::sync::Arc;

use anabranch_engine::cc::RuleKind;
use anabranch_engine::{
    AckPolicy, Config, Coupling, Detector, PathRules, ReportConfig, SchedulerKind, SuppressionLimits,
};
use anabranch_wire::{Span, Time};

use super::supply::{check_size, supply};
use super::{Builder, Group, MAX_DURATION, MAX_PATHS, Settings, Times, check_openings};
use crate::scenario::error::{ScenarioError, in_range, nearest};
use crate::scenario::model::{
    Acks, AgentSpec, ArrivalSpec, CouplingKind, DetectorKind, FlowSpec, InterfaceEntry, LeaveOut, PathSpec,
    Profile, Reports, SizeShape, Transport,
};
use crate::scenario::units::{PACKET, SpanText};
use anabranch_sim::network::{AgentPlan, ArrivalPlan, FlowPlan, InterfaceChange, PathPlan, Sizes};

/// Longest timer of a session.
const MAX_TIMER: Span = Span::from_secs(1000);
/// Most changes of rate in a run.
const MAX_PHASES: u64 = 1_000_000;

/// The direct paths, relays and interfaces of the path agent.
fn agent_plan(
    key: &dyn Fn(&str) -> String,
    spec: &AgentSpec,
    paths: usize,
) -> Result<AgentPlan, ScenarioError> {
    let direct = (paths as u64).checked_sub(spec.relays).ok_or_else(|| {
        ScenarioError::new(key("agent.relays"), "there are more relays than paths")
            .hint("the last paths lead through relays: give the flow more paths")
    })? as usize;
    let mut interfaces = Vec::new();
    for InterfaceEntry(after, path, is_up) in &spec.interfaces {
        if *path == 0 || *path > direct as u64 {
            let message = format!("no direct path has the number {path}");
            return Err(ScenarioError::new(key("agent.interfaces"), message)
                .hint("direct paths come first and count from 1; those through relays have no interface"));
        }
        interfaces.push(InterfaceChange { after: after.0, path: *path as u32 - 1, is_up: *is_up });
    }
    interfaces.sort_by_key(|change| change.after);
    let relays_at_once = spec.at_once.min(spec.relays) as usize;
    Ok(AgentPlan { direct, relays_at_once, interfaces })
}

impl Builder<'_> {
    pub(super) fn flow(&mut self, spec: &FlowSpec) -> Result<(), ScenarioError> {
        let name = format!("flow.{}", spec.name);
        let key = |key: &str| format!("{name}.{key}");
        let count = spec.count.unwrap_or(1);
        let given = (spec.paths.as_deref(), spec.from.as_ref(), spec.to.as_ref());
        let paths = if spec.tunnel.is_some() { Vec::new() } else { self.paths(&name, given)? };
        let visible = paths.len().max(1);
        let settings =
            Settings { profile: spec.profile, rule: spec.rule.as_ref(), scheduler: spec.scheduler.as_ref() };
        let mut config = self.config(&name, settings, visible)?;
        self.check_times(&key, Times { start: spec.start, within: spec.start_within, stop: spec.stop })?;
        let first = Time::ZERO + spec.start.map_or(Span::ZERO, |start| start.0);
        let within = spec.start_within.map_or(Span::ZERO, |within| within.0);
        let stop = spec.stop.map_or(Time::NEVER, |stop| Time::ZERO + stop.0);
        let time = stop.min(self.built.end).since(first + within);
        check_openings(&key, spec.paths_within, time)?;
        let agent = match &spec.agent {
            Some(agent) => Some(Arc::new(agent_plan(&key, agent, visible)?)),
            None => None,
        };
        if agent.is_some() && spec.paths_within.is_some() {
            return Err(ScenarioError::new(key("paths_within"), "the path agent decides when paths open")
                .hint("remove it, or `agent`"));
        }
        let supply = supply(&key, spec, visible, &mut config)?;
        let tunnel = self.in_tunnel(spec, &supply, &mut config)?;
        let config = Arc::new(config);
        for _ in 0..count {
            let start = first + within.mul_f64(self.chance.unit());
            if start >= stop {
                return Err(ScenarioError::new(key("stop"), "it may stop before it starts")
                    .hint("stop has to be later than start and start_within together"));
            }
            let openings = self.openings(spec.paths_within, visible);
            let (paths, config, supply) = (paths.clone(), Arc::clone(&config), supply.clone());
            let redundant = spec.redundant == Some(true);
            let flow = FlowPlan {
                paths,
                openings,
                config,
                supply,
                start,
                stop,
                tunnel,
                redundant,
                agent: agent.clone(),
            };
            self.built.plan.flows.push(flow);
        }
        self.built.groups.push(Group { name: spec.name.clone(), count: count as usize, senders: 0 });
        Ok(())
    }

    pub(super) fn arrivals(&mut self, spec: &ArrivalSpec) -> Result<(), ScenarioError> {
        let name = format!("arrivals.{}", spec.name);
        let key = |key: &str| format!("{name}.{key}");
        let given = (spec.paths.as_deref(), spec.from.as_ref(), spec.to.as_ref());
        let paths = self.paths(&name, given)?;
        let settings = Settings { profile: spec.profile, rule: spec.rule.as_ref(), scheduler: None };
        let config = self.config(&name, settings, paths.len())?;
        let phase = spec.phase.map_or(MAX_DURATION, |phase| phase.0);
        let is_good = !spec.rate.is_empty() && spec.rate.iter().all(|rate| rate.0 > 0.0 && rate.0 <= 1e6);
        in_range(is_good, key("rate"), "one or more rates, each above 0 and at most 1000000 /s")?;
        if spec.rate.len() > 1 && spec.phase.is_none() {
            return Err(ScenarioError::new(key("phase"), "how long does each rate last?")
                .hint("several rates need a `phase = \"10 s\"`"));
        }
        let run = self.built.end.since(Time::ZERO).as_nanos();
        if phase.is_zero() || run / phase.as_nanos() > MAX_PHASES {
            let least = run.div_ceil(MAX_PHASES);
            return Err(ScenarioError::new(key("phase"), "too short")
                .hint(format!("at most a million phases fit in a run: \"{least} ns\" or more")));
        }
        let shape = spec.shape.unwrap_or(1.5);
        let bounds = "above 1, else a Pareto distribution has no mean, and at most 100";
        in_range(shape > 1.0 && shape <= 100.0, key("shape"), bounds)?;
        self.check_times(&key, Times { start: spec.start, within: None, stop: spec.stop })?;
        let start = spec.start.map_or(Time::ZERO, |start| Time::ZERO + start.0);
        check_size(&key("size"), spec.size.0)?;
        let mean = spec.size.0 as f64;
        let sizes = match spec.sizes {
            SizeShape::Fixed => Sizes::Fixed(spec.size.0),
            SizeShape::Exponential => Sizes::Exponential(mean),
            SizeShape::Pareto => Sizes::Pareto { mean, shape },
        };
        self.built.arrivals.push(spec.name.clone());
        self.built.plan.arrivals.push(ArrivalPlan {
            phases: spec.rate.iter().map(|rate| (rate.0, phase)).collect(),
            sizes,
            paths,
            config: config.into(),
            start,
            stop: spec.stop.map_or(Time::NEVER, |stop| Time::ZERO + stop.0),
        });
        Ok(())
    }

    /// When the further paths of a flow open, at random; empty if all open at once.
    pub(super) fn openings(&mut self, within: Option<SpanText>, paths: usize) -> Vec<Span> {
        let Some(SpanText(within)) = within else { return Vec::new() };
        (1..paths).map(|_| within.mul_f64(self.chance.unit())).collect()
    }

    /// The paths of a flow or of arrivals.
    pub(super) fn paths(
        &mut self,
        name: &str,
        (paths, from, to): (Option<&[PathSpec]>, Option<&String>, Option<&String>),
    ) -> Result<Vec<PathPlan>, ScenarioError> {
        let key = |key: &str| format!("{name}.{key}");
        let found = match (paths, from, to) {
            (Some([]), ..) => {
                Err(ScenarioError::new(key("paths"), "no paths").hint("name at least one link"))
            }
            (Some(paths), None, None) if paths.len() > MAX_PATHS => {
                Err(ScenarioError::new(key("paths"), format!("{} paths", paths.len()))
                    .hint(format!("a flow has at most {MAX_PATHS}")))
            }
            (Some(paths), None, None) => {
                paths.iter().map(|path| self.graph.path_over(&key("paths"), path.links())).collect()
            }
            (None, Some(from), Some(to)) => self.graph.shortest(&key, (from, to), (1, &mut self.chance)),
            _ => Err(ScenarioError::new(key("paths"), "no route")
                .hint("give either `paths` (lists of links), or `from` and `to` (nodes)")),
        };
        found.map(|paths| self.returned(paths))
    }

    /// The paths, without their return links if acknowledgements cross no link.
    pub(super) fn returned(&self, mut paths: Vec<PathPlan>) -> Vec<PathPlan> {
        if self.file.transport.acks == Some(Acks::Outside) {
            paths.iter_mut().for_each(|path| path.back.clear());
        }
        paths
    }

    pub(super) fn config(
        &self,
        name: &str,
        Settings { profile, rule, scheduler }: Settings<'_>,
        paths: usize,
    ) -> Result<Config, ScenarioError> {
        let usual = &self.file.transport;
        let key = |key: &str| format!("{name}.{key}");
        let mut config = match profile.or(usual.profile).unwrap_or_default() {
            Profile::Tcp => Config::tcp(),
            Profile::Default => Config::default(),
        };
        // A flow's own profile brings its own rule.
        let usual_rule = usual.rule.as_ref().filter(|_| profile.is_none());
        if let Some(rule) = rule.or(usual_rule) {
            config.cc.rule = rule_named(&key("rule"), rule)?;
        }
        if let Some(scheduler) = scheduler.or(usual.scheduler.as_ref()) {
            let known = SchedulerKind::ALL.map(|(_, name)| name);
            let named = scheduler
                .parse()
                .map_err(|_| no_such(&key("scheduler"), ("scheduler", scheduler), &known))?;
            if paths > 1 {
                config.scheduler = named;
            }
        }
        apply_transport(name, usual, &mut config)?;
        config.max_paths = paths as u32;
        config.idle_timeout = MAX_DURATION;
        config.connect_timeout = MAX_DURATION;
        Ok(config)
    }
}

/// The window rule with this name.
pub(super) fn rule_named(key: &str, name: &str) -> Result<RuleKind, ScenarioError> {
    let known = RuleKind::ALL.map(RuleKind::name);
    name.parse().map_err(|_| no_such(key, ("window rule", name), &known))
}

/// The error for an unknown rule or scheduler.
fn no_such(key: &str, (what, name): (&str, &str), known: &[&str]) -> ScenarioError {
    let known_names = known.join(", ");
    let hint = match nearest(name, known) {
        Some(near) => format!("did you mean \"{near}\"? There are {known_names}"),
        None => format!("there are {known_names}"),
    };
    ScenarioError::new(key, format!("there is no {what} \"{name}\"")).hint(hint)
}

fn apply_transport(name: &str, from: &Transport, config: &mut Config) -> Result<(), ScenarioError> {
    apply_acks(from, config)?;
    apply_windows(name, from, config)?;
    apply_rules(from, config)?;
    config.early_binding = from.early_binding.map(|most| most.0).filter(|most| *most > 0);
    if let Some(coupling) = from.coupling {
        config.coupling = match coupling {
            CouplingKind::Adaptive => Coupling::Adaptive,
            CouplingKind::Fixed => Coupling::Fixed,
        };
    }
    config.ecn = from.ecn.unwrap_or(config.ecn);
    if let Some(detector) = from.detector {
        config.detector = match detector {
            DetectorKind::Losses => Detector::Losses,
            DetectorKind::Delays => Detector::Delays,
            DetectorKind::Waves => Detector::Waves,
            DetectorKind::Both => Detector::Both,
        };
    }
    Ok(())
}

/// How often packets are acknowledged and over which path, and how long both ends wait.
fn apply_acks(from: &Transport, config: &mut Config) -> Result<(), ScenarioError> {
    if let Some(every) = from.ack_every {
        in_range((1..=64).contains(&every), "transport.ack_every", "1 to 64")?;
        config.acks.every = every;
    }
    for (key, value) in [("max_ack_delay", from.max_ack_delay), ("rto_min", from.rto_min)] {
        let is_good = value.is_none_or(|value| !value.0.is_zero() && value.0 <= MAX_TIMER);
        in_range(is_good, format!("transport.{key}"), "more than nothing, at most 1000 s")?;
    }
    if let Some(delay) = from.max_ack_delay {
        config.acks.max_delay = delay.0;
    }
    if let Some(rto) = from.rto_min {
        config.failure.rto.min = rto.0;
        config.failure.rto.max = config.failure.rto.max.max(rto.0);
    }
    if let Some(acks) = from.acks {
        config.acks.policy = match acks {
            Acks::SamePath | Acks::Outside => AckPolicy::SamePath,
            Acks::Primary => AckPolicy::Primary,
            Acks::Fastest => AckPolicy::Fastest,
        };
    }
    Ok(())
}

fn apply_windows(name: &str, from: &Transport, config: &mut Config) -> Result<(), ScenarioError> {
    if let Some(window) = from.initial_window {
        in_range((1..=1000).contains(&window), "transport.initial_window", "1 to 1000 packets")?;
        config.cc.initial_window = window;
    }
    if let Some(packets) = from.initial_ssthresh {
        let key = "transport.initial_ssthresh";
        in_range((1..=1_000_000).contains(&packets), key, "1 to 1000000 packets")?;
        if config.cc.rule == RuleKind::Bbr {
            let message = format!("{name} has the rule \"bbr\", which has no slow start");
            return Err(ScenarioError::new(key, message).hint("remove it, or use another rule"));
        }
        config.cc.initial_ssthresh = Some(packets);
    }
    if let Some(buffer) = from.receive_buffer {
        if buffer.0 < PACKET {
            return Err(ScenarioError::new("transport.receive_buffer", "smaller than a packet")
                .hint("at least \"1500 B\""));
        }
        config.memory.max_window = buffer.0;
        config.memory.initial_window = buffer.0;
    }
    Ok(())
}

/// Reports of paths, and which paths are left out.
fn apply_rules(from: &Transport, config: &mut Config) -> Result<(), ScenarioError> {
    if let Some(Reports { alpha, b }) = from.reports {
        for (name, weight) in [("alpha", alpha), ("b", b)] {
            let key = format!("transport.reports.{name}");
            in_range((0.0..1.0).contains(&weight), key, "from 0 to below 1")?;
        }
        config.reports = Some(ReportConfig { alpha, b });
    }
    if let Some(LeaveOut { slower_than, sharing_beyond }) = from.leave_out {
        let (omega, d) = (slower_than.unwrap_or(f64::INFINITY), sharing_beyond.unwrap_or(usize::MAX));
        in_range(omega > 1.0, "transport.leave_out.slower_than", "more than 1")?;
        in_range(d > 0, "transport.leave_out.sharing_beyond", "at least 1")?;
        config.rules = PathRules::default().suppressing(Some(SuppressionLimits { omega, d }));
    }
    Ok(())
}
