//! Adaptive coupling: windows are coupled within groups of paths that share a bottleneck and free between groups.
//!
//! Evidence is collected as acknowledgements come; every [`REVIEW`] it is judged: whether delays rise and fall together, and where
//! they say nothing, whether losses come at the same moments [M8], or a queue was full on one path only. A path whose group changes is told as an event with the
//! reason. Each end judges the paths by what it sends on them itself.

use anabranch_wire::{PathId, Payload, Span, Time};
use smallvec::SmallVec;

use super::Session;
use crate::config::Coupling;
use crate::event::{Event, PathChange};
use crate::path::{Losses, Path, PathState};
use crate::shared::{
    DelaySample, DelayWaves, FastRetransmits, FullQueues, Groups, SharedCongestion, Verdict,
};

/// How often the evidence is judged.
const REVIEW: Span = Span::from_millis(500);

/// What the application has sent before anything is collected, in bytes and in datagrams: less tells nothing, and of
/// thousands of sessions most have sent next to nothing.
const WORTH: (u64, u64) = (16 << 10, 16);

/// What is known of shared bottlenecks.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    losses: FastRetransmits,
    waves: DelayWaves,
    queues: FullQueues,
    groups: Groups,
    review_at: Time,
    /// When paths entered fast retransmit last: what left before and is lost belongs to it.
    episodes: SmallVec<[(PathId, Time); 8]>,
}

impl Sharing {
    /// True when losses of packets that left until `sent_at` begin another fast retransmit of the path.
    fn begins_episode(&mut self, now: Time, path: PathId, sent_at: Time) -> bool {
        match self.episodes.iter_mut().find(|(known, _)| *known == path) {
            Some((_, since)) if sent_at <= *since => return false,
            Some((_, since)) => *since = now,
            None => self.episodes.push((path, now)),
        }
        true
    }

    pub(super) fn forget(&mut self, path: PathId) {
        self.losses.forget(path);
        self.waves.forget(path);
        self.queues.forget(path);
        self.groups.forget(path);
        self.episodes.retain(|(known, _)| *known != path);
    }

    fn judge(&mut self, now: Time, paths: &[(PathId, u32)]) {
        for (index, (b, _)) in paths.iter().enumerate() {
            for (a, _) in &paths[..index] {
                let first = |known: Verdict, next: &dyn Fn() -> Verdict| match known {
                    Verdict::Undecided => next(),
                    decided => decided,
                };
                let verdict = first(self.waves.verdict(now, *a, *b), &|| self.losses.verdict(now, *a, *b));
                let verdict = first(verdict, &|| self.queues.verdict(now, *a, *b));
                self.groups.note(now, (*a, *b), verdict);
            }
        }
    }
}

impl<P: Payload> Session<P> {
    /// What is known, where there is anything to know: not of a single path, not where nobody asks, and not before [`WORTH`].
    fn sharing(&mut self) -> Option<&mut Sharing> {
        let asked = self.coupling == Coupling::Adaptive || self.leaves_out_sharers();
        let sends = self.stats.bytes_written >= WORTH.0 || self.stats.datagrams_sent >= WORTH.1;
        let watched = self.paths.len() > 1 && asked && sends;
        watched.then(|| &mut **self.sharing.get_or_insert_default())
    }

    /// From now on the caller says which paths' windows are coupled.
    pub(super) fn groups_are_given(&mut self) {
        self.coupling = Coupling::Fixed;
        if !self.leaves_out_sharers() {
            self.sharing = None;
        }
    }

    /// What is believed of two paths, `a` below `b`.
    pub(super) fn evidence(&self, a: PathId, b: PathId) -> Verdict {
        self.sharing.as_ref().map_or(Verdict::Undecided, |sharing| sharing.groups.believed(a, b))
    }

    pub(super) fn forget_sharing(&mut self, path: PathId) {
        if let Some(sharing) = &mut self.sharing {
            sharing.forget(path);
        }
    }

    /// A packet of a path took so long, queues included.
    pub(super) fn note_delay(&mut self, now: Time, index: usize, delay: Span) {
        let path = &self.paths[index];
        let (path, smoothed, shortest) = (path.id, path.rtt().smoothed(), path.rtt().min());
        if let Some(sharing) = self.sharing() {
            sharing.losses.on_rtt(now, path, smoothed);
            sharing.queues.on_wait(now, path, delay.saturating_sub(shortest), smoothed);
            sharing.waves.on_delay(path, &DelaySample { now, delay });
        }
    }

    /// Packets of a path were found lost.
    pub(super) fn note_losses(&mut self, now: Time, index: usize, losses: &Losses) {
        let path = self.paths[index].id;
        let in_slow_start = self.cc.in_slow_start(path);
        let Some(sharing) = self.sharing() else { return };
        if !sharing.begins_episode(now, path, losses.sent_at) {
            return;
        }
        sharing.losses.on_congestion(now, path);
        if sharing.queues.on_congestion(now, path, in_slow_start) {
            // Before windows are cut for what is lost elsewhere.
            self.review_groups(now);
        }
    }

    /// Judges the evidence when it is time.
    pub(super) fn regroup(&mut self, now: Time) {
        if self.sharing().is_some_and(|sharing| now >= sharing.review_at) {
            self.review_groups(now);
        }
    }

    /// Puts paths into groups by what is known now.
    pub(super) fn review_groups(&mut self, now: Time) {
        let proven = |path: &&Path| !matches!(path.state, PathState::Validating | PathState::Closing);
        let paths: SmallVec<[(PathId, u32); 8]> =
            self.paths.iter().filter(proven).map(|path| (path.id, path.route.socket)).collect();
        let Some(sharing) = self.sharing() else { return };
        sharing.review_at = now + REVIEW;
        sharing.judge(now, &paths);
        if self.coupling == Coupling::Fixed {
            return;
        }
        let Some(sharing) = self.sharing() else { return };
        let groups = sharing.groups.of(&paths);
        for ((path, _), (group, reason)) in paths.iter().zip(groups) {
            if self.cc.group(*path) != group {
                self.cc.set_group(*path, group);
                let change = PathChange::Grouped { group, reason };
                self.events.push_back(Event::Path { path: *path, change });
            }
        }
    }
}
