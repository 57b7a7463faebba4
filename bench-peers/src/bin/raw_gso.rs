//! The practical limit: AES-128-GCM over UDP with GSO and GRO on loopback, with one thread per end and no transport
//! protocol.
//!
//! `raw_gso [SECONDS] [PACKET]`

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};

const TAG: usize = 16;

fn key() -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("16 bytes"))
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let state = socket2::SockRef::from(&socket);
    // The system may grant less; the additional losses are shown.
    let _ = state.set_recv_buffer_size(8 << 20);
    let _ = state.set_send_buffer_size(8 << 20);
    socket
}

fn send(socket: &UdpSocket, to: std::net::SocketAddr, packet: usize, over: &AtomicBool) -> u64 {
    let state = UdpSocketState::new(socket.into()).expect("a socket");
    socket.set_nonblocking(false).expect("blocking");
    let batch = (state.max_gso_segments().min(65_000 / packet)).max(1);
    let (key, mut buffer, mut number) = (key(), vec![0; batch * packet], 0_u64);
    while !over.load(Ordering::Relaxed) {
        for datagram in buffer.chunks_mut(packet) {
            number += 1;
            let mut nonce = [0; 12];
            nonce[4..].copy_from_slice(&number.to_be_bytes());
            datagram[..8].copy_from_slice(&number.to_be_bytes());
            let (header, rest) = datagram.split_at_mut(8);
            let (text, tag) = rest.split_at_mut(packet - 8 - TAG);
            let made = key.seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(&*header),
                text,
            );
            tag.copy_from_slice(made.expect("sealed").as_ref());
        }
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &buffer,
            segment_size: Some(packet),
            src_ip: None,
        };
        let _ = state.try_send(socket.into(), &transmit);
    }
    number
}

fn receive(socket: &UdpSocket, over: &AtomicBool) -> (u64, u64) {
    let state = UdpSocketState::new(socket.into()).expect("a socket");
    socket.set_nonblocking(false).expect("blocking");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let mut buffers = vec![vec![0; 1 << 16]; 16];
    let mut metas = [RecvMeta::default(); 16];
    let (key, mut packets, mut bytes) = (key(), 0, 0);
    while !over.load(Ordering::Relaxed) {
        let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let Ok(count) = state.recv(socket.into(), &mut slices, &mut metas) else { continue };
        drop(slices);
        for (buffer, meta) in buffers.iter_mut().zip(&metas[..count]) {
            for datagram in buffer[..meta.len].chunks_mut(meta.stride) {
                let mut nonce = [0; 12];
                nonce[4..].copy_from_slice(&datagram[..8]);
                let (header, rest) = datagram.split_at_mut(8);
                let opened =
                    key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(&*header), rest);
                bytes += opened.expect("authentic").len() as u64;
                packets += 1;
            }
        }
    }
    (packets, bytes)
}

fn main() {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let (seconds, packet) = (words.next().unwrap_or(3), words.next().unwrap_or(1452));
    let (here, there, over) = (socket(), socket(), AtomicBool::new(false));
    let to = there.local_addr().expect("bound");
    let begun = Instant::now();
    let (sent, (received, bytes)) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&here, to, packet, &over));
        let receiver = scope.spawn(|| receive(&there, &over));
        std::thread::sleep(Duration::from_secs(seconds as u64));
        over.store(true, Ordering::Relaxed);
        (sender.join().expect("sender"), receiver.join().expect("receiver"))
    });
    let gbit = bytes as f64 * 8e-9 / begun.elapsed().as_secs_f64();
    println!("received {received} of {sent} packets at {gbit:.2} Gbit/s");
}
