//! A file split over real exits, each behind an emulated path of its own (SAFIRE [S6], [S8]).
//!
//! ```text
//!   fetch ─┬─ north ─ exit ─┐
//!          ├─ middle ─ exit ─┼─ server          routed: the planner puts ranges on the exits
//!          └─ south ─ exit ─┘
//!   fetch ─── all three ─ exit ─── server       striped: one session spreads one flow over the paths
//! ```
//! Sessions, exits and the server are real and run in real time over loopback. Only the paths are the link model's.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_fetch::{FetchError, Route, RouteUse};
use anabranch_link::{Limit, LinkConfig, LossModel};
use anabranch_net::{Addresses, NodeKey, Rate, Span};
use anabranch_node::{Access, Dial, Node};
use anabranch_proxy::{Exit, ExitDialer, ExitOptions, Limits, SessionLimits, session_config};
use common::server::{Response, Server};
use common::{Place, noise};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Packets that may wait for a path, as in the paper.
const QUEUE: u32 = 50;

/// A path from an exit to this machine. Its loss is of that direction.
#[derive(Clone, Copy, Debug)]
struct Path {
    mbit: f64,
    delay: Span,
    loss: f64,
}

impl Path {
    fn new(mbit: f64, ms: f64, loss: f64) -> Self {
        Self { mbit, delay: Span::from_micros((ms * 1000.0) as u64), loss }
    }

    fn link(self, loss: f64) -> LinkConfig {
        let mut link = LinkConfig::fixed(Rate::from_mbit(self.mbit), self.delay, 0);
        // At high rates a queue of as many packets would be shorter than the delay.
        let in_flight = self.mbit * 1e6 / 12_000.0 * self.delay.as_secs_f64() * 2.0;
        link.queue.limit = Limit::Packets(QUEUE.max(in_flight as u32));
        // The loopback interface below takes far larger packets, and fifty of them would wait for seconds.
        link.mtu = Some(1500);
        link.loss = if loss > 0.0 { LossModel::Bernoulli(loss) } else { LossModel::None };
        link
    }
}

/// SAFIRE's paths north and middle, and this one as south; `times` as fast as there.
fn safire(south: Path, times: f64) -> Vec<Path> {
    let usual = Path::new(1.0, 0.5, 0.0);
    [usual, usual, south].map(|path| Path { mbit: path.mbit * times, ..path }).to_vec()
}

fn host(machine: u8, path: usize) -> IpAddr {
    [127, 7, machine, u8::try_from(path).unwrap() + 1].into()
}

fn key(seed: usize) -> NodeKey {
    NodeKey::from_random([u8::try_from(seed).unwrap() + 1; 32])
}

/// An exit at these addresses that admits the client.
async fn exit(seed: usize, hosts: Vec<IpAddr>, client: &NodeKey, rule: &str) -> Node {
    let mut session = session_config();
    session.cc.rule = rule.parse().unwrap();
    let builder = Node::builder().key(key(seed)).addresses(Addresses::Exactly(hosts)).session(session);
    let node = builder.access(Access::by_keys([client.public()])).start().await.unwrap();
    let exit = Exit::new(&ExitOptions {
        allow: vec!["127.0.0.1".parse().unwrap()],
        deny: Vec::new(),
        listen: Vec::new(),
        limits: Limits { connections: 64, rate: None, bytes: None },
        sessions: SessionLimits::default(),
    });
    let accepting = node.clone();
    let accept = move || {
        let node = accepting.clone();
        async move { node.accept().await }
    };
    tokio::spawn(exit.run(accept, |_| {}));
    node
}

/// Exits behind emulated paths, and a node that holds a session with each.
struct Stage {
    client: Node,
    dialers: Vec<Arc<ExitDialer>>,
    running: Vec<(Node, Emulation)>,
}

impl Stage {
    /// An exit behind each path, or one exit behind all of them.
    async fn new(paths: &[Path], is_striped: bool, rule: &str) -> Self {
        let client_key = key(9);
        let local = Addresses::Exactly((0..paths.len()).map(|path| host(1, path)).collect());
        let client = Node::builder().key(client_key.clone()).addresses(local).session(session_config());
        let client = client.start().await.unwrap();
        let groups: Vec<Vec<usize>> = match is_striped {
            true => vec![(0..paths.len()).collect()],
            false => (0..paths.len()).map(|path| vec![path]).collect(),
        };
        let mut stage = Self { client, dialers: Vec::new(), running: Vec::new() };
        for (number, group) in groups.iter().enumerate() {
            let exit =
                exit(number, group.iter().map(|path| host(3, *path)).collect(), &client_key, rule).await;
            let port = exit.addresses()[0].port();
            let emulated = group.iter().map(|path| EmulatedPath {
                listen: SocketAddr::new(host(2, *path), 0),
                server: SocketAddr::new(host(3, *path), port),
                forward: LinkConfig { seed: 1, ..paths[*path].link(0.0) },
                reverse: LinkConfig { seed: 2, ..paths[*path].link(paths[*path].loss) },
            });
            let emulation = Emulation::start(&emulated.collect::<Vec<_>>()).unwrap();
            let entries = emulation.addresses().to_vec();
            let pins = group.iter().zip(&entries).map(|(path, entry)| (host(1, *path), *entry)).collect();
            let dialer = ExitDialer::new(format!("exit {number}"));
            let held = stage.client.hold(Dial::node(exit.id(), entries).pins(pins), None);
            let follower = dialer.clone();
            tokio::spawn(async move { follower.follow(held, |_| {}).await });
            stage.dialers.push(dialer);
            stage.running.push((exit, emulation));
        }
        // Sessions are open and have found their paths.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage
    }

    async fn close(self) {
        self.client.close().await;
        for (exit, _emulation) in self.running {
            exit.close().await;
        }
    }
}

/// Bytes that take so many seconds at the sum of the paths.
fn size(seconds: f64, paths: &[Path]) -> usize {
    (seconds * paths.iter().map(|path| path.mbit).sum::<f64>() * 1e6 / 8.0) as usize
}

/// Fetches a file that takes so many seconds at the sum of the paths; returns the goodput in Mbit/s, and the share that
/// came by each exit.
async fn goodput(seconds: f64, paths: &[Path], is_striped: bool) -> (f64, Vec<f64>) {
    let content = noise(size(seconds, paths), 50);
    let server = Server::right(&content);
    let stage = Stage::new(paths, is_striped, "cubic").await;
    let mut place = Place::new(&[server.url("/a")]);
    let route = |dialer: &Arc<ExitDialer>| RouteUse {
        route: Route::Exit(dialer.clone()),
        name: dialer.name().to_owned(),
        rank: 0,
        cap: None,
    };
    place.options.routes = stage.dialers.iter().map(route).collect();
    let begin = Instant::now();
    let report = place.fetch().await.unwrap();
    let took = begin.elapsed().as_secs_f64();
    assert!(place.content() == content, "wrong bytes");
    stage.close().await;
    let size = content.len() as f64;
    (size * 8e-6 / took, report.sources.iter().map(|source| source.bytes as f64 / size).collect())
}

/// Reads a whole file through the exit by one request, as `curl` does by a proxy. Counts its bytes.
async fn read_all(dialer: Arc<ExitDialer>, port: u16, count: Arc<AtomicUsize>) {
    let mut stream = dialer.connect("127.0.0.1", port).await.unwrap();
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut buffer = vec![0; 64 << 10];
    loop {
        count.fetch_add(stream.read(&mut buffer).await.unwrap(), Ordering::Relaxed);
    }
}

/// Goodput in Mbit/s of so many requests at the same time, from 3 s after their start on.
async fn steady(paths: &[Path], connections: usize, rule: &str) -> f64 {
    let server = Server::right(&vec![1; size(30.0, paths)]);
    let stage = Stage::new(paths, true, rule).await;
    let count = Arc::new(AtomicUsize::new(0));
    let mut reading = tokio::task::JoinSet::new();
    for _ in 0..connections {
        reading.spawn(read_all(stage.dialers[0].clone(), server.port, count.clone()));
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (begin, before) = (Instant::now(), count.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(12)).await;
    let bytes = count.load(Ordering::Relaxed) - before;
    let rate = bytes as f64 * 8e-6 / begin.elapsed().as_secs_f64();
    reading.shutdown().await;
    stage.close().await;
    rate
}

/// Twenty times the paper's rates, so that it is over soon.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_split_over_three_exits() {
    let mut tries = Vec::new();
    // On a busy machine, a session with an exit may be late.
    for _ in 0..3 {
        let (rate, shares) = goodput(2.0, &safire(Path::new(2.0, 20.0, 0.0), 20.0), false).await;
        if shares.iter().all(|share| *share > 0.1) {
            return;
        }
        tries.push((rate, shares));
    }
    panic!("Mbit/s and shares: {tries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_allows_one_request_gives_a_file_through_one_exit() {
    let content = noise(2_000_000, 51);
    let served = content.clone();
    let server = Server::start(move |request| match request.number {
        0 => Response::long(request, &served),
        _ => Response::new(429, b"").with("Retry-After", "600"),
    });
    let stage = Stage::new(&[Path::new(100.0, 0.5, 0.0)], false, "cubic").await;
    let mut place = Place::new(&[server.url("/a")]);
    let route = Route::Exit(stage.dialers[0].clone());
    place.options.routes = vec![RouteUse { route, name: "exit".to_owned(), rank: 0, cap: None }];
    place.fetch().await.unwrap();
    assert!(place.content() == content, "wrong bytes");
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_a_server_that_the_exit_does_not_allow_is_named() {
    let server = Server::start(|_| Response::new(302, b"").with("Location", "http://10.9.8.7/a"));
    let stage = Stage::new(&[Path::new(100.0, 0.5, 0.0)], false, "cubic").await;
    let mut place = Place::new(&[server.url("/a")]);
    let route = Route::Exit(stage.dialers[0].clone());
    place.options.routes = vec![RouteUse { route, name: "exit".to_owned(), rank: 0, cap: None }];
    let error = place.fetch().await.unwrap_err();
    let FetchError::Refused(tried) = error else { panic!("{error}") };
    assert_eq!(tried[0].why, "10.9.8.7, to which the server redirects: the exit does not allow this server");
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a quarter of an hour"]
async fn curves_of_safire_over_exits() {
    let delays = [0.5, 10.0, 20.0, 30.0, 40.0, 60.0, 100.0].map(|ms| (ms, 0.0));
    let losses = [0.5, 50.0].map(|ms| [0.02, 0.05, 0.1, 0.2].map(|loss| (ms, loss))).concat();
    println!("south (Mbit/s, ms, loss): routed, striped");
    for mbit in [1.0, 2.0] {
        for (ms, loss) in delays.iter().chain(&losses) {
            let paths = safire(Path::new(mbit, *ms, *loss), 1.0);
            let (routed, _) = goodput(8.0, &paths, false).await;
            let (striped, _) = goodput(8.0, &paths, true).await;
            println!("{mbit}, {ms}, {loss}: {routed:.2}, {striped:.2}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes eight minutes"]
async fn connections_through_one_exit_over_two_unequal_paths() {
    println!("congestion control, loss, connections: Mbit/s of 70");
    for (rule, loss) in [("cubic", 0.0), ("cubic", 0.01), ("auto", 0.01), ("bbr", 0.01)] {
        for connections in [1, 8] {
            // Round trips of 10 and 100 ms.
            let paths = [Path::new(50.0, 5.0, loss), Path::new(20.0, 50.0, loss)];
            let mut rates = Vec::new();
            for _ in 0..3 {
                rates.push(steady(&paths, connections, rule).await);
            }
            println!("{rule}, {loss}, {connections}: {rates:.1?}");
        }
    }
}
