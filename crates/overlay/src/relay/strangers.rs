//! Places of sessions that may not use the relay: of keys that have shown no grant yet, and of guests as long as they have no flow.
//!
//! Anybody may take one, so they are few ([`RelayConfig::most_strangers`](super::RelayConfig::most_strangers)) and only for a
//! while. When all are taken, the next one gets the oldest place of whoever has most, counted by source: who fills them shuts
//! out nobody that shows a grant within a round trip. Of one key there are [`MOST_OF_A_KEY`]; it is told to come later when
//! it wants more. A guest with a flow is paid for by its host's limits and needs no place.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anabranch_secure::PublicKey;
use anabranch_wire::{Span, Time, source};

use super::{Client, Relay, SessionId};

/// Most places of one key.
pub(super) const MOST_OF_A_KEY: usize = 4;
/// How long a session may have a place.
const STRANGER_TIME: Span = Span::from_secs(10);

/// Why a session is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// It may not use the relay, or has not for too long.
    NoBusiness,
    /// Its place was needed for another.
    GaveWay,
}

impl Relay {
    /// Whether a stranger with this key may come in.
    pub(super) fn has_room_for(&self, key: &PublicKey) -> bool {
        let of_key = self.strangers().filter(|(_, client)| client.key == *key).count();
        of_key < MOST_OF_A_KEY.min(self.config.most_strangers)
    }

    /// Dismisses whoever has to give way to a stranger with this key that is in.
    pub(super) fn make_room_for(&mut self, key: &PublicKey) {
        let loser = if !self.has_room_for(key) {
            self.strangers().find(|(_, client)| client.key == *key).map(|(session, _)| session)
        } else if self.strangers().count() >= self.config.most_strangers {
            self.oldest_of_whoever_has_most()
        } else {
            None
        };
        if let Some(session) = loser {
            self.dismiss(session, Dismissal::GaveWay);
        }
    }

    /// Dismisses strangers whose time is over.
    pub(super) fn dismiss_silent(&mut self, now: Time) {
        let late = self.strangers().filter(|(_, client)| client.opened + STRANGER_TIME <= now);
        for session in late.map(|(session, _)| session).collect::<Vec<_>>() {
            self.dismiss(session, Dismissal::NoBusiness);
        }
    }

    /// Those with a place, by age.
    fn strangers(&self) -> impl Iterator<Item = (SessionId, &Client)> {
        let has_place = |client: &Client| {
            let may_use = client.guest_of.is_none() && self.accounts.may_use(client.account);
            !may_use && client.flows.is_empty() && !client.dismissed
        };
        self.clients
            .iter()
            .filter(move |(_, client)| has_place(client))
            .map(|(session, client)| (*session, client))
    }

    fn oldest_of_whoever_has_most(&self) -> Option<SessionId> {
        let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for (_, client) in self.strangers() {
            *counts.entry(client.source()).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        self.strangers().find(|(_, client)| counts[&client.source()] == most).map(|(session, _)| session)
    }

    fn dismiss(&mut self, session: SessionId, why: Dismissal) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        client.dismissed = true;
        self.closing.push_back((session, why));
    }
}

impl Client {
    /// Who is behind the address of its first path.
    fn source(&self) -> Option<IpAddr> {
        self.paths.values().next().map(|hop| source(hop.address.ip()))
    }
}
