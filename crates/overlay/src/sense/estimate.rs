//! What is known of the way from one node to another, and how it is known.

use anabranch_wire::{Rate, Span};

/// Figures of a way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Round-trip time.
    pub rtt: Span,
    /// Fraction of packets lost on the way there, 0 to 1.
    pub loss: f64,
    /// Rate that is known to be available.
    pub carried: Option<Rate>,
    /// How wrong the round-trip time is likely to be, relatively, when it was estimated; `None` when it was measured.
    pub estimated: Option<f64>,
}

impl Figures {
    /// What was measured.
    #[must_use]
    pub fn measured(rtt: Span, loss: f64) -> Self {
        Self { rtt, loss, carried: None, estimated: None }
    }

    /// This way and then another: delays add up, a packet has to survive both, the narrower counts. An estimate is as wrong as its worse
    /// part.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        Self {
            rtt: self.rtt + next.rtt,
            loss: 1.0 - (1.0 - self.loss) * (1.0 - next.loss),
            carried: self.carried.zip(next.carried).map(|(a, b)| a.min(b)),
            estimated: match (self.estimated, next.estimated) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            },
        }
    }
}
