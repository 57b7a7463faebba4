//! `send --name`: a ticket that stays good when the command is started again.
//!
//! The share and the port come from the ticket store, the key from the usual key file.

use std::path::{Path, PathBuf};

use anabranch_net::ShareId;
use anabranch_node::keyfile;

use super::{SendArgs, Source};
use crate::commands::ticket;
use crate::errors::Failure;
use crate::ticket_store::{SenderTicket, TicketStore, check_secrets};

/// A ticket in the store.
pub struct Kept {
    store: TicketStore,
    /// Its name.
    pub name: String,
    share: ShareId,
}

/// Opens the ticket that `--name` names; `None` without `--name` and for standard input, which it names instead.
pub fn open(args: &SendArgs, source: &Source) -> Result<Option<(SenderTicket, Kept)>, Failure> {
    let (Some(name), Source::Paths(paths)) = (&args.name, source) else { return Ok(None) };
    let name = ticket::name(name).map_err(Failure::usage)?;
    let paths = paths.iter().map(|path| real(path)).collect::<Result<Vec<PathBuf>, Failure>>()?;
    let store = TicketStore::of_user()?;
    let key = args.node.key.clone().map_or_else(keyfile::default_path, Ok)?;
    check_secrets(&paths, &[&key, store.directory()])?;
    let ticket = store.open_for_sender(&name, &paths, args.expires)?;
    let share = ticket.share.id;
    Ok(Some((ticket, Kept { store, name, share })))
}

fn real(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| Failure::file("find", path, &error))
}

impl Kept {
    /// Remembers the port for the next run.
    pub fn keep_port(&self, port: u16) -> Result<(), Failure> {
        self.store.keep_port(&self.name, port)
    }

    /// True after `anabranch ticket revoke`.
    pub fn is_revoked(&self) -> bool {
        !self.store.has(&self.name, self.share)
    }
}
