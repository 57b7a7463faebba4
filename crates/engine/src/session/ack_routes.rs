//! Which path acknowledgements travel on (mTCP §3.3 [M7, M13]).
//!
//! With [`AckPolicy::Primary`] the sender of data names one path, in an ACK_PATH frame, and the receiver
//! sends all acknowledgements there.

use anabranch_wire::{AckPath, Frame, PathId, Payload, Time};

use super::outbox::Outbox;
use crate::config::{AckPolicy, Config};
use crate::control::Control;
use crate::path::{Path, PathState, Paths};

/// The paths that the ends want acknowledgements on, each with the sequence number of the wish.
#[derive(Debug, Default)]
pub(super) struct AckRoutes {
    /// The path that the peer wants.
    wanted: (Option<PathId>, u64),
    /// The path that this end wants.
    primary: (Option<PathId>, u64),
}

impl AckRoutes {
    pub(super) fn primary(&self) -> Option<PathId> {
        self.primary.0
    }

    /// Stores the peer's wish, unless a newer one arrived before.
    pub(super) fn hear(&mut self, wish: AckPath) {
        if wish.sequence > self.wanted.1 {
            self.wanted = (wish.path, wish.sequence);
        }
    }

    /// Names the best path that works as the one for acknowledgements.
    pub(super) fn elect_primary(&mut self, paths: &Paths, out: &mut Outbox) {
        let best = paths.best().map(|index| paths[index].id());
        if best.is_some() && best != self.primary.0 {
            self.primary = (best, self.primary.1 + 1);
            out.want(Control::AckPath);
        }
    }

    /// The frame that names the primary path.
    pub(super) fn frame<P: Payload>(&self) -> Frame<P> {
        Frame::AckPath(AckPath { sequence: self.primary.1, path: self.primary.0 })
    }

    /// True when each path carries the acknowledgements of its own packets, while it works.
    #[inline]
    pub(super) fn are_on_own_paths(&self, config: &Config) -> bool {
        config.acks.policy == AckPolicy::SamePath && self.wanted.0.is_none()
    }

    /// The path that acknowledgements of the packets of the path at `index` travel on.
    pub(super) fn carrier(&self, now: Time, index: usize, paths: &Paths, config: &Config) -> usize {
        let path = &paths[index];
        let named = match config.acks.policy {
            _ if self.wanted.0.is_some() => self.wanted.0,
            AckPolicy::SamePath => None,
            AckPolicy::Primary => Some(PathId::FIRST),
            AckPolicy::Fastest => paths.best().map(|best| paths[best].id()),
        };
        let deserted = |path: &Path| is_deserted(now, path, paths, config);
        if let Some(carrier) = named.and_then(|named| paths.place_of(named))
            && paths[carrier].is_reachable()
            && !paths[carrier].is_closing()
            && !deserted(&paths[carrier])
        {
            return carrier;
        }
        if path.is_reachable() && matches!(path.state(), PathState::Active | PathState::Validating) {
            return index;
        }
        // Data arrived since the path fell silent: it is dead in this direction, or its answers wait behind
        // that data. The peer would take a move to a slower path for silence, so acknowledgements use both in
        // turn.
        let late =
            path.state() == PathState::Suspect && path.trouble().is_behind_data(path.stats().data_received);
        if late && path.is_reachable() && path.stats().acks_sent.is_multiple_of(2) {
            return index;
        }
        // A suspect path on which packets arrive is better than one without packets.
        paths.best().filter(|best| !path.is_reachable() || !deserted(&paths[*best])).unwrap_or(index)
    }
}

/// True when nothing arrives on a path any more while others bring packets: the receiver then uses another
/// path for acknowledgements [M13].
fn is_deserted(now: Time, path: &Path, paths: &Paths, config: &Config) -> bool {
    let patience = config.failure.rto.min;
    let silent = path.receipt().silence(now).is_none_or(|silence| silence > patience);
    let others = || paths.iter().filter_map(|path| path.receipt().silence(now));
    silent && others().any(|silence| silence < patience)
}
