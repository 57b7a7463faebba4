//! Plain packets at a constant rate, changes to links, and detectors of shared bottlenecks.

use anabranch_engine::{FastRetransmits, Lag};
use anabranch_link::{Limit, LossModel, RateModel};
use anabranch_wire::{Span, Time};

use super::links::{check_delay, link_rate, positive, spaced};
use super::{Builder, Detector, HEADERS, MAX_DURATION, Times};
use crate::scenario::error::{ScenarioError, in_range};
use crate::scenario::graph::unknown;
use crate::scenario::model::{BurstShape, CbrSpec, DetectorSpec, EventSpec, LagSpec, Way};
use crate::scenario::units::PACKET;
use anabranch_sim::network::{BurstPlan, Change, Duration, LinkChange};

/// Most events of a path that a detector without a memory limit stores.
const MOST_EVENTS: usize = 100_000;

impl Builder<'_> {
    pub(super) fn cbr(&mut self, spec: &CbrSpec) -> Result<(), ScenarioError> {
        let key = |key: &str| format!("cbr.{}.{key}", spec.name);
        let path = self.graph.path_over(&key("path"), spec.path.links())?;
        let rate = positive(&key("rate"), spec.rate.0)?;
        let packet = spec.packet.map_or(PACKET, |packet| packet.0);
        in_range((40..=9000).contains(&packet), key("packet"), "from 40 B to 9000 B")?;
        let duration = |mean: Span| match spec.bursts.unwrap_or_default() {
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
        self.check_times(&key, Times { start: spec.start, within: None, stop: spec.stop })?;
        let start = spec.start.map_or(Time::ZERO, |start| Time::ZERO + start.0);
        let stop = spec.stop.map_or(Time::NEVER, |stop| Time::ZERO + stop.0);
        if spec.on.is_some() != spec.off.is_some() {
            return Err(ScenarioError::new(key("on"), "`on` and `off` belong together")
                .hint("give both, such as `on = \"10 ms\"` and `off = \"100 ms\"`, or none"));
        }
        let limit = |link: &u32| self.graph.cables[*link as usize / 2].links[*link as usize % 2].queue.limit;
        let fits = |link: &&u32| !matches!(limit(link), Limit::Bytes(most) if most < packet);
        if let Some(link) = path.forward.iter().find(|link| !fits(link)) {
            let name = &self.graph.cables[*link as usize / 2].name;
            return Err(ScenarioError::new(
                key("packet"),
                format!("no packet of {packet} B fits the queue of link \"{name}\""),
            )
            .hint("smaller packets, or a longer queue there"));
        }
        let every = spaced(&key("rate"), rate, packet)?;
        self.built.bursts.push(spec.name.clone());
        self.built.plan.bursts.push(BurstPlan {
            links: path.forward,
            every,
            packet: packet as u32 - HEADERS,
            on,
            off: spec.off.map_or(Duration::Fixed(Span::ZERO), |off| duration(off.0)),
            start,
            stop,
        });
        Ok(())
    }

    pub(super) fn event(&mut self, spec: &EventSpec) -> Result<(), ScenarioError> {
        let cable = self.graph.cable("event.link", &spec.link)? as u32;
        if Time::ZERO + spec.at.0 >= self.built.end {
            return Err(ScenarioError::new("event.at", "after the end of the run")
                .hint("`at` is less than `duration`"));
        }
        let mut changes = Vec::new();
        changes.extend(spec.down.map(LinkChange::Down));
        if let Some(rate) = spec.rate {
            changes.push(LinkChange::Rate(RateModel::Fixed(link_rate("event.rate", rate.0)?)));
        }
        if let Some(delay) = spec.delay {
            changes.push(LinkChange::Delay(check_delay("event.delay", delay.0)?));
        }
        changes.extend(spec.loss.map(|loss| LinkChange::Loss(LossModel::Bernoulli(loss.0))));
        if changes.is_empty() {
            return Err(
                ScenarioError::new("event", "nothing happens").hint("say `down`, `rate`, `delay` or `loss`")
            );
        }
        for what in changes {
            let ways: &[u32] = match (spec.way, &what) {
                // As in a [[link]], loss without a direction applies there.
                (None, LinkChange::Loss(_)) | (Some(Way::There), _) => &[0],
                (None, _) => &[0, 1],
                (Some(Way::Back), _) => &[1],
            };
            for way in ways {
                let kind = match what {
                    LinkChange::Down(_) => 0,
                    LinkChange::Rate(_) => 1,
                    LinkChange::Delay(_) => 2,
                    LinkChange::Loss(_) => 3,
                };
                if !self.changed.insert((spec.at.0, cable * 2 + way, kind)) {
                    return Err(ScenarioError::new(
                        "event.at",
                        "another event changes the same at the same time",
                    )
                    .hint("take one of them out, or let them follow each other"));
                }
                let change = Change { at: Time::ZERO + spec.at.0, link: cable * 2 + way, what: what.clone() };
                self.built.plan.script.push(change);
            }
        }
        Ok(())
    }

    /// Whether a flow's session sees all its paths.
    fn sees_paths(&self, name: &str) -> bool {
        !self.file.flow.iter().any(|flow| flow.name == name && flow.tunnel.is_some())
    }

    pub(super) fn detector(&mut self, spec: &DetectorSpec) -> Result<(), ScenarioError> {
        let key = |key: &str| format!("detector.{}.{key}", spec.name);
        let mut first = 0;
        let known = self.built.groups.iter().find_map(|group| {
            first += group.count;
            (group.name == spec.flow).then_some((group.count, first - group.count))
        });
        let flow = match known {
            // A flow with one path is accepted and not measured: a sweep may vary its paths.
            Some((1, flow)) if self.sees_paths(&spec.flow) => flow,
            Some((1, _)) => {
                let message = format!("\"{}\" sees one path", spec.flow);
                return Err(ScenarioError::new(key("flow"), message).hint("name a flow without `tunnel`"));
            }
            Some(_) => {
                return Err(ScenarioError::new(key("flow"), format!("\"{}\" is several flows", spec.flow))
                    .hint("name a [[flow]] without `count`"));
            }
            None => {
                let single = self.built.groups.iter().filter(|group| group.count == 1);
                let single = single.map(|group| &group.name).filter(|name| self.sees_paths(name));
                return Err(unknown(&key("flow"), "single flow", &spec.flow, single));
            }
        };
        let mut rule = FastRetransmits::default();
        if let Some(interval) = spec.interval {
            let is_good = !interval.0.is_zero() && interval.0 <= Span::from_secs(10);
            in_range(is_good, key("interval"), "more than nothing, at most 10 s")?;
            rule.interval = interval.0;
        }
        for (name, from, to) in
            [("threshold", spec.threshold, &mut rule.threshold), ("zeta", spec.zeta, &mut rule.zeta)]
        {
            if let Some(share) = from {
                in_range(share > 0.0 && share < 1.0, key(name), "between 0 and 1")?;
                *to = share;
            }
        }
        if spec.lag == Some(LagSpec::AsPrinted) {
            rule.lag = Lag::AsPrinted;
        }
        if spec.forgets == Some(false) {
            (rule.kept, rule.memory) = (MOST_EVENTS, Span::MAX);
        }
        self.built.detectors.push(Detector { name: spec.name.clone(), flow, rule });
        Ok(())
    }
}
