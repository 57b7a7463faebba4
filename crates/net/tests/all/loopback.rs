//! Two endpoints on loopback, with real sockets and the real clock.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{
    Addresses, Authorize, CloseReason, Config, ConnectError, Datagram, DatagramMode, Decision, Endpoint,
    EndpointConfig, Item, NodeKey, PathId, PathState, PathView, PublicKey, Refusal, ResetKey, Scheduler,
    Session, SessionView, ShareId, Span, Target, TicketSecret, Verdict,
};
use anabranch_wire::close_code;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

fn loopback(hosts: &[u8]) -> Addresses {
    Addresses::Exactly(hosts.iter().map(|host| IpAddr::from([127, 0, 0, *host])).collect())
}

fn anybody(_: &PublicKey, _: Option<ShareId>) -> Verdict {
    Verdict::Accept { secret: None }
}

async fn server(authorize: impl Authorize) -> Endpoint {
    let config = EndpointConfig::new(key(1)).addresses(loopback(&[1])).authorize(authorize);
    Endpoint::bind(config).await.unwrap()
}

async fn client() -> Endpoint {
    Endpoint::bind(EndpointConfig::new(key(2)).addresses(loopback(&[1]))).await.unwrap()
}

/// For connections without an answer.
fn quick() -> Config {
    Config { connect_timeout: Span::from_millis(1500), ..Config::default() }
}

/// A connected pair: the client's session and the server's.
async fn pair(server: &Endpoint, client: &Endpoint) -> (Session, Session) {
    let target = Target::new(server.node(), server.local_addresses());
    let (opened, accepted) =
        tokio::join!(client.connect(&target, Config::default()), timeout(PATIENCE, server.accept()));
    (opened.unwrap(), accepted.unwrap().unwrap())
}

fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_megabytes_arrive_unchanged() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    assert_eq!(accepted.peer(), client.node());
    let data = pattern(50_000_000);
    let expected = data.clone();
    let sender = tokio::spawn(async move {
        let mut stream = opened.open_stream().await.unwrap();
        stream.write_all(&data).await.unwrap();
        stream.shutdown().await.unwrap();
        opened.close().await
    });
    let mut stream = timeout(PATIENCE, accepted.accept_stream()).await.unwrap().unwrap();
    let mut received = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(received == expected, "{} bytes arrived, or others than were sent", received.len());
    drop((stream, accepted));
    assert_eq!(timeout(PATIENCE, sender).await.unwrap().unwrap(), CloseReason::Finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_pieces_go_through_without_losing_their_order() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    let data = Bytes::from(pattern(3_000_000));
    let mut stream = opened.open_stream().await.unwrap();
    let whole = data.clone();
    tokio::spawn(async move {
        stream.write_chunk(whole).await.unwrap();
        stream.finish().unwrap();
    });
    let mut other = accepted.accept_stream().await.unwrap();
    let mut received = Vec::new();
    while let Some(piece) = timeout(PATIENCE, other.read_chunk(100_000)).await.unwrap().unwrap() {
        assert!(piece.len() <= 100_000);
        received.extend_from_slice(&piece);
    }
    assert_eq!(received, data);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_share_a_session_and_each_is_echoed() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    tokio::spawn(async move {
        while let Ok(stream) = accepted.accept_stream().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
            });
        }
    });
    let mut tasks = Vec::new();
    for index in 0..200 {
        let opened = opened.clone();
        tasks.push(tokio::spawn(async move {
            let mut stream = opened.open_stream().await.unwrap();
            let data = pattern(1000 + index * 37);
            stream.write_all(&data).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(answer == data);
        }));
    }
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_nobody_reads_do_not_stop_another_that_is_read() {
    let mut config = Config::default();
    config.memory.independent_streams = true;
    let serving = EndpointConfig::new(key(1)).addresses(loopback(&[1])).authorize(anybody);
    let server = Endpoint::bind(serving.session(config.clone())).await.unwrap();
    let client = client().await;
    let target = Target::new(server.node(), server.local_addresses());
    let (opened, accepted) =
        tokio::join!(client.connect(&target, config), timeout(PATIENCE, server.accept()));
    let (opened, accepted) = (opened.unwrap(), accepted.unwrap().unwrap());
    let data = Bytes::from(pattern(8 << 20));
    let mut unread = Vec::new();
    for _ in 0..4 {
        let (mut stream, whole) = (accepted.open_stream().await.unwrap(), data.clone());
        tokio::spawn(async move { stream.write_chunk(whole).await });
        unread.push(timeout(PATIENCE, opened.accept_stream()).await.unwrap().unwrap());
    }
    // Their windows are full by now.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (mut stream, whole) = (accepted.open_stream().await.unwrap(), data.clone());
    tokio::spawn(async move { stream.write_chunk(whole).await });
    let mut stream = timeout(PATIENCE, opened.accept_stream()).await.unwrap().unwrap();
    let mut received = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(received == data, "{} bytes", received.len());
    for mut stream in unread {
        received.clear();
        timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap().unwrap();
        assert!(received == data, "{} bytes of one that was left unread", received.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_stream_can_end_while_the_other_goes_on() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    let mut stream = opened.open_stream().await.unwrap();
    stream.write_all(b"question").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut other = accepted.accept_stream().await.unwrap();
    let mut question = String::new();
    timeout(PATIENCE, other.read_to_string(&mut question)).await.unwrap().unwrap();
    assert_eq!(question, "question");
    other.write_all(b"answer, after the question's end").await.unwrap();
    other.shutdown().await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, "answer, after the question's end");
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_arrive_with_their_class_and_flow() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    let datagram = Datagram { class: 5, flow: 77, data: Bytes::from_static(b"unreliable") };
    opened.send_datagram(datagram.clone()).unwrap();
    assert_eq!(timeout(PATIENCE, accepted.recv_datagram()).await.unwrap().unwrap(), datagram);
    assert!(opened.send_datagram(Bytes::from(vec![0; 100_000]).into()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn redundant_datagrams_are_handed_up_once_whatever_path_they_take() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    opened.set_datagram_mode(5, DatagramMode::Redundant);
    for number in 0..50_u8 {
        opened.send_datagram(Datagram { class: 5, flow: 7, data: Bytes::from(vec![number; 9]) }).unwrap();
    }
    for number in 0..50 {
        let datagram = timeout(PATIENCE, accepted.recv_datagram()).await.unwrap().unwrap();
        assert_eq!(datagram.data[0], number);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redundant_stream_arrives_once_and_others_beside_it() {
    let config = EndpointConfig::new(key(1)).addresses(loopback(&[11, 12])).authorize(anybody);
    let server = Endpoint::bind(config).await.unwrap();
    let client = Endpoint::bind(EndpointConfig::new(key(2)).addresses(loopback(&[1, 2]))).await.unwrap();
    let (opened, accepted) = pair(&server, &client).await;
    let two = async {
        while opened.paths().iter().filter(|path| path.state == PathState::Active).count() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, two).await.unwrap();
    let data = pattern(400_000);
    let mut writers = Vec::new();
    for redundant in [true, false] {
        let mut stream = opened.open_stream().await.unwrap();
        stream.set_redundant(redundant).unwrap();
        let data = data.clone();
        writers.push(tokio::spawn(async move {
            stream.write_all(&data).await.unwrap();
            stream.shutdown().await.unwrap();
            stream
        }));
    }
    // Read both at once: unread data fills the session's window.
    let mut readers = Vec::new();
    for _ in 0..2 {
        let mut stream = timeout(PATIENCE, accepted.accept_stream()).await.unwrap().unwrap();
        readers.push(tokio::spawn(async move {
            let mut received = Vec::new();
            timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap().unwrap();
            received
        }));
    }
    for reader in readers {
        let received = reader.await.unwrap();
        assert!(received == data, "{} bytes arrived, or others than were sent", received.len());
    }
    let again: u64 = accepted.paths().iter().map(|path| path.stats.data_duplicate).sum();
    assert!(again > 0, "nothing came twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pairs_of_addresses_become_three_paths() {
    let config = EndpointConfig::new(key(1)).addresses(loopback(&[11, 12, 13])).authorize(anybody);
    let server = Endpoint::bind(config).await.unwrap();
    let client = Endpoint::bind(EndpointConfig::new(key(2)).addresses(loopback(&[1, 2, 3]))).await.unwrap();
    // One address is enough: the server announces the others.
    let target = Target::new(server.node(), server.local_addresses()[..1].to_vec());
    let opened = client.connect(&target, Config::default()).await.unwrap();
    let accepted = server.accept().await.unwrap();
    let pairs = || {
        let paths = opened.paths();
        let here: BTreeSet<_> = paths.iter().filter_map(|path| opened.local_address(&path.route)).collect();
        let there: BTreeSet<_> = paths.iter().map(|path| path.route.remote).collect();
        (paths.len(), here.len(), there.len())
    };
    let three = async {
        while pairs() != (3, 3, 3) || accepted.paths().len() != 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, three).await.is_ok(), "each address is to be used once: {:?}", pairs());
}

/// A scheduler that avoids one path.
struct Avoid(PathId);

impl Scheduler for Avoid {
    fn pick(&mut self, session: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        match paths.iter().find(|path| path.id != self.0 && path.budget > 0) {
            Some(path) => Decision::Send { path: path.id, run: path.mtu },
            None => Decision::Wait(session.now + Span::from_millis(1)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_of_the_applications_own_decides_where_data_goes() {
    let config = EndpointConfig::new(key(1)).addresses(loopback(&[11, 12])).authorize(anybody);
    let server = Endpoint::bind(config).await.unwrap();
    let client = Endpoint::bind(EndpointConfig::new(key(2)).addresses(loopback(&[1, 2]))).await.unwrap();
    let (opened, accepted) = pair(&server, &client).await;
    let two = async {
        while opened.paths().iter().filter(|path| path.state == PathState::Active).count() != 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, two).await.unwrap();
    let avoided = opened.paths()[0].id;
    opened.set_scheduler(Box::new(Avoid(avoided)));
    let mut stream = opened.open_stream().await.unwrap();
    stream.write_all(&pattern(100_000)).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = Vec::new();
    accepted.accept_stream().await.unwrap().read_to_end(&mut received).await.unwrap();
    assert_eq!(received, pattern(100_000));
    let carried: Vec<_> =
        opened.paths().iter().map(|path| (path.id == avoided, path.stats.data_sent)).collect();
    assert!(carried.iter().all(|(avoided, bytes)| *avoided == (*bytes == 0)), "{carried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_pairs_and_no_others_become_paths() {
    let config = EndpointConfig::new(key(1)).addresses(loopback(&[11, 12, 13])).authorize(anybody);
    let server = Endpoint::bind(config).await.unwrap();
    let client = Endpoint::bind(EndpointConfig::new(key(2)).addresses(loopback(&[1, 2, 3]))).await.unwrap();
    let remotes = server.local_addresses();
    let mut target = Target::new(server.node(), remotes.clone());
    target.pins = vec![([127, 0, 0, 2].into(), remotes[0]), ([127, 0, 0, 2].into(), remotes[2])];
    let opened = client.connect(&target, Config::default()).await.unwrap();
    let both = async {
        while opened.paths().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, both).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut used: Vec<SocketAddr> = opened.paths().iter().map(|path| path.route.remote).collect();
    used.sort();
    assert_eq!(used, [remotes[0], remotes[2]]);
    target.pins[0].0 = [127, 0, 0, 9].into();
    let error = client.connect(&target, quick()).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoSuchLocal { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_adds_no_path_to_pinned_ones_although_there_is_room_for_relays() {
    let config = EndpointConfig::new(key(1)).addresses(loopback(&[11, 12])).authorize(anybody);
    let (server, client) = (Endpoint::bind(config).await.unwrap(), client().await);
    let mut target = Target::new(server.node(), server.local_addresses());
    target.pins = vec![([127, 0, 0, 1].into(), server.local_addresses()[0])];
    target.relayed = 1;
    let (opened, accepted) = tokio::join!(client.connect(&target, Config::default()), server.accept());
    let (opened, _accepted) = (opened.unwrap(), accepted.unwrap());
    // A server leaves the opening of paths to its client for 3 s.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let used: Vec<SocketAddr> = opened.paths().iter().map(|path| path.route.remote).collect();
    assert_eq!(used, server.local_addresses()[..1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_by_default() {
    let server = Endpoint::bind(EndpointConfig::new(key(1)).addresses(loopback(&[1]))).await.unwrap();
    let target = Target::new(server.node(), server.local_addresses());
    let error = client().await.connect(&target, Config::default()).await.unwrap_err();
    assert_eq!(error, ConnectError::Refused(Refusal::NotAuthorised));
    assert_eq!(server.stats().refused, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_key_says_nothing_and_the_error_tells_what_was_tried() {
    let server = server(anybody).await;
    let target = Target::new(key(9).public(), server.local_addresses());
    let error = client().await.connect(&target, quick()).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("127.0.0.1 to 127.0.0.1:") && text.contains("key"), "{text}");
    assert_eq!((server.stats().cookies_sent, server.stats().sessions), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_ticket_is_told_from_silence() {
    let share = ShareId(7);
    let right = || TicketSecret::from_random([7; 16]);
    let server = server(move |_: &PublicKey, shown: Option<ShareId>| match shown {
        Some(shown) if shown == share => Verdict::Accept { secret: Some(right()) },
        _ => Verdict::Refuse(Refusal::TicketNotValid),
    })
    .await;
    let client = client().await;
    let mut target = Target::new(server.node(), server.local_addresses());
    target.credential = Some((share, TicketSecret::from_random([8; 16])));
    assert_eq!(client.connect(&target, Config::default()).await.unwrap_err(), ConnectError::WrongTicket);
    target.credential = Some((ShareId(8), right()));
    let error = client.connect(&target, Config::default()).await.unwrap_err();
    assert_eq!(error, ConnectError::Refused(Refusal::TicketNotValid));
    target.credential = Some((share, right()));
    let session = client.connect(&target, Config::default()).await.unwrap();
    assert_eq!(timeout(PATIENCE, server.accept()).await.unwrap().unwrap().share(), Some(share));
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_ends_both_sides_with_its_reason() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    let mut stream = opened.open_stream().await.unwrap();
    stream.write_all(b"x").await.unwrap();
    let mut other = accepted.accept_stream().await.unwrap();
    assert_eq!(other.read_u8().await.unwrap(), b'x');
    accepted.abort(42, "enough");
    let reason = timeout(PATIENCE, opened.closed()).await.unwrap();
    assert_eq!(reason, CloseReason::Peer { code: 42, reason: "enough".into() });
    let error = stream.write_all(b"more").await.unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
    assert!(stream.read_u8().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_vanishes_is_noticed_and_its_session_forgotten() {
    let config = EndpointConfig::new(key(1)).addresses(loopback(&[1])).authorize(anybody);
    let config = config.session(Config { idle_timeout: Span::from_millis(600), ..Config::default() });
    let server = Endpoint::bind(config).await.unwrap();
    let address = server.local_addresses();
    let target = Target::new(server.node(), address);
    // A runtime that stops running: its tasks and sockets remain, but are silent.
    let vanished = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let held = runtime.block_on(async {
            let client = client().await;
            let session = client.connect(&target, Config::default()).await.unwrap();
            // Long enough for the server to have received the handshake.
            tokio::time::sleep(Duration::from_millis(50)).await;
            (client, session)
        });
        std::mem::forget((runtime, held));
    });
    let accepted = timeout(PATIENCE, server.accept()).await.unwrap().unwrap();
    tokio::task::spawn_blocking(move || vanished.join().unwrap()).await.unwrap();
    assert_eq!(timeout(PATIENCE, accepted.closed()).await.unwrap(), CloseReason::IdleTimeout);
    drop(accepted);
    let forgotten = async {
        while server.stats().sessions > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, forgotten).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_says_that_it_has_forgotten() {
    // Use a dedicated address, so that no other test takes the port.
    let config = |port| {
        let mut config = EndpointConfig::new(key(1)).addresses(loopback(&[77])).authorize(anybody).port(port);
        config.reset_key = Some(ResetKey::from_random([3; 32]));
        config
    };
    // Use a separate runtime; dropping it ends the server's tasks.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let first = runtime.spawn(async move { Endpoint::bind(config(0)).await.unwrap() }).await.unwrap();
    let port = first.local_addresses()[0].port();
    let client = client().await;
    let (opened, accepted) = pair(&first, &client).await;
    let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE));
    ended.await.unwrap();
    drop((accepted, first));
    // Another program may hold the port for a moment.
    let second = async {
        loop {
            match Endpoint::bind(config(port)).await {
                Ok(second) => break second,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let second = timeout(PATIENCE, second).await.unwrap();
    // An answer to the first server's last packets may have reported it already.
    if let Ok(mut stream) = opened.open_stream().await {
        let _ = stream.write_all(b"hello?").await;
    }
    assert_eq!(timeout(PATIENCE, opened.closed()).await.unwrap(), CloseReason::Reset);
    assert!(second.stats().resets_sent >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_an_endpoint_tells_its_peers() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    drop(accepted);
    server.close().await;
    assert_eq!(timeout(PATIENCE, opened.closed()).await.unwrap(), CloseReason::Finished);
    assert!(server.accept().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_closes_gives_up_on_a_peer_that_never_reads_and_tells_it() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    let mut stream = opened.open_stream().await.unwrap();
    let writer = tokio::spawn(async move { stream.write_all(&vec![0; 64 << 20]).await });
    let sent = || opened.paths().iter().map(|path| path.stats.data_sent).sum::<u64>();
    let window_is_full = async {
        let mut before = 0;
        while before == 0 || sent() > before {
            before = sent();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(PATIENCE, window_is_full).await.unwrap();
    timeout(PATIENCE, client.close()).await.unwrap();
    assert_eq!(client.stats().sessions, 0, "it left before its sessions had");
    assert!(timeout(PATIENCE, writer).await.unwrap().unwrap().is_err());
    let told = timeout(PATIENCE, accepted.closed()).await.unwrap();
    assert!(matches!(told, CloseReason::Peer { .. }), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_accepts_while_the_endpoint_closes_is_let_go() {
    let server = Arc::new(server(anybody).await);
    let waiting = tokio::spawn({
        let server = server.clone();
        async move { server.accept().await.is_none() }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    timeout(PATIENCE, server.close()).await.unwrap();
    assert!(timeout(PATIENCE, waiting).await.unwrap().unwrap());
    let target = Target::new(server.node(), server.local_addresses());
    assert!(client().await.connect(&target, quick()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn letting_go_of_a_session_closes_it_after_what_was_written() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    let mut stream = opened.open_stream().await.unwrap();
    stream.write_all(b"last words").await.unwrap();
    drop((stream, opened));
    let mut words = String::new();
    let mut other = accepted.accept_stream().await.unwrap();
    timeout(PATIENCE, other.read_to_string(&mut words)).await.unwrap().unwrap();
    assert_eq!(words, "last words");
    assert_eq!(timeout(PATIENCE, accepted.closed()).await.unwrap(), CloseReason::Finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_run_over_ipv6_too() {
    let addresses = Addresses::Exactly(vec!["::1".parse().unwrap()]);
    let config = EndpointConfig::new(key(1)).addresses(addresses.clone()).authorize(anybody);
    let server = Endpoint::bind(config).await.unwrap();
    let client = Endpoint::bind(EndpointConfig::new(key(2)).addresses(addresses)).await.unwrap();
    let (opened, accepted) = pair(&server, &client).await;
    let mut stream = opened.open_stream().await.unwrap();
    stream.write_all(&pattern(200_000)).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = Vec::new();
    let mut other = accepted.accept_stream().await.unwrap();
    timeout(PATIENCE, other.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(received == pattern(200_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_of_paths_and_of_the_end() {
    use anabranch_net::{Event, PathChange, PathState};
    let config = EndpointConfig::new(key(1)).addresses(loopback(&[11, 12])).authorize(anybody);
    let server = Endpoint::bind(config).await.unwrap();
    let client = Endpoint::bind(EndpointConfig::new(key(2)).addresses(loopback(&[1, 2]))).await.unwrap();
    let target = Target::new(server.node(), server.local_addresses());
    let opened = client.connect(&target, Config::default()).await.unwrap();
    let mut events = opened.events();
    // On a busy machine the second path may open before the test listens for events.
    let second = async {
        while opened.paths().iter().filter(|path| path.state == PathState::Active).count() < 2 {
            if let Event::Path { path, change: PathChange::Opened(_) } = events.next().await.unwrap() {
                assert!(opened.paths().iter().any(|known| known.id == path));
            }
        }
    };
    timeout(PATIENCE, second).await.unwrap();
    opened.abort(1, "bye");
    let end = async {
        while let Some(event) = events.next().await {
            if let Event::Closed(reason) = event {
                return reason;
            }
        }
        panic!("no end");
    };
    let reason = timeout(PATIENCE, end).await.unwrap();
    assert_eq!(reason, CloseReason::Local { code: 1, reason: "bye".into() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_a_path_ends_with_a_code_of_its_own() {
    let (server, client) = (server(anybody).await, client().await);
    let (opened, accepted) = pair(&server, &client).await;
    opened.close_path(PathId::FIRST);
    for end in [opened, accepted] {
        let reason = timeout(PATIENCE, end.closed()).await.unwrap();
        let code = match reason {
            CloseReason::Local { code, .. } | CloseReason::Peer { code, .. } => Some(code),
            _ => None,
        };
        assert_eq!(code, Some(close_code::NO_PATH));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_explained() {
    let server = server(anybody).await;
    let port = server.local_addresses()[0].port();
    let config = EndpointConfig::new(key(3)).addresses(loopback(&[1])).port(port);
    let error = Endpoint::bind(config).await.unwrap_err().to_string();
    assert!(error.contains(&port.to_string()) && error.contains("taken"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_is_said_at_once() {
    let client = client().await;
    let target = Target::new(key(1).public(), vec!["192.0.2.1:9".parse().unwrap()]);
    // It would wait for an answer for longer than the test.
    let patient = Config { connect_timeout: Span::from_secs(600), ..Config::default() };
    let error = timeout(PATIENCE, client.connect(&target, patient)).await.unwrap();
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::NoRoute { .. }), "{error}");
    assert!(error.to_string().contains("192.0.2.1:9"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_get_no_answer_and_are_counted() {
    let server = server(anybody).await;
    let address = server.local_addresses()[0];
    let stranger = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for garbage in [&b"hello"[..], &[0; 1200], &[0x10; 1200], &pattern(1200)] {
        stranger.send_to(garbage, address).await.unwrap();
    }
    let all_came = async {
        while server.stats().malformed < 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, all_came).await.unwrap();
    let mut buffer = [0; 2000];
    assert!(timeout(Duration::from_millis(200), stranger.recv(&mut buffer)).await.is_err());
    assert_eq!(server.stats().malformed, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_one_endpoint_do_not_disturb_each_other() {
    let server = Arc::new(server(anybody).await);
    let accepting = server.clone();
    tokio::spawn(async move {
        while let Some(session) = accepting.accept().await {
            tokio::spawn(async move {
                let mut stream = session.accept_stream().await.unwrap();
                let (mut reader, mut writer) = tokio::io::split(&mut stream);
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
                session.closed().await;
            });
        }
    });
    let client = Arc::new(client().await);
    let mut tasks = Vec::new();
    for index in 0..20_usize {
        let (server, client) = (server.clone(), client.clone());
        tasks.push(tokio::spawn(async move {
            let target = Target::new(server.node(), server.local_addresses());
            let session = client.connect(&target, Config::default()).await.unwrap();
            let mut stream = session.open_stream().await.unwrap();
            let data = pattern(100_000 + index);
            let expected = data.clone();
            let (mut reader, mut writer) = tokio::io::split(&mut stream);
            let send = async {
                writer.write_all(&data).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let mut answer = Vec::new();
            let (_, read) = tokio::join!(send, reader.read_to_end(&mut answer));
            read.unwrap();
            assert!(answer == expected);
            session.close().await;
        }));
    }
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    assert_eq!(server.stats().accepted, 20);
}
