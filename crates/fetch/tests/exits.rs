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
use std::time::{Duration, Instant};

use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_fetch::{Route, RouteUse};
use anabranch_link::{Limit, LinkConfig, LossModel};
use anabranch_net::{Addresses, NodeKey, Rate, Span};
use anabranch_node::{Access, Dial, Node};
use anabranch_proxy::{Exit, ExitDialer, ExitOptions, Limits, session_config};
use common::server::Server;
use common::{Place, noise};

/// Packets that wait for a path, as in the paper.
const QUEUE: u32 = 50;
/// North and middle: rate in Mbit/s, and one-way delay.
const USUAL: (f64, Span) = (1.0, Span::from_micros(500));

/// The south path, from the exit to this machine.
#[derive(Clone, Copy, Debug)]
struct South {
    mbit: f64,
    delay: Span,
    loss: f64,
}

fn host(machine: u8, path: usize) -> IpAddr {
    [127, 7, machine, u8::try_from(path).unwrap() + 1].into()
}

fn key(seed: usize) -> NodeKey {
    NodeKey::from_random([u8::try_from(seed).unwrap() + 1; 32])
}

/// A link of so many times the paper's rate.
fn link(times: f64, (mbit, delay): (f64, Span), loss: f64) -> LinkConfig {
    let mut link = LinkConfig::fixed(Rate::from_mbit(mbit * times), delay, 0);
    link.queue.limit = Limit::Packets(QUEUE);
    link.loss = if loss > 0.0 { LossModel::Bernoulli(loss) } else { LossModel::None };
    link
}

/// An exit at these addresses that admits the client.
async fn exit(seed: usize, hosts: Vec<IpAddr>, client: &NodeKey) -> Node {
    let builder =
        Node::builder().key(key(seed)).addresses(Addresses::Exactly(hosts)).session(session_config());
    let node = builder.access(Access::by_keys([client.public()])).start().await.unwrap();
    let exit = Exit::new(&ExitOptions {
        allow: vec!["127.0.0.1".parse().unwrap()],
        deny: Vec::new(),
        listen: Vec::new(),
        limits: Limits { connections: 64, rate: None, bytes: None },
    });
    let accepting = node.clone();
    let accept = move || {
        let node = accepting.clone();
        async move { node.accept().await }
    };
    tokio::spawn(exit.run(accept, |_| {}));
    node
}

/// Fetches a file of so many bytes; returns the goodput in Mbit/s. Paths have so `many` times the paper's rates.
async fn goodput(size: usize, times: f64, south: South, is_striped: bool) -> f64 {
    let content = noise(size, 50);
    let server = Server::right(&content);
    let client_key = key(9);
    let local = Addresses::Exactly((0..3).map(|path| host(1, path)).collect());
    let client = Node::builder().key(client_key.clone()).addresses(local).session(session_config());
    let client = client.start().await.unwrap();
    let all = [vec![0, 1, 2]];
    let each = [vec![0], vec![1], vec![2]];
    let groups = if is_striped { &all[..] } else { &each[..] };
    let (mut emulations, mut exits, mut routes) = (Vec::new(), Vec::new(), Vec::new());
    for (number, group) in groups.iter().enumerate() {
        let exit = exit(number, group.iter().map(|path| host(3, *path)).collect(), &client_key).await;
        let port = exit.addresses()[0].port();
        let paths = group.iter().map(|path| {
            let (shape, loss) =
                if *path == 2 { ((south.mbit, south.delay), south.loss) } else { (USUAL, 0.0) };
            EmulatedPath {
                listen: SocketAddr::new(host(2, *path), 0),
                server: SocketAddr::new(host(3, *path), port),
                forward: LinkConfig { seed: 1, ..link(times, shape, 0.0) },
                reverse: LinkConfig { seed: 2, ..link(times, shape, loss) },
            }
        });
        let emulation = Emulation::start(&paths.collect::<Vec<_>>()).unwrap();
        let entries = emulation.addresses().to_vec();
        let pins = group.iter().zip(&entries).map(|(path, entry)| (host(1, *path), *entry)).collect();
        let dialer = ExitDialer::new(format!("exit {number}"));
        let held = client.hold(Dial::node(exit.id(), entries).pins(pins), None);
        let follower = dialer.clone();
        tokio::spawn(async move { follower.follow(held, |_| {}).await });
        routes.push(RouteUse {
            route: Route::Exit(dialer),
            name: format!("exit {number}"),
            rank: 0,
            cap: None,
        });
        emulations.push(emulation);
        exits.push(exit);
    }
    // Sessions are open and have found their paths.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut place = Place::new(&[server.url("/a")]);
    place.options.routes = routes;
    let begin = Instant::now();
    place.fetch().await.unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    assert!(place.content() == content, "wrong bytes");
    client.close().await;
    for exit in exits {
        exit.close().await;
    }
    size as f64 * 8e-6 / seconds
}

/// Twenty times the paper's rates, so that it is over soon.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_split_over_three_exits() {
    let south = South { mbit: 2.0, delay: Span::from_millis(20), loss: 0.0 };
    let rate = goodput(20_000_000, 20.0, south, false).await;
    assert!(rate > 0.75 * 80.0, "{rate:.1} of 80 Mbit/s");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a quarter of an hour"]
async fn curves_of_safire_over_exits() {
    let size = |mbit: f64| (mbit * 1e6 / 8.0) as usize * 8;
    let delays = [0.5, 10.0, 20.0, 30.0, 40.0, 60.0, 100.0].map(|ms| (ms, 0.0));
    let losses = [0.5, 50.0].map(|ms| [0.0, 0.02, 0.05, 0.1, 0.2].map(|loss| (ms, loss))).concat();
    println!("south (Mbit/s, ms, loss): routed, striped");
    for mbit in [1.0, 2.0] {
        for (ms, loss) in delays.iter().chain(&losses) {
            let south = South { mbit, delay: Span::from_micros((ms * 1000.0) as u64), loss: *loss };
            let routed = goodput(size(2.0 + mbit), 1.0, south, false).await;
            let striped = goodput(size(2.0 + mbit), 1.0, south, true).await;
            println!("{mbit}, {ms}, {loss}: {routed:.2}, {striped:.2}");
        }
    }
}
