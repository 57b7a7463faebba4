//! Watches the paths of a session, so that the report includes closed ones.
//!
//! The session forgets a path soon after it has closed, and the path's socket may close earlier. So the watch
//! copies all counters at every path event and ten times a second. It reports a closed path one last time,
//! with its last counters. If the system no longer knows a path's name and address, it keeps the last known
//! ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_engine::{Event, PathInfo};
use anabranch_net::{Events, PublicKey, Session};
use tokio::task::JoinSet;

/// Time between two looks at the counters: much shorter than the time for which a session keeps a closed
/// path.
const LOOK: Duration = Duration::from_millis(100);
/// Most closed paths that are kept until they are reported; the oldest go first.
const MOST_GONE: usize = 256;

/// The identity of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// This end's interface, or the path's address if the interface is unknown.
    pub label: String,
    /// This end's address, if known.
    pub local: Option<SocketAddr>,
    /// The relays it goes through.
    pub relays: Vec<PublicKey>,
}

/// A path as the client sees it.
#[derive(Clone, Debug)]
pub struct SeenPath {
    /// Its counters; for a closed path the last ones.
    pub info: PathInfo,
    /// Its identity.
    pub place: Place,
    /// True when the session has forgotten it.
    pub gone: bool,
}

type Seen = BTreeMap<u32, SeenPath>;

/// Watches the paths of one session; stops when dropped.
pub struct PathWatch {
    session: Session,
    seen: Arc<Mutex<Seen>>,
    /// Stops when dropped.
    _looking: JoinSet<()>,
}

impl PathWatch {
    /// Starts to watch this session.
    pub fn start(session: &Session) -> Self {
        let (events, seen) = (session.events(), Arc::default());
        let mut looking = JoinSet::new();
        looking.spawn(look(session.clone(), events, Arc::clone(&seen)));
        Self { session: session.clone(), seen, _looking: looking }
    }

    /// All open paths, and those that have closed since the previous call.
    pub fn take(&self) -> Vec<SeenPath> {
        let mut seen = lock(&self.seen);
        note(&mut seen, paths(&self.session));
        let all = seen.values().cloned().collect();
        seen.retain(|_, path| !path.gone);
        all
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn look(session: Session, mut events: Events, seen: Arc<Mutex<Seen>>) {
    let mut tick = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            event = events.next() => match event {
                Some(Event::Path { .. }) => {}
                Some(_) => continue,
                None => return,
            },
        }
        note(&mut lock(&seen), paths(&session));
    }
}

fn paths(session: &Session) -> Vec<(PathInfo, Place)> {
    let placed = |info: PathInfo| {
        let place = Place {
            label: anabranch_node::local_name(session, &info.route).unwrap_or_else(|| info.id.to_string()),
            local: session.local_address(&info.route),
            relays: session.relays(&info.route),
        };
        (info, place)
    };
    session.paths().into_iter().map(placed).collect()
}

/// Updates `seen` with the current paths.
fn note(seen: &mut Seen, now: Vec<(PathInfo, Place)>) {
    let ids: BTreeSet<u32> = now.iter().map(|(info, _)| info.id.0).collect();
    for (info, place) in now {
        let id = info.id.0;
        match seen.get_mut(&id) {
            // The socket is closed, so keep the known address.
            Some(path) if place.local.is_none() => path.info = info,
            Some(path) => (path.info, path.place) = (info, place),
            None => drop(seen.insert(id, SeenPath { info, place, gone: false })),
        }
    }
    seen.iter_mut().for_each(|(id, path)| path.gone = !ids.contains(id));
    let gone: Vec<u32> = seen.iter().filter(|(_, path)| path.gone).map(|(id, _)| *id).collect();
    for id in gone.iter().take(gone.len().saturating_sub(MOST_GONE)) {
        seen.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use anabranch_engine::PathStats;

    use super::*;
    use crate::ui::paths::test;

    fn path(id: u32, bytes: u64, local: Option<&str>) -> (PathInfo, Place) {
        let info = test::info(id, PathStats { data_received: bytes, ..PathStats::default() });
        let label = local.map_or_else(|| format!("path {id}"), |_| "eth0".into());
        (info, Place { label, local: local.map(|text| text.parse().unwrap()), relays: Vec::new() })
    }

    #[test]
    fn a_path_keeps_its_name_when_its_socket_goes_and_its_bytes_when_it_goes_itself() {
        let mut seen = Seen::new();
        note(&mut seen, vec![path(2, 10, Some("10.0.0.7:5"))]);
        note(&mut seen, vec![path(2, 30, None)]);
        note(&mut seen, vec![path(4, 1, Some("10.0.0.7:6"))]);
        let found: Vec<_> =
            seen.values().map(|path| (&*path.place.label, path.place.local, path.gone)).collect();
        let local = |text: &str| Some(text.parse().unwrap());
        assert_eq!(found, [("eth0", local("10.0.0.7:5"), true), ("eth0", local("10.0.0.7:6"), false)]);
        assert_eq!(seen[&2].info.stats.data_received, 30);
    }

    #[test]
    fn a_path_that_moves_gets_its_new_name() {
        let mut seen = Seen::new();
        note(&mut seen, vec![path(2, 10, Some("10.0.0.7:5"))]);
        note(&mut seen, vec![path(2, 10, Some("10.0.0.8:5"))]);
        assert_eq!(seen[&2].place.local, Some("10.0.0.8:5".parse().unwrap()));
    }

    #[test]
    fn paths_that_come_and_go_without_end_take_no_more_room_than_is_said() {
        let mut seen = Seen::new();
        for id in 0..10_000 {
            note(&mut seen, vec![path(id, 1, None)]);
        }
        assert_eq!((seen.len(), seen.keys().next()), (MOST_GONE + 1, Some(&(9_999 - MOST_GONE as u32))));
    }
}
