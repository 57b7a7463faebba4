//! An attacker on the path can do no more to a session than an unlucky network (`docs/explanation/security.md`).
//!
//! Each test sends a pattern through a misbehaving tap. It checks that the pattern arrives unchanged, that both
//! sessions close gracefully, and that the attack took place.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_net::{
    Addresses, CloseReason, Config, Endpoint, EndpointConfig, KeyLimits, Limits, NodeKey, PublicKey, Refusal,
    Session, ShareId, Span, Target, Verdict,
};
use anabranch_wire::{Header, Kind, Pid, close_code};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::wire_tap::{Luck, Sending, Way, sit_between, with_header};

const PATIENCE: Duration = Duration::from_secs(60);

/// The latest packet of a session in each direction.
type Latest = [Option<Vec<u8>>; 2];

fn limits(keys: KeyLimits) -> Limits {
    Limits { keys, ..Limits::default() }
}

async fn endpoint(seed: u8, keys: KeyLimits) -> Endpoint {
    endpoint_at([127, 0, 0, 1], seed, keys).await
}

async fn endpoint_at(address: [u8; 4], seed: u8, keys: KeyLimits) -> Endpoint {
    let here = Addresses::Exactly(vec![IpAddr::from(address)]);
    let anybody = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let config = EndpointConfig::new(NodeKey::from_random([seed; 32])).addresses(here).authorize(anybody);
    Endpoint::bind(EndpointConfig { limits: limits(keys), ..config }).await.unwrap()
}

fn config(paths: u32) -> Config {
    Config { max_paths: paths, ..Config::default() }
}

/// Connects through the taps at `via`, one path each.
async fn connect(client: &Endpoint, server: &Endpoint, via: &[SocketAddr]) -> (Session, Session) {
    let mut target = Target::new(server.node(), via.to_vec());
    target.pins = via.iter().map(|tap| (IpAddr::from([127, 0, 0, 1]), *tap)).collect();
    let paths = via.len() as u32;
    let (opened, accepted) =
        tokio::join!(client.connect(&target, config(paths)), timeout(PATIENCE, server.accept()));
    (opened.unwrap(), accepted.unwrap().unwrap())
}

/// Sends a pattern over a new stream, and waits until all of it has come.
async fn send_pattern(opened: &Session, accepted: &Session, len: usize) {
    let mut stream = opened.open_stream().await.unwrap();
    let data = pattern(len);
    let reader = accepted.clone();
    let reading = tokio::spawn(async move {
        let mut stream = reader.accept_stream().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        received
    });
    stream.write_all(&data).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(timeout(PATIENCE, reading).await.unwrap().unwrap() == data);
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Sends `len` bytes from the client to the server and back, and closes both in good order.
async fn carry(opened: Session, accepted: Session, len: usize) {
    let data = pattern(len);
    let expected = data.clone();
    let echo = tokio::spawn(async move {
        let mut stream = accepted.accept_stream().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        stream.write_all(&received).await.unwrap();
        stream.shutdown().await.unwrap();
        accepted.closed().await
    });
    let (mut reader, mut writer) = tokio::io::split(opened.open_stream().await.unwrap());
    let sending = async {
        writer.write_all(&data).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let receiving = async {
        let mut received = Vec::new();
        timeout(PATIENCE, reader.read_to_end(&mut received)).await.expect("it arrives in time").unwrap();
        received
    };
    let ((), received) = tokio::join!(sending, receiving);
    assert!(received == expected, "{} bytes came back, or others than were sent", received.len());
    drop((reader, writer));
    assert_eq!(timeout(PATIENCE, opened.close()).await.unwrap(), CloseReason::Finished);
    assert_eq!(timeout(PATIENCE, echo).await.unwrap().unwrap(), CloseReason::Finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_sent_again_at_once_and_much_later_are_dropped() {
    let (server, client) = (endpoint(1, KeyLimits::default()).await, endpoint(2, KeyLimits::default()).await);
    let mut past: VecDeque<Vec<u8>> = VecDeque::new();
    let mut luck = Luck(7);
    let tap = sit_between(server.local_addresses()[0], move |_, datagram| {
        past.push_back(datagram.to_vec());
        if past.len() > 3000 {
            past.pop_front();
        }
        let old = past[luck.below(past.len())].clone();
        vec![Sending::now(datagram), Sending::now(datagram), Sending::now(old)]
    });
    let tap = tap.await;
    let (opened, accepted) = connect(&client, &server, &[tap]).await;
    carry(opened, accepted, 3_000_000).await;
    assert!(server.stats().unauthentic + client.stats().unauthentic > 4_000, "{:?}", server.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_late_by_thousands_are_still_taken() {
    let (server, client) = (endpoint(1, KeyLimits::default()).await, endpoint(2, KeyLimits::default()).await);
    let mut luck = Luck(11);
    let tap = sit_between(server.local_addresses()[0], move |_, datagram| {
        let late = if luck.below(40) == 0 { 20 + luck.below(200) as u64 } else { 0 };
        vec![Sending::after(Duration::from_millis(late), datagram)]
    });
    let tap = tap.await;
    let (opened, accepted) = connect(&client, &server, &[tap]).await;
    carry(opened, accepted, 8_000_000).await;
    // Packets too old for the replay window count as not authentic.
    let refused = |stats: &anabranch_net::EndpointStats| stats.malformed + stats.unauthentic;
    assert_eq!(refused(&server.stats()) + refused(&client.stats()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_cut_off_at_any_length_are_dropped() {
    let (server, client) = (endpoint(1, KeyLimits::default()).await, endpoint(2, KeyLimits::default()).await);
    let mut luck = Luck(13);
    let tap = sit_between(server.local_addresses()[0], move |_, datagram| {
        let cut = luck.below(datagram.len());
        let longer = [datagram, &[0]].concat();
        vec![Sending::now(&datagram[..cut]), Sending::now(longer), Sending::now(datagram)]
    });
    let tap = tap.await;
    let (opened, accepted) = connect(&client, &server, &[tap]).await;
    carry(opened, accepted, 2_000_000).await;
    assert!(server.stats().unauthentic > 1_000, "{:?}", server.stats());
}

/// Changes each header field and repairs the checksum, and flips bits anywhere else. The changed copy arrives before the
/// true packet, so any harm to the receiver's state would show when that arrives.
#[tokio::test(flavor = "multi_thread")]
async fn packets_with_bits_flipped_in_any_field_are_dropped() {
    let (server, client) = (endpoint(1, KeyLimits::default()).await, endpoint(2, KeyLimits::default()).await);
    let mut luck = Luck(17);
    let tap = sit_between(server.local_addresses()[0], move |_, datagram| {
        let bit = luck.below(64);
        let changed = match luck.below(8) {
            0 => with_header(datagram, |header| header.key_phase ^= true),
            1 => with_header(datagram, |header| header.tos ^= 1 << (bit % 4)),
            2 => with_header(datagram, |header| header.fsn ^= 1 << (bit % 32)),
            3 => with_header(datagram, |header| header.pid = Pid(header.pid.0 ^ 1 << bit)),
            4 => with_header(datagram, |header| {
                header.kind = [Kind::Reset, Kind::InitAck, Kind::Cookie][bit % 3];
            }),
            5 => with_header(datagram, |header| header.kind = [Kind::Init, Kind::Data][bit % 2]),
            _ => {
                let mut changed = datagram.to_vec();
                changed[luck.below(datagram.len())] ^= 1 << (bit % 8);
                changed
            }
        };
        let true_one = Sending::now(datagram);
        if changed == datagram { vec![true_one] } else { vec![Sending::now(changed), true_one] }
    });
    let tap = tap.await;
    let (opened, accepted) = connect(&client, &server, &[tap]).await;
    carry(opened, accepted, 4_000_000).await;
    let stats = server.stats();
    assert!(stats.unauthentic > 500 && stats.malformed > 20 && stats.unknown_pid > 20, "{stats:?}");
    assert_eq!(stats.accepted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_more_forgeries_than_keys_are_good_for_ends() {
    let keys = KeyLimits { max_forgeries: 20, ..KeyLimits::default() };
    let (server, client) = (endpoint(1, keys).await, endpoint(2, KeyLimits::default()).await);
    let tap = sit_between(server.local_addresses()[0], move |way, datagram| {
        let is_sealed = Header::decode(datagram).is_ok_and(|(header, _)| header.kind == Kind::Data);
        let mut forged = datagram.to_vec();
        *forged.last_mut().unwrap() ^= 1;
        match way {
            Way::ToServer if is_sealed => vec![Sending::now(forged), Sending::now(datagram)],
            _ => vec![Sending::now(datagram)],
        }
    });
    let tap = tap.await;
    let (opened, accepted) = connect(&client, &server, &[tap]).await;
    let mut stream = opened.open_stream().await.unwrap();
    let writing = tokio::spawn(async move { while stream.write_all(&[0; 10_000]).await.is_ok() {} });
    let end = timeout(PATIENCE, accepted.closed()).await.expect("it ends");
    assert!(matches!(end, CloseReason::Local { code: close_code::KEYS_EXHAUSTED, .. }), "{end:?}");
    timeout(PATIENCE, writing).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_that_seem_to_come_from_elsewhere_move_nothing() {
    let (server, client) = (endpoint(1, KeyLimits::default()).await, endpoint(2, KeyLimits::default()).await);
    let tap = sit_between(server.local_addresses()[0], move |way, datagram| match way {
        // The attacker's copy arrives first, so the true packet is the duplicate.
        Way::ToServer => vec![Sending::from_elsewhere(datagram), Sending::now(datagram)],
        Way::ToClient => vec![Sending::now(datagram)],
    });
    let tap = tap.await;
    let (opened, accepted) = connect(&client, &server, &[tap]).await;
    carry(opened, accepted, 2_000_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_of_one_session_are_nothing_to_another() {
    let (server, client) = (endpoint(1, KeyLimits::default()).await, endpoint(2, KeyLimits::default()).await);
    let to = server.local_addresses()[0];
    // The latest packet of both sessions in each direction, with the PID that it carried.
    let latest: Arc<Mutex<[Latest; 2]>> = Arc::default();
    let injected = Arc::new(AtomicU64::new(0));
    let tap = |own: usize| {
        let (latest, injected) = (latest.clone(), injected.clone());
        sit_between(to, move |way, datagram| {
            let Ok((header, _)) = Header::decode(datagram) else { return Vec::new() };
            let mut sendings = Vec::new();
            if header.kind == Kind::Data {
                let mut latest = latest.lock().unwrap();
                if let Some(other) = &latest[1 - own][way as usize] {
                    injected.fetch_add(1, Ordering::Relaxed);
                    sendings.push(Sending::now(with_header(other, |other| other.pid = header.pid)));
                }
                latest[own][way as usize] = Some(datagram.to_vec());
            }
            sendings.push(Sending::now(datagram));
            sendings
        })
    };
    let (first, second) = (tap(0).await, tap(1).await);
    let one = connect(&client, &server, &[first]).await;
    let two = connect(&client, &server, &[second]).await;
    tokio::join!(carry(one.0, one.1, 2_000_000), carry(two.0, two.1, 2_000_000));
    let (dropped, injected) =
        (server.stats().unauthentic + client.stats().unauthentic, injected.load(Ordering::Relaxed));
    assert!(injected > 1_000 && dropped >= injected / 2, "{dropped} of {injected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_change_every_few_thousand_packets_while_one_path_lags_by_300_milliseconds() {
    let keys =
        KeyLimits { rekey_after_packets: 500, rekey_at_once_after_packets: 1 << 22, ..KeyLimits::default() };
    let (server, client) = (endpoint(1, keys).await, endpoint(2, keys).await);
    let to = server.local_addresses()[0];
    let changes = Arc::new(AtomicU64::new(0));
    let mut taps = Vec::new();
    for lag in [0, 300] {
        let changes = changes.clone();
        let mut phase = false;
        let tap = sit_between(to, move |way, datagram| {
            let Ok((header, _)) = Header::decode(datagram) else { return Vec::new() };
            if way == Way::ToServer && header.kind == Kind::Data && header.key_phase != phase && lag == 0 {
                phase = header.key_phase;
                changes.fetch_add(1, Ordering::Relaxed);
            }
            vec![Sending::after(Duration::from_millis(lag), datagram)]
        });
        taps.push(tap.await);
    }
    let (opened, accepted) = connect(&client, &server, &taps).await;
    // Wait for both paths before the bulk transfer.
    let watched = opened.clone();
    timeout(PATIENCE, async move {
        while watched.paths().iter().filter(|path| path.rtt > Span::ZERO).count() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    let begun = std::time::Instant::now();
    while changes.load(Ordering::Relaxed) < 3 && begun.elapsed() < PATIENCE {
        send_pattern(&opened, &accepted, 700_000).await;
    }
    assert!(changes.load(Ordering::Relaxed) >= 3, "{changes:?} changes of keys");
    assert_eq!(server.stats().unauthentic + client.stats().unauthentic, 0);
    assert_eq!(opened.close_reason(), None);
}

/// Only fresh secrets start a phase here: every change of the bit is an exchange that both ends completed.
#[tokio::test(flavor = "multi_thread")]
async fn fresh_secrets_are_exchanged_under_load_and_loss_while_one_path_lags_by_300_milliseconds() {
    let never = Span::from_secs(3_600);
    let keys = KeyLimits {
        exchange_after: Span::from_millis(100),
        rekey_after: never,
        rekey_after_packets: 1 << 22,
        ..KeyLimits::default()
    };
    let (server, client) = (endpoint(1, keys).await, endpoint(2, keys).await);
    let to = server.local_addresses()[0];
    let changes = [Way::ToServer, Way::ToClient].map(|_| Arc::new(AtomicU64::new(0)));
    let mut taps = Vec::new();
    for lag in [0, 300] {
        let changes = changes.clone();
        let (mut phases, mut count) = ([false; 2], 0_u64);
        let tap = sit_between(to, move |way, datagram| {
            let Ok((header, _)) = Header::decode(datagram) else { return Vec::new() };
            let direction = usize::from(way == Way::ToClient);
            if header.kind == Kind::Data && header.key_phase != phases[direction] && lag == 0 {
                phases[direction] = header.key_phase;
                changes[direction].fetch_add(1, Ordering::Relaxed);
            }
            count += 1;
            match count % 50 {
                0 => Vec::new(),
                _ => vec![Sending::after(Duration::from_millis(lag), datagram)],
            }
        });
        taps.push(tap.await);
    }
    let (opened, accepted) = connect(&client, &server, &taps).await;
    let begun = std::time::Instant::now();
    let least = || changes.iter().map(|count| count.load(Ordering::Relaxed)).min().unwrap();
    while least() < 2 && begun.elapsed() < PATIENCE {
        send_pattern(&opened, &accepted, 300_000).await;
    }
    assert!(least() >= 2, "{changes:?} changes of keys");
    assert_eq!(server.stats().unauthentic + client.stats().unauthentic, 0);
    assert_eq!(opened.close_reason(), None);
}

/// First byte of the keys that this server refuses.
const REFUSED: u8 = 9;

/// A server with three places for unconfirmed sessions, all taken by a host that never completes a handshake, and that
/// host's calls, which continue.
async fn hoarded(patience: Span) -> (Endpoint, Arc<Endpoint>, tokio::task::JoinSet<()>) {
    let here = Addresses::Exactly(vec![IpAddr::from([127, 0, 0, 1])]);
    let refused = NodeKey::from_random([REFUSED; 32]).public();
    let others = move |key: &PublicKey, _: Option<ShareId>| match *key == refused {
        true => Verdict::Refuse(Refusal::NotAuthorised),
        false => Verdict::Accept { secret: None },
    };
    let server = EndpointConfig::new(NodeKey::from_random([1; 32])).addresses(here).authorize(others);
    let server = server.session(Config { connect_timeout: patience, ..Config::default() });
    let limits = Limits { half_open: 3, ..Limits::default() };
    let server = Endpoint::bind(EndpointConfig { limits, ..server }).await.unwrap();
    let is_sealed =
        |datagram: &[u8]| Header::decode(datagram).is_ok_and(|(header, _)| header.kind == Kind::Data);
    let tap = sit_between(server.local_addresses()[0], move |way, datagram| match way {
        Way::ToServer if is_sealed(datagram) => Vec::new(),
        _ => vec![Sending::now(datagram)],
    });
    let tap = tap.await;
    let strangers = Arc::new(endpoint(2, KeyLimits::default()).await);
    let mut target = Target::new(server.node(), vec![tap]);
    target.pins = vec![(IpAddr::from([127, 0, 0, 1]), tap)];
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (strangers, target) = (strangers.clone(), target.clone());
        calls.spawn(async move { drop(strangers.connect(&target, config(1)).await) });
    }
    let all_taken = async {
        while server.stats().busy < 5 || server.stats().sessions > 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = timeout(PATIENCE, all_taken).await;
    assert!(waited.is_ok(), "five have to go: {:?}", server.stats());
    (server, strangers, calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_nobody_confirms_take_few_places_and_lapse() {
    let (server, strangers, mut calls) = hoarded(Span::from_secs(2)).await;
    calls.abort_all();
    strangers.close().await;
    let honest = endpoint(3, KeyLimits::default()).await;
    let (opened, accepted) = connect(&honest, &server, &server.local_addresses()[..1]).await;
    carry(opened, accepted, 1000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_confirms_no_handshake_shuts_out_no_other_address() {
    let (server, _strangers, _calls) = hoarded(Span::from_secs(PATIENCE.as_secs())).await;
    let honest = endpoint_at([127, 0, 0, 2], 3, KeyLimits::default()).await;
    let address = server.local_addresses()[0];
    let target = Target {
        pins: vec![(IpAddr::from([127, 0, 0, 2]), address)],
        ..Target::new(server.node(), vec![address])
    };
    let connected = timeout(PATIENCE / 2, honest.connect(&target, config(1)));
    connected.await.expect("it has a place before the others lapse").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_let_in_costs_nobody_a_place() {
    let (server, _strangers, _calls) = hoarded(Span::from_secs(PATIENCE.as_secs())).await;
    let refused = endpoint(REFUSED, KeyLimits::default()).await;
    let address = server.local_addresses()[0];
    let target = Target {
        pins: vec![(IpAddr::from([127, 0, 0, 1]), address)],
        ..Target::new(server.node(), vec![address])
    };
    for attempt in 1..=5 {
        let turned_away = server.stats().busy;
        timeout(PATIENCE, refused.connect(&target, config(1))).await.unwrap().unwrap_err();
        assert!(server.stats().refused >= attempt, "{:?}", server.stats());
        // A call of the hoarder that was sent twice may be turned away meanwhile.
        if server.stats().busy == turned_away {
            return;
        }
    }
    panic!("it needs a place: {:?}", server.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_confirms_gives_the_place_back() {
    let here = Addresses::Exactly(vec![IpAddr::from([127, 0, 0, 1])]);
    let anybody = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let server = EndpointConfig::new(NodeKey::from_random([1; 32])).addresses(here).authorize(anybody);
    let limits = Limits { half_open: 2, ..Limits::default() };
    let server = Endpoint::bind(EndpointConfig { limits, ..server }).await.unwrap();
    let client = endpoint(2, KeyLimits::default()).await;
    let mut sessions = Vec::new();
    for _ in 0..5 {
        sessions.push(connect(&client, &server, &server.local_addresses()[..1]).await);
    }
    for (opened, accepted) in sessions {
        carry(opened, accepted, 1000).await;
    }
    assert_eq!(server.stats().busy, 0);
}
