//! The memory of a PID, measured with a counting allocator.

use std::alloc::System;

use anabranch_overlay::grant::{Limits, UnixTime};
use anabranch_overlay::relay::{
    Exit, Hop, Newcomer, Relay, RelayConfig, Reply, Request, Run, SessionId, Target, answer_challenge,
};
use anabranch_secure::{NodeKey, PublicKey};
use anabranch_wire::{PathId, Pid, Rate, Span, Time};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes in use.
fn used() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

fn key(number: u32) -> PublicKey {
    let mut bytes = [1; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    NodeKey::from_random(bytes).public()
}

#[test]
fn a_pid_costs_at_most_256_bytes_over_100_000_and_comes_back_when_it_is_released() {
    let keys: Vec<PublicKey> = (0..50).map(key).collect();
    let mut config = RelayConfig::new(key(1_000));
    let limits = Limits { pids: 10_000, rate: Rate::from_mbit(100.0), bytes: u64::MAX, highest_tos: 15 };
    config.listed = keys.iter().map(|key| (*key, limits)).collect();
    let local = [0, 0, 0, 0].into();
    config.exits = vec![Exit { socket: 0, local, networks: Vec::new(), largest: 1_472 }];
    config.most_flows = 100_000;
    let mut now = Time::ZERO;
    let mut relay = Relay::new(config, [1; 32], (now, UnixTime(0)));
    for (number, key) in (0..).zip(&keys) {
        let client = Hop { socket: 0, address: "203.0.113.5:1000".parse().unwrap() };
        relay.handle_session_opened(now, SessionId(number), Newcomer::new(*key, None));
        relay.handle_session_path(SessionId(number), PathId(0), Some(client));
        relay.handle_request(now, SessionId(number), Request::Hello { version: 1 }, None);
    }
    while relay.poll_reply().is_some() {}

    let before = used();
    let mut flows = Vec::with_capacity(100_000);
    let own = used() - before;
    let (mut worst, mut pids) = (0.0f64, 0);
    for round in 0..70_000u64 {
        let session = SessionId(round % 50);
        let target = Target::Address { address: "8.8.8.8:9".parse().unwrap(), key: None };
        let request =
            Request::Allocate { request: 0, via: PathId(0), target, out: Pid(round + 1), back: Pid(7) };
        relay.handle_request(now, session, request, None);
        let question = relay.poll_transmit(now).unwrap();
        let mut answer = answer_challenge(&question.datagram, |_| true, None).unwrap();
        relay.handle_run(now, Run { from: question.to, stride: 64, ecn: 0 }, &mut answer, &mut Vec::new());
        while let Some((session, reply)) = relay.poll_reply() {
            if let Reply::Allocated { flow, .. } = reply {
                flows.push((session, flow));
            }
        }
        now += Span::from_millis(4);
        pids += 2;
        if pids >= 100_000 {
            worst = worst.max((used() - before - own) as f64 / f64::from(pids));
        }
        if pids == 100_000 {
            println!("{worst:.0} bytes a PID over 100,000");
        }
    }
    println!("at most {worst:.0} bytes a PID from 100,000 to 140,000");
    assert!(worst <= 256.0, "{worst:.0} bytes a PID");
    for (session, flow) in flows.drain(..) {
        relay.handle_request(now, session, Request::Release { flow }, None);
        while relay.poll_reply().is_some() {}
    }
    assert_eq!(relay.stats().flows, 0);
}
