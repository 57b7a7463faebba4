//! SOCKS5 associations: datagrams of a program, by a UDP port next to its TCP connection.
//!
//! Many programs announce a wrong address for their datagrams. So the announcement is ignored, and the first datagram
//! from the program's machine decides. Datagrams go back to the port it came from only. The association lives as long
//! as its TCP connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_net::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::sleep;

use crate::copy;
use crate::datagrams::Associations;
use crate::meter::Meter;
use crate::socks5::{self, Reply};
use crate::target::Target;

/// Largest datagram.
const LARGEST: usize = 65_535;
/// Pause after an error of a socket.
const PAUSE: Duration = Duration::from_millis(2);

/// Answers the request with a port and carries datagrams until the TCP connection or the session ends.
pub(super) async fn carry(
    mut connection: TcpStream,
    (associations, stream): (&Arc<Associations>, Stream),
    advertised: Option<IpAddr>,
    meter: &Meter,
) -> io::Result<()> {
    // A port of all addresses gives those of IPv4 as IPv6 ones, to which an IPv4 socket cannot send.
    let program = connection.peer_addr()?.ip().to_canonical();
    let own = connection.local_addr()?.ip().to_canonical();
    let socket = UdpSocket::bind((own, 0)).await?;
    let bound = SocketAddr::new(advertised.unwrap_or(own), socket.local_addr()?.port());
    // Nothing else ends the association of a program whose machine is gone.
    copy::keep_alive(&connection);
    connection.write_all(&socks5::reply(Reply::Succeeded, Some(bound))).await?;
    let (inbox, mut outbox) = associations.join(stream);
    // Where the program's datagrams come from.
    let source: Mutex<Option<SocketAddr>> = Mutex::default();
    let known = || *source.lock().unwrap_or_else(PoisonError::into_inner);
    let out = async {
        let mut buffer = vec![0; LARGEST];
        loop {
            let (length, from) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // An error concerns a datagram sent earlier.
                Err(_) => {
                    sleep(PAUSE).await;
                    continue;
                }
            };
            if from.ip() != program || known().is_some_and(|known| known != from) {
                continue;
            }
            // Fragments and broken headers are dropped.
            let Ok((to, payload)) = socks5::datagram(&buffer[..length]) else { continue };
            *source.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
            meter.up(payload.len()).await;
            outbox.send(&to, payload).await?;
        }
    };
    let back = inbox.for_each(|from, payload| {
        let (to, socket) = (known(), &socket);
        async move {
            if let (Some(to), Target::Address(from)) = (to, from) {
                meter.down(payload.len()).await;
                let mut bytes = Vec::with_capacity(payload.len() + 22);
                socks5::write_datagram_header(from, &mut bytes);
                bytes.extend_from_slice(&payload);
                // Lost, as any datagram may be.
                let _ = socket.send_to(&bytes, to).await;
            }
            true
        }
    });
    let ended = async {
        let mut ignored = [0; 64];
        while connection.read(&mut ignored).await? > 0 {}
        Ok(())
    };
    tokio::select! {
        ended = out => ended,
        ended = back => ended,
        ended = ended => ended,
    }
}
