//! A few places at the disk, which a share's receivers use in turn.
//!
//! A receiver with open requests waits for a place. It works on a blocking thread until it has filled a chunk or read
//! [`A_TURN`](super::source::A_TURN), and queues again. The queue is first-in, first-out, so all receivers advance
//! alike. A receiver that is idle or does not read its data holds no place and no thread.
//!
//! Comparisons with the receivers' files make the sender read without sending. They need an additional place, of which
//! there is only one.
//!
//! Work on a blocking thread goes on when a receiver leaves, so it holds the place itself: receivers that ask and leave do
//! not fill all threads.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most threads that read at once.
const MOST: usize = 8;

#[derive(Debug)]
pub(crate) struct Turns {
    places: Arc<Semaphore>,
    checks: Arc<Semaphore>,
}

/// A place at the disk, given back when dropped.
pub(crate) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
    _check: Option<OwnedSemaphorePermit>,
}

impl Default for Turns {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let places = processors.clamp(2, MOST);
        Self { places: Arc::new(Semaphore::new(places)), checks: Arc::new(Semaphore::new(1)) }
    }
}

impl Turns {
    /// Waits for a place, and for the place of comparisons if this is one.
    pub async fn next(&self, is_check: bool) -> Turn {
        // Neither semaphore is ever closed.
        let check = if is_check { self.checks.clone().acquire_owned().await.ok() } else { None };
        Turn { _place: self.places.clone().acquire_owned().await.ok(), _check: check }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::message::Request;
    use crate::report::Report;
    use crate::send::source::Source;
    use crate::{Progress, Share};

    #[tokio::test(start_paused = true)]
    async fn checks_leave_a_place_to_downloads() {
        let turns = Turns::default();
        let _check = turns.next(true).await;
        let is_served = async |is_check| timeout(Duration::from_secs(1), turns.next(is_check)).await.is_ok();
        assert!(!is_served(true).await && is_served(false).await);
    }

    #[test]
    fn a_check_waits_for_its_place_whatever_was_asked_before_it() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a"), "content").unwrap();
        let share = Share::from_paths(&[place.path().join("a")]).unwrap();
        let mut source = Source::new(share.list().unwrap(), Progress::new(), Report::default());
        let mut queue = VecDeque::from([Request::Wait, Request::Hash { file: 0 }]);
        assert!(!source.is_checking(&queue));
        let before = source.turn(&mut queue, share.memory().consumer().buffer());
        assert!(before.buffer.bytes.is_empty() && source.is_checking(&queue));
        let check = source.turn(&mut queue, share.memory().consumer().buffer());
        assert!(!check.buffer.bytes.is_empty() && queue.is_empty());
    }
}
