//! Sends batches to many destinations by one system call, for relays.
//!
//! `sendmmsg` saves a system call for each destination. Segmentation offload saves much more, but works only within one
//! destination, so the kernel still splits each batch.

use std::io;

use super::{Batch, UdpSocket};

impl UdpSocket {
    /// Sends batches. Consecutive ones with one mark and one segment size take one system call, if the system can. Refused
    /// datagrams are counted and dropped as by [`UdpSocket::send`], and so are those without room in the socket's buffer.
    pub(crate) fn send_each(&self, batches: &[Batch<'_>]) {
        let mut left = batches;
        while let Some(first) = left.first() {
            let (alike, segment) = alike(left);
            let sent = if alike > 1 { self.send_alike(&left[..alike], segment) } else { 0 };
            if sent == 0 && self.send(first).is_err() {
                let lost = left.iter().map(Batch::datagrams).sum();
                return self.note(first.remote, lost, Err(io::ErrorKind::WouldBlock.into()));
            }
            left = &left[sent.max(1)..];
        }
    }

    /// Returns how many batches the system took: 0 if it refused the first, for which [`UdpSocket::send`] then finds the reason.
    fn send_alike(&self, batches: &[Batch<'_>], segment: Option<u16>) -> usize {
        use std::io::IoSlice;
        use std::os::fd::AsRawFd;
        use std::sync::atomic::Ordering;

        use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};
        use smallvec::SmallVec;

        if self.needs_tail && segment.is_some() {
            return 0;
        }
        let batches = &batches[..batches.len().min(MOST)];
        let mark = super::codepoint_of(batches[0].ecn).map_or(0, |mark| mark as u8);
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
            self.note(batch.remote, batch.datagrams(), Ok(()));
        }
        sent
    }
}

/// Most batches of one call.
const MOST: usize = 16;

/// How many of the first batches one call can take. They share its control messages: one mark, and one segment size, which
/// single datagrams do not exceed.
fn alike(batches: &[Batch<'_>]) -> (usize, Option<u16>) {
    let (mut segment, mut longest) = (None, 0);
    for (at, batch) in batches.iter().enumerate() {
        let size = batch.segment.min(batch.contents.len());
        let is_cut = batch.contents.len() > size;
        let wanted = if is_cut { Some(size) } else { segment };
        longest = longest.max(size);
        let fits = wanted.is_none_or(|wanted| longest <= wanted && segment.is_none_or(|size| size == wanted));
        if !fits || batch.ecn != batches[0].ecn {
            return (at, told(segment));
        }
        segment = wanted;
    }
    (batches.len(), told(segment))
}

/// The segment size for the system; no split datagram is longer.
fn told(segment: Option<usize>) -> Option<u16> {
    segment.map(|size| u16::try_from(size).unwrap_or(u16::MAX))
}

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

/// Room for exactly `N` control messages of up to four bytes; the kernel refuses unused room.
fn controls_room(count: usize) -> Option<Vec<u8>> {
    match count {
        0 => None,
        1 => Some(nix::cmsg_space!(i32)),
        _ => Some(nix::cmsg_space!(i32, i32)),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_engine::Ecn;

    use super::*;

    /// A batch of datagrams of 1,200 bytes each, by its length.
    fn batch(contents: &[u8], ecn: Ecn) -> Batch<'_> {
        Batch { remote: "192.0.2.1:1".parse().unwrap(), contents, segment: 1200, ecn }
    }

    #[test]
    fn single_datagrams_go_with_those_that_are_cut_unless_they_would_be_cut_too() {
        let bytes = [0; 4000];
        let of = |lengths: &[usize]| {
            let batches: Vec<_> = lengths.iter().map(|len| batch(&bytes[..*len], Ecn::NotEct)).collect();
            alike(&batches)
        };
        assert_eq!(of(&[100, 700]), (2, None));
        assert_eq!(of(&[100, 2500, 1200, 1300]), (4, Some(1200)));
        let long = Batch { segment: 1400, ..batch(&bytes[..1400], Ecn::NotEct) };
        let cut = batch(&bytes[..2400], Ecn::NotEct);
        assert_eq!(alike(&[long, cut]), (1, None));
        assert_eq!(alike(&[cut, long]), (1, Some(1200)));
        assert_eq!(alike(&[cut, Batch { segment: 800, ..cut }]), (1, Some(1200)));
        assert_eq!(alike(&[cut, Batch { ecn: Ecn::Ce, ..cut }]), (1, Some(1200)));
    }
}
