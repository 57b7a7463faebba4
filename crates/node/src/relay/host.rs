//! Makes this node reachable through relays for the holders of a ticket, on its own quota.

use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Endpoint, TicketSecret};
use anabranch_overlay::grant::GuestSecret;
use anabranch_secure::RelayHint;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::connection::RelayConnection;
use super::{Entry, RelayError};
use crate::address::{NodeAt, Unresolved};
use crate::grants::Grants;

/// Pause after the first failure; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A node's registration at a relay, which lasts until this is dropped.
#[derive(Debug)]
pub struct Hosting {
    task: JoinHandle<()>,
    /// The outcome of the first attempt.
    first: watch::Receiver<Option<Result<RelayHint, RelayError>>>,
}

impl Hosting {
    /// Registers a ticket's guest secret at a relay, and again after each lost session with the relay.
    pub fn at(endpoint: &Arc<Endpoint>, relay: NodeAt, grants: &Grants, secret: TicketSecret) -> Self {
        let (sender, first) = watch::channel(None);
        let (endpoint, grants) = (endpoint.clone(), grants.clone());
        let task = tokio::spawn(async move {
            let (mut pause, mut was_lost) = (FIRST_PAUSE, false);
            let mut trouble = None;
            let entry = Entry::Member(grants.clone());
            loop {
                let known_as = was_lost;
                let (relays, unresolved) = named(&relay).await;
                let relay = grants.known(&relays, known_as).remove(0);
                let unresolved = unresolved.filter(|_| relay.addresses.is_empty());
                let registered = tokio::select! {
                    registered = register(&endpoint, (&relay, &entry), &secret), if unresolved.is_none() => registered,
                    Some(why) = std::future::ready(unresolved.clone()) => Err(why.into()),
                    () = grants.moved(&relays, (std::slice::from_ref(&relay), known_as)) => continue,
                };
                match registered {
                    Ok(connection) => {
                        grants.on_tried([relay.node], true);
                        let [hint] = relays.clone();
                        sender.send_replace(Some(Ok(hint)));
                        pause = FIRST_PAUSE;
                        if trouble.take().is_some() {
                            tracing::warn!(relay = %relay.node, "reachable through the relay");
                        }
                        connection.closed().await;
                        was_lost = true;
                    }
                    Err(error) => {
                        was_lost = error.is_lost();
                        if trouble.as_ref() == Some(&error) {
                            tracing::debug!(relay = %relay.node, %error, "still not reachable through the relay");
                        } else {
                            tracing::warn!(relay = %relay.node, %error, "not reachable through the relay");
                            trouble = Some(error.clone());
                        }
                        sender.send_if_modified(|first| {
                            first.is_none().then(|| *first = Some(Err(error))).is_some()
                        });
                    }
                }
                if was_lost {
                    grants.on_tried([relay.node], false);
                }
                tokio::select! {
                    () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                    () = grants.moved(&relays, (std::slice::from_ref(&relay), known_as)) => pause = FIRST_PAUSE,
                }
            }
        });
        Self { task, first }
    }

    /// Waits for the outcome of the first attempt: the relay with its resolved addresses.
    ///
    /// # Errors
    /// Why it failed; further attempts follow.
    pub async fn registered(&mut self) -> Result<RelayHint, RelayError> {
        let first = self.first.wait_for(Option::is_some).await;
        first.map_or(Err(RelayError::Gone), |first| first.clone().unwrap_or(Err(RelayError::Gone)))
    }
}

impl Drop for Hosting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The relay with its current addresses, and the error if no name resolved.
async fn named(relay: &NodeAt) -> ([RelayHint; 1], Option<Unresolved>) {
    match relay.resolve().await {
        Ok(hint) => ([hint], None),
        Err(why) => ([RelayHint { node: relay.node, addresses: Vec::new() }], Some(why)),
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
    let reached = connection.paths().into_iter().map(|path| path.route.remote);
    endpoint.add_entrances(&relay.node, relay.addresses.iter().copied().chain(reached));
    Ok(connection)
}
