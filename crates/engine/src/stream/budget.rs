//! One memory budget for all sessions of an endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that all receive windows of an endpoint together may promise.
///
/// Windows reserve what they promise before they promise it, and give it back when the session ends, so
/// that ten thousand hostile sessions cannot make the endpoint hold more than the budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    left: Arc<AtomicU64>,
}

impl MemoryBudget {
    /// A budget of `bytes`.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(bytes)) }
    }

    /// Bytes not reserved.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// What one session has reserved; given back on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: MemoryBudget,
    held: u64,
}

impl Reservation {
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        Self { budget, held: 0 }
    }

    /// Reserves up to `wanted` bytes more; returns how many it got.
    pub(crate) fn reserve(&mut self, wanted: u64) -> u64 {
        let mut granted = 0;
        // The closure always gives a value, so the update cannot fail.
        let _ = self.budget.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            granted = left.min(wanted);
            Some(left - granted)
        });
        self.held += granted;
        granted
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_the_budget_and_give_it_back() {
        let budget = MemoryBudget::new(100);
        let mut first = Reservation::new(budget.clone());
        let mut second = Reservation::new(budget.clone());
        assert_eq!(first.reserve(70), 70);
        assert_eq!(second.reserve(70), 30);
        drop(first);
        assert_eq!(budget.left(), 70);
    }
}
