//! Tunnels, and the flows in them.

use anabranch_engine::{Config, MtuConfig};
use anabranch_sim::network::{InTunnel, Supply, TunnelPlan};
use anabranch_tunnel::entry::{Lane, class};
use anabranch_tunnel::session::{MTU, session_config};

use super::sessions::rule_named;
use super::{Builder, HEADERS, MAX_DURATION};
use crate::scenario::error::ScenarioError;
use crate::scenario::graph::unknown;
use crate::scenario::model::{FlowSpec, LaneSpec, Profile, TunnelSpec};

/// UDP payload of the largest inner packet.
const INNER: u16 = MTU - HEADERS as u16;

impl Builder<'_> {
    pub(super) fn tunnel(&mut self, spec: &TunnelSpec) -> Result<(), ScenarioError> {
        let name = format!("tunnel.{}", spec.name);
        let given = (spec.paths.as_deref(), spec.from.as_ref(), spec.to.as_ref());
        let paths = self.paths(&name, given)?;
        let mut config = session_config();
        if let Some(rule) = &spec.rule {
            config.cc.rule = rule_named(&format!("{name}.rule"), rule)?;
        }
        if spec.reorder == Some(false) {
            config.datagrams.ordered_classes &= !class::ORDERED;
        }
        config.max_paths = paths.len() as u32;
        (config.idle_timeout, config.connect_timeout) = (MAX_DURATION, MAX_DURATION);
        self.built.tunnels.push(spec.name.clone());
        self.built.plan.tunnels.push(TunnelPlan { paths, config: config.into() });
        Ok(())
    }

    /// The tunnel of a flow and its lane there; `None` without a tunnel. Its packets are made small enough for it.
    pub(super) fn in_tunnel(
        &self,
        spec: &FlowSpec,
        supply: &Supply,
        config: &mut Config,
    ) -> Result<Option<InTunnel>, ScenarioError> {
        let key = |key: &str| format!("flow.{}.{key}", spec.name);
        let Some(name) = &spec.tunnel else {
            return match spec.lane {
                Some(_) => Err(ScenarioError::new(key("lane"), "the flow is in no tunnel")
                    .hint("name its `tunnel`, or remove `lane`")),
                None => Ok(None),
            };
        };
        let known = self.file.tunnel.iter().position(|tunnel| tunnel.name == *name);
        let Some(index) = known else {
            return Err(unknown(&key("tunnel"), "tunnel", name, self.built.tunnels.iter()));
        };
        let given = [
            ("paths", spec.paths.is_some()),
            ("from", spec.from.is_some()),
            ("to", spec.to.is_some()),
            ("agent", spec.agent.is_some()),
            ("scheduler", spec.scheduler.is_some()),
            ("paths_within", spec.paths_within.is_some()),
        ];
        if let Some((other, _)) = given.iter().find(|(_, given)| *given) {
            return Err(ScenarioError::new(key(other), "a flow in a tunnel has no paths of its own")
                .hint("remove it, or `tunnel`"));
        }
        config.mtu = MtuConfig { base: config.mtu.base.min(INNER), max: INNER };
        let is_tcp = spec.profile.or(self.file.transport.profile).unwrap_or_default() == Profile::Tcp;
        let lane = match spec.lane.unwrap_or_default() {
            // As deployed: the stream lane takes the connections that it can end.
            LaneSpec::Auto if is_tcp && self.file.tunnel[index].streams != Some(false) => None,
            LaneSpec::Auto => Some(Lane::Auto),
            LaneSpec::Stream => None,
            LaneSpec::Routed => Some(Lane::Routed),
            LaneSpec::Striped => Some(Lane::Striped),
            LaneSpec::LowLatency => Some(Lane::LowLatency),
            LaneSpec::Redundant => Some(Lane::Redundant),
        };
        let is_plain = matches!(supply, Supply::Bulk | Supply::File(_)) && spec.stop.is_none();
        if lane.is_none() && !is_plain {
            return Err(ScenarioError::new(key("lane"), "the stream lane carries endless data and files")
                .hint("take another lane, or `streams = false` in the tunnel"));
        }
        if lane.is_none() && spec.rule.is_some() {
            return Err(ScenarioError::new(key("rule"), "the stream lane has the tunnel's window rule")
                .hint("set the tunnel's `rule`, or take another lane"));
        }
        Ok(Some(InTunnel { tunnel: index as u32, lane, is_tcp }))
    }
}
