//! Costs of sessions over loopback other than bulk data: round trips (for idle sessions see example `idle`, for setup
//! `handshakes`).
//!
//! - `cargo run --release -p anabranch-net --example cost -- ping [SECONDS]`
//! - `... -- ping-beside-bulk [SECONDS]`, `... -- ping-beside-session [SECONDS]`: with an endless stream in the same
//!   session, or in another
//! - `... -- ping-beside-steady [SECONDS]`, `... -- ping-beside-steady-session [SECONDS]`: with one that takes half of
//!   the link
//!
//! The pings go over loopback. Two more numbers after SECONDS select an emulated link with that rate in Mbit/s and that
//! round-trip time in milliseconds. On loopback, half of the link is 500 Mbit/s.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_link::LinkConfig;
use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, Session, ShareId, Span, Target, Verdict,
};
use anabranch_wire::Rate;
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

/// Sends without end: as fast as possible, or at a rate.
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

async fn run(what: &str, number: u64, link: Option<(f64, f64)>) -> Outcome {
    let (server, client) = (endpoint(1).await?, endpoint(2).await?);
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
