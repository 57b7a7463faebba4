//! A sender's share: paths that are walked again for every receiver, or one stream.
//!
//! Directory handles cannot be left, and files are opened without following links. Links that stay inside the share are
//! sent as links. Other links, devices, pipes, sockets and unfinished transfers are left out with a warning. A file
//! that cannot be sent (unreadable, or its name is not UTF-8) is missed: the receiver fails in the end and names it.
//!
//! All receivers of a share have common limits of memory, of places at the disk and of rate.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::listing::{Listing, Recent, Stream};
use super::memory::{LIMIT, Memory};
use super::rate::RateLimit;
use super::root::{Root, Scope};
use super::turns::Turns;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, totals};
use crate::path::RelPath;
use crate::report::not_kept;

/// Entries in lists for clients at which no further list begins: one may be as long as the share.
const MOST_LISTED: usize = 1 << 20;

/// Something to send; clones are the same share.
#[derive(Clone)]
pub struct Share {
    origin: Arc<Origin>,
    rate: Option<Arc<RateLimit>>,
    memory: Arc<Memory>,
    turns: Arc<Turns>,
    recent: Arc<Recent>,
    /// The lists of its parts in use.
    parts: Arc<Parts>,
    /// The reason, once the share is closed.
    closed: watch::Sender<Option<String>>,
}

enum Origin {
    Paths { roots: Vec<Root>, scope: Scope },
    Reader { name: RelPath, reader: Stream },
}

/// A part of a share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Selection<'a> {
    /// Paths in the share; none for all.
    pub paths: &'a [RelPath],
    /// The entries in the directory, without the directory itself.
    pub contents: bool,
    /// No entries of listed directories.
    pub shallow: bool,
    /// With extended attributes.
    pub attributes: bool,
}

/// The lists of the parts of a share, by selection: clients that ask for the same may get one list.
#[derive(Default)]
struct Parts(Mutex<HashMap<String, Arc<Recent>>>);

impl Parts {
    /// The lists of this part.
    fn recent(&self, selection: &Selection<'_>) -> Result<Arc<Recent>, TransferError> {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|_, recent| Arc::strong_count(recent) > 1 || recent.entries() > 0);
        let listed: usize = parts.values().map(|recent| recent.entries()).sum();
        if listed > MOST_LISTED {
            return Err(TransferError::Refused("too much is listed for others now; try again later".into()));
        }
        let paths: Vec<&str> = selection.paths.iter().map(RelPath::as_str).collect();
        let key = format!(
            "{}{}{}{}",
            selection.contents,
            selection.shallow,
            selection.attributes,
            paths.join("\0")
        );
        Ok(Arc::clone(parts.entry(key).or_default()))
    }
}

/// The current content of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub files: u64,
    /// Their total length in bytes; `None` for a stream.
    pub bytes: Option<u64>,
    /// Left-out entries and the reasons, one line each.
    pub left_out: Vec<String>,
    /// Listed but unreadable files and the reasons, one line each.
    pub unreadable: Vec<String>,
    /// Further names of files in the share (hard links).
    pub hard_links: u64,
    /// A sentence about the files with extended attributes, if there are any and they are not sent.
    pub attributes: Option<String>,
    /// True when something cannot be sent, and there is no other file or link.
    pub all_missed: bool,
    /// True when it has more entries than receivers accept; the figures are then of its first part.
    pub too_many: bool,
}

impl Share {
    /// Shares files and directories, each under its own name.
    ///
    /// # Errors
    /// [`TransferError::Share`] when a path does not exist, is neither file nor directory, has no usable name, or has
    /// the name of another one.
    pub fn from_paths<P: AsRef<Path>>(paths: &[P]) -> Result<Self, TransferError> {
        let roots = paths.iter().map(|path| root(path.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let mut names = BTreeSet::new();
        for (root, path) in roots.iter().zip(paths) {
            if !names.insert(root.name.as_str()) {
                let why = format!(
                    "another path is named {} too; share their parent, or rename one",
                    root.name.shown()
                );
                return Err(share_error(path.as_ref(), why));
            }
        }
        Ok(Self::new(Origin::Paths { roots, scope: Scope::default() }))
    }

    /// Sends what links lead to in their place, even out of the share.
    #[must_use]
    pub fn following_links(self) -> Self {
        let Origin::Paths { roots, scope } = &*self.origin else { return self };
        Self::new(Origin::Paths { roots: roots.clone(), scope: Scope { follow: true, ..*scope } })
    }

    /// Sends extended attributes of files and directories, those that any user may set.
    #[must_use]
    pub fn with_attributes(self) -> Self {
        let Origin::Paths { roots, scope } = &*self.origin else { return self };
        Self::new(Origin::Paths { roots: roots.clone(), scope: Scope { attributes: true, ..*scope } })
    }

    /// Says which files are further names of others, so that receivers may make hard links.
    #[must_use]
    pub fn with_links(self) -> Self {
        let Origin::Paths { roots, scope } = &*self.origin else { return self };
        Self::new(Origin::Paths { roots: roots.clone(), scope: Scope { links: true, ..*scope } })
    }

    /// Sends what is in the directories, without the directories.
    #[must_use]
    pub fn contents_only(self) -> Self {
        let Origin::Paths { roots, scope } = &*self.origin else { return self };
        let roots = roots.iter().map(|root| Root { contents: true, ..root.clone() }).collect();
        Self::new(Origin::Paths { roots, scope: *scope })
    }

    /// A part of the share, within the same limits.
    ///
    /// # Errors
    /// [`TransferError::Refused`] when a path is not in the share, two have one name, the contents of several are wanted, or
    /// too many entries are listed for others.
    pub(crate) fn select(&self, selection: &Selection<'_>) -> Result<Self, TransferError> {
        let Origin::Paths { roots, scope } = &*self.origin else { return Ok(self.clone()) };
        let roots = match selection.paths {
            [] => roots.clone(),
            paths => paths.iter().map(|path| part(roots, path)).collect::<Result<Vec<_>, _>>()?,
        };
        if selection.contents && roots.len() > 1 {
            return Err(TransferError::Refused("name one directory, whose contents are wanted".into()));
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = roots.iter().find(|root| !names.insert(root.name.as_str())) {
            let why = format!("two of the paths are named {}; ask for one at a time", twice.name.shown());
            return Err(TransferError::Refused(why));
        }
        let roots = roots.into_iter().map(|root| Root { contents: selection.contents, ..root }).collect();
        let scope = Scope { shallow: selection.shallow, attributes: selection.attributes, ..*scope };
        let (origin, recent) = (Arc::new(Origin::Paths { roots, scope }), self.parts.recent(selection)?);
        Ok(Self { origin, recent, ..self.clone() })
    }

    /// The same share, unless the `contents` of a file are wanted. A copy of them would hold the file, and remove all else.
    pub(crate) fn checked(self, contents: bool) -> Result<Self, TransferError> {
        let Origin::Paths { roots, .. } = &*self.origin else { return Ok(self) };
        let is_file = |root: &&Root| contents && root.open().is_ok_and(|(_, file)| file.is_some());
        let file = roots.iter().find(is_file).map(|root| root.name.shown());
        match file {
            Some(name) => Err(TransferError::Refused(format!("{name} is a file here; name its directory"))),
            None => Ok(self),
        }
    }

    /// Opens the file at `path`; `None` for a directory. Needs no list, and so no room for one.
    ///
    /// # Errors
    /// [`TransferError::Refused`] when there is neither.
    pub(crate) fn open_file(&self, path: &RelPath) -> Result<Option<File>, TransferError> {
        let Origin::Paths { roots, .. } = &*self.origin else { return Ok(None) };
        // It was there a moment ago.
        part(roots, path)?.open_file().map_err(|error| TransferError::Refused(error.to_string()))
    }

    /// The shared directories: names and paths.
    pub(crate) fn directories(&self) -> Vec<(&RelPath, &Path)> {
        let Origin::Paths { roots, .. } = &*self.origin else { return Vec::new() };
        let directories = roots.iter().filter(|root| root.file.is_none());
        directories.map(|root| (&root.name, root.directory.as_path())).collect()
    }

    /// Shares the output of `reader` (such as standard input) once, as one file called `name`.
    ///
    /// The reader runs on a blocking thread and cannot be interrupted while it waits for input. So a program that ends
    /// then should not wait for its runtime's blocking threads.
    ///
    /// # Errors
    /// [`TransferError::UnsafePath`] when `name` is not a plain file name.
    pub fn from_reader(name: &str, reader: impl Read + Send + 'static) -> Result<Self, TransferError> {
        let name = RelPath::parse(name)?;
        if !name.split().0.is_empty() {
            return Err(TransferError::UnsafePath { path: name.to_foreign(), why: "it is not a plain name" });
        }
        Ok(Self::new(Origin::Reader { name, reader: Arc::new(Mutex::new(Some(Box::new(reader)))) }))
    }

    fn new(origin: Origin) -> Self {
        Self {
            origin: Arc::new(origin),
            rate: None,
            memory: Arc::new(Memory::new(LIMIT)),
            turns: Arc::default(),
            recent: Arc::default(),
            parts: Arc::default(),
            closed: watch::Sender::new(None),
        }
    }

    /// Limits the rate to all receivers together, in bits of content per second.
    #[must_use]
    pub fn at_most(self, bits_per_s: NonZeroU64) -> Self {
        Self { rate: Some(Arc::new(RateLimit::new(bits_per_s))), ..self }
    }

    /// Limits the memory for data that receivers have requested and not yet read. The limit is for all receivers
    /// together, and each may use 16 KiB beyond it. The default is 64 MiB.
    #[must_use]
    pub fn within_memory(self, bytes: usize) -> Self {
        Self { memory: Arc::new(Memory::new(bytes)), ..self }
    }

    /// Ends all present and future transfers of this share with [`TransferError::Closed`]. The receivers get `reason`.
    pub fn close(&self, reason: &str) {
        self.closed.send_replace(Some(reason.to_owned()));
    }

    /// Waits until the share is closed; returns the reason.
    pub(crate) async fn closed(&self) -> String {
        let mut closed = self.closed.subscribe();
        let reason = closed.wait_for(Option::is_some).await.map(|reason| reason.clone());
        // This share owns the sender, so the channel is open.
        reason.ok().flatten().unwrap_or_default()
    }

    pub(crate) fn rate(&self) -> Option<&RateLimit> {
        self.rate.as_deref()
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Counts the share's present content. Walks the directories and opens the files, so it blocks.
    pub fn contents(&self) -> Contents {
        let Origin::Paths { roots, scope } = &*self.origin else {
            return Contents { files: 1, ..Contents::default() };
        };
        let listing = Listing::of_roots(roots, *scope);
        let (files, bytes) = totals(&listing.entries);
        if listing.is_too_long() {
            return Contents { files, bytes: Some(bytes), too_many: true, ..Contents::default() };
        }
        let left_out = listing.left_out.iter().map(ToString::to_string).collect();
        let found = listing.inspect();
        let attributes = found.first_attributed.map(|first| not_kept(found.attributed, &first.shown()));
        let unreadable = found.unreadable;
        let is_content = |entry: &&Entry| !matches!(entry.kind, EntryKind::Directory { .. });
        let content = listing.entries.iter().filter(is_content).count();
        let missed = !unreadable.is_empty() || listing.left_out.iter().any(|what| what.missed);
        let all_missed = missed && content == unreadable.len();
        let hard_links = listing.links.len() as u64;
        let bytes = Some(bytes);
        Contents { files, bytes, left_out, unreadable, hard_links, attributes, all_missed, too_many: false }
    }

    /// True for a stream that a receiver has begun to read: no other receiver can get it.
    pub fn is_spent(&self) -> bool {
        match &*self.origin {
            Origin::Paths { .. } => false,
            Origin::Reader { reader, .. } => reader.lock().unwrap_or_else(PoisonError::into_inner).is_none(),
        }
    }

    /// The list for one receiver.
    ///
    /// # Errors
    /// [`TransferError::Consumed`] for a stream that another receiver has begun to read.
    pub(crate) fn list(&self) -> Result<Arc<Listing>, TransferError> {
        match &*self.origin {
            Origin::Paths { roots, scope } => Ok(self.recent.get(|| Listing::of_roots(roots, *scope))),
            Origin::Reader { .. } if self.is_spent() => Err(TransferError::Consumed),
            Origin::Reader { name, reader } => Ok(Arc::new(Listing::of_stream(name, reader))),
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.origin {
            Origin::Paths { roots, .. } => {
                f.debug_list().entries(roots.iter().map(|root| root.name.as_str())).finish()
            }
            Origin::Reader { name, .. } => f.debug_tuple("Stream").field(&name.as_str()).finish(),
        }
    }
}

/// The part of the roots at `path`, which must exist.
fn part(roots: &[Root], path: &RelPath) -> Result<Root, TransferError> {
    let missing = || TransferError::Refused(format!("there is no {} here", path.shown()));
    let (first, rest) = path.as_str().split_once('/').unwrap_or((path.as_str(), ""));
    let root = roots.iter().find(|root| root.name.as_str() == first).ok_or_else(missing)?;
    if rest.is_empty() {
        return Ok(root.clone());
    }
    if root.file.is_some() {
        return Err(missing());
    }
    let (name, below) = (RelPath::parse(path.split().1)?, Some(RelPath::parse(rest)?));
    let part = Root { name, below, ..root.clone() };
    match part.open() {
        Ok(_) => Ok(part),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
        Err(_) => Err(TransferError::Refused(format!("{} cannot be opened here", path.shown()))),
    }
}

fn root(path: &Path) -> Result<Root, TransferError> {
    let real = path.canonicalize().map_err(|error| not_found(path, &error))?;
    let meta = real.metadata().map_err(|error| not_found(path, &error))?;
    // A link that the user named is followed, but keeps its name.
    let name = path.file_name().or_else(|| real.file_name()).and_then(|name| name.to_str());
    let name = name
        .ok_or_else(|| share_error(path, "it has no name that can be sent; give a path below it".into()))?;
    let name = RelPath::parse(name).map_err(|error| share_error(path, error.to_string()))?;
    if meta.is_dir() {
        return Ok(Root { name, directory: real, file: None, below: None, contents: false });
    }
    match (meta.is_file(), real.parent(), real.file_name()) {
        (true, Some(parent), Some(file)) => {
            let (directory, file) = (parent.to_owned(), Some(PathBuf::from(file)));
            Ok(Root { name, directory, file, below: None, contents: false })
        }
        _ => Err(share_error(path, "it is neither a file nor a directory; `-` shares standard input".into())),
    }
}

/// The error for a missing path; the text after the semicolon is advice.
fn not_found(path: &Path, error: &io::Error) -> TransferError {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "; check the name, and the directory that it is counted from",
        io::ErrorKind::PermissionDenied => "; make it readable for the user that runs this",
        _ => "",
    };
    share_error(path, format!("{error}{advice}"))
}

fn share_error(path: &Path, why: String) -> TransferError {
    TransferError::Share { path: path.to_owned(), why }
}
