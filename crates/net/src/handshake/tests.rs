use std::net::IpAddr;
use std::sync::atomic::Ordering;

use anabranch_engine::PidChange;
use anabranch_secure::{Dial, Initiator, NodeKey, ShareId};
use anabranch_wire::{Header, PathId, Span};

use super::*;
use crate::endpoint::{Addresses, Endpoint, EndpointConfig, Target};
use crate::pids::random;

async fn endpoint(seed: u8) -> Endpoint {
    let config = EndpointConfig::new(NodeKey::from_random([seed; 32]))
        .addresses(Addresses::Exactly(vec![IpAddr::from([127, 0, 0, 1])]))
        .authorize(|_: &anabranch_secure::PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None });
    Endpoint::bind(config).await.expect("it binds")
}

/// A datagram from an unknown address, at the endpoint's first socket.
fn arrival(endpoint: &Endpoint, size: usize) -> Arrival {
    let socket = endpoint.sockets()[0].id;
    let remote = "127.0.0.9:9".parse().expect("an address");
    Arrival { route: Route { socket, remote }, size, ecn: Ecn::NotEct, waited: Span::ZERO }
}

#[tokio::test]
async fn a_reset_is_shorter_than_what_it_answers() {
    let endpoint = endpoint(1).await;
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").expect("it binds");
    stranger.set_nonblocking(true).expect("it can");
    let mut answers = Vec::new();
    for (second, size) in (Header::LEN..200).enumerate() {
        let now = Time::ZERO + Span::from_secs(second as u64);
        let mut arrival = arrival(&endpoint, size);
        arrival.route.remote = stranger.local_addr().expect("it has one");
        reset(&endpoint.inner, now, arrival, Pid(77));
        let mut answer = [0; 1_500];
        match stranger.recv(&mut answer) {
            Ok(len) => {
                assert!(len < size, "{len} bytes for {size}");
                answers.push(len);
            }
            Err(_) => assert!(answers.is_empty(), "none for {size}"),
        }
    }
    assert!(answers.len() > 100, "they were sent");
}

#[tokio::test]
async fn packets_late_for_a_closed_path_are_answered_by_no_reset() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let target = Target::new(server.node(), server.local_addresses());
    let session = client.connect(&target, anabranch_engine::Config::default()).await.expect("it connects");
    let inner = client.inner.sessions.all().remove(0);
    client.inner.sessions.pids.apply(&inner, PidChange::Retire { pid: Pid(77), path: PathId(9) });
    for (pid, sent) in [(Pid(77), 0), (Pid(78), 1)] {
        reset(&client.inner, Time::ZERO, arrival(&client, 1_200), pid);
        assert_eq!(client.stats().resets_sent, sent, "{pid:?}");
    }
    drop(session);
}

#[tokio::test]
async fn of_the_copies_of_one_init_few_are_remembered() {
    let endpoint = endpoint(1).await;
    let (inner, now) = (&endpoint.inner, endpoint.inner.clock.now());
    let dial = Dial { remote: endpoint.node(), credential: None };
    let initiator = Initiator::new(&NodeKey::from_random([2; 32]), &dial, Pid(5), &[], random());
    let initiator = initiator.expect("the key is one");
    let arrival = arrival(&endpoint, 1_200);
    let Admission::Challenge { body, .. } =
        inner.cookies.admit(now, arrival.route.remote, &initiator.init_body(None))
    else {
        panic!("an address has to be proven");
    };
    let init = initiator.init_body(Some(&initiator.open_cookie(&body).expect("it answers the INIT")));
    // Nothing else runs in between on this runtime's one thread, so the first one is being computed all the time.
    for _ in 0..1_000 {
        handle_init(inner, now, arrival, &init);
    }
    assert_eq!(inner.counters.inits_dropped.load(Ordering::Relaxed), 0);
    let inits = inner.sessions.inits();
    let [InitState::Pending(copies)] = &inits.values().collect::<Vec<_>>()[..] else { panic!("one waits") };
    assert_eq!(copies.len(), MOST_COPIES);
}

/// An INIT of a new client with a cookie.
fn proven_init(endpoint: &Endpoint, arrival: Arrival) -> Vec<u8> {
    let (inner, now) = (&endpoint.inner, endpoint.inner.clock.now());
    let engine: Engine<bytes::Bytes> =
        Engine::connect(Arc::default(), &[], inner.new_pids(), inner.budget.clone(), now);
    let (params, dial) = (engine.local_params(), Dial { remote: endpoint.node(), credential: None });
    let key = NodeKey::from_random([2; 32]);
    let initiator = Initiator::new(&key, &dial, params.pid, &encoded(params), random()).expect("a key");
    let admission = inner.cookies.admit(now, arrival.route.remote, &initiator.init_body(None));
    let Admission::Challenge { body, .. } = admission else { panic!("an address has to be proven") };
    initiator.init_body(Some(&initiator.open_cookie(&body).expect("it answers the INIT")))
}

#[tokio::test]
async fn an_init_that_waits_while_its_endpoint_closes_opens_no_session() {
    let endpoint = endpoint(1).await;
    let (inner, arrival) = (&endpoint.inner, arrival(&endpoint, 1_200));
    for closing in [false, true] {
        handle_init(inner, inner.clock.now(), arrival, &proven_init(&endpoint, arrival));
        inner.closing.send_replace(closing);
        open(inner, inner.door.pop().expect("it waits"));
        assert_eq!(inner.sessions.count(), 1, "{closing}");
    }
    assert_eq!(inner.sessions.inits().len(), 1);
}

/// A cookie does not contain its address, so anyone who saw one can repeat it from anywhere.
#[tokio::test]
async fn of_a_cookie_repeated_from_everywhere_only_what_comes_from_where_init_went_is_kept() {
    let (server, client) = (endpoint(1).await, std::sync::Arc::new(endpoint(2).await));
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("it binds");
    let target = Target::new(server.node(), vec![silent.local_addr().expect("it has one")]);
    let caller = client.clone();
    let calling =
        tokio::spawn(async move { drop(caller.connect(&target, anabranch_engine::Config::default()).await) });
    let mut init = [0; 2_000];
    let (len, from) = silent.recv_from(&mut init).await.expect("it calls");
    let (_, body) = Header::decode(&init[..len]).expect("a header");
    let Admission::Challenge { pid, body } = server.inner.cookies.admit(server.inner.clock.now(), from, body)
    else {
        panic!("it is asked for a cookie")
    };
    let (session, _) = client.inner.sessions.pids.find(pid).expect("it is there");
    let socket = client.sockets()[0].id;
    let kept_of = |remote| {
        handle_cookie(&session, client.inner.clock.now(), Route { socket, remote }, &body);
        match &session.core().handshake {
            Handshake::Client(dialing) => dialing.cookies.len(),
            _ => panic!("nobody has answered"),
        }
    };
    for last in 0..100 {
        assert_eq!(kept_of(([192, 0, 2, last], 9).into()), 0);
    }
    assert_eq!(kept_of(silent.local_addr().expect("it has one")), 1);
    calling.abort();
}

#[tokio::test]
async fn an_answer_from_where_no_init_went_is_ignored() {
    let (server, client) = (endpoint(1).await, std::sync::Arc::new(endpoint(2).await));
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("it binds");
    let right = silent.local_addr().expect("it has one");
    let (target, caller) = (Target::new(server.node(), vec![right]), client.clone());
    let calling =
        tokio::spawn(async move { drop(caller.connect(&target, anabranch_engine::Config::default()).await) });
    let mut init = [0; 2_000];
    let (len, _) = silent.recv_from(&mut init).await.expect("it calls");
    let (_, body) = Header::decode(&init[..len]).expect("a header");
    let (inner, now) = (&server.inner, client.inner.clock.now());
    let pending = read_init(&inner.key, body, random()).expect("it is for this node");
    let called = decode_params(&pending.params).expect("parameters");
    let (session, _) = client.inner.sessions.pids.find(called.pid).expect("it is there");
    let engine: Engine<bytes::Bytes> =
        Engine::connect(Arc::default(), &[], inner.new_pids(), inner.budget.clone(), now);
    let answer = pending.accept(None, &encoded(engine.local_params())).expect("it needs no secret");
    let socket = client.sockets()[0].id;
    for (remote, paths) in [(([192, 0, 2, 1], 9).into(), 0), (right, 1)] {
        let arrival =
            Arrival { route: Route { socket, remote }, size: 1_200, ecn: Ecn::NotEct, waited: Span::ZERO };
        handle_init_ack(&session, now, arrival, &answer.body);
        assert_eq!(session.core().engine.paths().len(), paths, "{remote}");
    }
    calling.abort();
}
