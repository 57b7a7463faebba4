//! The target of received files, and its directory tree, which no link can lead out of.
//!
//! Every directory is opened from the target's own handle, one component at a time. Symbolic links are never followed,
//! whether the sender made them or they existed before.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::Dir;

use super::groups::Groups;
use super::job::{DirectoryEnd, FileJob, Keeping};
use super::leftovers::Leftovers;
use super::links::{Links, are_possible};
use super::part::{FileId, cannot_sync, set_mode, set_modified, system_time};
use super::shut::{Shut, holds_shut, is_shut, opening, unmark};
use crate::error::{TransferError, is_disk_full};
use crate::manifest::FileMeta;
use crate::path::RelPath;
use crate::report::{Report, Watch};

/// The largest piece of a disk that a file is taken to fill: network file systems report larger ones than they use.
const LARGEST_PIECE: u64 = 4 << 10;
/// Most directories that are synced at once: a disk syncs many as fast as one.
const MOST_SYNCS: usize = 16;

/// The target of received files.
pub enum Target {
    /// This directory, with the names in the share; created if necessary.
    Directory(PathBuf),
    /// The directory at `path` below `root`, which no link leads to; created if necessary.
    Below {
        /// A directory that exists.
        root: PathBuf,
        /// The path below it, "" for none, as in a share.
        path: String,
    },
    /// The share's only file, to this path.
    File(PathBuf),
    /// The share's only file, to this writer (such as standard output), block by verified block.
    Writer(Box<dyn OutputStream>),
}

/// A stream that gets a single file.
pub trait OutputStream: Write + Send {
    /// Makes sure that all data are stored. Called once, after the last byte; then the receiver confirms the file.
    ///
    /// # Errors
    /// The system's error if data were lost.
    fn finish(&mut self) -> io::Result<()> {
        self.flush()
    }
}

impl OutputStream for io::Sink {}

/// Closes a second handle of an output that has everything: some file systems report only then that data could not be
/// stored.
///
/// # Errors
/// The system's.
pub fn close_output(output: BorrowedFd<'_>) -> io::Result<()> {
    let handle = output.try_clone_to_owned()?;
    Ok(nix::unistd::close(handle)?)
}

impl Target {
    /// Checks that the target is writable, without creating anything; called before the sender is dialled.
    ///
    /// # Errors
    /// [`TransferError::NotADirectory`], or [`TransferError::Io`] when the directory is not writable.
    pub fn check(&self) -> Result<(), TransferError> {
        let directory = match self {
            Self::Directory(path) | Self::Below { root: path, .. } => path.as_path(),
            Self::File(path) => path.parent().unwrap_or(Path::new("")),
            Self::Writer(_) => return Ok(()),
        };
        let there = nearest(directory);
        if there.is_dir() {
            return check_writable(there);
        }
        Err(TransferError::NotADirectory { path: there.to_owned() })
    }
}

/// The nearest path that exists: missing directories are made in it.
fn nearest(path: &Path) -> &Path {
    let there = path.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
    here(there.unwrap_or(Path::new("")))
}

/// The path, or the current directory if it is empty.
fn here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Self::Below { root, path } => {
                f.debug_struct("Below").field("root", root).field("path", path).finish()
            }
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Writer(_) => f.write_str("Writer"),
        }
    }
}

/// The target directory, with access to its subdirectories.
pub(crate) struct TargetTree {
    path: PathBuf,
    root: Arc<Dir>,
    /// The permission bits that new files and directories may have.
    mode_mask: u16,
    shut: Shut,
    /// The last directory used: entries are sorted, so the next is often the same.
    last: Option<(String, Arc<Dir>)>,
    /// Entries that come to their places in [`Self::finish`].
    staged: Arc<Mutex<Staged>>,
    leftovers: Leftovers,
}

/// Free space of a file system, which it gives to files in whole pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Free {
    pub bytes: u64,
    piece: u64,
    holes: Holes,
}

/// Whether a file system stores the holes of a file without taking room for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holes {
    Free,
    /// They take as much room as data.
    Taken,
    /// It depends on a server or program behind it, or is not known.
    Unsure,
}

/// Entries that replace others when all else has arrived.
#[derive(Default)]
pub(super) struct Staged {
    /// New directories whose names a file still has. Until the end they have the name of an unfinished file.
    pub directories: BTreeSet<String>,
    /// Links in the place of directories, with their texts.
    pub links: Vec<(RelPath, String)>,
    pub files: Vec<StagedFile>,
}

/// A complete file whose place a directory has. Until then, it is an unfinished file, which another receiver may open.
pub(super) struct StagedFile {
    pub job: Arc<FileJob>,
    /// Its identity and length.
    pub found: (FileId, u64),
    pub hash: [u8; 32],
    pub keeping: Keeping,
}

impl TargetTree {
    /// Opens `path`, creating it if necessary. New files get the sender's modes, limited by the umask unless
    /// `all_modes`.
    pub fn open(path: &Path, all_modes: bool) -> Result<Self, TransferError> {
        let path = here(path);
        Target::Directory(path.to_owned()).check()?;
        let opened = Dir::create_ambient_dir_all(path, ambient_authority())
            .and_then(|()| Dir::open_ambient_dir(path, ambient_authority()));
        let root = opened.map_err(|error| TransferError::io("open the target directory", path, error))?;
        let mode_mask = if all_modes { 0o777 } else { 0o777 & !umask() };
        Ok(Self { shut: Shut::Opens, ..Self::new(path.to_owned(), root, mode_mask) })
    }

    /// Opens a server's directory at `path` below `root`, creating it if necessary. Errors name it without the root's path,
    /// which is no business of the other end.
    pub fn open_below(root: &Path, path: &str) -> Result<Self, TransferError> {
        let named = Path::new(path);
        let failed = |error| TransferError::io("open the directory", named, error);
        if !path.is_empty() {
            RelPath::parse(path)?;
        }
        let mut directory = Dir::open_ambient_dir(root, ambient_authority()).map_err(failed)?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match directory.create_dir(name) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
                _ => directory = directory.open_dir_nofollow(name).map_err(failed)?,
            }
        }
        Ok(Self::new(named.to_owned(), directory, 0o777 & !umask()))
    }

    fn new(path: PathBuf, root: Dir, mode_mask: u16) -> Self {
        let shut = Shut::Stays;
        let (staged, leftovers) = <_>::default();
        Self { path, root: Arc::new(root), mode_mask, shut, last: None, staged, leftovers }
    }

    /// Opens the directory at `path` below `root` if it exists, and counts the directories that are missing. Makes none.
    pub fn look_below(root: &Path, path: &str) -> (Option<Self>, u64) {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let mut opened = Dir::open_ambient_dir(root, ambient_authority());
        for (at, name) in names.iter().enumerate() {
            opened = opened.and_then(|directory| directory.open_dir_nofollow(name));
            if opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                return (None, (names.len() - at) as u64);
            }
        }
        // To open it later reports any other obstacle.
        (opened.ok().map(|root| Self::new(path.into(), root, 0)), 0)
    }

    /// The permission bits that new files and directories may have.
    pub fn mode_mask(&self) -> u16 {
        self.mode_mask
    }

    /// The same tree for another thread.
    pub fn another(&self) -> Self {
        let (path, root, staged) = (self.path.clone(), Arc::clone(&self.root), Arc::clone(&self.staged));
        let leftovers = self.leftovers.clone();
        Self { path, root, mode_mask: self.mode_mask, shut: self.shut, last: None, staged, leftovers }
    }

    /// Unfinished files that failed because the disk is full.
    pub fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    /// Whether existing directories without write permission are opened.
    pub fn shut(&self) -> Shut {
        self.shut
    }

    /// Why a server makes nothing in its directory at `parent`, if that is shut.
    pub fn why_shut(&mut self, parent: &str, error: &io::Error) -> Option<String> {
        let directory = self.directory(parent).ok()?;
        let path = self.path.join(parent);
        (self.shut == Shut::Stays && is_shut(&directory, error)).then(|| {
            format!("the server may not write into its directory; its operator runs {}", opening(&path, ""))
        })
    }

    /// Why what is at `path`, in this directory, is not removed. At a server, directories may be shut.
    pub fn why_stays(&self, (directory, path): (&Dir, &str), error: &io::Error) -> String {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let may_be_shut = self.shut == Shut::Stays && error.kind() == io::ErrorKind::PermissionDenied;
        let (what, shut, options) = if may_be_shut && is_shut(directory, error) {
            ("its directory", parent, "")
        } else if may_be_shut && holds_shut(directory, name) {
            ("a directory there", path, "-R ")
        } else {
            return format!("it cannot be removed: {error}");
        };
        let command = opening(&self.path.join(shut), options);
        format!("it cannot be removed: the server may not write into {what}; its operator runs {command}")
    }

    /// The path of the target directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory at the checked path `relative`; "" is the target itself.
    pub fn directory(&mut self, relative: &str) -> io::Result<Arc<Dir>> {
        if let Some((path, directory)) = &self.last
            && path == relative
        {
            return Ok(Arc::clone(directory));
        }
        let mut directory = Arc::clone(&self.root);
        let mut end = 0;
        for name in relative.split('/').filter(|name| !name.is_empty()) {
            end += name.len();
            directory = Arc::new(directory.open_dir_nofollow(&*self.current_name(&relative[..end], name))?);
            end += 1;
        }
        self.last = Some((relative.to_owned(), Arc::clone(&directory)));
        Ok(directory)
    }

    /// Opens the last directory anew: its name may have changed.
    pub(super) fn forget_last(&mut self) {
        self.last = None;
    }

    pub(super) fn staged(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path, or the current directory if it is empty.
    pub fn named(path: &Path) -> &Path {
        here(path)
    }

    /// How so many threads sync files in the target together.
    pub fn groups(&self, threads: usize) -> Groups {
        Groups::of(&self.root, threads)
    }

    /// True if files in the target can have several names.
    pub fn takes_links(&self) -> bool {
        are_possible(&self.root)
    }

    /// Bytes free for this user; `None` if the system does not report it.
    pub fn free_bytes(&self) -> Option<u64> {
        self.free().map(|free| free.bytes)
    }

    /// The free space for this user; `None` if the system does not report it.
    pub fn free(&self) -> Option<Free> {
        #[cfg(test)]
        if self.root.exists(crate::tests::SMALL) {
            return Some(Free { bytes: 1 << 20, piece: 1, holes: crate::tests::holes(&self.root) });
        }
        Free::of(&self.root)
    }

    /// The directory in which the one at `path` is to be made.
    pub fn ground_of(path: &Path) -> Option<Self> {
        let root = Dir::open_ambient_dir(nearest(path), ambient_authority()).ok()?;
        Some(Self::new(path.to_owned(), root, 0))
    }

    fn sync_directories(&mut self, paths: &[&String], report: &Report) -> Result<(), TransferError> {
        for path in paths {
            let synced = self.directory(path).and_then(|directory| sync_or_note(&directory, path, report));
            synced.map_err(|error| TransferError::io("sync the directory", self.path.join(path), error))?;
        }
        Ok(())
    }

    /// Syncs the directories with new names, and ends staging. Hard links to staged files wait for them.
    pub fn finish(
        &mut self,
        renamed: &BTreeSet<String>,
        links: Option<&Links>,
        watch: &Watch,
    ) -> Result<(), TransferError> {
        let report = &watch.report;
        let paths: Vec<&String> = renamed.iter().collect();
        let share = paths.len().div_ceil(MOST_SYNCS).max(1);
        std::thread::scope(|scope| {
            let sync = |paths| {
                let mut tree = self.another();
                scope.spawn(move || tree.sync_directories(paths, report))
            };
            let threads: Vec<_> = paths.chunks(share).map(sync).collect();
            let panicked = |_| Err(TransferError::protocol("a sync thread panicked"));
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
        })?;
        self.end_staging(links, watch);
        Ok(())
    }

    /// Sets the times and modes of directories, when nothing is written any more.
    ///
    /// `ends` lists parents before children and is applied in reverse: a parent's mode may block access to its children.
    pub fn settle(&mut self, ends: &[DirectoryEnd], report: &Report) {
        for end in ends.iter().rev() {
            // One that could not take the place of a file has failed already.
            let Ok(directory) = self.directory(end.path.as_str()) else { continue };
            if end.mode.is_some() {
                unmark(&directory);
            }
            if let Some(time) = end.modified.and_then(system_time)
                && let Err(error) = set_directory_time(&directory, time)
                && end.is_new
            {
                report.note("store the time", &end.path, &error);
            }
            if let Some(mode) = end.mode
                && let Err(error) = set_directory_mode(&directory, mode)
            {
                report.note("store the mode", &end.path, &error);
            }
        }
    }
}

/// This process's umask.
fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
}

fn check_writable(directory: &Path) -> Result<(), TransferError> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let (access, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    accessat(CWD, directory, access, flags)
        .map_err(|error| TransferError::io("write to the directory", directory, error.into()))
}

impl Free {
    fn of(directory: &Dir) -> Option<Self> {
        let stat = rustix::fs::fstatvfs(directory).ok()?;
        let bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        // A file system without blocks, such as ramfs, does not know its size.
        let piece = stat.f_frsize.clamp(1, LARGEST_PIECE);
        let holes = rustix::fs::fstatfs(directory).map_or(Holes::Unsure, |stat| {
            // Its width depends on the processor.
            let [a, b, c, d, ..] = stat.f_type.to_le_bytes();
            Holes::on(u32::from_le_bytes([a, b, c, d]))
        });
        (stat.f_blocks > 0).then_some(Self { bytes, piece, holes })
    }

    /// The bytes that a file takes of it: at least, and at most.
    pub fn taken(&self, meta: FileMeta) -> (u64, u64) {
        let whole =
            |bytes: Option<u64>| bytes.unwrap_or(0).checked_next_multiple_of(self.piece).unwrap_or(u64::MAX);
        let (least, most) = (whole(meta.stored()), whole(meta.size));
        match self.holes {
            Holes::Free => (least, least),
            Holes::Taken => (most, most),
            Holes::Unsure => (least, most),
        }
    }
}

impl Holes {
    /// Decides by the type that `statfs` reports. A trial would tell nothing: ZFS reports a block for a hole, and `CephFS` and
    /// sshfs its length.
    pub fn on(magic: u32) -> Self {
        match magic {
            // ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, ZFS.
            0xef53 | 0x5846_5342 | 0x9123_683e | 0xf2f5_2010 | 0xca45_1a4e | 0x2fc1_2fc1 => Self::Free,
            // tmpfs, overlayfs, CephFS.
            0x0102_1994 | 0x794c_7630 | 0x00c3_6400 => Self::Free,
            // exFAT, FAT, HFS, HFS+.
            0x2011_bab0 | 0x4d44 | 0x4244 | 0x482b => Self::Taken,
            // FUSE, NFS and SMB do not tell what is behind them.
            _ => Self::Unsure,
        }
    }
}

/// Syncs the directory at `path`. If there is no room for that, the report notes that its names are not safe.
pub(super) fn sync_or_note(directory: &Dir, path: &str, report: &Report) -> io::Result<()> {
    match sync_directory(directory) {
        Err(error) if is_disk_full(&error) => {
            report.note_unsynced(path, &error);
            Ok(())
        }
        synced => synced,
    }
}

fn sync_directory(directory: &Dir) -> io::Result<()> {
    let synced = readable(directory).and_then(|directory| directory.sync_all());
    #[cfg(test)]
    let synced =
        crate::tests::fail_if_syncless(directory).and(crate::tests::fail_if_crowded(directory)).and(synced);
    // Some file systems cannot sync directories, and some directories are not readable.
    synced.or_else(|error| if cannot_sync(&error) { Ok(()) } else { Err(error) })
}

pub(crate) fn set_directory_mode(directory: &Dir, mode: u16) -> io::Result<()> {
    set_mode(&readable(directory)?.into_std(), mode)
}

fn set_directory_time(directory: &Dir, time: SystemTime) -> io::Result<()> {
    set_modified(&readable(directory)?.into_std(), time)
}

/// A handle that can be synced; the handles of the tree cannot.
pub(super) fn readable(directory: &Dir) -> io::Result<cap_std::fs::File> {
    directory.open_with(".", cap_std::fs::OpenOptions::new().read(true))
}
