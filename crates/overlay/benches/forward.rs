//! Packets a second that the core forwards, without sockets: `cargo bench -p anabranch-overlay`.
//!
//! 1,400-byte packets of one, 1,000 or 10,000 PIDs, in runs as the kernel would join them. Each packet's header is read
//! and rewritten; nothing is copied.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use anabranch_overlay::grant::{Limits, UnixTime};
use anabranch_overlay::relay::{
    Exit, Hop, Newcomer, Relay, RelayConfig, Reply, Request, Run, SessionId, Target, answer_challenge,
};
use anabranch_secure::NodeKey;
use anabranch_wire::{Header, Kind, PathId, Pid, Rate, Span, Time};

const PACKET: usize = 1_400;
const PACKETS: usize = 1 << 21;

/// A relay with this many flows that their next hop agreed to, a hundred for each key.
fn relay(pids: u64) -> (Relay, Time, Hop, Vec<Pid>) {
    let keys: Vec<_> =
        (0..pids.div_ceil(100)).map(|number| NodeKey::from_random([number as u8 + 1; 32]).public()).collect();
    let mut config = RelayConfig::new(NodeKey::from_random([200; 32]).public());
    let limits = Limits { pids: 1 << 20, rate: Rate::from_bits(u64::MAX), bytes: u64::MAX, highest_tos: 15 };
    config.listed = keys.iter().map(|key| (*key, limits)).collect();
    let local = [0, 0, 0, 0].into();
    config.exits = vec![Exit { socket: 0, local, networks: Vec::new(), largest: 1_472 }];
    let now = Time::ZERO;
    let mut relay = Relay::new(config, [3; 32], (now, UnixTime(0)));
    let client = Hop { socket: 0, address: "203.0.113.5:1000".parse().unwrap() };
    for (number, key) in (0..).zip(&keys) {
        relay.handle_session_opened(now, SessionId(number), Newcomer::new(*key, None));
        relay.handle_session_path(SessionId(number), PathId(0), Some(client));
        relay.handle_request(now, SessionId(number), Request::Hello { version: 1 }, None);
    }
    let mut own = Vec::new();
    for number in 0..pids {
        let target = Target::Address { address: "8.8.8.8:9".parse().unwrap(), key: None };
        let request =
            Request::Allocate { request: 0, via: PathId(0), target, out: Pid(number + 1), back: Pid(7) };
        relay.handle_request(now, SessionId(number / 100), request, None);
        let question = relay.poll_transmit(now).unwrap();
        let mut answer = answer_challenge(&question.datagram, |_| true, None).unwrap();
        relay.handle_run(now, Run { from: question.to, stride: 64, ecn: 0 }, &mut answer, &mut Vec::new());
        while let Some((_, reply)) = relay.poll_reply() {
            if let Reply::Allocated { forward, .. } = reply {
                own.push(forward);
            }
        }
    }
    (relay, now, client, own)
}

fn measure(pids: u64, run: usize) {
    let (mut relay, start, from, own) = relay(pids);
    // As many buffers as PIDs, up to some megabytes: not all headers stay in the first cache.
    let buffers = own.len().min(256);
    let template = |pid: Pid| {
        let mut packet = vec![0; PACKET];
        Header { kind: Kind::Data, key_phase: false, tos: 0, hop_limit: 4, pid, fsn: 1 }.encode(&mut packet);
        packet.repeat(run)
    };
    let headers: Vec<[u8; 16]> = own.iter().map(|pid| template(*pid)[..16].try_into().unwrap()).collect();
    let mut memory: Vec<Vec<u8>> = (0..buffers).map(|at| template(own[at])).collect();
    let mut out = Vec::new();
    let rounds = PACKETS / run;
    let mut order = 0usize;
    let begin = Instant::now();
    let mut forwarded = 0;
    for round in 0..rounds {
        order = (order + 617) % own.len();
        let buffer = &mut memory[round % buffers];
        // The cost of writing fresh headers is measured below and subtracted.
        for packet in buffer.chunks_mut(PACKET) {
            packet[..16].copy_from_slice(&headers[order]);
        }
        let now = start + Span::from_micros(round as u64);
        relay.handle_run(now, Run { from, stride: PACKET, ecn: 0 }, buffer, &mut out);
        forwarded += out.iter().map(|forward| forward.range.len() / PACKET).sum::<usize>();
        black_box(&out);
        out.clear();
    }
    let whole = begin.elapsed();
    let begin = Instant::now();
    for round in 0..rounds {
        order = (order + 617) % own.len();
        let buffer = &mut memory[round % buffers];
        for packet in buffer.chunks_mut(PACKET) {
            packet[..16].copy_from_slice(&headers[order]);
        }
        black_box(&buffer);
    }
    let nanos = whole.saturating_sub(begin.elapsed()).as_nanos() as f64 / (rounds * run) as f64;
    assert_eq!(forwarded, rounds * run, "{:?}", relay.stats());
    println!(
        "{pids:>6} PIDs, runs of {run:>2}: {nanos:>5.1} ns a packet, {:>6.1} million packets a second, {:>5.0} Gbit/s",
        1e3 / nanos,
        PACKET as f64 * 8.0 / nanos
    );
}

fn main() {
    for pids in [1, 1_000, 10_000] {
        for run in [32, 8, 1] {
            measure(pids, run);
        }
    }
}
