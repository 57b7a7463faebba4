//! Two endpoints on loopback, and a bulk transfer between them.

use std::net::IpAddr;

use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, ShareId, SocketInfo, Target, Verdict,
};
use bytes::Bytes;

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
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "each test looks at its own")]
pub struct Count {
    pub sent: f64,
    pub sends: f64,
    pub received: f64,
    pub receives: f64,
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

/// Moves `bytes` bytes and returns the costs of sender and receiver; calls `half` with the sender's count when about half
/// of them were read.
pub async fn bulk(paths: u8, bytes: usize, half: impl FnOnce(Count)) -> [Count; 2] {
    let (server, client) = (endpoint(2, paths).await, endpoint(1, paths).await);
    let mut target = Target::new(server.node(), server.local_addresses());
    target.pins = addresses(1, paths).into_iter().zip(server.local_addresses()).collect();
    let (session, accepted) = tokio::join!(client.connect(&target, Config::default()), server.accept());
    let (session, accepted) = (session.unwrap(), accepted.unwrap());
    let sender = tokio::spawn(async move {
        let (mut stream, data) = (session.open_stream().await.unwrap(), Bytes::from(vec![7; 1 << 20]));
        for _ in 0..bytes >> 20 {
            stream.write_chunk(data.clone()).await.unwrap();
        }
        stream.finish().unwrap();
        session
    });
    let mut stream = accepted.accept_stream().await.unwrap();
    let (mut read, mut half) = (0, Some(half));
    while let Some(piece) = stream.read_chunk(1 << 20).await.unwrap() {
        read += piece.len();
        if read >= bytes / 2
            && let Some(half) = half.take()
        {
            half(count(&client.sockets()));
        }
    }
    let _session = sender.await.unwrap();
    [count(&client.sockets()), count(&server.sockets())]
}
