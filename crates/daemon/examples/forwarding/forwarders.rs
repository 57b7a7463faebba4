//! The compared forwarders. Each has its own thread, whose processor time is measured.

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
use anabranch_wire::{Header, Span};

use super::{CLIENTS, key, local, runtime};

/// Processor time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number"))
}

/// Counters of a forwarder. It counts packets as it sends them: a sink without processor time would lose most of them.
#[derive(Default)]
pub struct Done {
    cpu: AtomicU64,
    packets: AtomicU64,
}

impl Done {
    /// Records this thread's processor time and the number of packets that it sent.
    fn note(&self, packets: u64) {
        self.cpu.store(cpu().as_nanos() as u64, Ordering::Relaxed);
        self.packets.store(packets, Ordering::Relaxed);
    }
}

/// A forwarder's thread: its address and its counters.
pub struct Forwarder {
    pub address: SocketAddr,
    done: Arc<Done>,
}

impl Forwarder {
    fn spawn(work: impl FnOnce(Box<dyn FnOnce(SocketAddr) + Send>, Arc<Done>) + Send + 'static) -> Self {
        let done = Arc::<Done>::default();
        let (told, telling) = std::sync::mpsc::channel();
        let note = done.clone();
        thread::spawn(move || work(Box::new(move |address| told.send(address).expect("main waits")), note));
        Self { address: telling.recv().expect("it starts"), done }
    }

    /// Nanoseconds of processor time, and packets sent.
    pub fn done(&self) -> [u64; 2] {
        [&self.done.cpu, &self.done.packets].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Receives batches without end.
pub async fn drain(socket: &UdpSocket, mut each: impl FnMut(u64, &Received, &[u8])) {
    let mut buffers = vec![vec![0u8; 1 << 16]; 16];
    let nothing =
        Received { remote: socket.local_addr(), len: 0, stride: 1, ecn: Ecn::NotEct, waited: Span::ZERO };
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

/// One system call in and one out for each packet; its PID selects the destination.
pub fn plain(to: Vec<SocketAddr>) -> Forwarder {
    Forwarder::spawn(move |told, done| {
        let socket = StdSocket::bind((local(2), 0)).expect("a socket");
        let _ = socket2_buffers(&socket);
        told(socket.local_addr().expect("bound"));
        let (mut buffer, mut sent) = ([0; 2048], 0);
        loop {
            for _ in 0..64 {
                if let Ok(len) = socket.recv(&mut buffer)
                    && let Ok((header, _)) = Header::decode(&buffer[..len])
                {
                    // The socket's buffer may be full.
                    let is_sent =
                        socket.send_to(&buffer[..len], to[header.pid.0 as usize % to.len()]).is_ok();
                    sent += u64::from(is_sent);
                }
            }
            done.note(sent);
        }
    })
}

fn socket2_buffers(socket: &StdSocket) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    socket.set_recv_buffer_size(4 << 20)?;
    socket.set_send_buffer_size(4 << 20)
}

/// Batches in and out, without any work on the packets.
pub fn bare(to: SocketAddr) -> Forwarder {
    Forwarder::spawn(move |told, done| {
        runtime().block_on(async move {
            let socket = UdpSocket::bind(&BindTo { address: (local(3), 0).into(), interface: None })
                .expect("a socket");
            told(socket.local_addr());
            let (mut batches, mut sent) = (0_u32, 0);
            drain(&socket, |datagrams, received, bytes| {
                let batch =
                    Batch { remote: to, contents: bytes, segment: received.stride, ecn: received.ecn };
                sent += if socket.send(&batch).is_ok() { datagrams } else { 0 };
                batches += 1;
                // Reading the clock costs more than a batch.
                if !batches.is_multiple_of(64) {
                    return;
                }
                done.note(sent);
            })
            .await;
        });
    })
}

/// A relay that lists the clients' keys.
pub fn relay() -> (Forwarder, RelayHint) {
    let forwarder = Forwarder::spawn(|told, done| {
        runtime().block_on(async move {
            let users = (0..CLIENTS).map(|seed| User::new("bench", key(seed + 10).public())).collect();
            let settings = RelaySettings::local(local(4).into(), users);
            let relay = RelayService::start(key(1), &settings).await.expect("a relay");
            told(relay.addresses()[0]);
            loop {
                done.note(relay.status().forwarded_packets);
                // Its status costs more than a batch.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    });
    let hint = RelayHint { node: key(1).public(), addresses: vec![forwarder.address] };
    (forwarder, hint)
}
