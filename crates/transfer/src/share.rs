//! What a sender offers: paths, walked afresh for every receiver, or one stream.
//!
//! Directories are walked through a handle that cannot be left, and files are opened without following a
//! link that took their place. Links are sent as links if they stay inside the share, and left out with a
//! warning otherwise, as are devices, pipes, sockets, names that are not UTF-8, what cannot be read, and
//! unfinished transfers.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, Metadata, OpenOptions};

use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta, ModifiedTime, totals};
use crate::path::{RelPath, check_link, is_part_name};

/// Something to send; clones are the same share.
#[derive(Clone)]
pub struct Share(Arc<Origin>);

enum Origin {
    Paths(Vec<Root>),
    Reader { name: RelPath, reader: Mutex<Option<Box<dyn Read + Send>>> },
}

/// One path that the user named.
struct Root {
    /// Its name in the share.
    name: RelPath,
    /// The directory, or the directory that the file is in.
    directory: PathBuf,
    /// The file's name there; `None` for a directory.
    file: Option<PathBuf>,
}

/// What a share holds at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files in it.
    pub files: u64,
    /// Their length in bytes; `None` for a stream.
    pub bytes: Option<u64>,
    /// What is left out and why, one line each.
    pub warnings: Vec<String>,
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
        Ok(Self(Arc::new(Origin::Paths(roots))))
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
        Ok(Self(Arc::new(Origin::Reader { name, reader: Mutex::new(Some(Box::new(reader))) })))
    }

    /// Counts what the share holds now; walks the directories, so it blocks.
    ///
    /// # Errors
    /// [`TransferError::Share`] when a path is gone.
    pub fn contents(&self) -> Result<Contents, TransferError> {
        if let Origin::Reader { .. } = *self.0 {
            return Ok(Contents { files: 1, ..Contents::default() });
        }
        let listing = self.list()?;
        let (files, bytes) = totals(&listing.entries);
        Ok(Contents { files, bytes: Some(bytes), warnings: listing.warnings })
    }

    /// Lists the share for one receiver; a stream is taken out of the share by this.
    pub(crate) fn list(&self) -> Result<Listing, TransferError> {
        let mut listing = Listing::default();
        match &*self.0 {
            Origin::Paths(roots) => roots.iter().try_for_each(|root| listing.add_root(root))?,
            Origin::Reader { name, reader } => {
                let reader = reader.lock().unwrap_or_else(PoisonError::into_inner).take();
                listing.stream = Mutex::new(Some(reader.ok_or(TransferError::Consumed)?));
                let meta = FileMeta { size: None, mode: 0o644, modified: None };
                listing.entries.push(Entry { path: name.clone(), kind: EntryKind::File(meta) });
            }
        }
        Ok(listing)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Origin::Paths(roots) => {
                f.debug_list().entries(roots.iter().map(|root| root.name.as_str())).finish()
            }
            Origin::Reader { name, .. } => f.debug_tuple("Stream").field(&name.as_str()).finish(),
        }
    }
}

/// A share as one receiver is shown it.
#[derive(Default)]
pub(crate) struct Listing {
    pub entries: Vec<Entry>,
    pub warnings: Vec<String>,
    roots: Vec<OpenRoot>,
    /// First entry of each root, so that an entry's root is found by its number.
    starts: Vec<usize>,
    stream: Mutex<Option<Box<dyn Read + Send>>>,
}

struct OpenRoot {
    directory: Dir,
    file: Option<PathBuf>,
}

/// A file of the share, open for reading.
pub(crate) enum Opened {
    File(cap_std::fs::File),
    Stream(Box<dyn Read + Send>),
}

impl Read for Opened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Stream(stream) => stream.read(buffer),
        }
    }
}

impl Opened {
    /// What the open file is now; `None` for a stream.
    pub fn meta(&self) -> io::Result<Option<FileMeta>> {
        match self {
            Self::File(file) => file.metadata().map(|meta| Some(file_meta(&meta))),
            Self::Stream(_) => Ok(None),
        }
    }
}

impl Listing {
    /// Opens entry number `index`, which must be a file.
    pub fn open(&self, index: usize) -> io::Result<Opened> {
        if let Some(stream) = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(Opened::Stream(stream));
        }
        let place = self.starts.partition_point(|start| *start <= index).checked_sub(1);
        let (Some(entry), Some(root)) =
            (self.entries.get(index), place.and_then(|place| self.roots.get(place)))
        else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let inside = entry.path.as_str().split_once('/').map_or("", |(_, inside)| inside);
        let path = root.file.as_deref().unwrap_or(Path::new(inside));
        let mut options = OpenOptions::new();
        options.read(true).follow(FollowSymlinks::No).nonblock(true);
        let file = root.directory.open_with(path, &options)?;
        if file.metadata()?.is_file() { Ok(Opened::File(file)) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn add_root(&mut self, root: &Root) -> Result<(), TransferError> {
        let opened = Dir::open_ambient_dir(&root.directory, ambient_authority());
        let directory = opened.map_err(|error| TransferError::io("open", &root.directory, error))?;
        self.starts.push(self.entries.len());
        match &root.file {
            Some(file) => {
                let meta = directory.metadata(file);
                let meta =
                    meta.map_err(|error| TransferError::io("read", root.directory.join(file), error))?;
                self.entries.push(Entry { path: root.name.clone(), kind: EntryKind::File(file_meta(&meta)) });
            }
            None => {
                let meta = directory.dir_metadata();
                let meta = meta.map_err(|error| TransferError::io("read", &root.directory, error))?;
                let kind = EntryKind::Directory { mode: mode(&meta) };
                self.entries.push(Entry { path: root.name.clone(), kind });
                self.add_directory(&directory, &root.name);
            }
        }
        self.roots.push(OpenRoot { directory, file: root.file.clone() });
        Ok(())
    }

    /// Adds what is in `directory`, sorted by name; the depth of a path is bounded, and so the recursion.
    fn add_directory(&mut self, directory: &Dir, path: &RelPath) {
        let listed = directory.entries().and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut found = match listed {
            Ok(found) => found,
            Err(error) => return self.leave_out(&path.shown(), &error.to_string()),
        };
        found.sort_by_key(cap_std::fs::DirEntry::file_name);
        for entry in found {
            let name = entry.file_name();
            let shown = format!("{}/{}", path.shown(), name.to_string_lossy());
            let Some(name) = name.to_str() else {
                self.leave_out(&shown, "its name is not UTF-8");
                continue;
            };
            if is_part_name(name) {
                self.leave_out(&shown, "it is an unfinished transfer");
                continue;
            }
            let added = RelPath::parse(&format!("{}/{name}", path.as_str()))
                .map_err(|error| error.to_string())
                .and_then(|path| self.add_entry(directory, name, path));
            if let Err(why) = added {
                self.leave_out(&shown, &why);
            }
        }
    }

    fn add_entry(&mut self, directory: &Dir, name: &str, path: RelPath) -> Result<(), String> {
        let meta = directory.symlink_metadata(name).map_err(|error| error.to_string())?;
        if meta.is_dir() {
            let inner = directory.open_dir_nofollow(name).map_err(|error| error.to_string())?;
            let kind = EntryKind::Directory { mode: mode(&meta) };
            self.entries.push(Entry { path: path.clone(), kind });
            self.add_directory(&inner, &path);
        } else if meta.is_file() {
            self.entries.push(Entry { path, kind: EntryKind::File(file_meta(&meta)) });
        } else if meta.is_symlink() {
            let text = directory.read_link_contents(name).map_err(|error| error.to_string())?;
            let text = text.to_str().ok_or("its link text is not UTF-8")?;
            let text = if cfg!(windows) { text.replace('\\', "/") } else { text.to_owned() };
            check_link(&path, &text)
                .map_err(|_| format!("it is a link that leads out of the share ({text})"))?;
            self.entries.push(Entry { path, kind: EntryKind::Link { text } });
        } else {
            return Err("it is neither a file, a directory nor a link".into());
        }
        Ok(())
    }

    fn leave_out(&mut self, path: &str, why: &str) {
        self.warnings.push(format!("{path} is left out: {why}"));
    }
}

fn root(path: &Path) -> Result<Root, TransferError> {
    let real = path.canonicalize().map_err(|error| share_error(path, error.to_string()))?;
    let meta = real.metadata().map_err(|error| share_error(path, error.to_string()))?;
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

fn share_error(path: &Path, why: String) -> TransferError {
    TransferError::Share { path: path.to_owned(), why }
}

fn file_meta(meta: &Metadata) -> FileMeta {
    let modified = meta.modified().ok().and_then(|time| modified_time(time.into_std()));
    FileMeta { size: Some(meta.len()), mode: mode(meta), modified }
}

fn modified_time(time: std::time::SystemTime) -> Option<ModifiedTime> {
    let epoch = std::time::SystemTime::UNIX_EPOCH;
    match time.duration_since(epoch) {
        Ok(since) => Some(ModifiedTime {
            seconds: since.as_secs().try_into().ok()?,
            nanoseconds: since.subsec_nanos(),
        }),
        Err(before) => {
            let before = before.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            let seconds = -i64::try_from(before.as_secs()).ok()? - borrow;
            Some(ModifiedTime {
                seconds,
                nanoseconds: (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000,
            })
        }
    }
}

#[cfg(unix)]
fn mode(meta: &Metadata) -> u16 {
    use cap_std::fs::MetadataExt as _;
    (meta.mode() & 0o777) as u16
}

#[cfg(not(unix))]
fn mode(meta: &Metadata) -> u16 {
    match (meta.is_dir(), meta.permissions().readonly()) {
        (true, _) => 0o755,
        (false, true) => 0o444,
        (false, false) => 0o644,
    }
}
