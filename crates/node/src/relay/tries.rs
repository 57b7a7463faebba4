//! Records why routes through relays never gave a path, for the report at the end of a session.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::RelayRoute;
use super::open_path::lock;

/// Most recorded routes: controllers may replace relays without end.
const MOST: usize = 64;

/// The reason before any news.
const NO_ANSWER: &str = "no answer so far; is `anabranch relay` running there, is its UDP port open, and is its key the right one?";

/// For each route as written: why it has never given a path; `None` after it gave one. Handles share the records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tries(Arc<Mutex<BTreeMap<String, Option<String>>>>);

/// The record of one route.
#[derive(Debug, Default)]
pub(crate) struct Try {
    tries: Tries,
    way: String,
    /// A warning said that there is no path.
    is_warned_of: AtomicBool,
}

impl Tries {
    /// Starts the record of a route.
    pub(crate) fn begin(&self, route: &RelayRoute) -> Try {
        let way = route.to_string();
        let mut known = lock(&self.0);
        if known.len() < MOST {
            known.entry(way.clone()).or_insert_with(|| Some(NO_ANSWER.to_owned()));
        }
        drop(known);
        Try { tries: self.clone(), way, is_warned_of: AtomicBool::new(false) }
    }

    /// The routes that never gave a path, with the reasons.
    pub(crate) fn without_path(&self) -> Vec<(String, String)> {
        let known = lock(&self.0);
        known.iter().filter_map(|(way, why)| Some((way.clone(), why.clone()?))).collect()
    }

    /// Why a route gave no path so far.
    pub(crate) fn why_without_path(&self, route: &RelayRoute) -> Option<String> {
        lock(&self.0).get(&route.to_string())?.clone()
    }
}

impl Try {
    /// Records and logs that a path is open, which ends any trouble with the route.
    pub(crate) fn opened(&self) {
        if self.is_warned_of.swap(false, Ordering::Relaxed) {
            tracing::warn!(relay = %self.way, "a path through the relay is open");
        } else {
            tracing::info!(relay = %self.way, "a path through the relay is open");
        }
        self.note(None);
    }

    /// Records that a warning said why there is no path.
    pub(crate) fn warned(&self) {
        self.is_warned_of.store(true, Ordering::Relaxed);
    }

    /// Records that the relays have answered.
    pub(crate) fn reached(&self) {
        self.note(Some("the relay answers, but no path was open so far".to_owned()));
    }

    /// Records why there is no path now.
    pub(crate) fn failed(&self, why: String) {
        self.note(Some(why));
    }

    fn note(&self, why: Option<String>) {
        // After the first path, the session's own list shows the rest.
        if let Some(known) = lock(&self.tries.0).get_mut(&self.way).filter(|known| known.is_some()) {
            *known = why;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(port: u16) -> RelayRoute {
        let node = anabranch_net::NodeKey::from_random([1; 32]).public();
        format!("{node}@192.0.2.1:{port}").parse().unwrap()
    }

    #[test]
    fn a_way_is_without_path_until_one_opens_and_the_last_reason_is_told() {
        let tries = Tries::default();
        let (one, other) = (tries.begin(&route(1)), tries.begin(&route(2)));
        other.opened();
        other.failed("the relay is gone".to_owned());
        let told = |why: &str| vec![(route(1).to_string(), why.to_owned())];
        assert_eq!(tries.without_path(), told(NO_ANSWER));
        one.reached();
        assert!(tries.without_path()[0].1.starts_with("the relay answers"));
        one.failed("the relay is gone".to_owned());
        assert_eq!(tries.begin(&route(1)).tries.without_path(), told("the relay is gone"));
        one.opened();
        assert!(tries.without_path().is_empty());
    }

    /// Keeps the levels of what is logged.
    #[derive(Clone, Default)]
    struct Levels(Arc<Mutex<Vec<tracing::Level>>>);

    impl tracing::Subscriber for Levels {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
            tracing::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            lock(&self.0).push(*event.metadata().level());
        }

        fn enter(&self, _: &tracing::Id) {}

        fn exit(&self, _: &tracing::Id) {}
    }

    #[test]
    fn the_end_of_a_problem_that_a_warning_told_is_a_warning_too() {
        let levels = Levels::default();
        tracing::subscriber::with_default(levels.clone(), || {
            let tried = Tries::default().begin(&route(1));
            tried.opened();
            tried.warned();
            tried.opened();
            tried.opened();
        });
        let [info, warn] = [tracing::Level::INFO, tracing::Level::WARN];
        assert_eq!(*lock(&levels.0), [info, warn, info]);
    }

    #[test]
    fn ways_without_end_take_no_more_room_than_is_said() {
        let tries = Tries::default();
        (1..=1_000).for_each(|port| tries.begin(&route(port)).failed("the relay is gone".to_owned()));
        assert_eq!(tries.without_path().len(), MOST);
    }
}
