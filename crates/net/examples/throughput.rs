//! Bytes through one session over loopback, as fast as they go.
//!
//! `cargo run --release -p anabranch-net --example throughput -- [SECONDS] [PATHS]`

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, Event, NodeKey, PathChange, PublicKey, ShareId, Target,
    Verdict,
};
use bytes::Bytes;

fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

fn addresses(host: u8, paths: u8) -> Vec<IpAddr> {
    (1..=paths).map(|path| IpAddr::from([127, 0, path, host])).collect()
}

async fn receive(endpoint: Endpoint) {
    while let Some(session) = endpoint.accept().await {
        let Ok(mut stream) = session.accept_stream().await else { continue };
        let (mut bytes, start) = (0, Instant::now());
        while let Ok(Some(piece)) = stream.read_chunk(1 << 20).await {
            bytes += piece.len();
        }
        let gbit = bytes as f64 * 8e-9 / start.elapsed().as_secs_f64();
        println!("received {:.0} MB at {gbit:.2} Gbit/s", bytes as f64 * 1e-6);
        for socket in endpoint.sockets() {
            println!("receiver {} {:?}", socket.local, socket.stats);
        }
        println!("{:?}", endpoint.stats());
    }
}

async fn run(seconds: u64, paths: u8) -> Result<(), Box<dyn std::error::Error>> {
    let open = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let server =
        EndpointConfig::new(key(1)).addresses(Addresses::Exactly(addresses(2, paths))).authorize(open);
    let server = Endpoint::bind(server).await?;
    let remotes: Vec<SocketAddr> = server.local_addresses();
    tokio::spawn(receive(server));

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
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (seconds, paths) = (arguments.next().unwrap_or(5), arguments.next().unwrap_or(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(seconds, u8::try_from(paths)?))
}
