//! The same two nodes, with three relays: the direct path is slow, the ways to the relays are not.
//!
//! ```text
//!           ┌─ 30 Mbit/s ─ relay 1 ─┐
//!           ├─ 20 Mbit/s ─ relay 2 ─┤
//!  taker ───┼─ 20 Mbit/s ─ relay 3 ─┼─── giver
//!           └─ 10 Mbit/s, direct ───┘
//! ```
//! The relays are those of `anabranch relay`, in this process; they list the taker's key.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_daemon::client::{Entry, Peer, RelayPaths, RelayRoute};
use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{RelaySettings, User};
use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, PathId, PathInfo, PathUse, PublicKey, Target,
};
use anabranch_secure::RelayHint;

use super::stage::{
    GIVER, MIDDLE, Model, PATIENCE, Pair, RELAY, Scene, TAKER, giver_endpoint, host, late, model,
};
use crate::errors::Failure;
use crate::keyfile;

/// The ways through relays, the fastest first, and the direct one at the end.
#[must_use]
pub fn models() -> [Model; 4] {
    [
        model("relay 1, ", 30.0, 30),
        model("relay 2, ", 20.0, 40),
        model("relay 3, ", 20.0, 50),
        model("direct, ", 10.0, 20),
    ]
}

/// The two nodes, the relays, and the modelled links.
pub struct Overlay {
    giver: Endpoint,
    taker: Arc<Endpoint>,
    taker_key: PublicKey,
    /// A relay that was killed is none any more.
    relays: Mutex<Vec<Option<RelayService>>>,
    routes: Vec<RelayRoute>,
    emulation: Emulation,
    models: Vec<Model>,
}

impl Overlay {
    /// Sets it up. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When sockets cannot be had.
    pub async fn new(models: &[Model]) -> Result<Self, Failure> {
        let count = models.len() - 1;
        let (giver_key, taker_key) = (keyfile::fresh()?, keyfile::fresh()?);
        let taker_public = taker_key.public();
        let giver = giver_endpoint(giver_key, taker_public, vec![host(count, GIVER)]).await?;
        let taker = EndpointConfig::new(taker_key).addresses(Addresses::Exactly(vec![taker_host()]));
        let taker = Arc::new(Endpoint::bind(taker).await.map_err(|error| Failure::bind(&error))?);
        let mut relays = Vec::new();
        for index in 0..count {
            let settings = RelaySettings::local(host(index, RELAY), vec![User::new("taker", taker_public)]);
            let relay = RelayService::start(keyfile::fresh()?, &settings).await;
            relays.push(relay.map_err(|error| Failure::bind(&error))?);
        }
        let ends = relays.iter().map(|relay| first_address(&relay.addresses()));
        let ends = ends.chain([first_address(&giver.local_addresses())]);
        let path = |(index, (model, server)): (usize, (&Model, SocketAddr))| {
            let path = EmulatedPath::symmetric(server, model.link());
            EmulatedPath { listen: SocketAddr::new(host(index, MIDDLE), 0), ..path }
        };
        let paths: Vec<_> = models.iter().zip(ends).enumerate().map(path).collect();
        let emulation = Emulation::start(&paths)
            .map_err(|error| Failure::local(format!("cannot set up the modelled paths: {error}")))?;
        let hint = |(relay, entry): (&RelayService, &SocketAddr)| {
            RelayRoute(vec![RelayHint { node: relay.node(), addresses: vec![*entry] }])
        };
        let routes = relays.iter().zip(emulation.addresses()).map(hint).collect();
        let relays = Mutex::new(relays.into_iter().map(Some).collect());
        let models = models.to_vec();
        Ok(Self { giver, taker, taker_key: taker_public, relays, routes, emulation, models })
    }

    /// Where the direct path begins.
    fn direct(&self) -> SocketAddr {
        self.emulation.addresses()[self.routes.len()]
    }
}

impl Scene for Overlay {
    /// One path is the fastest relay; the direct one stands by then, since a session has to begin somewhere.
    async fn connect(&self, count: usize) -> Result<Pair, Failure> {
        let routes = &self.routes[..count.min(self.routes.len())];
        let mut target = Target::new(self.giver.node(), vec![self.direct()]);
        target.pins = vec![(taker_host(), self.direct())];
        target.relayed = routes.len() as u32;
        let taker = self.taker.connect(&target, Config::default()).await?;
        let giver = super::stage::accept(&self.giver, self.taker_key).await?;
        let peer = Peer { addresses: self.giver.local_addresses(), entry: Entry::default() };
        let paths = RelayPaths::keep(&self.taker, &taker, routes, &peer);
        let pair = Pair { giver, taker, _paths: paths };
        let open = async {
            while pair.active() < routes.len() + 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, open).await.map_err(|_| late())?;
        if count == 1 {
            for end in [&pair.giver, &pair.taker] {
                end.set_path_use(PathId::FIRST, PathUse::Backup)
                    .map_err(|error| Failure::local(error.to_string()))?;
            }
        }
        Ok(pair)
    }

    fn named_paths(&self, pair: &Pair) -> Vec<(String, PathInfo)> {
        let seen = pair.taker.paths();
        let index_of = |path: &PathInfo| {
            let own = seen.iter().find(|own| own.id == path.id)?;
            let relays = pair.taker.relays(&own.route);
            match relays.first() {
                Some(relay) => self.routes.iter().position(|route| route.0[0].node == *relay),
                None => Some(self.routes.len()),
            }
        };
        let mut named: Vec<_> =
            pair.giver.paths().into_iter().filter_map(|path| Some((index_of(&path)?, path))).collect();
        named.sort_by_key(|(index, path)| (*index, path.id));
        named.into_iter().map(|(index, path)| (self.models[index].name(), path)).collect()
    }

    /// The relay dies without a word.
    fn cut(&self, path: usize) {
        let mut relays = self.relays.lock().expect("no panic while held");
        if let Some(relay) = relays.get_mut(path).and_then(Option::take) {
            relay.kill();
        }
    }
}

fn taker_host() -> IpAddr {
    host(0, TAKER)
}

fn first_address(addresses: &[SocketAddr]) -> SocketAddr {
    addresses.first().copied().unwrap_or_else(|| SocketAddr::new(taker_host(), 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relays_and_the_direct_path_add_up_to_eighty() {
        let sum: f64 = models().iter().map(|model| model.rate.as_mbit()).sum();
        assert!((sum - 80.0).abs() < 1e-9);
        assert_eq!(models()[0].name(), "relay 1, 30 Mbit/s, 30 ms");
    }
}
