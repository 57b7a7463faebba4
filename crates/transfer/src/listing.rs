//! A share as one receiver is shown it: walked once, and read from through the handles of that walk.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, Metadata, OpenOptions};

use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta, ModifiedTime};
use crate::path::{RelPath, check_link, is_part_name};
use crate::share::Root;

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

    /// Adds a file that is read from `stream`, to a listing that has nothing else.
    pub fn add_stream(&mut self, name: &RelPath, stream: Box<dyn Read + Send>) {
        let meta = FileMeta { size: None, mode: 0o644, modified: None };
        self.entries.push(Entry { path: name.clone(), kind: EntryKind::File(meta) });
        self.stream = Mutex::new(Some(stream));
    }

    /// Adds what one of the user's paths holds.
    pub fn add_root(&mut self, root: &Root) -> Result<(), TransferError> {
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
