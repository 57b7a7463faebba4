//! Who is let in: whoever shows the ticket of this share, until it expires.

use std::time::{Instant, SystemTime};

use anabranch_net::{Authorize, PublicKey, Refusal, ShareId, TicketSecret, Verdict};
use anabranch_wire::Span;

use crate::errors::Failure;
use crate::keyfile::random;

/// The share's name, its secret and its end.
#[derive(Clone, Debug)]
pub struct Door {
    /// The share.
    pub share: ShareId,
    /// What opens it.
    pub secret: TicketSecret,
    until: Deadline,
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
        })
    }

    /// True while it opens.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.until.is_over((Instant::now(), SystemTime::now()))
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

/// A moment by both clocks, over when either says so.
///
/// The ticket names its end by the wall clock, which may be set back; the other clock never is, but stands still
/// while the machine sleeps. So a ticket never opens for longer than it was made for.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    steady: Option<Instant>,
    wall: Option<SystemTime>,
}

impl Deadline {
    /// A moment too far away to be told is none.
    fn after(span: Span, (steady, wall): (Instant, SystemTime)) -> Self {
        let span = std::time::Duration::from_nanos(span.as_nanos());
        Self { steady: steady.checked_add(span), wall: wall.checked_add(span) }
    }

    fn is_over(&self, (steady, wall): (Instant, SystemTime)) -> bool {
        self.steady.is_some_and(|end| steady >= end) || self.wall.is_some_and(|end| wall >= end)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
