//! Sessions that may not use the relay: of keys without a grant so far, and of guests without a flow.
//!
//! If the relay has controllers, anyone may open such a session. So they are few
//! ([`RelayConfig::most_strangers`](super::RelayConfig::most_strangers)) and short. When there are too many, the source
//! with the most, within the [site](anabranch_wire::site) with the most, loses its oldest: a flood cannot shut out a
//! client that shows its grant within a round trip. A key may have [`MOST_OF_A_KEY`]; further ones are refused as busy.
//! A guest with a flow counts against its host's limits instead.
//!
//! A session whose key loses its right to use the relay becomes such a session. Its paths end at once, and its client
//! may show another grant within [`PATIENCE`]. So may a guest whose last flow has ended ask for another.

use anabranch_secure::PublicKey;
use anabranch_wire::{Span, Time, largest_source};

use super::Relay;
use super::account::Ended;
use super::client::Client;
use super::types::SessionId;
use crate::admission::Full;

/// Most such sessions of one key.
pub(super) const MOST_OF_A_KEY: usize = 4;
/// How long one may last.
const PATIENCE: Span = Span::from_secs(10);

/// Why a session is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// It had no right to use the relay and has not acquired one in time.
    NoBusiness,
    /// Its place was needed for another.
    GaveWay,
    /// There are too many sessions of its key, of its source, or in total.
    Full(Full),
    /// It had a right to use the relay and has lost it.
    Ended(Ended),
}

impl Relay {
    /// Whether a further session of this key that may not use the relay is admitted.
    pub(super) fn has_room_for(&self, key: &PublicKey) -> bool {
        let of_key = self.sessions.of_key(key).filter_map(|session| self.clients.get(&session));
        let count = of_key.filter(|client| self.is_stranger(client)).count();
        count < MOST_OF_A_KEY.min(self.config.most_strangers)
    }

    /// Ends another such session if there is no room for one of this key.
    pub(super) fn make_room_for(&mut self, key: &PublicKey) {
        let loser = if !self.has_room_for(key) {
            self.strangers().find(|(_, client)| client.key == *key).map(|(session, _)| session)
        } else if self.strangers().count() >= self.config.most_strangers {
            self.oldest_of_the_largest_source()
        } else {
            None
        };
        if let Some(session) = loser {
            self.dismiss(session, Dismissal::GaveWay);
        }
    }

    /// Ends the oldest of these sessions that carries nothing, or the oldest.
    pub(super) fn end_one_of(&mut self, candidates: &[SessionId]) {
        let is_idle = |session: &&SessionId| {
            self.clients.get(session).is_none_or(|client| client.flows.is_empty() && client.hosted.is_empty())
        };
        if let Some(session) = candidates.iter().find(is_idle).or(candidates.first()).copied() {
            self.dismiss(session, Dismissal::GaveWay);
        }
    }

    /// Records which sessions have lost or gained the right to use the relay since the last sweep. A guest has it while
    /// it has a flow.
    pub(super) fn note_lost_rights(&mut self, now: Time) {
        for client in self.clients.values_mut() {
            let is_entitled = match client.guest_of {
                None => self.accounts.may_use(client.account),
                Some(_) => !client.flows.is_empty(),
            };
            if client.was_entitled && !is_entitled {
                client.unentitled_since = now;
            }
            client.was_entitled = is_entitled;
        }
    }

    /// Ends sessions that have gone without a right to use the relay for too long.
    pub(super) fn dismiss_unentitled(&mut self, now: Time) {
        let late = self.strangers().filter(|(_, client)| client.unentitled_since + PATIENCE <= now);
        for (session, account) in late.map(|(session, client)| (session, client.account)).collect::<Vec<_>>()
        {
            let why = self.accounts.at(account).ended.map_or(Dismissal::NoBusiness, Dismissal::Ended);
            self.dismiss(session, why);
        }
    }

    /// Sessions that may not use the relay, by age.
    fn strangers(&self) -> impl Iterator<Item = (SessionId, &Client)> {
        let strangers = self.clients.iter().filter(|(_, client)| self.is_stranger(client));
        strangers.map(|(session, client)| (*session, client))
    }

    fn is_stranger(&self, client: &Client) -> bool {
        let may_use = client.guest_of.is_none() && self.accounts.may_use(client.account);
        !may_use && !client.measures && client.flows.is_empty() && !client.dismissed
    }

    fn oldest_of_the_largest_source(&self) -> Option<SessionId> {
        let sources: Vec<_> = self.strangers().map(|(_, client)| client.source()).collect();
        let largest = largest_source(&sources)?;
        self.strangers().find(|(_, client)| client.source() == largest).map(|(session, _)| session)
    }

    fn dismiss(&mut self, session: SessionId, why: Dismissal) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        if !std::mem::replace(&mut client.dismissed, true) {
            self.sessions.remove(session);
            self.closing.push_back((session, why));
        }
    }
}
