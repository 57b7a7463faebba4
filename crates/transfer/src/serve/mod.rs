//! The server of folders: answers what clients ask, within their rights.
//!
//! [`Folders::serve`] answers one request of one client, and is called again for the next. To get files is what
//! [`receive`](crate::receive) does with a share, so the server sends. To put files is the reverse: the server receives.

mod places;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::ask::Ask;
use crate::client::Listed;
use crate::connection::Connection;
use crate::control::ControlLink;
use crate::error::TransferError;
use crate::manifest::Limits;
use crate::message::Control;
use crate::path::RelPath;
use crate::policy::{Conflict, Placing};
use crate::progress::Progress;
use crate::receive::{Intake, Quota, ReceiveOptions, Target, receive_until};
use crate::report::{Report, Summary};
use crate::send::{Selection, Share, list, send_over, show_list};
use places::Places;

/// How long a client may take to ask, and to confirm a list.
const GREETING: Duration = Duration::from_secs(120);

/// Limits of a client's list; sixteen may be in memory.
const LIMITS: Limits = Limits { entries: 1 << 18, names: 32 << 20 };
/// Most entries of a directory that [`Folders::find`] returns.
const MOST_FOUND: usize = 10_000;
/// The reason for a client that got no place.
const NO_PLACE: &str = "others are putting files here; try again later";

/// The rights of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// List and get.
    Read,
    /// List, get, put and remove.
    Write,
    /// Put files into a directory of its own, and nothing else.
    Drop,
}

/// A client.
#[derive(Clone, Debug)]
pub struct Visitor {
    pub rights: Rights,
    /// Its key as text: the name of its directory in a drop box.
    pub name: String,
}

/// A request, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    List(String),
    /// Files.
    Get(Vec<String>),
    /// To take files.
    Put(String),
}

/// A request that was answered.
#[derive(Debug)]
pub struct Served {
    /// The request.
    pub task: Task,
    pub outcome: Result<Summary, TransferError>,
}

/// A file or directory at a path of the folders.
#[derive(Debug)]
pub enum Found {
    /// A file, open for reading.
    File(File),
    /// A directory.
    Directory {
        /// Its first entries by name.
        entries: Vec<Listed>,
        /// How many further ones it has.
        left_out: usize,
    },
}

/// Folders that a server offers; clones are the same folders.
#[derive(Clone, Debug)]
pub struct Folders {
    share: Share,
    quota: Option<Quota>,
    places: Arc<Places>,
}

impl Folders {
    /// Serves these directories, each under its own name.
    ///
    /// # Errors
    /// [`TransferError::Share`] when a path is not a directory, has no usable name, or has the name of another one.
    pub fn open<P: AsRef<Path>>(directories: &[P]) -> Result<Self, TransferError> {
        for path in directories.iter().map(AsRef::as_ref) {
            if path.is_file() {
                let why = "it is a file, and only directories can be served; give its directory".into();
                return Err(TransferError::Share { path: path.to_owned(), why });
            }
        }
        Ok(Self { share: Share::from_paths(directories)?.with_links(), quota: None, places: Arc::default() })
    }

    /// Limits what the folders may hold together, in bytes; each name counts as 4 KiB at least. It is checked before
    /// files are taken.
    #[must_use]
    pub fn hold_at_most(self, most: u64) -> Self {
        Self { quota: Some(Quota::new(most, self.directories())), ..self }
    }

    /// The directories that are served.
    pub fn directories(&self) -> Vec<PathBuf> {
        self.share.directories().iter().map(|(_, path)| path.to_path_buf()).collect()
    }

    /// The share that is served, to set its limits.
    #[must_use]
    pub fn with(self, limit: impl FnOnce(Share) -> Share) -> Self {
        Self { share: limit(self.share), ..self }
    }

    /// Opens what is at `path`, as a client with the right to read may; "" is the top, with the folders.
    ///
    /// # Errors
    /// [`TransferError::UnsafePath`] or [`TransferError::Refused`] for paths that are not in the folders, lead over a link
    /// or cannot be read.
    pub async fn find(&self, path: &str) -> Result<Found, TransferError> {
        let path = if path.is_empty() { None } else { Some(RelPath::parse(path)?) };
        if let Some(path) = path.clone() {
            let folders = self.share.clone();
            let opened = spawn_blocking(move || folders.open_file(&path)).await;
            if let Some(file) = opened.map_err(|error| TransferError::Connection(error.into()))?? {
                return Ok(Found::File(file));
            }
        }
        let share = self.share.select(&Selection {
            paths: path.as_slice(),
            contents: path.is_some(),
            shallow: true,
            attributes: false,
        })?;
        let listing = list(&share).await?;
        // The directory itself, which has no name in the list.
        if let Some(unreadable) = listing.left_out.iter().find(|what| what.path.is_empty()) {
            return Err(TransferError::Refused(unreadable.reason.raw().to_owned()));
        }
        let entries: Vec<Listed> =
            listing.entries.iter().take(MOST_FOUND).cloned().map(Listed::from).collect();
        let left_out = listing.entries.len() - entries.len();
        Ok(Found::Directory { entries, left_out })
    }

    /// Waits until some of `most` further bytes may be sent within the limit of the rate. Returns how many: no more than a
    /// session sends at once.
    pub async fn admit(&self, most: usize) -> usize {
        let Some(rate) = self.share.rate() else { return most };
        let bytes = most.min(rate.piece());
        rate.admit(bytes).await;
        bytes
    }

    /// Waits for the client's next request, and answers it. `None` when the client does not ask any more.
    pub async fn serve<C: Connection>(
        &self,
        connection: &C,
        visitor: &Visitor,
        progress: &Progress,
    ) -> Option<Served> {
        let stream = timeout(GREETING, connection.accept()).await.ok()?.ok()?;
        let mut control = ControlLink::new(stream);
        let asked = timeout(GREETING, control.expect_ask()).await;
        let asked = asked.unwrap_or(Err(TransferError::Stalled { after: GREETING }));
        let ask = match asked {
            // A receiver that asks for nothing gets everything.
            Ok(ask) => ask.unwrap_or(Ask::Get { paths: Vec::new(), contents: false, attributes: false }),
            Err(error) => {
                let outcome = Err(error);
                control.part(&outcome).await;
                return Some(Served { task: Task::List(String::new()), outcome });
            }
        };
        let task = task(&ask);
        let outcome = self.answer(connection, (control, ask), visitor, progress).await;
        Some(Served { task, outcome })
    }

    async fn answer<C: Connection>(
        &self,
        connection: &C,
        (mut control, ask): (ControlLink<C::Stream>, Ask),
        visitor: &Visitor,
        progress: &Progress,
    ) -> Result<Summary, TransferError> {
        if let Err(error) = check(&ask, visitor.rights) {
            return refuse(control, error).await;
        }
        match ask {
            Ask::List { path, deep } => {
                let outcome = self.show(&mut control, path.as_ref(), deep).await;
                control.part(&outcome).await;
                outcome
            }
            Ask::Get { paths, contents, attributes } => {
                let selection = Selection { paths: &paths, contents, attributes, shallow: false };
                match self.share.select(&selection).and_then(|share| share.checked(contents)) {
                    Ok(share) => send_over(connection, control, &share, progress).await,
                    Err(error) => refuse(control, error).await,
                }
            }
            Ask::Put { to, placing } => match self.destination(to.as_ref(), visitor) {
                Ok(target) => self.take(connection, control, (target, placing), progress).await,
                Err(error) => refuse(control, error).await,
            },
        }
    }

    /// Takes files from the client, when there is a place.
    async fn take<C: Connection>(
        &self,
        connection: &C,
        control: ControlLink<C::Stream>,
        (target, placing): (Target, Placing),
        progress: &Progress,
    ) -> Result<Summary, TransferError> {
        let Some(place) = self.places.take().await else {
            return refuse(control, TransferError::Refused(NO_PLACE.into())).await;
        };
        let options = ReceiveOptions {
            conflict: placing.conflict,
            mirror: placing.mirror,
            quota: self.quota.clone(),
            limits: LIMITS,
            allow_hidden: true,
            // Clients send them only on request.
            attributes: true,
            hard_links: true,
            ..ReceiveOptions::default()
        };
        let stop = async {
            tokio::select! {
                error = place.loses(progress) => error,
                reason = self.share.closed() => TransferError::Closed(reason),
            }
        };
        let intake = Intake { target, options: &options, misses_attributes: false };
        receive_until(connection, control, intake, progress, stop).await
    }

    /// Where the client's files go.
    fn destination(&self, to: Option<&RelPath>, visitor: &Visitor) -> Result<Target, TransferError> {
        let directories = self.share.directories();
        let (first, rest) =
            to.map_or(("", ""), |to| to.as_str().split_once('/').unwrap_or((to.as_str(), "")));
        let root = match &directories[..] {
            [(_, only)] if to.is_none() => only,
            all => all.iter().find(|(name, _)| name.as_str() == first).map(|(_, path)| path).ok_or_else(
                || {
                    let why = match to {
                        None => "name the folder of the server that the files are for".to_owned(),
                        Some(_) => "no folder of the server has this name".to_owned(),
                    };
                    TransferError::Refused(why)
                },
            )?,
        };
        let path = match (visitor.rights, rest) {
            (Rights::Drop, "") => visitor.name.clone(),
            (Rights::Drop, rest) => format!("{}/{rest}", visitor.name),
            (_, rest) => rest.to_owned(),
        };
        Ok(Target::Below { root: root.to_path_buf(), path })
    }

    /// Sends a list, and waits until the client has it.
    async fn show<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        control: &mut ControlLink<S>,
        path: Option<&RelPath>,
        deep: bool,
    ) -> Result<Summary, TransferError> {
        let paths = path.map_or(&[][..], std::slice::from_ref);
        let share = self.share.select(&Selection {
            paths,
            contents: path.is_some(),
            shallow: !deep,
            attributes: false,
        })?;
        let listing = list(&share).await?;
        let report = Report::default();
        listing.left_out.iter().for_each(|what| report.leave_out(what));
        show_list(control, &listing).await?;
        let verdict = timeout(GREETING, control.verdict(|_| {}, || {})).await;
        match verdict.map_err(|_| TransferError::Stalled { after: GREETING })??.word {
            Control::Done { .. } | Control::Incomplete { .. } => report.finish(),
            Control::Abort(reason) => Err(TransferError::Peer(reason)),
            _ => Err(TransferError::protocol("it did not confirm the list")),
        }
    }
}

/// Sends the reason why the request is not answered.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    mut control: ControlLink<S>,
    error: TransferError,
) -> Result<Summary, TransferError> {
    let outcome = Err(error);
    control.part(&outcome).await;
    outcome
}

/// Checks a request against the client's rights.
fn check(ask: &Ask, rights: Rights) -> Result<(), TransferError> {
    let why = match (ask, rights) {
        (Ask::Put { placing: Placing { conflict, mirror }, .. }, Rights::Drop)
            if mirror.is_some() || *conflict == Conflict::Overwrite =>
        {
            "this is a drop box: what was put into it cannot be changed"
        }
        (Ask::List { .. } | Ask::Get { .. }, Rights::Read | Rights::Write)
        | (Ask::Put { .. }, Rights::Write | Rights::Drop) => return Ok(()),
        (Ask::List { .. } | Ask::Get { .. }, Rights::Drop) => {
            "this is a drop box: files can be put into it, and nothing can be listed or fetched"
        }
        (Ask::Put { .. }, Rights::Read) => "this ticket or key may list and get, but not put",
    };
    Err(TransferError::Refused(why.into()))
}

fn task(ask: &Ask) -> Task {
    let text = |path: &Option<RelPath>| path.as_ref().map_or_else(String::new, RelPath::shown);
    match ask {
        Ask::List { path, .. } => Task::List(text(path)),
        Ask::Get { paths, .. } => Task::Get(paths.iter().map(RelPath::shown).collect()),
        Ask::Put { to, .. } => Task::Put(text(to)),
    }
}
