//! Keeps a path through relays at the best address of the first relay.
//!
//! [`EntryChoice`] decides when to try other addresses, and which to keep. This task shows it the paths, and opens and
//! closes them. All use one session with the relay, whose own paths show which addresses answer.

use std::net::SocketAddr;

use anabranch_agent::{Entries, EntryAction, EntryChoice};
use anabranch_net::{Endpoint, PathId, PathInfo, PathState, Session, Time};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep_until;

use super::RelayError;
use super::chain::RelayChain;
use super::open_path::{End, OpenPath};

/// A path, and others that are tried next to it.
struct Held<'a> {
    session: &'a Session,
    chain: &'a RelayChain,
    path: &'a mut OpenPath,
    tried: Vec<OpenPath>,
    choice: EntryChoice,
}

/// Waits for the end of a path through `chain`. Meanwhile, a path that enters at another address may take its place;
/// `open_at` opens one.
pub(super) async fn hold<F: Future<Output = Result<OpenPath, RelayError>>>(
    (endpoint, session): (&Endpoint, &Session),
    (chain, path): (&RelayChain, &mut OpenPath),
    open_at: impl Fn(SocketAddr) -> F,
) -> End {
    let clock = endpoint.clock();
    let choice = EntryChoice::new(clock.now());
    let mut held = Held { session, chain, path, tried: Vec::new(), choice };
    let mut opening = FuturesUnordered::new();
    loop {
        let end = tokio::select! {
            end = held.path.end() => end,
            Some(opened) = opening.next() => {
                match opened {
                    Ok(path) => held.tried.push(path),
                    Err(error) => tracing::debug!(%error, "no path over another address of the relay"),
                }
                continue;
            }
            () = sleep_until(clock.instant(held.choice.next_look()).into()) => {
                match held.look(clock.now(), opening.len()) {
                    Some(EntryAction::Try(count)) => {
                        opening.extend(held.others().into_iter().take(count).map(&open_at));
                    }
                    Some(EntryAction::Keep(kept)) => {
                        opening.clear();
                        held.keep(kept);
                    }
                    None => {}
                }
                // A task that is late may have lost the event of the end.
                if !held.is_gone() {
                    continue;
                }
                End::Closed { was_open: true }
            }
        };
        if !held.survives() {
            return end;
        }
        held.choice = EntryChoice::new(clock.now());
        opening.clear();
    }
}

impl Held<'_> {
    /// Whether the session has forgotten the path.
    fn is_gone(&self) -> bool {
        self.session.remote_pid(self.path.id()).is_none()
    }

    /// Other addresses at which the relay answers.
    fn others(&self) -> Vec<SocketAddr> {
        let mut entries = self.chain.entries();
        entries.retain(|entry| Some(*entry) != self.path.entry());
        entries
    }

    fn look(&mut self, now: Time, opening: usize) -> Option<EntryAction> {
        if !self.chain.has_choice() {
            self.choice.rest(now);
            return None;
        }
        let paths = self.session.paths();
        let info = |id: PathId| paths.iter().find(|path| path.id == id).cloned();
        // The session may have closed some.
        self.tried.retain(|path| info(path.id()).is_some());
        let tried: Vec<PathInfo> = self.tried.iter().filter_map(|path| info(path.id())).collect();
        let others = self.others().len();
        let Some(current) = &info(self.path.id()) else {
            // Its end is about to be reported.
            self.choice.skip(now);
            return None;
        };
        self.choice.look(now, &Entries { current, tried: &tried, opening, others, paths: paths.len() })
    }

    /// Ends a trial.
    fn keep(&mut self, kept: PathId) {
        if let Some(at) = self.tried.iter().position(|path| path.id() == kept) {
            self.path.become_other(self.tried.swap_remove(at));
            tracing::info!(entry = ?self.path.entry(), "the relay carries more at another of its addresses");
        }
        self.tried.clear();
    }

    /// Continues on a tried path that works; false without one.
    fn survives(&mut self) -> bool {
        let paths = self.session.paths();
        let works = |path: &PathInfo| path.state == PathState::Active;
        let working = paths.iter().filter(|path| works(path)).map(|path| path.id);
        let kept = working.into_iter().find(|id| self.tried.iter().any(|path| path.id() == *id));
        kept.into_iter().for_each(|kept| self.keep(kept));
        kept.is_some()
    }
}
