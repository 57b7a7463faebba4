//! Receives datagrams in batches, assigns them to sessions by PID, opens them in place.
//!
//! A batch takes three passes, so that each session's locks are taken once per batch:
//!
//! 1. Headers: handshake messages are handled at once, packets are assigned to their sessions.
//! 2. Each session opens its packets in place, with its keys locked.
//! 3. The buffers become shared memory, and frames are decoded as slices of it. Each session's engine handles all its
//!    packets, and its answers are sent.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::{Arc, Weak};

use anabranch_engine::{Arrival, Ecn, Route};
use anabranch_secure::consent;
use anabranch_wire::{
    Fsn, Header, Kind, Message, Packet, PathId, Pid, ResetToken, Span, Time, decode_frames,
};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use crate::buffers::thrifty;
use crate::endpoint::inner::{EndpointInner, count};
use crate::endpoint::sockets::BoundSocket;
use crate::fault::contained;
use crate::foreign::{Foreign, ForeignRun, Gathered, Outlet};
use crate::handshake;
use crate::lasting::Lasting;
use crate::session::inner::{Decoded, SessionInner};
use crate::socket::{ERROR_PAUSE, Received, is_transient};
use crate::turns::give_way;

/// Buffers filled by one system call.
const BUFFERS: usize = 16;
/// Receives from one socket until it or the endpoint is gone. Other tasks run after each batch, since the sockets of other
/// paths fill while one is emptied.
pub(crate) async fn receive_loop(endpoint: Weak<EndpointInner>, socket: Arc<BoundSocket>) {
    let (mut receiver, mut trouble) = (Receiver::default(), Lasting::default());
    while socket.udp.readable().await.is_ok() {
        let Some(endpoint) = endpoint.upgrade() else { return };
        match contained(|| receiver.receive(&endpoint, &socket)) {
            Some(Ok(())) => {
                if trouble.is_news(None) {
                    tracing::warn!(local = %socket.udp.local_addr(), "receives again");
                }
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock || is_transient(&error) => {}
            Some(Err(error)) => {
                if trouble.is_news(Some(&error.to_string())) {
                    tracing::warn!(%error, local = %socket.udp.local_addr(), "cannot receive; trying again");
                }
                tokio::time::sleep(ERROR_PAUSE).await;
            }
            // The rest of the batch is lost, as if in the network.
            None => {
                let sessions = std::mem::take(&mut receiver).sessions;
                sessions.iter().for_each(|session| session.wake_driver());
            }
        }
        drop(endpoint);
        give_way().await;
    }
}

/// Buffers and lists, kept between batches to reuse their memory.
#[derive(Default)]
struct Receiver {
    buffers: Vec<BytesMut>,
    sessions: Vec<Arc<SessionInner>>,
    packets: Vec<Sorted>,
    decoded: Vec<Decoded>,
    foreign: Vec<ForeignRun>,
    gathered: Gathered,
}

/// A packet assigned to its session.
struct Sorted {
    session: usize,
    buffer: usize,
    /// The range of the bytes behind the header.
    body: Range<usize>,
    header: Header,
    path: PathId,
    arrival: Arrival,
    opened: Option<(Fsn, usize)>,
}

impl Receiver {
    /// Receives one batch and hands it to its sessions.
    fn receive(&mut self, endpoint: &Arc<EndpointInner>, socket: &BoundSocket) -> io::Result<()> {
        endpoint.buffers.take(&mut self.buffers, BUFFERS);
        let nothing = Received {
            remote: socket.udp.local_addr(),
            len: 0,
            stride: 1,
            ecn: Ecn::NotEct,
            waited: Span::ZERO,
        };
        let mut filled = [nothing; BUFFERS];
        let slices = self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
        let mut slices: SmallVec<[IoSliceMut<'_>; BUFFERS]> = slices.collect();
        let count = socket.udp.receive(&mut slices, &mut filled)?;
        drop(slices);
        let now = endpoint.clock.now();
        let outlet = Outlet::new(&endpoint.sockets, std::mem::take(&mut self.gathered));
        self.look_ahead(endpoint, &filled[..count]);
        for (index, received) in filled[..count].iter().enumerate() {
            self.sort(endpoint, (socket.id, now), (index, received));
        }
        self.hand_over(now, endpoint, &outlet);
        self.gathered = outlet.finish();
        self.open(now);
        self.deliver(endpoint, now, count);
        Ok(())
    }

    /// Tells the relay which PIDs this batch contains, if one is set.
    fn look_ahead(&self, endpoint: &EndpointInner, filled: &[Received]) {
        let Some(taker) = endpoint.foreign.get().filter(|_| filled.len() > 1) else { return };
        let first = |(buffer, received): (&BytesMut, &Received)| {
            Header::decode(&buffer[..received.len.min(received.stride)]).ok().map(|(header, _)| header.pid)
        };
        let pids: SmallVec<[Pid; BUFFERS]> = self.buffers.iter().zip(filled).filter_map(first).collect();
        taker.look_ahead(&pids);
    }

    /// First pass: headers.
    fn sort(
        &mut self,
        endpoint: &Arc<EndpointInner>,
        (socket, now): (u32, Time),
        (buffer, received): (usize, &Received),
    ) {
        let mut last = None;
        let from = Route { socket, remote: received.remote };
        let run = ForeignRun { place: (buffer, 0..0), from, stride: received.stride, ecn: received.ecn };
        let mut foreign =
            ForeignRuns { taker: endpoint.foreign.get(), runs: &mut self.foreign, last: None, run };
        let mut start = 0;
        while start < received.len {
            let end = (start + received.stride).min(received.len);
            let range = start..end;
            start = end;
            let datagram = &self.buffers[buffer][range.clone()];
            let Ok((header, body)) = Header::decode(datagram) else {
                count(&endpoint.counters.malformed);
                continue;
            };
            let route = Route { socket, remote: received.remote };
            let mut arrival =
                Arrival { route, size: range.len(), ecn: received.ecn, waited: received.waited };
            if header.kind != Kind::Data {
                if !handle_other(endpoint, now, arrival, (&header, body)) {
                    foreign.extend(range);
                }
                continue;
            }
            let found = match last {
                Some((pid, found)) if pid == header.pid => found,
                _ => find(endpoint, &mut self.sessions, (header.pid, route)),
            };
            last = Some((header.pid, found));
            let Some((session, path, route)) = found else {
                if foreign.knows(header.pid) {
                    foreign.extend(range);
                } else {
                    handshake::reset(endpoint, now, arrival, header.pid);
                }
                continue;
            };
            arrival.route = route;
            let body = range.start + Header::LEN..range.end;
            self.packets.push(Sorted { session, buffer, body, header, path, arrival, opened: None });
        }
    }

    /// Hands packets for unknown sessions to the relay, if one is set.
    fn hand_over(&mut self, now: Time, endpoint: &EndpointInner, outlet: &Outlet<'_>) {
        match endpoint.foreign.get() {
            _ if self.foreign.is_empty() => {}
            Some(taker) => taker.handle(now, &self.foreign, &mut self.buffers, outlet),
            None => {
                let datagrams =
                    self.foreign.iter().map(|run| run.place.1.len().div_ceil(run.stride) as u64).sum();
                endpoint.counters.malformed.fetch_add(datagrams, std::sync::atomic::Ordering::Relaxed);
            }
        }
        self.foreign.clear();
    }

    /// Second pass: opens packets.
    fn open(&mut self, now: Time) {
        for (index, session) in self.sessions.iter().enumerate() {
            let Some(mut opening) = session.opening(now) else { continue };
            for sorted in self.packets.iter_mut().filter(|sorted| sorted.session == index) {
                let body = &mut self.buffers[sorted.buffer][sorted.body.clone()];
                sorted.opened = opening.open(&sorted.header, sorted.path, body);
            }
            opening.finish();
        }
    }

    /// Third pass: decodes frames and hands packets to the engines.
    fn deliver(&mut self, endpoint: &EndpointInner, now: Time, used: usize) {
        let buffers: SmallVec<[Bytes; BUFFERS]> = self.buffers.drain(..used).map(BytesMut::freeze).collect();
        for sorted in self.packets.drain(..) {
            let Some((fsn, len)) = sorted.opened else { continue };
            let Sorted { session, buffer, body, path, arrival, .. } = sorted;
            match decode_frames(buffers[buffer].slice(body.start..body.start + len)) {
                Ok(frames) => {
                    let packet = Some(Packet { path, fsn, frames });
                    self.decoded.push(Decoded { session, buffer, arrival, packet });
                }
                Err(error) => self.sessions[session].fail_decoding(now, &error),
            }
        }
        copy_small_runs(&mut self.decoded);
        let alone = self.sessions.len() == 1;
        for (index, session) in self.sessions.iter().enumerate() {
            session.deliver(now, index, &mut self.decoded);
            // A single session is served here. Several are served by their own tasks, on all cores.
            if alone {
                session.pump();
            } else {
                session.wake_driver();
            }
        }
        self.sessions.clear();
        self.decoded.clear();
        endpoint.buffers.put(now, buffers.into_iter());
    }
}

/// Copies payloads that would keep a buffer for few bytes. Each session counts by itself, as the others may end sooner.
fn copy_small_runs(decoded: &mut [Decoded]) {
    for group in decoded.chunk_by_mut(|a, b| (a.buffer, a.session) == (b.buffer, b.session)) {
        thrifty(group.iter_mut().filter_map(|decoded| decoded.packet.as_mut()));
    }
}

/// The session and path of a PID, and the route over which the engine sees a packet for it arrive.
fn find(
    endpoint: &EndpointInner,
    sessions: &mut Vec<Arc<SessionInner>>,
    (pid, route): (Pid, Route),
) -> Option<(usize, PathId, Route)> {
    let (session, path) = endpoint.sessions.pids.find(pid)?;
    let known = sessions.iter().position(|known| Arc::ptr_eq(known, &session));
    let index = known.unwrap_or_else(|| {
        sessions.push(session);
        sessions.len() - 1
    });
    Some((index, path, endpoint.sockets.relayed.arrival(pid, route)))
}

/// Datagrams of one buffer for unknown sessions, joined where they are adjacent.
struct ForeignRuns<'a> {
    taker: Option<&'a Arc<dyn Foreign>>,
    runs: &'a mut Vec<ForeignRun>,
    /// The relay's answer about the last PID.
    last: Option<(Pid, bool)>,
    /// The properties shared by all runs of this buffer.
    run: ForeignRun,
}

impl ForeignRuns<'_> {
    fn knows(&mut self, pid: Pid) -> bool {
        match (self.last, self.taker) {
            (Some((known, knows)), _) if known == pid => knows,
            (_, None) => false,
            (_, Some(taker)) => {
                let knows = taker.knows(pid);
                self.last = Some((pid, knows));
                knows
            }
        }
    }

    fn extend(&mut self, range: Range<usize>) {
        let buffer = self.run.place.0;
        match self.runs.last_mut().filter(|last| last.place == (buffer, last.place.1.start..range.start)) {
            Some(last) => last.place.1.end = range.end,
            None => self.runs.push(ForeignRun { place: (buffer, range), ..self.run.clone() }),
        }
    }
}

/// Handles a datagram that is not a data packet; false if it is not for this endpoint.
fn handle_other(
    endpoint: &Arc<EndpointInner>,
    now: Time,
    mut arrival: Arrival,
    (header, body): (&Header, &[u8]),
) -> bool {
    let session = || endpoint.sessions.pids.find(header.pid).map(|(session, _)| session);
    match header.kind {
        Kind::Init if header.pid == Pid::HANDSHAKE => handshake::handle_init(endpoint, now, arrival, body),
        Kind::Cookie => {
            let Some(session) = session() else { return false };
            arrival.route = endpoint.sockets.relayed.arrival(header.pid, arrival.route);
            handshake::handle_cookie(&session, now, arrival.route, body);
        }
        Kind::InitAck => {
            let Some(session) = session() else { return false };
            arrival.route = endpoint.sockets.relayed.arrival(header.pid, arrival.route);
            handshake::handle_init_ack(&session, now, arrival, body);
        }
        Kind::Reset => {
            let about = endpoint.sessions.resets.find((arrival.route.remote, header.pid));
            let Some(session) = about else { return false };
            if let Ok(token) = <[u8; 16]>::try_from(body) {
                session.core().engine.handle_message(now, &arrival, Message::Reset(ResetToken(token)));
                session.pump();
            }
        }
        Kind::RelayChallenge => {
            // A relay asks on behalf of a client whether packets with this PID are wanted.
            let key = endpoint.key.public();
            let takes_sessions = (!endpoint.is_closing()).then_some(&key);
            let issued = |pid| endpoint.sessions.pids.find(pid).is_some();
            let Some(answer) = consent::answer(header, body, issued, takes_sessions) else { return false };
            handshake::answer(endpoint, arrival.route, &answer);
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Frame, Frames, StreamFrame, StreamId};

    use super::*;

    /// Whether packets with consecutive bytes, each of its session, keep the buffer that they came in.
    fn keep_their_buffer(session_of: impl Fn(usize) -> usize) -> bool {
        let buffer = Bytes::from(vec![1; 1 << 16]);
        let route = Route { socket: 0, remote: ([127, 0, 0, 1], 9).into() };
        let arrival = Arrival { route, size: 1_050, ecn: Ecn::NotEct, waited: Span::ZERO };
        let packet = |at: usize| {
            let (offset, data) = (at as u64 * 1_000, buffer.slice(at * 1_000..(at + 1) * 1_000));
            let frame = Frame::Stream(StreamFrame { stream: StreamId(0), offset, fin: false, data });
            let frames = Frames::from_iter([frame]);
            let packet = Some(Packet { path: PathId::FIRST, fsn: Fsn(at as u64), frames });
            Decoded { session: session_of(at), buffer: 0, arrival, packet }
        };
        let mut decoded: Vec<Decoded> = (0..40).map(packet).collect();
        copy_small_runs(&mut decoded);
        !buffer.is_unique()
    }

    #[test]
    fn pieces_of_many_sessions_are_no_run_that_keeps_a_buffer() {
        assert!(keep_their_buffer(|_| 0));
        assert!(!keep_their_buffer(|at| at));
    }
}
