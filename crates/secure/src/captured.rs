//! Decrypting captures: a session's secrets as a line of text, and opening captured packets with it.
//!
//! For debugging with a capture of the sealed packets. An end writes the line only when the user asks for it: the line
//! opens the whole session, both directions, including later keys.
//!
//! A captured packet shows its PID and the low bits of its number. Direction, path and key phase are found by trial, since
//! only the right key opens a packet, and remembered by PID. So a capture may be from behind a relay, which changes PIDs.
//! It must begin before keys have changed twice.

use std::collections::HashMap;

use anabranch_wire::{Fsn, Header, PathId, Pid, TAG_LEN, expand_fsn};
use zeroize::Zeroizing;

use crate::SessionKeys;
use crate::phase::{KeyChain, PhaseKey};
use crate::text::{TextError, decode, encode};

/// Prefix of the line.
const PREFIX: &str = "abkeys";
/// Bytes of checksum.
const CHECK: usize = 4;
/// Bytes of the line: the session's id and both secrets.
const LINE: usize = 96;
/// Path ids tried for a PID that is new.
const PATHS: u32 = 64;
/// Packets with an unknown PID that are tried before the PID counts as another session's.
const TRIALS: u32 = 4;

impl SessionKeys {
    /// The secrets of both directions as one line of text, for a file that [`CapturedSession`] reads. The line opens every
    /// packet of the session: write it only where the user asked for it.
    #[must_use]
    pub fn to_line(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(LINE));
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(self.send.as_slice());
        bytes.extend_from_slice(self.receive.as_slice());
        encode::<CHECK>(PREFIX, &bytes)
    }
}

/// An opened packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// True when the end that wrote the line sent it.
    pub sent: bool,
    /// Its path.
    pub path: PathId,
    /// Its number.
    pub fsn: Fsn,
    /// Length of its frames, at the start of the body.
    pub len: usize,
}

/// Opens captured packets of one session; see the module's documentation.
pub struct CapturedSession {
    id: [u8; 32],
    /// The sending and the receiving direction of the end that wrote the line.
    directions: [Direction; 2],
    known: HashMap<Pid, Known>,
}

impl std::fmt::Debug for CapturedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CapturedSession(keys not shown)")
    }
}

/// The result of earlier packets with a PID.
#[derive(Clone, Copy, Debug)]
enum Known {
    Failed(u32),
    Path { direction: usize, path: PathId, next: Fsn },
}

/// The keys of one direction: of the previous, the current and the next phase.
struct Direction {
    chain: KeyChain,
    keys: Vec<PhaseKey>,
    /// The phase of the first of `keys`.
    first: u64,
}

impl Direction {
    fn new(secret: &[u8]) -> Self {
        let mut own = Zeroizing::new([0; 32]);
        own.copy_from_slice(secret);
        let mut chain = KeyChain::new(own);
        let keys = vec![chain.advance(), chain.advance()];
        Self { chain, keys, first: 0 }
    }

    /// Opens a packet with one of the keys that its phase bit allows. The last of them moves the phase on.
    fn open(&mut self, header: &Header, path: PathId, fsn: Fsn, body: &mut [u8]) -> bool {
        let Some(text) = body.len().checked_sub(TAG_LEN) else { return false };
        let (text, tag) = body.split_at_mut(text);
        let aad = header.associated_data(path);
        let fits = |index: &usize| ((self.first + *index as u64) % 2 == 1) == header.key_phase;
        let found = (0..self.keys.len()).filter(fits).find(|index| {
            let key = &self.keys[*index];
            key.try_open(path, fsn, &aad, text, tag)
        });
        if found.is_some_and(|index| index + 1 == self.keys.len()) {
            self.keys.push(self.chain.advance());
            if self.keys.len() > 3 {
                self.keys.remove(0);
                self.first += 1;
            }
        }
        found.is_some()
    }
}

impl CapturedSession {
    /// Parses a line made by [`SessionKeys::to_line`].
    ///
    /// # Errors
    /// When the line is malformed.
    pub fn from_line(line: &str) -> Result<Self, TextError> {
        // Longer than any line, but much shorter than a file.
        if line.len() > 1024 {
            return Err(TextError::Length);
        }
        let bytes = decode::<CHECK>(PREFIX, line)?;
        if bytes.len() != LINE {
            return Err(TextError::Length);
        }
        let mut id = [0; 32];
        id.copy_from_slice(&bytes[..32]);
        let directions = [Direction::new(&bytes[32..64]), Direction::new(&bytes[64..])];
        Ok(Self { id, directions, known: HashMap::new() })
    }

    /// The session's id, the same at both ends.
    #[must_use]
    pub fn id(&self) -> [u8; 32] {
        self.id
    }

    /// Opens the bytes after a header, in place; `None` when they do not belong to this session.
    pub fn open(&mut self, header: &Header, body: &mut [u8]) -> Option<Opened> {
        let len = body.len().checked_sub(TAG_LEN)?;
        let known = self.known.get(&header.pid).copied().unwrap_or(Known::Failed(0));
        if let Known::Path { direction, path, next } = known {
            let fsn = expand_fsn(header.fsn, next);
            if !self.directions[direction].open(header, path, fsn, body) {
                return None;
            }
            let next = Fsn(next.0.max(fsn.0 + 1));
            self.known.insert(header.pid, Known::Path { direction, path, next });
            return Some(Opened { sent: direction == 0, path, fsn, len });
        }
        let Known::Failed(failures) = known else { return None };
        if failures >= TRIALS {
            return None;
        }
        let fsn = Fsn(u64::from(header.fsn));
        for (path, direction) in (0..PATHS).flat_map(|path| [(PathId(path), 0), (PathId(path), 1)]) {
            if self.directions[direction].open(header, path, fsn, body) {
                let next = Fsn(fsn.0 + 1);
                self.known.insert(header.pid, Known::Path { direction, path, next });
                return Some(Opened { sent: direction == 0, path, fsn, len });
            }
        }
        self.known.insert(header.pid, Known::Failed(failures + 1));
        None
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Kind, Span, Time};

    use super::*;
    use crate::{Envelope, Limits, Protection};

    fn keys(send: u8, receive: u8) -> SessionKeys {
        SessionKeys { send: Zeroizing::new([send; 32]), receive: Zeroizing::new([receive; 32]), id: [9; 32] }
    }

    fn sealed(end: &mut Protection, now: Time, pid: u64, path: u32, fsn: u64) -> (Header, Vec<u8>) {
        let key_phase = end.key_phase(now);
        let header =
            Header { kind: Kind::Data, key_phase, tos: 0, hop_limit: 4, pid: Pid(pid), fsn: fsn as u32 };
        let mut body = [b"frames".as_slice(), &[0; TAG_LEN]].concat();
        end.seal(&Envelope::new(&header, PathId(path), Fsn(fsn)), &mut body).unwrap();
        (header, body)
    }

    #[test]
    fn packets_of_both_directions_and_of_every_path_are_opened_through_key_changes() {
        let mut captured = CapturedSession::from_line(&keys(1, 2).to_line()).unwrap();
        let limits = Limits { rekey_after_packets: 3, retention: Span::ZERO, ..Limits::default() };
        let mut ends = [
            Protection::new(&keys(1, 2), limits, Time::ZERO),
            Protection::new(&keys(2, 1), limits, Time::ZERO),
        ];
        let mut phases = std::collections::BTreeSet::new();
        for fsn in 0..40_u64 {
            for (end, path) in [(0, 0), (1, 0), (0, 3), (1, 5)] {
                let now = Time::ZERO + Span::from_secs(fsn);
                let (header, mut body) =
                    sealed(&mut ends[end], now, end as u64 * 100 + 7 + path, path as u32, fsn);
                phases.insert((fsn, header.key_phase));
                let mut copy = body.clone();
                let opened = captured.open(&header, &mut copy).unwrap();
                assert_eq!((opened.sent, opened.path, opened.fsn), (end == 0, PathId(path as u32), Fsn(fsn)));
                assert_eq!(&copy[..opened.len], b"frames");
                let envelope = Envelope::new(&header, PathId(path as u32), Fsn(fsn));
                ends[1 - end].open(now, &envelope, &mut body).unwrap();
            }
        }
        assert!(phases.iter().any(|(_, phase)| *phase), "keys changed");
    }

    #[test]
    fn packets_of_other_sessions_stay_closed_and_malformed_lines_are_refused() {
        let mut captured = CapturedSession::from_line(&keys(1, 2).to_line()).unwrap();
        let mut other = Protection::new(&keys(3, 4), Limits::default(), Time::ZERO);
        for fsn in 0..10 {
            let (header, mut body) = sealed(&mut other, Time::ZERO, 7, 0, fsn);
            assert_eq!(captured.open(&header, &mut body), None);
        }
        let line = keys(1, 2).to_line();
        assert!(CapturedSession::from_line(&line[..line.len() - 4]).is_err());
        assert!(CapturedSession::from_line("nonsense").is_err());
        assert!(!format!("{captured:?}").contains('1'));
    }
}
