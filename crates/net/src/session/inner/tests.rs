//! Internal errors caused on purpose: which parts they end, and which they do not affect.

use std::net::IpAddr;
use std::time::Duration;

use anabranch_engine::{
    Arrival, Config, DatagramSource, Decision, Ecn, Item, PathView, Pulled, Scheduler, SessionView,
};
use anabranch_secure::{NodeKey, ShareId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use anabranch_wire::{Frame, Frames, Fsn, Header, Packet, PathId, Span, StreamFrame};
use bytes::{Bytes, BytesMut};

use super::*;
use crate::authorize::Verdict;
use crate::buffers::thrifty;
use crate::endpoint::{Addresses, Endpoint, EndpointConfig, Limits, Target};
use crate::foreign::{Foreign, ForeignRun, Outlet};
use crate::session::Session;

fn config(seed: u8) -> EndpointConfig {
    let addresses = Addresses::Exactly(vec![IpAddr::from([127, 0, 0, 1])]);
    let config = EndpointConfig::new(NodeKey::from_random([seed; 32])).addresses(addresses);
    config.authorize(|_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None })
}

async fn endpoint(seed: u8) -> Endpoint {
    Endpoint::bind(config(seed)).await.unwrap()
}

async fn pair(server: &Endpoint, client: &Endpoint) -> (Session, Session) {
    let target = Target::new(server.node(), server.local_addresses());
    let (there, here) = tokio::join!(client.connect(&target, Config::default()), server.accept());
    (there.unwrap(), here.unwrap())
}

/// Checks that a message arrives in each direction, over separate streams.
async fn still_works((there, here): (&Session, &Session)) {
    let exchange = async {
        let mut out = there.open_stream().await.unwrap();
        out.write_all(b"hello").await.unwrap();
        out.finish().unwrap();
        let mut back = here.accept_stream().await.unwrap();
        let mut all = Vec::new();
        back.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hello");
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), exchange).await.is_ok(), "nothing comes through");
}

async fn ends(session: &Session) -> CloseReason {
    tokio::time::timeout(Duration::from_secs(10), session.closed()).await.expect("it ends")
}

/// A panic in the midst of `work`.
fn fault(session: &Arc<SessionInner>, work: impl FnOnce(&SessionInner) + Send + 'static) {
    let session = session.clone();
    assert!(std::thread::spawn(move || work(&session)).join().is_err());
}

fn inner_of(endpoint: &Endpoint, session: &Session) -> Arc<SessionInner> {
    let all = endpoint.inner.sessions.all();
    all.into_iter().find(|inner| inner.peer == session.peer() && inner.close_reason().is_none()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_one_session_ends_it_at_both_ends_and_no_other() {
    let (server, clients) = (endpoint(1).await, [endpoint(2).await, endpoint(3).await]);
    let (there, here) = pair(&server, &clients[0]).await;
    let others = pair(&server, &clients[1]).await;
    fault(&inner_of(&server, &here), |session| {
        let _core = session.core();
        panic!("on purpose, with the engine held");
    });
    assert!(matches!(ends(&here).await, CloseReason::Local { code: close_code::INTERNAL, .. }));
    if let Ok(mut lost) = there.open_stream().await {
        let _ = lost.write_all(b"anybody there?").await;
    }
    assert_eq!(ends(&there).await, CloseReason::Reset);
    still_works((&others.0, &others.1)).await;
    let (again, and_here) = pair(&server, &clients[0]).await;
    still_works((&again, &and_here)).await;
    let two_left = async {
        while server.inner.sessions.all().len() != 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(10), two_left).await.is_ok(),
        "what has ended is forgotten"
    );
}

/// Carries enough for windows to grow although a sender skips numbers. Returns the largest size of the windows, and the
/// server's end.
async fn carry((there, here): (&Session, Session), inner: &SessionInner) -> (usize, Session) {
    let mut out = there.open_stream().await.unwrap();
    let reading = tokio::spawn(async move {
        let mut stream = here.accept_stream().await.unwrap();
        while let Ok(Some(_)) = stream.read_chunk(1 << 20).await {}
        here
    });
    let mut most = 0;
    for _ in 0..64 {
        out.write_all(&vec![7; 64 << 10]).await.unwrap();
        most = most.max(window_memory(inner));
    }
    out.finish().unwrap();
    let here = reading.await.unwrap();
    (most.max(window_memory(inner)), here)
}

fn window_memory(inner: &SessionInner) -> usize {
    lock_keys(&inner.protection).as_ref().map_or(0, Protection::window_memory)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_at_rest_holds_no_windows_for_numbers_that_never_came() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, here) = pair(&server, &client).await;
    let inner = inner_of(&server, &here);
    let reserved = || inner.windows.lock().unwrap().held();
    let (most, here) = carry((&there, here), &inner).await;
    assert!(most >= 128 && reserved() == window_memory(&inner) as u64, "{most} {}", reserved());
    let at_rest = async {
        while reserved() > 16 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), at_rest).await.is_ok(), "{} bytes", reserved());
    assert_eq!(window_memory(&inner), 16);
    still_works((&there, &here)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_budget_of_all_sessions_has_no_room_windows_do_not_grow() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, here) = pair(&server, &client).await;
    let inner = inner_of(&server, &here);
    let budget = server.inner.budget.clone();
    let mut others = Reservation::new(budget.clone());
    assert!(others.hold(budget.left() - server.inner.limits.memory / 2));
    let (most, here) = carry((&there, here), &inner).await;
    assert!(most <= 16, "{most} bytes");
    still_works((&there, &here)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_while_packets_are_sent_costs_those_packets() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, here) = pair(&server, &client).await;
    fault(&inner_of(&client, &there), |session| {
        let _outbox = session.outbox();
        panic!("on purpose, while sending");
    });
    still_works((&there, &here)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_with_the_keys_ends_the_session() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, _here) = pair(&server, &client).await;
    fault(&inner_of(&client, &there), |session| {
        let _keys = lock_keys(&session.protection);
        panic!("on purpose, while sealing");
    });
    // The session may have had something to send by itself.
    if let Ok(mut stream) = there.open_stream().await {
        let _ = stream.write_all(b"sealed with nothing?").await;
    }
    assert!(matches!(ends(&there).await, CloseReason::Local { code: close_code::KEYS_EXHAUSTED, .. }));
}

/// As if other tasks wanted something sent all the time.
struct Restless(std::sync::Weak<SessionInner>);

impl DatagramSource<Bytes> for Restless {
    fn is_waiting(&self) -> bool {
        if let Some(session) = self.0.upgrade() {
            session.wanted.store(true, Ordering::SeqCst);
        }
        false
    }

    fn next(&mut self, _: &SessionView, _: &[PathView]) -> Pulled<Bytes> {
        Pulled::Wait(Time::NEVER)
    }
}

/// On this runtime's one thread, the driver task does not run in between.
#[tokio::test]
async fn a_task_that_sends_for_others_comes_back_to_its_own_work() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, _here) = pair(&server, &client).await;
    let inner = inner_of(&client, &there);
    inner.core().engine.set_datagram_source(Box::new(Restless(Arc::downgrade(&inner))));
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        inner.pump();
        done.send(inner.wanted.load(Ordering::SeqCst))
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok(true), "true: the driver goes on");
}

/// A scheduler of an application's own with a fault.
struct Torn;

impl Scheduler for Torn {
    fn pick(&mut self, _: &SessionView, _: &[PathView], _: &Item) -> Decision {
        panic!("on purpose, in the driver's task");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_a_sessions_own_task_tells_those_who_wait() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, here) = pair(&server, &client).await;
    let waiting = {
        let there = there.clone();
        tokio::spawn(async move { there.accept_stream().await.is_err() })
    };
    there.set_scheduler(Box::new(Torn));
    let mut stream = there.open_stream().await.unwrap();
    let _ = stream.write_all(b"who sends this?").await;
    assert!(matches!(ends(&there).await, CloseReason::Local { code: close_code::INTERNAL, .. }));
    assert!(tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("it is woken").unwrap());
    let gone = async {
        while !client.inner.sessions.all().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), gone).await.is_ok(), "what has ended is forgotten");
    drop((stream, here));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_task_is_gone_tells_those_who_wait() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, _here) = pair(&server, &client).await;
    let inner = inner_of(&client, &there);
    let waiting = tokio::spawn(async move { there.accept_stream().await.is_err() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    // As a runtime does that ends before the task has run.
    drop(inner.clone().drive());
    assert!(tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("it is woken").unwrap());
    // The first reason counts, whatever the new engine reports.
    inner.abort(close_code::NONE, "ended by its application too");
    assert!(matches!(inner.close_reason(), Some(CloseReason::Local { code: close_code::INTERNAL, .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_the_events_of_a_forgotten_session_gets_their_end() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, _here) = pair(&server, &client).await;
    // As a runtime does that ends before the task has run.
    drop(inner_of(&client, &there).drive());
    let mut events = there.events();
    let next = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
    assert!(matches!(next, Ok(None)), "{next:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_runs_that_bring_little_new_again_and_again_keep_few_buffers() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, here) = pair(&server, &client).await;
    let mut stream = there.open_stream().await.unwrap();
    stream.write_all(b"x").await.unwrap();
    let _stream = here.accept_stream().await.unwrap();
    let inner = inner_of(&server, &here);
    let route = inner.core().engine.paths()[0].route;
    let arrival = Arrival { route, size: 1_200, ecn: Ecn::NotEct, waited: Span::ZERO };
    const MOVED: u64 = 257;
    let send = |round: u64| {
        let buffer = Bytes::from(vec![0; 1 << 16]);
        let packet = |at: u64| {
            let data = buffer.slice(at as usize * 1_000..(at as usize + 1) * 1_000);
            let offset = 1_000 + round * MOVED + at * 1_000;
            let frame = Frame::Stream(StreamFrame { stream: stream.id(), offset, fin: false, data });
            let fsn = Fsn(10_000 + round * 33 + at);
            let packet = Packet { path: PathId::FIRST, fsn, frames: Frames::from_iter([frame]) };
            Decoded { session: 0, buffer: 0, arrival, packet: Some(packet) }
        };
        let mut batch: Vec<Decoded> = (0..33).map(packet).collect();
        thrifty(batch.iter_mut().filter_map(|decoded| decoded.packet.as_mut()));
        inner.deliver(server.clock().now(), 0, &mut batch);
        drop(batch);
        buffer
    };
    let buffers: Vec<Bytes> = (0..200).map(send).collect();
    let (held, kept) = (33_000 + 199 * MOVED as usize, buffers.iter().filter(|buffer| !buffer.is_unique()));
    let kept = kept.count() << 16;
    assert!((1 << 16..=3 * held).contains(&kept), "{kept} bytes of buffers for {held}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_sessions_that_answer_late_packets_take_few_places() {
    // They would answer for half a minute.
    let mut settings = Config::default();
    settings.failure.rto.min = settings.failure.rto.max;
    let limits = Limits { sessions: 32, ..Limits::default() };
    let server = EndpointConfig { limits, ..config(1).session(settings) };
    let (server, client) = (Endpoint::bind(server).await.unwrap(), endpoint(2).await);
    for _ in 0..100 {
        let (_there, here) = pair(&server, &client).await;
        here.abort(close_code::BUSY, "there are others");
    }
    let few = async {
        while server.inner.sessions.count() > limits.lingering() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), few).await.is_ok(), "{:?}", server.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_session_holds_no_bytes_that_it_will_not_send() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (_there, here) = pair(&server, &client).await;
    let data = Bytes::from(vec![7; 64 << 10]);
    let mut out = here.open_stream().await.unwrap();
    // The peer reads nothing.
    while tokio::time::timeout(Duration::from_millis(500), out.write_chunk(data.clone())).await.is_ok() {}
    assert!(!data.is_unique());
    here.abort(0, "it reads nothing");
    let freed = async {
        while !data.is_unique() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), freed).await.is_ok());
}

struct Faulty;

impl Foreign for Faulty {
    fn knows(&self, _: anabranch_wire::Pid) -> bool {
        panic!("on purpose, while receiving");
    }

    fn look_ahead(&self, _: &[anabranch_wire::Pid]) {}
    fn handle(&self, _: Time, _: &[ForeignRun], _: &mut [BytesMut], _: &Outlet<'_>) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_while_receiving_does_not_stop_the_socket() {
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let (there, here) = pair(&server, &client).await;
    server.set_foreign(Arc::new(Faulty));
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let header = Header {
        kind: anabranch_wire::Kind::Data,
        key_phase: false,
        tos: 0,
        hop_limit: 1,
        pid: anabranch_wire::Pid(77),
        fsn: 0,
    };
    let mut datagram = [0; 64];
    header.encode(&mut datagram[..Header::LEN]);
    stranger.send_to(&datagram, server.local_addresses()[0]).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    still_works((&there, &here)).await;
}
