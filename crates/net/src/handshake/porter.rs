//! Computes the handshakes that wait at the [door](crate::door), and rests in between.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::open;
use crate::door::Door;
use crate::endpoint::inner::EndpointInner;
use crate::fault::contained;

/// Handshakes computed before the task pauses.
const AT_ONCE: usize = 8;
/// After that, or when none waits, the task pauses this many times as long as it worked.
const REST: u32 = 3;

/// Computes waiting handshakes until the endpoint is gone.
pub(crate) async fn attend(endpoint: Weak<EndpointInner>, door: Arc<Door>) {
    loop {
        door.knocked().await;
        loop {
            let begin = Instant::now();
            let Some(endpoint) = endpoint.upgrade() else { return };
            let mut left = AT_ONCE;
            while left > 0
                && let Some(knock) = door.pop()
            {
                let id = knock.id;
                if contained(|| open(&endpoint, knock)).is_none() {
                    endpoint.sessions.inits().remove(&id);
                }
                left -= 1;
                // Let receivers on this thread run.
                tokio::task::yield_now().await;
            }
            drop(endpoint);
            // Also when none is left: those that come one by one must not get more than those that come at once.
            tokio::time::sleep(begin.elapsed() * REST).await;
            if left > 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anabranch_engine::Config;
    use anabranch_secure::{NodeKey, PublicKey, ShareId};
    use anabranch_wire::Span;

    use super::*;
    use crate::authorize::Verdict;
    use crate::door::Knock;
    use crate::door::tests::knock;
    use crate::endpoint::{Addresses, Endpoint, EndpointConfig, Target};

    fn forged(number: u8) -> Knock {
        let mut knock = knock("192.0.2.1", number);
        knock.body[1..100].fill(number + 3);
        knock
    }

    /// The fastest of several runs, since the machine may be busy.
    fn cost_of_one(endpoint: &Arc<EndpointInner>) -> Duration {
        let cost = |number| {
            let begin = Instant::now();
            open(endpoint, forged(number));
            begin.elapsed()
        };
        (0..20).map(cost).min().expect("there are some")
    }

    /// The clock stands still during work, so that only pauses are counted.
    #[tokio::test(start_paused = true)]
    async fn while_many_wait_it_rests_three_times_as_long_as_it_works() {
        let endpoint =
            Endpoint::bind(EndpointConfig::new(NodeKey::from_random([1; 32]))).await.expect("it binds");
        let endpoint = &endpoint.inner;
        let cost = cost_of_one(endpoint);
        let begin = tokio::time::Instant::now();
        let batches = 8;
        for number in 0..batches * AT_ONCE {
            assert!(endpoint.door.knock(forged(number as u8)).is_none());
        }
        while endpoint.door.len() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A clock that counts milliseconds rounds them up.
        let rest = (cost * AT_ONCE as u32 * REST * 9 / 10).max(Duration::from_millis(1));
        let [least, rested] = [rest * (batches as u32 - 1), begin.elapsed()];
        assert!(rested >= least, "{rested:?}, where {least:?} would be right");
        assert_eq!(endpoint.counters.unauthentic.load(std::sync::atomic::Ordering::Relaxed), 84);
    }

    /// As above, for handshakes that come one after the other, so that none ever waits for a whole batch.
    #[tokio::test(start_paused = true)]
    async fn while_they_come_one_by_one_it_rests_as_long() {
        let endpoint =
            Endpoint::bind(EndpointConfig::new(NodeKey::from_random([1; 32]))).await.expect("it binds");
        let endpoint = &endpoint.inner;
        let cost = cost_of_one(endpoint);
        let begin = tokio::time::Instant::now();
        for number in 0..64 {
            assert!(endpoint.door.knock(forged(number)).is_none());
            // A clock that counts milliseconds must not be moved by this test.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            while endpoint.door.len() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let [least, rested] = [cost * 63 * REST * 9 / 10, begin.elapsed()];
        assert!(rested >= least, "{rested:?}, where {least:?} would be right");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_fault_while_one_is_let_in_keeps_nobody_else_out_and_leaves_nothing_behind() {
        let here = || Addresses::Exactly(vec![[127, 0, 0, 1].into()]);
        let unlucky = NodeKey::from_random([2; 32]).public();
        let authorize = move |peer: &PublicKey, _: Option<ShareId>| {
            assert!(*peer != unlucky, "on purpose, while one is let in");
            Verdict::Accept { secret: None }
        };
        let server =
            EndpointConfig::new(NodeKey::from_random([1; 32])).addresses(here()).authorize(authorize);
        let server = Endpoint::bind(server).await.expect("it binds");
        let target = Target::new(server.node(), server.local_addresses());
        let client = async |seed| {
            let config = EndpointConfig::new(NodeKey::from_random([seed; 32])).addresses(here());
            Endpoint::bind(config).await.expect("it binds")
        };
        let config = Config { connect_timeout: Span::from_millis(500), ..Config::default() };
        assert!(client(2).await.connect(&target, config).await.is_err(), "nobody answers");
        // On a busy machine the client may give up before the server has run.
        let over = async {
            while server.stats().inits == 0 || !server.inner.sessions.inits().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), over).await.expect("something was left behind");
        assert!(client(3).await.connect(&target, Config::default()).await.is_ok());
    }
}
