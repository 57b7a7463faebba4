//! The same two nodes with three relays: the direct path is slow, the paths to the relays are fast.
//!
//! ```text
//!           ┌─ 30 Mbit/s ─ relay 1 ─┐
//!           ├─ 20 Mbit/s ─ relay 2 ─┤
//!  taker ───┼─ 20 Mbit/s ─ relay 3 ─┼─── giver
//!           └─ 10 Mbit/s, direct ───┘
//! ```
//! The relays and the controller are the services behind `anabranch relay` and `anabranch controller`. The
//! relays list no users: the controller knows the taker's key and grants their use.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_daemon::controller::ControllerService;
use anabranch_daemon::controller::config::ControllerSettings;
use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{Controller, RelaySettings};
use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PathId, PathInfo, PathUse, PublicKey, Rate, Target,
};
use anabranch_node::ControllerHint;
use anabranch_node::NodeAt;
use anabranch_node::{Entry, GrantWanted, Grants, Peer, RelayPaths, RelayRoute};
use anabranch_overlay::controller::{Policy, Quota};
use anabranch_overlay::grant::Limits;

use super::stage::{
    CONTROLLER, GIVER, MIDDLE, Model, PATIENCE, Pair, RELAY, Scene, TAKER, giver_endpoint, host, late, model,
};
use crate::errors::Failure;
use anabranch_node::keyfile;

/// Granted paths per relay: each act opens one, and that of the previous act may still be open.
const PATHS: u32 = 8;
/// How long a grant lasts, in seconds: longer than the demo.
const LIFETIME: u64 = 600;

/// The paths through relays, the fastest first, then the direct path.
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
    _controller: ControllerService,
    /// The relays; `None` after one was killed.
    relays: Mutex<Vec<Option<RelayService>>>,
    routes: Vec<RelayRoute>,
    grants: Grants,
    emulation: Emulation,
    models: Vec<Model>,
}

impl Overlay {
    /// Sets up the nodes, relays and links. Must be called within a tokio runtime.
    pub async fn new(models: &[Model]) -> Result<Self, Failure> {
        let count = models.len() - 1;
        let (giver_key, taker_key) = (keyfile::fresh()?, keyfile::fresh()?);
        let taker_public = taker_key.public();
        let giver = giver_endpoint(giver_key, taker_public, vec![host(count, GIVER)]).await?;
        let taker = EndpointConfig::new(taker_key).addresses(Addresses::Exactly(vec![taker_host()]));
        let taker = Arc::new(Endpoint::bind(taker).await.map_err(|error| Failure::bind(&error))?);
        let (controller, relays) = controlled(taker_public, count).await?;
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
            RelayRoute(vec![NodeAt::new(relay.node(), &[*entry])])
        };
        let routes = relays.iter().zip(emulation.addresses()).map(hint).collect();
        let grants = granted(&taker, &controller, count).await?;
        let relays = Mutex::new(relays.into_iter().map(Some).collect());
        let (_controller, models) = (controller, models.to_vec());
        Ok(Self {
            giver,
            taker,
            taker_key: taker_public,
            _controller,
            relays,
            routes,
            grants,
            emulation,
            models,
        })
    }

    /// The start of the direct path.
    fn direct(&self) -> SocketAddr {
        self.emulation.addresses()[self.routes.len()]
    }
}

impl Scene for Overlay {
    /// With a count of one, the fastest relay carries the data. The direct path opened the session and is on
    /// standby then.
    async fn connect(&self, count: usize) -> Result<Pair, Failure> {
        let routes = &self.routes[..count.min(self.routes.len())];
        let mut target = Target::new(self.giver.node(), vec![self.direct()]);
        target.pins = vec![(taker_host(), self.direct())];
        target.relayed = routes.len() as u32;
        let taker = self.taker.connect(&target, Config::default()).await?;
        let giver = super::stage::accept(&self.giver, self.taker_key).await?;
        let peer =
            Peer { addresses: self.giver.local_addresses(), entry: Entry::Member(self.grants.clone()) };
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

    /// Kills the relay without a farewell.
    fn cut(&self, path: usize) {
        let mut relays = self.relays.lock().expect("no panic while held");
        if let Some(relay) = relays.get_mut(path).and_then(Option::take) {
            relay.kill();
        }
    }
}

/// Starts that many relays and a controller that grants them to the taker.
async fn controlled(
    taker: PublicKey,
    count: usize,
) -> Result<(ControllerService, Vec<RelayService>), Failure> {
    let keys = (0..count).map(|_| keyfile::fresh()).collect::<Result<Vec<_>, _>>()?;
    let limits = Limits { pids: PATHS, rate: Rate::from_bits(u64::MAX), bytes: u64::MAX, highest_tos: 15 };
    let most = u8::try_from(count).unwrap_or(u8::MAX);
    let quota = Quota { grants: 1, relays: most, limits, lifetime: LIFETIME };
    let policy = Policy {
        relays: keys.iter().map(NodeKey::public).collect(),
        clients: [(taker, quota)].into(),
        ..Policy::default()
    };
    let settings = ControllerSettings::local(host(0, CONTROLLER), policy);
    let controller = ControllerService::start(keyfile::fresh()?, &settings).await;
    let controller = controller.map_err(|error| Failure::local(error.to_string()))?;
    let mut relays = Vec::new();
    for (index, key) in keys.into_iter().enumerate() {
        let known = Controller { at: hint(&controller), signs: controller.signing_key() };
        let local = RelaySettings::local(host(index, RELAY), Vec::new());
        let settings = RelaySettings { controllers: vec![known], ..local };
        relays.push(RelayService::start(key, &settings).await.map_err(|error| Failure::bind(&error))?);
    }
    let all_registered = async {
        while !relays.iter().all(|relay| relay.status().controllers.iter().all(|known| known.registered)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_registered).await.map_err(|_| late())?;
    Ok((controller, relays))
}

/// Has the taker ask the controller for all relays.
async fn granted(
    taker: &Arc<Endpoint>,
    controller: &ControllerService,
    count: usize,
) -> Result<Grants, Failure> {
    let count = u8::try_from(count).unwrap_or(u8::MAX);
    let wanted = GrantWanted { relays: (count, count), paths: PATHS };
    let grants = Grants::obtain(taker, &[hint(controller)], wanted, None).await;
    grants.map_err(|error| Failure::local(error.to_string()))
}

fn hint(controller: &ControllerService) -> ControllerHint {
    ControllerHint::new(controller.node(), &controller.addresses())
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
