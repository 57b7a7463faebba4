//! What a controller knows of the relays that it grants: how far they are from each other, and from the node if that is a relay too.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use anabranch_daemon::controller::asking::Controllers;
use anabranch_net::{Endpoint, EndpointConfig, PublicKey};
use anabranch_overlay::sense::{Figures, WayLimits, best_ways};
use anabranch_secure::RelayHint;

use super::traces::Trace;
use super::{Chain, PathsArgs};
use crate::errors::{Failure, Kind};
use crate::relays;

/// Ways over granted relays that are worth showing, and relays next to an end that are tried as one of two.
const LIMITS: WayLimits = WayLimits { most: 8, near: 8 };

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Known {
    /// The relays that are granted.
    pub relays: Vec<RelayHint>,
    figures: BTreeMap<(PublicKey, PublicKey), Figures>,
    keys: BTreeMap<IpAddr, PublicKey>,
}

impl Known {
    /// Asks the controllers that are named; without any, nothing is known.
    ///
    /// # Errors
    /// When no controller grants anything or answers.
    pub async fn ask(args: &PathsArgs) -> Result<Self, Failure> {
        if args.granted.controllers.is_empty() {
            return Ok(Self::default());
        }
        let key = relays::key(args.key.as_deref(), &[], &args.granted)?;
        let endpoint = Endpoint::bind(EndpointConfig::new(key)).await;
        let endpoint = Arc::new(endpoint.map_err(|error| Failure::bind(&error))?);
        let grants = args.granted.grants(&endpoint, args.key.as_deref()).await?;
        let relays = grants.relays();
        let nodes = relays.iter().map(|relay| relay.node).collect();
        let controllers = Controllers::new(endpoint.clone(), args.granted.controllers.clone());
        let asked = controllers.figures(nodes, Some(args.node.0)).await;
        let (figures, node) = asked.map_err(|error| {
            let failure =
                Failure::new(Kind::Unreachable, format!("what is between relays is not known: {error}"));
            failure.hint("is `anabranch controller` running there, in this version or a later one?")
        })?;
        endpoint.close().await;
        let place = |relay: &RelayHint| Some((relay.addresses.first()?.ip(), relay.node));
        let keys = relays.iter().filter_map(place).chain(node.map(|node| (args.node.0, node))).collect();
        let figures = figures.iter().map(|told| ((told.from, told.to), told.figures())).collect();
        Ok(Self { relays, figures, keys })
    }

    /// The relays' addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.relays.iter().filter_map(|relay| relay.addresses.first()).map(|address| address.ip())
    }

    /// What is known between two addresses.
    pub fn figures(&self, from: IpAddr, to: IpAddr) -> Option<Figures> {
        self.figures.get(&(*self.keys.get(&from)?, *self.keys.get(&to)?)).copied()
    }

    /// The ways over granted relays: over one, and over two where it is known how far the last is from the node.
    pub fn chains(&self, node: IpAddr, traces: &[Trace]) -> Vec<Chain> {
        let relays: Vec<IpAddr> = self.addresses().filter(|relay| *relay != node).collect();
        let last: Vec<Option<Figures>> = relays.iter().map(|relay| self.figures(*relay, node)).collect();
        if last.iter().all(Option::is_none) {
            return relays.into_iter().map(|relay| Chain(vec![relay])).collect();
        }
        let traced = |relay: &IpAddr| {
            let trace = traces.iter().find(|trace| trace.to == *relay)?;
            Some(Figures::measured(trace.rtt(), 0.0))
        };
        let first: Vec<Option<Figures>> = relays.iter().map(traced).collect();
        let between = |a: usize, b: usize| self.figures(relays[a], relays[b]);
        let (ways, _) = best_ways(&first, &last, between, LIMITS);
        ways.iter().map(|way| Chain(way.relays.iter().map(|at| relays[*at]).collect())).collect()
    }
}
