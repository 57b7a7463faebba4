//! Relays that measure each other when their controller asks, with real sessions on loopback [S3, S7].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anabranch_daemon::controller::ControllerService;
use anabranch_daemon::controller::config::ControllerSettings;
use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{Controller, RelaySettings};
use anabranch_daemon::sensing::{self, Sensing};
use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_link::LinkConfig;
use anabranch_net::Endpoint;
use anabranch_node::ControllerHint;
use anabranch_node::Controllers;
use anabranch_overlay::controller::message::GrantedRelay;
use anabranch_overlay::controller::{Policy, Quota};
use anabranch_overlay::grant::{Limits, UnixTime};
use anabranch_overlay::relay::{Relay, RelayConfig};
use anabranch_overlay::sense::{LinkTold, SensorConfig};
use anabranch_wire::{Rate, Span};

use crate::common::{ip, key, node, until};

/// A sensor's burst, as time at its rate: 0.3 and 0.45 of it for five seconds, 0.05 for 24.
const BUCKETS: Duration = Duration::from_millis(5_000);
const RELAYS: [u8; 4] = [221, 222, 223, 224];

async fn controller() -> (ControllerService, ControllerHint) {
    let mut policy =
        Policy { relays: RELAYS.iter().map(|seed| key(*seed).public()).collect(), ..Policy::default() };
    let limits = Limits { pids: 2, rate: Rate::from_mbit(1.0), bytes: 1, highest_tos: 0 };
    policy.clients.insert(key(225).public(), Quota { grants: 1, relays: 4, limits, lifetime: 60 });
    let settings = ControllerSettings::local(ip(220), policy);
    let service = ControllerService::start(key(220), &settings).await.expect("a controller");
    let hint = ControllerHint::new(service.node(), &service.addresses());
    (service, hint)
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_measure_each_other_and_the_controller_hears_at_once_when_one_falls_silent() {
    let (controller, hint) = controller().await;
    let began = Instant::now();
    let mut relays = Vec::new();
    for seed in RELAYS {
        let named = Controller { at: hint.clone(), signs: controller.signing_key() };
        let settings = RelaySettings { controllers: vec![named], ..crate::common::settings(seed, &[]) };
        relays.push(RelayService::start(key(seed), &settings).await.expect("a relay"));
    }
    let watch = controller.watch();
    let links = || watch.status().relays.iter().map(|relay| relay.links).collect::<Vec<_>>();
    until("every relay measures the three others", || links() == [[3, 0]; 4]).await;
    let is_quick = || relays[0].status().links.iter().all(|link| link.up && link.rtt_ms < 500.0);
    until("short round trips", is_quick).await;
    let status = relays[0].status();
    // Its buckets are full at first, which adds their depth.
    let kbit = status.sensing_bytes as f64 * 8e-3;
    let most = 20.0 * (began.elapsed() + BUCKETS).as_secs_f64();
    assert!(kbit < most, "{kbit} of {most} kbit");

    // A listed client learns the figures between relays; a relay is also found by its address.
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
    assert!(took < 11.0, "{took} s");
    let (figures, _) =
        asking.figures(vec![key(221).public(), key(224).public()], None).await.expect("figures");
    assert!(figures.iter().all(|told| told.loss == 10_000), "{figures:?}");
}

/// A relay behind an emulated link of 16 Mbit/s, and a controller that it registered with.
struct Stage {
    _controller: ControllerService,
    hint: ControllerHint,
    relay: RelayService,
    way: Emulation,
}

/// Capacity of the link, and the rate of a relay that sends at half of it.
const LINK: f64 = 16.0;
const OWN: f64 = 8.0;
/// Nodes that measure the relay, one after the other.
const MEASURERS: [u8; 5] = [232, 233, 234, 235, 236];
const SLOW_MEASURERS: [u8; 5] = [237, 238, 239, 240, 241];

impl Stage {
    async fn new() -> Self {
        let mut policy = Policy { relays: [key(231).public()].into(), ..Policy::default() };
        let limits = Limits { pids: 2, rate: Rate::from_mbit(1.0), bytes: 1, highest_tos: 0 };
        let quota = Quota { grants: 1, relays: 4, limits, lifetime: 60 };
        let measurers = MEASURERS.iter().chain(&SLOW_MEASURERS);
        policy.clients.extend(measurers.map(|seed| (key(*seed).public(), quota)));
        let settings = ControllerSettings::local(ip(230), policy);
        let controller = ControllerService::start(key(230), &settings).await.expect("a controller");
        let hint = ControllerHint::new(controller.node(), &controller.addresses());
        let named = Controller { at: hint.clone(), signs: controller.signing_key() };
        let settings = RelaySettings { controllers: vec![named], ..crate::common::settings(231, &[]) };
        let relay = RelayService::start(key(231), &settings).await.expect("a relay");
        let rate = Rate::from_mbit(LINK);
        let link = LinkConfig { overhead: 28, ..LinkConfig::fixed(rate, Span::from_millis(10), 100_000) };
        let way = Emulation::start(&[EmulatedPath::symmetric(relay.addresses()[0], link)]).expect("a link");
        Self { _controller: controller, hint, relay, way }
    }

    /// Waits until the relay knows that the node may measure it.
    async fn introduce(&self, client: &Arc<Endpoint>) {
        let asking = Controllers::new(client.clone(), vec![self.hint.clone()]);
        let relay = &self.relay;
        while asking.figures(vec![relay.node()], None).await.is_err() || relay.status().controllers.is_empty()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The capacity that a node measures with its first train, if it sends at this rate.
    async fn told(&self, seed: u8, own: Option<Rate>) -> LinkTold {
        let client = node(seed).await;
        let fast = SensorConfig { budget: Rate::from_mbit(4.0), interval: Span::from_secs(1) };
        let config = RelayConfig { rate: own, ..RelayConfig::new(client.node()) };
        let clock = client.clock();
        let core = Mutex::new(Relay::new(config, [8; 32], (clock.now(), UnixTime(0))));
        let sensing = Sensing::new(&client, fast, [seed; 32]);
        let sensing = sensing.behind(move |bytes| core.lock().unwrap().pass_own(clock.now(), bytes));
        let sensing = Arc::new(sensing);
        sensing.limit(own);
        let pump = tokio::spawn(sensing::pump(sensing.clone()));
        let there = GrantedRelay { node: self.relay.node(), addresses: self.way.addresses().to_vec() };
        sensing.want(&[there]);
        if seed == MEASURERS[0] {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            assert!(sensing.status().0.iter().all(|link| !link.up), "a stranger is not answered");
        }
        self.introduce(&client).await;
        until("a train has told", || sensing.status().0.iter().any(|link| link.capacity > 0)).await;
        pump.abort();
        let (mut links, stats) = sensing.status();
        println!("{links:?} {stats:?}");
        links.remove(0)
    }

    /// One of several trains measures the right value; on a busy machine others are off.
    async fn is_told(&self, measurers: [u8; 5], own: Option<Rate>, fits: impl Fn(&LinkTold) -> bool) {
        for seed in measurers {
            if fits(&self.told(seed, own).await) {
                return;
            }
        }
        panic!("none of {} trains told what the link carries", measurers.len());
    }
}

/// A node that is not a relay requests figures of a relay and measures it; the relay answers because of the controller.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_measures_a_relay_that_it_wants_to_know_and_a_train_tells_what_the_way_carries() {
    let stage = Stage::new().await;
    // A packet has 20 bytes of headers fewer than over IPv6, which trains assume.
    let fits = |link: &LinkTold| {
        (20_000..60_000).contains(&link.rtt[0]) && (13_000..19_000).contains(&link.capacity)
    };
    stage.is_told(MEASURERS, None, fits).await;
    // A relay limited to half that rate sends its trains at this rate, and knows that its limit is the bottleneck.
    let fits = |link: &LinkTold| (7_000..=8_000).contains(&link.capacity);
    stage.is_told(SLOW_MEASURERS, Some(Rate::from_mbit(OWN)), fits).await;
}
