//! Records when the receiving application reads bytes; rates and silences are computed afterwards.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use anabranch_transfer::Connection;
use anabranch_wire::{Rate, Span};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads closer together than this are noted as one.
const GRAIN: Duration = Duration::from_micros(200);

/// A shared record of the bytes read by each moment; clones are the same record.
#[derive(Clone, Debug)]
pub struct Recording(Arc<Mutex<Marks>>);

#[derive(Debug)]
struct Marks {
    start: Instant,
    /// Moments since the start, and the bytes read by then; both only grow.
    marks: Vec<(Duration, u64)>,
}

impl Recording {
    /// An empty record; its clock starts now.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Marks { start: Instant::now(), marks: Vec::new() })))
    }

    /// Time since the start of the record.
    pub fn now(&self) -> Duration {
        self.marks().start.elapsed()
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.marks().total()
    }

    /// The rate between the moments at which the shares `from` and `to` of all bytes had been read.
    pub fn rate_between(&self, from: f64, to: f64) -> Rate {
        self.marks().rate_between(from, to)
    }

    /// The longest silence between `from` and `to`; one that began before `from` counts in full.
    pub fn longest_silence(&self, from: Duration, to: Duration) -> Span {
        self.marks().longest_silence(from, to)
    }

    fn note(&self, bytes: usize) {
        let mut marks = self.marks();
        let at = marks.start.elapsed();
        marks.note(at, bytes as u64);
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marks {
    fn total(&self) -> u64 {
        self.marks.last().map_or(0, |(_, bytes)| *bytes)
    }

    fn note(&mut self, at: Duration, bytes: u64) {
        let total = self.total() + bytes;
        match self.marks.last_mut() {
            Some(last) if at.saturating_sub(last.0) < GRAIN => last.1 = total,
            _ => self.marks.push((at, total)),
        }
    }

    fn rate_between(&self, from: f64, to: f64) -> Rate {
        let all = self.total() as f64;
        let reached = |share: f64| self.marks.iter().find(|(_, bytes)| *bytes as f64 >= share * all);
        let (Some(first), Some(last)) = (reached(from), reached(to)) else { return Rate::ZERO };
        Rate::from_bytes_in(last.1 - first.1, Span::from_secs_f64((last.0 - first.0).as_secs_f64()))
    }

    fn longest_silence(&self, from: Duration, to: Duration) -> Span {
        let before = self.marks.partition_point(|(mark, _)| *mark < from).saturating_sub(1);
        let noted = self.marks[before..].iter().take_while(|(mark, _)| *mark <= to);
        let silences = noted.clone().skip(1).zip(noted).map(|(later, earlier)| later.0 - earlier.0);
        Span::from_secs_f64(silences.max().unwrap_or_default().as_secs_f64())
    }
}

/// A connection whose reads are recorded.
pub struct Recorded<C> {
    inner: C,
    recording: Recording,
}

impl<C> Recorded<C> {
    /// Records the reads of `inner`.
    pub fn new(inner: C, recording: Recording) -> Self {
        Self { inner, recording }
    }
}

impl<C: Connection> Connection for Recorded<C> {
    type Stream = RecordedStream<C::Stream>;

    async fn open(&self) -> io::Result<Self::Stream> {
        Ok(RecordedStream { inner: self.inner.open().await?, recording: self.recording.clone() })
    }

    async fn accept(&self) -> io::Result<Self::Stream> {
        Ok(RecordedStream { inner: self.inner.accept().await?, recording: self.recording.clone() })
    }
}

/// A stream whose reads are recorded.
pub struct RecordedStream<S> {
    inner: S,
    recording: Recording,
}

impl<S: AsyncRead + Unpin> AsyncRead for RecordedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer));
        let read = buffer.filled().len() - before;
        if read > 0 {
            self.recording.note(read);
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RecordedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(list: &[(u64, u64)]) -> Marks {
        let mut marks = Marks { start: Instant::now(), marks: Vec::new() };
        list.iter().for_each(|(at, bytes)| marks.note(Duration::from_millis(*at), *bytes));
        marks
    }

    #[test]
    fn the_steady_state_leaves_out_a_slow_start_and_a_slow_end() {
        let recording = marks(&[(0, 0), (1_000, 25_000), (1_100, 25_000), (1_200, 25_000), (3_000, 25_000)]);
        assert_eq!(recording.rate_between(0.25, 0.75), Rate::from_mbit(2.0));
        assert_eq!(marks(&[]).rate_between(0.25, 0.75), Rate::ZERO);
    }

    #[test]
    fn a_silence_counts_from_the_last_byte_before_the_cut_until_all_is_there() {
        let recording = marks(&[(0, 1), (500, 1), (600, 1), (750, 1), (800, 1)]);
        let silence =
            |from, to| recording.longest_silence(Duration::from_millis(from), Duration::from_millis(to));
        assert_eq!(silence(610, 800), Span::from_millis(150));
        assert_eq!(silence(10, 800), Span::from_millis(500));
        assert_eq!(silence(610, 700), Span::ZERO);
        assert_eq!(marks(&[]).longest_silence(Duration::ZERO, Duration::ZERO), Span::ZERO);
    }

    #[test]
    fn reads_of_one_moment_are_one_mark() {
        let mut recording = marks(&[(5, 10)]);
        recording.note(Duration::from_micros(5_100), 7);
        assert_eq!(recording.marks, [(Duration::from_millis(5), 17)]);
    }
}
