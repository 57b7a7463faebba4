//! What sessions cost over loopback, beyond bulk: round trips and handshakes (idle ones: example `idle`).
//!
//! `cargo run --release -p anabranch-net --example cost -- ping [SECONDS]`
//! `... -- ping-beside-bulk [SECONDS]`, `... -- ping-beside-session [SECONDS]`: a greedy stream in the same session, in another
//! `... -- ping-beside-steady [SECONDS]`, `... -- ping-beside-steady-session [SECONDS]`: one that takes half the link
//! `... -- handshakes [SECONDS]`, `... -- flooded [SECONDS]`
//! The pings go over loopback, or after SECONDS with two numbers more over an emulated link of so many Mbit/s and so many
//! milliseconds of round trip. On loopback half the link is 500 Mbit/s.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_link::LinkConfig;
use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, Session, ShareId, Span, Target, Verdict,
};
use anabranch_secure::{Dial, Initiator};
use anabranch_wire::{Header, Kind, Pid, Rate};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn endpoint(seed: u8) -> Result<Endpoint, Box<dyn std::error::Error>> {
    let anybody = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let here = Addresses::Exactly(vec![IpAddr::from([127, 0, 0, 1])]);
    let config = EndpointConfig::new(NodeKey::from_random([seed; 32])).addresses(here).authorize(anybody);
    let session = Config { idle_timeout: Span::from_secs(120), ..Config::default() };
    Ok(Endpoint::bind(config.session(session)).await?)
}

/// Echoes the first bytes of small streams; swallows streams that begin with a zero.
async fn serve(endpoint: Endpoint) {
    while let Some(session) = endpoint.accept().await {
        tokio::spawn(async move {
            while let Ok(mut stream) = session.accept_stream().await {
                tokio::spawn(async move {
                    let mut message = [0; 64];
                    while stream.read_exact(&mut message).await.is_ok() && message[0] != 0 {
                        if stream.write_all(&message).await.is_err() {
                            return;
                        }
                    }
                    while let Ok(Some(_)) = stream.read_chunk(1 << 20).await {}
                });
            }
        });
    }
}

async fn connect(client: &Endpoint, server: &Target) -> Result<Session, Box<dyn std::error::Error>> {
    let config = Config {
        keep_alive: Some(Span::from_secs(25)),
        idle_timeout: Span::from_secs(120),
        ..Config::default()
    };
    Ok(client.connect(server, config).await?)
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    println!("{what}: {} times, p50 {:?}, p99 {:?}", times.len(), at(50), at(99));
}

async fn ping(session: &Session, seconds: u64) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let mut stream = session.open_stream().await?;
    let (mut message, mut times) = ([1; 64], Vec::new());
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let begun = Instant::now();
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// Sends for ever: as much as goes, or at a rate.
async fn bulk(session: Session, rate: Option<Rate>) -> Result<(), std::io::Error> {
    let mut stream = session.open_stream().await.map_err(std::io::Error::other)?;
    let Some(rate) = rate else {
        let data = Bytes::from(vec![0; 1 << 20]);
        loop {
            stream.write_chunk(data.clone()).await?;
        }
    };
    let mut turns = tokio::time::interval(Duration::from_millis(2));
    let data = Bytes::from(vec![0; rate.bytes_in(Span::from_millis(2)) as usize]);
    loop {
        turns.tick().await;
        stream.write_chunk(data.clone()).await?;
    }
}

/// An emulated link to `server`: a bandwidth-delay product of queue, no loss.
fn link_to(server: std::net::SocketAddr, rate: Rate, rtt: Span) -> std::io::Result<Emulation> {
    let link = LinkConfig::fixed(rate, rtt / 2, rate.bytes_in(rtt).max(64 << 10));
    Emulation::start(&[EmulatedPath::symmetric(server, link)])
}

async fn handshakes(client: &Arc<Endpoint>, target: &Target, seconds: u64) -> Outcome {
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut made, mut failed, begun) = (0_u32, 0_u32, Instant::now());
    let mut running = tokio::task::JoinSet::new();
    while Instant::now() < end {
        while running.len() < 32 {
            let (client, target) = (Arc::clone(client), target.clone());
            running.spawn(async move {
                match client.connect(&target, Config::default()).await {
                    Ok(session) => {
                        session.abort(0, "");
                        true
                    }
                    Err(_) => false,
                }
            });
        }
        if running.join_next().await.is_some_and(|outcome| matches!(outcome, Ok(true))) {
            made += 1;
        } else {
            failed += 1;
        }
    }
    let rate = f64::from(made) / begun.elapsed().as_secs_f64();
    println!("{made} handshakes, {failed} failed, {rate:.0} a second, both ends included");
    Ok(())
}

/// First packets of strangers who know the node's key, the dearest kind: each is answered with a cookie.
fn flood(node: PublicKey, to: std::net::SocketAddr, over: &AtomicBool) -> u64 {
    let dial = Dial { remote: node, credential: None };
    let stranger = NodeKey::from_random([9; 32]);
    let Ok(initiator) = Initiator::new(&stranger, &dial, Pid(77), &[0; 60], [8; 32]) else { return 0 };
    let mut datagram = vec![0; Header::LEN];
    let header =
        Header { kind: Kind::Init, key_phase: false, tos: 0, hop_limit: 8, pid: Pid::HANDSHAKE, fsn: 0 };
    header.encode(&mut datagram);
    datagram.extend_from_slice(&initiator.init_body(None));
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        let Ok(socket) = std::net::UdpSocket::bind("127.0.0.1:0") else { continue };
        // What does not fit is lost, as it should be.
        sent += (0..1000).filter(|_| socket.send_to(&datagram, to).is_ok()).count() as u64;
    }
    sent
}

async fn run(what: &str, number: u64, link: Option<(f64, f64)>) -> Outcome {
    let (server, client) = (endpoint(1).await?, Arc::new(endpoint(2).await?));
    let mut target = Target::new(server.node(), server.local_addresses());
    let to = target.addresses[0];
    let rate = link.map_or(Rate::from_mbit(1000.0), |(mbit, _)| Rate::from_mbit(mbit));
    let emulated =
        link.map(|(_, millis)| link_to(to, rate, Span::from_secs_f64(millis / 1e3))).transpose()?;
    if let Some(emulation) = &emulated {
        target.addresses = emulation.addresses().to_vec();
        target.pins = target.addresses.iter().map(|link| (to.ip(), *link)).collect();
    }
    tokio::spawn(serve(server));
    match what {
        "handshakes" => return handshakes(&client, &target, number).await,
        "flooded" => {
            let over = AtomicBool::new(false);
            return std::thread::scope(|scope| {
                let flooding = scope.spawn(|| flood(target.node, to, &over));
                let outcome = tokio::task::block_in_place(|| {
                    tokio::runtime::Handle::current().block_on(handshakes(&client, &target, number))
                });
                over.store(true, Ordering::Relaxed);
                println!("beside {} forged first packets", flooding.join().unwrap_or(0));
                outcome
            });
        }
        _ => {}
    }
    let session = connect(&client, &target).await?;
    let half = Some(Rate::from_bits(rate.as_bits() / 2));
    match what {
        "ping-beside-bulk" => drop(tokio::spawn(bulk(session.clone(), None))),
        "ping-beside-steady" => drop(tokio::spawn(bulk(session.clone(), half))),
        "ping-beside-session" => drop(tokio::spawn(bulk(connect(&client, &target).await?, None))),
        "ping-beside-steady-session" => drop(tokio::spawn(bulk(connect(&client, &target).await?, half))),
        _ => {}
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    print(what, ping(&session, number).await?);
    Ok(())
}

fn main() -> Outcome {
    let what = std::env::args().nth(1).unwrap_or_else(|| "ping".to_owned());
    let number = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(3);
    let measure = |index| std::env::args().nth(index).and_then(|text| text.parse().ok());
    let link = measure(3).zip(measure(4));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&what, number, link))
}
