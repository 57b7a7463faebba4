//! A client's session, and the share that it hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anabranch_secure::{PublicKey, ShareId, TicketSecret};
use anabranch_wire::{PathId, Time, source};

use super::types::{Hop, SessionId};

/// A session of the service, as the core knows it.
pub(super) struct Client {
    pub key: PublicKey,
    pub account: u32,
    pub guest_of: Option<ShareId>,
    pub greeted: bool,
    /// The service was requested to close it.
    pub dismissed: bool,
    /// It may measure this relay, and has requested nothing else so far.
    pub measures: bool,
    /// Since when it may not use the relay.
    pub unentitled_since: Time,
    /// Whether it could use the relay at the last sweep, or since.
    pub was_entitled: bool,
    pub paths: BTreeMap<PathId, Hop>,
    pub flows: BTreeSet<u32>,
    /// Flows of guests that lead to this session.
    pub hosted: BTreeSet<u32>,
}

/// A ticket's share, as its host registered it.
pub(super) struct Share {
    pub session: SessionId,
    pub hash: TicketSecret,
    /// Most flows of all its guests together.
    pub most: u32,
    /// Sessions of the same key that hosted it before and are still open, the latest last.
    pub earlier: Vec<SessionId>,
}

impl Share {
    /// Whether a session hosts it, or would again if later ones ended.
    pub(super) fn has(&self, session: SessionId) -> bool {
        self.session == session || self.earlier.contains(&session)
    }

    /// Removes a session that no longer hosts the share; the session before it hosts again. False if no session is left.
    pub(super) fn leave(&mut self, session: SessionId) -> bool {
        self.earlier.retain(|earlier| *earlier != session);
        if self.session != session {
            return true;
        }
        let before = self.earlier.pop();
        self.session = before.unwrap_or(session);
        before.is_some()
    }
}

impl Client {
    /// The source of its first path.
    pub(super) fn source(&self) -> Option<IpAddr> {
        self.paths.values().next().map(|hop| source(hop.address.ip()))
    }
}
