//! A session with a node that may be reached directly, or through relays only.
//!
//! The direct way has a head start; then each relay of the ticket is tried at the same time, entered as the guest of
//! the ticket's maker. The first session to stand wins. Where it stands through a relay, direct paths follow by themselves if
//! there are any, since both ends tell each other their addresses and try them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anabranch_agent::HEAD_START;
use anabranch_net::{Config, ConnectError, Endpoint, PathId, Pid, Session, Target, TicketSecret};
use anabranch_secure::RelayHint;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::paths::RunningPaths;
use crate::relay::chain::RelayChain;
use crate::relay::open_path::{Carrier, outlive};
use crate::relay::{Entry, Peer, RelayError, RelayPaths, RelayRoute};

/// A relay that has not answered by then is told of, and tried for as long as ever.
const SOON: Duration = Duration::from_secs(3);

/// How long the sessions that came later may take to be told that they are not needed.
const PARTING: Duration = Duration::from_secs(3);

/// A session, and what it began on when it was not the direct way.
struct Dialed {
    session: Session,
    through: Option<(RelayHint, Carrier)>,
}

/// Opens a session with the maker of a ticket, whose secret is `secret`. The ticket's relays are kept as further paths
/// until the session is closed, or they are removed.
///
/// # Errors
/// Of the direct way when no way led there.
pub async fn connect(
    endpoint: &Arc<Endpoint>,
    (target, config): (&Target, Config),
    (relays, secret): (&[RelayHint], &TicketSecret),
) -> Result<RunningPaths, ConnectError> {
    let peer = Peer { addresses: Vec::new(), entry: Entry::Guest(secret.clone()) };
    if relays.is_empty() {
        let session = endpoint.connect(target, config).await?;
        return Ok(RunningPaths::new(endpoint, &session, &[], &peer));
    }
    let Dialed { session, through } = race(endpoint, (target, config), (relays, secret)).await?;
    let first = through.as_ref().map(|(relay, _)| relay);
    let others = relays.iter().filter(|relay| Some(*relay) != first);
    let routes: Vec<RelayRoute> = others.map(|relay| RelayRoute(vec![relay.clone().into()])).collect();
    let running = RunningPaths::new(endpoint, &session, &routes, &peer);
    if let Some((relay, carrier)) = through {
        let route = RelayRoute(vec![relay.into()]);
        running.adopt(route.clone(), RelayPaths::go_on(endpoint, &session, (route, peer), carrier));
    }
    let kept = running.clone();
    tokio::spawn(async move {
        session.closed().await;
        drop(kept);
    });
    Ok(running)
}

async fn race(
    endpoint: &Arc<Endpoint>,
    (target, config): (&Target, Config),
    (relays, secret): (&[RelayHint], &TicketSecret),
) -> Result<Dialed, ConnectError> {
    let direct = endpoint.connect(target, config.clone());
    tokio::pin!(direct);
    let mut failed = None;
    tokio::select! {
        result = &mut direct => match result {
            Ok(session) => return Ok(Dialed { session, through: None }),
            // A node that answers and refuses is not kinder through a relay.
            Err(
                error @ (ConnectError::NoRoute { .. }
                | ConnectError::NotTried(_)
                | ConnectError::RuledOut { .. }
                | ConnectError::TimedOut(_)),
            ) => failed = Some(error),
            Err(error) => return Err(error),
        },
        () = sleep(Duration::from_nanos(HEAD_START.as_nanos())) => {}
    }
    let (mut attempts, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for relay in relays {
        let (endpoint, relay, secret) = (endpoint.clone(), relay.clone(), secret.clone());
        let (target, config, is_over) = (target.clone(), config.clone(), is_over.clone());
        attempts
            .spawn(async move { through(&endpoint, (&target, config), (&relay, &secret), &is_over).await });
    }
    let first = loop {
        tokio::select! {
            result = &mut direct, if failed.is_none() => match result {
                Ok(session) => break Dialed { session, through: None },
                Err(error) => failed = Some(error),
            },
            Some(result) = attempts.join_next(), if !attempts.is_empty() => match result {
                Ok(Ok(dialed)) => break dialed,
                Ok(Err((relay, error))) => tracing::warn!(relay = %relay.node, %error, "no session through the relay"),
                Err(error) => tracing::warn!(%error, "an attempt through a relay ended"),
            },
        }
        if let Some(error) = failed.clone().filter(|_| attempts.is_empty()) {
            return Err(error);
        }
    };
    is_over.store(true, Ordering::Relaxed);
    tokio::spawn(part(attempts));
    Ok(first)
}

/// Ends the sessions that stand beside the first one, or come to stand in a moment, while relays still forward for them: the other end would
/// take each for a receiver of its own until it has been silent for long enough.
async fn part(mut attempts: JoinSet<Result<Dialed, (RelayHint, RelayError)>>) {
    let all = async {
        while let Some(done) = attempts.join_next().await {
            if let Ok(Ok(Dialed { session, through })) = done {
                tokio::spawn(async move {
                    let _ = timeout(PARTING, session.close()).await;
                    outlive(&session, through.map(|(_, carrier)| carrier)).await;
                });
            }
        }
    };
    // Who has not heard it by then finds out by the silence.
    let _ = timeout(PARTING, all).await;
}

/// Waits for an outcome; calls `late` once it has taken longer than `soon`.
async fn patiently<T>(outcome: impl Future<Output = T>, soon: Duration, late: impl FnOnce()) -> T {
    tokio::pin!(outcome);
    match timeout(soon, &mut outcome).await {
        Ok(outcome) => outcome,
        Err(_) => {
            late();
            outcome.await
        }
    }
}

async fn through(
    endpoint: &Endpoint,
    (target, config): (&Target, Config),
    (relay, secret): (&RelayHint, &TicketSecret),
    is_over: &AtomicBool,
) -> Result<Dialed, (RelayHint, RelayError)> {
    let attempt = async {
        let entry = Entry::Guest(secret.clone());
        let opening = RelayChain::open(endpoint, std::slice::from_ref(relay), &entry);
        let late = || {
            if !is_over.load(Ordering::Relaxed) {
                tracing::warn!(relay = %relay.node, "the relay has not answered for {} s; is it running there? Still trying", SOON.as_secs());
            }
        };
        let chain = patiently(opening, SOON, late).await?;
        let own = endpoint.new_pid();
        let mut prepared = chain.prepare(None, Pid::HANDSHAKE, own).await?;
        // Another has stood meanwhile: the other end need not hear of this one.
        if is_over.load(Ordering::Relaxed) {
            return Err(RelayError::Gone);
        }
        let session = endpoint.connect_through(target, config, (own, prepared.chain.clone())).await?;
        prepared.lead_to(&session, PathId::FIRST).await?;
        let carrier = Carrier { chain: Arc::new(chain), prepared };
        Ok(Dialed { session, through: Some((relay.clone(), carrier)) })
    };
    attempt.await.map_err(|error: RelayError| (relay.clone(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_takes_long_is_told_of_once_and_waited_for() {
        for (takes, told) in [(0, false), (60, true)] {
            let outcome = async {
                sleep(Duration::from_millis(takes)).await;
                7
            };
            let mut is_told = false;
            assert_eq!(patiently(outcome, Duration::from_millis(20), || is_told = true).await, 7);
            assert_eq!(is_told, told);
        }
    }
}
