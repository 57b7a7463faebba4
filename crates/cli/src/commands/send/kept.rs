//! `send --name`: a ticket that stays good when the command is started again.
//!
//! The share and the port come from the ticket store, the key from the usual key file.

use std::path::{Path, PathBuf};

use anabranch_node::{TicketShare, keyfile};
use anabranch_wire::Span;

use super::{SendArgs, Source};
use crate::commands::ticket;
use crate::errors::Failure;
use crate::ticket_store::{SenderTicket, TicketStore, check_secrets};

/// A ticket in the store.
pub struct Kept {
    store: TicketStore,
    ticket: SenderTicket,
}

/// Opens the ticket that `--name` names; `None` without `--name`.
pub fn open(args: &SendArgs, source: &Source) -> Result<Option<Kept>, Failure> {
    let Some(name) = &args.name else { return Ok(None) };
    let Source::Paths(paths) = source else {
        return Err(Failure::usage("standard input is received once: `--name` cannot keep its ticket")
            .hint("`--as NAME` names the file that the receiver gets"));
    };
    let name = ticket::name(name).map_err(Failure::usage)?;
    let paths = paths.iter().map(|path| real(path)).collect::<Result<Vec<PathBuf>, Failure>>()?;
    let store = TicketStore::of_user()?;
    let key = args.node.key.clone().map_or_else(keyfile::default_path, Ok)?;
    check_secrets(&paths, &[&key, store.directory()])?;
    let ticket = store.open_for_sender(&name, &paths, args.life())?;
    Ok(Some(Kept { store, ticket }))
}

fn real(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| Failure::file("find", path, &error))
}

impl Kept {
    /// The name of the ticket.
    pub fn name(&self) -> &str {
        &self.ticket.name
    }

    /// The share of the ticket.
    pub fn share(&self) -> &TicketShare {
        &self.ticket.share
    }

    /// The UDP port of the earlier run.
    pub fn port(&self) -> Option<u16> {
        self.ticket.port
    }

    /// Stores the ticket with this port and key for the next run.
    pub fn keep(&mut self, port: u16, key: &str) -> Result<(), Failure> {
        self.store.keep(&mut self.ticket, port, key)
    }

    /// Warnings for a ticket that an earlier run made: about its earlier lines, and about its life.
    pub fn warnings(&self, args: &SendArgs, port: u16, key: &str) -> Vec<String> {
        let name = self.name();
        let is_other = |life: Span| self.ticket.is_old() && !self.ticket.lasts(life);
        let keeps_end = args.expires.is_some_and(is_other).then(|| {
            format!(
                "`--expires` does not change the ticket `{name}`, which was made before; `anabranch ticket revoke {name}` \
                 ends it, and the next run makes another one"
            )
        });
        self.ticket.warning(port, key).into_iter().chain(keeps_end).collect()
    }

    /// True after `anabranch ticket revoke`.
    pub fn is_revoked(&self) -> bool {
        !self.store.has(&self.ticket.name, self.ticket.share.id)
    }
}
