//! Lets other tasks run before a task with more work continues.
//!
//! `tokio::task::yield_now` is not suitable: it puts a task aside until its worker is idle or has run about sixty other
//! tasks, and no other worker can take it. If each of those runs for a millisecond, a socket overflows in that time.

use std::future::poll_fn;
use std::task::Poll;

/// Moves the task to the end of the worker's queue, from where any idle worker may take it.
pub(crate) async fn give_way() {
    let mut gave_way = false;
    poll_fn(|cx| {
        if gave_way {
            return Poll::Ready(());
        }
        gave_way = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn beside_a_task_that_never_rests_every_second_turn_is_ours() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let turns = Arc::new(AtomicU64::new(0));
        let counted = turns.clone();
        let restless = runtime.spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                give_way().await;
            }
        });
        let others = runtime.block_on(runtime.spawn(async move {
            let before = turns.load(Ordering::Relaxed);
            for _ in 0..100 {
                give_way().await;
            }
            turns.load(Ordering::Relaxed) - before
        }));
        restless.abort();
        assert!(others.unwrap() <= 110);
    }
}
