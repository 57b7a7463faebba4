//! The sending direction: one key at a time, each number of a path sealed once.

use std::collections::BTreeMap;

use anabranch_wire::{PathId, TAG_LEN, Time};

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
}

impl Sealer {
    pub(super) fn new(mut chain: KeyChain, now: Time) -> Self {
        let key = chain.advance();
        Self { chain, key, fresh: None, phase: 0, began: now, packets: 0, next: BTreeMap::new() }
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
        *next = envelope.fsn.0 + 1;
        self.packets += 1;
        let (text, tag) = buffer.split_at_mut(len);
        let sealed = self.key.seal(envelope.path, envelope.fsn, &envelope.aad, text, tag);
        sealed.then_some(()).ok_or(SealError::BufferSize)
    }
}
