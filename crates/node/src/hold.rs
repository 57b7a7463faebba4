//! Holds a session open: redials, with pauses, whenever it is lost.
//!
//! ```text
//! Dialing --established--> Open --lost--> Dialing ...
//!    |                       \--closed here--------> Ended
//!    \--refused, or patience at its end-------------> Ended
//! ```
//! A session survives an outage of all its paths that is shorter than its idle timeout. This module handles sessions
//! that ended: after a longer outage, or because the other end restarted.

use std::time::Duration;

use anabranch_net::CloseReason;
use anabranch_wire::close_code;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::OTHER_COMMAND;
use crate::dial::Dial;
use crate::error::{Error, ErrorKind};
use crate::node::Node;
use crate::paths::NodeSession;

/// Pause after the first failed attempt; it doubles with each, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// After a session that lasted this long, pauses start short again.
const LASTING: Duration = Duration::from_secs(10);
/// The protocol's codes for failures; all others are the application's.
const FAILURES: std::ops::Range<u64> = close_code::INTERNAL..0x200;

/// The state of a held session.
#[derive(Clone, Debug)]
pub enum Holding {
    /// There is no session. The reason is why the last session ended or the last attempt failed.
    Dialing(Option<Error>),
    /// The session is open.
    Open(NodeSession),
    /// It is not dialed any more: it was closed here, the node refused, or patience ran out.
    Ended(Error),
}

/// A session that is redialed whenever it ends, until this is dropped or the session is aborted here.
#[derive(Debug)]
pub struct Held {
    state: watch::Receiver<Holding>,
    task: JoinHandle<()>,
}

impl Held {
    /// The current state. [`Self::changed`] waits for the one after it.
    pub fn state(&mut self) -> Holding {
        self.state.borrow_and_update().clone()
    }

    /// Waits for the next change and returns it. After the end, returns the last one at once.
    pub async fn changed(&mut self) -> Holding {
        let _ = self.state.changed().await;
        self.state.borrow_and_update().clone()
    }

    /// Waits until the session is open.
    pub async fn session(&mut self) -> Result<NodeSession, Error> {
        loop {
            match self.state.borrow_and_update().clone() {
                Holding::Open(session) if session.session().close_reason().is_none() => return Ok(session),
                Holding::Ended(error) => return Err(error),
                _ => {}
            }
            if self.state.changed().await.is_err() {
                return Err(closed_here());
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Node {
    /// Dials again after a loss: repeatedly, with growing pauses, until a session is established or `patience` runs out.
    /// A network of this machine that is gone now may come back.
    ///
    /// # Errors
    /// Why the last attempt failed; immediately if another attempt does not help.
    pub async fn redial(&self, dial: &Dial, patience: Option<Duration>) -> Result<NodeSession, Error> {
        let mut pause = FIRST_PAUSE;
        self.dial_until((dial, true), patience, &mut pause, |_| {}).await
    }

    /// Holds a session open until the result is dropped. After each loss it is dialed for at most `patience`, or
    /// without end.
    pub fn hold(&self, dial: Dial, patience: Option<Duration>) -> Held {
        let (node, (sender, state)) = (self.clone(), watch::channel(Holding::Dialing(None)));
        let task = tokio::spawn(async move {
            let why = node.keep(&dial, patience, &sender).await;
            sender.send_replace(Holding::Ended(why));
        });
        Held { state, task }
    }

    /// Runs until the session is not dialed any more; returns the reason.
    async fn keep(&self, dial: &Dial, patience: Option<Duration>, state: &watch::Sender<Holding>) -> Error {
        let (mut pause, mut was_open) = (FIRST_PAUSE, false);
        loop {
            let report = |error: &Error| {
                state.send_replace(Holding::Dialing(Some(error.clone())));
            };
            let session = match self.dial_until((dial, was_open), patience, &mut pause, report).await {
                Ok(session) => session,
                Err(error) => return error,
            };
            was_open = true;
            let begin = Instant::now();
            state.send_replace(Holding::Open(session.clone()));
            let reason = session.session().closed().await;
            // Another session may not meet the same failure.
            if matches!(&reason, CloseReason::Local { code, .. } if !FAILURES.contains(code)) {
                return closed_here();
            }
            if let CloseReason::Peer { code: OTHER_COMMAND, reason } = &reason {
                return Error::new(ErrorKind::Refused, format!("the other end said \"{reason}\""));
            }
            let why = Error::new(ErrorKind::Unreachable, format!("the session was lost: {reason}"));
            state.send_replace(Holding::Dialing(Some(why)));
            if begin.elapsed() > LASTING {
                pause = FIRST_PAUSE;
            } else {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    async fn dial_until(
        &self,
        (dial, was_open): (&Dial, bool),
        patience: Option<Duration>,
        pause: &mut Duration,
        report: impl Fn(&Error),
    ) -> Result<NodeSession, Error> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            let attempt = self.dial(dial);
            let outcome = match deadline {
                Some(deadline) => timeout_at(deadline, attempt)
                    .await
                    .unwrap_or_else(|_| Err(Error::new(ErrorKind::Unreachable, "no answer from the node"))),
                None => attempt.await,
            };
            let error = match outcome {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            let is_over = deadline.is_some_and(|deadline| Instant::now() + *pause >= deadline);
            // A network of this machine that led there is gone and may come back. Until then, rules may exclude all others.
            let is_passing =
                error.kind == ErrorKind::Unreachable || (was_open && error.kind == ErrorKind::Local);
            if !is_passing || is_over {
                return Err(error);
            }
            report(&error);
            sleep(*pause).await;
            *pause = (*pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn closed_here() -> Error {
    Error::local("the session was closed")
}
