//! The target of received files, and its directory tree, which no link can lead out of.
//!
//! Every directory is opened from the target's own handle, one component at a time. Symbolic links are never followed,
//! whether the sender made them or they existed before.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::Dir;

use crate::error::TransferError;
use crate::path::RelPath;
use crate::report::Report;

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
    Writer(Box<dyn Write + Send>),
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
        // Missing directories are made in the nearest existing one.
        let there = directory.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
        let there = here(there.unwrap_or(Path::new("")));
        if there.is_dir() {
            return check_writable(there);
        }
        Err(TransferError::NotADirectory { path: there.to_owned() })
    }
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
    /// The last directory used: entries are sorted, so the next is often the same.
    last: Option<(String, Arc<Dir>)>,
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
        Ok(Self { path: path.to_owned(), root: Arc::new(root), mode_mask, last: None })
    }

    /// Opens the directory at `path` below `root`, creating it if necessary. Errors name it without the root's path,
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
        let (path, root, mode_mask) = (named.to_owned(), Arc::new(directory), 0o777 & !umask());
        Ok(Self { path, root, mode_mask, last: None })
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
        let tree = |root| Self { path: path.into(), root: Arc::new(root), mode_mask: 0, last: None };
        (opened.ok().map(tree), 0)
    }

    /// The permission bits that new files and directories may have.
    pub fn mode_mask(&self) -> u16 {
        self.mode_mask
    }

    /// The same tree for another thread.
    pub fn another(&self) -> Self {
        Self { path: self.path.clone(), root: Arc::clone(&self.root), mode_mask: self.mode_mask, last: None }
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
        for name in relative.split('/').filter(|name| !name.is_empty()) {
            directory = Arc::new(directory.open_dir_nofollow(name)?);
        }
        self.last = Some((relative.to_owned(), Arc::clone(&directory)));
        Ok(directory)
    }

    /// The path, or the current directory if it is empty.
    pub fn named(path: &Path) -> &Path {
        here(path)
    }

    /// Bytes free for this user; `None` if the system does not report it.
    pub fn free_bytes(&self) -> Option<u64> {
        free_bytes(&self.root)
    }

    /// Syncs the `renamed` directories, then sets the final mode of the directories in `modes`.
    ///
    /// `modes` lists parents before children and is applied in reverse: a parent's mode may block access to its
    /// children.
    pub fn finish(
        &mut self,
        renamed: &BTreeSet<String>,
        modes: &[(RelPath, u16)],
        report: &Report,
    ) -> Result<(), TransferError> {
        for path in renamed {
            let synced = self.directory(path).and_then(|directory| sync_directory(&directory));
            synced.map_err(|error| TransferError::io("sync the directory", self.path.join(path), error))?;
        }
        for (path, mode) in modes.iter().rev() {
            let set =
                self.directory(path.as_str()).and_then(|directory| set_directory_mode(&directory, *mode));
            if let Err(error) = set {
                report.note("store the mode", path, &error);
            }
        }
        Ok(())
    }
}

/// This process's umask.
#[cfg(target_os = "linux")]
fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
}

/// This process's umask. Reading it changes it for a moment, so it is read only once.
#[cfg(all(unix, not(target_os = "linux")))]
fn umask() -> u16 {
    use rustix::fs::Mode;
    use rustix::process::umask;
    static MASK: std::sync::LazyLock<u16> = std::sync::LazyLock::new(|| {
        let mask = umask(Mode::from_raw_mode(0o077));
        umask(mask);
        mask.bits() as u16
    });
    *MASK
}

#[cfg(not(unix))]
fn umask() -> u16 {
    0
}

#[cfg(unix)]
fn check_writable(directory: &Path) -> Result<(), TransferError> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let (access, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    accessat(CWD, directory, access, flags)
        .map_err(|error| TransferError::io("write to the directory", directory, error.into()))
}

#[cfg(not(unix))]
fn check_writable(_directory: &Path) -> Result<(), TransferError> {
    Ok(())
}

#[cfg(unix)]
fn free_bytes(directory: &Dir) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(directory).ok()?;
    // A file system without blocks, such as ramfs, does not know its size.
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(unix)]
pub(crate) fn sync_directory(directory: &Dir) -> io::Result<()> {
    match readable(directory).and_then(|directory| directory.sync_all()) {
        // Some file systems cannot sync directories, and some directories are not readable.
        Err(error)
            if !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

#[cfg(unix)]
pub(crate) fn set_directory_mode(directory: &Dir, mode: u16) -> io::Result<()> {
    use cap_std::fs::PermissionsExt as _;
    readable(directory)?.set_permissions(cap_std::fs::Permissions::from_mode(mode.into()))
}

/// A handle that can be synced; the handles of the tree cannot.
#[cfg(unix)]
fn readable(directory: &Dir) -> io::Result<cap_std::fs::File> {
    directory.open_with(".", cap_std::fs::OpenOptions::new().read(true))
}

#[cfg(not(unix))]
fn free_bytes(_directory: &Dir) -> Option<u64> {
    None
}

#[cfg(not(unix))]
pub(crate) fn sync_directory(_directory: &Dir) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn set_directory_mode(_directory: &Dir, _mode: u16) -> io::Result<()> {
    Ok(())
}
