use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread::ThreadId;

use anabranch_agent::Permission;
use anabranch_engine::{Decision, Item, PathState, PathView, Scheduler, SessionView};
use anabranch_secure::{NodeKey, ShareId};
use anabranch_wire::{DatagramFrame, Time};

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

/// The binder of an endpoint at these loopback addresses.
fn binder(hosts: &[u8]) -> Binder {
    Binder { next_id: AtomicU32::new(100), addresses: loopback(hosts), taps: Taps::default() }
}

/// A tap that panics in this thread; other threads send nothing, so the place of the panic is known.
struct Faulty(ThreadId);

impl Scheduler for Faulty {
    fn pick(&mut self, _: &SessionView, _: &[PathView], _: &Item) -> Decision {
        assert!(std::thread::current().id() != self.0, "on purpose, when something is sent");
        Decision::Wait(Time::NEVER)
    }
}

/// Two sessions with a server that has two addresses. The first session panics when the test itself sends with it.
async fn one_of_two_is_faulty(client: &Endpoint, server: &Endpoint) -> [Session; 2] {
    let target = Target::new(server.node(), server.local_addresses());
    let faulty = client.connect(&target, Config::default()).await.unwrap();
    let other = client.connect(&target, Config::default()).await.unwrap();
    leaves_from(&faulty, &[31, 32]).await;
    leaves_from(&other, &[31, 32]).await;
    let inner = client.inner.sessions.all().remove(0);
    let mut core = inner.core();
    core.engine.set_scheduler(Box::new(Faulty(std::thread::current().id())));
    core.engine
        .send_datagram(DatagramFrame { class: 0, flow: 0, data: bytes::Bytes::from_static(b"x") })
        .unwrap();
    drop(core);
    [faulty, other]
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

    let places: Vec<InterfaceAddress> =
        client.inner.sockets.all().iter().map(|socket| socket.place()).collect();
    let port = client.local_addresses()[0].port();
    let binder = binder(&[31, 32]);
    assert!(apply(&client.inner, &binder, &places[..1], port).is_ok());
    assert_eq!(client.local_addresses().len(), 1);
    leaves_from(&session, &[31]).await;

    // The old socket may still be held for a moment by the task that received from it.
    while apply(&client.inner, &binder, &places, port).is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    leaves_from(&session, &[31, 32]).await;
    assert!(client.local_addresses().iter().all(|local| local.port() == port));
}

#[tokio::test]
async fn an_address_whose_port_stays_taken_is_the_same_problem_each_time() {
    let client = Endpoint::bind(config(2, &[31])).await.unwrap();
    let mut places = vec![client.inner.sockets.all()[0].place()];
    places.push(InterfaceAddress { address: IpAddr::from([127, 0, 0, 33]), ..places[0].clone() });
    let port = client.local_addresses()[0].port();
    let other = std::net::UdpSocket::bind(("127.0.0.33", port)).unwrap();
    let attempt = || apply(&client.inner, &binder(&[31, 33]), &places, port);
    let problem = attempt().unwrap_err();
    assert!(problem.contains("127.0.0.33 is taken"), "{problem}");
    assert_eq!(attempt(), Err(problem));
    drop(other);
    assert_eq!(attempt(), Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_one_session_keeps_no_other_from_following_the_addresses() {
    let server = Endpoint::bind(config(1, &[21, 22])).await.unwrap();
    let client = Endpoint::bind(config(2, &[31, 32])).await.unwrap();
    let [faulty, other] = one_of_two_is_faulty(&client, &server).await;
    let places: Vec<InterfaceAddress> =
        client.inner.sockets.all().iter().map(|socket| socket.place()).collect();
    let port = client.local_addresses()[0].port();
    assert!(apply(&client.inner, &binder(&[31, 32]), &places[..1], port).is_ok());
    leaves_from(&other, &[31]).await;
    drop(faulty);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_one_session_keeps_the_endpoint_from_closing_no_other() {
    let server = Endpoint::bind(config(1, &[21, 22])).await.unwrap();
    let client = Endpoint::bind(config(2, &[31, 32])).await.unwrap();
    let [faulty, other] = one_of_two_is_faulty(&client, &server).await;
    client.close().await;
    assert!(faulty.close_reason().is_some());
    assert!(other.close_reason().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_while_one_sessions_paths_are_planned_ends_no_other() {
    let unlucky = Endpoint::bind(config(1, &[21, 22])).await.unwrap();
    let server = Endpoint::bind(config(3, &[23, 24])).await.unwrap();
    let (faulty, judged) = (unlucky.node(), Arc::new(AtomicBool::new(false)));
    let noted = judged.clone();
    let judge = move |peer: &PublicKey, _: SocketAddr| {
        noted.fetch_or(*peer == faulty, Ordering::SeqCst);
        assert!(*peer != faulty, "on purpose, when an announced address is judged");
        Permission::ByRule
    };
    let client = Arc::new(Endpoint::bind(config(2, &[31, 32]).address_policy(judge)).await.unwrap());
    let target = Target::new(unlucky.node(), unlucky.local_addresses());
    let dialing = client.clone();
    let faulty = tokio::spawn(async move {
        // The addresses may come before the session is handed out.
        let Ok(session) = dialing.connect(&target, Config::default()).await else { return true };
        tokio::time::timeout(Duration::from_secs(10), session.closed()).await.is_ok()
    });
    // The fault may also end the task that connects.
    assert!(faulty.await.unwrap_or(true), "the session with the fault ends");
    assert!(judged.load(Ordering::SeqCst), "no address was judged, so the test shows nothing");
    let target = Target::new(server.node(), server.local_addresses());
    let other = client.connect(&target, Config::default()).await.unwrap();
    leaves_from(&other, &[31, 32]).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_client_does_not_cost_other_sessions_their_orderly_end() {
    let far = Endpoint::bind(config(1, &[21])).await.unwrap();
    let middle = Endpoint::bind(config(2, &[31])).await.unwrap();
    let client = Endpoint::bind(config(3, &[41])).await.unwrap();
    let (to_far, to_middle) = (
        Target::new(far.node(), far.local_addresses()),
        Target::new(middle.node(), middle.local_addresses()),
    );
    let (opened, there) = tokio::join!(middle.connect(&to_far, Config::default()), far.accept());
    let (silent, accepted) = tokio::join!(client.connect(&to_middle, Config::default()), middle.accept());
    let _held = (opened.unwrap(), silent.unwrap(), accepted.unwrap());
    client.fall_silent();
    middle.close().await;
    let end = tokio::time::timeout(Duration::from_secs(10), there.unwrap().closed()).await;
    assert_eq!(end, Ok(anabranch_engine::CloseReason::Finished));
}
