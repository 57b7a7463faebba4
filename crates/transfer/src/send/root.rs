//! The paths that a user shares, and parts of them.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};

use crate::path::RelPath;

/// A path that the user shares, or a part of it.
#[derive(Clone)]
pub(crate) struct Root {
    /// Its name in the share.
    pub name: RelPath,
    /// The shared directory, or the directory of the shared file.
    pub directory: PathBuf,
    /// The file's name in that directory; `None` for a directory.
    pub file: Option<PathBuf>,
    /// The part of the directory that is meant; no link leads there.
    pub below: Option<RelPath>,
    /// Lists what is in the directory instead of the directory.
    pub contents: bool,
}

impl Root {
    /// Opens the directory; the name is of the file in it, if a file is meant.
    pub fn open(&self) -> io::Result<(Arc<Dir>, Option<PathBuf>)> {
        let mut directory = Arc::new(Dir::open_ambient_dir(&self.directory, ambient_authority())?);
        let Some(below) = &self.below else { return Ok((directory, self.file.clone())) };
        let (parent, name) = below.split();
        for name in parent.split('/').filter(|name| !name.is_empty()) {
            directory = Arc::new(directory.open_dir_nofollow(name)?);
        }
        let meta = directory.symlink_metadata(name)?;
        if meta.is_file() {
            return Ok((directory, Some(PathBuf::from(name))));
        }
        Ok((Arc::new(directory.open_dir_nofollow(name)?), None))
    }

    /// Opens the file; `None` for a directory.
    pub fn open_file(&self) -> io::Result<Option<File>> {
        let (directory, Some(name)) = self.open()? else { return Ok(None) };
        let file = directory.open_with(name, &reading())?;
        if file.metadata()?.is_file() {
            Ok(Some(file.into_std()))
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

/// Which entries of a share's paths are listed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scope {
    /// List the files that links lead to, in place of the links.
    pub follow: bool,
    /// No entries of listed directories.
    pub shallow: bool,
    /// Send extended attributes.
    pub attributes: bool,
    /// Say which files are further names of others.
    pub links: bool,
}

/// Options for opening a share's files.
pub(super) fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::No).nonblock(true);
    options
}
