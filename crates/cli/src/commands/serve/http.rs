//! The folders over plain HTTP, for browsers and `curl` (`serve --http`).
//!
//! HTTP has neither keys nor tickets. So only folders that every ticket and key may read are shown, and only as long as a
//! ticket is left: without one, they are for listed keys alone.

use std::io;
use std::net::SocketAddr;

use anabranch_service::http::files::{self, Files, Found, Row, RowKind};
use anabranch_service::http::{Door, HttpSettings};
use anabranch_transfer::{self as transfer, Folders, Listed, ListedKind, TransferError};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// Reads the address of `--http`.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is no address with a port; write 127.0.0.1:8080, or 0.0.0.0:8080 for every network")
    })
}

/// Binds the address.
pub async fn open(address: Option<SocketAddr>) -> Result<Option<Door>, Failure> {
    let Some(address) = address else { return Ok(None) };
    let door = Door::open(&HttpSettings { address, token: None, tls: None }).await;
    let door = door.map_err(|error| Failure::local(error.to_string()));
    door.map(Some).map_err(|failure| failure.hint("name another address or port with `--http`"))
}

/// Shows the folders at the door, until the result is dropped.
pub fn show(door: Option<Door>, folders: &Folders, (json, context): (bool, Context)) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let Some(door) = door else { return tasks };
    let url = door.address().map(|address| format!("http://{address}/")).unwrap_or_default();
    tasks.spawn(files::serve(door, Shown(folders.clone())));
    if json {
        // A reader that is gone has what it wanted.
        let _ = Stream::Stdout.json(&serde_json::json!({ "event": "http", "url": url }));
    } else if !context.quiet {
        out::sentence(&format!(
            "everyone who reaches {url} can list and read, unencrypted and without a ticket"
        ));
    }
    tasks
}

/// The folders as files for HTTP.
#[derive(Clone)]
struct Shown(Folders);

impl Files for Shown {
    async fn find(&self, path: &str) -> io::Result<Found> {
        match self.0.find(path).await {
            Ok(transfer::Found::File(file)) => Ok(Found::File(file)),
            Ok(transfer::Found::Directory { entries, left_out }) => {
                Ok(Found::Directory { rows: entries.iter().map(row).collect(), left_out })
            }
            Err(TransferError::UnsafePath { .. } | TransferError::Refused(_)) => {
                Err(io::ErrorKind::NotFound.into())
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    async fn admit(&self, most: usize) -> usize {
        self.0.admit(most).await
    }
}

fn row(listed: &Listed) -> Row {
    let kind = match listed.kind {
        ListedKind::File { size, modified } => RowKind::File { size, modified },
        ListedKind::Directory => RowKind::Directory,
        ListedKind::Link { .. } => RowKind::Link,
    };
    // The page escapes it.
    Row { name: listed.path.raw().to_owned(), kind }
}
