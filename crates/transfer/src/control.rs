//! The control stream: the greeting, the list, and the end of a transfer.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_wire::ForeignText;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::ask::Ask;
use crate::codec::{FRAME_HEADER, parse_header};
use crate::error::{Failure, MOST_NAMES, Missing, PER_NAME, Reason, TransferError};
use crate::message::{Control, LONGEST_CONTROL, VERSION};
use crate::packed::{PACKED, pack, unpack};
use crate::report::{MOST_WARNINGS, Summary};

/// How long an end waits for the other to receive its last message.
const FAREWELL: Duration = Duration::from_secs(3);
/// Bytes of names of failed files that the other end takes in a second, after [`FAREWELL`].
const SLOWEST: u64 = 16 << 10;
/// The time that the most names may take.
pub(crate) const LONGEST_FAREWELL: Duration =
    Duration::from_secs(FAREWELL.as_secs() + 12 + MOST_NAMES as u64 / SLOWEST);
/// Bytes of them that are compressed together.
const PIECE: usize = 32 << 10;
/// Most bytes of names of failed files that senders of this process hold while more are to come.
const MOST_OF_ALL: usize = 16 << 20;
static HELD: AtomicUsize = AtomicUsize::new(0);
/// How long to wait for the other end's reason after a stream broke.
const REASON: Duration = Duration::from_millis(500);

/// The reason for a client that asks something of a program that cannot be asked.
const NOTHING_TO_ASK: &str =
    "this is the ticket of `anabranch send`; fetch its files with `anabranch receive`";

/// The part of the greetings that is still to come.
enum Opening {
    /// Both ends greet.
    Greet,
    /// Both ends greet, and this one asks.
    Ask(Ask),
    /// The other end greets. This end has greeted, and perhaps asked.
    Hear,
    /// None.
    Done,
}

/// One end of the control stream.
pub(crate) struct ControlLink<S> {
    opening: Opening,
    /// The other end has opened the data stream, too.
    is_peer_eager: bool,
    /// The other end takes [`Control::Skip`] and [`Control::Missing`], and files shorter than listed.
    is_peer_extended: bool,
    /// This end is a server, whose client learns its notes.
    has_client: bool,
    /// This end asks a server, and takes its notes.
    has_asked: bool,
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    /// Bytes to be sent: a cancelled `send` goes on with the next one.
    unsent: Vec<u8>,
    /// Bytes read; those from `taken` on are not decoded yet. They survive a cancelled `recv`.
    buffer: Vec<u8>,
    taken: usize,
}

/// Size of the first read. Reads grow while much data comes; most links are idle.
const FIRST_READ: usize = 512;
const LARGEST_READ: usize = 64 << 10;

impl<S: AsyncRead + AsyncWrite + Unpin> ControlLink<S> {
    pub fn new(stream: S) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let opening = Opening::Greet;
        Self {
            opening,
            is_peer_eager: false,
            is_peer_extended: false,
            has_client: false,
            has_asked: false,
            reader,
            writer,
            unsent: Vec::new(),
            buffer: Vec::new(),
            taken: 0,
        }
    }

    /// A link on which this end asks.
    pub fn asking(self, ask: Ask) -> Self {
        Self { opening: Opening::Ask(ask), ..self }
    }

    /// True if this end is about to ask that a directory becomes a copy of its share.
    pub fn asks_for_copy(&self) -> bool {
        matches!(&self.opening, Opening::Ask(Ask::Put { placing, .. }) if placing.mirror.is_some())
    }

    /// Exchanges greetings, unless that was done.
    ///
    /// # Errors
    /// [`TransferError::Refused`] if the other end asks where nothing can be asked.
    pub async fn begin(&mut self) -> Result<(), TransferError> {
        self.greet(false).await?;
        if !matches!(self.opening, Opening::Hear) {
            return Ok(());
        }
        match (self.hear().await?, self.has_asked) {
            (true, false) => Err(TransferError::Refused(NOTHING_TO_ASK.into())),
            _ => Ok(()),
        }
    }

    /// Exchanges greetings; returns what the other end asks, if it asks.
    pub async fn expect_ask(&mut self) -> Result<Option<Ask>, TransferError> {
        self.greet(false).await?;
        if !self.hear().await? {
            return Ok(None);
        }
        match self.recv().await? {
            Control::Ask(ask) => {
                self.has_client = true;
                Ok(Some(ask))
            }
            _ => Err(TransferError::protocol("it did not say what it asks for")),
        }
    }

    /// Greets, unless that was done. An `eager` end opens the data stream as well.
    pub async fn greet(&mut self, eager: bool) -> Result<(), TransferError> {
        let ask = match &self.opening {
            Opening::Greet => None,
            Opening::Ask(ask) => Some(ask.clone()),
            Opening::Hear | Opening::Done => return Ok(()),
        };
        self.has_asked = ask.is_some();
        self.opening = Opening::Hear;
        let mut bytes = Vec::new();
        Control::Hello { version: VERSION, asks: self.has_asked, eager, extended: true }.encode(&mut bytes);
        if let Some(ask) = ask {
            Control::Ask(ask).encode(&mut bytes);
        }
        self.send_bytes(&bytes).await
    }

    /// Waits for the other end's greeting; true if it asks something.
    async fn hear(&mut self) -> Result<bool, TransferError> {
        self.opening = Opening::Done;
        match self.recv().await? {
            Control::Hello { version: VERSION, asks, eager, extended } => {
                (self.is_peer_eager, self.is_peer_extended) = (eager, extended);
                Ok(asks)
            }
            Control::Hello { version, .. } => Err(TransferError::Version { ours: VERSION, theirs: version }),
            Control::Abort(reason) => Err(TransferError::Peer(reason)),
            _ => Err(TransferError::protocol("it did not greet first")),
        }
    }

    /// True between a server and its client.
    pub fn is_with_server(&self) -> bool {
        self.has_asked || self.has_client
    }

    /// True if the other end takes [`Control::Skip`] and [`Control::Missing`], and files shorter than listed.
    pub fn is_peer_extended(&self) -> bool {
        self.is_peer_extended
    }

    /// True if the other end has opened the data stream, too.
    pub fn is_peer_eager(&self) -> bool {
        self.is_peer_eager
    }

    pub async fn send(&mut self, message: &Control) -> Result<(), TransferError> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_bytes(&bytes).await
    }

    /// Sends encoded messages. Cancelling sends the rest with the next ones.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.unsent.extend_from_slice(bytes);
        while !self.unsent.is_empty() {
            let written = self.writer.write(&self.unsent).await.map_err(TransferError::Connection)?;
            if written == 0 {
                return Err(TransferError::Connection(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.drain(..written);
        }
        // A list or names of failed files may have made it long, and the link lives on.
        self.unsent = Vec::new();
        self.writer.flush().await.map_err(TransferError::Connection)
    }

    /// The next message. The end of the stream is an error. Cancelling loses nothing.
    pub async fn recv(&mut self) -> Result<Control, TransferError> {
        loop {
            let rest = &self.buffer[self.taken..];
            if let Some((header, rest)) = rest.split_first_chunk::<FRAME_HEADER>() {
                let (kind, len) = parse_header(*header, LONGEST_CONTROL)?;
                if let Some(body) = rest.get(..len) {
                    let end = self.taken + FRAME_HEADER + len;
                    if kind == PACKED {
                        let messages = unpack(body)?;
                        self.buffer.splice(self.taken..end, messages);
                        continue;
                    }
                    self.taken = end;
                    return Control::decode(kind, body);
                }
            }
            let capacity = self.buffer.capacity();
            let was_filled = self.buffer.len() == capacity;
            self.buffer.drain(..self.taken);
            self.taken = 0;
            // A list may have made it longer than a read.
            self.buffer.shrink_to(LARGEST_READ);
            if was_filled && (capacity < LARGEST_READ || self.buffer.len() == capacity) {
                self.buffer.reserve(capacity.clamp(FIRST_READ, LARGEST_READ));
            }
            if self.reader.read_buf(&mut self.buffer).await.map_err(TransferError::Connection)? == 0 {
                return Err(TransferError::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// The receiver's verdict. Of the names in it, all receivers of this process together hold only [`MOST_OF_ALL`] bytes
    /// here. `skip` gets the files of which the receiver takes no more; `named` is called for each that it names.
    pub async fn verdict(&mut self, skip: impl Fn(u32), named: impl Fn()) -> Result<Verdict, TransferError> {
        let (mut missing, mut length, mut held) = (Vec::new(), 0, Held(0));
        let mut unsynced = 0;
        loop {
            match self.recv().await? {
                Control::Missing(file) => {
                    let bytes = file.path.raw().len() + file.reason.raw().len() + PER_NAME;
                    named();
                    length += bytes;
                    if length > MOST_NAMES {
                        return Err(TransferError::protocol("it names more failed files than allowed"));
                    }
                    if held.add(bytes) {
                        missing.push(file);
                    }
                }
                Control::Skip(file) => skip(file),
                Control::Unsynced(count) => unsynced = count,
                word => return Ok(Verdict { word, missing, unsynced }),
            }
        }
    }

    /// The other end's reason for stopping, if it sent one; otherwise `error`.
    pub async fn explain(&mut self, error: TransferError) -> TransferError {
        if !matches!(error, TransferError::Connection(_)) {
            return error;
        }
        match timeout(REASON, self.recv()).await {
            Ok(Ok(Control::Abort(reason))) => TransferError::Peer(reason),
            _ => error,
        }
    }

    /// Sends the outcome to the other end, and waits a little until it has arrived. Returns the notes of a server.
    pub async fn part(&mut self, outcome: &Result<Summary, TransferError>) -> Vec<ForeignText> {
        let mut last_words = Vec::new();
        if let Ok(Summary { unsynced, .. }) | Err(TransferError::Incomplete { unsynced, .. }) = outcome
            && self.is_peer_extended
            && *unsynced > 0
        {
            Control::Unsynced(*unsynced).encode(&mut last_words);
        }
        let last_word = match outcome {
            Ok(Summary { removed, updated, .. }) => {
                Some(Control::Done { removed: *removed, updated: *updated })
            }
            Err(error @ TransferError::Incomplete { count, here, again, failures, .. }) => {
                let again = self.is_peer_extended.then_some(*again);
                if again.is_some() {
                    last_words.append(&mut missing(failures));
                }
                let files = error.to_line().into();
                Some(Control::Incomplete { count: *count, failed_here: *here, files, again })
            }
            // The other end has said so.
            Err(TransferError::PeerIncomplete { .. }) if self.is_with_server() => None,
            Err(
                TransferError::Peer(_) | TransferError::PeerIncomplete { .. } | TransferError::Connection(_),
            ) => {
                // The other end has stopped, so a failure here changes nothing.
                let _ = timeout(FAREWELL, self.writer.shutdown()).await;
                return Vec::new();
            }
            Err(error) => Some(Control::Abort(error.to_line().into())),
        };
        last_word.iter().for_each(|word| word.encode(&mut last_words));
        if self.has_client {
            let notes = own_notes(outcome);
            notes.iter().for_each(|note| Control::Note(note.as_str().into()).encode(&mut last_words));
        }
        let patience = FAREWELL + Duration::from_secs(last_words.len() as u64 / SLOWEST);
        let mut notes = Vec::new();
        let _ = timeout(patience, async {
            self.send_bytes(&last_words).await?;
            self.writer.shutdown().await.map_err(TransferError::Connection)?;
            while let Ok(word) = self.recv().await {
                match word {
                    Control::Note(note) if self.has_asked && notes.len() < MOST_WARNINGS => notes.push(note),
                    _ => {}
                }
            }
            Ok::<(), TransferError>(())
        })
        .await;
        notes
    }
}

/// An end's notes about a transfer, unless nothing arrived.
fn own_notes(outcome: &Result<Summary, TransferError>) -> &[String] {
    let notes: &[String] = match outcome {
        Ok(Summary { warnings: notes, .. })
        | Err(TransferError::Incomplete { notes, .. } | TransferError::PeerIncomplete { notes, .. }) => notes,
        Err(_) => &[],
    };
    // The last ones each sum up many files.
    &notes[notes.len().saturating_sub(MOST_WARNINGS)..]
}

/// How a receiver says that its transfer ended.
pub(crate) struct Verdict {
    /// [`Control::Done`], [`Control::Incomplete`] or [`Control::Abort`]; anything else is against the protocol.
    pub word: Control,
    /// The files that it lacks, as far as it names them.
    pub missing: Vec<Missing>,
    /// Directories of it that found no room to be synced.
    pub unsynced: u64,
}

/// Bytes of names that one sender holds.
struct Held(usize);

impl Held {
    /// True if there is room for so many more.
    fn add(&mut self, bytes: usize) -> bool {
        let more = |held: usize| Some(held + bytes).filter(|held| *held <= MOST_OF_ALL);
        let has_room = HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.0 += if has_room { bytes } else { 0 };
        has_room
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The messages that name these failed files.
fn missing(failures: &[Failure]) -> Vec<u8> {
    let (mut bytes, mut piece) = (Vec::new(), Vec::new());
    for Failure { path, reason } in failures {
        let reason = match reason {
            Reason::Here(why) => why.as_str().into(),
            Reason::OtherEnd(why) => why.clone(),
        };
        Control::Missing(Missing { path: path.clone(), reason }).encode(&mut piece);
        if piece.len() >= PIECE {
            bytes.append(&mut pack(std::mem::take(&mut piece)));
        }
    }
    bytes.append(&mut pack(piece));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_sent_takes_no_memory() {
        let (near, _far) = tokio::io::duplex(1 << 20);
        let mut control = ControlLink::new(near);
        control.send_bytes(&[0; 100_000]).await.unwrap();
        assert_eq!(control.unsent.capacity(), 0);
    }

    #[test]
    fn of_too_many_notes_the_first_ones_are_not_sent() {
        let warnings: Vec<_> = (0..MOST_WARNINGS + 2).map(|at| at.to_string()).collect();
        let outcome = Ok(Summary { warnings: warnings.clone(), ..Summary::default() });
        assert_eq!(own_notes(&outcome), &warnings[2..]);
    }

    #[tokio::test]
    async fn only_an_end_that_asked_hears_notes() {
        for (ask, heard) in [(None, 0), (Some(Ask::List { path: None, deep: false }), 1)] {
            let (near, mut far) = tokio::io::duplex(1 << 20);
            let control = ControlLink::new(near);
            let mut control = if let Some(ask) = ask { control.asking(ask) } else { control };
            let mut bytes = Vec::new();
            Control::Hello { version: VERSION, asks: false, eager: false, extended: true }.encode(&mut bytes);
            Control::Note("run this".into()).encode(&mut bytes);
            far.write_all(&bytes).await.unwrap();
            far.shutdown().await.unwrap();
            control.begin().await.unwrap();
            assert_eq!(control.part(&Ok(Summary::default())).await.len(), heard);
        }
    }
}
