//! Random loss on the wire.
//!
//! Gilbert–Elliott is a chain of two states, good and bad, each with its own loss probability. The chain takes one step a
//! packet, before the packet's fate is drawn. Losses come in bursts whose mean length is the mean stay in the bad state,
//! `1 / to_good` packets.

use crate::random::Random;

/// How packets are lost at random, in addition to full queues and outages.
///
/// Probabilities below zero (and NaN) count as zero, above one as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LossModel {
    /// Nothing is lost.
    #[default]
    None,
    /// Each packet is lost with this probability, independently.
    Bernoulli(f64),
    /// Losses come in bursts: the Gilbert–Elliott chain, one step a packet.
    GilbertElliott {
        /// Probability of going from good to bad.
        to_bad: f64,
        /// Probability of going from bad to good.
        to_good: f64,
        /// Loss probability in the good state.
        loss_good: f64,
        /// Loss probability in the bad state.
        loss_bad: f64,
    },
}

impl LossModel {
    /// A chain that loses the share `loss` of all packets, in bursts of `burst` packets on average:
    /// nothing is lost in the good state and everything in the bad one.
    pub fn bursts(loss: f64, burst: f64) -> Self {
        let loss = loss.clamp(0.0, 1.0);
        let to_good = 1.0 / burst.max(1.0);
        let to_bad = if loss >= 1.0 { 1.0 } else { (to_good * loss / (1.0 - loss)).min(1.0) };
        let to_good = if loss >= 1.0 { 0.0 } else { to_good };
        Self::GilbertElliott { to_bad, to_good, loss_good: 0.0, loss_bad: 1.0 }
    }
}

/// The loss model and the state of its chain, which starts good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    model: LossModel,
    bad: bool,
}

impl Loss {
    pub(crate) fn new(model: LossModel) -> Self {
        Self { model, bad: false }
    }

    /// True when nothing is ever lost.
    pub(crate) fn is_none(&self) -> bool {
        self.model == LossModel::None
    }

    /// Decides the fate of the next packet.
    pub(crate) fn next_is_lost(&mut self, random: &mut Random) -> bool {
        match self.model {
            LossModel::None => false,
            LossModel::Bernoulli(probability) => random.chance(probability),
            LossModel::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                let flips = random.chance(if self.bad { to_good } else { to_bad });
                self.bad ^= flips;
                random.chance(if self.bad { loss_bad } else { loss_good })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost or not, for `count` packets of a seed.
    fn fates(model: LossModel, seed: u64, count: usize) -> Vec<bool> {
        let (mut loss, mut random) = (Loss::new(model), Random::new(seed));
        (0..count).map(|_| loss.next_is_lost(&mut random)).collect()
    }

    fn share_lost(fates: &[bool]) -> f64 {
        fates.iter().filter(|lost| **lost).count() as f64 / fates.len() as f64
    }

    #[test]
    fn bernoulli_loses_the_configured_share() {
        for probability in [0.01, 0.04, 0.5] {
            let share = share_lost(&fates(LossModel::Bernoulli(probability), 7, 100_000));
            let deviation = (probability * (1.0 - probability) / 1e5).sqrt();
            assert!((share - probability).abs() < 4.0 * deviation, "{share} against {probability}");
        }
    }

    #[test]
    fn bursts_have_the_configured_mean_length_and_share() {
        let fates = fates(LossModel::bursts(0.02, 5.0), 3, 400_000);
        let lost = fates.iter().filter(|lost| **lost).count() as f64;
        let bursts = fates.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        assert!((lost / bursts - 5.0).abs() < 0.3, "mean burst {}", lost / bursts);
        assert!((share_lost(&fates) - 0.02).abs() < 0.002, "share {}", share_lost(&fates));
    }

    #[test]
    fn probabilities_outside_their_range_count_as_the_nearer_bound() {
        assert!(fates(LossModel::Bernoulli(1.5), 1, 100).iter().all(|lost| *lost));
        assert!(fates(LossModel::Bernoulli(-1.0), 1, 100).iter().all(|lost| !lost));
        assert!(fates(LossModel::Bernoulli(f64::NAN), 1, 100).iter().all(|lost| !lost));
        assert!(fates(LossModel::bursts(1.0, 3.0), 1, 100).iter().all(|lost| *lost));
        assert!(fates(LossModel::bursts(0.0, 3.0), 1, 100).iter().all(|lost| !lost));
    }
}
