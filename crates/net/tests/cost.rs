//! What a packet costs in system calls, counted by the sockets: fails when batches fall apart.

use std::net::IpAddr;
use std::time::Duration;

use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, ShareId, SocketInfo, Target, Verdict,
};
use bytes::Bytes;
use tokio::time::timeout;

const BYTES: usize = 150_000_000;

fn addresses(host: u8, paths: u8) -> Vec<IpAddr> {
    (1..=paths).map(|path| IpAddr::from([127, 0, path, host])).collect()
}

async fn endpoint(host: u8, paths: u8) -> Endpoint {
    let open = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let config = EndpointConfig::new(NodeKey::from_random([host; 32]));
    Endpoint::bind(config.addresses(Addresses::Exactly(addresses(host, paths))).authorize(open))
        .await
        .unwrap()
}

/// Datagrams and system calls of an endpoint.
#[derive(Debug)]
struct Count {
    sent: f64,
    sends: f64,
    received: f64,
    receives: f64,
}

fn count(sockets: &[SocketInfo]) -> Count {
    let sum = |of: fn(&SocketInfo) -> u64| sockets.iter().map(of).sum::<u64>() as f64;
    Count {
        sent: sum(|socket| socket.stats.sent),
        sends: sum(|socket| socket.stats.send_calls),
        received: sum(|socket| socket.stats.received),
        receives: sum(|socket| socket.stats.receive_calls),
    }
}

/// What moving [`BYTES`] costs sender and receiver.
async fn bulk(paths: u8) -> [Count; 2] {
    let (server, client) = (endpoint(2, paths).await, endpoint(1, paths).await);
    let mut target = Target::new(server.node(), server.local_addresses());
    target.pins = addresses(1, paths).into_iter().zip(server.local_addresses()).collect();
    let (session, accepted) = tokio::join!(client.connect(&target, Config::default()), server.accept());
    let (session, accepted) = (session.unwrap(), accepted.unwrap());
    let sender = tokio::spawn(async move {
        let (mut stream, data) = (session.open_stream().await.unwrap(), Bytes::from(vec![7; 1 << 20]));
        for _ in 0..BYTES >> 20 {
            stream.write_chunk(data.clone()).await.unwrap();
        }
        stream.finish().unwrap();
        session
    });
    let mut stream = accepted.accept_stream().await.unwrap();
    while stream.read_chunk(1 << 20).await.unwrap().is_some() {}
    let _session = sender.await.unwrap();
    [count(&client.sockets()), count(&server.sockets())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_calls_move_many_packets_each() {
    for paths in [1, 3] {
        let [sender, receiver] = timeout(Duration::from_secs(60), bulk(paths)).await.unwrap();
        println!("{paths} paths: sender {sender:?}, receiver {receiver:?}");
        assert!(sender.sent > BYTES as f64 / 1472.0);
        assert!(sender.sent >= 20.0 * sender.sends, "{paths} paths: packets a send: {sender:?}");
        assert!(
            receiver.received >= 20.0 * receiver.receives,
            "{paths} paths: packets a receive: {receiver:?}"
        );
        assert!(
            sender.sent >= 20.0 * receiver.sent,
            "{paths} paths: packets an acknowledgement: {receiver:?}"
        );
    }
}
