//! Recorded packets that are replayed to relays, and relays that lead to each other: real sessions, real sockets.

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{address, carry, ip, join, node, relay, route, through_relays, until};
use anabranch_daemon::relay::RelayService;
use anabranch_net::{Chain, Config, Ecn, Endpoint, PathId, PathUse, Pid, PublicKey, Session, Stream, Target};
use anabranch_node::{Entry, Peer, RelayConnection, RelayPaths, Wanted};
use anabranch_overlay::relay::{FlowId, FlowState, RELAY_VERSION, Refused, Reply, Request, Target as Next};
use anabranch_secure::RelayHint;
use anabranch_wire::{Header, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A proxy between clients and a relay that records all packets of clients.
struct Tap {
    at: SocketAddr,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tap {
    async fn start(last: u8, relay: SocketAddr) -> Self {
        let bind = || tokio::net::UdpSocket::bind((ip(last), 0));
        let (near, far) = (bind().await.unwrap(), bind().await.unwrap());
        far.connect(relay).await.unwrap();
        let at = near.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let keep = heard.clone();
        tokio::spawn(async move {
            let (mut up, mut down, mut client) = ([0; 2048], [0; 2048], at);
            loop {
                tokio::select! {
                    Ok((len, from)) = near.recv_from(&mut up) => {
                        client = from;
                        keep.lock().unwrap().push(up[..len].to_vec());
                        far.send(&up[..len]).await.unwrap();
                    }
                    Ok(len) = far.recv(&mut down) => {
                        near.send_to(&down[..len], client).await.unwrap();
                    }
                }
            }
        });
        Self { at, heard }
    }

    /// Sends all recorded packets from another address; returns the bytes sent and the bytes received.
    fn replay(&self, thief: &UdpSocket, relay: SocketAddr) -> [usize; 2] {
        let heard = self.heard.lock().unwrap();
        let sent = heard.iter().map(|datagram| {
            // No faster than the relay reads them.
            std::thread::sleep(Duration::from_micros(100));
            thief.send_to(datagram, relay).unwrap()
        });
        let (sent, mut buffer) = (sent.sum(), [0; 2048]);
        let back = std::iter::from_fn(|| thief.recv(&mut buffer).ok()).sum();
        [sent, back]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_overheard_opens_and_carries_nothing_when_it_is_sent_again() {
    let (client, server) = (node(202).await, node(203).await);
    let (service, hint) = relay(204, &[202]).await;
    let relay = hint.addresses[0];
    let tap = Tap::start(205, relay).await;
    let tapped = RelayHint { addresses: vec![tap.at], ..hint };
    let (here, there) = join(&client, &server, 1).await;
    let peer = Peer { addresses: vec![address(&server)], entry: Entry::default() };
    let paths = RelayPaths::keep(&client, &here, &[route(&[&tapped])], &peer);
    until("a path through the relay", || through_relays(&here).len() == 1).await;
    here.set_path_use(PathId::FIRST, PathUse::Backup).unwrap();
    carry(&here, &there, 100_000).await;

    let thief = UdpSocket::bind((ip(206), 0)).unwrap();
    thief.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let known = |service: &RelayService| {
        let status = service.status();
        (status.sessions, status.flows, status.forwarded_packets)
    };
    let before = known(&service);
    let [sent, back] = tap.replay(&thief, relay);
    let after = known(&service);
    eprintln!("sent again {sent} bytes, {back} came back; {before:?} before, {after:?} after");
    assert!(sent > 100_000 && back < sent / 10, "{back} bytes for {sent}");
    assert_eq!((after.0, after.1), (before.0, before.1), "a session or a path was opened");
    assert!(after.2 - before.2 < 20, "forwarded {}", after.2 - before.2);
    carry(&here, &there, 100_000).await;

    // The client has left; its recorded packets do not restore its paths.
    drop(paths);
    client.close().await;
    until("no session", || service.status().sessions == 0).await;
    let before = known(&service);
    let [sent, back] = tap.replay(&thief, relay);
    assert_eq!(known(&service), before);
    assert!(back < sent / 2, "{back} bytes for {sent}");
}

/// A session with a relay, with hand-written requests.
struct ByHand {
    session: Session,
    stream: Stream,
    read: Vec<u8>,
}

impl ByHand {
    /// Opens a session over prepared flows.
    async fn open(client: &Endpoint, relay: PublicKey, over: (Pid, Chain)) -> Self {
        let one_path = Config { max_paths: 1, ..Config::default() };
        let session = client.connect_through(&Target::new(relay, Vec::new()), one_path, over).await.unwrap();
        let stream = session.open_stream().await.unwrap();
        Self { session, stream, read: Vec::new() }
    }

    fn pid(&self) -> Pid {
        self.session.remote_pid(PathId::FIRST).unwrap()
    }

    async fn say(&mut self, request: Request) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn hear(&mut self) -> Reply {
        loop {
            if let Some((reply, len)) = Reply::decode(&self.read).unwrap() {
                self.read.drain(..len);
                return reply;
            }
            let more = self.stream.read_buf(&mut self.read);
            let more = tokio::time::timeout(Duration::from_secs(60), more).await.expect("an answer");
            assert!(more.unwrap() > 0, "the relay has ended the session");
        }
    }

    /// Allocates a flow to this relay; returns the PIDs for it and for its return path.
    async fn allocate(&mut self, target: Next, out: Pid) -> (FlowId, Pid, Pid) {
        let ask = || Request::Allocate { request: 1, via: PathId::FIRST, target, out, back: Pid(1) };
        self.say(ask()).await;
        loop {
            match self.hear().await {
                Reply::Allocated { flow, forward, back, .. } => return (flow, forward, back),
                // The client's address is not proven yet.
                Reply::Refused { why: Refused::NoSuchPath, .. } => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    self.say(ask()).await;
                }
                Reply::Refused { why, .. } => panic!("{why}"),
                _ => {}
            }
        }
    }

    async fn ready(&mut self, wanted: FlowId) {
        loop {
            match self.hear().await {
                Reply::Flow { flow, state: FlowState::Ready } if flow == wanted => return,
                Reply::Flow { state: FlowState::Ready, .. } => {}
                Reply::Flow { state, .. } => panic!("{state}"),
                Reply::Refused { why, .. } => panic!("{why}"),
                _ => {}
            }
        }
    }
}

fn data(pid: Pid, hop_limit: u8) -> Vec<u8> {
    let mut bytes = vec![7; 200];
    Header { kind: Kind::Data, key_phase: false, tos: 8, hop_limit, pid, fsn: 0 }.encode(&mut bytes);
    bytes
}

/// One user uses both relays and reaches each through the other. So each relay takes the other for the source of the
/// user's packets, and agrees to its questions about a PID that it issued.
#[tokio::test(flavor = "multi_thread")]
async fn a_loop_of_two_relays_ends_after_as_many_hops_as_a_chain_has() {
    let client = node(212).await;
    let (first, a) = relay(213, &[212]).await;
    let (second, b) = relay(214, &[212]).await;
    let at = |hint: &RelayHint| Next::Address { address: hint.addresses[0], key: Some(hint.node) };
    let direct = RelayConnection::open(&client, &a, &Entry::default()).await.unwrap();

    // A session with the second relay through the first.
    let own = client.new_pid();
    let mut to_b = direct.allocate(Wanted { target: at(&b), out: Pid::HANDSHAKE, back: own }).await.unwrap();
    to_b.ready().await.unwrap();
    let chain = Chain { entry: to_b.entry, forward: to_b.forward, back: to_b.back, relays: vec![a.node] };
    let mut at_b = ByHand::open(&client, b.node, (own, chain)).await;
    to_b.redirect(at_b.pid(), Pid::HANDSHAKE, true).await.unwrap();
    at_b.say(Request::Hello { version: RELAY_VERSION }).await;

    // A session with the first relay through the first and the second.
    let (to_a, forward, back) = at_b.allocate(at(&a), Pid::HANDSHAKE).await;
    let own = client.new_pid();
    let mut over_a = direct.allocate(Wanted { target: at(&b), out: forward, back: own }).await.unwrap();
    at_b.say(Request::Redirect { flow: to_a, out: Pid::HANDSHAKE, back: over_a.back }).await;
    at_b.ready(to_a).await;
    over_a.ready().await.unwrap();
    let chain = Chain { entry: over_a.entry, forward: over_a.forward, back, relays: vec![a.node, b.node] };
    let mut at_a = ByHand::open(&client, a.node, (own, chain)).await;
    at_b.say(Request::Redirect { flow: to_a, out: at_a.pid(), back: Pid::HANDSHAKE }).await;
    at_b.ready(to_a).await;
    at_a.say(Request::Hello { version: RELAY_VERSION }).await;

    // A packet for the first relay leads to the second, and from there back.
    let (loop_b, into_b, _) = at_b.allocate(at(&a), Pid(1)).await;
    let (loop_a, into_a, _) = at_a.allocate(at(&b), into_b).await;
    at_b.say(Request::Redirect { flow: loop_b, out: into_a, back: Pid::HANDSHAKE }).await;
    at_a.ready(loop_a).await;
    at_b.ready(loop_b).await;
    let mut enter = direct.allocate(Wanted { target: at(&b), out: into_b, back: own }).await.unwrap();
    enter.ready().await.unwrap();

    let forwarded = || first.status().forwarded_packets + second.status().forwarded_packets;
    let quiet = || tokio::time::sleep(Duration::from_millis(400));
    let before = forwarded();
    let send = |hop_limit| {
        for _ in 0..100 {
            let datagram = data(enter.forward, hop_limit);
            client.outlet().send(enter.entry, (&datagram, datagram.len()), Ecn::NotEct);
        }
    };
    send(4);
    let ended = || first.status().dropped.hop_limit + second.status().dropped.hop_limit;
    until("their end", || ended() >= 80).await;
    quiet().await;
    let after = forwarded();
    // Four hops forward each packet; the sessions' own packets are counted too.
    assert!((350..=430).contains(&(after - before)), "{} for 100 packets", after - before);
    assert!(ended() <= 100, "{} ended by their hop limit", ended());
    quiet().await;
    assert!(forwarded() - after < 20, "it goes on");

    // A packet with a larger hop limit than a chain has is dropped.
    let before = forwarded();
    send(15);
    quiet().await;
    assert!(forwarded() - before < 20, "{} for a hop limit of 15", forwarded() - before);
}
