//! Candidates and their score.

use anabranch_wire::{Rate, Span};

use super::topology::LinkId;

/// Loss below which only delay distinguishes paths. A measurement of some thousand packets cannot detect less, and
/// RON's formula has a pole at 0.
pub const MIN_LOSS: f64 = 1e-4;

/// Bytes of a segment in a score, which turn RON's segments a second into a rate.
pub const SCORE_SEGMENT: u64 = 1_400;

/// RON's throughput score, √1.5 / (rtt·√p), in segments a second (mTCP §3.3 [M9]). Loss is taken as at least
/// [`MIN_LOSS`], rtt as at least 0.1 ms.
pub fn ron_score(rtt: Span, loss: f64) -> f64 {
    let loss = if loss.is_nan() { 1.0 } else { loss.clamp(MIN_LOSS, 1.0) };
    1.5f64.sqrt() / (rtt.as_secs_f64().max(1e-4) * loss.sqrt())
}

/// A path that could be used, with its measured or computed figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name for people: `direct`, `relay fra-1`, …
    pub name: String,
    /// Round-trip time.
    pub rtt: Span,
    /// Fraction of packets lost, 0 to 1.
    pub loss: f64,
    /// Its capacity, if known.
    pub capacity: Option<Rate>,
    /// The links that it crosses, each with its delay.
    pub links: Vec<(LinkId, Span)>,
    /// Number of its hops that did not answer; sharing there is unknown.
    pub silent_hops: u32,
}

impl Candidate {
    /// The rate that RON's score predicts, at most the capacity if that is known (SAFIRE §II.B [S2]).
    pub fn score(&self) -> Rate {
        let foretold = Rate::from_bits((ron_score(self.rtt, self.loss) * (SCORE_SEGMENT * 8) as f64) as u64);
        self.capacity.map_or(foretold, |capacity| foretold.min(capacity))
    }

    /// Sum of its links' delays.
    pub fn latency(&self) -> Span {
        self.links.iter().fold(Span::ZERO, |sum, (_, latency)| sum + *latency)
    }
}
