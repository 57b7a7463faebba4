//! Cables, declared or generated: rates, delays, queues, loss.

use std::sync::Arc;

use anabranch_link::{CodelConfig, Limit, LinkConfig, LossModel, QueueModel, RandomDrop, RateModel};
use anabranch_wire::{Rate, Span};

use super::{Builder, HEADERS, mean_rate};
use crate::scenario::error::{ScenarioError, in_range, line_of, nearest};
use crate::scenario::generate::generate;
use crate::scenario::model::{Aqm, LinkDefaults, LinkSpec, RateSpec, Topology};
use crate::scenario::traces::Traces;
use crate::scenario::units::{PACKET, QueueText};

/// Longest delay of a link.
const MAX_DELAY: Span = Span::from_secs(1000);
/// Fastest link, in bits a second.
const MAX_RATE: u64 = 10_000_000_000_000;
const QUEUE: QueueText = QueueText::Bytes(QUEUE_BYTES);
const QUEUE_BYTES: f64 = 1000.0 * PACKET as f64;
/// Longest queue, in bytes.
const MAX_QUEUE: f64 = 1e12;

impl Builder<'_> {
    pub(super) fn links(&mut self) -> Result<(), ScenarioError> {
        if let Some(topology) = &self.file.topology {
            let make = |name: &str, of_host: bool| self.generated_cable(topology, name, of_host);
            self.graph = generate(topology, &make).map_err(|error| self.locate(error, "topology", 0))?;
            self.generated = self.graph.cables.len();
        }
        self.check_defaults().map_err(|error| self.locate(error, "links", 0))?;
        let file = self.file;
        self.each("link", &file.link, Self::link)
    }

    /// Checks the defaults of `[links]`, even if every link overrides them.
    fn check_defaults(&self) -> Result<(), ScenarioError> {
        let usual = &self.file.links;
        rate_model("links.rate", usual.rate.as_ref(), self.traces)?;
        usual.delay.map_or(Ok(Span::ZERO), |delay| check_delay("links.delay", delay.0))?;
        match usual.queue {
            Some(QueueText::Bytes(bytes)) => check_length("links.queue", bytes),
            // Its length depends on the link.
            Some(QueueText::Bdp(share)) if share > 0.0 => Ok(()),
            Some(QueueText::Bdp(_)) => check_length("links.queue", 0.0),
            None => Ok(()),
        }
    }

    fn generated_cable(
        &self,
        topology: &Topology,
        name: &str,
        of_host: bool,
    ) -> Result<[LinkConfig; 2], ScenarioError> {
        if let (Topology::Dumbbell { access_rate, access_delay, .. }, true) = (topology, of_host) {
            link_rate("topology.access_rate", access_rate.0)?;
            check_delay("topology.access_delay", access_delay.map_or(Span::ZERO, |delay| delay.0))?;
        }
        let [there, back] = self.defaults(of_host);
        two_links(name, [there.clone(), back], self.traces).map_err(|mut error| {
            let is_of_hosts = of_host && there.queue != self.file.links.queue;
            if is_of_hosts && error.key == format!("link.{name}.queue") {
                error.key = "topology.host_queue".to_owned();
            }
            if error.key == format!("link.{name}") {
                let hint = "give all of them one in [links], such as `rate = \"100 Mbit/s\"`";
                error = ScenarioError::new("links.rate", error.message).hint(hint);
                error = error.at(line_of(self.text, "links", 0, ""));
            }
            error
        })
    }

    /// The defaults of a link, there and back; those of a generated host link differ.
    fn defaults(&self, of_host: bool) -> [LinkDefaults; 2] {
        let (mut there, mut back) = (self.file.links.clone(), LinkDefaults::default());
        match self.file.topology.as_ref().filter(|_| of_host) {
            Some(Topology::Dumbbell { access_rate, access_delay, .. }) => {
                there.rate = Some(RateSpec::Fixed(*access_rate));
                there.delay = access_delay.or(there.delay);
            }
            Some(Topology::FatTree { host_queue, .. } | Topology::Bcube { host_queue, .. }) => {
                back.queue = Some(there.queue.unwrap_or(QUEUE));
                there.queue = host_queue.or(there.queue);
            }
            _ => {}
        }
        [there, back]
    }

    fn link(&mut self, spec: &LinkSpec) -> Result<(), ScenarioError> {
        let known = self.graph.find_cable(&spec.name).filter(|_| spec.between.is_none());
        let [usual, usual_back] = self.defaults(known.is_some_and(|known| self.graph.cables[known].of_host));
        let there = LinkDefaults {
            rate: spec.rate.clone().or(usual.rate),
            delay: spec.delay.or(usual.delay),
            queue: spec.queue.or(usual.queue),
            loss: spec.loss.or(usual.loss),
            random_drop: spec.random_drop.or(usual.random_drop),
            aqm: spec.aqm.or(usual.aqm),
        };
        let mut back = spec.back.clone().unwrap_or_default();
        // A link's queue applies to both directions.
        back.queue = back.queue.or(spec.queue).or(usual_back.queue);
        let links = two_links(&spec.name, [there, back], self.traces)?;
        match (self.graph.find_cable(&spec.name), &spec.between) {
            (Some(index), None) if index < self.generated => self.graph.cables[index].links = links,
            (Some(index), Some(_)) if index < self.generated => {
                return Err(ScenarioError::new(
                    format!("link.{}.between", spec.name),
                    "a link of the topology has its nodes",
                )
                .hint("take `between` out, or give the link a name of its own"));
            }
            (Some(_), _) => {
                let message = format!("there are two links \"{}\"", spec.name);
                return Err(ScenarioError::new("link.name", message).hint("give each a name of its own"));
            }
            (None, Some([a, b])) if a == b => {
                return Err(ScenarioError::new(
                    format!("link.{}.between", spec.name),
                    format!("a loop: both ends are \"{a}\""),
                )
                .hint("name two different nodes"));
            }
            (None, None) if self.file.topology.is_some() && !self.is_crossed(&spec.name) => {
                let names: Vec<&str> =
                    self.graph.cables[..self.generated].iter().map(|cable| cable.name.as_str()).collect();
                let message = format!("the topology makes no link \"{}\", and no path crosses it", spec.name);
                let hint = match nearest(&spec.name, &names) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => "name a generated link, or give it nodes: `between = [\"…\", \"…\"]`".to_owned(),
                };
                return Err(ScenarioError::new("link.name", message).hint(hint));
            }
            (None, between) => {
                let nodes = between.as_ref().map(|[a, b]| [self.graph.node(a), self.graph.node(b)]);
                self.graph.add_cable(spec.name.clone(), nodes, links);
            }
        }
        Ok(())
    }

    /// Whether a declared path crosses a link of this name.
    fn is_crossed(&self, name: &str) -> bool {
        let flows = self.file.flow.iter().flat_map(|flow| flow.paths.iter().flatten());
        let arrivals = self.file.arrivals.iter().flat_map(|arrivals| arrivals.paths.iter().flatten());
        let mut paths = flows.chain(arrivals).chain(self.file.cbr.iter().map(|cbr| &cbr.path));
        paths.any(|path| path.links().iter().any(|link| link == name))
    }
}

/// Checks a sending rate.
pub(super) fn positive(key: &str, rate: Rate) -> Result<Rate, ScenarioError> {
    let is_good = (1..=MAX_RATE).contains(&rate.as_bits());
    in_range(is_good, key, "from 1 bit/s to 10000 Gbit/s").map(|()| rate)
}

/// The time from one packet of `bytes` to the next, in whole nanoseconds; an error if rounding changes the rate by 1 %.
pub(super) fn spaced(key: &str, rate: Rate, bytes: u64) -> Result<Span, ScenarioError> {
    let every = rate.time_for(bytes);
    let kept = bytes as f64 * 8e9 / every.as_nanos().max(1) as f64;
    if kept < rate.as_bits() as f64 * 0.99 {
        return Err(ScenarioError::new(key, format!("{bytes} B every {every} are {:.1} Gbit/s", kept / 1e9))
            .hint("times are whole nanoseconds: larger packets, or a lower rate"));
    }
    Ok(every)
}

pub(super) fn link_rate(key: &str, rate: Rate) -> Result<Rate, ScenarioError> {
    positive(key, rate).map_err(|mut error| {
        if rate == Rate::ZERO {
            error.hint.push_str("; cut a link with an [[event]] and `down = true`");
        }
        error
    })
}

pub(super) fn check_delay(key: &str, delay: Span) -> Result<Span, ScenarioError> {
    in_range(delay <= MAX_DELAY, key, "at most 1000 s").map(|()| delay)
}

fn check_length(key: &str, bytes: f64) -> Result<(), ScenarioError> {
    let error = |message: &str, hint: &str| Err(ScenarioError::new(key, message).hint(hint));
    if bytes < PACKET as f64 {
        let message = format!("no packet of {PACKET} B fits");
        return error(&message, "at least \"1 packet\": the one being sent counts too");
    }
    if bytes > MAX_QUEUE {
        return error("more than any memory holds", "at most \"1000 GB\"");
    }
    Ok(())
}

/// The links there and back of a cable.
fn two_links(
    name: &str,
    [there, back]: [LinkDefaults; 2],
    traces: &Traces,
) -> Result<[LinkConfig; 2], ScenarioError> {
    let back = LinkDefaults {
        rate: back.rate.or(there.rate.clone()),
        delay: back.delay.or(there.delay),
        queue: back.queue.or(there.queue),
        loss: back.loss,
        random_drop: back.random_drop.or(there.random_drop),
        aqm: back.aqm.or(there.aqm),
    };
    Ok([one_link(name, &there, traces)?, one_link(&format!("{name}.back"), &back, traces)?])
}

fn rate_model(key: &str, rate: Option<&RateSpec>, traces: &Traces) -> Result<RateModel, ScenarioError> {
    Ok(match rate {
        None => RateModel::Unlimited,
        Some(RateSpec::Fixed(rate)) => RateModel::Fixed(link_rate(key, rate.0)?),
        Some(RateSpec::Trace(spec)) => {
            let trace = traces.get(key, &spec.trace)?;
            RateModel::Trace(if spec.repeat == Some(false) { Arc::new(trace.once()) } else { trace })
        }
    })
}

fn one_link(name: &str, link: &LinkDefaults, traces: &Traces) -> Result<LinkConfig, ScenarioError> {
    let key = |key: &str| format!("link.{name}.{key}");
    let delay = check_delay(&key("delay"), link.delay.map_or(Span::ZERO, |delay| delay.0))?;
    let rate = rate_model(&key("rate"), link.rate.as_ref(), traces)?;
    if rate == RateModel::Unlimited && delay == Span::ZERO {
        // Packets would circle without time passing.
        return Err(ScenarioError::new(format!("link.{name}"), "neither a rate nor a delay")
            .hint("give it at least one of them"));
    }
    let loss = link.loss.map_or(LossModel::None, |loss| LossModel::Bernoulli(loss.0));
    let mut built = LinkConfig { rate, delay, loss, overhead: HEADERS, ..LinkConfig::default() };
    let bytes = match (link.queue.unwrap_or(QUEUE), mean_rate(&built)) {
        (QueueText::Bytes(bytes), _) => bytes,
        (QueueText::Bdp(share), _) if share <= 0.0 => 0.0,
        (QueueText::Bdp(share), Some(rate)) => {
            (rate.as_bytes_f64() * (delay * 2).as_secs_f64() * share).max(PACKET as f64)
        }
        // Nothing waits at an unlimited link until an event gives it a rate.
        (QueueText::Bdp(_), None) => QUEUE_BYTES,
    };
    check_length(&key("queue"), bytes)?;
    let random_drop = link.random_drop.unwrap_or(false);
    built.queue = QueueModel {
        limit: Limit::Bytes(bytes as u64),
        random_drop: random_drop.then_some(RandomDrop { places: 3 * PACKET, probability: 0.1 }),
        codel: (link.aqm == Some(Aqm::Codel)).then(CodelConfig::default),
        ..QueueModel::default()
    };
    Ok(built)
}
