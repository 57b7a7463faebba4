//! Limits the total rate of a share to all its receivers.
//!
//! A virtual schedule runs at that rate. It has a moment at which all admitted bytes are sent, and further bytes wait
//! until then. After a late timer, a sender may catch up on at most [`CATCH_UP`], which bounds bursts. Bytes enter the
//! schedule when their wait is over, so that receivers that leave while they wait cost the others nothing.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

const CATCH_UP: Duration = Duration::from_millis(50);

/// The rate limit of one share.
#[derive(Debug)]
pub(crate) struct RateLimit {
    bits_per_s: NonZeroU64,
    /// When the admitted bytes have been sent. Locked by the caller whose turn it is to wait for that.
    sent_at: Mutex<Instant>,
}

impl RateLimit {
    pub fn new(bits_per_s: NonZeroU64) -> Self {
        Self { bits_per_s, sent_at: Mutex::new(Instant::now()) }
    }

    /// Most bytes to send at once: those of [`CATCH_UP`].
    pub fn piece(&self) -> usize {
        let bytes = self.bits_per_s.get() as f64 / 8.0 * CATCH_UP.as_secs_f64();
        bytes.max(1.0) as usize
    }

    /// Waits until this many more bytes may be sent. Callers are served in order.
    pub async fn admit(&self, bytes: usize) {
        let takes = Duration::from_secs_f64(bytes as f64 * 8.0 / self.bits_per_s.get() as f64);
        let mut sent_at = self.sent_at.lock().await;
        if *sent_at > Instant::now() {
            sleep_until(*sent_at).await;
        }
        *sent_at = (*sent_at).max(Instant::now() - CATCH_UP) + takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(mbit: u64) -> RateLimit {
        RateLimit::new(NonZeroU64::new(mbit * 1_000_000).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn two_who_send_share_the_rate() {
        let (limit, start) = (limit(8), Instant::now());
        let send = async || {
            for _ in 0..100 {
                limit.admit(10_000).await;
            }
        };
        tokio::join!(send(), send());
        let took = start.elapsed();
        assert!(took > Duration::from_millis(1_930) && took < Duration::from_millis(2_010), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_leave_while_they_wait_take_nothing_of_the_rate() {
        let (limit, start) = (limit(8), Instant::now());
        limit.admit(1_000_000).await;
        for _ in 0..100 {
            let left = tokio::time::timeout(Duration::from_millis(1), limit.admit(1_000_000)).await;
            assert!(left.is_err());
        }
        limit.admit(1).await;
        let took = start.elapsed();
        assert!(took > Duration::from_millis(900) && took < Duration::from_millis(1_010), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_not_made_up_for_by_a_burst() {
        let limit = limit(8);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let start = Instant::now();
        for _ in 0..10 {
            limit.admit(limit.piece()).await;
        }
        let took = start.elapsed();
        assert!(took > Duration::from_millis(390) && took < Duration::from_millis(460), "{took:?}");
    }
}
