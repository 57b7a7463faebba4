//! The forwarders that are compared: each a thread of its own, with its processor time.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{RelaySettings, User};
use anabranch_net::Ecn;
use anabranch_net::socket::{Batch, BindTo, Received, UdpSocket};
use anabranch_secure::RelayHint;
use anabranch_wire::Header;

use super::{CLIENTS, key, local, runtime};

/// Processor time of this thread so far.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number"))
}

/// A forwarder's thread: its address, and its processor time as it goes.
pub struct Forwarder {
    pub address: SocketAddr,
    pub cpu: Arc<AtomicU64>,
}

impl Forwarder {
    fn spawn(work: impl FnOnce(Box<dyn FnOnce(SocketAddr) + Send>, Arc<AtomicU64>) + Send + 'static) -> Self {
        let cpu = Arc::new(AtomicU64::new(0));
        let (told, telling) = std::sync::mpsc::channel();
        let note = cpu.clone();
        thread::spawn(move || work(Box::new(move |address| told.send(address).expect("main waits")), note));
        Self { address: telling.recv().expect("it starts"), cpu }
    }
}

/// Receives for ever, in batches.
pub async fn drain(socket: &UdpSocket, mut each: impl FnMut(u64, &Received, &[u8])) {
    let mut buffers = vec![vec![0u8; 1 << 16]; 16];
    let nothing = Received { remote: socket.local_addr(), len: 0, stride: 1, ecn: Ecn::NotEct };
    while socket.readable().await.is_ok() {
        loop {
            let mut filled = [nothing; 16];
            let mut slices: Vec<IoSliceMut<'_>> =
                buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            match socket.receive(&mut slices, &mut filled) {
                Ok(count) => {
                    drop(slices);
                    for (buffer, received) in buffers.iter().zip(&filled[..count]) {
                        each(
                            received.len.div_ceil(received.stride) as u64,
                            received,
                            &buffer[..received.len],
                        );
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
    }
}

/// One system call in, one out, for each packet; its PID says where to.
pub fn plain(to: Vec<SocketAddr>) -> Forwarder {
    Forwarder::spawn(move |told, note| {
        let socket = StdSocket::bind((local(2), 0)).expect("a socket");
        let _ = socket2_buffers(&socket);
        told(socket.local_addr().expect("bound"));
        let mut buffer = [0; 2048];
        loop {
            for _ in 0..64 {
                if let Ok(len) = socket.recv(&mut buffer)
                    && let Ok((header, _)) = Header::decode(&buffer[..len])
                {
                    // The sink may be full.
                    let _ = socket.send_to(&buffer[..len], to[header.pid.0 as usize % to.len()]);
                }
            }
            note.store(cpu().as_nanos() as u64, Ordering::Relaxed);
        }
    })
}

fn socket2_buffers(socket: &StdSocket) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    socket.set_recv_buffer_size(4 << 20)?;
    socket.set_send_buffer_size(4 << 20)
}

/// Batches in and out, with nothing between.
pub fn bare(to: SocketAddr) -> Forwarder {
    Forwarder::spawn(move |told, note| {
        runtime().block_on(async move {
            let socket = UdpSocket::bind(&BindTo { address: (local(3), 0).into(), interface: None })
                .expect("a socket");
            told(socket.local_addr());
            let mut batches = 0_u32;
            drain(&socket, |_, received, bytes| {
                let batch =
                    Batch { remote: to, contents: bytes, segment: received.stride, ecn: received.ecn };
                let _ = socket.send(&batch);
                batches += 1;
                // Reading the clock costs more than a batch.
                if !batches.is_multiple_of(64) {
                    return;
                }
                note.store(cpu().as_nanos() as u64, Ordering::Relaxed);
            })
            .await;
        });
    })
}

/// A relay, with its clients' keys listed.
pub fn relay() -> (Forwarder, RelayHint) {
    let forwarder = Forwarder::spawn(|told, note| {
        runtime().block_on(async move {
            let users = (0..CLIENTS).map(|seed| User::new("bench", key(seed + 10).public())).collect();
            let settings = RelaySettings::local(local(4).into(), users);
            let relay = RelayService::start(key(1), &settings).await.expect("a relay");
            told(relay.addresses()[0]);
            loop {
                note.store(cpu().as_nanos() as u64, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    });
    let hint = RelayHint { node: key(1).public(), addresses: vec![forwarder.address] };
    (forwarder, hint)
}
