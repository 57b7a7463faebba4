//! The relays of a comparison, and when they were used in both worlds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{RelaySettings, User};
use anabranch_experiments::scenario::{Built, Spread};
use anabranch_net::{PublicKey, Rate};
use anabranch_node::{NodeAt, RelayRoute, keyfile};
use anabranch_overlay::grant::Limits;
use anabranch_sim::network::{FlowPlan, Plan};
use serde::Serialize;

use crate::commands::demo::stage::{RELAY, host};
use crate::errors::Failure;

/// By how many seconds a decision may come earlier or later than in the simulator.
const APART_S: f64 = 3.0;

/// The places, numbers of cables, that lead to a relay: those of a path agent's candidates.
pub(super) fn places(flow: &FlowPlan) -> impl Iterator<Item = usize> {
    let direct = flow.agent.as_ref().map_or(flow.paths.len(), |agent| agent.direct);
    flow.paths.iter().skip(direct).map(|path| path.forward[0] as usize / 2)
}

/// Checks that the relays of a scenario can run over sockets.
pub(super) fn check(built: &Built) -> Result<(), Failure> {
    let plan = &built.plan;
    let refuse = |message: String, hint: &str| Err(Failure::local(message).hint(hint));
    if plan.flows.iter().all(|flow| flow.agent.is_none()) {
        return Ok(());
    }
    if built.groups.iter().any(|group| group.count > 1) {
        return refuse("decisions are compared for single flows".to_owned(), "remove `count`");
    }
    let to_relays: BTreeSet<usize> = plan.flows.iter().flat_map(places).collect();
    let direct = |flow: &FlowPlan| flow.paths.len() - places(flow).count();
    let ways = plan.flows.iter().flat_map(|flow| flow.paths.iter().take(direct(flow)));
    let both = ways.map(|path| path.forward[0] as usize / 2).find(|place| to_relays.contains(place));
    both.map_or(Ok(()), |place| {
        let name = &built.cables[place].name;
        refuse(
            format!("over sockets link \"{name}\" leads to a relay or to the other end"),
            "add a link of its own",
        )
    })
}

/// Running relays, by the place that leads to each.
pub(super) struct Relays(BTreeMap<usize, RelayService>);

impl Relays {
    /// Starts a relay at the end of each candidate's cable, for these users.
    pub(super) async fn start(plan: &Plan, users: &[PublicKey]) -> Result<Self, Failure> {
        let limits = Limits { pids: 1024, rate: Rate::from_bits(u64::MAX), bytes: u64::MAX, highest_tos: 15 };
        let user = |key: &PublicKey| User { name: String::new(), key: *key, limits };
        let mut relays = BTreeMap::new();
        for place in plan.flows.iter().flat_map(places).collect::<BTreeSet<_>>() {
            let settings = RelaySettings::local(host(place, RELAY), users.iter().map(user).collect());
            let relay = RelayService::start(keyfile::fresh()?, &settings).await;
            relays.insert(place, relay.map_err(|error| Failure::bind(&error))?);
        }
        Ok(Self(relays))
    }

    /// The address of the relay at a place, if there is one.
    pub(super) fn at(&self, place: usize) -> Option<SocketAddr> {
        self.0.get(&place)?.addresses().first().copied()
    }

    /// The route through the relay at a place, which is reached at `entry`.
    pub(super) fn route(&self, place: usize, entry: SocketAddr) -> Option<RelayRoute> {
        Some(RelayRoute(vec![NodeAt::new(self.0.get(&place)?.node(), &[entry])]))
    }
}

/// A decision of the path agent in both worlds: when a relay last began or ceased to carry a path, in seconds after the
/// flow's start; `None` if never.
#[derive(Debug, Serialize)]
pub(super) struct DecisionRow {
    pub decision: String,
    /// The mean of the runs with this decision.
    pub simulator_s: Option<f64>,
    pub sockets_s: Option<f64>,
    pub ok: bool,
}

/// All decisions of either world, in the simulator's order.
pub(super) fn decisions(
    simulated: &BTreeMap<String, Spread>,
    measured: &BTreeMap<String, f64>,
    runs: usize,
) -> Vec<DecisionRow> {
    let of_relay = |name: &&String| {
        name.contains(".relay") && (name.ends_with(".opened_s") || name.ends_with(".closed_s"))
    };
    let names: BTreeSet<&String> = simulated.keys().chain(measured.keys()).filter(of_relay).collect();
    let row = |name: &String| {
        // A decision of fewer than half of the runs is chance.
        let simulated = simulated.get(name).filter(|spread| spread.runs > 0);
        let usual = simulated.filter(|spread| spread.runs * 2 >= runs).is_some();
        let (simulator_s, sockets_s) = (simulated.map(|spread| spread.mean), measured.get(name).copied());
        let ok = match (simulator_s, sockets_s) {
            (Some(simulator), Some(sockets)) => (simulator - sockets).abs() <= APART_S,
            (_, None) => !usual,
            (None, Some(_)) => false,
        };
        let decision = name.trim_start_matches("flow.").trim_end_matches("_s").replace('.', " ");
        DecisionRow { decision, simulator_s, sockets_s, ok }
    };
    let mut rows: Vec<_> = names.into_iter().map(row).collect();
    rows.retain(|row| row.simulator_s.is_some() || row.sockets_s.is_some());
    let moment = |row: &DecisionRow| row.simulator_s.or(row.sockets_s).unwrap_or_default();
    rows.sort_by(|a, b| moment(a).total_cmp(&moment(b)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_that_one_world_lacks_or_makes_much_later_is_not_ok() {
        let spread = |mean, runs| Spread { runs, mean, ci95: 0.0 };
        let name = |relay: u32, what: &str| format!("flow.M.relay{relay}.{what}_s");
        let simulated = BTreeMap::from([
            (name(1, "opened"), spread(0.0, 8)),
            (name(1, "closed"), spread(10.0, 8)),
            (name(2, "opened"), spread(11.0, 8)),
            (name(3, "closed"), spread(12.0, 2)),
            (name(4, "closed"), spread(0.0, 0)),
            ("flow.M.goodput_mbit_s".to_owned(), spread(9.0, 8)),
        ]);
        let measured =
            BTreeMap::from([(name(1, "opened"), 0.2), (name(1, "closed"), 14.0), (name(5, "opened"), 20.0)]);
        let rows = decisions(&simulated, &measured, 8);
        let told: Vec<_> = rows.iter().map(|row| (&*row.decision, row.ok)).collect();
        let wanted = [
            ("M relay1 opened", true),
            ("M relay1 closed", false),
            ("M relay2 opened", false),
            ("M relay3 closed", true),
            ("M relay5 opened", false),
        ];
        assert_eq!(told, wanted);
    }
}
