//! Where a receiver puts things, and the directory tree it cannot be led out of.
//!
//! Every directory is reached from the target's own handle, one component at a time, never through a
//! symbolic link: neither one the sender made nor one that was there before.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::Dir;

use crate::error::TransferError;

/// Where received files go.
pub enum Target {
    /// Into this directory, under their names in the share; it is created if need be.
    Directory(PathBuf),
    /// The share's only file, to this path.
    File(PathBuf),
    /// The share's only file, to this writer (standard output, say), block by verified block.
    Writer(Box<dyn Write + Send>),
}

impl Target {
    /// Checks that files can be put there, without making anything: before a sender is asked for them.
    ///
    /// # Errors
    /// [`TransferError::NotADirectory`], or [`TransferError::Io`] when the directory may not be written.
    pub fn check(&self) -> Result<(), TransferError> {
        let directory = match self {
            Self::Directory(path) => path.as_path(),
            Self::File(path) => path.parent().unwrap_or(Path::new("")),
            Self::Writer(_) => return Ok(()),
        };
        // What does not exist yet is made in the nearest directory above that does.
        let there = directory.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
        let there = here(there.unwrap_or(Path::new("")));
        if there.is_dir() {
            return check_writable(there);
        }
        Err(TransferError::NotADirectory { path: there.to_owned() })
    }
}

/// The path, or the one of the current directory where it is empty.
fn here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Writer(_) => f.write_str("Writer"),
        }
    }
}

/// The target directory and the way to what is below it.
pub(crate) struct TargetTree {
    path: PathBuf,
    root: Arc<Dir>,
    /// The directory used last: entries come sorted, so it is mostly the next one too.
    last: Option<(String, Arc<Dir>)>,
}

impl TargetTree {
    /// Opens `path`, creating it if need be.
    pub fn open(path: &Path) -> Result<Self, TransferError> {
        let path = here(path);
        Target::Directory(path.to_owned()).check()?;
        let opened = Dir::create_ambient_dir_all(path, ambient_authority())
            .and_then(|()| Dir::open_ambient_dir(path, ambient_authority()));
        let root = opened.map_err(|error| TransferError::io("open the target directory", path, error))?;
        Ok(Self { path: path.to_owned(), root: Arc::new(root), last: None })
    }

    /// The same tree for another thread.
    pub fn another(&self) -> Self {
        Self { path: self.path.clone(), root: Arc::clone(&self.root), last: None }
    }

    /// The path of the target directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory at the checked path `relative`, "" for the target itself.
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

    /// Bytes free for this user; `None` where the system does not tell.
    pub fn free_bytes(&self) -> Option<u64> {
        free_bytes(&self.root)
    }

    /// Syncs the directories that got new names, then gives the directories in `modes` their final mode.
    ///
    /// `modes` has parents before children, and is applied from its end: a parent may shut its children in.
    pub fn finish(
        &mut self,
        renamed: &BTreeSet<String>,
        modes: &[(String, u16)],
    ) -> Result<(), TransferError> {
        for path in renamed {
            let synced = self.directory(path).and_then(|directory| sync_directory(&directory));
            synced.map_err(|error| TransferError::io("sync the directory", self.path.join(path), error))?;
        }
        for (path, mode) in modes.iter().rev() {
            let set = self.directory(path).and_then(|directory| set_directory_mode(&directory, *mode));
            set.map_err(|error| TransferError::io("set the mode of", self.path.join(path), error))?;
        }
        Ok(())
    }
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
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(unix)]
fn sync_directory(directory: &Dir) -> io::Result<()> {
    match readable(directory).and_then(|directory| directory.sync_all()) {
        // Some file systems have nothing to sync in a directory, and not every directory may be read.
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

/// A handle that can be synced; those that directories are walked with need not be.
#[cfg(unix)]
fn readable(directory: &Dir) -> io::Result<cap_std::fs::File> {
    directory.open_with(".", cap_std::fs::OpenOptions::new().read(true))
}

#[cfg(not(unix))]
fn free_bytes(_directory: &Dir) -> Option<u64> {
    None
}

#[cfg(not(unix))]
fn sync_directory(_directory: &Dir) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn set_directory_mode(_directory: &Dir, _mode: u16) -> io::Result<()> {
    Ok(())
}
