//! Admits receivers that show the ticket of this share, until it expires.

use std::time::{Duration, Instant, SystemTime};

use anabranch_net::{Authorize, PublicKey, Refusal, ShareId, TicketSecret, Verdict};
use anabranch_wire::Span;

use crate::errors::Failure;
use crate::keyfile::random;

/// The share's name, its secret and its end.
#[derive(Clone, Debug)]
pub struct Door {
    /// The share.
    pub share: ShareId,
    /// The secret that opens it.
    pub secret: TicketSecret,
    until: Deadline,
    open_for: Duration,
}

impl Door {
    /// A door that opens for `open_for`.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn new(open_for: Span) -> Result<Self, Failure> {
        Ok(Self {
            share: ShareId(u64::from_ne_bytes(*random()?)),
            secret: TicketSecret::from_random(*random()?),
            until: Deadline::after(open_for, (Instant::now(), SystemTime::now())),
            open_for: Duration::from_nanos(open_for.as_nanos()),
        })
    }

    /// True while it opens.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.until.is_over((Instant::now(), SystemTime::now()))
    }

    /// How long it still opens, and out of how long in all.
    #[must_use]
    pub fn time_left(&self) -> (Duration, Duration) {
        (self.until.left((Instant::now(), SystemTime::now())), self.open_for)
    }

    /// When it closes, in seconds since 1970, for the ticket.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        self.until.wall?.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
    }

    fn judge(&self, share: Option<ShareId>, is_open: bool) -> Verdict {
        match share {
            Some(share) if share == self.share && is_open => {
                Verdict::Accept { secret: Some(self.secret.clone()) }
            }
            Some(_) => Verdict::Refuse(Refusal::TicketNotValid),
            None => Verdict::Refuse(Refusal::NotAuthorised),
        }
    }
}

impl Authorize for Door {
    fn authorize(&self, _peer: &PublicKey, share: Option<ShareId>) -> Verdict {
        self.judge(share, self.is_open())
    }
}

/// A moment on both clocks, reached when either reaches it.
///
/// The ticket names its end by the wall clock, which may be set back; the other clock never is, but stands still
/// while the machine sleeps. So a ticket never opens for longer than it was made for.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    steady: Option<Instant>,
    wall: Option<SystemTime>,
}

impl Deadline {
    /// A moment beyond the range of a clock is `None`.
    fn after(span: Span, (steady, wall): (Instant, SystemTime)) -> Self {
        let span = Duration::from_nanos(span.as_nanos());
        Self { steady: steady.checked_add(span), wall: wall.checked_add(span) }
    }

    fn is_over(&self, now: (Instant, SystemTime)) -> bool {
        self.left(now).is_zero()
    }

    /// The time left, by the clock on which it is less.
    fn left(&self, (steady, wall): (Instant, SystemTime)) -> Duration {
        let by_steady = self.steady.map_or(Duration::MAX, |end| end.saturating_duration_since(steady));
        let by_wall = self.wall.map_or(Duration::MAX, |end| end.duration_since(wall).unwrap_or_default());
        by_steady.min(by_wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticket_opens_its_share_until_it_expires_and_nothing_else_opens_anything() {
        let door = Door::new(Span::from_secs(60)).unwrap();
        let accepts = |share, open| matches!(door.judge(share, open), Verdict::Accept { secret: Some(_) });
        assert!(accepts(Some(door.share), true) && door.is_open());
        assert!(!accepts(Some(door.share), false));
        assert!(!accepts(Some(ShareId(door.share.0 ^ 1)), true));
        assert!(!accepts(None, true));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_keep_the_door_open() {
        let (steady, wall) = (Instant::now(), SystemTime::now());
        let end = Deadline::after(Span::from_secs(60), (steady, wall));
        let later = |seconds| steady + Duration::from_secs(seconds);
        assert!(!end.is_over((later(59), wall + Duration::from_secs(59))));
        assert!(end.is_over((later(60), wall - Duration::from_secs(86_400))));
        assert!(end.is_over((later(1), wall + Duration::from_secs(60))));
    }
}
