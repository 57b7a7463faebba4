//! Random impairments on the wire: each packet's fate is drawn when its sending begins.

use anabranch_wire::Span;

use crate::loss::Loss;
use crate::random::Random;
use crate::{Jitter, JitterShape, LinkConfig, Reorder};

/// The impairments of a link, and its random generator.
#[derive(Clone, Debug)]
pub(crate) struct Impairments {
    jitter: Jitter,
    pub(crate) loss: Loss,
    reorder: Reorder,
    corrupt: f64,
    duplicate: f64,
    pub(crate) random: Random,
}

/// The fate of one packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    /// Nanoseconds of jitter.
    pub(crate) offset: i64,
    /// How far it falls behind packets sent after it.
    pub(crate) held_back: Span,
    pub(crate) lost: bool,
    pub(crate) corrupt: bool,
    pub(crate) duplicate: bool,
}

impl Impairments {
    pub(crate) fn new(config: &LinkConfig) -> Self {
        Self {
            jitter: config.jitter,
            loss: Loss::new(config.loss),
            reorder: config.reorder,
            corrupt: config.corrupt,
            duplicate: config.duplicate,
            random: Random::new(config.seed),
        }
    }

    /// True when packets may overtake each other.
    pub(crate) fn overtakes(&self) -> bool {
        self.jitter.overtakes || self.reorder.probability > 0.0
    }

    /// False when every packet has the same fate.
    pub(crate) fn is_needed(&self) -> bool {
        self.jitter.shape != JitterShape::None
            || !self.loss.is_none()
            || self.corrupt > 0.0
            || self.duplicate > 0.0
            || self.reorder.probability > 0.0
    }

    /// Draws the fate of the next packet.
    pub(crate) fn draw(&mut self) -> Fate {
        let random = &mut self.random;
        let offset = match self.jitter.shape {
            JitterShape::None => 0.0,
            JitterShape::Uniform(spread) => random.signed_unit() * spread.as_nanos() as f64,
            JitterShape::Normal(deviation) => random.normal() * deviation.as_nanos() as f64,
        };
        let lost = self.loss.next_is_lost(random);
        let corrupt = random.chance(self.corrupt);
        let duplicate = random.chance(self.duplicate);
        let held = random.chance(self.reorder.probability);
        let held_back = if held { self.reorder.extra } else { Span::ZERO };
        Fate { offset: offset as i64, held_back, lost, corrupt, duplicate }
    }
}
