//! Below sessions: packets striped over routes (PSMC [T3, T6], SAFIRE [S5]), and flows routed to the path with the highest
//! promised rate (SAFIRE §III.B [S2]).

use anabranch_engine::{BufferSize, Lane};
use anabranch_link::{LinkConfig, LossModel};
use anabranch_wire::{Rate, Span};

use super::{Builder, mean_rate};
use crate::scenario::error::ScenarioError;
use crate::scenario::model::{FlowSpec, ReorderBuffer, Striping, StripingScheme};
use crate::scenario::units::PACKET;
use anabranch_sim::network::{PathPlan, StripingPlan};

/// Bytes of data in a segment, for the rate that a path promises a TCP.
const SEGMENT: f64 = 1460.0;
/// Largest reorder buffer, in packets.
const MOST_WAITING: u64 = 100_000;
/// The scale of weights: a ratio of rates as whole numbers.
const WEIGHTS: f64 = 1000.0;

/// Properties of a path.
#[derive(Clone, Copy, Debug)]
struct PathMetrics {
    capacity: Rate,
    /// Delays of its links, plus the transmission time of a packet on each.
    one_way: Span,
    back: Span,
    loss: f64,
}

impl PathMetrics {
    /// The rate of one TCP on it: `α ≈ min(C, k·MSS/(RTT·√ε))`, k = 1 (SAFIRE eq. 1).
    fn promise(&self) -> f64 {
        let rtt = (self.one_way + self.back).as_secs_f64();
        let limit = SEGMENT * 8.0 / (rtt * self.loss.sqrt());
        if limit.is_finite() {
            limit.min(self.capacity.as_bits() as f64)
        } else {
            self.capacity.as_bits() as f64
        }
    }
}

/// The path of each flow, one after the other: the one with the highest `α/(N + 1)`, where N counts its flows.
fn route_flows(promises: &[f64], flows: usize) -> Vec<usize> {
    let mut counts = vec![0_u32; promises.len()];
    let mut route = || {
        let share = |path: usize| promises[path] / f64::from(counts[path] + 1);
        let best = (0..promises.len()).rev().max_by(|a, b| share(*a).total_cmp(&share(*b)))?;
        counts[best] += 1;
        Some(best)
    };
    (0..flows).filter_map(|_| route()).collect()
}

impl Builder<'_> {
    /// The paths of each session of a flow, and the striping below it.
    pub(super) fn below(
        &self,
        spec: &FlowSpec,
        (paths, sessions): (&[PathPlan], usize),
    ) -> Result<(Vec<Vec<PathPlan>>, Option<StripingPlan>), ScenarioError> {
        let key = |key: &str| format!("flow.{}.{key}", spec.name);
        match (spec.striping, spec.flow_routing.unwrap_or(false)) {
            (Some(_), true) => Err(ScenarioError::new(
                key("flow_routing"),
                "packets are striped or flows are routed, not both",
            )
            .hint("take `striping` or `flow_routing` out")),
            (None, true) => {
                let promises: Vec<f64> = paths.iter().map(|path| self.metrics(path).promise()).collect();
                let routed = route_flows(&promises, sessions);
                Ok((routed.into_iter().map(|path| vec![paths[path].clone()]).collect(), None))
            }
            (None, false) => Ok((vec![paths.to_vec(); sessions], None)),
            (Some(striping), false) => {
                let plan = self.striping(&key, striping, paths)?;
                Ok((vec![paths.to_vec(); sessions], Some(plan)))
            }
        }
    }

    fn striping(
        &self,
        key: &dyn Fn(&str) -> String,
        striping: Striping,
        paths: &[PathPlan],
    ) -> Result<StripingPlan, ScenarioError> {
        let metrics: Vec<PathMetrics> = paths.iter().map(|path| self.metrics(path)).collect();
        let buffer = match (striping.buffer, striping.packets) {
            (ReorderBuffer::None, None) => None,
            (ReorderBuffer::Adaptive, None) => Some(BufferSize::Adaptive { packet: PACKET as u32 }),
            (ReorderBuffer::Fixed, Some(packets)) if (1..=MOST_WAITING).contains(&packets) => {
                Some(BufferSize::Fixed(packets as usize))
            }
            (ReorderBuffer::Fixed, packets) => {
                let message = if packets.is_some() { "out of range" } else { "how many may wait?" };
                return Err(ScenarioError::new(key("striping.packets"), message)
                    .hint(format!("a fixed buffer needs `packets`, from 1 to {MOST_WAITING}")));
            }
            (_, Some(_)) => {
                return Err(ScenarioError::new(key("striping.packets"), "the buffer has no fixed size")
                    .hint("write `buffer = \"fixed\"`, or take `packets` out"));
            }
        };
        let least = metrics.iter().map(|path| path.capacity.as_bits()).min().unwrap_or(1).max(1) as f64;
        let weight = |path: &PathMetrics| match striping.scheme {
            StripingScheme::RoundRobin => 1,
            StripingScheme::Weighted => (path.capacity.as_bits() as f64 / least * WEIGHTS) as i64,
        };
        Ok(StripingPlan {
            weights: metrics.iter().map(weight).collect(),
            buffer,
            lanes: metrics.iter().map(|path| Lane { delay: path.one_way, rate: path.capacity }).collect(),
            back: metrics.first().map_or(Span::ZERO, |path| path.back),
        })
    }

    fn metrics(&self, path: &PathPlan) -> PathMetrics {
        let link = |index: &u32| &self.graph.cables[*index as usize / 2].links[*index as usize % 2];
        let capacity = path.forward.iter().map(|index| rate_of(link(index))).min().unwrap_or(Rate::ZERO);
        let passes: f64 = path.forward.iter().map(|index| 1.0 - loss_of(link(index))).product();
        let takes = |links: &[u32]| {
            let each = links.iter().map(link);
            each.fold(Span::ZERO, |sum, link| sum + link.delay + rate_of(link).time_for(PACKET))
        };
        let back = path.back.iter().map(link).fold(Span::ZERO, |sum, link| sum + link.delay);
        PathMetrics { capacity, one_way: takes(&path.forward), back, loss: 1.0 - passes }
    }
}

fn rate_of(link: &LinkConfig) -> Rate {
    mean_rate(link).unwrap_or(Rate::from_bits(u64::MAX / 8))
}

fn loss_of(link: &LinkConfig) -> f64 {
    if let LossModel::Bernoulli(loss) = link.loss { loss } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_spread_over_equal_paths_and_leave_a_lossy_one_that_promises_less_than_a_half() {
        assert_eq!(route_flows(&[1.0, 1.0, 1.0], 3), [0, 1, 2]);
        assert_eq!(route_flows(&[1.0, 1.0, 0.4], 3), [0, 1, 0]);
        assert_eq!(route_flows(&[1.0, 1.0, 2.0], 3), [2, 0, 1], "of equal shares the first path's");
    }

    #[test]
    fn a_path_promises_its_capacity_or_what_loss_leaves_of_it() {
        let path = |millis: u64, loss: f64| {
            let (one_way, back) = (Span::from_millis(millis), Span::from_millis(millis));
            PathMetrics { capacity: Rate::from_mbit(1.0), one_way, back, loss }.promise()
        };
        assert_eq!((path(50, 0.0), path(1, 0.05)), (1e6, 1e6));
        let lossy = path(50, 0.2);
        assert!((lossy - 1460.0 * 8.0 / (0.1 * 0.2_f64.sqrt())).abs() < 1.0, "{lossy}");
    }
}
