//! Controllers on loopback, relays that registered with them, and their grants.

use std::path::Path;
use std::sync::Arc;

use anabranch_daemon::controller::ControllerService;
use anabranch_daemon::controller::config::ControllerSettings;
use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{Controller, RelaySettings};
use anabranch_net::{Endpoint, Rate, Session};
use anabranch_node::{ControllerHint, LinkError};
use anabranch_node::{GrantWanted, Grants, RelayPaths};
use anabranch_overlay::controller::{Policy, Quota};
use anabranch_overlay::grant::Limits;

use super::{address, ip, join, key, settings, until};

pub const WANTED: GrantWanted = GrantWanted { relays: (2, 1), paths: 4 };

pub struct Controllers {
    pub running: Vec<ControllerService>,
    pub settings: ControllerSettings,
    pub hints: Vec<ControllerHint>,
}

/// A controller at `127.0.0.seed` that lists relays and one client, with grants of this lifetime in seconds.
pub async fn controller(seed: u8, (relays, client): (&[u8], u8), lifetime: u64) -> Controllers {
    let mut policy = Policy::default();
    policy.relays.extend(relays.iter().map(|relay| key(*relay).public()));
    let limits = Limits { pids: 16, rate: Rate::from_bits(u64::MAX), bytes: u64::MAX, highest_tos: 15 };
    policy.clients.insert(key(client).public(), Quota { grants: 2, relays: 4, limits, lifetime });
    let settings = ControllerSettings::local(ip(seed), policy);
    let service = ControllerService::start(key(seed), &settings).await.expect("a controller");
    let hints = vec![ControllerHint::new(service.node(), &service.addresses())];
    Controllers { running: vec![service], settings, hints }
}

/// A controller that never starts, whose grants would count.
pub fn nowhere() -> Controller {
    let signer = anabranch_overlay::grant::GrantSigner::from_random([9; 32]);
    let at = ControllerHint::new(key(9).public(), &["127.0.0.1:9".parse().expect("an address")]);
    Controller { at, signs: signer.public() }
}

impl Controllers {
    pub fn relay_settings(&self, seed: u8) -> RelaySettings {
        let named = |(hint, service): (&ControllerHint, &ControllerService)| Controller {
            at: hint.clone(),
            signs: service.signing_key(),
        };
        let controllers = self.hints.iter().zip(&self.running).map(named).collect();
        RelaySettings { controllers, ..settings(seed, &[]) }
    }

    pub async fn relay(&self, seed: u8) -> RelayService {
        let relay = RelayService::start(key(seed), &self.relay_settings(seed)).await.expect("a relay");
        until("registered", || relay.status().controllers.iter().all(|known| known.registered)).await;
        relay
    }

    pub async fn grants(&self, client: &Arc<Endpoint>, file: &Path) -> Result<Grants, LinkError> {
        Grants::obtain(client, &self.hints, WANTED, Some(file.to_owned())).await
    }
}

/// A session between two nodes with paths through the granted relays.
pub async fn session(
    client: &Arc<Endpoint>,
    server: &Endpoint,
    grants: &Grants,
) -> (Session, Session, RelayPaths) {
    let (here, there) = join(client, server, 4).await;
    let paths = RelayPaths::keep_granted(client, &here, grants, &[address(server)]);
    (here, there, paths)
}
