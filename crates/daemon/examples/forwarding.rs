//! What forwarding a packet costs: a relay, a loop of recvfrom and sendto, and bare GRO to GSO, in turn.
//!
//! `cargo run --release -p anabranch-daemon --example forwarding -- [SECONDS a turn] [ROUNDS]`
//!
//! A generator sends runs of 32, 8 or 1 packets of 1,400 bytes over loopback, each forwarder sends them on to one sink that
//! reads them. Each forwarder has one thread, and what counts is the processor time of that thread (Linux's
//! `schedstat`), so other load on the machine matters little; turns are interleaved and repeated all the same.
//!
//! Then the delay that each adds: packets that carry the time at which they were sent, at half the rate that the forwarder is good for,
//! less what they take without a forwarder at that rate.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_daemon::client::{Entry, Flow, RelayConnection, Wanted};
use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{RelaySettings, User};
use anabranch_net::socket::{Batch, BindTo, Received, UdpSocket};
use anabranch_net::{Addresses, Ecn, Endpoint, EndpointConfig, NodeKey, Pid};
use anabranch_overlay::relay::{Target, answer_challenge};
use anabranch_secure::RelayHint;
use anabranch_wire::{Header, Kind};

const PACKET: usize = 1_400;
/// Clients of the relay: one may have so many next hops asked at once, so many PIDs take several.
const CLIENTS: u8 = 20;
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

/// Processor time of this thread so far.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number"))
}

/// A forwarder's thread: its address, and its processor time as it goes.
struct Forwarder {
    address: SocketAddr,
    cpu: Arc<AtomicU64>,
}

impl Forwarder {
    fn spawn(work: impl FnOnce(Box<dyn FnOnce(SocketAddr) + Send>, Arc<AtomicU64>) + Send + 'static) -> Self {
        let cpu = Arc::new(AtomicU64::new(0));
        let (told, telling) = std::sync::mpsc::channel();
        let note = cpu.clone();
        thread::spawn(move || work(Box::new(move |address| told.send(address).expect("main waits")), note));
        Self { address: telling.recv().expect("it starts"), cpu }
    }
}

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// Nanoseconds that packets took, those that carry the time.
static DELAYS: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// Where in a packet the time stands; 0xda in all bytes when there is none.
const STAMP: std::ops::Range<usize> = Header::LEN..Header::LEN + 8;

fn nanos() -> u64 {
    BEGIN.elapsed().as_nanos() as u64
}

/// Notes how long each packet of a run took.
fn note_delays(bytes: &[u8], stride: usize) {
    let stamp =
        |packet: &[u8]| packet.get(STAMP).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    let stamps =
        bytes.chunks(stride).filter_map(stamp).filter(|stamp| *stamp != u64::from_be_bytes([0xda; 8]));
    let now = nanos();
    let mut delays = DELAYS.lock().expect("no panic while held");
    delays.extend(stamps.map(|stamp| now.saturating_sub(stamp)));
}

/// Reads what comes, answers a relay's questions, counts.
fn sink(count: Arc<AtomicU64>) -> SocketAddr {
    let (told, telling) = std::sync::mpsc::channel();
    thread::spawn(move || {
        runtime().block_on(async move {
            let socket = UdpSocket::bind(&BindTo { address: (local(1), 0).into(), interface: None })
                .expect("a socket");
            told.send(socket.local_addr()).expect("main waits");
            drain(&socket, |datagrams, received, bytes| {
                if let Some(answer) = answer_challenge(bytes, |_| true, None) {
                    let batch = Batch {
                        remote: received.remote,
                        contents: &answer,
                        segment: answer.len(),
                        ecn: Ecn::NotEct,
                    };
                    // A lost answer is asked for again.
                    let _ = socket.send(&batch);
                } else {
                    count.fetch_add(datagrams, Ordering::Relaxed);
                    note_delays(bytes, received.stride);
                }
            })
            .await;
        });
    });
    telling.recv().expect("it starts")
}

/// Receives for ever, in batches.
async fn drain(socket: &UdpSocket, mut each: impl FnMut(u64, &Received, &[u8])) {
    let mut buffers = vec![vec![0u8; 1 << 16]; 16];
    let nothing = Received { remote: socket.local_addr(), len: 0, stride: 1, ecn: Ecn::NotEct };
    while socket.readable().await.is_ok() {
        loop {
            let mut filled = [nothing; 16];
            let mut slices: Vec<IoSliceMut<'_>> =
                buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            match socket.receive(&mut slices, &mut filled) {
                Ok(count) => {
                    drop(slices);
                    for (buffer, received) in buffers.iter().zip(&filled[..count]) {
                        each(
                            received.len.div_ceil(received.stride) as u64,
                            received,
                            &buffer[..received.len],
                        );
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
    }
}

/// One system call in, one out, for each packet.
fn plain(to: SocketAddr) -> Forwarder {
    Forwarder::spawn(move |told, note| {
        let socket = StdSocket::bind((local(2), 0)).expect("a socket");
        let _ = socket2_buffers(&socket);
        told(socket.local_addr().expect("bound"));
        let mut buffer = [0; 2048];
        loop {
            for _ in 0..64 {
                if let Ok(len) = socket.recv(&mut buffer) {
                    // The sink may be full.
                    let _ = socket.send_to(&buffer[..len], to);
                }
            }
            note.store(cpu().as_nanos() as u64, Ordering::Relaxed);
        }
    })
}

fn socket2_buffers(socket: &StdSocket) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    socket.set_recv_buffer_size(4 << 20)?;
    socket.set_send_buffer_size(4 << 20)
}

/// Batches in and out, with nothing between.
fn bare(to: SocketAddr) -> Forwarder {
    Forwarder::spawn(move |told, note| {
        runtime().block_on(async move {
            let socket = UdpSocket::bind(&BindTo { address: (local(3), 0).into(), interface: None })
                .expect("a socket");
            told(socket.local_addr());
            let mut batches = 0_u32;
            drain(&socket, |_, received, bytes| {
                let batch =
                    Batch { remote: to, contents: bytes, segment: received.stride, ecn: received.ecn };
                let _ = socket.send(&batch);
                batches += 1;
                // Reading the clock costs more than a batch.
                if !batches.is_multiple_of(64) {
                    return;
                }
                note.store(cpu().as_nanos() as u64, Ordering::Relaxed);
            })
            .await;
        });
    })
}

/// A relay, with its clients' keys listed.
fn relay() -> (Forwarder, RelayHint) {
    let forwarder = Forwarder::spawn(|told, note| {
        runtime().block_on(async move {
            let users = (0..CLIENTS).map(|seed| User::new("bench", key(seed + 10).public())).collect();
            let settings = RelaySettings::local(local(4).into(), users);
            let relay = RelayService::start(key(1), &settings).await.expect("a relay");
            told(relay.addresses()[0]);
            loop {
                note.store(cpu().as_nanos() as u64, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    });
    let hint = RelayHint { node: key(1).public(), addresses: vec![forwarder.address] };
    (forwarder, hint)
}

/// A client of the relay with its flows.
struct Client {
    endpoint: Endpoint,
    flows: Vec<Flow>,
    _connection: RelayConnection,
}

async fn client(index: u8, relay: &RelayHint, to: SocketAddr) -> Client {
    let config =
        EndpointConfig::new(key(index + 10)).addresses(Addresses::Exactly(vec![local(10 + index).into()]));
    let endpoint = Endpoint::bind(config).await.expect("a client");
    let connection = RelayConnection::open(&endpoint, relay, &Entry::default()).await.expect("a session");
    let mut flows = Vec::new();
    for number in 0..FLOWS_EACH {
        let target = Target::Address { address: to, key: None };
        let wanted = Wanted { target, out: Pid(1 + number as u64), back: Pid(9) };
        flows.push(connection.allocate(wanted).await.expect("a flow"));
    }
    for flow in &mut flows {
        flow.ready().await.expect("the sink agrees");
    }
    Client { endpoint, flows, _connection: connection }
}

fn packets(pid: Pid, run: usize) -> Vec<u8> {
    let mut packet = vec![0xda; PACKET];
    Header { kind: Kind::Data, key_phase: false, tos: 8, hop_limit: 4, pid, fsn: 0 }.encode(&mut packet);
    packet.repeat(run)
}

/// Sends for a while; gives packets that arrived and the forwarder's processor time.
async fn turn(
    length: Duration,
    (forwarder, count): (&Forwarder, &AtomicU64),
    mut send: impl FnMut(usize),
) -> (u64, Duration) {
    let (packets, busy) = (count.load(Ordering::Relaxed), forwarder.cpu.load(Ordering::Relaxed));
    let begin = Instant::now();
    let mut turn = 0;
    while begin.elapsed() < length {
        send(turn);
        turn += 1;
        if turn % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let busy = forwarder.cpu.load(Ordering::Relaxed) - busy;
    (count.load(Ordering::Relaxed) - packets, Duration::from_nanos(busy))
}

/// Sends runs at a rate, each packet with the time; gives the median and the 99th percentile of what they took.
async fn delays(
    length: Duration,
    (rate, run): (f64, usize),
    (pid, send): (Pid, impl Fn(&[u8])),
) -> (Duration, Duration) {
    DELAYS.lock().expect("no panic while held").clear();
    let mut bytes = packets(pid, run);
    let (begin, mut sent) = (Instant::now(), 0);
    while begin.elapsed() < length {
        while (sent as f64) < rate * begin.elapsed().as_secs_f64() {
            let now = nanos().to_be_bytes();
            bytes.chunks_mut(PACKET).for_each(|packet| packet[STAMP].copy_from_slice(&now));
            send(&bytes);
            sent += run;
        }
        thread::sleep(Duration::from_micros(50));
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut all = std::mem::take(&mut *DELAYS.lock().expect("no panic while held"));
    all.sort_unstable();
    let at = |share: f64| {
        let index = (all.len() as f64 * share) as usize;
        Duration::from_nanos(all.get(index.min(all.len().saturating_sub(1))).copied().unwrap_or_default())
    };
    (at(0.5), at(0.99))
}

/// How packets get to a forwarder, and how many it is good for in runs of 8 and single.
struct Forwarding<'a> {
    name: &'a str,
    pid: Pid,
    capacity: [f64; 2],
    send: &'a dyn Fn(&[u8]),
}

/// What each forwarder adds at half of the rate that one processor is good for.
async fn show_delays(
    (length, to): (Duration, SocketAddr),
    generator: &UdpSocket,
    forwarders: &[Forwarding<'_>],
) {
    for (index, run) in [8, 1].into_iter().enumerate() {
        for Forwarding { name, pid, capacity, send } in forwarders {
            let rate = capacity[index] / 2.0;
            let direct = |contents: &[u8]| {
                drop(generator.send(&Batch { remote: to, contents, segment: PACKET, ecn: Ecn::NotEct }));
            };
            let (p50, p99) = delays(length, (rate, run), (Pid(5), direct)).await;
            let (with50, with99) = delays(length, (rate, run), (*pid, send)).await;
            let us = |with: Duration, without: Duration| {
                (with.as_nanos() as f64 - without.as_nanos() as f64) / 1e3
            };
            println!(
                "runs of {run}, {name:<18} at {rate:>7.0} packets a second: adds {:>6.1} µs at the median, {:>6.1} at the 99th percentile (without it {:.1} and {:.1})",
                us(with50, p50),
                us(with99, p99),
                p50.as_nanos() as f64 / 1e3,
                p99.as_nanos() as f64 / 1e3
            );
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().map_or(1.0, |text| text.parse().expect("seconds"));
    let rounds: usize = args.next().map_or(3, |text| text.parse().expect("rounds"));
    let count = Arc::new(AtomicU64::new(0));
    let to = sink(count.clone());
    let (plain, bare, (relay, hint)) = (plain(to), bare(to), relay());
    runtime().block_on(async {
        let mut clients = Vec::new();
        for index in 0..CLIENTS {
            clients.push(client(index, &hint, to).await);
        }
        let generator =
            UdpSocket::bind(&BindTo { address: (local(5), 0).into(), interface: None }).expect("a socket");
        let length = Duration::from_secs_f64(seconds);
        // Packets a second that one processor was good for: of each forwarder in runs of 8 and single.
        let mut good = [[0.0; 2]; 3];
        for run in [32, 8, 1] {
            for round in 0..rounds {
                let bytes = packets(Pid(5), run);
                let batch = |remote| Batch { remote, contents: &bytes, segment: PACKET, ecn: Ecn::NotEct };
                let column = [8, 1].iter().position(|other| *other == run);
                for (row, name, forwarder) in [(0, "plain", &plain), (1, "bare", &bare)] {
                    let sent = turn(length, (forwarder, &count), |_| {
                        drop(generator.send(&batch(forwarder.address)));
                    })
                    .await;
                    note(&mut good[row], column, sent);
                    show(name, (run, round), sent);
                }
                for (name, most) in
                    [("relay, 1 PID", 1), ("relay, 1000 PIDs", usize::from(CLIENTS) * FLOWS_EACH)]
                {
                    let all: Vec<(&Client, &Flow)> = clients
                        .iter()
                        .flat_map(|client| client.flows.iter().map(move |flow| (client, flow)))
                        .take(most)
                        .collect();
                    let data: Vec<Vec<u8>> = all.iter().map(|(_, flow)| packets(flow.forward, run)).collect();
                    let sent = turn(length, (&relay, &count), |turn| {
                        let at = (turn * 617) % all.len();
                        let (client, flow) = all[at];
                        client.endpoint.outlet().send(flow.entry, (&data[at], PACKET), Ecn::NotEct);
                    })
                    .await;
                    if most == 1 {
                        note(&mut good[2], column, sent);
                    }
                    show(name, (run, round), sent);
                }
            }
        }
        let to_socket = |remote: SocketAddr| {
            let generator = &generator;
            move |contents: &[u8]| {
                drop(generator.send(&Batch { remote, contents, segment: PACKET, ecn: Ecn::NotEct }));
            }
        };
        let (client, flow) = (&clients[0], &clients[0].flows[0]);
        let to_relay = |contents: &[u8]| {
            client.endpoint.outlet().send(flow.entry, (contents, PACKET), Ecn::NotEct);
        };
        let (to_plain, to_bare) = (to_socket(plain.address), to_socket(bare.address));
        let forwarders = [
            Forwarding { name: "plain", pid: Pid(5), capacity: good[0], send: &to_plain },
            Forwarding { name: "bare", pid: Pid(5), capacity: good[1], send: &to_bare },
            Forwarding { name: "relay, 1 PID", pid: flow.forward, capacity: good[2], send: &to_relay },
        ];
        show_delays((length, to), &generator, &forwarders).await;
    });
}

/// Keeps the best of the rounds.
fn note(good: &mut [f64; 2], column: Option<usize>, (packets, busy): (u64, Duration)) {
    if let Some(column) = column {
        good[column] = good[column].max(packets as f64 / busy.as_secs_f64().max(1e-9));
    }
}

fn show(name: &str, (run, round): (usize, usize), (packets, busy): (u64, Duration)) {
    let each = busy.as_nanos() as f64 / packets.max(1) as f64;
    println!(
        "runs of {run:>2}, round {round}: {name:<18} {packets:>9} packets, {each:>7.0} ns of processor each: {:>6.3} million a second, {:>5.1} Gbit/s",
        1e3 / each,
        PACKET as f64 * 8.0 / each
    );
}
