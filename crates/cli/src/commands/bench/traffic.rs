//! The two ends of the data: a sender that always has data, and a receiver that counts it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_net::{Session, Stream};
use anabranch_wire::Span;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::protocol::{Order, PATIENCE, PathBytes, Sample};
use super::watch::{PathWatch, SeenPath};

/// Bytes of each write; all writes share this block.
const BLOCK: usize = 1 << 20;
/// Most bytes of each read.
const TAKE: usize = 1 << 20;

/// Sends on all streams until the receiver stops them. Ends when it is dropped.
pub struct Sender {
    streams: JoinSet<()>,
}

impl Sender {
    /// Opens the streams and starts sending.
    pub async fn start(session: &Session, streams: u32) -> io::Result<Self> {
        let block = Bytes::from(vec![0xab; BLOCK]);
        let mut tasks = JoinSet::new();
        for _ in 0..streams {
            let stream = session.open_stream().await?;
            tasks.spawn(send(stream, block.clone()));
        }
        Ok(Self { streams: tasks })
    }

    /// Waits until the receiver has stopped all streams.
    pub async fn stopped(&mut self) {
        while self.streams.join_next().await.is_some() {}
    }
}

async fn send(mut stream: Stream, block: Bytes) {
    // An error ends the test: the receiver has stopped the stream, or the session is over.
    while stream.write_chunk(block.clone()).await.is_ok() {}
}

/// Receives and counts all streams that the other end opens. Stops them when dropped.
pub struct Receiver {
    session: Session,
    watch: PathWatch,
    order: Order,
    tally: Arc<Tally>,
    reading: JoinSet<()>,
    start: Instant,
    /// When the next sample is due, counted from the start.
    due: Span,
}

impl Receiver {
    /// Waits for the first byte, which starts the clock.
    pub async fn start(session: &Session, order: Order) -> io::Result<Self> {
        let (tally, watch) = (Arc::new(Tally::default()), PathWatch::start(session));
        let mut reading = JoinSet::new();
        reading.spawn(receive(session.clone(), order.streams, tally.clone()));
        let first = async {
            tokio::select! {
                () = tally.first.notified() => Ok(()),
                reason = session.closed() => Err(over(reason)),
            }
        };
        let silent = |_| io::Error::new(io::ErrorKind::TimedOut, "no data came");
        tokio::time::timeout(PATIENCE, first).await.map_err(silent)??;
        let start = tally.counts().last.unwrap_or_else(Instant::now);
        let session = session.clone();
        Ok(Self { session, watch, order, tally, reading, start, due: Span::ZERO })
    }

    /// Waits for the end of the next interval and returns the counters. The last sample comes at the end of
    /// the test.
    pub async fn next(&mut self) -> io::Result<Sample> {
        let whole = self.order.time();
        self.due = (self.due + self.order.interval()).min(whole);
        let at = self.start + Duration::from_nanos(self.due.as_nanos());
        tokio::select! {
            () = tokio::time::sleep_until(at.into()) => {}
            reason = self.session.closed() => return Err(over(reason)),
        }
        let now = Instant::now();
        let (bytes, gap) = self.tally.counts().take(now);
        let last = self.due >= whole;
        if last {
            self.reading.abort_all();
        }
        Ok(Sample {
            elapsed_us: micros(now - self.start),
            bytes,
            gap_us: micros(gap),
            paths: self.paths(),
            last,
        })
    }

    fn paths(&self) -> Vec<PathBytes> {
        let counted = |path: SeenPath| PathBytes { id: path.info.id.0, bytes: path.info.stats.data_received };
        self.watch.take().into_iter().map(counted).collect()
    }
}

/// Counts the data that arrived in a session, in both directions, in units of 16 KiB: too coarse for the test's few
/// messages.
pub fn moved(session: &Session) -> u64 {
    let stats = session.stats();
    (stats.bytes_read + stats.bytes_written.saturating_sub(stats.bytes_unacknowledged)) >> 14
}

/// The error of a test whose session ended before it.
pub fn over(reason: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, format!("the session is over: {reason}"))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Reads up to `streams` streams at the same time.
async fn receive(session: Session, streams: u32, tally: Arc<Tally>) {
    let mut reading = JoinSet::new();
    for _ in 0..streams {
        // When the session is over, the streams end as well.
        let Ok(stream) = session.accept_stream().await else { break };
        reading.spawn(drain(stream, tally.clone()));
    }
    while reading.join_next().await.is_some() {}
}

async fn drain(mut stream: Stream, tally: Arc<Tally>) {
    while let Ok(Some(piece)) = stream.read_chunk(TAKE).await {
        tally.add(piece.len() as u64, Instant::now());
    }
}

/// The sum of all streams' counters.
#[derive(Default)]
struct Tally {
    counts: Mutex<Counts>,
    first: Notify,
}

#[derive(Default)]
struct Counts {
    bytes: u64,
    last: Option<Instant>,
    gap: Duration,
}

impl Tally {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, bytes: u64, now: Instant) {
        if self.counts().add(bytes, now) {
            self.first.notify_one();
        }
    }
}

impl Counts {
    /// Counts received bytes; true for the first ones.
    fn add(&mut self, bytes: u64, now: Instant) -> bool {
        let first = self.last.is_none();
        self.note_silence(now);
        self.last = Some(now);
        self.bytes += bytes;
        first
    }

    /// The total bytes, and the longest silence since the previous call, including one that still lasts.
    fn take(&mut self, now: Instant) -> (u64, Duration) {
        self.note_silence(now);
        (self.bytes, std::mem::take(&mut self.gap))
    }

    fn note_silence(&mut self, now: Instant) {
        let silence = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.gap = self.gap.max(silence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_silence_of_an_interval_is_kept_even_while_it_lasts() {
        let (mut counts, start) = (Counts::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(counts.add(10, at(0)));
        assert!(!counts.add(10, at(30)));
        counts.add(5, at(40));
        assert_eq!(counts.take(at(50)), (25, Duration::from_millis(30)));
        assert_eq!(counts.take(at(150)), (25, Duration::from_millis(110)));
        counts.add(1, at(240));
        assert_eq!(counts.take(at(250)), (26, Duration::from_millis(200)));
    }
}
