//! Opens as many sessions to a relay as it admits, with one key or with many from one address, and reports the refusals.
//!
//! `cargo run --release -p anabranch-daemon --example hoard -- KEY@ADDRESS:PORT SESSIONS SEED...`: each seed stands for the key made
//! of 32 such bytes; without a line for it in the relay's configuration it is a stranger. The line to list it is printed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anabranch_net::{Config, Endpoint, EndpointConfig, NodeKey, Session, Target};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Attempts at a time.
const AT_ONCE: usize = 64;

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [relay, sessions, seeds @ ..] = &words[..] else { panic!("hoard KEY@ADDRESS:PORT SESSIONS SEED...") };
    let (key, address) = relay.split_once('@').expect("KEY@ADDRESS:PORT");
    let target = Target::new(key.parse().expect("a key"), vec![address.parse().expect("an address")]);
    let count: usize = sessions.parse().expect("a number of sessions");
    let mut endpoints = Vec::new();
    for seed in seeds {
        let key = NodeKey::from_random([seed.parse().expect("a seed of 0 to 255"); 32]);
        println!("[[user]]\nkey = \"{}\"", key.public());
        endpoints.push(Arc::new(Endpoint::bind(EndpointConfig::new(key)).await.expect("a socket")));
    }
    let begin = Instant::now();
    let (gate, opened) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(AtomicUsize::new(0)));
    let mut attempts: JoinSet<Result<Session, String>> = JoinSet::new();
    for index in 0..count {
        let permit = gate.clone().acquire_owned().await.expect("open");
        let (endpoint, target, opened) =
            (endpoints[index % endpoints.len()].clone(), target.clone(), opened.clone());
        attempts.spawn(async move {
            let _permit = permit;
            let session =
                endpoint.connect(&target, Config::default()).await.map_err(|error| error.to_string())?;
            opened.fetch_add(1, Ordering::Relaxed);
            Ok(session)
        });
    }
    let (mut held, mut refusals) = (Vec::new(), BTreeMap::<String, usize>::new());
    while let Some(attempt) = attempts.join_next().await {
        match attempt.expect("no panic") {
            Ok(session) => held.push(session),
            Err(why) => *refusals.entry(why).or_default() += 1,
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let ended = held.iter().filter_map(|session| session.close_reason());
    for reason in ended {
        *refusals.entry(format!("closed: {reason:?}")).or_default() += 1;
    }
    let open = held.iter().filter(|session| session.close_reason().is_none()).count();
    println!("{count} attempts in {:.1?}: {open} sessions open", begin.elapsed());
    refusals.iter().for_each(|(why, count)| println!("{count:>7}  {why}"));
    tokio::time::sleep(Duration::from_secs(10)).await;
}
