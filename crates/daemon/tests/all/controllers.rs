//! A controller on a loopback address, with honest and dishonest relays and clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_daemon::controller::config::ControllerSettings;
use anabranch_daemon::controller::registration::{Registrant, Registration, Standing};
use anabranch_daemon::controller::{ControllerService, signer};
use anabranch_net::{Config, ConnectError, Endpoint, PublicKey, Rate, Refusal, Target};
use anabranch_node::{ControllerHint, Controllers, LinkError};
use anabranch_overlay::controller::message::{Again, Reply, Request};
use anabranch_overlay::controller::{Ask, Load, Location, Offer, Policy, Quota, RequestId};
use anabranch_overlay::grant::{GrantId, Limits, UnixTime, open};
use anabranch_overlay::relay::Heartbeat;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const RELAY: u8 = 61;
const CLIENT: u8 = 62;
const STRANGER: u8 = 63;

fn limits() -> Limits {
    Limits { pids: 4, rate: Rate::from_mbit(10.0), bytes: 1 << 30, highest_tos: 15 }
}

async fn controller(seed: u8) -> (ControllerService, ControllerHint) {
    let mut policy = Policy::default();
    policy.relays.insert(crate::common::key(RELAY).public());
    let quota = Quota { grants: 2, relays: 2, limits: limits(), lifetime: 600 };
    policy.clients.insert(crate::common::key(CLIENT).public(), quota);
    let settings = ControllerSettings::local(crate::common::ip(seed), policy);
    let service = ControllerService::start(crate::common::key(seed), &settings).await.expect("a controller");
    let hint = ControllerHint::new(service.node(), &service.addresses());
    (service, hint)
}

fn offer() -> Offer {
    let addresses = vec!["127.0.0.61:4600".parse().unwrap()];
    Offer { place: Location("here".into()), addresses, pids: 8, rate: None }
}

fn ask(number: u8) -> Ask {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let request = RequestId { made: UnixTime(now), random: [number; 8] };
    Ask { request, relays: 1, least: 1, limits: limits(), lifetime: 60 }
}

/// Sends requests over a new session; returns the answers.
async fn say(endpoint: &Endpoint, hint: &ControllerHint, requests: &[Request]) -> Vec<Reply> {
    let at = hint.0.resolve().await.expect("addresses");
    let target = Target::new(at.node, at.addresses);
    let session = endpoint.connect(&target, Config::default()).await.expect("let in");
    let mut stream = session.open_stream().await.unwrap();
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    stream.write_all(&bytes).await.unwrap();
    // The controller may have refused and stopped reading, but its answer arrives.
    if let Err(error) = stream.shutdown().await {
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{error}");
    }
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    let mut replies = Vec::new();
    while let Some((reply, len)) = Reply::decode(&read).unwrap() {
        read.drain(..len);
        replies.push(reply);
    }
    replies
}

#[derive(Default)]
struct Heard(AtomicUsize);

impl Registrant for Heard {
    fn offer(&self) -> Offer {
        offer()
    }

    fn load(&self) -> Load {
        Load::default()
    }

    fn heartbeat(&self, _: &PublicKey, heartbeat: &Heartbeat) -> Vec<GrantId> {
        assert!(heartbeat.time > UnixTime(1_700_000_000));
        self.0.fetch_add(1, Ordering::Relaxed);
        heartbeat.revoked.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_a_grant_for_a_relay_that_registered_and_the_same_when_it_asks_again() {
    let (_first, hint) = controller(60).await;
    let client = Controllers::new(crate::common::node(CLIENT).await, vec![hint.clone()]);
    let none = client.allocate(&ask(1)).await.unwrap_err();
    assert!(none.to_string().contains("there is none: of those listed here, 1 was not heard"), "{none}");

    let heard = Arc::new(Heard::default());
    let relay = crate::common::node(RELAY).await;
    let registration = Registration::start(&relay, std::slice::from_ref(&hint), 1, &heard);
    crate::common::until("a heartbeat", || heard.0.load(Ordering::Relaxed) > 0).await;
    assert_eq!(registration.standings(), [(hint.node(), Standing::Registered)]);
    let granted = client.allocate(&ask(1)).await.unwrap();
    let grant = open(&granted.bytes, &[signer(&crate::common::key(60)).public()]).unwrap();
    assert_eq!((grant.client, &grant.relays[..]), (crate::common::key(CLIENT).public(), &[relay.node()][..]));
    assert_eq!(granted.relays[0].addresses, offer().addresses);
    assert_eq!(client.allocate(&ask(1)).await.unwrap(), granted);
    let over = client.allocate(&ask(2)).await.unwrap_err();
    assert!(over.to_string().contains("the quota allows"), "{over}");
    client.give_back(grant.id).await.unwrap();
    client.allocate(&ask(3)).await.unwrap();

    // A relay that ends its session is not granted any more.
    drop(registration);
    relay.close().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let why = client.give_back(grant.id).await.unwrap_err();
    assert!(matches!(why, LinkError::Denied { again: Again::Never, .. }), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlisted_key_gets_no_session_and_a_client_cannot_register_as_a_relay() {
    let (_controller, hint) = controller(64).await;
    let stranger = Controllers::new(crate::common::node(STRANGER).await, vec![hint.clone()]);
    assert!(matches!(stranger.allocate(&ask(1)).await, Err(LinkError::Connect(_))));
    let endpoint = crate::common::node(CLIENT).await;
    let hello = Request::Hello { version: 1 };
    let replies = say(&endpoint, &hint, &[hello, Request::Register { instance: 1, offer: offer() }]).await;
    assert!(matches!(&replies[1], Reply::Denied { why, .. } if why.contains("not listed")), "{replies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_removed_loses_its_session_and_gets_neither_grants_nor_figures() {
    let (service, hint) = controller(66).await;
    let client = Controllers::new(crate::common::node(CLIENT).await, vec![hint]);
    assert_eq!(client.figures(Vec::new(), None).await, Ok((Vec::new(), None)));
    service.reload(&ControllerSettings::local(crate::common::ip(66), Policy::default()));
    let refused = |error: &LinkError| {
        matches!(error, LinkError::Connect(ConnectError::Refused(Refusal::NotAuthorised)))
    };
    // Requests may be in progress until the session ends.
    let begin = Instant::now();
    loop {
        let why = client.figures(Vec::new(), None).await.expect_err("figures for a stranger");
        if refused(&why) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let granted = client.allocate(&ask(1)).await;
    assert!(granted.as_ref().is_err_and(refused), "{granted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_another_version_and_of_a_second_machine_with_the_key_say_what_to_do() {
    let (_controller, hint) = controller(65).await;
    let endpoint = crate::common::node(RELAY).await;
    let replies = say(&endpoint, &hint, &[Request::Hello { version: 9 }]).await;
    assert!(
        matches!(&replies[..], [Reply::Denied { why, again: Again::Never }] if why.contains('9') && why.contains("update")),
        "{replies:?}"
    );
    let replies = say(&endpoint, &hint, &[Request::Register { instance: 1, offer: offer() }]).await;
    assert!(matches!(&replies[..], [Reply::Denied { why, .. }] if why.contains("greeting")), "{replies:?}");

    let hello = Request::Hello { version: 1 };
    let both = [
        hello,
        Request::Register { instance: 1, offer: offer() },
        // At the same address, it would count as the first relay after a crash.
        Request::Register { instance: 2, offer: Offer { addresses: Vec::new(), ..offer() } },
    ];
    let replies = say(&endpoint, &hint, &both).await;
    assert!(matches!(&replies[1], Reply::Registered { signs } if signs.starts_with("abs1")), "{replies:?}");
    assert!(
        matches!(&replies[2], Reply::Denied { why, .. } if why.contains("127.0.0.61:4600") && why.contains("keys new")),
        "{replies:?}"
    );
}
