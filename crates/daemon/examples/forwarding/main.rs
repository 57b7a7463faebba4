//! Compares the cost of forwarding a packet: by a relay, by a loop of recvfrom and sendto, and by bare GRO to GSO.
//!
//! `cargo run --release -p anabranch-daemon --example forwarding -- [SECONDS a turn] [ROUNDS]`
//!
//! A generator sends runs of 32, 8 or 1 packets over loopback, of 1,400 bytes or alternately of 1,300. A forwarder
//! passes them on to one sink, or each run to another of [`SINKS`]. Each forwarder has one thread. Only its processor
//! time counts (Linux's `schedstat`), so other load on the machine has little effect. Still, turns are interleaved and
//! repeated.
//!
//! Then the delay of each forwarder is measured. Packets carry their time of sending, at half of the forwarder's rate,
//! but at most 250,000 a second. The delay without a forwarder is subtracted.

mod delays;
mod ends;
mod forwarders;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anabranch_net::socket::{Batch, BindTo, UdpSocket};
use anabranch_net::{Ecn, NodeKey, Pid};
use anabranch_wire::{Header, Kind};
use delays::{Forwarding, show_delays};
use ends::{Client, client, sinks};
use forwarders::{Forwarder, bare, plain, relay};

const PACKET: usize = 1_400;
/// Size of the packets in every other run, where two sizes are used.
const SHORTER: usize = 1_300;
/// Number of sinks; without distribution all packets go to the first.
const SINKS: usize = 100;
/// Clients of the relay. A client may open only a limited number of next hops at once, so many PIDs need several
/// clients. The flows of the first half lead to one sink, those of the others to all sinks in turn.
const CLIENTS: u8 = 40;
const FLOWS_EACH: usize = 50;

fn local(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 3, 0, last)
}

fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn packets(pid: Pid, size: usize, run: usize) -> Vec<u8> {
    let mut packet = vec![0xda; size];
    Header { kind: Kind::Data, key_phase: false, tos: 8, hop_limit: 4, pid, fsn: 0 }.encode(&mut packet);
    packet.repeat(run)
}

type SendRun<'a> = dyn Fn(&[u8]) + 'a;

/// One way to send to a forwarder.
struct Lane<'a> {
    pid: Pid,
    /// Size of its packets.
    size: usize,
    send: Box<SendRun<'a>>,
}

/// A forwarder and its lanes, which are used in turn.
struct Contest<'a> {
    name: &'static str,
    forwarder: &'a Forwarder,
    lanes: Vec<Lane<'a>>,
    /// Packets per second of processor time in runs of 8 and single: the best of all rounds.
    good: [f64; 2],
}

impl<'a> Contest<'a> {
    fn new(name: &'static str, forwarder: &'a Forwarder, lanes: impl Iterator<Item = Lane<'a>>) -> Self {
        Self { name, forwarder, lanes: lanes.collect(), good: [0.0; 2] }
    }

    /// Sends runs for a while, and prints their cost to the forwarder.
    async fn turn(&mut self, length: Duration, (run, round): (usize, usize), count: &AtomicU64) {
        let data: Vec<Vec<u8>> = self.lanes.iter().map(|lane| packets(lane.pid, lane.size, run)).collect();
        let (before, began) = (count.load(Ordering::Relaxed), self.forwarder.done());
        let (begin, mut turn) = (Instant::now(), 0);
        while begin.elapsed() < length {
            let at = (turn * 617) % self.lanes.len();
            (self.lanes[at].send)(&data[at]);
            turn += 1;
            if turn % 16 == 0 {
                tokio::task::yield_now().await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let done = self.forwarder.done();
        let (busy, sent) = (done[0] - began[0], done[1] - began[1]);
        let lost = sent.saturating_sub(count.load(Ordering::Relaxed) - before) as f64 / sent.max(1) as f64;
        let each = busy as f64 / sent.max(1) as f64;
        if let Some(column) = [8, 1].iter().position(|other| *other == run) {
            self.good[column] = self.good[column].max(1e9 / each);
        }
        println!(
            "runs of {run:>2}, round {round}: {:<30} {sent:>9} packets, {each:>7.0} ns of processor each: {:>6.3} million a second, {:>5.1} Gbit/s; the sink lost {:.0} %",
            self.name,
            1e3 / each,
            PACKET as f64 * 8.0 / each,
            1e2 * lost
        );
    }
}

/// Lanes over the flows of these clients, for packets of one size.
fn flows(clients: &[Client], size: usize) -> impl Iterator<Item = Lane<'_>> {
    let all = clients.iter().flat_map(|client| client.flows.iter().map(move |flow| (client, flow)));
    all.map(move |(client, flow)| Lane {
        pid: flow.forward,
        size,
        send: Box::new(move |contents| {
            client.endpoint.outlet().send(flow.entry, (contents, size), Ecn::NotEct);
        }),
    })
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().map_or(1.0, |text| text.parse().expect("seconds"));
    let rounds: usize = args.next().map_or(3, |text| text.parse().expect("rounds"));
    let count = Arc::new(AtomicU64::new(0));
    let to = sinks(&count, SINKS);
    let (plain, bare, (relay, hint)) = (plain(to.clone()), bare(to[0]), relay());
    runtime().block_on(async {
        let (mut one_hop, mut many_hops) = (Vec::new(), Vec::new());
        for index in 0..CLIENTS / 2 {
            one_hop.push(client(index, &hint, &to[..1]).await);
            many_hops.push(client(index + CLIENTS / 2, &hint, &to).await);
        }
        let generator =
            UdpSocket::bind(&BindTo { address: (local(5), 0).into(), interface: None }).expect("a socket");
        let lane = |remote, pid| {
            let generator = &generator;
            let send = move |contents: &[u8]| {
                drop(generator.send(&Batch { remote, contents, segment: PACKET, ecn: Ecn::NotEct }));
            };
            Lane { pid: Pid(pid), size: PACKET, send: Box::new(send) }
        };
        let to_plain = |pid| lane(plain.address, pid);
        let two_sizes = flows(&one_hop, PACKET).take(1).chain(flows(&one_hop, SHORTER).take(1));
        let mut contests = [
            Contest::new("plain", &plain, [to_plain(0)].into_iter()),
            Contest::new("bare", &bare, [lane(bare.address, 0)].into_iter()),
            Contest::new("relay, 1 PID", &relay, flows(&one_hop, PACKET).take(1)),
            Contest::new("relay, 1 PID, two sizes", &relay, two_sizes),
            Contest::new("relay, 1000 PIDs", &relay, flows(&one_hop, PACKET)),
            Contest::new("plain, 100 next hops", &plain, (0..SINKS as u64).map(to_plain)),
            Contest::new("relay, 1000 PIDs, 100 next hops", &relay, flows(&many_hops, PACKET)),
        ];
        let length = Duration::from_secs_f64(seconds);
        for run in [32, 8, 1] {
            for round in 0..rounds {
                for contest in &mut contests {
                    contest.turn(length, (run, round), &count).await;
                }
            }
        }
        let direct = lane(to[0], 0);
        let forwarding = contests[..3].iter().map(|contest| Forwarding {
            name: contest.name,
            capacity: contest.good,
            pid: contest.lanes[0].pid,
            send: &contest.lanes[0].send,
        });
        show_delays(length, &direct.send, &forwarding.collect::<Vec<_>>()).await;
    });
}
