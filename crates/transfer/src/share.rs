//! What a sender offers: paths, walked afresh for every receiver, or one stream.
//!
//! Directories are walked through a handle that cannot be left, and files are opened without following a
//! link that took their place. Links are sent as links if they stay inside the share, and left out with a
//! warning otherwise, as are devices, pipes, sockets and unfinished transfers. What is of a kind to be sent and
//! cannot be (it may not be read, its name is not UTF-8) is missed: the receiver fails in the end and names it.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::TransferError;
use crate::limit::RateLimit;
use crate::listing::Listing;
use crate::manifest::{Entry, EntryKind, LeftOut, totals};
use crate::path::RelPath;

/// Something to send; clones are the same share.
#[derive(Clone)]
pub struct Share {
    origin: Arc<Origin>,
    limit: Option<Arc<RateLimit>>,
}

enum Origin {
    Paths(Vec<Root>),
    Reader { name: RelPath, reader: Mutex<Option<Box<dyn Read + Send>>> },
}

/// One path that the user named.
pub(crate) struct Root {
    /// Its name in the share.
    pub name: RelPath,
    /// The directory, or the directory that the file is in.
    pub directory: PathBuf,
    /// The file's name there; `None` for a directory.
    pub file: Option<PathBuf>,
}

/// What a share holds at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files in it.
    pub files: u64,
    /// Their length in bytes; `None` for a stream.
    pub bytes: Option<u64>,
    /// What is left out and why, one line each.
    pub left_out: Vec<String>,
    /// Files that are listed but may not be read, and why, one line each.
    pub unreadable: Vec<String>,
    /// True when something cannot be sent and there is nothing else: no file, and no link.
    pub all_missed: bool,
}

impl Share {
    /// Shares files and directories, each under its own name.
    ///
    /// # Errors
    /// [`TransferError::Share`] when a path does not exist, is neither file nor directory, has no usable
    /// name, or has the same name as another one.
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
        Ok(Self::new(Origin::Paths(roots)))
    }

    /// Shares what `reader` gives (standard input, say) as one file called `name`, once.
    ///
    /// The reader runs on a blocking thread. One that waits for input cannot be interrupted: a program that
    /// ends while standard input is silent should not wait for its runtime's blocking threads.
    ///
    /// # Errors
    /// [`TransferError::UnsafePath`] when `name` is not a plain file name.
    pub fn from_reader(name: &str, reader: impl Read + Send + 'static) -> Result<Self, TransferError> {
        let name = RelPath::parse(name)?;
        if !name.split().0.is_empty() {
            return Err(TransferError::UnsafePath { path: name.shown(), why: "it is not a plain name" });
        }
        Ok(Self::new(Origin::Reader { name, reader: Mutex::new(Some(Box::new(reader))) }))
    }

    fn new(origin: Origin) -> Self {
        Self { origin: Arc::new(origin), limit: None }
    }

    /// The same, sent at this rate at most, in bits of content a second, to all receivers together.
    #[must_use]
    pub fn at_most(self, bits_per_s: NonZeroU64) -> Self {
        Self { limit: Some(Arc::new(RateLimit::new(bits_per_s))), ..self }
    }

    pub(crate) fn limit(&self) -> Option<&RateLimit> {
        self.limit.as_deref()
    }

    /// Counts what the share holds now; walks the directories and opens the files, so it blocks.
    #[must_use]
    pub fn contents(&self) -> Contents {
        let Origin::Paths(roots) = &*self.origin else { return Contents { files: 1, ..Contents::default() } };
        let listing = Listing::of_roots(roots);
        let (files, bytes) = totals(&listing.entries);
        let (left_out, unreadable) =
            (listing.left_out.iter().map(LeftOut::shown).collect(), listing.unreadable());
        let is_content = |entry: &&Entry| !matches!(entry.kind, EntryKind::Directory { .. });
        let content = listing.entries.iter().filter(is_content).count();
        let missed = !unreadable.is_empty() || listing.left_out.iter().any(|what| what.missed);
        let all_missed = missed && content == unreadable.len();
        Contents { files, bytes: Some(bytes), left_out, unreadable, all_missed }
    }

    /// True once nobody else can receive it: a stream that somebody has begun to receive.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        match &*self.origin {
            Origin::Paths(_) => false,
            Origin::Reader { reader, .. } => reader.lock().unwrap_or_else(PoisonError::into_inner).is_none(),
        }
    }

    /// Lists the share for one receiver; a stream is taken out of the share by this.
    pub(crate) fn list(&self) -> Result<Listing, TransferError> {
        match &*self.origin {
            Origin::Paths(roots) => Ok(Listing::of_roots(roots)),
            Origin::Reader { name, reader } => {
                let reader = reader.lock().unwrap_or_else(PoisonError::into_inner).take();
                Ok(Listing::of_stream(name, reader.ok_or(TransferError::Consumed)?))
            }
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.origin {
            Origin::Paths(roots) => {
                f.debug_list().entries(roots.iter().map(|root| root.name.as_str())).finish()
            }
            Origin::Reader { name, .. } => f.debug_tuple("Stream").field(&name.as_str()).finish(),
        }
    }
}

fn root(path: &Path) -> Result<Root, TransferError> {
    let real = path.canonicalize().map_err(|error| not_found(path, &error))?;
    let meta = real.metadata().map_err(|error| not_found(path, &error))?;
    // A link named by the user is followed, and keeps the name the user gave.
    let name = path.file_name().or_else(|| real.file_name()).and_then(|name| name.to_str());
    let name = name
        .ok_or_else(|| share_error(path, "it has no name that can be sent; give a path below it".into()))?;
    let name = RelPath::parse(name).map_err(|error| share_error(path, error.to_string()))?;
    if meta.is_dir() {
        return Ok(Root { name, directory: real, file: None });
    }
    match (meta.is_file(), real.parent(), real.file_name()) {
        (true, Some(parent), Some(file)) => {
            Ok(Root { name, directory: parent.to_owned(), file: Some(PathBuf::from(file)) })
        }
        _ => Err(share_error(path, "it is neither a file nor a directory; `-` shares standard input".into())),
    }
}

/// What stands behind the semicolon is advice.
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
