//! Chains of relays, and the flows that carry one path through them.
//!
//! Flows are allocated from the last relay to the first, each with the PID of the next one. Then the return PIDs are
//! set from the first relay to the last. `docs/reference/protocol.md` has a picture.

use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::task::Poll;

use anabranch_net::{Chain, Endpoint, Event, Events, PathId, Pid, PublicKey, Session};
use anabranch_overlay::relay::{FlowState, Target};
use anabranch_secure::RelayHint;

use super::connection::RelayConnection;
use super::requests::{Flow, Wanted};
use super::{Entry, RelayError};
use crate::grants::Grants;

/// The return PID until the previous relay is known.
const PLACEHOLDER: Pid = Pid(1);

/// Sessions to relays, each through those before it.
pub struct RelayChain {
    links: Vec<Link>,
    is_guest: bool,
}

struct Link {
    connection: RelayConnection,
    /// The address at which the relay before this one reaches it; `None` for the first.
    at: Option<SocketAddr>,
}

/// Flows that carry one path.
pub struct Prepared {
    /// The chain over which the path is opened.
    pub(crate) chain: Chain,
    flows: Vec<Flow>,
}

impl RelayChain {
    /// Opens a session to each relay in turn; a guest opens only one.
    pub async fn open(endpoint: &Endpoint, hints: &[RelayHint], entry: &Entry) -> Result<Self, RelayError> {
        let is_guest = matches!(entry, Entry::Guest(_));
        let mut chain = Self { links: Vec::new(), is_guest };
        for hint in hints {
            let link = match entry {
                _ if chain.links.is_empty() => {
                    Link { connection: RelayConnection::open(endpoint, hint, entry).await?, at: None }
                }
                Entry::Member(grants) => chain.extend(endpoint, hint, grants).await?,
                Entry::Guest(_) => return Err(RelayError::NoAddress),
            };
            chain.links.push(link);
        }
        Ok(chain)
    }

    /// Opens a session to the next relay, at the first of its addresses that answers the relay before it.
    async fn extend(
        &self,
        endpoint: &Endpoint,
        hint: &RelayHint,
        grants: &Grants,
    ) -> Result<Link, RelayError> {
        let mut last = RelayError::NoAddress;
        for address in &hint.addresses {
            match self.extend_to(endpoint, (hint, *address), grants).await {
                Err(error) if error.is_about_next_hop() => last = error,
                extended => return extended,
            }
        }
        Err(last)
    }

    async fn extend_to(
        &self,
        endpoint: &Endpoint,
        (hint, address): (&RelayHint, SocketAddr),
        grants: &Grants,
    ) -> Result<Link, RelayError> {
        let own = endpoint.new_pid();
        let prepared = self.prepare(Some((address, hint.node)), (Pid::HANDSHAKE, own), None).await?;
        let over = (own, prepared);
        let connection = RelayConnection::open_through(endpoint, (hint, grants.clone()), over).await?;
        Ok(Link { connection, at: Some(address) })
    }

    /// Whether this node is a guest, so that the chain leads only to its host.
    pub fn is_guest(&self) -> bool {
        self.is_guest
    }

    /// The addresses at which the first relay answers, the quickest first.
    pub(crate) fn entries(&self) -> Vec<SocketAddr> {
        self.links.first().map(|link| link.connection.entries()).unwrap_or_default()
    }

    /// Whether the first relay may be entered at several addresses.
    pub(crate) fn has_choice(&self) -> bool {
        self.links.first().is_some_and(|link| link.connection.has_choice())
    }

    /// Allocates flows to a node, or with `None` to the host of a guest. The path's PID is `out` at the node and `own`
    /// here. It enters the first relay at `entry`, or at the address that answers first.
    ///
    /// # Errors
    /// When a relay refuses, or a next hop does not agree.
    pub async fn prepare(
        &self,
        last: Option<(SocketAddr, PublicKey)>,
        (out, own): (Pid, Pid),
        entry: Option<SocketAddr>,
    ) -> Result<Prepared, RelayError> {
        let (mut flows, mut targets): (Vec<Flow>, Vec<Option<SocketAddr>>) = Default::default();
        let mut next = (last, out);
        for (index, link) in self.links.iter().enumerate().rev() {
            let target = match next.0 {
                Some((address, key)) => Target::Address { address, key: Some(key) },
                None => Target::Host,
            };
            let back = if index == 0 { own } else { PLACEHOLDER };
            let entry = entry.filter(|_| index == 0);
            let flow = link.connection.allocate_at(entry, Wanted { target, out: next.1, back }).await?;
            targets.insert(0, next.0.map(|(address, _)| address));
            next = (link.at.map(|address| (address, link.connection.node())), flow.forward);
            flows.insert(0, flow);
        }
        for index in 1..flows.len() {
            let (back, out) = (flows[index - 1].back, flows.get(index + 1).map_or(out, |flow| flow.forward));
            flows[index].redirect(out, back, false).await?;
        }
        for (flow, target) in flows.iter_mut().zip(targets) {
            flow.ready().await.map_err(|error| match (error, target) {
                (RelayError::Over(FlowState::NoConsent), Some(target)) => RelayError::Unanswered(target),
                (error, _) => error,
            })?;
        }
        let (Some(first), Some(last)) = (flows.first(), flows.last()) else {
            return Err(RelayError::NoAddress);
        };
        let relays = self.connections().map(RelayConnection::node).collect();
        let chain = Chain { entry: first.entry, forward: first.forward, back: last.back, relays };
        Ok(Prepared { chain, flows })
    }

    fn connections(&self) -> impl Iterator<Item = &RelayConnection> {
        self.links.iter().map(|link| &link.connection)
    }

    /// Waits until one of the sessions is over.
    pub async fn broken(&self) {
        first_of(self.connections().map(RelayConnection::closed)).await;
    }

    /// Waits until a relay is silent or, given a silent one, until it answers again; returns its index.
    pub(crate) async fn silent(&self, known: Option<usize>) -> usize {
        let mut events: Vec<Events> = self.connections().map(RelayConnection::events).collect();
        loop {
            // Relays behind a silent one are silent too.
            let silent = self.connections().position(RelayConnection::is_silent);
            match (silent, known) {
                (Some(at), None) => return at,
                (silent, Some(at)) if silent != Some(at) => return at,
                _ => {}
            }
            first_of(events.iter_mut().map(changed)).await;
        }
    }
}

impl Prepared {
    /// After a handshake through the chain, directs the last flow to the PID that the node assigned to the path.
    pub(crate) async fn lead_to(&mut self, session: &Session, path: PathId) -> Result<(), RelayError> {
        let out = session.remote_pid(path).ok_or(RelayError::Gone)?;
        let last = self.flows.last_mut().ok_or(RelayError::Gone)?;
        last.redirect(out, Pid::HANDSHAKE, true).await
    }

    /// Waits until one of the flows ends, and returns the reason.
    pub(crate) async fn over(&mut self) -> RelayError {
        first_of(self.flows.iter_mut().map(Flow::over)).await
    }
}

/// Waits for an event of a path; never returns once the session is closed.
pub(crate) async fn changed(events: &mut Events) {
    loop {
        match events.next().await {
            Some(Event::Path { .. }) => return,
            Some(_) => {}
            None => pending().await,
        }
    }
}

/// Waits for the first of several that is ready.
async fn first_of<T, F: Future<Output = T>>(futures: impl Iterator<Item = F>) -> T {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|cx| {
        let ready = futures.iter_mut().find_map(|future| match future.as_mut().poll(cx) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
