//! A relay whose clock differs from the controllers': a grant that it calls expired is renewed, but not every time it does.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_daemon::controller::ControllerService;
use anabranch_daemon::controller::config::ControllerSettings;
use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{Controller, RelaySettings};
use anabranch_net::{Addresses, Endpoint, EndpointConfig, NodeKey, Rate};
use anabranch_node::{ControllerHint, GrantWanted, Grants};
use anabranch_overlay::controller::{Policy, Quota};
use anabranch_overlay::grant::Limits;
use anabranch_overlay::relay::Refused;

fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

/// A controller, a relay and a client that it grants the relay's use for an hour.
async fn granted() -> (ControllerService, RelayService, Arc<Endpoint>, Grants) {
    let here = |last| Ipv4Addr::new(127, 0, 1, last).into();
    let mut policy = Policy::default();
    policy.relays.insert(key(72).public());
    let limits = Limits { pids: 16, rate: Rate::from_bits(u64::MAX), bytes: u64::MAX, highest_tos: 15 };
    policy.clients.insert(key(73).public(), Quota { grants: 2, relays: 1, limits, lifetime: 3_600 });
    let settings = ControllerSettings::local(here(71), policy);
    let controller = ControllerService::start(key(71), &settings).await.unwrap();
    let at = ControllerHint::new(controller.node(), &controller.addresses());
    let controllers = vec![Controller { at: at.clone(), signs: controller.signing_key() }];
    let settings = RelaySettings { controllers, ..RelaySettings::local(here(72), Vec::new()) };
    let relay = RelayService::start(key(72), &settings).await.unwrap();
    let config = EndpointConfig::new(key(73)).addresses(Addresses::Exactly(vec![here(73)]));
    let endpoint = Arc::new(Endpoint::bind(config).await.unwrap());
    let wanted = GrantWanted { relays: (1, 1), paths: 1 };
    let begin = Instant::now();
    loop {
        match Grants::obtain(&endpoint, std::slice::from_ref(&at), wanted, None).await {
            Ok(grants) => return (controller, relay, endpoint, grants),
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(20), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_over_by_a_relays_clock_is_renewed_and_not_time_and_again() {
    let (_controller, _relay, _endpoint, grants) = granted().await;
    let mut renewals = Vec::new();
    // The second time, nothing is to come.
    for patience in [20, 4] {
        let (before, begin) = (grants.until().unwrap(), Instant::now());
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let id = grants.for_relay(&key(72).public()).unwrap().0;
        while grants.until() == Some(before) && begin.elapsed() < Duration::from_secs(patience) {
            grants.on_refused(id, Refused::GrantExpired);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        renewals.push(grants.until().unwrap() > before);
    }
    assert_eq!(renewals, [true, false]);
}
