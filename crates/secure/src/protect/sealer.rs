//! The sending direction: one key at a time, each number of a path sealed once.

use std::collections::BTreeMap;

use anabranch_wire::{Fsn, PathId, TAG_LEN, Time};

use super::{Envelope, SealError, bit};
use crate::fresh::FreshSecret;
use crate::phase::{KeyChain, PhaseKey};

/// Seals with the key of the current phase.
pub(super) struct Sealer {
    chain: KeyChain,
    key: PhaseKey,
    /// To be mixed into the next phase.
    pub(super) fresh: Option<FreshSecret>,
    pub(super) phase: u64,
    pub(super) began: Time,
    pub(super) packets: u64,
    /// The lowest number of each path that this key may still seal.
    pub(super) next: BTreeMap<PathId, u64>,
    /// The first number of each path under this key, until the peer has acknowledged one of it.
    unacked: Option<Vec<(PathId, Fsn)>>,
}

impl Sealer {
    pub(super) fn new(mut chain: KeyChain, now: Time) -> Self {
        let key = chain.advance();
        // The peer has the first key from the handshake.
        let unacked = None;
        Self { chain, key, fresh: None, phase: 0, began: now, packets: 0, next: BTreeMap::new(), unacked }
    }

    /// Moves to the next key. Under a new key all numbers are unused, so the old ones are dropped.
    pub(super) fn advance(&mut self, now: Time) {
        if let Some(fresh) = self.fresh.take() {
            self.chain.mix(&fresh);
        }
        self.key = self.chain.advance();
        self.phase += 1;
        self.began = now;
        self.packets = 0;
        self.next.clear();
        self.unacked = Some(Vec::new());
    }

    /// True once the peer is known to have the current key.
    pub(super) fn is_acked(&self) -> bool {
        self.unacked.is_none()
    }

    /// Handles the highest acknowledged number of a path, which may belong to an earlier key.
    pub(super) fn handle_acked(&mut self, path: PathId, highest: Fsn) {
        let is_of_this_key = |(of, first): &(PathId, Fsn)| *of == path && *first <= highest;
        if self.unacked.as_ref().is_some_and(|firsts| firsts.iter().any(is_of_this_key)) {
            self.unacked = None;
        }
    }

    pub(super) fn close_path(&mut self, path: PathId) {
        self.next.remove(&path);
        if let Some(firsts) = &mut self.unacked {
            firsts.retain(|(of, _)| *of != path);
        }
    }

    pub(super) fn seal(
        &mut self,
        envelope: &Envelope,
        buffer: &mut [u8],
        most: u64,
    ) -> Result<(), SealError> {
        if envelope.key_phase != bit(self.phase) {
            return Err(SealError::WrongPhase);
        }
        if self.packets >= most {
            return Err(SealError::Exhausted);
        }
        let len = buffer.len().checked_sub(TAG_LEN).ok_or(SealError::BufferSize)?;
        let next = self.next.entry(envelope.path).or_default();
        if envelope.fsn.0 < *next || envelope.fsn.0 == u64::MAX {
            return Err(SealError::NumberReused);
        }
        if *next == 0
            && let Some(firsts) = &mut self.unacked
        {
            firsts.push((envelope.path, envelope.fsn));
        }
        *next = envelope.fsn.0 + 1;
        self.packets += 1;
        let (text, tag) = buffer.split_at_mut(len);
        let sealed = self.key.seal(envelope.path, envelope.fsn, &envelope.aad, text, tag);
        sealed.then_some(()).ok_or(SealError::BufferSize)
    }
}
