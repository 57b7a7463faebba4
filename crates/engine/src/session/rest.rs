//! Rest: a session that was quiet for a while gives back the memory that its last work took.
//!
//! Of the ten thousand sessions of a busy node most are idle at any moment. What they hold then is what they cost.

use anabranch_wire::{Payload, Span, Time};

use super::room::Room;
use super::{Scratch, Session};
use crate::control::ControlQueue;
use crate::path::Path;
use crate::state::State;

/// How long nothing may have come or gone.
const QUIET: Span = Span::from_secs(2);
/// Packets that take nothing worth giving back: keep-alives and their answers.
const FEW: u64 = 16;

impl<P: Payload> Session<P> {
    /// True when the session has been quiet for a while, but for keep-alives: a driver may give back memory as well.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.state == State::Established && self.rested_at.is_some_and(|at| self.packets().abs_diff(at) < FEW)
    }

    /// When the session comes to rest if nothing happens before.
    pub(super) fn rest_at(&self) -> Option<Time> {
        let works = self.state == State::Established && !self.is_at_rest();
        works.then(|| self.last_heard.max(self.last_sent) + QUIET)
    }

    pub(super) fn rest(&mut self) {
        self.rested_at = Some(self.packets());
        self.paths.iter_mut().for_each(Path::rest);
        self.streams.rest();
        if self.control.is_empty() {
            self.control = ControlQueue::default();
        }
        self.events.shrink_to_fit();
        self.rest_datagrams();
        self.candidates.shrink_to_fit();
        self.scratch = Scratch::default();
        self.room = Room::default();
    }

    /// Packets of all paths that there are, both ways: fewer once one is forgotten.
    fn packets(&self) -> u64 {
        self.paths.iter().map(|path| path.stats.packets_sent + path.stats.packets_received).sum()
    }
}
