//! The clients of a server of folders: list, get and put.

use anabranch_wire::ForeignText;

use crate::ask::Ask;
use crate::connection::Connection;
use crate::control::ControlLink;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta};
use crate::path::RelPath;
use crate::policy::{Conflict, Mirror, Placing};
use crate::progress::Progress;
use crate::receive::{Intake, ReceiveOptions, Target, read_list, receive_over};
use crate::report::{Report, Summary};
use crate::send::{Share, send_over};

/// The files to get from a server.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    paths: Vec<RelPath>,
    contents: bool,
    attributes: bool,
}

impl Wanted {
    /// These paths, each of which arrives under its last name; none for everything.
    pub fn paths<P: AsRef<str>>(paths: &[P]) -> Result<Self, TransferError> {
        let paths = paths.iter().filter_map(|path| parse(path.as_ref()).transpose());
        Ok(Self { paths: paths.collect::<Result<_, _>>()?, ..Self::default() })
    }

    /// The contents of this directory, without its own name.
    pub fn contents_of(directory: &str) -> Result<Self, TransferError> {
        Ok(Self { contents: true, ..Self::paths(&[directory])? })
    }

    /// Whether their extended attributes are wanted, too.
    #[must_use]
    pub fn with_attributes(self, attributes: bool) -> Self {
        Self { attributes, ..self }
    }
}

/// Where a server puts files, and what it does with names that are taken.
#[derive(Clone, Debug)]
pub struct Place {
    to: Option<RelPath>,
    placing: Placing,
}

impl Place {
    /// In this directory; "" leaves it to a server with one folder.
    pub fn in_directory(to: &str, conflict: Conflict) -> Result<Self, TransferError> {
        Ok(Self { to: parse(to)?, placing: Placing { conflict, mirror: None } })
    }

    /// The directory becomes a copy of the share.
    pub fn mirror(to: &str, mirror: Mirror) -> Result<Self, TransferError> {
        let placing = Placing { conflict: Conflict::Overwrite, mirror: Some(mirror) };
        Ok(Self { to: parse(to)?, placing })
    }
}

/// A path as users write it: with any slashes at its ends, and `.` for the top.
fn parse(path: &str) -> Result<Option<RelPath>, TransferError> {
    let path = path.trim_matches('/');
    let path = path.strip_prefix("./").unwrap_or(path);
    if path.is_empty() || path == "." { Ok(None) } else { RelPath::parse(path).map(Some) }
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its path below the listed directory.
    pub path: ForeignText,
    pub kind: ListedKind,
    /// Permission bits; `None` for links.
    pub mode: Option<u16>,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedKind {
    File {
        /// Length in bytes, if known.
        size: Option<u64>,
        /// Seconds since 1970 of its last change, if known.
        modified: Option<i64>,
    },
    Directory,
    /// A symbolic link.
    Link {
        text: ForeignText,
    },
}

impl From<Entry> for Listed {
    fn from(entry: Entry) -> Self {
        let path = entry.path.to_foreign();
        let (kind, mode) = match entry.kind {
            EntryKind::File(FileMeta { size, mode, modified, .. }) => {
                (ListedKind::File { size, modified: modified.map(|time| time.seconds) }, Some(mode))
            }
            EntryKind::Directory { mode, .. } => (ListedKind::Directory, Some(mode)),
            EntryKind::Link { text } => (ListedKind::Link { text: text.as_str().into() }, None),
        };
        Self { path, kind, mode }
    }
}

/// Lists the directory at `path` of the server at the other end of `connection`; "" is the top. `deep` lists everything
/// below, too. Returns the entries, and the outcome: [`TransferError::Incomplete`] names those that the server cannot read.
pub async fn list<C: Connection>(
    connection: &C,
    path: &str,
    deep: bool,
) -> Result<(Vec<Listed>, Result<Summary, TransferError>), TransferError> {
    let ask = Ask::List { path: parse(path)?, deep };
    let mut control = open(connection, ask).await?;
    let report = Report::default();
    let listed = async {
        control.begin().await?;
        read_list(&mut control, &ReceiveOptions::default().limits, &report).await
    };
    match listed.await {
        Ok(list) => {
            let outcome = report.finish();
            control.part(&outcome).await;
            Ok((list.entries.into_iter().map(Listed::from).collect(), outcome))
        }
        Err(error) => {
            let outcome = Err(control.explain(error).await);
            control.part(&outcome).await;
            outcome.map(|summary| (Vec::new(), Ok(summary)))
        }
    }
}

/// Gets files and directories from the server at the other end of `connection`, as [`receive`](crate::receive) does.
///
/// # Errors
/// [`TransferError`]; the server gets a reason that concerns it.
pub async fn get<C: Connection>(
    connection: &C,
    wanted: &Wanted,
    target: Target,
    options: &ReceiveOptions,
    progress: &Progress,
) -> Result<Summary, TransferError> {
    let Wanted { paths, contents, attributes } = wanted.clone();
    let ask = Ask::Get { paths, contents, attributes };
    let control = open(connection, ask).await?;
    receive_over(connection, control, Intake { target, options, misses_attributes: false }, progress).await
}

/// Sends a share to the server at the other end of `connection`, until the server has everything on disk.
///
/// # Errors
/// [`TransferError`]; the server gets a reason that concerns it.
pub async fn put<C: Connection>(
    connection: &C,
    place: &Place,
    share: &Share,
    progress: &Progress,
) -> Result<Summary, TransferError> {
    let ask = Ask::Put { to: place.to.clone(), placing: place.placing };
    let control = open(connection, ask).await?;
    send_over(connection, control, share, progress).await
}

/// Opens a control stream on which this end asks.
async fn open<C: Connection>(connection: &C, ask: Ask) -> Result<ControlLink<C::Stream>, TransferError> {
    ask.check()?;
    let stream = connection.open().await.map_err(TransferError::Connection)?;
    Ok(ControlLink::new(stream).asking(ask))
}
