//! A hostile peer announces addresses of third parties; tasks give up waiting for a session.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::task::{Wake, Waker};
use std::time::Duration;

use anabranch_agent::Permission;
use anabranch_engine::Config;
use anabranch_secure::NodeKey;
use tokio::net::UdpSocket;

use super::*;
use crate::authorize::Verdict;
use crate::endpoint::{Addresses, Endpoint, EndpointConfig, Target};

/// How long the victims listen: longer than a server leaves the opening of paths to its client.
const WATCHED: Duration = Duration::from_millis(4_500);

fn config(seed: u8, addresses: &[u8]) -> EndpointConfig {
    let addresses = addresses.iter().map(|last| IpAddr::from([127, 0, 0, *last])).collect();
    EndpointConfig::new(NodeKey::from_random([seed; 32]))
        .addresses(Addresses::Exactly(addresses))
        .authorize(|_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None })
}

/// A session over one path that allows others; the client does not use all of the server's addresses.
async fn pair(server: EndpointConfig, client: EndpointConfig) -> ([Endpoint; 2], [Session; 2]) {
    let (server, client) = (Endpoint::bind(server).await.unwrap(), Endpoint::bind(client).await.unwrap());
    let mut target = Target::new(server.node(), Vec::new());
    target.pins = vec![(client.local_addresses()[0].ip(), server.local_addresses()[0])];
    target.relayed = 6;
    let (there, here) = tokio::join!(client.connect(&target, Config::default()), server.accept());
    ([server, client], [there.unwrap(), here.unwrap()])
}

/// Sockets of third parties, whose addresses the hostile end announces.
async fn victims(count: u8) -> Vec<UdpSocket> {
    let mut all = Vec::new();
    for last in 0..count {
        all.push(UdpSocket::bind((IpAddr::from([127, 0, 9, last + 1]), 0)).await.unwrap());
    }
    all
}

fn announce(hostile: &Session, victims: &[UdpSocket]) {
    let inner = &hostile.handle.inner;
    for (id, victim) in (1000..).zip(victims) {
        inner.core().engine.advertise_address(id, victim.local_addr().unwrap());
    }
    inner.pump();
}

/// Sizes of the packets that reach the victims.
async fn watch(victims: &[UdpSocket]) -> Vec<usize> {
    tokio::time::sleep(WATCHED).await;
    let mut sizes = Vec::new();
    let mut packet = [0; 2048];
    for victim in victims {
        while let Ok((len, _)) = victim.try_recv_from(&mut packet) {
            sizes.push(len);
        }
    }
    sizes
}

/// The same where packets are expected: on a busy machine they may be late.
async fn watch_attempts(victims: &[UdpSocket]) -> Vec<usize> {
    for _ in 0..10 {
        let sizes = watch(victims).await;
        if !sizes.is_empty() {
            return sizes;
        }
    }
    panic!("nothing was tried, so the test shows nothing");
}

fn bytes_sent(session: &Session) -> u64 {
    session.paths().iter().map(|path| path.stats.bytes_sent).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_client_has_a_server_send_no_more_than_it_sent_and_in_small_packets() {
    let (_endpoints, [hostile, _here]) = pair(config(1, &[1, 2]), config(2, &[3])).await;
    let victims = victims(12).await;
    announce(&hostile, &victims);
    let sizes = watch_attempts(&victims).await;
    let (reflected, sent) = (sizes.iter().sum::<usize>() as u64, bytes_sent(&hostile));
    assert!(sizes.iter().all(|size| *size <= 48), "{sizes:?}");
    assert!(reflected <= sent, "{reflected} bytes for {sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_server_has_a_client_send_no_more_than_it_sent_and_in_small_packets() {
    let (server, client) = (config(1, &[1]), config(2, &[3]));
    let (server, client) = (Endpoint::bind(server).await.unwrap(), Endpoint::bind(client).await.unwrap());
    let target = Target::new(server.node(), server.local_addresses());
    let (honest, hostile) = tokio::join!(client.connect(&target, Config::default()), server.accept());
    let (_honest, hostile) = (honest.unwrap(), hostile.unwrap());
    let victims = victims(12).await;
    announce(&hostile, &victims);
    let sizes = watch_attempts(&victims).await;
    let (reflected, sent) = (sizes.iter().sum::<usize>() as u64, bytes_sent(&hostile));
    assert!(sizes.iter().all(|size| *size <= 48), "{sizes:?}");
    assert!(reflected <= sent, "{reflected} bytes for {sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_the_address_policy_denies_has_nothing_sent_elsewhere() {
    let server = config(1, &[1, 2]).address_policy(|_: &PublicKey, _| Permission::Denied);
    let (_endpoints, [hostile, _here]) = pair(server, config(2, &[3])).await;
    let victims = victims(4).await;
    announce(&hostile, &victims);
    assert_eq!(watch(&victims).await, [0; 0]);
}

#[tokio::test]
async fn a_peer_at_a_loopback_address_has_no_private_or_multicast_address_tried() {
    let (_endpoints, [there, _here]) = pair(config(1, &[1]), config(2, &[3])).await;
    let inner = &there.handle.inner;
    let (endpoint, reached) = (&inner.endpoint, inner.core().agent.reached(&[]));
    let may_try = |address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        endpoint.may_try(address, &inner.peer, reached)
    };
    for forbidden in [
        "10.0.0.1:53",
        "192.168.1.1:53",
        "169.254.169.254:80",
        "[::ffff:169.254.169.254]:80",
        "[fd00::1]:53",
        "100.64.0.1:53",
        "224.0.0.251:5353",
        "255.255.255.255:9",
        "0.0.0.0:9",
        "8.8.8.8:0",
    ] {
        assert!(!may_try(forbidden), "{forbidden}");
    }
    assert!(may_try("127.0.0.9:9") && may_try("8.8.8.8:53"));
}

/// A task that is never run.
struct Idle;

impl Wake for Idle {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test]
async fn waits_for_the_end_that_are_given_up_leave_nothing_behind() {
    let (_endpoints, [there, _here]) = pair(config(1, &[1]), config(2, &[3])).await;
    let task = Arc::new(Idle);
    let waker = Waker::from(task.clone());
    let mut context = Context::from_waker(&waker);
    assert!(pin!(there.closed()).poll(&mut context).is_pending());
    assert!(pin!(there.forgotten()).poll(&mut context).is_pending());
    drop(waker);
    assert_eq!(Arc::strong_count(&task), 1);
}
