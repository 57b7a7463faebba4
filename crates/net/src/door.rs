//! A queue of handshakes to compute, so that receivers are not held up.
//!
//! An INIT from a proven address costs several Diffie-Hellman exchanges: some hundred microseconds in which the packets
//! of sessions would wait in the socket's buffer. Receivers queue it here. One task computes a few at a time. While
//! more are waiting, it pauses three times as long as they took, so strangers get at most a quarter of one processor.
//!
//! At most [`MOST`] wait. Beyond that, the source with the most waiting loses one, so a flood does not shut out others.
//! A client whose handshake was dropped repeats its request.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use anabranch_engine::Arrival;
use anabranch_secure::InitId;
use anabranch_wire::source;
use tokio::sync::Notify;

use crate::by_source::BySource;
use crate::endpoint::inner::EndpointInner;
use crate::fault::contained;
use crate::handshake;

/// Most handshakes that wait.
const MOST: usize = 256;
/// Handshakes computed before the task pauses.
const AT_ONCE: usize = 8;
/// The task pauses this many times as long as it works.
const REST: u32 = 3;

/// An INIT from a proven address.
pub(crate) struct Knock {
    pub(crate) id: InitId,
    pub(crate) arrival: Arrival,
    pub(crate) body: Box<[u8]>,
}

#[derive(Default)]
pub(crate) struct Door {
    waiting: Mutex<BySource<Knock>>,
    wake: Notify,
}

impl Door {
    /// Queues a handshake. Returns the one without room, which may be the same.
    pub(crate) fn knock(&self, knock: Knock) -> Option<Knock> {
        let mut waiting = self.waiting();
        let own = source(knock.arrival.route.remote.ip());
        let dropped = if waiting.len() < MOST {
            None
        } else if let Some(theirs) = to_give_up(&waiting, own) {
            waiting.remove(theirs)
        } else {
            return Some(knock);
        };
        waiting.push(own, knock);
        drop(waiting);
        self.wake.notify_one();
        dropped
    }

    fn waiting(&self) -> MutexGuard<'_, BySource<Knock>> {
        self.waiting.lock().expect("no panic while held")
    }
}

/// The newest of the source with the most; `None` if no source has more than `own` would.
fn to_give_up(waiting: &BySource<Knock>, own: IpAddr) -> Option<u64> {
    let (most, theirs) = waiting.most()?;
    let [_, last] = waiting.ends(&theirs).filter(|_| most > waiting.count(&own) + 1)?;
    Some(last)
}

/// Computes waiting handshakes until the endpoint is gone.
pub(crate) async fn attend(endpoint: Weak<EndpointInner>, door: Arc<Door>) {
    loop {
        door.wake.notified().await;
        loop {
            let begin = Instant::now();
            let Some(endpoint) = endpoint.upgrade() else { return };
            let mut left = AT_ONCE;
            while left > 0
                && let Some(knock) = { door.waiting().pop_first() }
            {
                let id = knock.id;
                if contained(|| handshake::open(&endpoint, knock)).is_none() {
                    endpoint.inits.lock().expect("no panic while held").remove(&id);
                }
                left -= 1;
                // Let receivers on this thread run.
                tokio::task::yield_now().await;
            }
            drop(endpoint);
            if left > 0 {
                break;
            }
            tokio::time::sleep(begin.elapsed() * REST).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anabranch_engine::{Config, Ecn, Route};
    use anabranch_secure::{INIT_BODY_LEN, NodeKey, PublicKey, ShareId};
    use anabranch_wire::Span;

    use super::*;
    use crate::authorize::Verdict;
    use crate::endpoint::{Addresses, Endpoint, EndpointConfig, Target};

    fn knock(address: &str, number: u8) -> Knock {
        let route =
            Route { socket: 0, remote: format!("{address}:{}", 1_000 + u16::from(number)).parse().unwrap() };
        let mut body = vec![0; INIT_BODY_LEN];
        (body[0], body[100]) = (1, number);
        let id = InitId::of(&body).expect("it has the shape");
        Knock { id, arrival: Arrival { route, size: 1_216, ecn: Ecn::NotEct }, body: body.into() }
    }

    fn waiting_of(door: &Door, address: &str) -> usize {
        door.waiting().count(&address.parse().expect("an address"))
    }

    #[test]
    fn who_floods_makes_room_for_others_and_is_dropped_itself() {
        let door = Door::default();
        for number in 0..=255 {
            assert!(door.knock(knock("192.0.2.1", number)).is_none());
        }
        let dropped = door.knock(knock("192.0.2.1", 0)).expect("there is no room");
        assert_eq!(dropped.arrival.route.remote.ip().to_string(), "192.0.2.1");
        for others in 0..100 {
            let dropped = door.knock(knock("192.0.2.2", others)).expect("one has to go");
            assert_eq!(dropped.arrival.route.remote.ip().to_string(), "192.0.2.1", "{others}");
        }
        assert_eq!((waiting_of(&door, "192.0.2.1"), waiting_of(&door, "192.0.2.2")), (156, 100));
        for others in 0..100 {
            door.knock(knock("192.0.2.2", others));
        }
        assert_eq!(waiting_of(&door, "192.0.2.1"), 128, "two who flood share");
    }

    /// The clock stands still during work, so that only pauses are counted.
    #[tokio::test(start_paused = true)]
    async fn while_many_wait_it_rests_three_times_as_long_as_it_works() {
        let endpoint =
            Endpoint::bind(EndpointConfig::new(NodeKey::from_random([1; 32]))).await.expect("it binds");
        let endpoint = &endpoint.inner;
        let forged = |number: u8| {
            let mut knock = knock("192.0.2.1", number);
            knock.body[1..100].fill(number + 3);
            knock
        };
        // Compare the fastest of several runs, since the machine may be busy.
        let cost = |number| {
            let begin = Instant::now();
            handshake::open(endpoint, forged(number));
            begin.elapsed()
        };
        let cost = (0..20).map(cost).min().expect("there are some");
        let begin = tokio::time::Instant::now();
        let batches = 8;
        for number in 0..batches * AT_ONCE {
            assert!(endpoint.door.knock(forged(number as u8)).is_none());
        }
        while endpoint.door.waiting().len() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A clock that counts milliseconds rounds them up.
        let rest = (cost * AT_ONCE as u32 * REST * 9 / 10).max(Duration::from_millis(1));
        let [least, rested] = [rest * (batches as u32 - 1), begin.elapsed()];
        assert!(rested >= least, "{rested:?}, where {least:?} would be right");
        assert_eq!(endpoint.counters.unauthentic.load(std::sync::atomic::Ordering::Relaxed), 84);
    }

    #[test]
    fn a_knock_costs_about_as_much_when_very_many_others_wait() {
        let cost = |others: u8| {
            let door = Door::default();
            for number in 0..=others {
                door.knock(knock(&format!("192.0.{number}.1"), 0));
            }
            let batch = |of: u8| {
                let knocks: Vec<_> =
                    (0..200).map(|number| knock(&format!("198.51.{of}.1"), number)).collect();
                let begin = Instant::now();
                for knock in knocks {
                    drop(door.knock(knock));
                }
                begin.elapsed()
            };
            (0..30).map(batch).min().expect("there are some")
        };
        // With 56, one batch is free; the rest fills the queue as usual.
        let [few, very_many] = [cost(0), cost(255)];
        assert!(very_many < few * 6, "{very_many:?} for 200, where {few:?} is usual");
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
        assert!(server.stats().inits > 0);
        assert!(server.inner.inits.lock().expect("no panic while held").is_empty());
        assert!(client(3).await.connect(&target, Config::default()).await.is_ok());
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let door = Door::default();
        for number in 0..=255 {
            door.knock(knock(&format!("[2001:db8::{number:x}]"), number));
        }
        let dropped = door.knock(knock("[2001:db8:0:1::1]", 1)).expect("one has to go");
        assert!(dropped.arrival.route.remote.ip().to_string().starts_with("2001:db8::"));
    }
}
