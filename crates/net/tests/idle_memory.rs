//! Measures with a counting allocator how much memory an idle session holds after work. The cipher library's memory, some
//! 600 bytes per key with two keys per session, is not included.

mod bulk;
// In this program, because each would compile sessions anew.
#[path = "bulk/cost.rs"]
mod cost;

use std::alloc::System;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anabranch_net::{Addresses, Config, Endpoint, EndpointConfig, NodeKey, Session, Target, Verdict};
use bytes::Bytes;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Memory is counted for the whole program, so its tests take turns.
static TURN: Mutex<()> = Mutex::const_new(());

/// Bytes in use.
fn used() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

const PATHS: u8 = 3;

fn addresses(host: u8) -> Vec<IpAddr> {
    (1..=PATHS).map(|path| IpAddr::from([127, 41, path, host])).collect()
}

async fn endpoint(host: u8) -> Endpoint {
    let config = EndpointConfig::new(NodeKey::from_random([host; 32]));
    let config = config.authorize(|_: &_, _| Verdict::Accept { secret: None });
    Endpoint::bind(config.addresses(Addresses::Exactly(addresses(host)))).await.unwrap()
}

async fn open(client: &Endpoint, target: &Target, count: usize) -> Vec<Session> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push(client.connect(target, Config::default()).await.unwrap());
    }
    sessions
}

/// Moves some data through the session.
async fn work(session: &Session) {
    let mut stream = session.open_stream().await.unwrap();
    stream.write_chunk(Bytes::from(vec![7; 64 << 10])).await.unwrap();
    stream.finish().unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap();
}

/// Bytes in use, once they have stopped falling.
async fn settled() -> usize {
    let (mut least, mut since) = (used(), Instant::now());
    while since.elapsed() < Duration::from_secs(4) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let used = used();
        if used < least {
            (least, since) = (used, Instant::now());
        }
    }
    least
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_session_that_has_worked_holds_at_most_17_kib_with_three_paths() {
    let _turn = TURN.lock().await;
    let (server, client) = (endpoint(1).await, endpoint(2).await);
    let mut target = Target::new(server.node(), server.local_addresses());
    target.pins = addresses(2).into_iter().zip(server.local_addresses()).collect();
    tokio::spawn(async move {
        while let Some(session) = server.accept().await {
            tokio::spawn(async move {
                while let Ok(mut stream) = session.accept_stream().await {
                    while let Ok(Some(_)) = stream.read_chunk(1 << 20).await {}
                }
            });
        }
    });
    // The endpoints' own memory is shared by all sessions, so some work before measuring.
    let mut sessions = open(&client, &target, 20).await;
    for session in &sessions {
        work(session).await;
    }
    let before = settled().await;
    sessions.extend(open(&client, &target, 200).await);
    while !sessions.iter().all(|session| session.paths().len() == usize::from(PATHS)) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for session in &sessions[20..] {
        work(session).await;
    }
    let each = settled().await.saturating_sub(before) / (2 * 200);
    println!("{each} bytes an end and session");
    assert!(each <= 17 << 10, "{each} bytes an end and session");
}
