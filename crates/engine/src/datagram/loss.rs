//! The loss of each path, and the parity it requires.
//!
//! Loss is the share of a path's last few hundred packets that were declared lost and did not arrive after all. Each
//! packet counts [`MEMORY`] / ([`MEMORY`] + packets since), so the share follows the loss at any rate of traffic.
//!
//! The parity for a block is the least with which at most [`RESIDUAL`] of its datagrams stay lost, if packets are lost
//! independently. With k datagrams, m pieces and loss p, datagrams stay lost when j > m of the k + m packets are lost:
//! j k / (k + m) of them.

use anabranch_wire::PathId;

/// The number of packets that count.
const MEMORY: f64 = 256.0;
/// The least number of packets to compute a share from.
const MIN_PACKETS: f64 = 64.0;
/// With less loss there is no parity.
pub(super) const FLOOR: f64 = 0.0025;
/// The share of protected datagrams that may stay lost.
const RESIDUAL: f64 = 0.001;

/// The loss of each path.
#[derive(Debug, Default)]
pub(super) struct Losses {
    meters: Vec<Meter>,
}

#[derive(Debug)]
struct Meter {
    path: PathId,
    /// The totals at the last look.
    seen: (u64, u64),
    /// Packets sent and lost, with older ones counting less.
    sent: f64,
    lost: f64,
}

impl Losses {
    /// Updates a path's totals of packets sent and lost; returns the share lost.
    pub(super) fn update(&mut self, path: PathId, (sent, lost): (u64, u64)) -> f64 {
        let index = self.meters.iter().position(|meter| meter.path == path).unwrap_or_else(|| {
            self.meters.push(Meter { path, seen: (0, 0), sent: 0.0, lost: 0.0 });
            self.meters.len() - 1
        });
        let meter = &mut self.meters[index];
        let new = (sent.saturating_sub(meter.seen.0) as f64, lost as f64 - meter.seen.1 as f64);
        let keep = MEMORY / (MEMORY + new.0);
        meter.seen = (sent, lost);
        meter.sent = meter.sent * keep + new.0;
        // Losses may prove spurious.
        meter.lost = (meter.lost * keep + new.1).max(0.0);
        meter.share()
    }

    /// The share lost at the last update.
    pub(super) fn share(&self, path: PathId) -> f64 {
        self.meters.iter().find(|meter| meter.path == path).map_or(0.0, Meter::share)
    }

    /// How many paths are known.
    pub(super) fn count(&self) -> usize {
        self.meters.len()
    }

    /// Removes all paths except these.
    pub(super) fn retain(&mut self, is_there: impl Fn(PathId) -> bool) {
        self.meters.retain(|meter| is_there(meter.path));
    }
}

impl Meter {
    fn share(&self) -> f64 {
        (self.lost / self.sent.max(MIN_PACKETS)).min(1.0)
    }
}

/// The least number of pieces, up to `most`, that protects blocks of `count` datagrams well enough at this loss.
pub(super) fn parity_for(count: usize, loss: f64, most: usize) -> usize {
    if loss < FLOOR {
        return 0;
    }
    (0..most).find(|parity| residual(count + parity, *parity, loss) <= RESIDUAL).unwrap_or(most)
}

/// The average share of a block's datagrams that stay lost.
fn residual(packets: usize, parity: usize, loss: f64) -> f64 {
    if loss >= 1.0 {
        return 1.0;
    }
    // The chance that none is lost; from there, that one more is.
    let mut chance = (0..packets).fold(1.0, |chance, _| chance * (1.0 - loss));
    let mut lost = 0.0;
    for count in 1..=packets {
        chance *= (packets - count + 1) as f64 / count as f64 * loss / (1.0 - loss);
        if count > parity {
            lost += chance * count as f64 / packets as f64;
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_parity_lost_datagrams_stay_lost() {
        for loss in [0.001, 0.05, 0.5] {
            assert!((residual(16, 0, loss) - loss).abs() < 1e-12);
        }
        assert_eq!(residual(4, 1, 1.0), 1.0);
    }

    #[test]
    fn more_loss_requires_more_parity_up_to_the_most_and_none_below_the_floor() {
        let parity = [0.0, 0.002, 0.003, 0.01, 0.02, 0.05, 0.1, 0.3].map(|loss| parity_for(16, loss, 8));
        assert_eq!(parity, [0, 0, 1, 2, 2, 4, 7, 8]);
        // Parity for a single datagram is a copy of it.
        assert_eq!(parity_for(1, 0.05, 4), 2);
    }

    #[test]
    fn the_share_follows_the_loss_up_and_down() {
        let (mut losses, path) = (Losses::default(), PathId(2));
        let (mut sent, mut lost) = (0, 0);
        let mut pass = |packets: u64, every: u64| {
            let mut share = 0.0;
            for packet in 1..=packets {
                sent += 1;
                lost += u64::from(every > 0 && packet % every == 0);
                share = losses.update(path, (sent, lost));
            }
            share
        };
        assert_eq!(pass(1000, 0), 0.0);
        let risen = pass(200, 20);
        assert!((0.02..0.035).contains(&risen), "{risen}");
        let there = pass(1000, 20);
        assert!((0.045..0.055).contains(&there), "{there}");
        let fallen = pass(1000, 0);
        assert!(fallen < FLOOR, "{fallen}");
    }

    #[test]
    fn spurious_losses_are_undone() {
        let (mut losses, path) = (Losses::default(), PathId(0));
        assert!(losses.update(path, (100, 10)) > 0.09);
        assert!(losses.update(path, (101, 0)) < 0.001);
    }
}
