//! Relays as options, tickets and controllers name them, for commands that open sessions or wait for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_net::{Endpoint, NodeKey, PublicKey, TicketSecret};
use anabranch_node::NodeAt;
use anabranch_node::{ControllerHint, LinkError};
use anabranch_node::{GrantWanted, Grants, Hosting, RelayError, RelayRoute, USUAL_PATHS};
use anabranch_secure::RelayHint;
use clap::Args;

use crate::errors::{Failure, Kind};
use crate::{keyfile, values};

/// Most relays in a ticket.
const MOST_IN_TICKET: usize = 8;

/// Options of commands that use relays.
#[derive(Args, Clone, Debug, Default)]
pub struct ControllerOptions {
    /// A controller that grants this machine the use of relays; it has to list its key. May be given again: any will do
    #[arg(long = "controller", value_name = "KEY@ADDRESS", help_heading = "Network")]
    #[arg(env = "ANABRANCH_CONTROLLER", value_delimiter = ' ', hide_env_values = true)]
    pub controllers: Vec<ControllerHint>,
    /// How many relays to ask controllers for, at most
    #[arg(long, value_name = "COUNT", default_value_t = 3, help_heading = "Network")]
    #[arg(value_parser = values::whole(1..=MOST_IN_TICKET as u8))]
    pub most_relays: u8,
}

impl ControllerOptions {
    /// Gets a grant from a controller, or the one that is kept beside the key; without controllers, none.
    ///
    /// # Errors
    /// When no controller grants anything, and nothing is kept.
    pub async fn grants(&self, endpoint: &Arc<Endpoint>, key: Option<&Path>) -> Result<Grants, Failure> {
        if self.controllers.is_empty() {
            return Ok(Grants::default());
        }
        let wanted = GrantWanted { relays: (self.most_relays, 1), paths: USUAL_PATHS };
        let file = kept_beside(&key.map_or_else(keyfile::default_path, |key| Ok(key.to_owned()))?);
        Grants::obtain(endpoint, &self.controllers, wanted, Some(file))
            .await
            .map_err(|error| not_granted(&error, &endpoint.node()))
    }
}

/// A controller that refuses has said why and what to do.
fn not_granted(error: &LinkError, own: &PublicKey) -> Failure {
    let failure = Failure::new(Kind::Unreachable, format!("no relays: {error}"));
    match error {
        LinkError::Denied { .. } => failure,
        _ => failure.hint(format!(
            "is `anabranch controller` running there, and does it list this node's key, {own}, as a client? Is the key in `--controller` the one \
             that it prints? A node that has another does not answer"
        )),
    }
}

/// Where the grants of a key are kept.
fn kept_beside(key: &Path) -> PathBuf {
    let mut name = key.as_os_str().to_owned();
    name.push(".grants");
    name.into()
}

/// Checks that no way through relays is named again: two paths of one way would share all that they have.
///
/// # Errors
/// When one is.
pub fn check(routes: &[RelayRoute]) -> Result<(), Failure> {
    let again =
        (1..routes.len()).find(|at| routes[..*at].iter().any(|before| before.is_way_of(&routes[*at])));
    again.map_or(Ok(()), |at| {
        Err(Failure::usage(format!("`--relay` names {} twice: that would be one path", routes[at]))
            .hint("name each relay once; at another address of it there may be another path"))
    })
}

/// The key to be known by: the one named; the usual one if relays or controllers have to know it; else a new one.
///
/// # Errors
/// As of [`keyfile::load_or_create`].
pub fn key(
    file: Option<&Path>,
    routes: &[RelayRoute],
    control: &ControllerOptions,
) -> Result<NodeKey, Failure> {
    match file {
        None if !routes.is_empty() || !control.controllers.is_empty() => {
            keyfile::load_or_create(&keyfile::default_path()?)
        }
        file => keyfile::load_or_fresh(file),
    }
}

/// Relays through which the holders of a ticket reach this machine, as long as this is kept.
pub struct Reachable {
    /// For the ticket.
    pub relays: Vec<RelayHint>,
    /// Of the granted ones, those that could not be used, and why.
    pub left_out: Vec<String>,
    _places: Vec<Hosting>,
}

/// Has a node reachable through the relays that are named, and through those that are granted.
///
/// # Errors
/// When a relay that was named cannot be reached or does not list this node's key, or none that was granted can be used.
pub async fn host(
    endpoint: &Arc<Endpoint>,
    (routes, grants): (&[RelayRoute], &Grants),
    secret: &TicketSecret,
) -> Result<Reachable, Failure> {
    let named = singles(routes)?;
    let granted: Vec<NodeAt> = grants
        .relays()
        .into_iter()
        .filter(|relay| named.iter().all(|other| other.node != relay.node))
        .map(NodeAt::from)
        .collect();
    let mut reachable = Reachable { relays: Vec::new(), left_out: Vec::new(), _places: Vec::new() };
    let all = named.iter().chain(&granted).take(MOST_IN_TICKET);
    let places = all.map(|relay| (relay, Hosting::at(endpoint, relay.clone(), grants, secret.clone())));
    let mut last = None;
    for (at, (relay, mut place)) in places.collect::<Vec<_>>().into_iter().enumerate() {
        match place.registered().await {
            Ok(hint) => {
                // By its addresses: who has the ticket may have another name server, or none.
                reachable.relays.push(hint);
                reachable._places.push(place);
            }
            Err(error) if at < named.len() => return Err(not_through(endpoint, relay, &error)),
            Err(error) => {
                reachable.left_out.push(format!("relay {} is left out: {error}", relay.node));
                last = Some(not_through(endpoint, relay, &error));
            }
        }
    }
    match last {
        Some(failure) if reachable.relays.is_empty() => Err(failure),
        _ => Ok(reachable),
    }
}

fn not_through(endpoint: &Endpoint, relay: &NodeAt, error: &RelayError) -> Failure {
    let failure = Failure::new(Kind::Unreachable, format!("not reachable through {relay}: {error}"));
    if let RelayError::Unresolved(_) = error {
        return failure;
    }
    failure.hint(format!(
        "is `anabranch relay` running there, and does it list this node's key, {}, or name the controller?",
        endpoint.node()
    ))
}

/// The relays for a ticket: one for each route.
fn singles(routes: &[RelayRoute]) -> Result<Vec<NodeAt>, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_overlay::controller::message::Again;

    #[test]
    fn a_way_that_is_named_twice_is_refused_and_another_address_of_its_relay_is_not() {
        let [one, other] = [1, 2].map(|byte| NodeKey::from_random([byte; 32]).public());
        let routes = |texts: &[String]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let (first, second) = (format!("{one}@192.0.2.1:4600"), format!("{one}@192.0.2.2:4600"));
        let behind = format!("{first}+{other}@192.0.2.3:4600");
        assert!(check(&routes(&[first.clone(), second, behind])).is_ok());
        let twice = check(&routes(&[first.clone(), first.clone()])).unwrap_err();
        assert!(twice.message.contains(&first) && twice.hint.is_some(), "{twice:?}");
    }

    #[test]
    fn who_is_refused_is_not_asked_whether_the_controller_runs() {
        let own = NodeKey::from_random([1; 32]).public();
        let why = "the quota allows 2 grants, and 2 are in use: there is room in 60 s".to_owned();
        let refused = not_granted(&LinkError::Denied { why: why.clone(), again: Again::Never }, &own);
        assert!(refused.message.ends_with(&why) && refused.hint.is_none(), "{refused:?}");
        let silent = not_granted(&LinkError::Silent, &own).hint.unwrap();
        assert!(silent.contains(&own.to_string()), "{silent}");
        // To a wrong key nobody answers either.
        assert!(silent.contains("Is the key in `--controller` the one"), "{silent}");
    }
}
