//! Access control: holders of tickets and owners of listed keys may open sessions with a node.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use anabranch_net::{Authorize, PublicKey, Refusal, ShareId, TicketSecret, Verdict};
use anabranch_wire::Span;

use crate::error::Error;
use crate::keyfile::random;

/// A share that a ticket opens until it expires.
#[derive(Clone, Debug)]
pub struct TicketShare {
    pub id: ShareId,
    /// The secret that opens it.
    pub secret: TicketSecret,
    lifetime: Duration,
    end: Deadline,
}

impl TicketShare {
    /// A new share with a random name and secret. It is open for `lifetime`, or without one until it is removed.
    pub fn new(lifetime: Option<Span>) -> Result<Self, Error> {
        let now = (Instant::now(), SystemTime::now());
        Ok(Self {
            id: ShareId(u64::from_ne_bytes(*random()?)),
            secret: TicketSecret::from_random(*random()?),
            lifetime: lifetime.map_or(Duration::MAX, |lifetime| Duration::from_nanos(lifetime.as_nanos())),
            end: lifetime.map_or(Deadline::NEVER, |lifetime| Deadline::after(lifetime, now)),
        })
    }

    /// A share with a stored name and secret, so that its tickets stay valid after a restart.
    pub fn stored(id: ShareId, secret: TicketSecret) -> Self {
        Self { id, secret, lifetime: Duration::MAX, end: Deadline::NEVER }
    }

    /// The same share, open until this time in seconds since 1970.
    #[must_use]
    pub fn until(mut self, seconds: u64) -> Self {
        let wall = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        self.lifetime =
            wall.map_or(Duration::MAX, |end| end.duration_since(SystemTime::now()).unwrap_or_default());
        self.end = Deadline { steady: Instant::now().checked_add(self.lifetime), wall };
        self
    }

    /// True until the share expires.
    pub fn is_open(&self) -> bool {
        !self.end.is_over((Instant::now(), SystemTime::now()))
    }

    /// The time left until it expires, and its whole lifetime; [`Duration::MAX`] for never.
    pub fn time_left(&self) -> (Duration, Duration) {
        (self.end.left((Instant::now(), SystemTime::now())), self.lifetime)
    }

    /// When it expires, in seconds since 1970, as in tickets; `None` for never.
    pub fn expires(&self) -> Option<u64> {
        self.end.wall?.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
    }
}

/// A time on two clocks; it has passed when either clock says so.
///
/// The wall clock may be set back. The steady clock cannot be set, but stops while the machine sleeps. With both, a
/// ticket is never valid for longer than its lifetime.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    steady: Option<Instant>,
    wall: Option<SystemTime>,
}

impl Deadline {
    const NEVER: Self = Self { steady: None, wall: None };

    /// A time too far in the future for a clock counts as never.
    fn after(span: Span, (steady, wall): (Instant, SystemTime)) -> Self {
        let span = Duration::from_nanos(span.as_nanos());
        Self { steady: steady.checked_add(span), wall: wall.checked_add(span) }
    }

    fn is_over(&self, now: (Instant, SystemTime)) -> bool {
        self.left(now).is_zero()
    }

    /// The time left, by the clock that shows less.
    fn left(&self, (steady, wall): (Instant, SystemTime)) -> Duration {
        let by_steady = self.steady.map_or(Duration::MAX, |end| end.saturating_duration_since(steady));
        let by_wall = self.wall.map_or(Duration::MAX, |end| end.duration_since(wall).unwrap_or_default());
        by_steady.min(by_wall)
    }
}

/// Keys and shares that may open sessions; all others are refused. The lists can change at run time, and clones share
/// them.
#[derive(Clone, Debug, Default)]
pub struct Access(Arc<Mutex<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    keys: BTreeSet<PublicKey>,
    shares: Vec<TicketShare>,
}

impl Access {
    pub fn by_ticket(share: TicketShare) -> Self {
        let access = Self::default();
        access.allow_share(share);
        access
    }

    /// Access for the owners of these keys.
    pub fn by_keys(keys: impl IntoIterator<Item = PublicKey>) -> Self {
        let access = Self::default();
        access.lists().keys.extend(keys);
        access
    }

    /// Admits the owner of a key as well.
    pub fn allow_key(&self, key: PublicKey) {
        self.lists().keys.insert(key);
    }

    /// Admits holders of this share's ticket as well.
    pub fn allow_share(&self, share: TicketShare) {
        self.lists().shares.push(share);
    }

    /// Stops admitting holders of this share's ticket. Open sessions continue.
    pub fn remove_share(&self, share: ShareId) {
        self.lists().shares.retain(|known| known.id != share);
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().expect("no panic while held")
    }
}

impl Authorize for Access {
    fn authorize(&self, peer: &PublicKey, share: Option<ShareId>) -> Verdict {
        let lists = self.lists();
        let Some(share) = share else {
            return match lists.keys.contains(peer) {
                true => Verdict::Accept { secret: None },
                false => Verdict::Refuse(Refusal::NotAuthorised),
            };
        };
        match lists.shares.iter().find(|known| known.id == share && known.is_open()) {
            Some(known) => Verdict::Accept { secret: Some(known.secret.clone()) },
            None => Verdict::Refuse(Refusal::TicketNotValid),
        }
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
    fn a_ticket_opens_its_share_until_it_expires_or_is_removed_and_opens_no_other() {
        let share = TicketShare::new(Some(Span::from_secs(60))).unwrap();
        let access = Access::by_ticket(share.clone());
        let accepts = |id| matches!(access.authorize(&key(1), id), Verdict::Accept { secret: Some(_) });
        assert!(accepts(Some(share.id)) && share.is_open());
        assert!(!accepts(Some(ShareId(share.id.0 ^ 1))));
        assert!(!accepts(None));
        access.remove_share(share.id);
        assert!(!accepts(Some(share.id)));
        let expired = TicketShare { end: Deadline { steady: Some(Instant::now()), wall: None }, ..share };
        access.allow_share(expired.clone());
        assert!(!accepts(Some(expired.id)) && !expired.is_open());
    }

    #[test]
    fn a_stored_share_keeps_the_time_of_its_end() {
        let share = TicketShare::new(Some(Span::from_secs(60))).unwrap();
        let again = |seconds| TicketShare::stored(share.id, share.secret.clone()).until(seconds);
        let end = share.expires().unwrap();
        assert_eq!((again(end).expires(), again(end).is_open()), (Some(end), true));
        assert!(again(end).time_left().0 <= Duration::from_secs(60));
        assert!(!again(end - 61).is_open() && again(u64::MAX).is_open());
    }

    #[test]
    fn a_listed_key_is_let_in_without_a_ticket_but_not_with_a_wrong_one() {
        let access = Access::by_keys([key(1)]);
        let verdict = |seed, share| access.authorize(&key(seed), share);
        assert!(matches!(verdict(1, None), Verdict::Accept { secret: None }));
        assert!(matches!(verdict(2, None), Verdict::Refuse(Refusal::NotAuthorised)));
        assert!(matches!(verdict(1, Some(ShareId(5))), Verdict::Refuse(Refusal::TicketNotValid)));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_prolong_a_ticket() {
        let (steady, wall) = (Instant::now(), SystemTime::now());
        let end = Deadline::after(Span::from_secs(60), (steady, wall));
        let later = |seconds| steady + Duration::from_secs(seconds);
        assert!(!end.is_over((later(59), wall + Duration::from_secs(59))));
        assert!(end.is_over((later(60), wall - Duration::from_secs(86_400))));
        assert!(end.is_over((later(1), wall + Duration::from_secs(60))));
    }
}
