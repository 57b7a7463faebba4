//! Adaptive coupling: windows are coupled within groups of paths that share a bottleneck, and not between groups.
//!
//! Evidence is collected from acknowledgements and judged every [`REVIEW`] by the method of
//! [`Config::detector`](crate::Config::detector). The default first looks for delays that rise and fall together,
//! one-way delays if the peer reports arrival times. If these do not decide, it looks for losses at the same times
//! [M8], then for queues that are full on only one path. Heavy losses of one path without losses of another overrule
//! all of these. A path whose group changes is reported as an event with the reason. Each end judges the data that it
//! sends itself.

mod evidence;

use anabranch_wire::{ArrivalTime, PathId, Payload, Span, Time};
use smallvec::SmallVec;

use super::flight::Flight;
use crate::bottleneck::{Groups, LossCounts, Verdict};
use crate::config::{Config, Coupling as Policy, Detector};
use crate::event::PathChange;
use crate::path::{Losses, Path, PathState};
use evidence::{Evidence, Seen};

/// How often the evidence is judged.
const REVIEW: Span = Span::from_millis(500);

/// Bytes and datagrams sent before evidence is collected. Fewer are too few to judge, and of thousands of sessions most
/// have sent almost nothing.
const WORTH: (u64, u64) = (16 << 10, 16);

/// Evidence of shared bottlenecks, and the groups made from it.
#[derive(Debug)]
struct Sharing {
    evidence: Evidence,
    groups: Groups,
    review_at: Time,
    /// When each path last entered fast retransmit. Losses of packets that left before belong to that episode.
    episodes: SmallVec<[(PathId, Time); 8]>,
}

impl Sharing {
    fn new(detector: Detector) -> Self {
        Self {
            evidence: Evidence::new(detector),
            groups: Groups::default(),
            review_at: Time::ZERO,
            episodes: SmallVec::new(),
        }
    }

    /// True when the loss of packets that left by `sent_at` begins another fast retransmit of the path.
    fn begins_episode(&mut self, now: Time, path: PathId, sent_at: Time) -> bool {
        match self.episodes.iter_mut().find(|(known, _)| *known == path) {
            Some((_, since)) if sent_at <= *since => return false,
            Some((_, since)) => *since = now,
            None => self.episodes.push((path, now)),
        }
        true
    }

    fn forget(&mut self, path: PathId) {
        self.evidence.forget(path);
        self.groups.forget(path);
        self.episodes.retain(|(known, _)| *known != path);
    }

    fn judge(&mut self, now: Time, paths: &[(PathId, u32)]) {
        for (index, (b, _)) in paths.iter().enumerate() {
            for (a, _) in &paths[..index] {
                let verdict = self.evidence.verdict(now, *a, *b);
                self.groups.note(now, (*a, *b), verdict);
            }
        }
    }
}

/// A packet that was acknowledged now.
#[derive(Clone, Copy)]
pub(super) struct Acked {
    /// Time since it left.
    pub sample: Span,
    /// How long the peer delayed the acknowledgement.
    pub ack_delay: Span,
    /// When the packet arrived, if the peer reports that.
    pub arrived: Option<ArrivalTime>,
}

/// Which paths' windows are coupled, and why.
#[derive(Debug)]
pub(super) struct Coupling {
    policy: Policy,
    /// The path rules need evidence as well.
    for_rules: bool,
    /// Present once evidence is collected.
    sharing: Option<Box<Sharing>>,
}

impl Coupling {
    pub(super) fn new(config: &Config) -> Self {
        let for_rules = config.rules.leave_out_sharers();
        Self { policy: config.coupling, for_rules, sharing: None }
    }

    /// Sets whether the path rules need evidence.
    pub(super) fn set_for_rules(&mut self, wanted: bool) {
        self.for_rules = wanted;
    }

    /// Whether two paths share a bottleneck by the evidence.
    pub(super) fn shared_bottleneck(&self, a: PathId, b: PathId) -> Verdict {
        let known = self.sharing.as_ref();
        known.map_or(Verdict::Undecided, |sharing| sharing.groups.believed(a.min(b), a.max(b)))
    }

    /// Drops the evidence of a path that is closed or has a new address.
    pub(super) fn forget(&mut self, path: PathId) {
        if let Some(sharing) = &mut self.sharing {
            sharing.forget(path);
        }
    }

    /// True when the policy or the path rules want evidence.
    pub(super) fn wants_evidence(&self) -> bool {
        self.policy == Policy::Adaptive || self.for_rules
    }

    /// The evidence, if it is worth collecting: not for a single path, not while no one asks, and not before
    /// [`WORTH`].
    fn sharing<P: Payload>(&mut self, flight: &Flight<P>) -> Option<&mut Sharing> {
        let asked = self.wants_evidence();
        let sends = flight.stats.bytes_written >= WORTH.0 || flight.stats.datagrams_sent >= WORTH.1;
        let watched = flight.paths.len() > 1 && asked && sends;
        let detector = flight.config.detector;
        watched.then(|| &mut **self.sharing.get_or_insert_with(|| Box::new(Sharing::new(detector))))
    }

    /// Handles the delay of a packet of the path at `index`.
    pub(super) fn on_delay<P: Payload>(&mut self, now: Time, flight: &Flight<P>, index: usize, acked: Acked) {
        let Some(sharing) = self.sharing(flight) else { return };
        let path = &flight.paths[index];
        let seen = Seen {
            sent_at: now - acked.sample,
            arrived: acked.arrived,
            delay: acked.sample.saturating_sub(acked.ack_delay),
            smoothed: path.rtt().smoothed(),
            shortest: path.rtt().min(),
        };
        sharing.evidence.on_delay(now, path.id(), &seen);
    }

    /// Handles losses of the path at `index` before they reduce windows: a review may uncouple some first.
    pub(super) fn on_losses<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        losses: &Losses,
    ) {
        let path = flight.paths[index].id();
        let in_slow_start = flight.cc.in_slow_start(path);
        let Some(sharing) = self.sharing(flight) else { return };
        sharing.evidence.on_lost(path, losses.packets);
        if !sharing.begins_episode(now, path, losses.sent_at) {
            return;
        }
        let is_news = sharing.evidence.on_congestion(now, path, in_slow_start);
        let parted = self.part_from_spared(now, flight, index, in_slow_start);
        if is_news || parted {
            self.review(now, flight);
        }
    }

    /// Separates a path that entered fast retransmit with heavy losses from paths without losses. Restores the windows
    /// of those that its last losses reduced.
    fn part_from_spared<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        in_slow_start: bool,
    ) -> bool {
        let loss_counts = |path: &Path| LossCounts {
            path: path.id(),
            sent: path.stats().packets_sent,
            lost: path.stats().packets_lost,
            rtt: path.rtt().smoothed(),
        };
        let loser = loss_counts(&flight.paths[index]);
        let active = |path: &&Path| path.id() != loser.path && path.is_active();
        let others: SmallVec<[LossCounts; 8]> = flight.paths.iter().filter(active).map(loss_counts).collect();
        let Some(sharing) = self.sharing(flight) else { return false };
        let spared = sharing.evidence.on_loss_counts(now, (loser, in_slow_start), &others);
        for other in &spared {
            sharing.groups.part(now, (loser.path.min(*other), loser.path.max(*other)));
        }
        // The caller's groups do not change, nor do the windows.
        if self.policy == Policy::Adaptive {
            for other in &spared {
                flight.cc.on_parted(*other, loser.path);
                if let Some(place) = flight.paths.place_of(*other) {
                    flight.paths.forget(place);
                }
            }
        }
        !spared.is_empty()
    }

    /// Judges the evidence when it is time.
    pub(super) fn review_in_time<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>) {
        if self.sharing(flight).is_some_and(|sharing| now >= sharing.review_at) {
            self.review(now, flight);
        }
    }

    /// Judges the evidence now, and puts paths into groups.
    pub(super) fn review<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>) {
        let proven = |path: &&Path| !matches!(path.state(), PathState::Validating | PathState::Closing);
        let mut paths: SmallVec<[(PathId, u32); 8]> =
            flight.paths.iter().filter(proven).map(|path| (path.id(), path.route().socket)).collect();
        let Some(sharing) = self.sharing(flight) else { return };
        sharing.review_at = now + REVIEW;
        sharing.judge(now, &paths);
        if self.policy == Policy::Fixed {
            return;
        }
        paths.retain(|(path, _)| !stands_alone(flight, *path));
        let Some(sharing) = self.sharing(flight) else { return };
        let groups = sharing.groups.of(&paths);
        for ((path, _), (group, reason)) in paths.iter().zip(groups) {
            if flight.cc.group(*path) != group {
                flight.cc.set_group(*path, group);
                flight.out.tell(*path, PathChange::Grouped { group, reason });
            }
        }
    }
}

/// Removes a held path from its group: losses of its probes are no congestion caused by others. True for such a path.
fn stands_alone<P: Payload>(flight: &mut Flight<P>, path: PathId) -> bool {
    let place = flight.paths.place_of(path);
    let is_held = place.is_some_and(|place| flight.paths[place].trouble().is_held());
    if is_held && flight.cc.group(path) != path.0 {
        flight.cc.set_group(path, path.0);
    }
    is_held
}
