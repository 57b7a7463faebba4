//! What is known of the way from one node to another, and how it is known.

use anabranch_wire::{Rate, Span};

/// Figures of a way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Round-trip time.
    pub rtt: Span,
    /// Fraction of packets lost on the way there, 0 to 1.
    pub loss: f64,
    /// What the narrowest place carries.
    pub capacity: Option<Rate>,
    /// What of that others leave.
    pub available: Option<Rate>,
    /// How wrong the round-trip time is likely to be, relatively, when it was estimated; `None` when it was measured.
    pub estimated: Option<f64>,
}

impl Figures {
    /// What was measured.
    #[must_use]
    pub fn measured(rtt: Span, loss: f64) -> Self {
        Self { rtt, loss, capacity: None, available: None, estimated: None }
    }

    /// The rate that one more may expect, as far as it is known: what is left, or else what the way carries.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.available.or(self.capacity)
    }

    /// This way and then another: delays add up, a packet has to survive both, the narrower counts. An estimate is as wrong as its worse
    /// part.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        Self {
            rtt: self.rtt + next.rtt,
            loss: 1.0 - (1.0 - self.loss) * (1.0 - next.loss),
            capacity: narrower(self.capacity, next.capacity),
            available: narrower(self.available, next.available),
            estimated: match (self.estimated, next.estimated) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            },
        }
    }
}

/// The lower one of two rates; one that is not known says nothing of the whole.
fn narrower(a: Option<Rate>, b: Option<Rate>) -> Option<Rate> {
    a.zip(b).map(|(a, b)| a.min(b))
}
