//! Type of service at a relay that gets more than it may forward, over real sockets [R11].

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{ip, key, node, settings};
use anabranch_daemon::relay::RelayService;
use anabranch_net::{Ecn, Endpoint, Pid, Rate};
use anabranch_node::{Entry, Flow, RelayConnection, Wanted};
use anabranch_overlay::relay::{Target, answer_challenge};
use anabranch_secure::RelayHint;
use anabranch_wire::{Header, Kind};

const CLIENT: u8 = 240;
const RELAY: u8 = 241;
const SINK: u8 = 242;
/// Rate of the relay; twice as much is sent.
const RATE: f64 = 20.0;
const PACKET: usize = 1_000;
const HIGH: u8 = 9;
const LOW: u8 = 2;
/// One packet in this many is of the high class: 5 % of the relay's rate, so that late bursts fit too.
const ONE_IN: usize = 40;
const TICK: Duration = Duration::from_millis(2);

/// Packets that arrived, by class.
#[derive(Default)]
struct Arrived {
    of_class: [AtomicU64; 16],
    over: AtomicBool,
}

impl Arrived {
    fn of(&self, class: u8) -> u64 {
        self.of_class[usize::from(class)].load(Ordering::Relaxed)
    }
}

/// Answers the relay's questions and counts packets.
fn sink(arrived: Arc<Arrived>) -> (std::net::SocketAddr, std::thread::JoinHandle<()>) {
    let socket = UdpSocket::bind((ip(SINK), 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    let address = socket.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while !arrived.over.load(Ordering::Relaxed) {
            let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
            if let Some(answer) = answer_challenge(&buffer[..len], |_| true, None) {
                socket.send_to(&answer, from).unwrap();
            } else if let Ok((header, _)) = Header::decode(&buffer[..len]) {
                arrived.of_class[usize::from(header.tos)].fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    (address, thread)
}

fn packet(flow: &Flow, tos: u8) -> Vec<u8> {
    let mut packet = vec![0xda; PACKET];
    Header { kind: Kind::Data, key_phase: false, tos, hop_limit: 4, pid: flow.forward, fsn: 0 }
        .encode(&mut packet);
    packet
}

/// Sends twice the relay's rate for two seconds; returns the number of packets that arrived of each class.
async fn overload(client: &Endpoint, flow: &Flow) -> (u64, u64) {
    let (high, low) = (packet(flow, HIGH), packet(flow, LOW));
    let each = (2.0 * RATE * 1e6 / 8.0 * TICK.as_secs_f64()) as usize / PACKET;
    let (mut sent, mut of_high) = (0, 0);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for _ in 0..1_000 {
        ticks.tick().await;
        for _ in 0..each {
            sent += 1;
            let is_high = sent % ONE_IN == 0;
            of_high += u64::from(is_high);
            let contents = if is_high { &high } else { &low };
            client.outlet().send(flow.entry, (contents, PACKET), Ecn::NotEct);
        }
    }
    (of_high, sent as u64 - of_high)
}

/// Waits until no more packets come.
async fn settle(arrived: &Arrived) {
    let all = || arrived.of_class.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
    let mut before = u64::MAX;
    while all() != before {
        before = all();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_gets_too_much_drops_the_lowest_type_of_service_and_nothing_of_the_high_one() {
    let client = node(CLIENT).await;
    let settings = anabranch_daemon::relay::config::RelaySettings {
        rate: Some(Rate::from_mbit(RATE)),
        ..settings(RELAY, &[CLIENT])
    };
    let relay = RelayService::start(key(RELAY), &settings).await.unwrap();
    let arrived = Arc::<Arrived>::default();
    let (address, thread) = sink(arrived.clone());
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    let connection = RelayConnection::open(&client, &hint, &Entry::default()).await.unwrap();
    let wanted = Wanted { target: Target::Address { address, key: None }, out: Pid(7), back: Pid(9) };
    let mut flow = connection.allocate(wanted).await.unwrap();
    flow.ready().await.unwrap();

    // While a thread does not run, its socket's buffer overflows, and loses packets of every class.
    for _ in 0..6 {
        let before = (arrived.of(HIGH), arrived.of(LOW), relay.status().dropped.congested);
        let (high, low) = overload(&client, &flow).await;
        settle(&arrived).await;
        let (got_high, got_low) = (arrived.of(HIGH) - before.0, arrived.of(LOW) - before.1);
        let dropped = relay.status().dropped;
        println!("high class: {got_high} of {high}; low class: {got_low} of {low}; {dropped:?}");
        let is_overload = got_low < low * 6 / 10 && dropped.congested > before.2;
        if got_high == high && is_overload && got_low > low / 10 {
            arrived.over.store(true, Ordering::Relaxed);
            return thread.join().unwrap();
        }
    }
    panic!(
        "the high class lost packets while the low one had some to give, or it was no overload: see above"
    );
}
