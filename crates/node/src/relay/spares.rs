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
use super::keeper::{Begun, Peer, RelayPaths};
use super::open_path::Carrier;
use super::tries::Tries;

/// The candidates of a session.
pub(crate) struct Candidates {
    pub endpoint: Arc<Endpoint>,
    pub session: Session,
    pub peer: Peer,
    pub routes: Vec<RelayRoute>,
    /// Records the outcome of each attempt.
    pub tries: Tries,
}

impl Candidates {
    /// These routes to the peer.
    pub fn new(endpoint: &Arc<Endpoint>, session: &Session, peer: &Peer, routes: &[RelayRoute]) -> Self {
        Self {
            endpoint: endpoint.clone(),
            session: session.clone(),
            peer: peer.clone(),
            routes: routes.to_vec(),
            tries: Tries::default(),
        }
    }
}

struct Spares {
    candidates: Candidates,
    choice: RelayChoice,
    in_use: BTreeMap<Candidate, RelayPaths>,
    /// The carrier of the session's first path, through the first candidate, until that candidate is in use.
    begun: Option<Carrier>,
}

/// Keeps paths through `at_once` of the candidates until the session ends or this is dropped. If the session began
/// through the first candidate, `begun` carries its path.
pub(crate) async fn keep(candidates: Candidates, at_once: usize, begun: Option<Carrier>) {
    let choice = RelayChoice::new(candidates.routes.len(), at_once);
    let (clock, session) = (candidates.endpoint.clock(), candidates.session.clone());
    let mut spares = Spares { candidates, choice, in_use: BTreeMap::new(), begun };
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
        let Candidates { endpoint, session, peer, routes, tries } = &self.candidates;
        let (paths, in_use) = (session.paths(), &self.in_use);
        // Only the candidate's own path: others may use the same relays.
        let path_of = |candidate: Candidate| -> Option<PathId> {
            let kept = in_use.get(&candidate)?;
            paths.iter().map(|path| path.id).find(|path| kept.keeps(*path))
        };
        for action in self.choice.look(now, &paths, path_of) {
            match action {
                RelayAction::OpenThrough(candidate) => {
                    let route = &routes[candidate.0];
                    let kept = match self.begun.take_if(|_| candidate == Candidate(0)) {
                        Some(carrier) => {
                            let begun = Begun { route: route.clone(), peer: peer.clone(), carrier };
                            RelayPaths::go_on_noted((endpoint, session), begun, tries)
                        }
                        None => {
                            let one = std::slice::from_ref(route);
                            RelayPaths::keep_noted((endpoint, session), one, peer, tries)
                        }
                    };
                    tracing::info!(relay = %route, "recruited");
                    self.in_use.insert(candidate, kept);
                }
                RelayAction::Close(candidate, why) => {
                    tracing::info!(relay = %routes[candidate.0], "put back in reserve: {why}");
                    self.in_use.remove(&candidate);
                }
            }
        }
    }
}
