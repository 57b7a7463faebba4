//! Opens the packets that a batch brings a session.

use std::sync::MutexGuard;

use anabranch_secure::{Envelope, OpenError, Protection};
use anabranch_wire::{Fsn, Header, PathId, Time, close_code, expand_fsn};

use super::SessionInner;
use crate::endpoint::inner::count;
use crate::session::outbox::lock_keys;

impl SessionInner {
    /// Locks the keys to open a batch of packets; `None` before the session has keys.
    pub(crate) fn opening(&self, now: Time) -> Option<Opening<'_>> {
        let keys = lock_keys(&self.protection);
        keys.is_some().then_some(Opening { session: self, keys, now, fatal: None })
    }
}

/// Opens the packets of one batch.
pub(crate) struct Opening<'a> {
    session: &'a SessionInner,
    keys: MutexGuard<'a, Option<Protection>>,
    now: Time,
    fatal: Option<OpenError>,
}

impl Opening<'_> {
    /// Opens the bytes behind a header in place. Returns the packet's number, and how many bytes of `body` are its
    /// frames. `None` for a packet to drop: a repeat, or not authentic.
    pub(crate) fn open(&mut self, header: &Header, path: PathId, body: &mut [u8]) -> Option<(Fsn, usize)> {
        let keys = self.keys.as_mut()?;
        let fsn = expand_fsn(header.fsn, keys.expected_fsn(path));
        match keys.open(self.now, &Envelope::new(header, path, fsn), body) {
            Ok(text) => Some((fsn, text.len())),
            Err(error) => {
                count(&self.session.endpoint.counters.unauthentic);
                self.fatal = Some(error).filter(|error| error.is_fatal()).or(self.fatal);
                None
            }
        }
    }

    /// Unlocks the keys. Ends the session if the peer broke their rules.
    pub(crate) fn finish(self) {
        let Self { session, mut keys, now, fatal } = self;
        if let Some(keys) = keys.as_mut() {
            session.reserve_windows(keys);
        }
        drop(keys);
        if let Some(error) = fatal {
            let code = match error {
                OpenError::TooManyForgeries => close_code::KEYS_EXHAUSTED,
                _ => close_code::PROTOCOL_VIOLATION,
            };
            session.core().engine.abort(now, code, &error.to_string());
        }
    }
}
