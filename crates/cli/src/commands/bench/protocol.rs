//! The messages between the two ends of a test: one line of JSON each, on the session's first stream.
//!
//! ```text
//! client                          server
//!   Start ───────────────────────▶
//!         ◀─────────────────────── Ready
//!   data, on streams that the sender opens
//!         ◀─────────────────────── Sample …     unless the client receives and counts itself
//!         ◀─────────────────────── Sample, last
//! ```
//! The receiver counts and ends the test: when the time is over it stops the streams, so data still on the
//! way does not count.

use std::io;
use std::time::Duration;

use anabranch_net::{Session, Stream};
use anabranch_wire::Span;
use serde::{Deserialize, Serialize};
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, split,
};

/// The version of these messages.
pub const VERSION: u32 = 1;
/// Longest line that is read, in bytes: a sample of a session with the most paths, plus as many closed ones.
const LONGEST: u64 = 32 << 10;
/// How long the other end may take to send an answer that needs no waiting.
pub const PATIENCE: Duration = Duration::from_secs(10);
pub const LONGEST_TEST: Span = Span::from_secs(86_400);
/// Shortest interval: below it, reports cost too much.
pub const SHORTEST_INTERVAL: Span = Span::from_millis(10);
pub const MOST_STREAMS: u32 = 256;

/// A message, sent as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Message {
    /// The client asks for a test.
    Start(Order),
    /// The server is ready for it.
    Ready,
    /// The receiver's counters so far.
    Sample(Sample),
}

/// The test that the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// [`VERSION`].
    pub version: u32,
    /// The server sends.
    pub reverse: bool,
    /// Number of parallel streams.
    pub streams: u32,
    /// Length of the test in microseconds, from the first byte received.
    pub time_us: u64,
    /// Time between samples in microseconds.
    pub interval_us: u64,
}

impl Order {
    /// Length of the test.
    pub fn time(&self) -> Span {
        Span::from_micros(self.time_us)
    }

    /// Time between samples.
    pub fn interval(&self) -> Span {
        Span::from_micros(self.interval_us)
    }

    /// Why the server refuses this test; `None` if it accepts.
    pub fn objection(&self) -> Option<&'static str> {
        let checks = [
            (self.version != VERSION, "another version of the bench protocol: update the older of the two"),
            (self.streams == 0 || self.streams > MOST_STREAMS, "no such number of streams"),
            (self.time_us == 0 || self.time_us > LONGEST_TEST.as_micros(), "no such length of a test"),
            (self.interval_us < SHORTEST_INTERVAL.as_micros(), "too short an interval"),
        ];
        checks.iter().find(|(bad, _)| *bad).map(|(_, why)| *why)
    }
}

/// A receiver's counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Microseconds since the first byte.
    pub elapsed_us: u64,
    /// Bytes that the receiving application got.
    pub bytes: u64,
    /// The longest silence since the previous sample, in microseconds. A silence that spans two intervals
    /// counts in full in both.
    pub gap_us: u64,
    /// Bytes by path, including those not yet in order. A closed path is listed one last time.
    pub paths: Vec<PathBytes>,
    /// True for the last sample of the test.
    pub last: bool,
}

/// Bytes received over one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathBytes {
    /// The path's id, which both ends share.
    pub id: u32,
    /// Bytes since the path was opened.
    pub bytes: u64,
}

/// The stream that carries the messages.
pub struct Control {
    reader: BufReader<ReadHalf<Stream>>,
    writer: WriteHalf<Stream>,
}

impl Control {
    /// Opens the stream at the client.
    pub async fn open(session: &Session) -> io::Result<Self> {
        Ok(Self::new(session.open_stream().await?))
    }

    /// Accepts the stream at the server.
    pub async fn accept(session: &Session) -> io::Result<Self> {
        let stream = tokio::time::timeout(PATIENCE, session.accept_stream()).await;
        Ok(Self::new(stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??))
    }

    fn new(stream: Stream) -> Self {
        let (reader, writer) = split(stream);
        Self { reader: BufReader::new(reader), writer }
    }

    /// Sends a message. The other end has to make room for it within [`PATIENCE`].
    pub async fn send(&mut self, message: &Message) -> io::Result<()> {
        let sent = tokio::time::timeout(PATIENCE, send(&mut self.writer, message)).await;
        let full = |_| io::Error::new(io::ErrorKind::TimedOut, "the other end reads no messages");
        sent.map_err(full)?
    }

    /// Waits for the next message, at most `patience`.
    pub async fn recv(&mut self, patience: Duration) -> io::Result<Message> {
        let mut line = Vec::new();
        let mut limited = (&mut self.reader).take(LONGEST);
        match tokio::time::timeout(patience, limited.read_until(b'\n', &mut line)).await {
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the other end fell silent")),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) => read(&line),
        }
    }
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), message: &Message) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

fn read(line: &[u8]) -> io::Result<Message> {
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end ended the test"));
    }
    serde_json::from_slice(line)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the other end does not speak this protocol"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        let (time_us, interval_us) = (10_000_000, 1_000_000);
        Order { version: VERSION, reverse: false, streams: 1, time_us, interval_us }
    }

    #[tokio::test]
    async fn a_message_is_one_line_and_reads_back() {
        let paths = vec![PathBytes { id: 2, bytes: 9 }];
        let sample = Sample { elapsed_us: 1, bytes: 9, gap_us: 3, paths, last: true };
        for message in [Message::Start(order()), Message::Ready, Message::Sample(sample)] {
            let mut line = Vec::new();
            send(&mut line, &message).await.unwrap();
            assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
            assert_eq!(read(&line).unwrap(), message);
        }
    }

    #[test]
    fn a_full_sample_fits_into_the_longest_line() {
        let paths = (0..64).map(|id| PathBytes { id: u32::MAX - id, bytes: u64::MAX }).collect();
        let sample = Sample { elapsed_us: u64::MAX, bytes: u64::MAX, gap_us: u64::MAX, paths, last: true };
        assert!((serde_json::to_vec(&Message::Sample(sample)).unwrap().len() as u64) < LONGEST);
    }

    #[test]
    fn what_is_no_message_is_refused_without_a_panic() {
        for line in [&b""[..], b"\n", b"{}\n", b"{\"type\":\"start\"}\n", b"\xff\xfe\n", b"[[[[[[[[\n"] {
            assert!(read(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_server_objects_to_what_would_keep_it_busy_for_nothing() {
        assert_eq!(order().objection(), None);
        let bad = [
            Order { version: 2, ..order() },
            Order { streams: 0, ..order() },
            Order { streams: u32::MAX, ..order() },
            Order { time_us: u64::MAX, ..order() },
            Order { interval_us: 0, ..order() },
        ];
        for order in bad {
            assert!(order.objection().is_some(), "{order:?}");
        }
    }
}
