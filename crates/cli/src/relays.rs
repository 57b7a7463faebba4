//! Relays as options and tickets name them, for commands that open sessions or wait for them.

use std::path::Path;
use std::sync::Arc;

use anabranch_daemon::client::{Hosting, RelayRoute};
use anabranch_net::{Endpoint, NodeKey, TicketSecret};
use anabranch_secure::RelayHint;

use crate::errors::{Failure, Kind};
use crate::keyfile;

/// Most relays in a ticket.
const MOST_IN_TICKET: usize = 8;

/// The key to be known by: the one named; the usual one if relays have to know it; else a new one.
///
/// # Errors
/// As of [`keyfile::load_or_create`].
pub fn key(file: Option<&Path>, routes: &[RelayRoute]) -> Result<NodeKey, Failure> {
    match file {
        None if !routes.is_empty() => keyfile::load_or_create(&keyfile::default_path()?),
        file => keyfile::load_or_fresh(file),
    }
}

/// Has a node reachable through relays by the holders of a ticket, as long as what this gives is kept.
///
/// # Errors
/// When a relay cannot be reached or does not list this node's key.
pub async fn host(
    endpoint: &Arc<Endpoint>,
    routes: &[RelayRoute],
    secret: &TicketSecret,
) -> Result<Vec<Hosting>, Failure> {
    let hosting = hints(routes)?.into_iter().map(|relay| Hosting::at(endpoint, relay, secret.clone()));
    let mut hosting: Vec<Hosting> = hosting.collect();
    for (place, route) in hosting.iter_mut().zip(routes) {
        place.registered().await.map_err(|error| {
            Failure::new(Kind::Unreachable, format!("not reachable through {route}: {error}")).hint(format!(
                "is `anabranch relay` running there, and does it list this node's key, {}?",
                endpoint.node()
            ))
        })?;
    }
    Ok(hosting)
}

/// The relays for a ticket: one for each route.
///
/// # Errors
/// When relays one behind the other are named, or too many.
pub fn hints(routes: &[RelayRoute]) -> Result<Vec<RelayHint>, Failure> {
    if routes.len() > MOST_IN_TICKET {
        return Err(Failure::usage(format!("a ticket names {MOST_IN_TICKET} relays at most")));
    }
    let single = |route: &RelayRoute| match &route.0[..] {
        [relay] => Ok(relay.clone()),
        _ => Err(Failure::usage("a ticket names single relays, not one behind the other")
            .hint("give `--relay` once for each")),
    };
    routes.iter().map(single).collect()
}
