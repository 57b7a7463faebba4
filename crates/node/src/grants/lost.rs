//! When to ask controllers about granted relays that cannot be reached, or for more relays.
//!
//! An unreachable relay is asked about at once, then after pauses that double until it is reached. Having fewer relays
//! than requested is a reason to ask too, with longer pauses.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_net::PublicKey;
use tokio::time::Instant;

/// First pause while relays are not reached, and while there are too few; longest pause.
const FIRST_LOST: Duration = Duration::from_secs(1);
const FIRST_FEW: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(600);
/// An unreachable relay is forgotten if it was not tried for this long.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// How often to ask about relays before replacing them: most come back by then.
const TIMES: u32 = 2;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Lost {
    /// Unreachable relays, each with the time of the last attempt.
    relays: BTreeMap<PublicKey, Instant>,
    /// How often controllers were asked about them, and when to ask next.
    times: u32,
    next: Instant,
    /// When to ask for more relays, and the pause before that.
    next_few: Instant,
    pause_few: Duration,
}

impl Lost {
    pub(crate) fn new(now: Instant) -> Self {
        let next_few = now + FIRST_FEW;
        Self { relays: BTreeMap::new(), times: 0, next: now, next_few, pause_few: FIRST_FEW }
    }

    /// Records whether a granted relay was reached.
    pub(crate) fn on_tried(&mut self, now: Instant, relay: PublicKey, reached: bool) {
        self.relays.retain(|_, at| now < *at + FORGOTTEN);
        if reached {
            self.relays.remove(&relay);
        } else if self.relays.insert(relay, now).is_none() {
            (self.times, self.next) = (0, now);
        }
    }

    /// When to ask controllers; `None` if there is no reason to.
    pub(crate) fn due(&self, are_few: bool) -> Option<Instant> {
        let lost = (!self.relays.is_empty()).then_some(self.next);
        let few = are_few.then_some(self.next_few);
        lost.into_iter().chain(few).min()
    }

    /// Records that controllers are asked now; returns whether to replace relays that are gone.
    pub(crate) fn on_asked(&mut self, now: Instant, are_few: bool) -> bool {
        self.relays.retain(|_, at| now < *at + FORGOTTEN);
        if are_few && now >= self.next_few {
            self.pause_few = (self.pause_few * 2).min(LONGEST);
            self.next_few = now + self.pause_few;
            // No lost relay is left to wait for.
            if self.relays.is_empty() {
                return true;
            }
        }
        self.next = now + (FIRST_LOST * 2_u32.pow(self.times.min(16))).min(LONGEST);
        self.times += 1;
        self.times > TIMES
    }
}

#[cfg(test)]
mod tests {
    use anabranch_net::NodeKey;

    use super::*;

    fn key(seed: u8) -> PublicKey {
        NodeKey::from_random([seed; 32]).public()
    }

    #[test]
    fn a_relay_that_stays_lost_is_asked_about_less_and_less_and_another_one_at_once() {
        let begin = Instant::now();
        let mut lost = Lost::new(begin);
        assert_eq!(lost.due(false), None);
        let (mut now, mut asked) = (begin, Vec::new());
        while now < begin + Duration::from_secs(20) {
            lost.on_tried(now, key(1), false);
            if lost.due(false).is_some_and(|at| at <= now) {
                asked.push(((now - begin).as_secs(), lost.on_asked(now, false)));
            }
            now += Duration::from_secs(1);
        }
        assert_eq!(asked, [(0, false), (1, false), (3, true), (7, true), (15, true)]);
        lost.on_tried(now, key(2), false);
        assert_eq!(lost.due(false), Some(now));
        for relay in [key(1), key(2)] {
            lost.on_tried(now, relay, true);
        }
        assert_eq!(lost.due(false), None);
    }

    #[test]
    fn too_few_relays_are_a_reason_to_ask_now_and_then() {
        let begin = Instant::now();
        let (mut lost, mut last, mut pauses) = (Lost::new(begin), begin, Vec::new());
        for _ in 0..7 {
            let at = lost.due(true).unwrap();
            assert!(lost.on_asked(at, true), "others are wanted");
            pauses.push((at - last).as_secs());
            last = at;
        }
        assert_eq!(pauses, [30, 60, 120, 240, 480, 600, 600]);
    }
}
