//! The messages of a transfer and their encoding (`docs/reference/transfer.md`).
//!
//! Both ends send control messages on the control stream. On the data stream, the receiver sends requests and the
//! sender replies. Decoders take hostile bytes: they never panic and allocate no more than the frame contains.

use anabranch_wire::{ForeignText, Reader};
use blake3::hazmat::ChainingValue;

use crate::ask::Ask;
use crate::attributes::Attribute;
use crate::codec::{FRAME_HEADER, put_frame, put_text, read_text};
use crate::error::{LONGEST_MESSAGE, Missing, TransferError, cut};
use crate::hash::BLOCK;
use crate::manifest::{Entry, EntryKind, FileMeta, LeftOut, ModifiedTime};
use crate::packed::{PACKED, unpack};
use crate::path::{LONGEST_PATH, RelPath};

/// Version of the transfer protocol.
pub(crate) const VERSION: u16 = 4;
/// Most hashes of existing blocks in one request.
pub(crate) const MOST_HASHES: usize = 64;
/// Longest body of a control message: an entry with the longest path and link, or a text.
pub(crate) const LONGEST_CONTROL: usize = 16 << 10;
pub(crate) const LONGEST_REQUEST: usize = 32 + 32 * MOST_HASHES;
pub(crate) const LONGEST_REPLY: usize = 32 + BLOCK;
/// Most bytes that one [`Reply::Zeros`] stands for: the receiver hashes them, and should soon notice an abort.
pub(crate) const MOST_ZEROS: u32 = 64 << 20;

const MAGIC: [u8; 4] = *b"ANBT";

const HELLO: u8 = 0x01;
pub(crate) const ENTRY: u8 = 0x02;
const LIST_END: u8 = 0x03;
const DONE: u8 = 0x04;
const ABORT: u8 = 0x05;
pub(crate) const LEFT_OUT: u8 = 0x06;
const INCOMPLETE: u8 = 0x07;
const ASK: u8 = 0x08;
pub(crate) const ATTRIBUTE: u8 = 0x09;
pub(crate) const HARD_LINK: u8 = 0x0a;
pub(crate) const MISSING: u8 = 0x0c;
const SKIP: u8 = 0x0d;
const NOTE: u8 = 0x0e;
const UNSYNCED: u8 = 0x0f;
const FETCH: u8 = 0x10;
const HASH: u8 = 0x12;
const WAIT: u8 = 0x13;
const BEGIN: u8 = 0x14;
/// Kind of a reply with a block; the sender builds this frame in place.
pub(crate) const REPLY_BLOCK: u8 = 0x20;
const SAME: u8 = 0x21;
const END: u8 = 0x22;
const FAILED: u8 = 0x23;
/// Kind of a reply with a piece of a block; also built in place.
pub(crate) const REPLY_PIECE: u8 = 0x26;
const ZEROS: u8 = 0x27;
const BEGUN: u8 = 0x28;

const ASKS: u8 = 1;
const IS_EAGER: u8 = 2;
const IS_EXTENDED: u8 = 4;

const HAS_SIZE: u8 = 1;
const HAS_TIME: u8 = 2;
const HAS_HOLES: u8 = 4;

/// A message on the control stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// First message in each direction. With `asks`, an [`Ask`] follows. An eager receiver opens the data stream at once,
    /// with [`Request::Begin`]. An extended sender takes [`Self::Skip`] and
    /// [`Self::Missing`], an extended receiver files shorter than listed.
    Hello { version: u16, asks: bool, eager: bool, extended: bool },
    /// A client's request to a server.
    Ask(Ask),
    /// One entry of the share's list.
    Entry(Entry),
    /// An extended attribute of the entry before it.
    Attribute(Attribute),
    /// The file before it is another name of the file with this number.
    HardLink(u32),
    /// An entry of the share that is not sent, and why; sent among the entries.
    LeftOut(LeftOut),
    /// The list is complete.
    ListEnd,
    /// The receiver has everything under its final name, and on disk but for [`Self::Unsynced`]. A copy counts what it
    /// removed, and the links and kept files that it changed.
    Done { removed: u64, updated: u64 },
    /// So many directories of the receiver found no room to be synced: a crash may undo new names in them. Sent before
    /// [`Self::Done`] or [`Self::Incomplete`].
    Unsynced(u64),
    /// The receiver takes no more of the file with this number, which it is receiving.
    Skip(u32),
    /// A file that the receiver lacks; sent before [`Self::Incomplete`].
    Missing(Missing),
    /// The receiver lacks `count` files; `failed_here` of them failed at the receiver. Another command there may take
    /// `again` of them, if the sender is extended.
    Incomplete { count: u64, failed_here: u64, files: ForeignText, again: Option<u64> },
    /// This end gives up for this reason.
    Abort(ForeignText),
    /// A server's note about the files that arrived; sent at the very end, where any message is passed over.
    Note(ForeignText),
}

/// A receiver's request on the data stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Blocks `first..first + count` of entry number `file`. Blocks whose hash is in `held` are sent only if they
    /// differ. Requests for one file follow each other without gaps, from block 0.
    Fetch { file: u32, first: u64, count: u64, last: bool, held: Vec<ChainingValue> },
    /// The length and hash of entry number `file`, without its content; at most one request for each file.
    Hash { file: u32 },
    /// The receiver is busy with its disk, and goes on later. Has no reply.
    Wait,
    /// At most so many bytes of the first file, before the receiver has the list.
    Begin { most: u32 },
}

/// A sender's reply. Replies have the order of the requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The rest of the next block, usually all of it, after the block's chaining value in the first 32 bytes.
    Block(Vec<u8>),
    /// The next bytes of a block that a later reply completes, after their own BLAKE3 hash in the first 32 bytes.
    Piece(Vec<u8>),
    /// The next block matches the receiver's hash.
    Same,
    /// The next bytes are zeros, which may begin and end within blocks; only for files with a listed length.
    Zeros { len: u32 },
    /// The file ends here, with this length and hash; also the answer to [`Request::Hash`].
    End { len: u64, hash: [u8; 32] },
    /// The file cannot be sent, and why; ends the request.
    Failed(ForeignText),
    /// The first bytes of an entry, after their BLAKE3 hash in the first 32 bytes; `None` without a suitable entry. They
    /// are not sent again if the receiver fetches the file from its start.
    Begun(Option<(u32, Vec<u8>)>),
}

impl Control {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version, asks, eager, extended } => put_frame(out, HELLO, |out| {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&version.to_be_bytes());
                let flags = [(*asks, ASKS), (*eager, IS_EAGER), (*extended, IS_EXTENDED)];
                let flags = flags.iter().fold(0, |sum, (is_set, flag)| sum | (u8::from(*is_set) * flag));
                out.extend_from_slice(if flags > 0 { std::slice::from_ref(&flags) } else { &[] });
            }),
            Self::Ask(ask) => put_frame(out, ASK, |out| ask.encode(out)),
            Self::Entry(entry) => put_frame(out, ENTRY, |out| put_entry(out, entry)),
            Self::Attribute(Attribute { name, value }) => put_frame(out, ATTRIBUTE, |out| {
                put_text(out, name);
                out.extend_from_slice(&(value.len() as u16).to_be_bytes());
                out.extend_from_slice(value);
            }),
            Self::HardLink(first) => {
                put_frame(out, HARD_LINK, |out| out.extend_from_slice(&first.to_be_bytes()));
            }
            Self::LeftOut(what) => put_frame(out, LEFT_OUT, |out| {
                out.push(u8::from(what.missed));
                put_message(out, what.path.raw());
                put_message(out, what.reason.raw());
            }),
            Self::ListEnd => put_frame(out, LIST_END, |_| {}),
            Self::Done { removed: 0, updated: 0 } => put_frame(out, DONE, |_| {}),
            Self::Done { removed, updated } => put_frame(out, DONE, |out| {
                out.extend_from_slice(&removed.to_be_bytes());
                out.extend_from_slice(&updated.to_be_bytes());
            }),
            Self::Unsynced(count) => {
                put_frame(out, UNSYNCED, |out| out.extend_from_slice(&count.to_be_bytes()));
            }
            Self::Skip(file) => put_frame(out, SKIP, |out| out.extend_from_slice(&file.to_be_bytes())),
            Self::Missing(Missing { path, reason }) => put_frame(out, MISSING, |out| {
                put_text(out, cut(path.raw(), LONGEST_PATH));
                put_message(out, reason.raw());
            }),
            Self::Incomplete { count, failed_here, files, again } => put_frame(out, INCOMPLETE, |out| {
                out.extend_from_slice(&count.to_be_bytes());
                out.extend_from_slice(&failed_here.to_be_bytes());
                put_message(out, files.raw());
                out.extend_from_slice(again.map(u64::to_be_bytes).as_ref().map_or(&[], |again| again));
            }),
            Self::Abort(message) => put_frame(out, ABORT, |out| put_message(out, message.raw())),
            Self::Note(message) => put_frame(out, NOTE, |out| put_message(out, message.raw())),
        }
    }

    pub fn decode(kind: u8, body: &[u8]) -> Result<Self, TransferError> {
        let mut reader = Reader::new(body);
        let message = match kind {
            HELLO => {
                if reader.array("greeting")? != MAGIC {
                    return Err(TransferError::protocol("it does not greet like a transfer"));
                }
                let version = reader.u16("version")?;
                // Later versions may append fields.
                let flags = reader.rest().first().copied().unwrap_or(0);
                let is_set = |flag: u8| flags & flag != 0;
                let (asks, eager, extended) = (is_set(ASKS), is_set(IS_EAGER), is_set(IS_EXTENDED));
                return Ok(Self::Hello { version, asks, eager, extended });
            }
            ASK => Self::Ask(Ask::decode(&mut reader)?),
            ENTRY => Self::Entry(read_entry(&mut reader)?),
            ATTRIBUTE => {
                let name = read_text(&mut reader)?;
                let len = reader.u16("length of a value")?;
                Self::Attribute(Attribute::checked(name, reader.bytes("value", len.into())?)?)
            }
            HARD_LINK => Self::HardLink(reader.u32("number of a file")?),
            LEFT_OUT => Self::LeftOut(LeftOut {
                missed: reader.u8("reason")? != 0,
                path: read_message(&mut reader)?,
                reason: read_message(&mut reader)?,
            }),
            LIST_END => Self::ListEnd,
            DONE if body.is_empty() => Self::Done { removed: 0, updated: 0 },
            DONE => Self::Done {
                removed: reader.u64("removed entries")?,
                updated: reader.u64("updated entries")?,
            },
            UNSYNCED => Self::Unsynced(reader.u64("number of directories")?),
            SKIP => Self::Skip(reader.u32("number of a file")?),
            MISSING => Self::Missing(Missing {
                path: cut(read_text(&mut reader)?, LONGEST_PATH).into(),
                reason: read_message(&mut reader)?,
            }),
            INCOMPLETE => {
                let (count, failed_here) =
                    (reader.u64("number of files")?, reader.u64("number of failures")?);
                let files = read_message(&mut reader)?;
                let again = match reader.rest() {
                    [] => None,
                    rest => Some(u64::from_be_bytes(whole(rest)?)),
                };
                return Ok(Self::Incomplete { count, failed_here, files, again });
            }
            ABORT => Self::Abort(read_message(&mut reader)?),
            NOTE => Self::Note(read_message(&mut reader)?),
            _ => return Err(unknown(kind)),
        };
        reader.end()?;
        Ok(message)
    }
}

impl Request {
    /// True for requests for which the sender reads but sends little.
    pub fn is_check(&self) -> bool {
        match self {
            Self::Hash { .. } => true,
            Self::Wait | Self::Begin { .. } => false,
            Self::Fetch { held, .. } => !held.is_empty(),
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Fetch { file, first, count, last, held } => put_frame(out, FETCH, |out| {
                out.extend_from_slice(&file.to_be_bytes());
                out.extend_from_slice(&first.to_be_bytes());
                out.extend_from_slice(&count.to_be_bytes());
                out.push(u8::from(*last));
                out.extend_from_slice(held.as_flattened());
            }),
            Self::Hash { file } => put_frame(out, HASH, |out| out.extend_from_slice(&file.to_be_bytes())),
            Self::Wait => put_frame(out, WAIT, |_| {}),
            Self::Begin { most } => put_frame(out, BEGIN, |out| out.extend_from_slice(&most.to_be_bytes())),
        }
    }

    pub fn decode(kind: u8, body: &[u8]) -> Result<Self, TransferError> {
        let mut reader = Reader::new(body);
        match kind {
            FETCH => {
                let (file, first, count) =
                    (reader.u32("file")?, reader.u64("first block")?, reader.u64("number of blocks")?);
                let last = reader.u8("last")? != 0;
                let (held, rest) = reader.rest().as_chunks::<32>();
                if !rest.is_empty() || held.len() > MOST_HASHES || held.len() as u64 > count {
                    return Err(TransferError::protocol("a request with the wrong number of hashes"));
                }
                Ok(Self::Fetch { file, first, count, last, held: held.to_vec() })
            }
            HASH => {
                let request = Self::Hash { file: reader.u32("file")? };
                reader.end()?;
                Ok(request)
            }
            WAIT => reader.end().map(|()| Self::Wait).map_err(Into::into),
            BEGIN => {
                let request = Self::Begin { most: reader.u32("number of bytes")? };
                reader.end()?;
                Ok(request)
            }
            _ => Err(unknown(kind)),
        }
    }
}

impl Reply {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Block(body) => put_frame(out, REPLY_BLOCK, |out| out.extend_from_slice(body)),
            Self::Piece(body) => put_frame(out, REPLY_PIECE, |out| out.extend_from_slice(body)),
            Self::Same => put_frame(out, SAME, |_| {}),
            Self::Zeros { len } => put_frame(out, ZEROS, |out| out.extend_from_slice(&len.to_be_bytes())),
            Self::End { len, hash } => put_frame(out, END, |out| {
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(hash);
            }),
            Self::Failed(message) => put_frame(out, FAILED, |out| put_message(out, message.raw())),
            Self::Begun(begun) => put_frame(out, BEGUN, |out| {
                if let Some((file, data)) = begun {
                    out.extend_from_slice(&file.to_be_bytes());
                    out.extend_from_slice(data);
                }
            }),
        }
    }

    /// Decodes a reply; `body` becomes the buffer of a block.
    pub fn decode(kind: u8, body: Vec<u8>) -> Result<Self, TransferError> {
        let mut reader = Reader::new(&body[..]);
        let reply = match kind {
            REPLY_BLOCK if body.len() >= 32 => return Ok(Self::Block(body)),
            REPLY_PIECE if body.len() > 32 => return Ok(Self::Piece(body)),
            SAME => Self::Same,
            ZEROS => Self::Zeros { len: reader.u32("length")? },
            END => Self::End { len: reader.u64("length")?, hash: reader.array("hash")? },
            FAILED => Self::Failed(read_message(&mut reader)?),
            BEGUN if body.is_empty() => Self::Begun(None),
            BEGUN if body.len() > 36 => {
                let file = reader.u32("file")?;
                return Ok(Self::Begun(Some((file, reader.rest().to_vec()))));
            }
            _ => return Err(unknown(kind)),
        };
        reader.end()?;
        Ok(reply)
    }
}

/// For fuzzing: a decoded message encodes to the same message again. True if it is one.
#[doc(hidden)]
pub fn check_message(kind: u8, body: &[u8]) -> bool {
    let again = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        assert_eq!(out[0], kind);
        out.split_off(FRAME_HEADER)
    };
    let control = Control::decode(kind, body).inspect(|message| {
        let out = again(&|out| message.encode(out));
        assert_eq!(Control::decode(kind, &out).as_ref().ok(), Some(message));
    });
    let request = Request::decode(kind, body).inspect(|message| {
        let out = again(&|out| message.encode(out));
        assert_eq!(Request::decode(kind, &out).as_ref().ok(), Some(message));
    });
    let reply = Reply::decode(kind, body.to_vec()).inspect(|message| {
        let out = again(&|out| message.encode(out));
        assert_eq!(Reply::decode(kind, out).as_ref().ok(), Some(message));
    });
    let is_packed = kind == PACKED && unpack(body).is_ok();
    control.is_ok() || request.is_ok() || reply.is_ok() || is_packed
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    match &entry.kind {
        EntryKind::File(meta) => {
            out.push(0);
            put_text(out, entry.path.as_str());
            out.extend_from_slice(&meta.mode.to_be_bytes());
            let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
            out.push(
                flag(meta.size.is_some(), HAS_SIZE)
                    | flag(meta.modified.is_some(), HAS_TIME)
                    | flag(meta.data.is_some(), HAS_HOLES),
            );
            if let Some(size) = meta.size {
                out.extend_from_slice(&size.to_be_bytes());
            }
            put_time(out, meta.modified);
            if let Some(data) = meta.data {
                out.extend_from_slice(&data.to_be_bytes());
            }
        }
        EntryKind::Directory { mode, modified } => {
            out.push(1);
            put_text(out, entry.path.as_str());
            out.extend_from_slice(&mode.to_be_bytes());
            out.push(if modified.is_some() { HAS_TIME } else { 0 });
            put_time(out, *modified);
        }
        EntryKind::Link { text } => {
            out.push(2);
            put_text(out, entry.path.as_str());
            put_text(out, text);
        }
    }
}

fn read_entry(reader: &mut Reader<&[u8]>) -> Result<Entry, TransferError> {
    let kind = reader.u8("kind")?;
    let path = RelPath::parse(read_text(reader)?)?;
    let kind = match kind {
        0 => {
            let mode = permission_bits(reader.u16("mode")?);
            let flags = reader.u8("flags")?;
            let size = if flags & HAS_SIZE == 0 { None } else { Some(reader.u64("size")?) };
            let modified = if flags & HAS_TIME == 0 { None } else { Some(read_time(reader)?) };
            let data = if flags & HAS_HOLES == 0 { None } else { Some(reader.u64("bytes of data")?) };
            EntryKind::File(FileMeta { size, mode, modified, data })
        }
        1 => {
            let mode = permission_bits(reader.u16("mode")?);
            let flags = reader.u8("flags")?;
            let modified = if flags & HAS_TIME == 0 { None } else { Some(read_time(reader)?) };
            EntryKind::Directory { mode, modified }
        }
        2 => EntryKind::Link { text: read_text(reader)?.to_owned() },
        _ => return Err(TransferError::protocol(format!("an entry of unknown kind {kind}"))),
    };
    Ok(Entry { path, kind })
}

/// Drops setuid, setgid and sticky, even from a sender that sets them.
fn permission_bits(mode: u16) -> u16 {
    mode & 0o777
}

fn put_time(out: &mut Vec<u8>, time: Option<ModifiedTime>) {
    if let Some(time) = time {
        out.extend_from_slice(&time.seconds.to_be_bytes());
        out.extend_from_slice(&time.nanoseconds.to_be_bytes());
    }
}

fn read_time(reader: &mut Reader<&[u8]>) -> Result<ModifiedTime, TransferError> {
    let seconds = i64::from_be_bytes(reader.array("seconds")?);
    let nanoseconds = reader.u32("nanoseconds")?.min(999_999_999);
    Ok(ModifiedTime { seconds, nanoseconds })
}

fn put_message(out: &mut Vec<u8>, message: &str) {
    put_text(out, cut(message, LONGEST_MESSAGE));
}

fn read_message(reader: &mut Reader<&[u8]>) -> Result<ForeignText, TransferError> {
    read_text(reader).map(|text| cut(text, LONGEST_MESSAGE).into())
}

/// A number that is all that is left of a body.
fn whole(rest: &[u8]) -> Result<[u8; 8], TransferError> {
    rest.try_into().map_err(|_| TransferError::protocol("a message of the wrong length"))
}

fn unknown(kind: u8) -> TransferError {
    TransferError::protocol(format!("a message of unknown kind {kind:#04x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Conflict, Mirror, Placing};

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    fn controls() -> Vec<Control> {
        let modified = Some(ModifiedTime { seconds: -5, nanoseconds: 7 });
        vec![
            Control::Hello { version: 4, asks: false, eager: false, extended: false },
            Control::Entry(Entry {
                path: path("a/é"),
                kind: EntryKind::File(FileMeta { size: Some(5), mode: 0o640, modified, data: None }),
            }),
            Control::Entry(Entry {
                path: path("s"),
                kind: EntryKind::File(FileMeta {
                    size: Some(1 << 30),
                    mode: 0o644,
                    modified: None,
                    data: Some(4096),
                }),
            }),
            Control::Entry(Entry {
                path: path("-"),
                kind: EntryKind::File(FileMeta { size: None, mode: 0o644, modified: None, data: None }),
            }),
            Control::Entry(Entry { path: path("d"), kind: EntryKind::Directory { mode: 0o755, modified } }),
            Control::Entry(Entry { path: path("l"), kind: EntryKind::Link { text: "d/é".into() } }),
            Control::Attribute(Attribute { name: "user.tag".into(), value: b"red".into() }),
            Control::HardLink(3),
            Control::Skip(3),
            Control::Unsynced(2),
            Control::Missing(Missing { path: "s".into(), reason: "its name is taken".into() }),
            Control::LeftOut(LeftOut { path: "s".into(), reason: "a socket".into(), missed: true }),
            Control::ListEnd,
            Control::Done { removed: 0, updated: 0 },
            Control::Abort("disk full".into()),
            Control::Note("a note".into()),
            Control::Incomplete { count: 2, failed_here: 1, files: "a: no".into(), again: None },
            Control::Ask(Ask::List { path: Some(path("a/b")), deep: true }),
            Control::Ask(Ask::Get { paths: vec![path("a"), path("b/c")], contents: false, attributes: true }),
            Control::Ask(Ask::Put { to: None, placing: Placing { conflict: Conflict::Skip, mirror: None } }),
            Control::Ask(Ask::Put {
                to: Some(path("a")),
                placing: Placing {
                    conflict: Conflict::Overwrite,
                    mirror: Some(Mirror { delete: true, by_content: false }),
                },
            }),
        ]
    }

    #[test]
    fn control_messages_survive_the_wire_and_every_truncation_is_an_error() {
        for message in controls() {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            let (kind, body) = (bytes[0], &bytes[FRAME_HEADER..]);
            assert_eq!(Control::decode(kind, body).unwrap(), message);
            for len in 0..body.len() {
                assert!(Control::decode(kind, &body[..len]).is_err(), "{message:?} cut to {len}");
            }
        }
    }

    #[test]
    fn requests_survive_the_wire() {
        let held = vec![[7; 32]; 3];
        let fetch = Request::Fetch { file: 1, first: 2, count: 3, last: true, held };
        for request in [fetch, Request::Hash { file: 3 }, Request::Begin { most: 5 }] {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            assert_eq!(Request::decode(bytes[0], &bytes[FRAME_HEADER..]).unwrap(), request);
            assert!(Request::decode(bytes[0], &bytes[FRAME_HEADER..bytes.len() - 1]).is_err());
        }
        assert_eq!(Request::decode(WAIT, &[]).unwrap(), Request::Wait);
        assert!(Request::decode(WAIT, &[0]).is_err());
    }

    #[test]
    fn replies_survive_the_wire() {
        let end = Reply::End { len: 5, hash: [1; 32] };
        let replies = [
            Reply::Block(vec![3; 40]),
            Reply::Piece(vec![4; 40]),
            Reply::Same,
            Reply::Zeros { len: 5 },
            end,
            Reply::Failed("no".into()),
            Reply::Begun(None),
            Reply::Begun(Some((7, vec![5; 33]))),
        ];
        for reply in replies {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            assert_eq!(Reply::decode(bytes[0], bytes[FRAME_HEADER..].to_vec()).unwrap(), reply);
        }
        assert!(Reply::decode(REPLY_BLOCK, vec![0; 31]).is_err(), "a block without its value");
        assert!(Reply::decode(REPLY_PIECE, vec![0; 32]).is_err(), "a piece without data");
        assert!(Reply::decode(BEGUN, vec![0; 36]).is_err(), "a beginning without data");
    }

    /// The bytes of the published test vector `name`.
    fn vector(name: &str) -> Vec<u8> {
        let vectors = include_str!("../../../docs/reference/vectors/transfer.txt");
        let line = vectors.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let digits: String = line.unwrap_or_else(|| panic!("no vector {name}")).split_whitespace().collect();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    #[test]
    fn messages_are_byte_for_byte_what_the_page_says() {
        let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            encode(&mut bytes);
            bytes
        };
        let names = [
            "hello",
            "file",
            "sparse",
            "stream",
            "directory",
            "link",
            "attribute",
            "hard link",
            "skip",
            "unsynced",
            "missing",
            "left out",
            "list end",
            "done",
            "abort",
            "note",
            "incomplete",
            "ls",
            "get",
            "put",
            "sync",
        ];
        for (name, message) in names.into_iter().zip(controls()) {
            assert_eq!(encoded(&|out| message.encode(out)), vector(name), "{name}");
        }
        let hellos = [
            ("hello of a client", true, false, false),
            ("eager hello", false, true, false),
            ("extended hello", false, false, true),
        ];
        for (name, asks, eager, extended) in hellos {
            let hello = Control::Hello { version: 4, asks, eager, extended };
            assert_eq!(encoded(&|out| hello.encode(out)), vector(name));
            assert_eq!(Control::decode(HELLO, &vector(name)[FRAME_HEADER..]).unwrap(), hello);
        }
        let done = Control::Done { removed: 2, updated: 1 };
        assert_eq!(encoded(&|out| done.encode(out)), vector("done of a copy"));
        assert_eq!(Control::decode(DONE, &vector("done of a copy")[FRAME_HEADER..]).unwrap(), done);
        let again = Control::Incomplete { count: 2, failed_here: 1, files: "a: no".into(), again: Some(1) };
        let bytes = vector("incomplete for now");
        assert_eq!(encoded(&|out| again.encode(out)), bytes);
        assert_eq!(Control::decode(INCOMPLETE, &bytes[FRAME_HEADER..]).unwrap(), again);
        assert!(Control::decode(INCOMPLETE, &bytes[FRAME_HEADER..bytes.len() - 1]).is_err());
        let fetch = Request::Fetch { file: 1, first: 64, count: 2, last: true, held: vec![[0xaa; 32]] };
        assert_eq!(encoded(&|out| fetch.encode(out)), vector("fetch"));
        let list = unpack(&vector("packed")[FRAME_HEADER..]).unwrap();
        assert_eq!(list, [vector("directory"), vector("link")].concat());
        assert_eq!(encoded(&|out| Request::Wait.encode(out)), vector("wait"));
        assert_eq!(encoded(&|out| Request::Hash { file: 3 }.encode(out)), vector("hash"));
        assert_eq!(encoded(&|out| Request::Begin { most: 16 << 10 }.encode(out)), vector("begin"));
        let piece = [&blake3::hash(b"ab").as_bytes()[..], b"ab"].concat();
        let block = [&crate::hash::hash_block(0, b"abc").value[..], b"abc"].concat();
        let end = Reply::End { len: 3, hash: blake3::hash(b"abc").into() };
        let failed = Reply::Failed("no".into());
        let begun = Reply::Begun(Some((1, piece.clone())));
        let replies = [
            Reply::Block(block),
            Reply::Piece(piece),
            Reply::Same,
            Reply::Zeros { len: 8 << 20 },
            end,
            failed,
            begun,
        ];
        let names = ["block", "piece", "same", "zeros", "end", "failed", "begun"];
        for (name, reply) in names.into_iter().zip(replies) {
            assert_eq!(encoded(&|out| reply.encode(out)), vector(name), "{name}");
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic() {
        let decode_all = |kind: u8, body: &[u8]| {
            let control = Control::decode(kind, body).is_ok();
            let request = Request::decode(kind, body).is_ok();
            control || request || Reply::decode(kind, body.to_vec()).is_ok()
        };
        let mut decoded = 0;
        for seed in 0_u64..4000 {
            let mut bytes = [0; 96];
            blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
            for kind in [
                HELLO,
                ENTRY,
                LEFT_OUT,
                LIST_END,
                ABORT,
                FETCH,
                HASH,
                REPLY_BLOCK,
                END,
                FAILED,
                REPLY_PIECE,
                INCOMPLETE,
                MISSING,
                BEGUN,
                bytes[95],
            ] {
                let len = usize::from(bytes[94]) % 94;
                decoded += u32::from(decode_all(kind, &bytes[..len]));
                // Small numbers, so that lengths and kinds are often valid.
                bytes.iter_mut().take(94).for_each(|byte| *byte &= 3);
                decoded += u32::from(decode_all(kind, &bytes[..len]));
            }
        }
        assert!(decoded > 1000, "hardly anything got past the first checks: {decoded}");
    }

    #[test]
    fn special_mode_bits_do_not_come_through() {
        let kind = EntryKind::File(FileMeta { size: None, mode: 0o6755, modified: None, data: None });
        let mut bytes = Vec::new();
        Control::Entry(Entry { path: path("x"), kind }).encode(&mut bytes);
        let decoded = Control::decode(bytes[0], &bytes[FRAME_HEADER..]).unwrap();
        let Control::Entry(Entry { kind: EntryKind::File(meta), .. }) = decoded else {
            panic!("{decoded:?}")
        };
        assert_eq!(meta.mode, 0o755);
    }
}
