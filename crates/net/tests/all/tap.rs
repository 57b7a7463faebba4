//! A tap sees a session's datagrams, and the keys passed to it decrypt them.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_net::{
    Addresses, CapturedSession, Config, Endpoint, EndpointConfig, KeyLimits, Limits, NodeKey, PublicKey,
    Seen, ShareId, Span, Tap, Target, Verdict,
};
use anabranch_wire::{Header, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Default)]
struct Recorder {
    datagrams: Mutex<Vec<(bool, Vec<u8>)>>,
    keys: Mutex<Vec<String>>,
    wants_keys: bool,
}

impl Tap for Recorder {
    fn datagrams(&self, seen: &Seen<'_>) {
        let mut datagrams = self.datagrams.lock().unwrap();
        datagrams.extend(seen.contents.chunks(seen.stride).map(|datagram| (seen.sent, datagram.to_vec())));
    }

    fn wants_keys(&self) -> bool {
        self.wants_keys
    }

    fn session_keys(&self, line: &str) {
        self.keys.lock().unwrap().push(line.to_owned());
    }
}

async fn endpoint(seed: u8, tap: Arc<Recorder>) -> Endpoint {
    let open = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let config = EndpointConfig::new(NodeKey::from_random([seed; 32])).tap(tap);
    let hosts = (1..=2).map(|path| IpAddr::from([127, 0, path, 40 + seed])).collect();
    let config = config.addresses(Addresses::Exactly(hosts)).authorize(open);
    // Several fresh exchanges in a short transfer.
    let often =
        KeyLimits { exchange_after: Span::from_millis(1), retention: Span::ZERO, ..KeyLimits::default() };
    let limits = Limits { keys: often, ..Limits::default() };
    Endpoint::bind(EndpointConfig { limits, ..config }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_shows_every_datagram_and_its_keys_open_them_all() {
    let told = Arc::new(Recorder { wants_keys: true, ..Recorder::default() });
    let untold = Arc::new(Recorder::default());
    let (client, server) = (endpoint(1, told.clone()).await, endpoint(2, untold.clone()).await);
    let target = Target::new(server.node(), server.local_addresses());
    let (session, accepted) = tokio::join!(client.connect(&target, Config::default()), server.accept());
    let (session, accepted) = (session.unwrap(), accepted.unwrap());
    let sender = tokio::spawn(async move {
        let mut stream = session.open_stream().await.unwrap();
        stream.write_all(&vec![7; 3_000_000]).await.unwrap();
        stream.shutdown().await.unwrap();
        session.close().await
    });
    let mut received = Vec::new();
    accepted.accept_stream().await.unwrap().read_to_end(&mut received).await.unwrap();
    drop(accepted);
    tokio::time::timeout(Duration::from_secs(60), sender).await.unwrap().unwrap();

    assert!(untold.keys.lock().unwrap().is_empty(), "keys are told on request alone");
    let lines = told.keys.lock().unwrap();
    assert!(lines.len() > 1, "{} lines: there was no fresh exchange", lines.len());
    let mut captured = CapturedSession::read_all(&lines.join("\n")).unwrap().remove(0);
    let (mut sent, mut came, mut bytes) = (0, 0, 0);
    for (was_sent, datagram) in told.datagrams.lock().unwrap().iter() {
        let (header, body) = Header::decode(datagram).unwrap();
        if header.kind != Kind::Data {
            continue;
        }
        let mut body = body.to_vec();
        let opened = captured.open(&header, &mut body).expect("every packet opens");
        assert_eq!(opened.sent, *was_sent);
        *(if opened.sent { &mut sent } else { &mut came }) += 1;
        bytes += body[..opened.len].iter().filter(|byte| **byte == 7).count();
    }
    assert!(sent > 2_000 && came > 10 && bytes >= 3_000_000, "{sent} {came} {bytes}");
    let server_saw = untold.datagrams.lock().unwrap().len();
    assert!(server_saw > 2_000, "{server_saw}");
}
