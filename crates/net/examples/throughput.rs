//! Sends bytes through one session over loopback as fast as possible.
//!
//! `cargo run --release -p anabranch-net --example throughput -- [SECONDS] [PATHS] [apart]`
//!
//! `apart`: each end runs on its own thread and prints its processor time per data packet, including the kernel's work (Linux).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, Event, NodeKey, PathChange, PublicKey, ShareId, SocketInfo,
    Target, Verdict,
};
use bytes::Bytes;

fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

fn addresses(host: u8, paths: u8) -> Vec<IpAddr> {
    (1..=paths).map(|path| IpAddr::from([127, 0, path, host])).collect()
}

/// Processor time of this thread so far, in nanoseconds.
fn processor() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    text.split_whitespace().next().and_then(|field| field.parse().ok()).expect("a number")
}

/// Prints this end's cost per packet, if it has its own thread; `data` selects the packet counter of a socket.
fn tell_cost(end: &str, endpoint: &Endpoint, before: Option<f64>, data: fn(&SocketInfo) -> u64) {
    if let Some(before) = before {
        let packets = endpoint.sockets().iter().map(data).sum::<u64>();
        println!("{end}: {:.0} ns a packet", (processor() - before) / packets as f64);
    }
}

async fn receive(endpoint: Endpoint, is_apart: bool) {
    while let Some(session) = endpoint.accept().await {
        let before = is_apart.then(processor);
        let Ok(mut stream) = session.accept_stream().await else { continue };
        let (mut bytes, start) = (0, Instant::now());
        while let Ok(Some(piece)) = stream.read_chunk(1 << 20).await {
            bytes += piece.len();
        }
        let gbit = bytes as f64 * 8e-9 / start.elapsed().as_secs_f64();
        println!("received {:.0} MB at {gbit:.2} Gbit/s", bytes as f64 * 1e-6);
        tell_cost("receiver", &endpoint, before, |socket| socket.stats.received);
        for socket in endpoint.sockets() {
            println!("receiver {} {:?}", socket.local, socket.stats);
        }
        println!("{:?}", endpoint.stats());
        if is_apart {
            // The other end waits for the answer to its close.
            session.closed().await;
            return;
        }
    }
}

async fn server(paths: u8) -> Result<Endpoint, Box<dyn std::error::Error>> {
    let open = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let server =
        EndpointConfig::new(key(1)).addresses(Addresses::Exactly(addresses(2, paths))).authorize(open);
    Ok(Endpoint::bind(server).await?)
}

async fn send(
    remotes: Vec<SocketAddr>,
    (seconds, paths, is_apart): (u64, u8, bool),
) -> Result<(), Box<dyn std::error::Error>> {
    let client = EndpointConfig::new(key(2)).addresses(Addresses::Exactly(addresses(1, paths)));
    let client = Endpoint::bind(client).await?;
    let mut target = Target::new(key(1).public(), remotes.clone());
    target.pins = addresses(1, paths).into_iter().zip(remotes).collect();
    let session = client.connect(&target, Config::default()).await?;
    let mut events = session.events();
    let doubts = tokio::spawn(async move {
        let mut doubts = 0;
        while let Some(event) = events.next().await {
            doubts += u64::from(matches!(event, Event::Path { change: PathChange::Suspect, .. }));
        }
        doubts
    });
    let mut stream = session.open_stream().await?;
    let data = Bytes::from(vec![7; 1 << 20]);
    let before = is_apart.then(processor);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        stream.write_chunk(data.clone()).await?;
    }
    stream.finish()?;
    for path in session.paths() {
        println!(
            "{} {} {:?} rtt {} window {} mtu {} rate {} lost {} of {}, {} late",
            path.id,
            path.route.remote,
            path.state,
            path.rtt,
            path.window,
            path.mtu,
            path.delivery_rate,
            path.stats.packets_lost,
            path.stats.packets_sent,
            path.stats.probe_timeouts,
        );
    }
    let stats = session.stats();
    println!("{:?}", session.close().await);
    tell_cost("sender", &client, before, |socket| socket.stats.sent);
    let sent = stats.bytes_written.max(1) as f64;
    println!(
        "sent again {:.2} %, copied {:.2} %, paths doubted {} times",
        stats.bytes_resent as f64 * 100.0 / sent,
        stats.bytes_copied as f64 * 100.0 / sent,
        doubts.await?,
    );
    for socket in client.sockets() {
        println!("sender {} {:?}", socket.local, socket.stats);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut numbers = words.iter().filter_map(|word| word.parse().ok());
    let (seconds, paths) = (numbers.next().unwrap_or(5), u8::try_from(numbers.next().unwrap_or(1))?);
    let is_apart = words.iter().any(|word| word == "apart");
    if is_apart {
        let (tell, told) = std::sync::mpsc::channel();
        let there = std::thread::spawn(move || {
            let alone = tokio::runtime::Builder::new_current_thread().enable_all().build();
            alone.expect("a runtime").block_on(async {
                let server = server(paths).await.expect("loopback has these addresses");
                tell.send(server.local_addresses()).expect("the other end waits");
                receive(server, true).await;
            });
        });
        let alone = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        alone.block_on(send(told.recv()?, (seconds, paths, true)))?;
        return there.join().map_err(|_| "the receiver failed".into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = server(paths).await?;
        let remotes = server.local_addresses();
        tokio::spawn(receive(server, false));
        send(remotes, (seconds, paths, false)).await
    })
}
