//! Decides when to log that connections cannot be accepted, usually for lack of descriptors: once at the beginning, once at the end.
//!
//! During a shortage each connection that ends makes room for another, so one that is accepted does not end it.

use std::time::Duration;

use tokio::time::Instant;

/// It is over when no failure came for so long.
const CALM: Duration = Duration::from_secs(10);

/// Whether programs wait for connections.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The last failure.
    last: Option<Instant>,
}

impl Waiting {
    /// Notes that no connection could be accepted. Returns whether that is the first time.
    pub(super) fn on_failure(&mut self, now: Instant) -> bool {
        self.last.replace(now).is_none()
    }

    /// Notes that one was accepted. Returns whether programs no longer wait.
    pub(super) fn on_accepted(&mut self, now: Instant) -> bool {
        let is_over = self.last.is_some_and(|last| now.duration_since(last) > CALM);
        if is_over {
            self.last = None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_in_which_some_are_accepted_begins_and_ends_once() {
        let (mut waiting, begin) = (Waiting::default(), Instant::now());
        assert!(!waiting.on_accepted(begin));
        let told: Vec<bool> = (0..100)
            .map(|second| {
                let now = begin + Duration::from_secs(second);
                let is_first = waiting.on_failure(now);
                assert!(!waiting.on_accepted(now));
                is_first
            })
            .collect();
        assert!(told[0] && !told[1..].contains(&true));
        let later = begin + Duration::from_secs(120);
        assert!(waiting.on_accepted(later) && !waiting.on_accepted(later));
        assert!(waiting.on_failure(later));
    }
}
