//! From a file to a [`Plan`]: names become numbers, defaults are filled in, bounds are kept.

use anabranch_engine::Config;
use anabranch_engine::cc::RuleKind;
use anabranch_link::{Limit, LinkConfig, LossModel, QueueModel, RandomDrop, RateModel};
use anabranch_wire::{Rate, Span, Time};

use super::error::{ScenarioError, line_of};
use super::generate::{bcube_paths, generate};
use super::graph::Graph;
use super::model::{
    ArrivalSpec, BurstShape, CbrSpec, EventSpec, File, FlowSpec, LinkDefaults, LinkSpec, PathSpec, Pattern,
    Profile, SizeShape, Topology, TrafficSpec, Transport, Way,
};
use super::units::{PACKET, QueueText};
use crate::chance::{Chance, seed_of};
use crate::network::{
    ArrivalPlan, BurstPlan, Change, Duration, FlowPlan, LinkChange, PathPlan, Plan, Sizes, Supply,
};

/// Most flows of a scenario, however they are written.
pub const MAX_FLOWS: u64 = 100_000;
/// Most paths of a flow.
pub const MAX_PATHS: usize = 32;
/// Longest run.
const MAX_DURATION: Span = Span::from_secs(86_400);
/// Longest delay of a link.
const MAX_DELAY: Span = Span::from_secs(1000);
/// Fastest link, in bits a second.
const MAX_RATE: u64 = 10_000_000_000_000;
/// Longest queue, in bytes.
const MAX_QUEUE: f64 = 1e12;
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

struct Builder<'a> {
    file: &'a File,
    text: &'a str,
    graph: Graph,
    generated: usize,
    built: Built,
    chance: Chance,
}

/// Builds a file for a seed; `text` is for the lines in errors.
pub(crate) fn build(file: &File, text: &str, seed: u64) -> Result<Built, ScenarioError> {
    let chance = Chance::new(seed_of(seed, STRUCTURE, 0));
    let (graph, built) = (Graph::default(), Built::default());
    let mut builder = Builder { file, text, graph, generated: 0, built, chance };
    builder.built.plan.seed = seed;
    builder.times()?;
    builder.links()?;
    for (index, flow) in file.flow.iter().enumerate() {
        builder.flow(flow).map_err(|error| builder.locate(error, "flow", index))?;
    }
    for (index, traffic) in file.traffic.iter().enumerate() {
        builder.traffic(traffic).map_err(|error| builder.locate(error, "traffic", index))?;
    }
    for (index, arrivals) in file.arrivals.iter().enumerate() {
        builder.arrivals(arrivals).map_err(|error| builder.locate(error, "arrivals", index))?;
    }
    for (index, cbr) in file.cbr.iter().enumerate() {
        builder.cbr(cbr).map_err(|error| builder.locate(error, "cbr", index))?;
    }
    for (index, event) in file.event.iter().enumerate() {
        builder.event(event).map_err(|error| builder.locate(error, "event", index))?;
    }
    if builder.built.groups.is_empty() && file.arrivals.is_empty() && file.cbr.is_empty() {
        return Err(
            ScenarioError::new("", "nothing sends anything").hint("add a [[flow]], [[arrivals]] or [[cbr]]")
        );
    }
    Ok(builder.finish())
}

impl Builder<'_> {
    /// Adds the line of an error's key in the `index`-th table of this name.
    fn locate(&self, error: ScenarioError, table: &str, index: usize) -> ScenarioError {
        let key = error.key.rsplit('.').next().unwrap_or_default();
        let line = line_of(self.text, table, index, key);
        error.at(line)
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
        let sample = self.file.sample.map_or((measured / 200).max(Span::from_micros(1)), |sample| sample.0);
        if sample.is_zero() || measured.as_nanos() / sample.as_nanos() > 1_000_000 {
            return Err(ScenarioError::new("sample", "too short")
                .hint("at most a million samples fit in a run")
                .at(at("sample")));
        }
        (self.built.warm_up, self.built.end) = (Time::ZERO + warm_up, Time::ZERO + duration);
        self.built.sample = sample;
        Ok(())
    }

    fn links(&mut self) -> Result<(), ScenarioError> {
        if let Some(topology) = &self.file.topology {
            let make = |name: &str, of_host: bool| self.generated_cable(topology, name, of_host);
            self.graph = generate(topology, &make).map_err(|error| self.locate(error, "topology", 0))?;
            self.generated = self.graph.cables.len();
        }
        for (index, link) in self.file.link.iter().enumerate() {
            self.link(link).map_err(|error| self.locate(error, "link", index))?;
        }
        Ok(())
    }

    fn generated_cable(
        &self,
        topology: &Topology,
        name: &str,
        of_host: bool,
    ) -> Result<[LinkConfig; 2], ScenarioError> {
        let mut there = self.file.links.clone();
        let back = LinkDefaults::default();
        match topology {
            Topology::Dumbbell { access_rate, access_delay, .. } if of_host => {
                there.rate = Some(*access_rate);
                there.delay = access_delay.or(there.delay);
            }
            Topology::FatTree { host_queue, .. } | Topology::Bcube { host_queue, .. } if of_host => {
                let (queue, usual) = (host_queue.or(there.queue), there.queue);
                let back = LinkDefaults { queue: usual, ..LinkDefaults::default() };
                there.queue = queue;
                return two_links(name, &there, &back);
            }
            _ => {}
        }
        two_links(name, &there, &back)
    }

    fn link(&mut self, spec: &LinkSpec) -> Result<(), ScenarioError> {
        let usual = &self.file.links;
        let there = LinkDefaults {
            rate: spec.rate.or(usual.rate),
            delay: spec.delay.or(usual.delay),
            queue: spec.queue.or(usual.queue),
            loss: spec.loss.or(usual.loss),
            random_drop: spec.random_drop.or(usual.random_drop),
        };
        let none = LinkDefaults::default();
        let links = two_links(&spec.name, &there, spec.back.as_ref().unwrap_or(&none))?;
        match (self.graph.find_cable(&spec.name), &spec.between) {
            (Some(index), None) if index < self.generated => self.graph.cables[index].links = links,
            (Some(_), _) => {
                return Err(ScenarioError::new(
                    "link.name",
                    format!("there are two links \"{}\"", spec.name),
                )
                .hint("give each link a name of its own"));
            }
            (None, Some([a, b])) if a == b => {
                return Err(ScenarioError::new(
                    format!("link.{}.between", spec.name),
                    format!("a loop: both ends are \"{a}\""),
                )
                .hint("name two different nodes"));
            }
            (None, between) => {
                let nodes = between.as_ref().map(|[a, b]| [self.graph.node(a), self.graph.node(b)]);
                self.graph.add_cable(spec.name.clone(), nodes, links);
            }
        }
        Ok(())
    }

    /// The paths of a flow or of arrivals.
    fn paths(
        &mut self,
        name: &str,
        (paths, from, to): (Option<&[PathSpec]>, Option<&String>, Option<&String>),
    ) -> Result<Vec<PathPlan>, ScenarioError> {
        let key = |key: &str| format!("{name}.{key}");
        match (paths, from, to) {
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
            (None, Some(from), Some(to)) => {
                self.graph.shortest(&key("to"), (from, to), (1, &mut self.chance))
            }
            _ => Err(ScenarioError::new(key("paths"), "where does it go?")
                .hint("give either `paths`, as lists of links, or `from` and `to`, as nodes")),
        }
    }

    fn flow(&mut self, spec: &FlowSpec) -> Result<(), ScenarioError> {
        let name = format!("flow.{}", spec.name);
        let key = |key: &str| format!("{name}.{key}");
        let count = spec.count.unwrap_or(1);
        if count == 0 || self.built.plan.flows.len() as u64 + count > MAX_FLOWS {
            return Err(ScenarioError::new(key("count"), format!("{count} flows"))
                .hint(format!("a scenario has from 1 to {MAX_FLOWS} flows")));
        }
        let given = (spec.paths.as_deref(), spec.from.as_ref(), spec.to.as_ref());
        let paths = self.paths(&name, given)?;
        let config =
            self.config(&name, (spec.profile, spec.rule.as_ref(), spec.scheduler.as_ref()), paths.len())?;
        let supply = match (spec.size, spec.rate) {
            (Some(_), Some(_)) => {
                return Err(ScenarioError::new(key("rate"), "a flow has a size or a rate, not both")
                    .hint("take one of them out"));
            }
            (Some(size), None) if size.0 == 0 => {
                return Err(ScenarioError::new(key("size"), "an empty file").hint("at least \"1 B\""));
            }
            (Some(size), None) => Supply::File(size.0),
            (None, Some(rate)) => {
                let rate = positive(&key("rate"), rate.0)?;
                Supply::Steady { rate, chunk: (rate.bytes_in(Span::from_millis(10))).max(1000) }
            }
            (None, None) => Supply::Bulk,
        };
        let stop = spec.stop.map_or(Time::NEVER, |stop| Time::ZERO + stop.0);
        let within = spec.start_within.map_or(Span::ZERO, |within| within.0);
        for _ in 0..count {
            let start = spec.start.map_or(Span::ZERO, |start| start.0) + within.mul_f64(self.chance.unit());
            let start = Time::ZERO + start;
            if start >= stop {
                return Err(ScenarioError::new(key("stop"), "it stops before it starts")
                    .hint("stop has to be later than start"));
            }
            let flow = FlowPlan { paths: paths.clone(), config: config.clone(), supply, start, stop };
            self.built.plan.flows.push(flow);
        }
        self.built.groups.push(Group { name: spec.name.clone(), count: count as usize, senders: 0 });
        Ok(())
    }

    fn config(
        &self,
        name: &str,
        (profile, rule, scheduler): (Option<Profile>, Option<&String>, Option<&String>),
        paths: usize,
    ) -> Result<Config, ScenarioError> {
        let usual = &self.file.transport;
        let key = |key: &str| format!("{name}.{key}");
        let mut config = match profile.or(usual.profile).unwrap_or_default() {
            Profile::Tcp => Config::tcp(),
            Profile::Default => Config::default(),
        };
        // A profile named with the flow comes with its own rule.
        let usual_rule = usual.rule.as_ref().filter(|_| profile.is_none());
        if let Some(rule) = rule.or(usual_rule) {
            config.cc.rule =
                rule.parse::<RuleKind>().map_err(|error| named(&key("rule"), &error.to_string()))?;
        }
        if let Some(scheduler) = scheduler.or(usual.scheduler.as_ref()) {
            config.scheduler = scheduler.parse().map_err(|error: anabranch_engine::UnknownScheduler| {
                named(&key("scheduler"), &error.to_string())
            })?;
        }
        apply_transport(usual, &mut config)?;
        config.max_paths = paths as u32;
        config.idle_timeout = MAX_DURATION;
        config.connect_timeout = MAX_DURATION;
        Ok(config)
    }

    fn traffic(&mut self, spec: &TrafficSpec) -> Result<(), ScenarioError> {
        let name = format!("traffic.{}", spec.name);
        let key = |key: &str| format!("{name}.{key}");
        let hosts = self.graph.hosts.clone();
        if hosts.len() < 2 {
            return Err(ScenarioError::new(key("pattern"), "there are no hosts")
                .hint("add a [topology] of kind \"fat-tree\", \"bcube\" or \"dumbbell\""));
        }
        let paths = spec.paths.unwrap_or(1);
        if !(1..=MAX_PATHS).contains(&paths) {
            return Err(ScenarioError::new(key("paths"), "out of range").hint(format!("1 to {MAX_PATHS}")));
        }
        let pairs = self.pairs(spec, &hosts)?;
        if (self.built.plan.flows.len() + pairs.len()) as u64 > MAX_FLOWS {
            return Err(ScenarioError::new(key("flows"), format!("{} flows", pairs.len()))
                .hint(format!("a scenario has at most {MAX_FLOWS} flows")));
        }
        let mut senders: Vec<usize> = pairs.iter().map(|(from, _)| *from).collect();
        senders.dedup();
        let within = spec.start_within.map_or(Span::ZERO, |within| within.0);
        let settings = (spec.profile, spec.rule.as_ref(), spec.scheduler.as_ref());
        for (from, to) in &pairs {
            let found = self.host_paths((*from, *to), paths);
            let config = self.config(&name, settings, found.len())?;
            let start = Time::ZERO + within.mul_f64(self.chance.unit());
            let flow = FlowPlan { paths: found, config, supply: Supply::Bulk, start, stop: Time::NEVER };
            self.built.plan.flows.push(flow);
        }
        let group = Group { name: spec.name.clone(), count: pairs.len(), senders: senders.len() };
        self.built.groups.push(group);
        Ok(())
    }

    fn host_paths(&mut self, pair: (usize, usize), most: usize) -> Vec<PathPlan> {
        match self.file.topology {
            Some(Topology::Bcube { n, k, .. }) if most > 1 => {
                bcube_paths(&self.graph, (n, k), pair, (most, &mut self.chance))
            }
            _ => self.graph.shortest_between(pair.0, pair.1, most, &mut self.chance),
        }
    }

    /// Who sends to whom, by sender.
    fn pairs(&mut self, spec: &TrafficSpec, hosts: &[usize]) -> Result<Vec<(usize, usize)>, ScenarioError> {
        let key = |key: &str| format!("traffic.{}.{key}", spec.name);
        let flows = spec.flows.unwrap_or(1);
        if flows == 0 || flows.saturating_mul(hosts.len()) as u64 > MAX_FLOWS {
            return Err(ScenarioError::new(key("flows"), format!("{flows} flows a host"))
                .hint(format!("a scenario has from 1 to {MAX_FLOWS} flows")));
        }
        let share = spec.share.map_or(1.0, |share| share.0);
        let count = ((share * hosts.len() as f64 + 0.5) as usize).max(1);
        if spec.pattern == Pattern::Permutation {
            if flows > 1 {
                return Err(ScenarioError::new(key("flows"), "a permutation has one flow a host")
                    .hint("take `flows` out, or use the pattern \"random\""));
            }
            // A random cycle through all hosts: nobody sends to itself.
            let mut order = hosts.to_vec();
            self.chance.shuffle(&mut order);
            let next = order[1..].iter().chain(&order[..1]);
            return Ok(order.iter().copied().zip(next.copied()).take(count).collect());
        }
        let mut senders = hosts.to_vec();
        if count < hosts.len() {
            self.chance.shuffle(&mut senders);
            senders.truncate(count);
        }
        let mut pairs = Vec::new();
        for sender in senders {
            let mut others = match spec.pattern {
                Pattern::Neighbours => self.graph.host_neighbours(sender),
                _ => hosts.iter().copied().filter(|host| *host != sender).collect(),
            };
            self.chance.shuffle(&mut others);
            pairs.extend(others.into_iter().take(flows).map(|other| (sender, other)));
        }
        Ok(pairs)
    }

    fn arrivals(&mut self, spec: &ArrivalSpec) -> Result<(), ScenarioError> {
        let name = format!("arrivals.{}", spec.name);
        let key = |key: &str| format!("{name}.{key}");
        let given = (spec.paths.as_deref(), spec.from.as_ref(), spec.to.as_ref());
        let paths = self.paths(&name, given)?;
        let config = self.config(&name, (spec.profile, spec.rule.as_ref(), None), paths.len())?;
        let phase = spec.phase.map_or(MAX_DURATION, |phase| phase.0);
        if spec.rate.is_empty() || spec.rate.iter().any(|rate| !(rate.0 > 0.0 && rate.0 <= 1e6)) {
            return Err(ScenarioError::new(key("rate"), "out of range")
                .hint("one or more rates, each above 0 and at most 1000000 /s"));
        }
        if phase.is_zero() || (spec.rate.len() > 1 && spec.phase.is_none()) {
            return Err(ScenarioError::new(key("phase"), "how long does each rate last?")
                .hint("several rates need `phase = \"10 s\"`, which is more than nothing"));
        }
        let shape = spec.shape.unwrap_or(1.5);
        if !(shape > 1.0 && shape <= 100.0) {
            return Err(ScenarioError::new(key("shape"), format!("{shape} gives no mean"))
                .hint("the shape of a Pareto distribution has to be above 1"));
        }
        let mean = spec.size.0.max(1) as f64;
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
            config,
            start: spec.start.map_or(Time::ZERO, |start| Time::ZERO + start.0),
            stop: spec.stop.map_or(Time::NEVER, |stop| Time::ZERO + stop.0),
        });
        Ok(())
    }

    fn cbr(&mut self, spec: &CbrSpec) -> Result<(), ScenarioError> {
        let key = |key: &str| format!("cbr.{}.{key}", spec.name);
        let path = self.graph.path_over(&key("path"), spec.path.links())?;
        let rate = positive(&key("rate"), spec.rate.0)?;
        let packet = spec.packet.map_or(PACKET, |packet| packet.0);
        if !(40..=9000).contains(&packet) {
            return Err(ScenarioError::new(key("packet"), "out of range").hint("from 40 B to 9000 B"));
        }
        let duration = |mean: Span| match spec.bursts {
            BurstShape::Fixed => Duration::Fixed(mean),
            BurstShape::Exponential => Duration::Exponential(mean),
            BurstShape::Uniform => Duration::Uniform(mean),
        };
        let on = match spec.on {
            Some(on) if on.0 < Span::from_micros(1) => {
                return Err(ScenarioError::new(key("on"), "too short").hint("bursts last at least 1 us"));
            }
            Some(on) => duration(on.0),
            None => Duration::Fixed(MAX_DURATION),
        };
        self.built.bursts.push(spec.name.clone());
        self.built.plan.bursts.push(BurstPlan {
            links: path.forward,
            rate,
            packet: packet as u32 - HEADERS,
            on,
            off: spec.off.map_or(Duration::Fixed(Span::ZERO), |off| duration(off.0)),
            start: spec.start.map_or(Time::ZERO, |start| Time::ZERO + start.0),
            stop: spec.stop.map_or(Time::NEVER, |stop| Time::ZERO + stop.0),
        });
        Ok(())
    }

    fn event(&mut self, spec: &EventSpec) -> Result<(), ScenarioError> {
        let cable = self.graph.cable("event.link", &spec.link)? as u32;
        let mut changes = Vec::new();
        changes.extend(spec.down.map(LinkChange::Down));
        if let Some(rate) = spec.rate {
            changes.push(LinkChange::Rate(RateModel::Fixed(positive("event.rate", rate.0)?)));
        }
        if let Some(delay) = spec.delay {
            changes.push(LinkChange::Delay(check_delay("event.delay", delay.0)?));
        }
        changes.extend(spec.loss.map(|loss| LinkChange::Loss(LossModel::Bernoulli(loss.0))));
        if changes.is_empty() {
            return Err(ScenarioError::new("event.at", "nothing happens")
                .hint("say `down`, `rate`, `delay` or `loss`"));
        }
        let ways: &[u32] = match spec.way {
            None => &[0, 1],
            Some(Way::There) => &[0],
            Some(Way::Back) => &[1],
        };
        for what in changes {
            for way in ways {
                let change = Change { at: Time::ZERO + spec.at.0, link: cable * 2 + way, what: what.clone() };
                self.built.plan.script.push(change);
            }
        }
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

fn named(key: &str, message: &str) -> ScenarioError {
    let (message, hint) = message.split_once("; ").unwrap_or((message, ""));
    ScenarioError::new(key, message).hint(hint)
}

fn apply_transport(from: &Transport, config: &mut Config) -> Result<(), ScenarioError> {
    if let Some(every) = from.ack_every {
        if !(1..=64).contains(&every) {
            return Err(ScenarioError::new("transport.ack_every", "out of range").hint("1 to 64"));
        }
        config.ack_every = every;
    }
    if let Some(delay) = from.max_ack_delay {
        config.max_ack_delay = delay.0;
    }
    if let Some(rto) = from.rto_min {
        config.failure.rto.min = rto.0;
        config.failure.rto.max = config.failure.rto.max.max(rto.0);
    }
    if let Some(window) = from.initial_window {
        if !(1..=1000).contains(&window) {
            return Err(
                ScenarioError::new("transport.initial_window", "out of range").hint("1 to 1000 packets")
            );
        }
        config.cc.initial_window = window;
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

fn positive(key: &str, rate: Rate) -> Result<Rate, ScenarioError> {
    if rate == Rate::ZERO || rate.as_bits() > MAX_RATE {
        return Err(ScenarioError::new(key, "out of range").hint(
            "more than nothing, at most 10000 Gbit/s; cut a link with an [[event]] and `down = true`",
        ));
    }
    Ok(rate)
}

fn check_delay(key: &str, delay: Span) -> Result<Span, ScenarioError> {
    if delay > MAX_DELAY {
        return Err(ScenarioError::new(key, "out of range").hint("at most 1000 s"));
    }
    Ok(delay)
}

fn two_links(
    name: &str,
    there: &LinkDefaults,
    back: &LinkDefaults,
) -> Result<[LinkConfig; 2], ScenarioError> {
    let back = LinkDefaults {
        rate: back.rate.or(there.rate),
        delay: back.delay.or(there.delay),
        queue: back.queue.or(there.queue),
        loss: back.loss,
        random_drop: back.random_drop.or(there.random_drop),
    };
    Ok([one_link(name, there)?, one_link(name, &back)?])
}

fn one_link(name: &str, link: &LinkDefaults) -> Result<LinkConfig, ScenarioError> {
    let key = |key: &str| format!("link.{name}.{key}");
    let delay = check_delay(&key("delay"), link.delay.map_or(Span::ZERO, |delay| delay.0))?;
    let rate = link.rate.map(|rate| positive(&key("rate"), rate.0)).transpose()?;
    let bytes = match (link.queue, rate) {
        (None, _) => 1000.0 * PACKET as f64,
        (Some(QueueText::Packets(packets)), _) => packets * PACKET as f64,
        (Some(QueueText::Bytes(bytes)), _) => bytes,
        (Some(QueueText::Bdp(share)), Some(rate)) => {
            (rate.as_bytes_f64() * (delay * 2).as_secs_f64() * share).max(PACKET as f64)
        }
        (Some(QueueText::Bdp(_)), None) => {
            return Err(ScenarioError::new(key("queue"), "a BDP of an unlimited rate")
                .hint("give the link a rate, or its queue in packets"));
        }
    };
    if bytes < PACKET as f64 || bytes > MAX_QUEUE {
        return Err(ScenarioError::new(key("queue"), "no packet fits, or too many")
            .hint("at least \"1 packet\": the one being sent counts too"));
    }
    let random_drop = link.random_drop.unwrap_or(false);
    let queue = QueueModel {
        limit: Limit::Bytes(bytes as u64),
        random_drop: random_drop.then_some(RandomDrop { places: 3 * PACKET, probability: 0.1 }),
        ..QueueModel::default()
    };
    let loss = link.loss.map_or(LossModel::None, |loss| LossModel::Bernoulli(loss.0));
    let rate = rate.map_or(RateModel::Unlimited, RateModel::Fixed);
    Ok(LinkConfig { rate, delay, loss, queue, overhead: HEADERS, ..LinkConfig::default() })
}
