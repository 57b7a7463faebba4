//! A share's list for one receiver: made by one walk, whose handles later open the files.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirEntry, Metadata};

use super::fuse;
use super::holes::examine;
use super::input::Input;
use super::root::{Root, Scope, reading};
use crate::attributes::Attributes;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta, LeftOut, Links, ModifiedTime};
use crate::path::{RelPath, check_link, is_part_name};

/// With this many receivers, those that arrive close together share one list.
const CROWD: usize = 8;
/// Most entries of a list: receivers refuse more ([`Limits`](crate::Limits)).
const MOST_ENTRIES: usize = if cfg!(test) { 20_000 } else { 1 << 20 };
/// The greatest age of a shared list.
const FRESH: Duration = Duration::from_secs(5);

/// The lists in use, so that many receivers do not each cost a walk and a list.
#[derive(Default)]
pub(crate) struct Recent(Mutex<(Vec<Weak<Listing>>, Option<Instant>)>);

impl Recent {
    /// The entries of all lists in use; none while one is being made.
    pub fn entries(&self) -> usize {
        let Ok(recent) = self.0.try_lock() else { return 0 };
        recent.0.iter().filter_map(Weak::upgrade).map(|listing| listing.entries.len()).sum()
    }

    /// A new list, or the newest one if there are many receivers and it is recent.
    pub fn get(&self, list: impl FnOnce() -> Listing) -> Arc<Listing> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (held, made) = &mut *recent;
        held.retain(|listing| listing.strong_count() > 0);
        let is_fresh = made.is_some_and(|made| made.elapsed() < FRESH);
        if held.len() >= CROWD
            && is_fresh
            && let Some(listing) = held.last().and_then(Weak::upgrade)
        {
            return listing;
        }
        // The lock is held during the walk: receivers that arrive together wait and find this list.
        let listing = Arc::new(list());
        held.push(Arc::downgrade(&listing));
        *made = Some(Instant::now());
        listing
    }
}

/// A share's list for one receiver.
#[derive(Default)]
pub(crate) struct Listing {
    pub entries: Vec<Entry>,
    pub left_out: Vec<LeftOut>,
    /// The extended attributes of entries, if they are sent.
    pub attributes: Attributes,
    /// The entries that are further names of a file in the list.
    pub links: Links,
    scope: Scope,
    roots: Vec<OpenRoot>,
    /// First entry of each root, to find an entry's root by number.
    starts: Vec<usize>,
    stream: Option<Stream>,
}

/// A stream that one receiver gets: the first that requests its content.
pub(crate) type Stream = Arc<Mutex<Option<Box<dyn Read + Send>>>>;

/// Where a run of entries is opened: below a directory, or as one file in it.
#[derive(Clone)]
struct OpenRoot {
    directory: Base,
    file: Option<PathBuf>,
    /// How many names of an entry's path lead to the directory.
    depth: usize,
}

/// A directory of the share.
#[derive(Clone)]
enum Base {
    /// Held open: files are found even if it is moved.
    Held(Arc<Dir>),
    /// Reached by a link. A share may have many of these, so it is opened when a file is.
    Linked(PathBuf),
}

impl Base {
    fn open(&self, path: &Path) -> io::Result<cap_std::fs::File> {
        match self {
            Self::Held(directory) => directory.open_with(path, &reading()),
            Self::Linked(directory) => {
                Dir::open_ambient_dir(directory, ambient_authority())?.open_with(path, &reading())
            }
        }
    }
}

/// The state of a walk through the user's paths.
#[derive(Default)]
struct Walk {
    /// Where the entries of the current directory are opened.
    root: Option<OpenRoot>,
    /// Files with several names, and their numbers.
    seen: HashMap<(u64, u64), u32>,
    /// The directories above the current entry, without links in their paths.
    above: Vec<PathBuf>,
}

/// A file of the share, open for reading.
pub(crate) enum Opened {
    File(cap_std::fs::File),
    Stream(Input),
}

impl Read for Opened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            // A thread of their own reads streams.
            Self::Stream(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Opened {
    /// The current metadata of the open file, and when it last changed in any way; `None` for a stream.
    pub fn look(&self) -> io::Result<Option<(FileMeta, ChangeTime)>> {
        match self {
            Self::File(file) => file.metadata().map(|meta| Some((file_meta(&meta), change_time(&meta)))),
            Self::Stream(_) => Ok(None),
        }
    }

    /// True if a program provides the file, whose reported length may be wrong.
    pub fn is_in_fuse(&self) -> bool {
        matches!(self, Self::File(file) if fuse::provides(file))
    }
}

/// Time of a file's last change of content or metadata: seconds since 1970, and nanoseconds. Programs cannot set it,
/// unlike the time of modification.
pub(crate) type ChangeTime = (i64, i64);

impl Listing {
    /// Opens the file with number `index`; returns its current metadata as [`Opened::look`] does.
    pub fn open(&self, index: usize) -> io::Result<(Opened, Option<(FileMeta, ChangeTime)>)> {
        if let Some(stream) = &self.stream {
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            let stream = stream.ok_or_else(|| io::Error::other(TransferError::Consumed))?;
            return Input::start(stream).map(|input| (Opened::Stream(input), None));
        }
        let file = self.open_entry(index)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok((Opened::File(file), Some((file_meta(&meta), change_time(&meta)))))
    }

    /// Opens the file or directory with number `index`.
    pub(super) fn open_entry(&self, index: usize) -> io::Result<cap_std::fs::File> {
        let place = self.starts.partition_point(|start| *start <= index).checked_sub(1);
        let (Some(entry), Some(root)) =
            (self.entries.get(index), place.and_then(|place| self.roots.get(place)))
        else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut inside: PathBuf = entry.path.as_str().split('/').skip(root.depth).collect();
        if inside.as_os_str().is_empty() {
            inside.push(".");
        }
        root.directory.open(root.file.as_deref().unwrap_or(&inside))
    }

    /// True for a stream, which can be read only once.
    pub fn is_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// True if the scope includes extended attributes.
    pub fn has_attributes(&self) -> bool {
        self.scope.attributes
    }

    /// True if the scope includes hard links.
    pub fn has_links(&self) -> bool {
        self.scope.links
    }

    /// The number of files, of which hard links are none.
    pub fn count_files(&self) -> u64 {
        let links = if self.has_links() { self.links.len() } else { 0 };
        crate::manifest::totals(&self.entries).0 - links as u64
    }

    /// A list with one file, read from `stream`.
    pub fn of_stream(name: &RelPath, stream: &Stream) -> Self {
        let meta = FileMeta { size: None, mode: 0o644, modified: None, data: None };
        let entries = vec![Entry { path: name.clone(), kind: EntryKind::File(meta) }];
        Self { entries, stream: Some(Arc::clone(stream)), ..Self::default() }
    }

    /// Lists the user's paths.
    pub fn of_roots(roots: &[Root], scope: Scope) -> Self {
        let mut listing = Self { scope, ..Self::default() };
        let mut walk = Walk::default();
        roots.iter().for_each(|root| listing.add_root(root, &mut walk));
        if scope.attributes {
            listing.add_attributes();
        }
        listing
    }

    /// Adds a path of the user. One that no longer exists is reported as missed.
    fn add_root(&mut self, root: &Root, walk: &mut Walk) {
        let added = root.open().and_then(|(held, file)| {
            let root = Root { file, ..root.clone() };
            self.add_base(&root, (&held.clone(), Base::Held(held)), walk)
        });
        if let Err(error) = added {
            let reason = unreadable(&error);
            self.left_out.push(LeftOut { path: root.name.to_foreign(), reason: reason.into(), missed: true });
        }
    }

    /// Adds a directory, or a file in it, which is opened at `base`.
    fn add_base(&mut self, root: &Root, (directory, base): (&Dir, Base), walk: &mut Walk) -> io::Result<()> {
        let is_named = root.file.is_some() || !root.contents;
        let path = root.name.clone();
        let depth = if is_named { path.as_str().split('/').count() } else { 0 };
        let place = OpenRoot { directory: base, file: root.file.clone(), depth };
        match &root.file {
            Some(file) => {
                let found = directory.metadata(file)?;
                let meta = examine(file_meta(&found), &found, || directory.open_with(file, &reading()));
                self.begin_root(place);
                self.entries.push(Entry { path, kind: EntryKind::File(meta) });
                self.note_names((&found, meta), walk);
            }
            None => {
                let kind = directory_kind(&directory.dir_metadata()?);
                self.begin_root(place.clone());
                let within = if is_named { root.name.as_str() } else { "" };
                if is_named {
                    self.entries.push(Entry { path, kind });
                    if self.scope.shallow {
                        return Ok(());
                    }
                }
                walk.above.push(root.directory.clone());
                let outer = walk.root.replace(place);
                self.add_directory(directory, within, walk);
                walk.root = outer;
                walk.above.pop();
            }
        }
        Ok(())
    }

    /// From the next entry on, files are opened at this place.
    fn begin_root(&mut self, root: OpenRoot) {
        self.starts.push(self.entries.len());
        self.roots.push(root);
    }

    /// Notes whether the last entry is in the list under another name already.
    fn note_names(&mut self, (found, meta): (&Metadata, FileMeta), walk: &mut Walk) {
        let (Some(id), Some(_)) = (id_of_several_names(found), meta.size) else { return };
        let index = self.entries.len() as u32 - 1;
        let first = *walk.seen.entry(id).or_insert(index);
        let size = |entry: &Entry| matches!(&entry.kind, EntryKind::File(first) if first.size == meta.size);
        // One that has just grown is sent as a file of its own.
        if first < index && self.entries.get(first as usize).is_some_and(size) {
            self.links.insert(index, first);
        }
    }

    /// True when it has more entries than any receiver accepts. The walk ends then: links to directories of links may lead to
    /// the same files without end.
    pub fn is_too_long(&self) -> bool {
        self.entries.len() + self.left_out.len() > MOST_ENTRIES
    }

    /// Adds the content of `directory`, sorted by name. Recursion is bounded, because the depth of a path is.
    fn add_directory(&mut self, directory: &Dir, path: &str, walk: &mut Walk) {
        let listed = directory.entries().and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut found = match listed {
            Ok(found) => found,
            Err(error) => {
                let reason = unreadable(&error);
                return self.left_out.push(LeftOut {
                    path: path.into(),
                    reason: reason.into(),
                    missed: true,
                });
            }
        };
        found.sort_by_cached_key(DirEntry::file_name);
        for entry in found {
            if self.is_too_long() {
                return;
            }
            let name = entry.file_name();
            let shown = join(path, &name.to_string_lossy());
            let added = match name.to_str() {
                None => Err(omission(&entry, "its name is not UTF-8; rename it and offer it again".into())),
                Some(name) if is_part_name(name) => {
                    Err(Omission::Never("it is an unfinished transfer".into()))
                }
                Some(name) => RelPath::parse(&join(path, name))
                    .map_err(|error| omission(&entry, unusable(&error)))
                    .and_then(|path| self.add_entry(directory, (name, path), walk)),
            };
            if let Err(omission) = added {
                let (reason, missed) = match omission {
                    Omission::Never(why) => (why, false),
                    Omission::Missed(why) => (why, true),
                };
                self.left_out.push(LeftOut { path: shown.into(), reason: reason.into(), missed });
            }
        }
    }

    fn add_entry(
        &mut self,
        directory: &Dir,
        (name, path): (&str, RelPath),
        walk: &mut Walk,
    ) -> Result<(), Omission> {
        let meta = directory.symlink_metadata(name)?;
        if meta.is_dir() {
            let inner = directory.open_dir_nofollow(name)?;
            let kind = directory_kind(&meta);
            self.entries.push(Entry { path: path.clone(), kind });
            if self.scope.shallow {
                return Ok(());
            }
            let here = walk.above.last().map(|above| above.join(name)).unwrap_or_default();
            walk.above.push(here);
            self.add_directory(&inner, path.as_str(), walk);
            walk.above.pop();
        } else if meta.is_symlink() && self.scope.follow {
            self.add_followed((name, path), walk)?;
        } else if meta.is_file() {
            let found = meta;
            let meta = examine(file_meta(&found), &found, || directory.open_with(name, &reading()));
            self.entries.push(Entry { path, kind: EntryKind::File(meta) });
            self.note_names((&found, meta), walk);
        } else if meta.is_symlink() {
            let text = directory.read_link_contents(name)?;
            let text = text.to_str().ok_or_else(|| Omission::Missed("its link text is not UTF-8".into()))?;
            let text = text.to_owned();
            check_link(&path, &text)
                .map_err(|_| Omission::Never(format!("it is a link that leads out of the share ({text})")))?;
            self.entries.push(Entry { path, kind: EntryKind::Link { text } });
        } else {
            return Err(Omission::Never("it is neither a file, a directory nor a link".into()));
        }
        Ok(())
    }
}

/// Following links.
impl Listing {
    /// Adds what a link leads to, under the link's name.
    fn add_followed(&mut self, (name, path): (&str, RelPath), walk: &mut Walk) -> Result<(), Omission> {
        let here = walk.above.last().cloned().unwrap_or_default();
        let real = here.join(name).canonicalize()?;
        if walk.above.contains(&real) {
            return Err(Omission::Never("it is a link to a directory that it is in".into()));
        }
        let meta = real.metadata()?;
        let (parent, file) = match (real.parent(), real.file_name()) {
            (Some(parent), Some(file)) if meta.is_file() => (parent, Some(PathBuf::from(file))),
            _ if meta.is_dir() => (real.as_path(), None),
            _ => return Err(Omission::Never("it is a link to neither a file nor a directory".into())),
        };
        let root = Root { name: path, directory: parent.to_owned(), file, below: None, contents: false };
        let directory = Dir::open_ambient_dir(parent, ambient_authority())?;
        self.add_base(&root, (&directory, Base::Linked(parent.to_owned())), walk)?;
        // The entries after it are in the directory of the link again.
        walk.root.clone().into_iter().for_each(|root| self.begin_root(root));
        Ok(())
    }
}

/// The path of `name` in the directory at `path`; "" is the top level.
fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// The identity of a file with several names; `None` for one with a single name.
fn id_of_several_names(meta: &Metadata) -> Option<(u64, u64)> {
    use cap_std::fs::MetadataExt;
    (meta.nlink() > 1).then(|| (meta.dev(), meta.ino()))
}

/// Why an entry is not listed.
enum Omission {
    /// Entries of this kind are never sent.
    Never(String),
    /// It should be sent but cannot be.
    Missed(String),
}

impl From<io::Error> for Omission {
    fn from(error: io::Error) -> Self {
        Self::Missed(unreadable(&error))
    }
}

/// Why a path cannot be sent. The path is named next to it.
fn unusable(error: &TransferError) -> String {
    match error {
        TransferError::UnsafePath { why, .. } => (*why).to_owned(),
        _ => error.to_string(),
    }
}

/// Why an entry with an unusable name is not listed: it is missed, unless its kind is never sent.
fn omission(entry: &DirEntry, why: String) -> Omission {
    let kind = entry.file_type();
    let is_sent = kind.is_ok_and(|kind| kind.is_file() || kind.is_dir() || kind.is_symlink());
    if is_sent { Omission::Missed(why) } else { Omission::Never(why) }
}

/// Why an entry cannot be sent, for users at both ends: without this machine's paths.
pub(crate) fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "it is no longer there on the sender; ask for it to be offered again".into()
        }
        io::ErrorKind::PermissionDenied => {
            "the sender may not read it; ask for its permissions to be changed".into()
        }
        _ => format!("the sender cannot read it: {error}"),
    }
}

fn file_meta(meta: &Metadata) -> FileMeta {
    let size = meta.len();
    #[cfg(test)]
    let size = crate::tests::reported(size, meta);
    FileMeta { size: Some(size), mode: mode(meta), modified: modified(meta), data: None }
}

fn directory_kind(meta: &Metadata) -> EntryKind {
    EntryKind::Directory { mode: mode(meta), modified: modified(meta) }
}

fn modified(meta: &Metadata) -> Option<ModifiedTime> {
    meta.modified().ok().and_then(|time| modified_time(time.into_std()))
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

fn change_time(meta: &Metadata) -> ChangeTime {
    use cap_std::fs::MetadataExt as _;
    (meta.ctime(), meta.ctime_nsec())
}

fn mode(meta: &Metadata) -> u16 {
    use cap_std::fs::MetadataExt as _;
    (meta.mode() & 0o777) as u16
}
