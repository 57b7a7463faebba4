//! Shares of sessions, and the end of sessions whose keys are removed, with real relays, controllers and sockets.

use crate::common::controllers::controller;
use crate::common::{carry, join, keep, node, relay, settings, through_relays, until};
use anabranch_daemon::controller::ControllerService;
use anabranch_daemon::controller::config::{ControllerSettings, StoreSettings};
use anabranch_net::{Config, ConnectError, Endpoint, Refusal, Session, Target};
use anabranch_node::{ControllerHint, Entry, RelayConnection};
use anabranch_overlay::admission::SESSIONS_PER_KEY;
use anabranch_wire::close_code;

/// Opens sessions until the service refuses one; returns the open sessions and the refusal.
async fn open_many(client: &Endpoint, target: &Target) -> (Vec<Session>, ConnectError) {
    let mut open = Vec::new();
    loop {
        match client.connect(target, Config::default()).await {
            Ok(session) => open.push(session),
            Err(error) => return (open, error),
        }
        assert!(open.len() <= 2 * SESSIONS_PER_KEY, "no share is enforced");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_user_of_a_relay_gets_its_share_of_sessions_and_others_are_served() {
    let (greedy, honest) = (node(162).await, node(163).await);
    let (service, hint) = relay(164, &[162, 163]).await;
    let target = Target::new(service.node(), service.addresses());
    let (open, refused) = open_many(&greedy, &target).await;
    assert_eq!(refused, ConnectError::Refused(Refusal::Busy));
    // The last sessions may be admitted before the earlier ones are counted; they are closed at once.
    let count = || open.iter().filter(|session| session.close_reason().is_none()).count();
    until("the share is kept", || {
        count() == SESSIONS_PER_KEY && service.status().sessions == SESSIONS_PER_KEY
    })
    .await;
    assert!(RelayConnection::open(&honest, &hint, &Entry::default()).await.is_ok());
    drop(open);
    until("the places are free", || service.status().sessions == 0).await;
    assert!(RelayConnection::open(&greedy, &hint, &Entry::default()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_controller_gets_its_share_of_sessions_and_relays_are_served() {
    let controllers = controller(165, (&[166], 167), 600).await;
    let client = node(167).await;
    let service = &controllers.running[0];
    let target = Target::new(service.node(), service.addresses());
    let (open, refused) = open_many(&client, &target).await;
    assert_eq!(refused, ConnectError::Refused(Refusal::Busy));
    let count = || open.iter().filter(|session| session.close_reason().is_none()).count();
    until("the share is kept", || count() == SESSIONS_PER_KEY).await;
    controllers.relay(166).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_user_loses_paths_and_sessions_and_gets_the_reason() {
    let (removed, stays, server) = (node(172).await, node(173).await, node(175).await);
    let (service, _hint) = relay(174, &[172, 173]).await;
    let hint = anabranch_secure::RelayHint { node: service.node(), addresses: service.addresses() };
    let (here, _there) = join(&removed, &server, 1).await;
    let _paths = keep((&removed, &server), &here, &[&hint]).await;
    let target = Target::new(service.node(), service.addresses());
    let idle = removed.connect(&target, Config::default()).await.unwrap();
    let (here2, there2) = join(&stays, &server, 1).await;
    let _paths2 = keep((&stays, &server), &here2, &[&hint]).await;
    service.reload(&settings(174, &[173]));
    until("the path is over", || through_relays(&here).is_empty() && service.status().flows == 1).await;
    let reason = tokio::time::timeout(std::time::Duration::from_secs(20), idle.closed()).await;
    let reason = format!("{:?}", reason.expect("its session ends"));
    assert!(reason.contains("no longer lists this key"), "{reason}");
    carry(&here2, &there2, 200_000).await;
    assert_eq!(through_relays(&here2).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_removed_from_a_controller_loses_session_grants_and_paths() {
    let controllers = controller(180, (&[181], 182), 600).await;
    let relay = controllers.relay(181).await;
    let (client, server) = (node(182).await, node(183).await);
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let (here, _there, _paths) = crate::common::controllers::session(&client, &server, &grants).await;
    until("a granted path", || through_relays(&here).len() == 1).await;
    let service = &controllers.running[0];
    let target = Target::new(service.node(), service.addresses());
    let idle = client.connect(&target, Config::default()).await.unwrap();
    let mut without = controllers.settings.clone();
    without.policy.clients.clear();
    service.reload(&without);
    let closed = tokio::time::timeout(std::time::Duration::from_secs(20), idle.closed()).await;
    let reason = format!("{:?}", closed.expect("its session ends"));
    assert!(reason.contains("no longer lists this key"), "{reason} {}", close_code::NOT_ALLOWED);
    until("the granted path is over", || through_relays(&here).is_empty() && relay.status().flows == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_others_covered_loses_its_grants_when_others_are_denied() {
    let controllers = controller(187, (&[188], 189), 600).await;
    let service = &controllers.running[0];
    let mut settings = controllers.settings.clone();
    settings.policy.others = settings.policy.clients.remove(&crate::common::key(189).public());
    service.reload(&settings);
    let _relay = controllers.relay(188).await;
    let (client, dir) = (node(189).await, tempfile::tempdir().unwrap());
    controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    assert_eq!(service.watch().grants(client.node()).await.unwrap().len(), 1);
    settings.policy.others = None;
    service.reload(&settings);
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while !service.watch().grants(client.node()).await.unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < end, "its grants stay");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_taken_off_the_list_of_a_stopped_controller_loses_its_grants_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut controllers = controller(184, (&[185], 186), 600).await;
    controllers.running.pop().unwrap().close().await;
    controllers.settings.store = StoreSettings::File(dir.path().join("controller.redb"));
    // The tasks of the one before may hold its store for a moment.
    let start = |settings: ControllerSettings| async move {
        for _ in 0..2_000 {
            if let Ok(service) = ControllerService::start(crate::common::key(184), &settings).await {
                return service;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("it does not start");
    };
    let first = start(controllers.settings.clone()).await;
    controllers.hints = vec![ControllerHint::new(first.node(), &first.addresses())];
    controllers.running.push(first);
    let _relay = controllers.relay(185).await;
    let client = node(186).await;
    controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let first = controllers.running.pop().unwrap();
    assert_eq!(first.watch().grants(client.node()).await.unwrap().len(), 1);
    first.close().await;
    let same = start(controllers.settings.clone()).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(same.watch().grants(client.node()).await.unwrap().len(), 1, "the client is still listed");
    same.close().await;
    controllers.settings.policy.clients.clear();
    let other = start(controllers.settings.clone()).await;
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while !other.watch().grants(client.node()).await.unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < end, "its grants stay");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
