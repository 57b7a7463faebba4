//! Hands datagrams that belong to no session here to a relay, which forwards them.

use std::cell::RefCell;
use std::ops::Range;

use anabranch_engine::{Ecn, Route};
use anabranch_wire::{Pid, Time};
use bytes::BytesMut;
use smallvec::SmallVec;

use crate::endpoint::sockets::Sockets;
use crate::socket::Batch;

/// Datagrams that arrived together from one sender.
#[derive(Clone, Debug)]
pub struct ForeignRun {
    /// Its buffer, and the position in it.
    pub place: (usize, Range<usize>),
    /// The socket they arrived at, and the sender's address.
    pub from: Route,
    /// Bytes of each datagram but the last, which may be shorter.
    pub stride: usize,
    /// Their ECN mark.
    pub ecn: Ecn,
}

/// Handles datagrams that are not for the endpoint's own sessions. Called on the receiving tasks; must not block for
/// long.
pub trait Foreign: Send + Sync + 'static {
    /// True if it handles data packets with this PID; other unknown PIDs are answered with a reset.
    fn knows(&self, pid: Pid) -> bool;

    /// Announces the PIDs of datagrams that will be handed over one by one, so that their table entries can be prefetched
    /// together.
    fn look_ahead(&self, pids: &[Pid]);

    /// Handles the datagrams of one receive. It may change them in place in `buffers` and send them on through
    /// `outlet`.
    fn handle(&self, now: Time, runs: &[ForeignRun], buffers: &mut [BytesMut], outlet: &Outlet<'_>);
}

/// Sends forwarded datagrams from the endpoint's sockets.
///
/// Short datagrams are gathered: those of one destination and size leave as one batch, even if others came between
/// them. Several batches leave by one system call, at the latest when the outlet is dropped. Datagrams to one
/// destination keep their order within one outlet.
pub struct Outlet<'a> {
    sockets: &'a Sockets,
    gathered: RefCell<Gathered>,
}

/// Datagrams not yet sent. Kept between batches to reuse its memory.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    bundles: Vec<Bundle>,
    /// How many entries are in use, from the front.
    used: usize,
}

/// Datagrams to one destination. A destination may have several entries, oldest first.
#[derive(Debug)]
struct Bundle {
    to: Route,
    ecn: Ecn,
    segment: usize,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Outlet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet").finish_non_exhaustive()
    }
}

impl<'a> Outlet<'a> {
    pub(crate) fn new(sockets: &'a Sockets, gathered: Gathered) -> Self {
        Self { sockets, gathered: RefCell::new(gathered) }
    }

    /// Sends datagrams of `segment` bytes, the last perhaps shorter. Datagrams for which a socket has no room are dropped.
    pub fn send(&self, to: Route, (contents, segment): (&[u8], usize), ecn: Ecn) {
        let gathered = &mut *self.gathered.borrow_mut();
        let segment = segment.min(contents.len()).max(1);
        if contents.len() >= LONG {
            // Earlier datagrams leave first.
            if gathered.latest(to).is_some() {
                self.send_gathered(gathered);
            }
            return self.send_now(to, (contents, segment), ecn);
        }
        if let Some(bundle) = gathered.latest(to)
            && bundle.takes((contents, segment), ecn)
            && bundle.bytes.len() + contents.len() <= self.most_at_once(to, bundle.segment)
        {
            bundle.bytes.extend_from_slice(contents);
            return;
        }
        if gathered.used == MOST_BUNDLES {
            self.send_gathered(gathered);
        }
        gathered.open(to, (contents, segment), ecn);
    }

    /// How many bytes of datagrams of this size leave by one system call.
    fn most_at_once(&self, to: Route, segment: usize) -> usize {
        let segments = self.sockets.get(to.socket).map_or(1, |socket| socket.udp.max_segments(to.remote));
        segments.min(MOST_AT_ONCE / segment.max(1)).max(1) * segment
    }

    fn send_now(&self, to: Route, (contents, segment): (&[u8], usize), ecn: Ecn) {
        let Some(socket) = self.sockets.get(to.socket) else { return };
        for contents in contents.chunks(self.most_at_once(to, segment).max(1)) {
            socket.udp.send_each(&[Batch { remote: to.remote, contents, segment, ecn }]);
        }
    }

    fn send_gathered(&self, gathered: &mut Gathered) {
        let bundles = &mut gathered.bundles[..gathered.used];
        for of_one_socket in bundles.chunk_by(|a, b| a.to.socket == b.to.socket) {
            let Some(socket) = self.sockets.get(of_one_socket[0].to.socket) else { continue };
            let batches = of_one_socket.iter().flat_map(|bundle| {
                let most = self.most_at_once(bundle.to, bundle.segment);
                bundle.batches(most)
            });
            socket.udp.send_each(&batches.collect::<SmallVec<[Batch<'_>; MOST_BUNDLES]>>());
        }
        for bundle in bundles {
            bundle.bytes.clear();
        }
        gathered.used = 0;
    }

    /// Sends the gathered datagrams, and returns the memory.
    pub(crate) fn finish(&self) -> Gathered {
        let mut gathered = std::mem::take(&mut *self.gathered.borrow_mut());
        self.send_gathered(&mut gathered);
        gathered
    }
}

impl Drop for Outlet<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Gathered {
    /// The newest entry of a destination.
    fn latest(&mut self, to: Route) -> Option<&mut Bundle> {
        self.bundles[..self.used].iter_mut().rfind(|bundle| bundle.to == to)
    }

    fn open(&mut self, to: Route, (contents, segment): (&[u8], usize), ecn: Ecn) {
        if self.used == self.bundles.len() {
            self.bundles.push(Bundle { to, ecn, segment, bytes: Vec::new() });
        }
        let bundle = &mut self.bundles[self.used];
        (bundle.to, bundle.ecn, bundle.segment) = (to, ecn, segment);
        bundle.bytes.extend_from_slice(contents);
        self.used += 1;
    }
}

impl Bundle {
    /// True if datagrams may be appended: they have the same size, or it is a single shorter one, which ends the batch.
    fn takes(&self, (contents, segment): (&[u8], usize), ecn: Ecn) -> bool {
        let is_last = contents.len() <= segment.min(self.segment);
        self.ecn == ecn
            && self.bytes.len().is_multiple_of(self.segment)
            && (segment == self.segment || is_last)
    }

    fn batches(&self, most: usize) -> impl Iterator<Item = Batch<'_>> {
        let Self { to, ecn, segment, ref bytes } = *self;
        bytes.chunks(most.max(1)).map(move |contents| Batch { remote: to.remote, contents, segment, ecn })
    }
}

/// Most batches gathered at the same time.
const MOST_BUNDLES: usize = 16;
/// Runs of this length leave at once, since copying them would cost more than a system call.
const LONG: usize = 16_384;
/// Most bytes in one send, a limit of the system.
const MOST_AT_ONCE: usize = 65_000;
