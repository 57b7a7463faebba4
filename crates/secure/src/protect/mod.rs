//! Packet protection: seals and opens packets on all paths of a session, and changes keys while paths differ by seconds.
//!
//! **Keys.** Each direction has a chain of keys, one per *key phase*; both directions change phase together (RFC 9001 §6).
//! A header carries the phase's lowest bit.
//!
//! **Starting a phase.** An end starts the next phase after a number of packets, or some time after the first packet, of
//! the current one ([`Limits`]), but never
//! - before the current phase is *confirmed*: a packet of it was opened, and the peer acknowledged one that this end
//!   sealed in it. The acknowledgement shows that the peer can open the next phase, even if the first packets of this one
//!   were lost. In phase 0 it is not needed;
//! - within the *retention time* after that, so that late packets of the previous phase still open; only a volume near the
//!   cipher's limit overrides this.
//!
//! The peer follows as soon as it opens a packet of the new phase. A peer that moves on again before it can have seen this
//! end in the current phase breaks the rule, and the session closes.
//!
//! **Fresh secrets.** About every 100 s under load both ends agree on a fresh secret ([`Protection::exchange`]). Then a
//! sender begins the next phase with that secret mixed in as soon as the rules above allow it: the client when it has the
//! server's half, the server when it has opened a packet of the client that has it. Each direction mixes by itself. A
//! volume or an age that starts a phase before that starts it without, so no peer can keep keys from changing. The
//! receiver tries both keys of the next phase.
//!
//! **Choosing a key** for an arriving packet usually needs no trial. A packet with the current bit uses the current key.
//! With the other bit, a number below the first of the current phase on the same path means the previous phase, a number
//! above it the next phase. If nothing of the current phase arrived on the path yet (a slow path), the previous phase is
//! tried, then the next. The bit is visible anyway, so the time of a second trial reveals nothing to an observer.
//!
//! **Numbers.** Each number of a path is sealed once under a key, and opened once: this module holds the replay window of
//! each path. A closed path stays closed.

mod opener;
mod sealer;

use std::fmt;

use anabranch_wire::{Fsn, Header, KeyExchange, PathId, Side, Span, TAG_LEN, Time};
use zeroize::Zeroizing;

use self::opener::{KeyOf, Opener};
use self::sealer::Sealer;
use crate::SessionKeys;
use crate::fresh::{Exchange, FreshSecret, UnusableKey};
use crate::phase::KeyChain;
use crate::secret;

/// When keys change, and when a session must end. The defaults are for AES-GCM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets of a phase after which the next starts.
    pub rekey_after_packets: u64,
    /// Packets of a phase after which the next starts even though late packets may be lost.
    pub rekey_at_once_after_packets: u64,
    /// Most packets sealed in a phase: RFC 9001 §6.6 gives 2^23 for AES-GCM.
    pub max_packets: u64,
    /// Time from the start of a phase after which the next packet starts the next one. Two minutes, as in WireGuard: a stolen
    /// key opens at most two minutes of traffic.
    pub rekey_after: Span,
    /// Time from one fresh exchange to the next. It leaves 20 s for the exchange, so that phases older than `rekey_after`
    /// are rare, and a stolen chain of keys opens at most two minutes of traffic, too.
    pub exchange_after: Span,
    /// Packets that failed to open, over all phases, after which the session ends: RFC 9001 §6.6 gives 2^52 for AES-GCM.
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
            exchange_after: Span::from_secs(100),
            max_forgeries: 1 << 52,
            retention: Span::from_secs(3),
        }
    }
}

/// The inputs of a seal other than the key: path and number, which make the nonce, and the header's associated data.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    path: PathId,
    fsn: Fsn,
    key_phase: bool,
    aad: [u8; Header::ASSOCIATED_LEN],
}

impl Envelope {
    /// The envelope of a packet with this header, on this end-to-end path, with this full number.
    pub fn new(header: &Header, path: PathId, fsn: Fsn) -> Self {
        Self { path, fsn, key_phase: header.key_phase, aad: header.associated_data(path) }
    }
}

/// Why a packet cannot be sealed. After any but the first, the session must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The envelope's key phase differs from [`Protection::key_phase`].
    #[error("the header has the wrong key phase")]
    WrongPhase,
    /// Each number of a path may be sealed only once.
    #[error("packet number used before")]
    NumberReused,
    /// A closed path carries no packets.
    #[error("path closed")]
    PathClosed,
    /// The key has sealed as many packets as it may, and the peer does not confirm a new one.
    #[error("key exhausted")]
    Exhausted,
    /// No room for the tag, or more than the cipher can handle.
    #[error("buffer has a wrong size")]
    BufferSize,
}

/// Why a packet was not opened. Drop it and count it; after the last two, the session must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum OpenError {
    /// Shorter than a tag.
    #[error("packet too short")]
    TooShort,
    /// Received before, or too old for the window.
    #[error("packet number seen before")]
    Replayed,
    /// The path was closed.
    #[error("path closed")]
    PathClosed,
    /// Its key was dropped.
    #[error("key of an old phase is gone")]
    PhaseGone,
    /// Forged or damaged.
    #[error("packet not authentic")]
    NotAuthentic,
    /// The peer changed keys before it could know that this end had changed.
    #[error("peer broke the rule of key changes")]
    KeyUpdateViolation,
    /// More forgeries than the cipher tolerates.
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
    exchange: Exchange,
    /// The first bytes of the session's id, for captures.
    session: [u8; 8],
}

/// The result of [`Protection::exchange`].
#[derive(Debug, Default)]
pub struct Exchanged {
    /// This end's half, which must reach the peer.
    pub half: Option<KeyExchange>,
    /// The secret, when the exchange is complete at this end. Only captures need it.
    pub fresh: Option<FreshSecret>,
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
    pub fn new(keys: &SessionKeys, limits: Limits, now: Time) -> Self {
        Self {
            limits,
            retention: limits.retention,
            sealer: Sealer::new(KeyChain::new(keys.send.clone()), now),
            opener: Opener::new(KeyChain::new(keys.receive.clone())),
            exchange: Exchange::new(keys.side, now, limits.exchange_after),
            session: keys.short_id(),
        }
    }

    /// Sets how long keys of the previous phase are retained: at least three times the probe timeout of the slowest path
    /// (RFC 9001 §6.5).
    pub fn set_retention(&mut self, retention: Span) {
        self.retention = retention;
    }

    /// The key phase bit for the headers of packets sealed from now on. Starts a phase when one is due, so call it before
    /// each batch.
    pub fn key_phase(&mut self, now: Time) -> bool {
        self.opener.retire(now);
        if self.update_is_due(now) {
            self.sealer.advance(now);
        }
        bit(self.sealer.phase)
    }

    /// Whether [`Protection::exchange`] should be called though no half of the peer has come. Cheap, so ask with each batch.
    pub fn wants_exchange(&self, now: Time) -> bool {
        let is_free = || self.is_confirmed() && !self.opener.is_expecting() && self.sealer.fresh.is_none();
        now >= self.exchange.due_at() && is_free()
    }

    /// Takes the peer's half of a fresh exchange, if one has come, and makes this end's when it is due. `random` must be 32
    /// fresh random bytes. Costs one or two operations of X25519; a peer causes them at most twice in
    /// [`Limits::exchange_after`].
    ///
    /// # Errors
    /// When the peer's key cannot be used; then the session must close.
    pub fn exchange(
        &mut self,
        now: Time,
        half: Option<&KeyExchange>,
        random: [u8; 32],
    ) -> Result<Exchanged, UnusableKey> {
        let random = secret::take(random);
        let pause = self.limits.exchange_after;
        let mut exchanged = Exchanged::default();
        if let Some(half) = half
            && let Some(fresh) = self.exchange.handle(now, (half, pause))?
        {
            // The server has answered, so it can open what is sealed with the secret.
            self.sealer.fresh = Some(fresh.clone());
            exchanged.fresh = Some(fresh);
        }
        if self.wants_exchange(now)
            && let Some((half, fresh)) = self.exchange.next_half(now, (*random, pause))?
        {
            exchanged.half = Some(half);
            exchanged.fresh = fresh;
        }
        if let Some(fresh) = &exchanged.fresh {
            self.opener.expect(fresh.clone());
        }
        Ok(exchanged)
    }

    /// A fresh secret as a line of text, for [`CapturedSession::read_all`](crate::CapturedSession::read_all).
    pub fn line_of(&self, fresh: &FreshSecret) -> Zeroizing<String> {
        fresh.to_line(self.session)
    }

    /// Key phases so far, for statistics.
    pub fn phases(&self) -> u64 {
        self.sealer.phase
    }

    /// Packets that failed to open so far.
    pub fn forgeries(&self) -> u64 {
        self.opener.forgeries
    }

    /// Whether a packet of the peer was opened. Then the peer has the keys, so the handshake was not a replay, and a
    /// client with a ticket has its secret.
    pub fn is_confirmed(&self) -> bool {
        self.opener.confirmed_at.is_some()
    }

    /// Seals `buffer` in place: the last [`TAG_LEN`] bytes take the tag, the others are the text. The numbers of a path must
    /// increase.
    ///
    /// # Errors
    /// See [`SealError`]; `buffer` is unchanged except after [`SealError::BufferSize`].
    pub fn seal(&mut self, envelope: &Envelope, buffer: &mut [u8]) -> Result<(), SealError> {
        if !self.sealer.next.contains_key(&envelope.path) && self.opener.is_closed(envelope.path) {
            return Err(SealError::PathClosed);
        }
        self.sealer.seal(envelope, buffer, self.limits.max_packets)
    }

    /// Whether the next phase waits for [`Protection::handle_acked`]. Cheap, so ask with each batch.
    pub fn awaits_ack(&self) -> bool {
        !self.sealer.is_acked()
    }

    /// Takes the highest number of a path that the peer has acknowledged (RFC 9001 §6.1).
    pub fn handle_acked(&mut self, path: PathId, highest: Fsn) {
        self.sealer.handle_acked(path, highest);
    }

    /// Opens `buffer`, sealed text and tag, in place, and records its number; returns the text. On failure the text is
    /// destroyed and the last [`TAG_LEN`] bytes are unchanged.
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
        if matches!(used, KeyOf::Next | KeyOf::Fresh) {
            self.follow(now, used)?;
        }
        self.opener.note(now, used, envelope);
        Ok(text)
    }

    /// The expected number of a path's next packet, for [`anabranch_wire::expand_fsn`].
    pub fn expected_fsn(&self, path: PathId) -> Fsn {
        self.opener.next_number(path)
    }

    /// Closes a path. Its id is refused from now on, in both directions.
    pub fn close_path(&mut self, path: PathId) {
        self.opener.close_path(path);
        self.sealer.close_path(path);
    }

    /// Frees the memory for missing numbers, in an idle session: those packets will not arrive any more.
    pub fn rest(&mut self) {
        self.opener.rest();
    }

    /// Bytes of the replay windows of all paths.
    pub fn window_memory(&self) -> usize {
        self.opener.window_memory()
    }

    fn update_is_due(&self, now: Time) -> bool {
        let Some(confirmed_at) = self.opener.confirmed_at else { return false };
        // Without a packet of the present phase the peer cannot open one of the next.
        if self.sealer.phase != self.opener.phase || !self.sealer.is_acked() {
            return false;
        }
        let packets = self.sealer.packets;
        let aged = packets > 0 && now.since(self.sealer.began) >= self.limits.rekey_after;
        let calm = now.since(confirmed_at) >= self.retention;
        let fresh = self.sealer.fresh.is_some();
        packets >= self.limits.rekey_at_once_after_packets
            || (calm && ((fresh && packets > 0) || aged || packets >= self.limits.rekey_after_packets))
    }

    /// Moves to the next phase because the peer did.
    fn follow(&mut self, now: Time, used: KeyOf) -> Result<(), OpenError> {
        let follows = self.sealer.phase == self.opener.phase;
        if follows && self.sealer.packets == 0 {
            return Err(OpenError::KeyUpdateViolation);
        }
        let retire_at = now + self.retention;
        let fresh = self.opener.advance(now, used, retire_at);
        if self.exchange.side() == Side::Server && fresh.is_some() {
            // Only now is it certain that the client has the secret.
            self.sealer.fresh = fresh;
        }
        if follows {
            self.sealer.advance(now);
        }
        Ok(())
    }
}

/// The phase's bit in headers.
fn bit(phase: u64) -> bool {
    phase % 2 == 1
}

#[cfg(test)]
mod tests;
