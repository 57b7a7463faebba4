//! Packet protection: sealing and opening packets on all paths of a session, and changing keys while paths
//! differ by seconds.
//!
//! **Keys.** Both directions have a chain of keys, one a *key phase*, and change phase together (RFC 9001
//! §6). A header carries the phase's lowest bit.
//!
//! **Beginning a phase.** An end begins the next phase when it has sealed a number of packets, or some time
//! after the first, in the present one ([`Limits`]), but never
//! - before the present phase is *confirmed*: a packet of it was opened, so the peer has the key;
//! - within the *retention time* after that, so that late packets of the phase before are still understood; only
//!   a volume near the cipher's limit overrides this.
//!
//! The peer follows as soon as it opens a packet of the new phase. A peer that moves on again before it can
//! have seen this end in the present phase breaks the rule, and the session closes.
//!
//! **Choosing a key** for an arriving packet needs no trial where the path's numbers tell. With the present
//! bit it is the present key. With the other bit, a number below the first of the present phase on the same
//! path means the phase before, one above it the next phase. On a path that nothing of the present phase came
//! on yet (a slow one), the phase before is tried, then the next. The bit is in clear, so the time that a second
//! trial takes tells an observer nothing it does not see; the next key is made ahead of its use all the same.
//!
//! **Numbers.** A number of a path is sealed once under a key, and opened once: the replay window of each path is
//! here. A path that was closed stays closed.

mod opener;
mod sealer;

use std::fmt;

use anabranch_wire::{Fsn, Header, PathId, Span, TAG_LEN, Time};

use self::opener::{KeyOf, Opener};
use self::sealer::Sealer;
use crate::SessionKeys;
use crate::phase::KeyChain;

/// When keys change, and when a session must end. The defaults are for AES-GCM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets of a phase after which the next is begun.
    pub rekey_after_packets: u64,
    /// Packets of a phase after which the next is begun even though late packets may be lost by it.
    pub rekey_at_once_after_packets: u64,
    /// Packets of a phase that are sealed at most: RFC 9001 §6.6 gives 2^23 for AES-GCM.
    pub max_packets: u64,
    /// Time from the start of a phase after which, at the next packet, the next one is begun. Two minutes, as
    /// in WireGuard: what a stolen key opens is two minutes old at most.
    pub rekey_after: Span,
    /// Packets that failed to open, over all phases, after which the session ends: RFC 9001 §6.6 gives 2^52
    /// for AES-GCM.
    pub max_forgeries: u64,
    /// Retention time until [`Protection::set_retention`] is called.
    pub retention: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rekey_after_packets: 1 << 22,
            rekey_at_once_after_packets: (1 << 22) + (1 << 21),
            max_packets: 1 << 23,
            rekey_after: Span::from_secs(120),
            max_forgeries: 1 << 52,
            retention: Span::from_secs(3),
        }
    }
}

/// What a packet is sealed with beside its key: its path and number, which make the nonce, and the header's
/// associated data.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    path: PathId,
    fsn: Fsn,
    key_phase: bool,
    aad: [u8; Header::ASSOCIATED_LEN],
}

impl Envelope {
    /// The envelope of a packet with this header, on this end-to-end path, with this full number.
    #[must_use]
    pub fn new(header: &Header, path: PathId, fsn: Fsn) -> Self {
        Self { path, fsn, key_phase: header.key_phase, aad: header.associated_data(path) }
    }
}

/// Why a packet cannot be sealed. Each but the first means that the session must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The envelope does not carry what [`Protection::key_phase`] said.
    #[error("the header has the wrong key phase")]
    WrongPhase,
    /// A number of a path may be sealed once.
    #[error("packet number used before")]
    NumberReused,
    /// Nothing is sealed on a path that was closed.
    #[error("path closed")]
    PathClosed,
    /// The key has sealed as much as it may and the peer does not confirm a new one.
    #[error("key exhausted")]
    Exhausted,
    /// No room for the tag, or longer than the cipher can take.
    #[error("buffer has a wrong size")]
    BufferSize,
}

/// Why a packet was not opened. Drop it and count it; the last two mean that the session must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum OpenError {
    /// Shorter than a tag.
    #[error("packet too short")]
    TooShort,
    /// Seen before, or too old to tell.
    #[error("packet number seen before")]
    Replayed,
    /// The path was closed.
    #[error("path closed")]
    PathClosed,
    /// Of a key phase whose key was dropped.
    #[error("key of an old phase is gone")]
    PhaseGone,
    /// Forged or damaged; or a stateless reset: see [`crate::same_token`].
    #[error("packet not authentic")]
    NotAuthentic,
    /// The peer changed keys before it could know that this end had.
    #[error("peer broke the rule of key changes")]
    KeyUpdateViolation,
    /// More forgeries than the cipher bears.
    #[error("too many forged packets")]
    TooManyForgeries,
}

impl OpenError {
    /// Whether the session must close.
    #[must_use]
    pub fn is_fatal(self) -> bool {
        matches!(self, Self::KeyUpdateViolation | Self::TooManyForgeries)
    }
}

/// Seals and opens the packets of one session.
pub struct Protection {
    limits: Limits,
    retention: Span,
    sealer: Sealer,
    opener: Opener,
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("send_phase", &self.sealer.phase)
            .field("receive_phase", &self.opener.phase)
            .field("forgeries", &self.opener.forgeries)
            .finish_non_exhaustive()
    }
}

impl Protection {
    /// Protection under the keys of a handshake.
    #[must_use]
    pub fn new(keys: &SessionKeys, limits: Limits, now: Time) -> Self {
        Self {
            limits,
            retention: limits.retention,
            sealer: Sealer::new(KeyChain::new(keys.send.clone()), now),
            opener: Opener::new(KeyChain::new(keys.receive.clone())),
        }
    }

    /// Sets how long keys of the phase before are kept: at least three times the probe timeout of the slowest
    /// path (RFC 9001 §6.5).
    pub fn set_retention(&mut self, retention: Span) {
        self.retention = retention;
    }

    /// The key phase bit for the headers of packets sealed from now on. Begins a phase when one is due, so ask
    /// before each batch.
    pub fn key_phase(&mut self, now: Time) -> bool {
        self.opener.retire(now);
        if self.update_is_due(now) {
            self.sealer.advance(now);
        }
        bit(self.sealer.phase)
    }

    /// Key phases begun so far, for statistics.
    #[must_use]
    pub fn phases(&self) -> u64 {
        self.sealer.phase
    }

    /// Packets that failed to open so far.
    #[must_use]
    pub fn forgeries(&self) -> u64 {
        self.opener.forgeries
    }

    /// Whether a packet of the peer was opened: it has the keys, so the handshake was no replay, and a ticket's
    /// holder has its secret.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.opener.confirmed_at.is_some()
    }

    /// Seals `buffer` in place: all but the last [`TAG_LEN`] bytes are the text, those take the tag. Numbers of
    /// a path must ascend.
    ///
    /// # Errors
    /// See [`SealError`]; `buffer` is as it was but for [`SealError::BufferSize`].
    pub fn seal(&mut self, envelope: &Envelope, buffer: &mut [u8]) -> Result<(), SealError> {
        if !self.sealer.next.contains_key(&envelope.path) && self.opener.is_closed(envelope.path) {
            return Err(SealError::PathClosed);
        }
        self.sealer.seal(envelope, buffer, self.limits.max_packets)
    }

    /// Opens `buffer`, sealed text and tag, in place, and notes its number; gives the text. When it fails the
    /// text is ruined, and the last [`TAG_LEN`] bytes are as they were.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open<'b>(
        &mut self,
        now: Time,
        envelope: &Envelope,
        buffer: &'b mut [u8],
    ) -> Result<&'b mut [u8], OpenError> {
        if self.opener.forgeries >= self.limits.max_forgeries {
            return Err(OpenError::TooManyForgeries);
        }
        let len = buffer.len().checked_sub(TAG_LEN).ok_or(OpenError::TooShort)?;
        let (text, tag) = buffer.split_at_mut(len);
        self.opener.check_number(envelope)?;
        self.opener.retire(now);
        let key = self.opener.choose_key(envelope)?;
        let Some(used) = self.opener.open(key, envelope, text, tag) else {
            self.opener.forgeries += 1;
            return Err(OpenError::NotAuthentic);
        };
        if used == KeyOf::Next {
            self.follow(now)?;
        }
        self.opener.note(now, used, envelope);
        Ok(text)
    }

    /// The number that the next packet of a path is expected to have: what [`anabranch_wire::expand_fsn`] wants.
    #[must_use]
    pub fn expected_fsn(&self, path: PathId) -> Fsn {
        self.opener.next_number(path)
    }

    /// Forgets a path. Its id is refused from now on, in both directions.
    pub fn close_path(&mut self, path: PathId) {
        self.opener.close_path(path);
        self.sealer.next.remove(&path);
    }

    /// Gives back the memory of numbers that are missing, for a session in which nothing happens: they will not come any more.
    pub fn rest(&mut self) {
        self.opener.rest();
    }

    /// Bytes that the replay windows of all paths hold.
    #[must_use]
    pub fn window_memory(&self) -> usize {
        self.opener.window_memory()
    }

    fn update_is_due(&self, now: Time) -> bool {
        let Some(confirmed_at) = self.opener.confirmed_at else { return false };
        if self.sealer.phase != self.opener.phase {
            return false;
        }
        let packets = self.sealer.packets;
        let aged = packets > 0 && now.since(self.sealer.began) >= self.limits.rekey_after;
        let calm = now.since(confirmed_at) >= self.retention;
        packets >= self.limits.rekey_at_once_after_packets
            || (calm && (aged || packets >= self.limits.rekey_after_packets))
    }

    /// The peer is in the next phase: so is this end.
    fn follow(&mut self, now: Time) -> Result<(), OpenError> {
        if self.sealer.phase == self.opener.phase {
            if self.sealer.packets == 0 {
                return Err(OpenError::KeyUpdateViolation);
            }
            self.sealer.advance(now);
        }
        let retire_at = now + self.retention;
        self.opener.advance(now, retire_at);
        Ok(())
    }
}

/// The bit of a phase that headers carry.
fn bit(phase: u64) -> bool {
    phase % 2 == 1
}

#[cfg(test)]
mod tests;
