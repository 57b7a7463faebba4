//! Traceroute without privileges: sends UDP probes with a growing time to live and reads the routers' ICMP errors from the
//! socket's error queue, as `tracepath` does.
//!
//! All probes of a trace use one source and one destination port, so that routers which balance flows over several links
//! send them over the same one (Augustin et al., "Avoiding traceroute anomalies with Paris traceroute", IMC 2006). One
//! probe is under way at a time. Its payload names the hop, and errors return it, which identifies late answers. Routers
//! answer only a few probes a second, so a silent hop is probed three times.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anabranch_overlay::select::Traceroute;
use anabranch_wire::Span;

/// Destination port of probes. It should be closed, since the host's error ends the trace.
const PORT: u16 = 33_434;
const MOST_HOPS: u8 = 30;
/// How often a hop is probed, and how long its answer may take.
const ATTEMPTS: u8 = 3;
const PATIENCE: Duration = Duration::from_millis(500);
/// The trace ends after this many silent hops in a row.
const MOST_SILENT: usize = 4;

/// Traces the route to a host, optionally from a local address. Takes one round trip for each hop, and 1.5 s for a silent one.
///
/// # Errors
/// If there is no route to it, or the system has no error queue for sockets; only Linux has one.
pub async fn trace(from: Option<IpAddr>, to: IpAddr) -> io::Result<Traceroute> {
    tokio::task::spawn_blocking(move || follow(from, to)).await.map_err(io::Error::other)?
}

/// The answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// A router on the route.
    Router(IpAddr),
    /// The end of the route: the host, or a router that refuses to forward.
    End(IpAddr),
}

/// Probes hop after hop until the host answers, or too many hops are silent.
fn follow(from: Option<IpAddr>, to: IpAddr) -> io::Result<Traceroute> {
    let mut prober = Prober::open(from, to)?;
    let mut hops: Vec<Option<(IpAddr, Span)>> = Vec::new();
    for hop in 1..=MOST_HOPS {
        let mut found = None;
        for attempt in 0..ATTEMPTS {
            let begin = Instant::now();
            found = prober.ask(hop, attempt, begin + PATIENCE)?;
            if let Some(answer) = found {
                let (Answer::Router(who) | Answer::End(who)) = answer;
                hops.push(Some((who, Span::from_nanos(begin.elapsed().as_nanos() as u64))));
                break;
            }
        }
        match found {
            Some(Answer::End(_)) => break,
            Some(Answer::Router(_)) => {}
            None => hops.push(None),
        }
        if hops.len() >= MOST_SILENT && hops.iter().rev().take(MOST_SILENT).all(Option::is_none) {
            hops.truncate(hops.len() - MOST_SILENT);
            break;
        }
    }
    Ok(Traceroute { from: prober.local()?, to, hops })
}

use linux::Prober;

mod linux {
    use std::io::{self, ErrorKind, IoSliceMut};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};

    use super::{Answer, PORT};

    /// Bytes of a probe: its identity, and padding for routers that drop bare headers.
    const LEN: usize = 32;
    /// Origins of errors (`SO_EE_ORIGIN_ICMP`, `SO_EE_ORIGIN_ICMP6` of `linux/errqueue.h`).
    const ORIGIN_ICMP: u8 = 2;
    const ORIGIN_ICMP6: u8 = 3;
    /// Time exceeded, in ICMP (RFC 792) and ICMPv6 (RFC 4443 §3.3).
    const EXCEEDED: u8 = 11;
    const EXCEEDED6: u8 = 3;

    /// A socket towards a host.
    pub(crate) struct Prober {
        socket: UdpSocket,
    }

    impl Prober {
        pub(crate) fn open(from: Option<IpAddr>, to: IpAddr) -> io::Result<Self> {
            let any: IpAddr =
                if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind((from.unwrap_or(any), 0))?;
            if to.is_ipv4() {
                setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
            } else {
                setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
            }
            socket.connect(SocketAddr::new(to, PORT))?;
            Ok(Self { socket })
        }

        pub(crate) fn local(&self) -> io::Result<IpAddr> {
            Ok(self.socket.local_addr()?.ip())
        }

        /// Sends one probe and waits for its answer; `None` for silence.
        pub(crate) fn ask(&mut self, hop: u8, attempt: u8, until: Instant) -> io::Result<Option<Answer>> {
            if self.socket.local_addr()?.is_ipv4() {
                setsockopt(&self.socket, sockopt::Ipv4Ttl, &i32::from(hop))?;
            } else {
                setsockopt(&self.socket, sockopt::Ipv6Ttl, &i32::from(hop))?;
            }
            let mut probe = [0; LEN];
            (probe[0], probe[1]) = (hop, attempt);
            // The error of an earlier probe fails the next call, which then has sent nothing.
            while let Err(error) = self.socket.send(&probe) {
                if self.complaint()?.is_none() {
                    return Err(error);
                }
            }
            loop {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(None);
                }
                self.socket.set_read_timeout(Some(left))?;
                match self.socket.recv(&mut [0; LEN]) {
                    // A program listens at that port after all, and answered.
                    Ok(_) => return Ok(Some(Answer::End(self.socket.peer_addr()?.ip()))),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        return Ok(None);
                    }
                    Err(_) => {}
                }
                while let Some((about, answer)) = self.complaint()? {
                    // Without a returned payload the answer is taken to be for the only probe under way.
                    if about.is_none_or(|about| about == hop) {
                        return Ok(Some(answer));
                    }
                }
            }
        }

        /// The next error: the hop that it is about, if the payload was returned, and its sender.
        fn complaint(&self) -> io::Result<Option<(Option<u8>, Answer)>> {
            loop {
                let mut payload = [0; LEN];
                let mut iov = [IoSliceMut::new(&mut payload)];
                let mut space = vec![0; 512];
                let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
                let received =
                    recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut iov, Some(&mut space), flags);
                let message = match received {
                    Ok(message) => message,
                    Err(nix::errno::Errno::EAGAIN) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                let len = message.bytes;
                let answer = message.cmsgs()?.find_map(|control| answer(&control));
                if let Some(answer) = answer {
                    return Ok(Some(((len >= 2).then(|| payload[0]), answer)));
                }
            }
        }
    }

    /// The answer of a router or the host; `None` for an error of this machine.
    fn answer(control: &ControlMessageOwned) -> Option<Answer> {
        let (who, exceeded) = match control {
            ControlMessageOwned::Ipv4RecvErr(error, Some(from)) if error.ee_origin == ORIGIN_ICMP => {
                let who = Ipv4Addr::from_bits(u32::from_be(from.sin_addr.s_addr));
                (IpAddr::V4(who), error.ee_type == EXCEEDED)
            }
            ControlMessageOwned::Ipv6RecvErr(error, Some(from)) if error.ee_origin == ORIGIN_ICMP6 => {
                (IpAddr::V6(Ipv6Addr::from(from.sin6_addr.s6_addr)), error.ee_type == EXCEEDED6)
            }
            _ => return None,
        };
        Some(if exceeded { Answer::Router(who) } else { Answer::End(who) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_way_to_this_machine_is_one_hop() {
        let here: IpAddr = [127, 0, 0, 1].into();
        let found = trace(None, here).await.unwrap();
        assert_eq!((found.from, found.to), (here, here));
        assert_eq!(found.hops.iter().map(|hop| hop.map(|(who, _)| who)).collect::<Vec<_>>(), [Some(here)]);
    }

    #[tokio::test]
    async fn where_no_route_leads_is_an_error() {
        let nowhere: IpAddr = [255, 255, 255, 255].into();
        assert!(trace(None, nowhere).await.is_err());
    }
}
