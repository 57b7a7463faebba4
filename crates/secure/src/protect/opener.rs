//! The receiving direction: which key opens a packet, which numbers were received, which paths are closed.

use anabranch_wire::{Fsn, PathId, RangeSet, Side, Time};

use super::{Envelope, OpenError, bit};
use crate::fresh::FreshSecret;
use crate::phase::{KeyChain, PhaseKey};
use crate::replay::ReplayWindow;

/// Closed path ids are stored as at most this many runs; beyond that the ids between the lowest two count as closed.
pub(super) const MAX_CLOSED_RUNS: usize = 256;

/// The phase of a key, relative to the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOf {
    Previous,
    Present,
    /// Or the next phase with the fresh secret: the sender decides.
    Next,
    Fresh,
    /// The path's numbers do not decide: the previous phase, then the next.
    PreviousOrNext,
}

/// The packets received on a path.
#[derive(Default)]
struct Arrivals {
    window: ReplayWindow,
    /// The lowest number received under the current key.
    phase_start: Option<Fsn>,
}

/// A key that the peer may use next, and the chain behind it.
struct Candidate {
    key: PhaseKey,
    chain: KeyChain,
}

impl Candidate {
    fn new(chain: &KeyChain, fresh: Option<&FreshSecret>) -> Box<Self> {
        let mut chain = chain.clone();
        if let Some(fresh) = fresh {
            chain.mix(fresh);
        }
        Box::new(Self { key: chain.advance(), chain })
    }
}

/// Opens with the keys of three phases: the previous, the current and the next.
pub(super) struct Opener {
    chain: KeyChain,
    previous: Option<(PhaseKey, Time)>,
    present: PhaseKey,
    /// Derived when a packet first needs it: most sessions end in their first phase.
    next: Option<Box<Candidate>>,
    /// The same with the fresh secret.
    mixed: Option<Box<Candidate>>,
    /// The peer may mix it into its next phase, or into a later one.
    fresh: Option<FreshSecret>,
    pub(super) phase: u64,
    /// When the first packet of the current phase was opened.
    pub(super) confirmed_at: Option<Time>,
    pub(super) forgeries: u64,
    /// A session has few paths, so a scan is cheap; a map's node would take more room than all of them.
    paths: Vec<(PathId, Arrivals)>,
    pub(super) closed: [RangeSet; 2],
}

impl Opener {
    pub(super) fn new(mut chain: KeyChain) -> Self {
        let present = chain.advance();
        Self {
            chain,
            previous: None,
            present,
            next: None,
            mixed: None,
            fresh: None,
            phase: 0,
            confirmed_at: None,
            forgeries: 0,
            paths: Vec::new(),
            closed: [RangeSet::new(), RangeSet::new()],
        }
    }

    /// The arrivals of an open path; `None` before its first packet.
    fn arrivals(&self, path: PathId) -> Option<&Arrivals> {
        self.paths.iter().find(|(known, _)| *known == path).map(|(_, arrivals)| arrivals)
    }

    /// The number after the highest received on a path.
    pub(super) fn next_number(&self, path: PathId) -> Fsn {
        self.arrivals(path).map_or(Fsn(0), |path| path.window.next())
    }

    /// Frees the memory for missing numbers.
    pub(super) fn rest(&mut self) {
        self.paths.iter_mut().for_each(|(_, path)| path.window.rest());
    }

    /// Bytes of the replay windows of all paths.
    pub(super) fn window_memory(&self) -> usize {
        self.paths.iter().map(|(_, path)| path.window.memory()).sum()
    }

    pub(super) fn check_number(&self, envelope: &Envelope) -> Result<(), OpenError> {
        match self.arrivals(envelope.path) {
            // The window stores one past the highest number, so the very last number is unusable.
            _ if envelope.fsn.0 == u64::MAX => Err(OpenError::Replayed),
            Some(path) if !path.window.check(envelope.fsn) => Err(OpenError::Replayed),
            None if self.is_closed(envelope.path) => Err(OpenError::PathClosed),
            _ => Ok(()),
        }
    }

    /// Drops the key of the previous phase when the retention time is over.
    pub(super) fn retire(&mut self, now: Time) {
        if self.previous.as_ref().is_some_and(|(_, retire_at)| now >= *retire_at) {
            self.previous = None;
        }
    }

    pub(super) fn choose_key(&self, envelope: &Envelope) -> Result<KeyOf, OpenError> {
        if envelope.key_phase == bit(self.phase) {
            return Ok(KeyOf::Present);
        }
        let phase_start = self.arrivals(envelope.path).and_then(|path| path.phase_start);
        match (phase_start, &self.previous) {
            (Some(start), Some(_)) if envelope.fsn < start => Ok(KeyOf::Previous),
            (Some(start), None) if envelope.fsn < start => Err(OpenError::PhaseGone),
            (None, Some(_)) => Ok(KeyOf::PreviousOrNext),
            _ => Ok(KeyOf::Next),
        }
    }

    /// Opens with the chosen key; returns the one that fitted.
    pub(super) fn open(
        &mut self,
        key: KeyOf,
        envelope: &Envelope,
        text: &mut [u8],
        tag: &[u8],
    ) -> Option<KeyOf> {
        let Envelope { path, fsn, ref aad, .. } = *envelope;
        let previous = self.previous.as_ref().map(|(key, _)| key);
        match key {
            KeyOf::Present => self.present.open(path, fsn, aad, text, tag).then_some(key),
            KeyOf::Previous => previous?.open(path, fsn, aad, text, tag).then_some(key),
            KeyOf::PreviousOrNext if previous?.try_open(path, fsn, aad, text, tag) => Some(KeyOf::Previous),
            KeyOf::Next | KeyOf::Fresh | KeyOf::PreviousOrNext => self.open_next(envelope, text, tag),
        }
    }

    /// Opens with a key of the next phase: with the fresh secret if there is one, and without it.
    fn open_next(&mut self, envelope: &Envelope, text: &mut [u8], tag: &[u8]) -> Option<KeyOf> {
        let Envelope { path, fsn, ref aad, .. } = *envelope;
        if let Some(fresh) = &self.fresh {
            let mixed = self.mixed.get_or_insert_with(|| Candidate::new(&self.chain, Some(fresh)));
            if mixed.key.try_open(path, fsn, aad, text, tag) {
                return Some(KeyOf::Fresh);
            }
        }
        let next = self.next.get_or_insert_with(|| Candidate::new(&self.chain, None));
        next.key.open(path, fsn, aad, text, tag).then_some(KeyOf::Next)
    }

    /// The fresh secret that the peer may use from now on.
    pub(super) fn expect(&mut self, fresh: FreshSecret) {
        self.fresh = Some(fresh);
        self.mixed = None;
    }

    /// True while the peer has not used the fresh secret.
    pub(super) fn is_expecting(&self) -> bool {
        self.fresh.is_some()
    }

    /// Moves to the next phase, whose key has just opened a packet. Returns the fresh secret if it is in that key.
    pub(super) fn advance(&mut self, now: Time, used: KeyOf, retire_at: Time) -> Option<FreshSecret> {
        let (next, mixed) = (self.next.take(), self.mixed.take());
        let fresh = if used == KeyOf::Fresh { self.fresh.take() } else { None };
        let opened = if fresh.is_some() { mixed } else { next };
        let Candidate { key, chain } = *opened.unwrap_or_else(|| Candidate::new(&self.chain, fresh.as_ref()));
        self.chain = chain;
        let previous = std::mem::replace(&mut self.present, key);
        self.previous = Some((previous, retire_at));
        self.phase += 1;
        self.confirmed_at = Some(now);
        for (_, path) in &mut self.paths {
            path.phase_start = None;
        }
        fresh
    }

    /// Records an authentic packet.
    pub(super) fn note(&mut self, now: Time, used: KeyOf, envelope: &Envelope) {
        let known = self.paths.iter().position(|(path, _)| *path == envelope.path);
        let index = known.unwrap_or_else(|| {
            self.paths.reserve_exact(1);
            self.paths.push((envelope.path, Arrivals::default()));
            self.paths.len() - 1
        });
        let path = &mut self.paths[index].1;
        path.window.mark(envelope.fsn);
        if used != KeyOf::Previous {
            let start = path.phase_start.map_or(envelope.fsn, |start| start.min(envelope.fsn));
            path.phase_start = Some(start);
        }
        self.confirmed_at.get_or_insert(now);
    }

    pub(super) fn is_closed(&self, path: PathId) -> bool {
        self.closed[side_index(path)].contains(u64::from(path.0 / 2))
    }

    pub(super) fn close_path(&mut self, path: PathId) {
        self.paths.retain(|(known, _)| *known != path);
        let closed = &mut self.closed[side_index(path)];
        let index = u64::from(path.0 / 2);
        closed.insert(index..index + 1);
        if closed.range_count() > MAX_CLOSED_RUNS {
            let ends = closed.iter().take(2).map(|run| run.end).max().unwrap_or(0);
            let start = closed.first().map_or(0, |run| run.start);
            closed.insert(start..ends);
        }
    }
}

fn side_index(path: PathId) -> usize {
    usize::from(path.opener() == Side::Server)
}
