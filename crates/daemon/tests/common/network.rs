//! Relays behind emulated links of 20 ms round-trip time.

use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_daemon::relay::RelayService;
use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_link::{LinkConfig, bdp_bytes};
use anabranch_net::{Endpoint, Rate, Session, Span, Target};
use anabranch_node::NodeAt;
use anabranch_node::{Entry, Peer, RelayRoute};

use super::{address, config, key, node, settings};

/// A client and a server, a direct path between them and relays to choose from, over emulated links.
pub struct Network {
    pub client: Arc<Endpoint>,
    pub server: Arc<Endpoint>,
    pub relays: Vec<RelayService>,
    pub routes: Vec<RelayRoute>,
    pub emulation: Emulation,
}

/// A client, a server and relays, 20 ms from the client each, over links of this rate in Mbit/s.
pub async fn network(base: u8, count: u8, mbit: f64) -> Network {
    let (client, server) = (node(base).await, node(base + 1).await);
    let mut relays = Vec::new();
    for index in 0..count {
        let settings = settings(base + 2 + index, &[base]);
        relays.push(RelayService::start(key(base + 2 + index), &settings).await.unwrap());
    }
    let rate = Rate::from_mbit(mbit);
    let rtt = Span::from_millis(20);
    let link = LinkConfig::fixed(rate, rtt / 2, bdp_bytes(rate, rtt) * 4);
    let ends = relays.iter().map(|relay| relay.addresses()[0]).chain([address(&server)]);
    let paths: Vec<_> = ends.map(|end| EmulatedPath::symmetric(end, link.clone())).collect();
    let emulation = Emulation::start(&paths).unwrap();
    let hint =
        |(relay, entry): (&RelayService, &SocketAddr)| RelayRoute(vec![NodeAt::new(relay.node(), &[*entry])]);
    let routes = relays.iter().zip(emulation.addresses()).map(hint).collect();
    Network { client, server, relays, routes, emulation }
}

impl Network {
    pub async fn join(&self) -> (Session, Session) {
        let direct = self.emulation.addresses()[self.relays.len()];
        let mut target = Target::new(self.server.node(), vec![direct]);
        target.pins = vec![(address(&self.client).ip(), direct)];
        target.relayed = 63;
        let accept = async { Ok(self.server.accept().await.expect("it takes sessions")) };
        // A failed connection ends the wait for the other end.
        tokio::try_join!(self.client.connect(&target, config()), accept).expect("a session")
    }

    pub fn peer(&self) -> Peer {
        Peer { addresses: vec![address(&self.server)], entry: Entry::default() }
    }
}
