//! Two nodes inside this process, and the modelled paths between them.
//!
//! The *giver* offers the file. The *taker* connects to it and pins the session to the wanted paths. Only the
//! links are modelled: the UDP sockets, the handshake and the sealed packets are real.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_link::{LinkConfig, bdp_bytes};
use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PathInfo, PathState, PublicKey, Session, ShareId,
    Target, Verdict,
};
use anabranch_node::RelayPaths;
use anabranch_wire::{PACKET_OVERHEAD, Rate, Span};

use crate::errors::{Failure, Kind};
use crate::report::DemoPath;
use anabranch_node::keyfile;

/// IPv4 and UDP headers; the rate of a link includes them.
const HEADERS: u32 = 28;
/// Largest UDP payload in an Ethernet frame; the links drop longer packets.
const MTU: u32 = 1472;
/// Overhead of a stream frame: kind, stream, position and length.
const FRAME_HEADER: u32 = 8;
/// How long paths may take to open.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The model of a path.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Prefix of its name: the relay it leads through, if any.
    pub through: &'static str,
    /// Rate of each direction.
    pub rate: Rate,
    /// Round-trip time without queues.
    pub rtt: Span,
}

/// The paths of the demo, the fastest first.
pub fn models() -> [Model; 3] {
    [model("", 50.0, 10), model("", 30.0, 30), model("", 20.0, 60)]
}

/// A path of this rate and round-trip time.
pub fn model(through: &'static str, mbit: f64, rtt_ms: u64) -> Model {
    Model { through, rate: Rate::from_mbit(mbit), rtt: Span::from_millis(rtt_ms) }
}

impl Model {
    /// Its name in reports.
    pub fn name(&self) -> String {
        format!("{}{:.0} Mbit/s, {:.0} ms", self.through, self.rate.as_mbit(), self.rtt.as_millis_f64())
    }

    /// Its rate in bytes of a file. Full-size packets lose IP, UDP, packet and stream frame headers and the
    /// seal.
    pub fn payload_rate(&self) -> Rate {
        let payload = MTU - u32::try_from(PACKET_OVERHEAD).unwrap_or(0) - FRAME_HEADER;
        self.rate.mul_f64(f64::from(payload) / f64::from(MTU + HEADERS))
    }

    /// Its row in the report.
    pub fn report(&self) -> DemoPath {
        DemoPath {
            path: self.name(),
            link_mbit_s: self.rate.as_mbit(),
            payload_mbit_s: self.payload_rate().as_mbit(),
            rtt_ms: self.rtt.as_millis_f64(),
        }
    }

    /// One direction: half the round trip, with a queue of one bandwidth-delay product.
    pub fn link(&self) -> LinkConfig {
        let link = LinkConfig::fixed(self.rate, self.rtt / 2, bdp_bytes(self.rate, self.rtt));
        LinkConfig { overhead: HEADERS, mtu: Some(MTU), ..link }
    }
}

/// The two nodes and the paths.
pub struct Stage {
    giver: Endpoint,
    taker: Endpoint,
    taker_key: PublicKey,
    emulation: Emulation,
    models: Vec<Model>,
}

/// Both ends of a session.
pub struct Pair {
    /// The giver's end.
    pub giver: Session,
    /// The taker's end.
    pub taker: Session,
    /// Keeps paths through relays open; empty without relays.
    pub _paths: RelayPaths,
}

/// A set of nodes and paths to play the acts on.
pub trait Scene {
    /// Opens a session over the first `count` paths, and waits until all of them carry data.
    async fn connect(&self, count: usize) -> Result<Pair, Failure>;

    /// The giver's view of its paths with their models' names, in the order of the models.
    fn named_paths(&self, pair: &Pair) -> Vec<(String, PathInfo)>;

    /// Lets a path fall silent.
    fn cut(&self, path: usize);
}

impl Stage {
    /// Sets up the nodes and links. Must be called within a tokio runtime.
    pub async fn new(models: &[Model]) -> Result<Self, Failure> {
        let (giver_key, taker_key) = (keyfile::fresh()?, keyfile::fresh()?);
        let taker_public = taker_key.public();
        let giver = giver_endpoint(giver_key, taker_public, hosts(GIVER, models.len())).await?;
        let taker = EndpointConfig::new(taker_key).addresses(Addresses::Exactly(hosts(TAKER, models.len())));
        let taker = Endpoint::bind(taker).await.map_err(|error| Failure::bind(&error))?;
        let port = giver.local_addresses().first().map_or(0, SocketAddr::port);
        let path = |(index, model): (usize, &Model)| {
            let server = SocketAddr::new(host(index, GIVER), port);
            let path = EmulatedPath::symmetric(server, model.link());
            EmulatedPath { listen: SocketAddr::new(host(index, MIDDLE), 0), ..path }
        };
        let paths: Vec<_> = models.iter().enumerate().map(path).collect();
        let emulation = Emulation::start(&paths)
            .map_err(|error| Failure::local(format!("cannot set up the modelled paths: {error}")))?;
        Ok(Self { giver, taker, taker_key: taker_public, emulation, models: models.to_vec() })
    }
}

impl Scene for Stage {
    async fn connect(&self, count: usize) -> Result<Pair, Failure> {
        let entries = &self.emulation.addresses()[..count];
        let mut target = Target::new(self.giver.node(), entries.to_vec());
        target.pins = entries.iter().enumerate().map(|(index, entry)| (host(index, TAKER), *entry)).collect();
        let taker = self.taker.connect(&target, Config::default()).await?;
        let giver = accept(&self.giver, self.taker_key).await?;
        let pair = Pair { giver, taker, _paths: RelayPaths::default() };
        let open = async {
            while pair.active() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, open).await.map_err(|_| late())?;
        Ok(pair)
    }

    fn named_paths(&self, pair: &Pair) -> Vec<(String, PathInfo)> {
        let places = self.emulation.addresses();
        let seen = pair.taker.paths();
        let index_of = |path: &PathInfo| {
            let own = seen.iter().find(|own| own.id == path.id)?;
            places.iter().position(|place| *place == own.route.remote)
        };
        let mut named: Vec<_> =
            pair.giver.paths().into_iter().filter_map(|path| Some((index_of(&path)?, path))).collect();
        named.sort_by_key(|(index, path)| (*index, path.id));
        named.into_iter().map(|(index, path)| (self.models[index].name(), path)).collect()
    }

    fn cut(&self, path: usize) {
        self.emulation.set_down(path, true);
    }
}

impl Pair {
    /// Number of paths that carry data at both ends.
    pub fn active(&self) -> usize {
        let active =
            |session: &Session| session.paths().iter().filter(|path| path.state == PathState::Active).count();
        active(&self.giver).min(active(&self.taker))
    }
}

/// Accepts the taker's session.
pub async fn accept(giver: &Endpoint, taker: PublicKey) -> Result<Session, Failure> {
    let accepting = async {
        loop {
            let session = giver.accept().await?;
            if session.peer() == taker {
                return Some(session);
            }
        }
    };
    tokio::time::timeout(PATIENCE, accepting).await.ok().flatten().ok_or_else(late)
}

/// The failure when a session or its paths do not open in time.
pub fn late() -> Failure {
    Failure::new(Kind::Unreachable, "the two nodes of the demo did not find each other")
}

/// The node with the file, which accepts only `friend`.
pub async fn giver_endpoint(
    key: NodeKey,
    friend: PublicKey,
    hosts: Vec<IpAddr>,
) -> Result<Endpoint, Failure> {
    let only_friend = move |peer: &PublicKey, _: Option<ShareId>| {
        if *peer == friend { Verdict::Accept { secret: None } } else { Verdict::Ignore }
    };
    let config = EndpointConfig::new(key).addresses(Addresses::Exactly(hosts));
    Endpoint::bind(config.authorize(only_friend)).await.map_err(|error| Failure::bind(&error))
}

/// Role of the node that receives the file.
pub const TAKER: u8 = 1;
/// Role of a modelled path's entry.
pub const MIDDLE: u8 = 2;
/// Role of the node with the file.
pub const GIVER: u8 = 3;
/// Role of a relay.
pub const RELAY: u8 = 4;
/// Role of the controller.
pub const CONTROLLER: u8 = 5;

/// An address for each role on each path.
pub fn host(path: usize, role: u8) -> IpAddr {
    [127, 77, u8::try_from(path + 1).unwrap_or(u8::MAX), role].into()
}

/// The addresses of a role on all paths.
pub fn hosts(role: u8, paths: usize) -> Vec<IpAddr> {
    (0..paths).map(|path| host(path, role)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_the_paths_is_counted_in_payload() {
        let sum: f64 = models().iter().map(|model| model.payload_rate().as_mbit()).sum();
        assert!((sum - 100.0 * 1432.0 / 1500.0).abs() < 0.01, "{sum}");
        assert_eq!(models()[0].name(), "50 Mbit/s, 10 ms");
    }
}
