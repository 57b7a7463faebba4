//! A crowd of receivers at one `anabranch send`: some request nothing, others request everything and read none of it.
//!
//! `CROWD` sets their number, `CROWD_STALLED` how many of them request. The sender may run in a control group.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use anabranch_net::{Config, Endpoint, EndpointConfig, Session, Stream, Target, Ticket};
use anabranch_secure::NodeKey;
use anabranch_wire::Span;
use common::programs::{Scratch, Sender, errors, receive};
use common::say;
use tokio::io::AsyncWriteExt;

const FILE: usize = 64 << 20;

/// Reads a number from the environment.
fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A receiver that greets, and requests the whole file if it is to stall.
async fn join(
    endpoint: &Endpoint,
    ticket: &Ticket,
    stalls: bool,
) -> Option<(Session, Stream, Option<Stream>)> {
    let credential = Some((ticket.share, ticket.secret.clone()));
    let target = Target { credential, ..Target::new(ticket.node, ticket.addresses.clone()) };
    let config = Config {
        connect_timeout: Span::from_secs(10),
        idle_timeout: Span::from_secs(120),
        keep_alive: Some(Span::from_secs(30)),
        ..Config::default()
    };
    let session = endpoint.connect(&target, config).await.ok()?;
    let mut control = session.open_stream().await.ok()?;
    control.write_all(b"\x01\0\0\0\x06ANBT\0\x02").await.ok()?;
    if !stalls {
        return Some((session, control, None));
    }
    let mut data = session.open_stream().await.ok()?;
    let blocks = (FILE >> 20) as u64;
    let fetch = [&[0x10, 0, 0, 0, 21][..], &[0; 12], &blocks.to_be_bytes(), &[1]].concat();
    data.write_all(&fetch).await.ok()?;
    Some((session, control, Some(data)))
}

/// Memory of a process in MiB: resident now, and the peak.
fn memory(process: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    (field("VmRSS:").unwrap_or(0) / 1024, field("VmHWM:").unwrap_or(0) / 1024)
}

/// Fetches the file; returns the rate in MB/s.
fn fetch(sender: &Sender, scratch: &Scratch, to: &str) -> f64 {
    let start = Instant::now();
    let received = receive(&[&sender.ticket, &scratch.text(to), "-q"]);
    assert!(received.status.success(), "{}", errors(&received));
    FILE as f64 / start.elapsed().as_secs_f64() / 1e6
}

#[test]
fn a_crowd_of_receivers_neither_shuts_out_an_honest_one_nor_takes_the_senders_memory() {
    let (crowd, stalled) = (number("CROWD", 120), number("CROWD_STALLED", 40));
    let scratch = Scratch::new();
    let file = scratch.file("from/film", FILE, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q"]);
    let ticket: Ticket = sender.ticket.parse().unwrap();
    let alone = fetch(&sender, &scratch, "alone");

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut present = Vec::new();
    runtime.block_on(async {
        let mut endpoints = Vec::new();
        for number in 0..crowd.div_ceil(250).max(1) {
            let key = NodeKey::from_random([number as u8 + 1; 32]);
            endpoints.push(Endpoint::bind(EndpointConfig::new(key)).await.unwrap());
        }
        for number in 0..crowd {
            let endpoint = &endpoints[number % endpoints.len()];
            if let Some(one) = join(endpoint, &ticket, number < stalled).await {
                present.push(one);
            }
        }
        // Sessions keep their endpoints alive.
        tokio::time::sleep(Duration::from_secs(1)).await;
        std::mem::forget(endpoints);
    });
    // The machine may be busy during one attempt.
    let attempts = ["among", "again", "once-more"].map(|to| fetch(&sender, &scratch, to));
    let among = attempts.into_iter().fold(0.0, f64::max);
    let (now, most) = memory(sender.running.child.id());
    say(&format!(
        "{} of {crowd} receivers, {stalled} of them stalled: {alone:.0} MB/s alone, {among:.0} among them; the sender's \
         memory is {now} MiB, {most} at most",
        present.len()
    ));
    assert!(present.len() >= crowd * 9 / 10, "{} of {crowd} were let in", present.len());
    assert!(most <= 256, "{most} MiB");
    assert!(among > alone / 4.0, "{among} MB/s instead of {alone}, on a busy machine");
}
