//! Keeps paths through some of many relay candidates, as the path agent chooses.
//!
//! [`RelayChoice`] decides which candidates are in use. This task shows it the session's paths, and opens and drops
//! [`RelayPaths`] as it decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_agent::{Candidate, RelayAction, RelayChoice};
use anabranch_net::{Endpoint, PathId, Session, Time};
use tokio::time::sleep_until;

use super::RelayRoute;
use super::keeper::{Peer, RelayPaths};
use super::tries::Tries;

struct Spares {
    endpoint: Arc<Endpoint>,
    session: Session,
    peer: Peer,
    candidates: Vec<RelayRoute>,
    choice: RelayChoice,
    in_use: BTreeMap<Candidate, RelayPaths>,
    tries: Tries,
}

/// Keeps paths through `at_once` of the candidates until the session ends or this is dropped.
pub(crate) async fn keep(
    (endpoint, session): (Arc<Endpoint>, Session),
    candidates: Vec<RelayRoute>,
    (peer, at_once): (Peer, usize),
    tries: Tries,
) {
    let choice = RelayChoice::new(candidates.len(), at_once);
    let clock = endpoint.clock();
    let mut spares = Spares {
        endpoint,
        session: session.clone(),
        peer,
        candidates,
        choice,
        in_use: BTreeMap::new(),
        tries,
    };
    let work = async {
        loop {
            spares.look(clock.now());
            sleep_until(clock.instant(spares.choice.next_look()).into()).await;
        }
    };
    tokio::select! {
        () = work => {}
        _ = session.closed() => {}
    }
}

impl Spares {
    fn look(&mut self, now: Time) {
        let (paths, in_use) = (self.session.paths(), &self.in_use);
        // Only the candidate's own path: others may use the same relays.
        let path_of = |candidate: Candidate| -> Option<PathId> {
            let kept = in_use.get(&candidate)?;
            paths.iter().map(|path| path.id).find(|path| kept.keeps(*path))
        };
        for action in self.choice.look(now, &paths, path_of) {
            match action {
                RelayAction::OpenThrough(candidate) => {
                    let route = &self.candidates[candidate.0];
                    let who = (&self.endpoint, &self.session);
                    let kept =
                        RelayPaths::keep_noted(who, std::slice::from_ref(route), &self.peer, &self.tries);
                    tracing::info!(relay = %route, "recruited");
                    self.in_use.insert(candidate, kept);
                }
                RelayAction::Close(candidate, why) => {
                    tracing::info!(relay = %self.candidates[candidate.0], "put back in reserve: {why}");
                    self.in_use.remove(&candidate);
                }
            }
        }
    }
}
