//! A sensor's reports to controllers: changed links, by version.

use anabranch_secure::PublicKey;
use anabranch_wire::{Span, Time};

use super::{Measured, Sensor};
use crate::sense::message::{Changes, LinkTold};

/// Longest text of a link in a report, which travels in a heartbeat.
const CHANGE_COST: u64 = 200;
/// Shortest time between two reports of a noticeably changed link; one that goes down or comes up is reported at
/// once.
const TOLD_EVERY: Span = Span::from_secs(5);

impl Sensor {
    /// The changes for a controller with version `known` (0 for none), as far as the budget allows.
    pub fn poll_changes(&mut self, now: Time, known: u64) -> Option<Changes> {
        self.note_changes(now);
        let since = if known < self.complete_from { 0 } else { known };
        let mut links: Vec<(u64, &LinkTold)> = self
            .links
            .values()
            .filter_map(|known| known.told.as_ref().map(|(version, _, told)| (*version, told)))
            .filter(|(version, _)| *version > since)
            .collect();
        links.sort_by_key(|(version, _)| *version);
        let (mut told, mut version) = (Vec::new(), self.version);
        for (at, link) in links {
            if !self.changes.take(now, CHANGE_COST) {
                version = at - 1;
                break;
            }
            told.push(link.clone());
        }
        let is_gone = |at: u64| since != 0 && at > since && at <= version;
        let gone: Vec<PublicKey> =
            self.gone.iter().filter(|(at, _)| is_gone(*at)).map(|(_, node)| *node).collect();
        if version <= since && (known != 0 || told.is_empty()) {
            return None;
        }
        self.stats.told += told.len() as u64;
        self.stats.bytes += told.len() as u64 * CHANGE_COST;
        Some(Changes { since, version, coordinate: self.coordinate.into(), links: told, gone })
    }

    /// Assigns a new version to each link that differs noticeably from its last report.
    fn note_changes(&mut self, now: Time) {
        for (node, Measured { link, told, .. }) in &mut self.links {
            let Some(new) = link.told(now, *node) else { continue };
            let differs = told.as_ref().is_none_or(|(_, at, old)| {
                old.up != new.up || now.since(*at) >= TOLD_EVERY && is_noticeable(old, &new)
            });
            if differs {
                self.version += 1;
                *told = Some((self.version, now, new));
            }
        }
        if self.coordinate.differs(&self.told_coordinate.1) {
            self.version += 1;
            self.told_coordinate = (self.version, self.coordinate);
        }
    }
}

/// Noticeable changes: a tenth and 2 ms of the round-trip time, 1 % of loss, 5 ms of queueing, a quarter of a rate.
fn is_noticeable(old: &LinkTold, new: &LinkTold) -> bool {
    let moved = |old: u32, new: u32, least: u32, part: u32| old.abs_diff(new) > least.max(old / part);
    let loss = (0..2).any(|way| old.loss[way].abs_diff(new.loss[way]) >= 100);
    let queue = (0..2).any(|way| moved(old.queue[way], new.queue[way], 5_000, 2));
    let rate = moved(old.available, new.available, 100, 4) || moved(old.capacity, new.capacity, 100, 4);
    moved(old.rtt[0], new.rtt[0], 2_000, 10) || loss || queue || rate
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> LinkTold {
        let to = PublicKey::from_bytes([1; 32]);
        let (rtt, queue) = ([40_000, 1_000], [2_000; 2]);
        LinkTold { to, up: true, rtt, loss: [100; 2], queue, available: 4_000, capacity: 10_000 }
    }

    /// Whether a change of a link is worth a report.
    fn is_told(change: impl Fn(&mut LinkTold)) -> bool {
        let mut new = link();
        change(&mut new);
        is_noticeable(&link(), &new)
    }

    #[test]
    fn rates_are_reported_when_they_differ_by_a_quarter_and_a_tenth_of_a_megabit() {
        assert!(!is_told(|_| {}));
        for way in [-1_i32, 1] {
            assert!(!is_told(|link| link.capacity = link.capacity.saturating_add_signed(way * 2_500)));
            assert!(is_told(|link| link.capacity = link.capacity.saturating_add_signed(way * 2_501)));
            assert!(!is_told(|link| link.available = link.available.saturating_add_signed(way * 1_000)));
            assert!(is_told(|link| link.available = link.available.saturating_add_signed(way * 1_001)));
        }
        // A value that became known or unknown.
        assert!(is_told(|link| link.available = 0) && is_told(|link| link.capacity = 0));
        let unknown = LinkTold { available: 0, capacity: 0, ..link() };
        assert!(is_noticeable(&unknown, &LinkTold { capacity: 101, ..unknown.clone() }));
        assert!(!is_noticeable(&unknown, &LinkTold { capacity: 100, ..unknown.clone() }));
    }

    #[test]
    fn delay_loss_and_queues_are_reported_when_they_differ_by_the_stated_amounts() {
        assert!(!is_told(|link| link.rtt[0] += 4_000) && is_told(|link| link.rtt[0] += 4_001));
        for way in 0..2 {
            assert!(!is_told(|link| link.loss[way] += 99) && is_told(|link| link.loss[way] += 100));
            assert!(!is_told(|link| link.queue[way] += 5_000) && is_told(|link| link.queue[way] += 5_001));
        }
    }
}
