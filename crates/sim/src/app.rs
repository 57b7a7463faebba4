//! Applications for the ends of a [`Pair`](crate::Pair).

use anabranch_engine::{Event, Read, Session};
use anabranch_wire::{Length, Payload, Span, StreamId, Time};

/// An application on one end.
pub trait App<P> {
    /// Called whenever the session may have changed.
    fn poll(&mut self, now: Time, session: &mut Session<P>);
}

/// Does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle;

impl<P> App<P> for Idle {
    fn poll(&mut self, _: Time, _: &mut Session<P>) {}
}

/// Writes a number of bytes to one stream as fast as the session accepts them, then finishes it.
#[derive(Clone, Debug)]
pub struct Sender {
    left: u64,
    redundant: bool,
    stream: Option<StreamId>,
    /// Bytes that the session has accepted.
    pub written: u64,
    /// When all bytes were acknowledged.
    pub finished_at: Option<Time>,
}

impl Sender {
    /// Sends `bytes`; `u64::MAX` for an endless stream.
    pub fn new(bytes: u64) -> Self {
        Self { left: bytes, redundant: false, stream: None, written: 0, finished_at: None }
    }

    /// Sends the stream on every path.
    #[must_use]
    pub fn redundant(self) -> Self {
        Self { redundant: true, ..self }
    }

    /// Finishes the stream after the bytes written.
    pub fn stop(&mut self, session: &mut Session<Length>) {
        self.left = 0;
        if let Some(stream) = self.stream {
            // An error means that it was already finished.
            let _ = session.finish(stream);
        }
    }
}

impl App<Length> for Sender {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        if !session.state().carries_data() || self.finished_at.is_some() {
            return;
        }
        if self.stream.is_none() {
            self.stream = open(session, self.redundant);
        }
        let Some(stream) = self.stream else { return };
        while self.left > 0 {
            let mut chunk = Length(self.left.min(1 << 20) as usize);
            match session.write(stream, &mut chunk) {
                Ok(0) | Err(_) => break,
                Ok(taken) => {
                    self.left -= taken as u64;
                    self.written += taken as u64;
                }
            }
            if self.left == 0 {
                // The stream was just written to, so it can be finished.
                let _ = session.finish(stream);
            }
        }
        while let Some(event) = session.poll_event() {
            if event == Event::StreamFinished(stream) {
                self.finished_at = Some(now);
            }
        }
    }
}

/// Opens a stream that is sent on every path, or on one.
fn open(session: &mut Session<Length>, redundant: bool) -> Option<StreamId> {
    let stream = session.open_stream()?;
    // The stream was just opened.
    let _ = session.set_redundant(stream, redundant);
    Some(stream)
}

/// Writes a fixed number of bytes to a redundant stream at a fixed interval, and must be polled that often.
#[derive(Clone, Debug)]
pub struct Ticker {
    chunk: usize,
    pause: Span,
    next: Time,
    stream: Option<StreamId>,
    /// Bytes that the session has accepted.
    pub written: u64,
}

impl Ticker {
    /// Writes `chunk` bytes every `pause`.
    pub fn new(chunk: usize, pause: Span) -> Self {
        Self { chunk, pause, next: Time::ZERO, stream: None, written: 0 }
    }
}

impl App<Length> for Ticker {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        while session.poll_event().is_some() {}
        if !session.state().carries_data() || now < self.next {
            return;
        }
        self.next = now + self.pause;
        if self.stream.is_none() {
            self.stream = open(session, true);
        }
        let Some(stream) = self.stream else { return };
        // Bytes that do not fit are dropped.
        let taken = session.write(stream, &mut Length(self.chunk));
        self.written += taken.unwrap_or(0) as u64;
    }
}

/// Bytes delivered to the application at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When.
    pub at: Time,
    /// How many.
    pub bytes: u64,
}

/// Reads every stream and records when bytes arrive.
#[derive(Clone, Debug, Default)]
pub struct Sink {
    streams: Vec<StreamId>,
    /// Every read that returned bytes.
    pub deliveries: Vec<Delivery>,
    /// Total bytes read.
    pub received: u64,
    /// When the last stream ended.
    pub finished_at: Option<Time>,
}

impl Sink {
    /// Mean delivery rate between two times, in Mbit/s.
    pub fn mbit_s(&self, from: Time, to: Time) -> f64 {
        let within = self.deliveries.iter().filter(|delivery| delivery.at >= from && delivery.at < to);
        let bytes: u64 = within.map(|delivery| delivery.bytes).sum();
        bytes as f64 * 8e-6 / to.since(from).as_secs_f64()
    }

    /// The longest time between two deliveries, from `from` to `to`.
    pub fn longest_gap(&self, from: Time, to: Time) -> Span {
        let times = self.deliveries.iter().map(|delivery| delivery.at).filter(|at| *at >= from && *at <= to);
        let (mut last, mut longest) = (from, Span::ZERO);
        for at in times.chain([to]) {
            longest = longest.max(at.since(last));
            last = at;
        }
        longest
    }
}

impl<P: Payload> App<P> for Sink {
    fn poll(&mut self, now: Time, session: &mut Session<P>) {
        while let Some(stream) = session.accept_stream() {
            self.streams.push(stream);
        }
        let mut bytes = 0;
        self.streams.retain(|stream| {
            loop {
                match session.read(*stream, usize::MAX) {
                    Ok(Read::Data(data)) => bytes += data.len() as u64,
                    Ok(Read::Blocked) => return true,
                    Ok(Read::Finished | Read::Reset(_)) | Err(_) => {
                        self.finished_at = Some(now);
                        return false;
                    }
                }
            }
        });
        if bytes > 0 {
            self.received += bytes;
            self.deliveries.push(Delivery { at: now, bytes });
        }
        while session.poll_event().is_some() {}
    }
}
