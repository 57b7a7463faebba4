use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::AtomicU32;

use anabranch_engine::PathState;
use anabranch_secure::{NodeKey, ShareId};

use super::binding::{Binder, apply};
use super::*;
use crate::authorize::Verdict;

fn loopback(hosts: &[u8]) -> Addresses {
    Addresses::Exactly(hosts.iter().map(|host| IpAddr::from([127, 0, 0, *host])).collect())
}

fn config(seed: u8, hosts: &[u8]) -> EndpointConfig {
    EndpointConfig::new(NodeKey::from_random([seed; 32]))
        .addresses(loopback(hosts))
        .authorize(|_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None })
}

/// Waits until the session's active paths leave from exactly these addresses.
async fn leaves_from(session: &Session, hosts: &[u8]) {
    let wanted: BTreeSet<IpAddr> = hosts.iter().map(|host| IpAddr::from([127, 0, 0, *host])).collect();
    let used = || -> BTreeSet<IpAddr> {
        let paths = session.paths();
        let active = paths.iter().filter(|path| path.state == PathState::Active);
        active.filter_map(|path| Some(session.local_address(&path.route)?.ip())).collect()
    };
    let settled = async {
        while used() != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), settled).await.is_ok(), "{:?}", session.paths());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_takes_its_path_with_it_when_it_goes_and_brings_one_when_it_returns() {
    let server = Endpoint::bind(config(1, &[21, 22])).await.unwrap();
    let client = Endpoint::bind(config(2, &[31, 32])).await.unwrap();
    let target = Target::new(server.node(), server.local_addresses());
    let session = client.connect(&target, Config::default()).await.unwrap();
    leaves_from(&session, &[31, 32]).await;

    let places: Vec<InterfaceAddress> = client.shared.sockets().iter().map(|socket| socket.place()).collect();
    let port = client.local_addresses()[0].port();
    let addresses = loopback(&[31, 32]);
    let binder = Binder { next_id: AtomicU32::new(100), addresses, taps: Taps::default() };
    assert!(apply(&client.shared, &binder, &places[..1], port));
    assert_eq!(client.local_addresses().len(), 1);
    leaves_from(&session, &[31]).await;

    // The old socket may still be held for a moment by the task that received from it.
    while !apply(&client.shared, &binder, &places, port) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    leaves_from(&session, &[31, 32]).await;
    assert!(client.local_addresses().iter().all(|local| local.port() == port));
}

#[tokio::test]
async fn an_interface_without_an_address_is_named() {
    let addresses = Addresses::Interfaces(vec!["nosuch0".into()]);
    let error = Endpoint::bind(config(1, &[]).addresses(addresses)).await.unwrap_err();
    assert!(error.to_string().contains("nosuch0"), "{error}");
}

#[tokio::test]
async fn an_address_of_another_machine_is_refused_with_a_hint() {
    let addresses = Addresses::Exactly(vec!["192.0.2.7".parse().unwrap()]);
    let error = Endpoint::bind(config(1, &[]).addresses(addresses)).await.unwrap_err();
    assert!(error.to_string().contains("192.0.2.7 is not a usable address"), "{error}");
}
