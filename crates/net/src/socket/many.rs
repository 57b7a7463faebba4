//! Batches to many destinations by one system call, for a relay whose packets come one by one and go each elsewhere.
//!
//! `sendmmsg` spares the entry into the kernel that a call for each destination costs; segmentation offload, which spares
//! much more, works within one destination alone, so each batch of many datagrams is cut by the kernel as ever.

use super::{Batch, UdpSocket};

impl UdpSocket {
    /// Sends batches, those that follow each other with one mark and one size by one system call where the system can. What it
    /// does not take is counted and gone, as with [`UdpSocket::send`]; what comes after the socket's buffer is full is lost.
    pub(crate) fn send_each(&self, batches: &[Batch<'_>]) {
        for alike in batches.chunk_by(|a, b| a.ecn == b.ecn && offload_segment(a) == offload_segment(b)) {
            let mut rest = alike;
            while let Some(first) = rest.first() {
                let sent = if rest.len() > 1 { self.send_alike(rest) } else { 0 };
                if sent == 0 && self.send(first).is_err() {
                    return;
                }
                rest = &rest[sent.max(1)..];
            }
        }
    }

    /// Gives how many of the batches the system took: 0 when it refused the first, which [`UdpSocket::send`] then finds
    /// the reason for.
    #[cfg(target_os = "linux")]
    fn send_alike(&self, batches: &[Batch<'_>]) -> usize {
        use std::io::IoSlice;
        use std::os::fd::AsRawFd;
        use std::sync::atomic::Ordering;

        use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};
        use smallvec::SmallVec;

        let batches = &batches[..batches.len().min(MOST)];
        let (mark, segment) =
            (super::codepoint_of(batches[0].ecn).map_or(0, |mark| mark as u8), offload_segment(&batches[0]));
        let class = i32::from(mark);
        let controls = controls(self.local.is_ipv4(), (&mark, &class), segment.as_ref());
        let mut headers = MultiHeaders::preallocate(batches.len(), controls_room(controls.len()));
        let slices: SmallVec<[[IoSlice<'_>; 1]; MOST]> =
            batches.iter().map(|batch| [IoSlice::new(batch.contents)]).collect();
        let addresses: SmallVec<[Option<SockaddrStorage>; MOST]> =
            batches.iter().map(|batch| Some(batch.remote.into())).collect();
        self.counters.send_calls.fetch_add(1, Ordering::Relaxed);
        let result = sendmmsg(
            self.io.as_raw_fd(),
            &mut headers,
            slices.iter(),
            &addresses[..],
            &controls[..],
            MsgFlags::empty(),
        );
        let sent = result.map_or(0, Iterator::count);
        for batch in &batches[..sent] {
            self.show_sent(batch, batch.contents);
            self.note(batch.datagrams(), Ok(()));
        }
        sent
    }

    #[cfg(not(target_os = "linux"))]
    fn send_alike(&self, _batches: &[Batch<'_>]) -> usize {
        0
    }
}

/// Most batches of one call.
#[cfg(target_os = "linux")]
const MOST: usize = 16;

/// The size that the system cuts a batch into; none for a single datagram.
fn offload_segment(batch: &Batch<'_>) -> Option<u16> {
    (batch.contents.len() > batch.segment).then(|| u16::try_from(batch.segment).unwrap_or(u16::MAX))
}

#[cfg(target_os = "linux")]
fn controls<'a>(
    is_ipv4: bool,
    (mark, class): (&'a u8, &'a i32),
    segment: Option<&'a u16>,
) -> smallvec::SmallVec<[nix::sys::socket::ControlMessage<'a>; 2]> {
    use nix::sys::socket::ControlMessage;

    let marked = if is_ipv4 { ControlMessage::Ipv4Tos(mark) } else { ControlMessage::Ipv6TClass(class) };
    let cut = segment.map(ControlMessage::UdpGsoSegments);
    (*mark != 0).then_some(marked).into_iter().chain(cut).collect()
}

/// Room for exactly so many control messages (the kernel refuses what is left empty), each of four bytes at most.
#[cfg(target_os = "linux")]
fn controls_room(count: usize) -> Option<Vec<u8>> {
    match count {
        0 => None,
        1 => Some(nix::cmsg_space!(i32)),
        _ => Some(nix::cmsg_space!(i32, i32)),
    }
}
