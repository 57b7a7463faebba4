//! A server and a client for two machines, or for two network namespaces.
//!
//! Run `pair serve` on one, `pair send ADDRESS:4433 [SECONDS]` on the other. Paths are found automatically; every half
//! second the client prints the traffic of each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_net::{Config, Endpoint, EndpointConfig, NodeKey, PublicKey, ShareId, Span, Target, Verdict};
use bytes::Bytes;

const PORT: u16 = 4433;

async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let open = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let config = EndpointConfig::new(NodeKey::from_random([1; 32])).port(PORT).authorize(open);
    let endpoint = Endpoint::bind(config).await?;
    println!("listening on {:?}", endpoint.local_addresses());
    while let Some(session) = endpoint.accept().await {
        tokio::spawn(async move {
            let Ok(mut stream) = session.accept_stream().await else { return };
            let (mut bytes, start) = (0, Instant::now());
            let (mut last, mut mark) = (0, Instant::now());
            let (mut silence, mut heard) = (Duration::ZERO, Instant::now());
            while let Ok(Some(piece)) = stream.read_chunk(1 << 20).await {
                bytes += piece.len();
                silence = silence.max(heard.elapsed());
                heard = Instant::now();
                if mark.elapsed() >= Duration::from_millis(500) {
                    let rate = (bytes - last) as f64 * 8e-6 / mark.elapsed().as_secs_f64();
                    println!("received {rate:.2} Mbit/s, longest silence {silence:?}");
                    (last, mark, silence) = (bytes, Instant::now(), Duration::ZERO);
                }
            }
            println!("all {:.2} Mbit/s", bytes as f64 * 8e-6 / start.elapsed().as_secs_f64());
        });
    }
    Ok(())
}

async fn send(address: SocketAddr, seconds: u64) -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = Endpoint::bind(EndpointConfig::new(NodeKey::from_random([2; 32]))).await?;
    for socket in endpoint.sockets() {
        println!("socket {} on {} bound {}", socket.local, socket.place.interface, socket.bound_to_interface);
    }
    let target = Target::new(NodeKey::from_random([1; 32]).public(), vec![address]);
    let config = Config { keep_alive: Some(Span::from_secs(5)), ..Config::default() };
    let session = endpoint.connect(&target, config).await?;
    let mut stream = session.open_stream().await?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let writer = tokio::spawn(async move {
        let data = Bytes::from(vec![7; 1 << 16]);
        while Instant::now() < end && stream.write_chunk(data.clone()).await.is_ok() {}
        stream
    });
    let mut events = session.events();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            println!("{event:?}");
        }
    });
    let mut last = BTreeMap::new();
    while !writer.is_finished() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut line = String::new();
        for path in session.paths() {
            let before = last.insert(path.id, path.stats.bytes_sent).unwrap_or(0);
            line += &format!(
                "{} {} {:.1} Mbit/s rtt {} cwnd {} lost {}  ",
                path.route.remote,
                path.state.as_str(),
                (path.stats.bytes_sent - before) as f64 * 16e-6,
                path.rtt,
                path.window,
                path.stats.packets_lost
            );
        }
        println!("{line}");
    }
    writer.await?.finish()?;
    println!("{}", session.close().await);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => serve().await,
        ["send", address] => send(address.parse()?, 5).await,
        ["send", address, seconds] => send(address.parse()?, seconds.parse()?).await,
        _ => Err("pair serve | pair send ADDRESS:PORT [SECONDS]".into()),
    }
}
