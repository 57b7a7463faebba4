//! An exit and clients with many sessions.

use std::time::Duration;

use anabranch_net::{
    Addresses, CloseReason, Config, ConnectError, Endpoint, EndpointConfig, NodeKey, Session, Target,
};
use anabranch_node::{Access, Node};
use tokio::time::timeout;

use super::*;
use crate::{LARGEST_PACKET, session_config};

fn key(byte: u8) -> NodeKey {
    NodeKey::from_random([byte; 32])
}

fn here() -> Addresses {
    Addresses::Exactly(vec![[127, 0, 0, 1].into()])
}

async fn connect(exit: &Node, client: &Endpoint) -> Result<Session, ConnectError> {
    let target = Target::new(exit.id(), exit.addresses());
    timeout(Duration::from_secs(10), client.connect(&target, Config::default())).await.expect("an answer")
}

/// A session with the exit.
async fn open(exit: &Node, client: &Endpoint) -> Session {
    connect(exit, client).await.unwrap()
}

async fn end(session: &Session) -> CloseReason {
    timeout(Duration::from_secs(10), session.closed()).await.expect("it ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_its_share_of_sessions_and_the_largest_consumer_yields() {
    let access = Access::by_keys([2, 3, 4].map(|byte| key(byte).public()));
    let node = Node::builder().key(key(1)).addresses(here()).session(session_config()).access(access);
    let node = node.start().await.unwrap();
    let exit = Exit::new(&ExitOptions {
        allow: Vec::new(),
        deny: Vec::new(),
        listen: Vec::new(),
        limits: Limits { connections: 1, rate: None, bytes: None },
        sessions: SessionLimits { total: 5, per_key: 3, per_source: 100 },
    });
    let accepting = node.clone();
    let accept = move || {
        let node = accepting.clone();
        async move { node.accept().await }
    };
    tokio::spawn(exit.clone().run(accept, |_| {}));
    let bind = async |byte| Endpoint::bind(EndpointConfig::new(key(byte)).addresses(here())).await.unwrap();
    let [greedy, other, third] = [bind(2).await, bind(3).await, bind(4).await];
    let mut held = Vec::new();
    for number in 1..=3 {
        held.push(open(&node, &greedy).await);
        admits(&exit, number).await;
    }
    let refused = match connect(&node, &greedy).await {
        Ok(session) => end(&session).await,
        Err(ConnectError::Closed(reason)) => reason,
        Err(error) => panic!("{error}"),
    };
    assert!(matches!(refused, CloseReason::Peer { code: close_code::BUSY, .. }), "{refused:?}");
    for number in 4..=5 {
        held.push(open(&node, &other).await);
        admits(&exit, number).await;
    }
    held.push(open(&node, &third).await);
    let yields = end(&held[0]).await;
    assert!(matches!(yields, CloseReason::Peer { code: close_code::BUSY, .. }), "{yields:?}");
    admits(&exit, 5).await;
    assert!(held[1..].iter().all(|session| session.close_reason().is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_grow_to_what_an_interface_with_long_ones_takes() {
    let access = Access::by_keys([key(2).public()]);
    let node = Node::builder().key(key(1)).addresses(here()).session(session_config()).access(access);
    let node = node.start().await.unwrap();
    let client = Endpoint::bind(EndpointConfig::new(key(2)).addresses(here())).await.unwrap();
    let target = Target::new(node.id(), node.addresses());
    let (session, accepted) = tokio::join!(client.connect(&target, session_config()), node.accept());
    let (session, accepted) = (session.unwrap(), accepted.unwrap());
    // Only a path with data looks for larger packets.
    let mut stream = session.open_stream().await.unwrap();
    let writing = async { while stream.write_chunk(vec![7; 10_000].into()).await.is_ok() {} };
    let reading = async {
        let mut stream = accepted.session().accept_stream().await.unwrap();
        while stream.read_chunk(1 << 20).await.unwrap().is_some() {}
    };
    let size = || session.paths().first().map(|path| path.mtu);
    let grown = async {
        while size() != Some(LARGEST_PACKET) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = writing => panic!("the session ended"),
        () = reading => panic!("the stream ended"),
        grown = timeout(Duration::from_secs(20), grown) => assert!(grown.is_ok(), "{:?}", size()),
    }
}

/// Waits until the exit has so many sessions.
async fn admits(exit: &Exit, number: usize) {
    let there = async {
        while exit.admitted().len() != number {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(Duration::from_secs(10), there).await.is_ok());
}
