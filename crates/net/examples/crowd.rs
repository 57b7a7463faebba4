//! Many sessions in one process: handshakes a second, memory and processor time of idle ones.
//!
//! `cargo run --release -p anabranch-net --example crowd -- [SESSIONS] [SECONDS]`
//! Both ends are in this process, so each session counts twice.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, ShareId, Span, Target, Verdict,
};

fn config() -> Config {
    let patience = Span::from_secs(60);
    Config {
        keep_alive: Some(Span::from_secs(25)),
        connect_timeout: patience,
        idle_timeout: patience,
        ..Config::default()
    }
}

/// Resident memory in KiB, and processor time in milliseconds.
fn usage() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let memory = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|word| word.parse().ok());
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.split_whitespace().skip(13).take(2).filter_map(|word| word.parse::<u64>().ok());
    (memory.unwrap_or(0), ticks.sum::<u64>() * 10)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let (count, seconds) = (arguments.next().unwrap_or(1000), arguments.next().unwrap_or(10));
    let addresses = Addresses::Exactly(vec![IpAddr::from([127, 0, 0, 1])]);
    let open = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let server = EndpointConfig::new(NodeKey::from_random([1; 32])).addresses(addresses.clone());
    let server = Arc::new(Endpoint::bind(server.authorize(open).session(config())).await?);
    let client = EndpointConfig::new(NodeKey::from_random([2; 32])).addresses(addresses);
    let client = Arc::new(Endpoint::bind(client).await?);
    let target = Target::new(server.node(), server.local_addresses());
    let acceptor = server.clone();
    let accepted = tokio::spawn(async move {
        let mut sessions = Vec::new();
        while (sessions.len() as u64) < count {
            sessions.extend(acceptor.accept().await);
        }
        sessions
    });
    let (before, start) = (usage(), Instant::now());
    let mut opened = Vec::new();
    while (opened.len() as u64) < count {
        let many = (0..64.min(count - opened.len() as u64)).map(|_| {
            let (client, target) = (client.clone(), target.clone());
            tokio::spawn(async move { client.connect(&target, config()).await })
        });
        for session in many.collect::<Vec<_>>() {
            opened.push(session.await??);
        }
    }
    let accepted = accepted.await?;
    let (after, spent) = (usage(), start.elapsed().as_secs_f64());
    let cpu = (after.1 - before.1) as f64 / 1e3;
    println!(
        "{:.0} handshakes/s, {:.0} a second of processor, both ends",
        count as f64 / spent,
        count as f64 / cpu
    );
    println!("{:.1} KiB a session and end", (after.0 - before.0) as f64 / (2 * count) as f64);
    let idle = usage().1;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let idle = (usage().1 - idle) as f64 / (seconds * 10) as f64;
    println!("{idle:.2} % of a core while idle, {} sessions", opened.len() + accepted.len());
    println!("{:?}", server.stats());
    Ok(())
}
