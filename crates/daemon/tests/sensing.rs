//! Relays that measure each other as their controller says, with real sessions on loopback [S3, S7].

mod common;

use std::collections::BTreeSet;
use std::time::Instant;

use anabranch_daemon::controller::ControllerService;
use anabranch_daemon::controller::asking::Controllers;
use anabranch_daemon::controller::config::ControllerSettings;
use anabranch_daemon::controller::link::ControllerHint;
use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{Controller, RelaySettings};
use anabranch_overlay::controller::{Policy, Quota};
use anabranch_overlay::grant::Limits;
use anabranch_wire::Rate;

use common::{ip, key, node, until};

const RELAYS: [u8; 4] = [221, 222, 223, 224];

async fn controller() -> (ControllerService, ControllerHint) {
    let mut policy =
        Policy { relays: RELAYS.iter().map(|seed| key(*seed).public()).collect(), ..Policy::default() };
    let limits = Limits { pids: 2, rate: Rate::from_mbit(1.0), bytes: 1, highest_tos: 0 };
    policy.clients.insert(key(225).public(), Quota { grants: 1, relays: 4, limits, lifetime: 60 });
    let settings = ControllerSettings::local(ip(220), policy);
    let service = ControllerService::start(key(220), &settings).await.expect("a controller");
    let hint = ControllerHint { node: service.node(), addresses: service.addresses() };
    (service, hint)
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_measure_each_other_and_the_controller_hears_at_once_when_one_falls_silent() {
    let (controller, hint) = controller().await;
    let began = Instant::now();
    let mut relays = Vec::new();
    for seed in RELAYS {
        let named = Controller { at: hint.clone(), signs: controller.signing_key() };
        let settings = RelaySettings { controllers: vec![named], ..common::settings(seed, &[]) };
        relays.push(RelayService::start(key(seed), &settings).await.expect("a relay"));
    }
    let watch = controller.watch();
    let links = || watch.status().relays.iter().map(|relay| relay.links).collect::<Vec<_>>();
    until("every relay measures the three others", || links() == [[3, 0]; 4]).await;
    let status = relays[0].status();
    assert!(status.links.iter().all(|link| link.up && link.rtt_ms < 500.0), "{:?}", status.links);
    let kbit = status.sensing_bytes as f64 * 8e-3 / began.elapsed().as_secs_f64();
    assert!(kbit < 20.0, "{kbit} kbit/s");

    // A client that the controller lists learns what is between relays; a relay is known by its address too.
    let client = node(225).await;
    let asking = Controllers::new(client.clone(), vec![hint]);
    let two = vec![key(221).public(), key(222).public()];
    let (figures, at) = asking.figures(two, Some(ip(223))).await.expect("figures");
    assert_eq!(at, Some(key(223).public()));
    let pairs: BTreeSet<_> = figures.iter().map(|told| (told.from, told.to)).collect();
    assert_eq!(pairs.len(), 6);
    assert!(figures.iter().all(|told| told.estimated.is_none() && told.loss < 10_000), "{figures:?}");

    let lost = relays.pop().expect("four relays");
    let (lost_key, cut) = (lost.node().to_string(), Instant::now());
    lost.kill();
    let others_know = || {
        let status = watch.status();
        let others = status.relays.iter().filter(|relay| relay.node != lost_key);
        others.map(|relay| relay.links).all(|links| links == [3, 1])
    };
    until("the links to it are down", others_know).await;
    let took = cut.elapsed().as_secs_f64();
    println!("known after {took:.1} s");
    assert!(took < 8.0, "{took} s");
    let (figures, _) =
        asking.figures(vec![key(221).public(), key(224).public()], None).await.expect("figures");
    assert!(figures.iter().all(|told| told.loss == 10_000), "{figures:?}");
}
