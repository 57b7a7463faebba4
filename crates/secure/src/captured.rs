//! Decrypting captures: a session's secrets as a line of text, and opening captured packets with it.
//!
//! For debugging with a capture of the sealed packets. An end writes such lines only when the user asks for them. The first
//! line opens the session in both directions, up to its first fresh exchange. Each exchange adds a line.
//!
//! A captured packet shows its PID and the low bits of its number. Direction, path and key phase are found by trial, since
//! only the right key opens a packet, and remembered by PID. So a capture may be from behind a relay, which changes PIDs.
//! It must begin before keys have changed twice.

use std::collections::{HashMap, VecDeque};

use anabranch_wire::{Fsn, Header, PathId, Pid, TAG_LEN, expand_fsn};
use zeroize::Zeroizing;

use crate::SessionKeys;
use crate::fresh::FreshSecret;
use crate::phase::{KeyChain, PhaseKey};
use crate::text::{TextError, decode, encode};

/// Prefix of a session's first line, and of the line of a fresh secret.
const PREFIX: &str = "abkeys";
const FRESH_PREFIX: &str = "abfresh";
/// Bytes of checksum.
const CHECK: usize = 4;
/// Bytes of the first line: the session's id and both secrets.
const LINE: usize = 96;
/// Bytes of the other lines: the first bytes of the session's id, and the secret.
const FRESH_LINE: usize = SHORT_ID + 32;
const SHORT_ID: usize = 8;
/// Longer than any line, but much shorter than a file.
const MAX_LINE: usize = 1024;
/// For a PID that is new, path ids are tried up to the highest one so far and this many more.
const PATHS: u32 = 64;
/// Packets with an unknown PID that are tried before the PID counts as another session's.
const TRIALS: u32 = 4;

impl SessionKeys {
    /// The secrets of both directions as one line of text, for a file that [`CapturedSession`] reads. Write it only where the
    /// user asked for it.
    pub fn to_line(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(LINE));
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(self.send.as_slice());
        bytes.extend_from_slice(self.receive.as_slice());
        encode::<CHECK>(PREFIX, &bytes)
    }

    /// Enough of the session's id to recognise it in a file of keys.
    pub(crate) fn short_id(&self) -> [u8; SHORT_ID] {
        *self.id.first_chunk().expect("an id is longer")
    }
}

impl FreshSecret {
    /// A line of text for the same file, which opens the packets after this exchange.
    pub(crate) fn to_line(&self, session: [u8; SHORT_ID]) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(FRESH_LINE));
        bytes.extend_from_slice(&session);
        bytes.extend_from_slice(self.expose());
        encode::<CHECK>(FRESH_PREFIX, &bytes)
    }
}

/// An opened packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// True when the end that wrote the line sent it.
    pub sent: bool,
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
    highest: PathId,
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
    previous: Option<PhaseKey>,
    present: PhaseKey,
    phase: u64,
    next: Next,
    /// Secrets that are not in a key yet. Each direction takes all of them, in this order.
    fresh: VecDeque<FreshSecret>,
}

/// The keys that may follow the present phase: the next of the chain, or that with a fresh secret.
struct Next {
    chain: KeyChain,
    plain: (PhaseKey, KeyChain),
    mixed: Option<(PhaseKey, KeyChain)>,
}

impl Next {
    fn new(chain: KeyChain, fresh: Option<&FreshSecret>) -> Self {
        let (mut plain, mut mixed) = (chain.clone(), chain.clone());
        let mixed = fresh.map(|fresh| {
            mixed.mix(fresh);
            (mixed.advance(), mixed)
        });
        Self { plain: (plain.advance(), plain), mixed, chain }
    }
}

impl Direction {
    fn new(secret: &[u8]) -> Self {
        let mut own = Zeroizing::new([0; 32]);
        own.copy_from_slice(secret);
        let mut chain = KeyChain::new(own);
        let present = chain.advance();
        Self { previous: None, present, phase: 0, next: Next::new(chain, None), fresh: VecDeque::new() }
    }

    fn add(&mut self, fresh: FreshSecret) {
        self.fresh.push_back(fresh);
        self.next = Next::new(self.next.chain.clone(), self.fresh.front());
    }

    /// Opens a packet with one of the keys that its phase bit allows. A key of the next phase moves the phase on.
    fn open(&mut self, header: &Header, path: PathId, fsn: Fsn, body: &mut [u8]) -> bool {
        let Some(text) = body.len().checked_sub(TAG_LEN) else { return false };
        let (text, tag) = body.split_at_mut(text);
        let aad = header.associated_data(path);
        let mut fits = |key: &PhaseKey| key.try_open(path, fsn, &aad, text, tag);
        if (self.phase % 2 == 1) == header.key_phase {
            return fits(&self.present);
        }
        if self.previous.as_ref().is_some_and(&mut fits) {
            return true;
        }
        let is_mixed = self.next.mixed.as_ref().is_some_and(|(key, _)| fits(key));
        if !is_mixed && !fits(&self.next.plain.0) {
            return false;
        }
        self.advance(is_mixed);
        true
    }

    fn advance(&mut self, is_mixed: bool) {
        if is_mixed {
            self.fresh.pop_front();
        }
        let chain = match &self.next.mixed {
            Some((_, chain)) if is_mixed => chain.clone(),
            _ => self.next.plain.1.clone(),
        };
        let next = std::mem::replace(&mut self.next, Next::new(chain, self.fresh.front()));
        let key = if is_mixed { next.mixed.map(|(key, _)| key) } else { None };
        let key = key.unwrap_or(next.plain.0);
        self.previous = Some(std::mem::replace(&mut self.present, key));
        self.phase += 1;
    }
}

impl CapturedSession {
    /// Parses a line made by [`SessionKeys::to_line`].
    pub fn from_line(line: &str) -> Result<Self, TextError> {
        if line.len() > MAX_LINE {
            return Err(TextError::Length);
        }
        let bytes = decode::<CHECK>(PREFIX, line)?;
        if bytes.len() != LINE {
            return Err(TextError::Length);
        }
        let mut id = [0; 32];
        id.copy_from_slice(&bytes[..32]);
        let directions = [Direction::new(&bytes[32..64]), Direction::new(&bytes[64..])];
        Ok(Self { id, directions, known: HashMap::new(), highest: PathId::FIRST })
    }

    /// Parses the lines of any number of sessions, in the order in which they were written. Empty lines and lines that
    /// begin with `#` are skipped.
    ///
    /// # Errors
    /// The number of a malformed line, from 1, and what is wrong with it.
    pub fn read_all(text: &str) -> Result<Vec<Self>, (usize, TextError)> {
        let mut sessions: Vec<Self> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |error| (index + 1, error);
            if !line.starts_with(FRESH_PREFIX) {
                sessions.push(Self::from_line(line).map_err(wrong)?);
                continue;
            }
            let (session, fresh) = fresh_of(line).map_err(wrong)?;
            // A session whose first line is missing cannot be opened.
            if let Some(known) = sessions.iter_mut().find(|known| known.id.starts_with(&session)) {
                known.directions.iter_mut().for_each(|direction| direction.add(fresh.clone()));
            }
        }
        Ok(sessions)
    }

    /// The session's id, the same at both ends.
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
        // A session that opens and closes paths for days uses ever higher ids.
        let ids = 0..self.highest.0.saturating_add(PATHS);
        for (path, direction) in ids.flat_map(|path| [(PathId(path), 0), (PathId(path), 1)]) {
            if self.directions[direction].open(header, path, fsn, body) {
                let next = Fsn(fsn.0 + 1);
                self.highest = self.highest.max(path);
                self.known.insert(header.pid, Known::Path { direction, path, next });
                return Some(Opened { sent: direction == 0, path, fsn, len });
            }
        }
        self.known.insert(header.pid, Known::Failed(failures + 1));
        None
    }
}

/// Parses the line of a fresh secret: the session's short id, and the secret.
fn fresh_of(line: &str) -> Result<([u8; SHORT_ID], FreshSecret), TextError> {
    if line.len() > MAX_LINE {
        return Err(TextError::Length);
    }
    let bytes = decode::<CHECK>(FRESH_PREFIX, line)?;
    let (session, secret) = bytes.split_first_chunk().ok_or(TextError::Length)?;
    let mut own = Zeroizing::new([0; 32]);
    if secret.len() != own.len() {
        return Err(TextError::Length);
    }
    own.copy_from_slice(secret);
    Ok((*session, FreshSecret::from_bytes(own)))
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Kind, Side, Span, Time};

    use super::*;
    use crate::{Envelope, Limits, Protection};

    fn keys(send: u8, receive: u8) -> SessionKeys {
        let side = if send < receive { Side::Client } else { Side::Server };
        let (send, receive) = (Zeroizing::new([send; 32]), Zeroizing::new([receive; 32]));
        SessionKeys { send, receive, side, id: [9; 32] }
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
                ends[end].handle_acked(PathId(path as u32), Fsn(fsn));
            }
        }
        assert!(phases.iter().any(|(_, phase)| *phase), "keys changed");
    }

    #[test]
    fn packets_of_ever_new_paths_are_opened() {
        let mut captured = CapturedSession::from_line(&keys(1, 2).to_line()).unwrap();
        let mut end = Protection::new(&keys(1, 2), Limits::default(), Time::ZERO);
        for path in (0..200).step_by(2) {
            let (header, mut body) = sealed(&mut end, Time::ZERO, 7 + u64::from(path), path, 0);
            let opened = captured.open(&header, &mut body).map(|opened| opened.path);
            assert_eq!(opened, Some(PathId(path)));
        }
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
