//! The sources and sinks of the packets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anabranch_net::socket::{Batch, BindTo, UdpSocket};
use anabranch_net::{Addresses, Ecn, Endpoint, EndpointConfig, Pid};
use anabranch_node::{Entry, Flow, RelayConnection, Wanted};
use anabranch_overlay::relay::{Target, answer_challenge};
use anabranch_secure::RelayHint;

use super::delays::note_delays;
use super::forwarders::drain;
use super::{FLOWS_EACH, SHORTER, key, local, runtime};

/// Opens this many sockets; one thread reads them, answers a relay's questions and counts packets.
pub fn sinks(count: &Arc<AtomicU64>, sockets: usize) -> Vec<SocketAddr> {
    let (told, telling) = std::sync::mpsc::channel();
    let count = count.clone();
    thread::spawn(move || {
        let local_set = tokio::task::LocalSet::new();
        for _ in 0..sockets {
            let (count, told) = (count.clone(), told.clone());
            local_set.spawn_local(async move {
                let socket = UdpSocket::bind(&BindTo { address: (local(1), 0).into(), interface: None })
                    .expect("a socket");
                told.send(socket.local_addr()).expect("main waits");
                read(&socket, &count).await;
            });
        }
        runtime().block_on(local_set);
    });
    (0..sockets).map(|_| telling.recv().expect("they start")).collect()
}

/// Reads one batch. It may contain several questions of a relay, which are shorter than the packets, also behind
/// packets.
async fn read(socket: &UdpSocket, count: &AtomicU64) {
    drain(socket, |datagrams, received, bytes| {
        let mut questions = 0;
        for datagram in bytes.chunks(received.stride).rev().take_while(|datagram| datagram.len() < SHORTER) {
            let Some(answer) = answer_challenge(datagram, |_| true, None) else { continue };
            questions += 1;
            let batch =
                Batch { remote: received.remote, contents: &answer, segment: answer.len(), ecn: Ecn::NotEct };
            // The relay repeats its question if the answer is lost.
            let _ = socket.send(&batch);
        }
        count.fetch_add(datagrams - questions, Ordering::Relaxed);
        if questions == 0 {
            note_delays(bytes, received.stride);
        }
    })
    .await;
}

/// A client of the relay with its flows.
pub struct Client {
    pub endpoint: Endpoint,
    pub flows: Vec<Flow>,
    _connection: RelayConnection,
}

pub async fn client(index: u8, relay: &RelayHint, to: &[SocketAddr]) -> Client {
    let config =
        EndpointConfig::new(key(index + 10)).addresses(Addresses::Exactly(vec![local(10 + index).into()]));
    let endpoint = Endpoint::bind(config).await.expect("a client");
    let connection = RelayConnection::open(&endpoint, relay, &Entry::default()).await.expect("a session");
    let mut flows = Vec::new();
    for number in 0..FLOWS_EACH {
        let address = to[(usize::from(index) * FLOWS_EACH + number) % to.len()];
        let target = Target::Address { address, key: None };
        let wanted = Wanted { target, out: Pid(1 + number as u64), back: Pid(9) };
        flows.push(connection.allocate(wanted).await.expect("a flow"));
    }
    for flow in &mut flows {
        flow.ready().await.expect("the sink agrees");
    }
    Client { endpoint, flows, _connection: connection }
}
