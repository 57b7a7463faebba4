//! An attacker between two endpoints who sees every datagram and decides what happens to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_wire::Header;
use tokio::net::UdpSocket;

/// A datagram's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// A datagram to send, and when.
pub struct Sending {
    pub after: Duration,
    pub bytes: Vec<u8>,
    /// Send it from an address that neither end knows; towards the server only.
    pub from_elsewhere: bool,
}

impl Sending {
    pub fn now(bytes: impl Into<Vec<u8>>) -> Self {
        Self::after(Duration::ZERO, bytes)
    }

    pub fn after(after: Duration, bytes: impl Into<Vec<u8>>) -> Self {
        Self { after, bytes: bytes.into(), from_elsewhere: false }
    }

    pub fn from_elsewhere(bytes: impl Into<Vec<u8>>) -> Self {
        Self { from_elsewhere: true, ..Self::now(bytes) }
    }
}

/// Starts the tap between a client and `server`; returns the address that the client uses as the server's.
pub async fn sit_between(
    server: SocketAddr,
    mut mischief: impl FnMut(Way, &[u8]) -> Vec<Sending> + Send + 'static,
) -> SocketAddr {
    let bind = async || Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let (front, back, elsewhere) = (bind().await, bind().await, bind().await);
    let address = front.local_addr().unwrap();
    tokio::spawn(async move {
        let mut client = None;
        let (mut there, mut here) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        loop {
            let (way, bytes) = tokio::select! {
                received = front.recv_from(&mut there) => {
                    let Ok((len, from)) = received else { continue };
                    client = Some(from);
                    (Way::ToServer, &there[..len])
                }
                received = back.recv_from(&mut here) => {
                    let Ok((len, _)) = received else { continue };
                    (Way::ToClient, &here[..len])
                }
            };
            let Some(client) = client else { continue };
            for sending in mischief(way, bytes) {
                let (socket, to) = match way {
                    Way::ToServer if sending.from_elsewhere => (elsewhere.clone(), server),
                    Way::ToServer => (back.clone(), server),
                    Way::ToClient => (front.clone(), client),
                };
                if sending.after.is_zero() {
                    // A full buffer loses packets, as a network does.
                    let _ = socket.try_send_to(&sending.bytes, to);
                } else {
                    tokio::spawn(async move {
                        tokio::time::sleep(sending.after).await;
                        let _ = socket.try_send_to(&sending.bytes, to);
                    });
                }
            }
        }
    });
    address
}

/// The datagram with its header changed by `change`, and a repaired checksum.
pub fn with_header(datagram: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut changed = datagram.to_vec();
    if let Ok((mut header, _)) = Header::decode(datagram) {
        change(&mut header);
        header.encode(&mut changed);
    }
    changed
}

/// Random numbers that repeat in every run.
pub struct Luck(pub u64);

impl Luck {
    pub fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}
