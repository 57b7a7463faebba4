//! Figures of the path between two nodes, measured or estimated.

use anabranch_wire::{Rate, Span};

/// Figures of a path, in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Round-trip time.
    pub rtt: Span,
    /// Fraction of packets lost in this direction, 0 to 1.
    pub loss: f64,
    /// Capacity of the narrowest link.
    pub capacity: Option<Rate>,
    /// The part of the capacity that is unused.
    pub available: Option<Rate>,
    /// Likely relative error of an estimated round-trip time; `None` for a measured one.
    pub estimated: Option<f64>,
}

impl Figures {
    pub fn measured(rtt: Span, loss: f64) -> Self {
        Self { rtt, loss, capacity: None, available: None, estimated: None }
    }

    /// The same with a capacity and its unused part, which is never more than the whole.
    #[must_use]
    pub fn with_rates(self, capacity: Option<Rate>, available: Option<Rate>) -> Self {
        let available = available.map(|available| capacity.map_or(available, |whole| available.min(whole)));
        Self { capacity, available, ..self }
    }

    /// The rate that a further flow can expect, if known: the unused part, or else the capacity.
    pub fn rate(&self) -> Option<Rate> {
        self.available.or(self.capacity)
    }

    /// Two paths in series: delays add up, a packet must survive both, the narrower one limits the rate, and the larger
    /// error counts.
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

/// The lower of two rates, if both are known.
fn narrower(a: Option<Rate>, b: Option<Rate>) -> Option<Rate> {
    a.zip(b).map(|(a, b)| a.min(b))
}
