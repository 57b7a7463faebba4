//! Carries the bytes of a TCP connection over a stream of a session, both ways, until both directions have ended.
//!
//! Each direction ends by itself (half-close). A connection that waits holds no buffer: only bytes that have arrived
//! are read, into buffers of a common pool. They go from a buffer into the session, and from the session into the
//! socket, without another copy.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use anabranch_net::Stream;
use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{sleep, timeout};

use crate::body::{Answer, Body};
use crate::meter::Meter;

/// Bytes of one read.
const CHUNK: usize = 64 << 10;
/// A read with fewer bytes is copied, so that its buffer is free at once.
const SMALL: usize = CHUNK / 4;
/// Bytes and pieces of one write.
const MOST_WRITTEN: usize = 256 << 10;
const MOST_PIECES: usize = 128;
/// Bytes out of sessions that may wait for sockets, over all connections. Beyond them, each takes [`SMALL`] at once:
/// thousands of connections whose destinations do not read would hold a gigabyte otherwise.
const PLENTY: usize = 64 << 20;
/// Code of a stream whose TCP connection was reset.
pub(crate) const RESET: u64 = 1;

/// A connection without progress is ended after this long (RFC 5382 asks for at least that of address translators) ...
const IDLE: Duration = Duration::from_secs(7440);
/// ... and one of which a direction has ended after this long (at least four minutes, RFC 5382 §5).
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(240);
/// So long may bytes wait for an end that takes none, after the other end has broken the connection off.
const AFTER_BREAK: Duration = Duration::from_secs(5);
/// How often progress is looked at.
const LOOK: Duration = Duration::from_secs(15);
/// After this long without a packet the kernel asks whether the other end is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Both directions ended in order.
    Complete,
    /// One end broke it off, or the session ended.
    Reset,
    /// It made no progress for too long.
    Idle,
    /// The bytes of the account are used up.
    UsedUp,
}

/// How one direction ended.
enum Direction {
    /// Its end was passed on.
    Complete,
    /// Nobody reads it any more; the other direction goes on.
    Stopped,
    Reset,
    UsedUp,
}

impl Direction {
    fn ends_all(&self) -> Option<End> {
        match self {
            Self::Complete | Self::Stopped => None,
            Self::Reset => Some(End::Reset),
            Self::UsedUp => Some(End::UsedUp),
        }
    }
}

/// The halves of a stream. Dropped before both have ended, they reset it: the destination would take a part for the
/// whole otherwise.
struct Halves {
    from: Stream,
    to: Stream,
    is_complete: bool,
}

impl Drop for Halves {
    fn drop(&mut self) {
        if !self.is_complete {
            self.to.reset(RESET);
            self.from.stop(RESET);
        }
    }
}

/// Carries bytes both ways until both directions have ended, one broke, or there is no progress. When this future is
/// dropped, both ends get a reset.
pub async fn carry(connection: TcpStream, stream: Stream, meter: &Meter) -> End {
    carry_request(connection, stream, meter, Body::EVERYTHING).await
}

/// As [`carry`], but of the connection's bytes only those of `body`: a server that leaves the connection open would get
/// the client's next request otherwise.
pub(crate) async fn carry_request(
    mut connection: TcpStream,
    stream: Stream,
    meter: &Meter,
    body: Body,
) -> End {
    prepare(&connection);
    let (from, to) = stream.into_halves();
    let mut halves = Halves { from, to, is_complete: false };
    let end = both(&mut connection, (&mut halves.from, &mut halves.to), meter, body).await;
    POOL.tidy();
    halves.is_complete = end == End::Complete;
    if halves.is_complete {
        let _ = SockRef::from(&connection).set_linger(None);
    }
    end
}

async fn both(
    connection: &mut TcpStream,
    (from_stream, to_stream): (&mut Stream, &mut Stream),
    meter: &Meter,
    body: Body,
) -> End {
    let (from_tcp, mut to_tcp) = connection.split();
    let state = DownState::default();
    let mut up = pin!(up(&from_tcp, to_stream, meter, (body, &state)));
    let mut down = pin!(down(from_stream, &mut to_tcp, meter, (body.awaited(), &state)));
    let (mut is_up_over, mut is_down_over) = (false, false);
    let (mut progress, mut idle) = (meter.bytes(), Duration::ZERO);
    while !(is_up_over && is_down_over) {
        let ended = tokio::select! {
            ended = &mut up, if !is_up_over => { is_up_over = true; ended }
            ended = &mut down, if !is_down_over => {
                is_down_over = true;
                // The next look at the other direction sees that.
                state.is_over.store(true, Ordering::Relaxed);
                ended
            }
            // Nothing else reads from it any more.
            _ = gone(&from_tcp), if is_up_over => return End::Reset,
            () = sleep(LOOK) => {
                let now = meter.bytes();
                idle = if now == progress { idle + LOOK } else { Duration::ZERO };
                if now == progress {
                    POOL.tidy();
                }
                progress = now;
                let is_half = is_up_over || is_down_over || is_read_closed(&from_tcp).await;
                let most = if is_half { HALF_CLOSED_IDLE } else { IDLE };
                if idle >= most { return End::Idle }
                continue;
            }
        };
        idle = Duration::ZERO;
        if let Some(end) = ended.ends_all() {
            return end;
        }
    }
    End::Complete
}

/// Waits until the other end has broken the connection off, and then for what it sent before to be passed on.
async fn gone(connection: &ReadHalf<'_>) {
    let _ = connection.ready(Interest::ERROR).await;
    sleep(AFTER_BREAK).await;
}

/// Whether the other end has closed its direction, perhaps behind bytes that wait.
async fn is_read_closed(connection: &ReadHalf<'_>) -> bool {
    let state = timeout(Duration::ZERO, connection.ready(Interest::READABLE)).await;
    state.is_ok_and(|state| state.is_ok_and(|state| state.is_read_closed()))
}

/// Small writes leave at once, a caller whose machine is gone is noticed, and a connection that is dropped before its end is reset.
fn prepare(connection: &TcpStream) {
    // Without these the connection still works.
    let _ = connection.set_nodelay(true);
    keep_alive(connection);
    let _ = SockRef::from(connection).set_linger(Some(Duration::ZERO));
}

/// Has the kernel notice that the other end's machine is gone.
pub(crate) fn keep_alive(connection: &TcpStream) {
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE / 4);
    // Without it the connection still works.
    let _ = SockRef::from(connection).set_tcp_keepalive(&keep_alive);
}

/// Ends a connection with a reset, as the destination would have.
pub fn reset(connection: TcpStream) {
    // Without lingering, what waits is dropped and the other end gets a reset.
    let _ = SockRef::from(&connection).set_linger(Some(Duration::ZERO));
    drop(connection);
}

/// Facts about the direction from the session to the TCP connection.
#[derive(Default)]
struct DownState {
    /// The server has agreed to another protocol.
    has_upgraded: AtomicBool,
    is_over: AtomicBool,
}

/// Waits for bytes; `None` once the session's other end has ended both directions and reads no more.
async fn readable(from: &ReadHalf<'_>, to: &mut Stream, down: &DownState) -> Option<io::Result<()>> {
    let mut readable = pin!(from.readable());
    poll_fn(|cx| {
        if let Poll::Ready(result) = readable.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        match down.is_over.load(Ordering::Relaxed) {
            true => to.poll_stopped(cx).map(|()| None),
            false => Poll::Pending,
        }
    })
    .await
}

/// From the TCP connection into the session.
async fn up(
    from: &ReadHalf<'_>,
    to: &mut Stream,
    meter: &Meter,
    (mut body, down): (Body, &DownState),
) -> Direction {
    loop {
        match readable(from, to, down).await {
            Some(Ok(())) => {}
            Some(Err(_)) => return Direction::Reset,
            None => return Direction::Stopped,
        }
        let mut buffer = POOL.take();
        let mut piece = match from.try_read_buf(&mut buffer) {
            Ok(0) => {
                POOL.give_back(buffer);
                return if to.finish().is_ok() { Direction::Complete } else { Direction::Stopped };
            }
            Ok(length) if length < SMALL => {
                let piece = Bytes::copy_from_slice(&buffer[..length]);
                POOL.give_back(buffer);
                piece
            }
            Ok(_) => POOL.lend(buffer),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                POOL.give_back(buffer);
                continue;
            }
            Err(_) => {
                POOL.give_back(buffer);
                return Direction::Reset;
            }
        };
        if down.has_upgraded.load(Ordering::Relaxed) {
            body = Body::EVERYTHING;
        }
        let own = body.take(&piece);
        let is_another = own < piece.len();
        piece.truncate(own);
        if let Err(direction) = or_broken(send(piece, to, meter), from.ready(Interest::ERROR)).await {
            return direction;
        }
        if is_another {
            // A client with an answer waits for no other one: the reset makes it ask again over a new connection.
            let [_, answered] = meter.bytes();
            return if answered > 0 { Direction::Reset } else { Direction::Stopped };
        }
    }
}

/// Puts bytes of the TCP connection into the session.
async fn send(piece: Bytes, to: &mut Stream, meter: &Meter) -> Result<(), Direction> {
    if !meter.up(piece.len()).await {
        return Err(Direction::UsedUp);
    }
    to.write_chunk(piece).await.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Direction::Stopped,
        _ => Direction::Reset,
    })
}

/// The result of `passing` bytes on, unless it waits although their origin has broken off: a destination that never
/// reads would keep a client's connection open for hours after its end.
async fn or_broken<T>(
    passing: impl Future<Output = Result<T, Direction>>,
    broken: impl Future,
) -> Result<T, Direction> {
    let mut passing = pin!(passing);
    tokio::select! {
        biased;
        result = &mut passing => result,
        _ = broken => timeout(AFTER_BREAK, passing).await.unwrap_or(Err(Direction::Reset)),
    }
}

/// From the session to the TCP connection.
async fn down(
    from: &mut Stream,
    to: &mut WriteHalf<'_>,
    meter: &Meter,
    (mut awaited, state): (Option<Answer>, &DownState),
) -> Direction {
    let mut pieces = Vec::with_capacity(MOST_PIECES);
    loop {
        pieces.clear();
        let most = if TAKEN.load(Ordering::Relaxed) < PLENTY { MOST_WRITTEN } else { SMALL };
        match from.read_chunks(most, &mut pieces).await {
            Ok(true) => {}
            Ok(false) => {
                return if to.shutdown().await.is_ok() { Direction::Complete } else { Direction::Stopped };
            }
            Err(_) => return Direction::Reset,
        }
        if let Some(answer) = &mut awaited
            && let Some(agrees) = pieces.iter().find_map(|piece| answer.take(piece))
        {
            // The client learns of it only by these pieces, so its next bytes come later.
            state.has_upgraded.store(agrees, Ordering::Relaxed);
            awaited = None;
        }
        let length = pieces.iter().map(Bytes::len).sum();
        let taken = Taken::note(length);
        let writing = async { write_all(to, &mut pieces).await.map_err(|_| Direction::Stopped) };
        let written = or_broken(writing, from.given_up()).await;
        drop(taken);
        if let Err(direction) = written {
            // Bytes from before the other end closed are still read. If it has reset the connection, the other direction fails, too.
            from.stop(RESET);
            return direction;
        }
        if !meter.down(length).await {
            return Direction::UsedUp;
        }
    }
}

/// Bytes out of sessions that wait for sockets.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// So many of them, until this is dropped.
struct Taken(usize);

impl Taken {
    fn note(bytes: usize) -> Self {
        TAKEN.fetch_add(bytes, Ordering::Relaxed);
        Self(bytes)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Writes all pieces, many with each call of the system.
async fn write_all(to: &mut WriteHalf<'_>, pieces: &mut [Bytes]) -> io::Result<()> {
    let mut first = 0;
    while first < pieces.len() {
        let mut written = poll_fn(|cx| {
            let mut slices = [IoSlice::new(&[]); MOST_PIECES];
            let waiting = &pieces[first..];
            for (slice, piece) in slices.iter_mut().zip(waiting) {
                *slice = IoSlice::new(piece);
            }
            let written = ready!(Pin::new(&mut *to).poll_write_vectored(cx, &slices[..waiting.len()]));
            Poll::Ready(written)
        })
        .await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while first < pieces.len() && written >= pieces[first].len() {
            written -= pieces[first].len();
            // Frees written bytes at once.
            pieces[first] = Bytes::new();
            first += 1;
        }
        if written > 0 {
            pieces[first].advance(written);
        }
    }
    Ok(())
}

/// Buffers for reads, used again when the session no longer needs their bytes.
static POOL: Pool = Pool { free: Mutex::new(Vec::new()), lent: Mutex::new(VecDeque::new()) };
/// Most buffers that are kept for use or for their return.
const MOST_FREE: usize = 16;
const MOST_LENT: usize = 512;

struct Pool {
    free: Mutex<Vec<BytesMut>>,
    lent: Mutex<VecDeque<Bytes>>,
}

impl Pool {
    /// An empty buffer with room for [`CHUNK`] bytes.
    fn take(&self) -> BytesMut {
        if let Some(buffer) = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return buffer;
        }
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..lent.len().min(4) {
            match lent.pop_front().map(Bytes::try_into_mut) {
                Some(Ok(mut buffer)) => {
                    buffer.clear();
                    return buffer;
                }
                Some(Err(in_use)) => lent.push_back(in_use),
                None => break,
            }
        }
        drop(lent);
        BytesMut::with_capacity(CHUNK)
    }

    fn give_back(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MOST_FREE {
            free.push(buffer);
        }
    }

    /// Frees the buffers that the session no longer needs.
    fn tidy(&self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).retain(|bytes| !bytes.is_unique());
    }

    /// The buffer as bytes that can be given away in parts.
    fn lend(&self, buffer: BytesMut) -> Bytes {
        let bytes = buffer.freeze();
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if lent.len() < MOST_LENT {
            lent.push_back(bytes.clone());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_no_part_of_it_is_in_use() {
        let pool = Pool { free: Mutex::default(), lent: Mutex::default() };
        let mut buffer = pool.take();
        buffer.extend_from_slice(&[7; 100]);
        let place = buffer.as_ptr();
        let part = pool.lend(buffer).slice(..10);
        assert_ne!(pool.take().as_ptr(), place);
        drop(part);
        let again = pool.take();
        assert_eq!((again.as_ptr(), again.len(), again.capacity()), (place, 0, CHUNK));
        pool.give_back(again);
        assert_eq!(pool.take().as_ptr(), place);
    }

    #[test]
    fn only_buffers_in_use_are_kept_once_a_connection_rests() {
        let pool = Pool { free: Mutex::default(), lent: Mutex::default() };
        let [used, unused, free] = [(); 3].map(|()| pool.take());
        let used = pool.lend(used);
        drop(pool.lend(unused));
        pool.give_back(free);
        pool.tidy();
        assert_eq!([pool.lent.lock().unwrap().len(), pool.free.lock().unwrap().len()], [1, 0]);
        drop(used);
        pool.tidy();
        assert!(pool.lent.lock().unwrap().is_empty());
    }
}
