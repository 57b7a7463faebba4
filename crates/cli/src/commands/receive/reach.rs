//! Opens the session with the sender that a ticket names, and again when it was lost.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_net::{ConnectError, Endpoint, Session, Ticket, Tried};
use anabranch_node::{RunningSessions, connect};
use anabranch_wire::Span;

use crate::carrier;
use crate::errors::{Failure, Kind};
use crate::ui::human;

/// How long an answer to an expired ticket is waited for.
const PATIENCE_WITH_EXPIRED: Span = Span::from_secs(3);
/// The pause after the first attempt to reach a lost sender; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A sender, and how long it may be silent.
pub struct Sender<'a> {
    /// The endpoint here.
    pub endpoint: &'a Arc<Endpoint>,
    /// The sender's key and addresses, and the secret of its share.
    pub ticket: &'a Ticket,
    /// A session that is silent for this long is lost.
    pub silence: Span,
    /// Where the session can be asked.
    pub sessions: RunningSessions,
}

impl Sender<'_> {
    /// Opens the session. A ticket that has expired by this machine's clock is tried all the same, since the clock
    /// may be wrong, but with less patience.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] without an answer, [`Kind::Refused`] when the sender refuses the ticket.
    pub async fn reach(&self) -> Result<Session, Failure> {
        let overdue = overdue(self.ticket, SystemTime::now());
        let silence = if overdue.is_some() { self.silence.min(PATIENCE_WITH_EXPIRED) } else { self.silence };
        let target = anabranch_net::Target {
            credential: Some((self.ticket.share, self.ticket.secret.clone())),
            ..anabranch_net::Target::new(self.ticket.node, self.ticket.addresses.clone())
        };
        let through = (&self.ticket.relays[..], &self.ticket.secret);
        let running = connect(self.endpoint, (&target, carrier::config(silence)), through).await;
        match (running, overdue) {
            (Ok(running), _) => {
                let session = running.session().clone();
                self.sessions.add(running);
                Ok(session)
            }
            (Err(ConnectError::TimedOut(_)), Some(ago)) => {
                let ago = human::seconds(ago.as_secs_f64());
                let message = format!("the ticket expired {ago} ago, and no one answers to it");
                Err(Failure::new(Kind::Refused, message).hint("ask for a new ticket"))
            }
            (Err(ConnectError::TimedOut(tried)), None) => Err(self.unanswered(&tried, silence)),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Opens it again, with pauses, until `deadline`.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub async fn reach_again(&self, deadline: Instant) -> Result<Session, Failure> {
        let mut pause = FIRST_PAUSE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let failure = match tokio::time::timeout(left, self.reach()).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(failure)) => failure,
                Err(_) => return Err(Failure::new(Kind::Unreachable, "no answer came")),
            };
            if failure.kind != Kind::Unreachable || Instant::now() + pause >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A wrong key gets no answer either: a node does not answer packets that it cannot read.
    fn unanswered(&self, tried: &Tried, silence: Span) -> Failure {
        let places: Vec<String> = self.ticket.addresses.iter().map(ToString::to_string).collect();
        let patience = carrier::config(silence).connect_timeout.in_words();
        let message = format!("no answer from {} within {patience}", places.join(" or "));
        let pairs = tried.0.iter().map(|(local, remote)| format!("{} → {remote}", local.ip()));
        pairs.fold(Failure::new(Kind::Unreachable, message), Failure::tried).hint(
            "is `anabranch send` still running there, and is this its newest ticket (started anew it has another key, \
             and is silent to the old one)? is the network up, and does the firewall there let the UDP port in?",
        )
    }
}

/// How long ago the ticket expired by this clock.
fn overdue(ticket: &Ticket, now: SystemTime) -> Option<Duration> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    now.checked_sub(Duration::from_secs(ticket.expires?)).filter(|ago| !ago.is_zero())
}
