//! A queue of handshakes to compute, so that receivers are not held up.
//!
//! An INIT from a proven address costs several Diffie-Hellman exchanges: some hundred microseconds in which the packets
//! of sessions would wait in the socket's buffer. Receivers queue it here. One task computes a few at a time. While
//! more are waiting, it pauses three times as long as they took, so strangers get at most a quarter of one processor.
//!
//! At most [`MOST`] wait. Beyond that, the source with the most waiting loses one, so a flood does not shut out others,
//! not even one from all networks of an IPv6 /48.
//! A client whose handshake was dropped repeats its request.

use std::sync::{Mutex, MutexGuard};

use anabranch_engine::Arrival;
use anabranch_secure::InitId;
use anabranch_wire::source;
use tokio::sync::Notify;

use crate::by_source::BySource;

/// Most handshakes that wait.
const MOST: usize = 256;

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
        } else if let Some([_, newest]) = waiting.more_than(own) {
            waiting.remove(newest)
        } else {
            return Some(knock);
        };
        waiting.push(own, knock);
        drop(waiting);
        self.wake.notify_one();
        dropped
    }

    /// Waits until a handshake was queued.
    pub(crate) async fn knocked(&self) {
        self.wake.notified().await;
    }

    /// Takes the first handshake out.
    pub(crate) fn pop(&self) -> Option<Knock> {
        self.waiting().pop_first()
    }

    /// How many wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> MutexGuard<'_, BySource<Knock>> {
        self.waiting.lock().expect("no panic while held")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use anabranch_engine::{Ecn, Route};
    use anabranch_secure::INIT_BODY_LEN;
    use anabranch_wire::Span;

    use super::*;

    pub(crate) fn knock(address: &str, number: u8) -> Knock {
        let route =
            Route { socket: 0, remote: format!("{address}:{}", 1_000 + u16::from(number)).parse().unwrap() };
        let mut body = vec![0; INIT_BODY_LEN];
        (body[0], body[100]) = (1, number);
        let id = InitId::of(&body).expect("it has the shape");
        Knock {
            id,
            arrival: Arrival { route, size: 1_216, ecn: Ecn::NotEct, waited: Span::ZERO },
            body: body.into(),
        }
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

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let door = Door::default();
        for number in 0..=255 {
            door.knock(knock(&format!("[2001:db8::{number:x}]"), number));
        }
        let dropped = door.knock(knock("[2001:db8:0:1::1]", 1)).expect("one has to go");
        assert!(dropped.arrival.route.remote.ip().to_string().starts_with("2001:db8::"));
    }

    #[test]
    fn all_networks_of_one_ipv6_site_make_room_for_others() {
        let door = Door::default();
        let network = |number: u16| format!("[2001:db8:0:{number:x}::1]");
        // From 1 on, because the text of network 0 is a shorter one.
        for number in 1..=256 {
            assert!(door.knock(knock(&network(number), 0)).is_none());
        }
        let dropped = |from: &str| {
            let dropped = door.knock(knock(from, 0)).expect("one has to go");
            dropped.arrival.route.remote.ip().to_string()
        };
        for number in 0..100 {
            assert!(dropped(&format!("192.0.2.{number}")).starts_with("2001:db8:0:"));
        }
        assert_eq!(dropped(&network(257)), "2001:db8:0:101::1", "its site has most");
    }
}
