//! An application that relies only on events, and knows every byte that it sends and should receive.
//!
//! It writes to a stream again only after [`Event::StreamWritable`], reads again only after [`Event::StreamReadable`],
//! and opens streams again only after [`Event::StreamsAvailable`]. If the engine forgets an event, a stream never ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anabranch_engine::{CloseReason, Event, Read, Session, State};
use anabranch_wire::{DatagramFrame, Side, StreamId, Time};
use bytes::Bytes;

use super::dice::Dice;
use anabranch_sim::App;

/// Bytes offered to a stream at once.
const CHUNK: u64 = 16 << 10;

/// How one direction of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Finished,
    Reset(u64),
}

/// A stream's sending half.
#[derive(Clone, Debug, Default)]
pub struct Outgoing {
    pub total: u64,
    pub written: u64,
    pub end: Option<End>,
    /// It was finished before it was reset, so the reset may have come too late.
    pub finished: bool,
    /// The peer asked to stop.
    pub stopped: bool,
    pub blocked: bool,
}

/// A stream's receiving half.
#[derive(Clone, Debug, Default)]
pub struct Incoming {
    pub read: u64,
    pub end: Option<End>,
    /// This end asked to stop.
    pub stopped: bool,
    readable: bool,
}

/// The application of one end.
#[derive(Debug, Default)]
pub struct Talker {
    pub out: BTreeMap<StreamId, Outgoing>,
    pub inc: BTreeMap<StreamId, Incoming>,
    /// Lengths of streams still to be opened.
    pub wants: VecDeque<u64>,
    pub paused: bool,
    pub gulp: Option<(usize, usize)>,
    /// True when this end or its peer is closing: it writes no more.
    pub closing: bool,
    pub established: bool,
    pub closed: Option<CloseReason>,
    pub datagrams_sent: u64,
    datagrams_seen: BTreeSet<u64>,
    no_streams: bool,
    side: Option<Side>,
    /// Violations found, the first one first.
    pub faults: Vec<String>,
}

/// The byte at `offset` of a stream that `side` sends.
fn byte(side: Side, stream: StreamId, offset: u64) -> u8 {
    let side = if side == Side::Client { 0x35 } else { 0xca };
    (offset ^ (offset >> 8).wrapping_mul(167) ^ (offset >> 16).wrapping_mul(59) ^ stream.0.wrapping_mul(101))
        as u8
        ^ side
}

fn datagram(side: Side, number: u64) -> Bytes {
    let length = 8 + (number * 37 % 900) as usize;
    let mut data = number.to_be_bytes().to_vec();
    data.resize(length, byte(side, StreamId(number), 7));
    data.into()
}

impl Talker {
    /// Bytes read over all streams.
    pub fn bytes_read(&self) -> u64 {
        self.inc.values().map(|half| half.read).sum()
    }

    pub fn bytes_written(&self) -> u64 {
        self.out.values().map(|half| half.written).sum()
    }

    /// Sends `count` datagrams, each different.
    pub fn send_datagrams(&mut self, session: &mut Session<Bytes>, count: usize) {
        for _ in 0..count {
            let data = datagram(session.side(), self.datagrams_sent);
            let class = (self.datagrams_sent % 16) as u8;
            if session.send_datagram(DatagramFrame { class, flow: 3, data }).is_ok() {
                self.datagrams_sent += 1;
            }
        }
    }

    /// Resets the sending half of one of the streams.
    pub fn reset(&mut self, session: &mut Session<Bytes>, pick: usize) {
        let open =
            self.out.iter_mut().filter(|(_, half)| !matches!(half.end, Some(End::Reset(_))) && !half.stopped);
        let Some((stream, half)) = open.into_iter().nth(pick) else { return };
        let code = 1000 + stream.0;
        // It fails if everything was already acknowledged.
        if session.reset(*stream, code).is_ok() {
            half.finished = half.end.is_some();
            half.end = Some(End::Reset(code));
        }
    }

    /// Asks the peer to stop sending one of the streams.
    pub fn stop(&mut self, session: &mut Session<Bytes>, pick: usize) {
        let open = self.inc.iter_mut().filter(|(_, half)| half.end.is_none() && !half.stopped);
        if let Some((stream, half)) = open.into_iter().nth(pick)
            && session.stop(*stream, 77).is_ok()
        {
            half.stopped = true;
        }
    }

    fn fault(&mut self, what: String) {
        if self.faults.len() < 8 {
            self.faults.push(what);
        }
    }

    fn on_event(&mut self, session: &mut Session<Bytes>, event: Event) {
        if self.closed.is_some() {
            self.fault(format!("an event after the end: {event:?}"));
        }
        match event {
            Event::Established => self.established = true,
            Event::StreamReadable(stream) => self.inc.entry(stream).or_default().readable = true,
            Event::StreamWritable(stream) => {
                if let Some(half) = self.out.get_mut(&stream) {
                    half.blocked = false;
                }
                self.choose_copies(session, stream);
            }
            Event::StreamStopped { stream, code } => {
                if code != 77 {
                    self.fault(format!("{stream} was stopped with code {code}"));
                }
                self.out.entry(stream).or_default().stopped = true;
            }
            Event::StreamsAvailable => self.no_streams = false,
            Event::DatagramReceived => self.read_datagrams(session),
            Event::PeerClosing => self.closing = true,
            Event::Closed(reason) => self.closed = Some(reason),
            _ => {}
        }
    }

    fn read_datagrams(&mut self, session: &mut Session<Bytes>) {
        while let Some((_, got)) = session.recv_datagram() {
            let number = got
                .data
                .get(..8)
                .map_or(u64::MAX, |bytes| bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
            if number > 1 << 32 || got.data != datagram(session.side().peer(), number) {
                self.fault("a datagram nobody sent".to_owned());
            } else if !self.datagrams_seen.insert(number) {
                self.fault(format!("datagram {number} came twice"));
            }
        }
    }

    fn accept(&mut self, session: &mut Session<Bytes>) {
        while let Some(stream) = session.accept_stream() {
            self.inc.entry(stream).or_default();
            let mut dice = Dice::new(stream.0 ^ 0x5eed);
            let total = if dice.chance(0.5) { 0 } else { dice.skewed(1.0, 60_000.0) as u64 };
            self.out.entry(stream).or_insert(Outgoing { total, ..Outgoing::default() });
            self.choose_copies(session, stream);
        }
    }

    /// Makes every third pair of streams redundant at first, and switches after each thousand bytes.
    fn choose_copies(&mut self, session: &mut Session<Bytes>, stream: StreamId) {
        let written = self.out.get(&stream).map_or(0, |half| half.written);
        if stream.0 / 2 % 3 == 2 {
            // Refused after the stream's end.
            let _ = session.set_redundant(stream, (written / 1000).is_multiple_of(2));
        }
    }

    fn open(&mut self, session: &mut Session<Bytes>) {
        while !self.no_streams
            && let Some(total) = self.wants.front().copied()
        {
            let Some(stream) = session.open_stream() else {
                self.no_streams = true;
                return;
            };
            self.wants.pop_front();
            self.out.insert(stream, Outgoing { total, ..Outgoing::default() });
            self.inc.insert(stream, Incoming::default());
            self.choose_copies(session, stream);
        }
    }

    fn write(&mut self, session: &mut Session<Bytes>) {
        let side = session.side();
        let mut faults = Vec::new();
        for (stream, half) in &mut self.out {
            while half.end.is_none() && !half.blocked && !half.stopped {
                let length = (half.total - half.written).min(CHUNK);
                let mut data: Bytes =
                    (half.written..half.written + length).map(|offset| byte(side, *stream, offset)).collect();
                match if length == 0 { Ok(0) } else { session.write(*stream, &mut data) } {
                    Ok(taken) => {
                        half.written += taken as u64;
                        half.blocked = (taken as u64) < length;
                    }
                    Err(error) => {
                        faults.push(format!("writing to {stream}: {error}"));
                        half.blocked = true;
                    }
                }
                if half.written == half.total {
                    half.end = Some(End::Finished);
                    if let Err(error) = session.finish(*stream) {
                        faults.push(format!("finishing {stream}: {error}"));
                    }
                }
            }
        }
        faults.into_iter().for_each(|what| self.fault(what));
    }

    fn read(&mut self, session: &mut Session<Bytes>) {
        let (most, times) = self.gulp.unwrap_or((usize::MAX, usize::MAX));
        let from = session.side().peer();
        let mut faults = Vec::new();
        for (stream, half) in self.inc.iter_mut().filter(|(_, half)| half.readable && !half.stopped) {
            let mut left = times;
            while half.readable && left > 0 && half.end.is_none() {
                left -= 1;
                match session.read(*stream, most) {
                    Ok(Read::Data(data)) => {
                        let fits =
                            |(at, got): (usize, &u8)| *got == byte(from, *stream, half.read + at as u64);
                        if data.is_empty() || data.len() > most || !data.iter().enumerate().all(fits) {
                            faults.push(format!("{stream} brought something else at {}", half.read));
                        }
                        half.read += data.len() as u64;
                    }
                    Ok(Read::Blocked) => half.readable = false,
                    Ok(Read::Finished) => half.end = Some(End::Finished),
                    Ok(Read::Reset(code)) => half.end = Some(End::Reset(code)),
                    Err(error) => {
                        faults.push(format!("reading {stream}: {error}"));
                        half.readable = false;
                    }
                }
            }
            if half.end.is_some() && matches!(session.read(*stream, most), Ok(Read::Data(_) | Read::Reset(_)))
            {
                faults.push(format!("{stream} brought something after its end"));
            }
        }
        faults.into_iter().for_each(|what| self.fault(what));
    }
}

impl App<Bytes> for Talker {
    fn poll(&mut self, _: Time, session: &mut Session<Bytes>) {
        self.side = Some(session.side());
        while let Some(event) = session.poll_event() {
            self.on_event(session, event);
        }
        self.accept(session);
        if session.state() == State::Established && !self.closing {
            self.open(session);
            self.write(session);
        }
        if !self.paused {
            self.read(session);
        }
    }
}
