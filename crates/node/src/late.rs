//! Relays that do not answer while a node dials: reported once, not again by every attempt.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::relay::RelayRoute;

/// Routes whose relays were reported as silent and have not answered since, until a session is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Late(Arc<Mutex<BTreeSet<String>>>);

impl Late {
    /// Reports that the route's relays have been silent for so long, unless that is known.
    pub(crate) fn report(&self, route: &RelayRoute, waited: Duration) {
        if self.is_news(route) {
            let waited = waited.as_secs();
            tracing::warn!(relay = %route, "the relay has not answered for {waited} s; is it running there? Still trying");
        }
    }

    fn is_news(&self, route: &RelayRoute) -> bool {
        self.routes().insert(route.to_string())
    }

    /// Reports that they answer, if they were reported as silent.
    pub(crate) fn clear(&self, route: &RelayRoute) {
        if self.routes().remove(&route.to_string()) {
            tracing::warn!(relay = %route, "the relay answers now");
        }
    }

    /// Forgets all when a session is open: relays that are silent when it is lost are news.
    pub(crate) fn forget(&self) {
        self.routes().clear();
    }

    fn routes(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_relay_is_news_again_when_it_has_answered_or_a_session_was_open() {
        let late = Late::default();
        let route = RelayRoute(Vec::new());
        assert!(late.is_news(&route) && !late.is_news(&route));
        late.clear(&route);
        assert!(late.is_news(&route) && !late.is_news(&route));
        late.forget();
        assert!(late.is_news(&route));
    }
}
