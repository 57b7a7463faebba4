//! Tickets that lead to a node, and its presence at the relays that they name.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anabranch_net::Ticket;
use anabranch_secure::RelayHint;

use crate::access::TicketShare;
use crate::address::NodeAt;
use crate::error::{Error, ErrorKind};
use crate::node::{Node, ONLY_HERE, only_here};
use crate::relay::{Hosting, RelayError, RelayRoute};

pub const MOST_RELAYS_IN_TICKET: usize = 8;

/// A ticket, and this node's registrations at the ticket's relays, which end when this is dropped.
#[derive(Debug)]
pub struct Invitation {
    /// The ticket to give to others.
    pub ticket: Ticket,
    /// Addresses that the ticket has no room for, and granted relays that could not be used, with the reasons. A warning
    /// if the ticket has only loopback addresses.
    pub left_out: Vec<String>,
    _hosting: Vec<Hosting>,
}

impl Invitation {
    pub(crate) async fn make(
        node: &Node,
        share: &TicketShare,
        outside: &[SocketAddr],
    ) -> Result<Self, Error> {
        let mut seen = BTreeSet::new();
        let mapped = node.mapped_addresses();
        let addresses = outside.iter().copied().chain(mapped).chain(node.addresses());
        let mut addresses: Vec<SocketAddr> = addresses.filter(|address| seen.insert(*address)).collect();
        let omitted = addresses.split_off(addresses.len().min(Ticket::MAX_ADDRESSES));
        let mut invitation = Self {
            ticket: Ticket {
                node: node.id(),
                addresses,
                relays: Vec::new(),
                share: share.id,
                secret: share.secret.clone(),
                expires: share.expires(),
            },
            left_out: without_room(&omitted).into_iter().collect(),
            _hosting: Vec::new(),
        };
        invitation.register(node).await?;
        if only_here(&invitation.ticket.addresses) {
            invitation.left_out.push(ONLY_HERE.to_owned());
        }
        Ok(invitation)
    }

    /// Logs what the ticket leaves out.
    pub fn warn_of_omissions(&self) {
        self.left_out.iter().for_each(|what| tracing::warn!("{what}"));
    }

    /// Registers at the configured relays, which must all succeed, and at the granted ones, of which one must succeed.
    async fn register(&mut self, node: &Node) -> Result<(), Error> {
        let named = singles(node.relays())?;
        let is_new = |relay: &RelayHint| named.iter().all(|other| other.node != relay.node);
        let granted: Vec<NodeAt> =
            node.grants().relays().into_iter().filter(is_new).map(NodeAt::from).collect();
        let all = named.iter().chain(&granted).take(MOST_RELAYS_IN_TICKET);
        let secret = &self.ticket.secret;
        let host =
            |relay: &NodeAt| Hosting::at(node.endpoint(), relay.clone(), node.grants(), secret.clone());
        let hosting: Vec<(&NodeAt, Hosting)> = all.map(|relay| (relay, host(relay))).collect();
        let mut last = None;
        for (at, (relay, mut hosting)) in hosting.into_iter().enumerate() {
            match hosting.registered().await {
                Ok(hint) => {
                    // With addresses, because the ticket's holder may have another name server or none.
                    self.ticket.relays.push(hint);
                    self._hosting.push(hosting);
                }
                Err(error) if at < named.len() => return Err(not_through(node, relay, &error)),
                Err(error) => {
                    self.left_out.push(format!("relay {} is left out: {error}", relay.node));
                    last = Some(not_through(node, relay, &error));
                }
            }
        }
        match last {
            Some(error) if self.ticket.relays.is_empty() => Err(error),
            _ => Ok(()),
        }
    }
}

/// The note for addresses that are not in a ticket.
fn without_room(omitted: &[SocketAddr]) -> Option<String> {
    let all: Vec<String> = omitted.iter().map(ToString::to_string).collect();
    let note = || {
        format!(
            "the ticket has room for {} addresses; left out: {} (a receiver can name one with `--address`)",
            Ticket::MAX_ADDRESSES,
            all.join(", ")
        )
    };
    (!omitted.is_empty()).then(note)
}

fn not_through(node: &Node, relay: &NodeAt, error: &RelayError) -> Error {
    let failure = Error::new(ErrorKind::Unreachable, format!("not reachable through {relay}: {error}"));
    if let RelayError::Unresolved(_) = error {
        return failure;
    }
    failure.hint(format!(
        "is `anabranch relay` running there, and does it list this node's key, {}, or name the controller?",
        node.id()
    ))
}

/// The relays for a ticket: one for each route.
fn singles(routes: &[RelayRoute]) -> Result<Vec<NodeAt>, Error> {
    if routes.len() > MOST_RELAYS_IN_TICKET {
        return Err(Error::usage(format!("a ticket names {MOST_RELAYS_IN_TICKET} relays at most")));
    }
    let single = |route: &RelayRoute| match &route.0[..] {
        [relay] => Ok(relay.clone()),
        _ => Err(Error::usage("a ticket names single relays, not one behind the other")
            .hint("give `--relay` once for each")),
    };
    routes.iter().map(single).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_room_in_the_ticket_are_named() {
        assert_eq!(without_room(&[]), None);
        let omitted = ["192.0.2.1:9".parse().unwrap(), "[2001:db8::1]:9".parse().unwrap()];
        let note = without_room(&omitted).unwrap();
        assert!(note.contains("room for 16 addresses; left out: 192.0.2.1:9, [2001:db8::1]:9 ("), "{note}");
    }
}
