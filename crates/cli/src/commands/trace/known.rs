//! Asks controllers about the relays that they grant: distances between relays, and to the node if it is a relay too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_daemon::sensing::{self, Sensing};
use anabranch_net::{Endpoint, PublicKey};
use anabranch_node::{Controllers, NodeAt, keyfile};
use anabranch_overlay::controller::message::GrantedRelay;
use anabranch_overlay::sense::{Figures, SensorConfig, WayLimits, best_ways};
use anabranch_secure::RelayHint;
use anabranch_wire::{Rate, Span};
use tokio::task::JoinHandle;

use super::args::{Chain, TraceArgs};
use super::traces::Trace;
use crate::errors::{Failure, Kind};

/// The most routes over granted relays to show, and the most relays near each end to try in pairs.
const LIMITS: WayLimits = WayLimits { most: 8, near: 8 };

/// Time for relays to make missing measurements: a heartbeat in each direction and a few probes.
const PATIENCE: Duration = Duration::from_secs(6);
/// Time per packet train: trains to relays run one after the other and take about a second each.
const PATIENCE_FOR_A_TRAIN: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(500);
/// Packet trains from here may use a quarter of this rate on average: 193 kB in 1.5 s.
const FOR_TRAINS: SensorConfig =
    SensorConfig { budget: Rate::from_bits(4_000_000), interval: Span::from_secs(2) };

/// A query to controllers, while relays measure.
pub struct Asking(Option<Asked>);

struct Asked {
    controllers: Controllers,
    relays: Vec<RelayHint>,
    /// Sends packet trains from here.
    sensing: Option<(Arc<Sensing>, JoinHandle<()>)>,
    endpoint: Arc<Endpoint>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.sensing.iter().for_each(|(_, pump)| pump.abort());
    }
}

impl Asking {
    /// Asks the controllers which relays they grant. Does nothing without controllers.
    pub async fn begin(args: &TraceArgs) -> Result<Self, Failure> {
        if args.granted.controllers.is_empty() {
            return Ok(Self(None));
        }
        let node = args.granted.node().key(args.key.clone()).start().await?;
        let endpoint = node.endpoint().clone();
        let relays = of_the_nodes_kind(node.grants().relays(), args.node.0);
        let controllers = Controllers::new(endpoint.clone(), args.granted.controllers.clone());
        let mut sensing = None;
        if args.capacity {
            let sensor = Arc::new(Sensing::new(&endpoint, FOR_TRAINS, *keyfile::random()?));
            let there =
                |relay: &RelayHint| GrantedRelay { node: relay.node, addresses: relay.addresses.clone() };
            sensor.want(&relays.iter().map(there).collect::<Vec<_>>());
            sensing = Some((sensor.clone(), tokio::spawn(sensing::pump(sensor))));
        }
        Ok(Self(Some(Asked { controllers, relays, sensing, endpoint })))
    }

    /// The relays' addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().flat_map(|asked| addresses(&asked.relays))
    }

    /// The controllers' answers, once relays have measured or the time is up.
    pub async fn known(&self, args: &TraceArgs) -> Result<Known, Failure> {
        let Some(asked) = &self.0 else { return Ok(Known::default()) };
        let begin = Instant::now();
        loop {
            let known = asked.once(args.node.0).await?;
            let is_measured = known.figures.values().all(|figures| figures.estimated.is_none());
            let (waited, all) = (begin.elapsed(), asked.relays.len());
            // A relay that has not answered a probe by now will not answer a train.
            let answering = all - known.silent.len();
            let is_carried = !args.capacity
                || known.carried.len() == all
                || waited > PATIENCE && known.carried.len() >= answering;
            let trains = if args.capacity { answering as u32 } else { 0 };
            let is_enough = is_carried && (is_measured || waited > PATIENCE);
            if is_enough || waited > PATIENCE + PATIENCE_FOR_A_TRAIN * trains {
                asked.endpoint.close().await;
                return Ok(known);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Asked {
    async fn once(&self, node: IpAddr) -> Result<Known, Failure> {
        let nodes = self.relays.iter().map(|relay| relay.node).collect();
        let (figures, end) = self.controllers.figures(nodes, Some(node)).await.map_err(|error| {
            let failure =
                Failure::new(Kind::Unreachable, format!("what is between relays is not known: {error}"));
            failure.hint("is `anabranch controller` running there, in this version or a later one?")
        })?;
        let place = |relay: &RelayHint| Some((relay.addresses.first()?.ip(), relay.node));
        let mut keys: BTreeMap<IpAddr, Vec<PublicKey>> = BTreeMap::new();
        for (address, key) in self.relays.iter().filter_map(place).chain(end.map(|end| (node, end))) {
            keys.entry(address).or_default().push(key);
        }
        let figures = figures.iter().map(|told| ((told.from, told.to), told.figures())).collect();
        let links = self.sensing.as_ref().map(|(sensing, _)| sensing.status().0).unwrap_or_default();
        let answers = |relay: &RelayHint| links.iter().any(|link| link.to == relay.node && link.up);
        let measured = if self.sensing.is_some() { &self.relays[..] } else { &[] };
        let silent = measured.iter().filter(|relay| !answers(relay)).cloned().collect();
        let carried = links.iter().filter(|link| link.capacity > 0);
        let carried =
            carried.map(|link| (link.to, Rate::from_bits(u64::from(link.capacity) * 1_000))).collect();
        Ok(Known { relays: self.relays.clone(), figures, keys, carried, silent })
    }
}

/// The controllers' answers about granted relays.
#[derive(Debug, Default)]
pub struct Known {
    relays: Vec<RelayHint>,
    figures: BTreeMap<(PublicKey, PublicKey), Figures>,
    /// Relays by address: those that share an address share their routes.
    keys: BTreeMap<IpAddr, Vec<PublicKey>>,
    /// Capacity from here to relays, measured with packet trains.
    carried: BTreeMap<PublicKey, Rate>,
    /// Relays that answered none of the packet trains.
    silent: Vec<RelayHint>,
}

impl Known {
    /// The capacity from here to a relay, if packet trains measured it.
    pub fn carried(&self, relay: IpAddr) -> Option<Rate> {
        self.keys.get(&relay)?.iter().find_map(|key| self.carried.get(key)).copied()
    }

    /// The relays that did not answer, as `KEY@ADDRESS`.
    pub fn silent(&self) -> Vec<String> {
        self.silent.iter().map(|relay| NodeAt::from(relay.clone()).to_string()).collect()
    }

    /// The name of a relay's location: its address, with ports if several relays share it.
    pub fn name(&self, place: IpAddr) -> String {
        let reached = self.relays.iter().filter_map(|relay| relay.addresses.first());
        let here: Vec<String> = reached.filter(|at| at.ip() == place).map(ToString::to_string).collect();
        if here.len() > 1 { here.join(" or ") } else { place.to_string() }
    }

    /// Known figures for the segment between two addresses.
    pub fn figures(&self, from: IpAddr, to: IpAddr) -> Option<Figures> {
        let (from, to) = (self.keys.get(&from)?, self.keys.get(&to)?);
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
        // Prefer measured figures to estimates.
        pairs.filter_map(|pair| self.figures.get(&pair)).min_by_key(|told| told.estimated.is_some()).copied()
    }

    /// The routes over one granted relay and, if the distance from the last relay to the node is known, over two.
    pub fn chains(&self, node: IpAddr, traces: &[Trace]) -> Vec<Chain> {
        let places: BTreeSet<IpAddr> = addresses(&self.relays).filter(|relay| *relay != node).collect();
        let relays: Vec<IpAddr> = places.into_iter().collect();
        let last: Vec<Option<Figures>> = relays.iter().map(|relay| self.figures(*relay, node)).collect();
        if last.iter().all(Option::is_none) {
            return relays.into_iter().map(|relay| Chain(vec![relay])).collect();
        }
        let traced = |relay: &IpAddr| {
            let trace = traces.iter().find(|trace| trace.to == *relay)?;
            Some(Figures { capacity: self.carried(*relay), ..Figures::measured(trace.rtt(), 0.0) })
        };
        let first: Vec<Option<Figures>> = relays.iter().map(traced).collect();
        let between = |a: usize, b: usize| self.figures(relays[a], relays[b]);
        let (ways, _) = best_ways(&first, &last, between, LIMITS);
        ways.iter().map(|way| Chain(way.relays.iter().map(|at| relays[*at]).collect())).collect()
    }
}

/// Puts addresses of the node's kind first. The first one stands for its relay; no route may lead to the other kind.
fn of_the_nodes_kind(mut relays: Vec<RelayHint>, node: IpAddr) -> Vec<RelayHint> {
    relays.iter_mut().for_each(|relay| relay.addresses.sort_by_key(|at| at.is_ipv4() != node.is_ipv4()));
    relays
}

fn addresses(relays: &[RelayHint]) -> impl Iterator<Item = IpAddr> {
    relays.iter().filter_map(|relay| relay.addresses.first()).map(|address| address.ip())
}

#[cfg(test)]
impl Known {
    /// Relays at these addresses and ports, with rates in Mbit/s: from here to relays, and between two relays with
    /// whether it was measured.
    pub fn by_hand(relays: &[&str], carried: &[(&str, f64)], between: &[(&str, &str, f64, bool)]) -> Self {
        let mut known = Self::default();
        let at = |text: &str| crate::commands::trace::args::address(text).expect("an address");
        let ends = between
            .iter()
            .map(|(_, to, ..)| *to)
            .filter(|to| !relays.iter().any(|relay| at(relay) == at(to)));
        let places: Vec<&str> = relays.iter().copied().chain(ends.collect::<BTreeSet<_>>()).collect();
        for (index, text) in places.iter().enumerate() {
            let node = PublicKey::from_bytes([index as u8 + 1; 32]);
            known.keys.entry(at(text)).or_default().push(node);
            if index < relays.len() {
                known.relays.push(RelayHint { node, addresses: vec![text.parse().expect("with a port")] });
            }
        }
        let rate = |mbit: &f64| Rate::from_mbit(*mbit);
        known.carried = carried.iter().map(|(to, mbit)| (known.keys[&at(to)][0], rate(mbit))).collect();
        let told = |(from, to, mbit, is_measured): &(&str, &str, f64, bool)| {
            let measured = Figures::measured(Span::from_millis(20), 0.0);
            let estimated = (!is_measured).then_some(0.2);
            let pair = (known.keys[&at(from)][0], known.keys[&at(to)][0]);
            (pair, Figures { capacity: Some(rate(mbit)), estimated, ..measured })
        };
        known.figures = between.iter().map(told).collect();
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_goes_by_its_address_of_the_nodes_kind() {
        let both = ["[2001:db8::1]:4600", "192.0.2.1:4600"].map(|text| text.parse().unwrap()).to_vec();
        let relay = RelayHint { node: PublicKey::from_bytes([1; 32]), addresses: both };
        for (node, stands) in [("203.0.113.9", "192.0.2.1"), ("2001:db8::9", "2001:db8::1")] {
            let relays = of_the_nodes_kind(vec![relay.clone()], node.parse().unwrap());
            assert_eq!(addresses(&relays).collect::<Vec<IpAddr>>(), [stands.parse::<IpAddr>().unwrap()]);
        }
    }

    #[test]
    fn relays_of_one_address_are_one_way_that_names_both() {
        let relays = ["192.0.2.1:4600", "192.0.2.1:4601", "192.0.2.2:4600"];
        let carried = [("192.0.2.1", 10.0)];
        let known = Known::by_hand(&relays, &carried, &[("192.0.2.1", "203.0.113.9", 5.0, true)]);
        let [both, other, node] = ["192.0.2.1", "192.0.2.2", "203.0.113.9"].map(|text| text.parse().unwrap());
        assert_eq!(known.name(both), "192.0.2.1:4600 or 192.0.2.1:4601");
        assert_eq!(known.name(other), "192.0.2.2");
        assert_eq!(known.carried(both), Some(Rate::from_mbit(10.0)));
        assert!(known.figures(both, node).is_some() && known.figures(other, node).is_none());
        let bare = Known { figures: BTreeMap::new(), ..known };
        assert_eq!(bare.chains(node, &[]), [Chain(vec![both]), Chain(vec![other])]);
    }
}
