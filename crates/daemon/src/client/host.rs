//! Lets the holders of a ticket reach this node through relays, on this node's quota there.

use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Endpoint, TicketSecret};
use anabranch_overlay::grant::GuestSecret;
use anabranch_secure::RelayHint;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::connection::RelayConnection;
use super::{Entry, Grants, RelayError};

/// Pause after the first failure; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A node's place at a relay, kept until this is dropped.
#[derive(Debug)]
pub struct Hosting {
    task: JoinHandle<()>,
    /// The outcome of the first attempt.
    first: watch::Receiver<Option<Result<(), RelayError>>>,
}

impl Hosting {
    /// Registers at a relay what follows from a ticket's secret, and again whenever the relay has forgotten.
    #[must_use]
    pub fn at(endpoint: &Arc<Endpoint>, relay: RelayHint, grants: &Grants, secret: TicketSecret) -> Self {
        let (sender, first) = watch::channel(None);
        let (endpoint, entry) = (endpoint.clone(), Entry::Member(grants.clone()));
        let task = tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            loop {
                match register(&endpoint, (&relay, &entry), &secret).await {
                    Ok(connection) => {
                        sender.send_replace(Some(Ok(())));
                        pause = FIRST_PAUSE;
                        connection.closed().await;
                    }
                    Err(error) => {
                        tracing::warn!(relay = %relay.node, %error, "not reachable through the relay");
                        sender.send_if_modified(|first| {
                            first.is_none().then(|| *first = Some(Err(error))).is_some()
                        });
                    }
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        Self { task, first }
    }

    /// Waits for the outcome of the first attempt.
    ///
    /// # Errors
    /// Why it failed; it is tried again all the same.
    pub async fn registered(&mut self) -> Result<(), RelayError> {
        let first = self.first.wait_for(Option::is_some).await;
        first.map_or(Err(RelayError::Gone), |first| first.clone().unwrap_or(Err(RelayError::Gone)))
    }
}

impl Drop for Hosting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn register(
    endpoint: &Endpoint,
    (relay, entry): (&RelayHint, &Entry),
    secret: &TicketSecret,
) -> Result<RelayConnection, RelayError> {
    let connection = RelayConnection::open(endpoint, relay, entry).await?;
    let guest = GuestSecret::new(secret, &relay.node);
    connection.host(guest.share(), guest.hash()).await?;
    Ok(connection)
}
