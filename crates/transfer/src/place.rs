//! What the receiver's planner does to the disk at once: directories, links, and a look at what is there.

use std::io;

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt};
use cap_std::fs::{Dir, DirBuilder, OpenOptions};

use crate::hash::{FileHasher, block_len, hash_block};
use crate::path::RelPath;
use crate::plan::{DirectoryModes, Planner, cannot_enter, exists, no_name};
use crate::receive::Conflict;
use crate::source::read_full;
use crate::target::set_directory_mode;

impl Planner {
    /// Makes the directory at `path`, open to its owner for now.
    pub fn make_directory(&mut self, path: &RelPath, mode: u16, modes: &mut DirectoryModes) {
        let (parent, name) = path.split();
        let made = self.tree.directory(parent).and_then(|parent| make_or_keep(&parent, name, mode));
        match made {
            Ok(Made::Ours) if mode & 0o700 != 0o700 => modes.push((path.as_str().to_owned(), mode)),
            Ok(_) => {}
            Err(error) => self.report.fail(path.shown(), cannot_enter(&error)),
        }
    }

    /// Makes the link at `path` that leads to `text`.
    pub fn make_link(&mut self, path: &RelPath, text: &str) {
        let (parent, name) = path.split();
        let directory = match self.tree.directory(parent) {
            Ok(directory) => directory,
            Err(error) => return self.report.fail(path.shown(), cannot_enter(&error)),
        };
        let mut name = name.to_owned();
        if directory.symlink_metadata(&name).is_ok() {
            if directory.read_link_contents(&name).is_ok_and(|held| held.as_os_str() == text) {
                return;
            }
            match self.conflict {
                Conflict::Error => return self.report.fail(path.shown(), exists()),
                Conflict::Skip => return self.report.add(|summary| summary.skipped += 1),
                Conflict::Overwrite => {
                    if let Err(error) = directory.remove_file(&name) {
                        return self.report.fail(path.shown(), format!("it cannot be replaced: {error}"));
                    }
                }
                Conflict::Rename => {
                    let mut names = self.alternatives(path);
                    match names.find(|(_, name)| directory.symlink_metadata(name).is_err()) {
                        Some((_, free)) => name = free,
                        None => return self.report.fail(path.shown(), no_name()),
                    }
                }
            }
        }
        create_link(&directory, text, &name, |why| self.report.warn(&format!("{}: {why}", path.shown())));
    }
}

/// Whose a directory is.
enum Made {
    /// Made by this transfer, or by an earlier attempt at it.
    Ours,
    Theirs,
}

/// Makes a directory with `mode` and all rights for its owner; one that is there is kept as it is.
fn make_or_keep(parent: &Dir, name: &str, mode: u16) -> io::Result<Made> {
    let opened = mode | 0o700;
    match parent.create_dir_with(name, &private()) {
        Ok(()) => {
            set_directory_mode(&parent.open_dir_nofollow(name)?, opened)?;
            Ok(Made::Ours)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let directory = parent.open_dir_nofollow(name)?;
            // Between the attempts at one transfer it has the mode that the first of them gave it.
            Ok(if has_mode(&directory, opened)? { Made::Ours } else { Made::Theirs })
        }
        Err(error) => Err(error),
    }
}

/// The hash of a whole file; `None` when it cannot be read, or is no longer wanted.
pub(crate) fn hash_file(directory: &Dir, name: &str, is_wanted: impl Fn() -> bool) -> Option<[u8; 32]> {
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::No);
    let mut file = directory.open_with(name, &options).ok()?;
    let len = file.metadata().ok()?.len();
    let (mut buffer, mut hasher) = (vec![0; block_len(len, 0).max(1)], FileHasher::default());
    while is_wanted() {
        match read_full(&mut file, &mut buffer).ok()? {
            0 => return Some(hasher.finish().into()),
            read => hasher.push(hash_block(hasher.blocks(), &buffer[..read])),
        }
    }
    None
}

#[cfg(unix)]
fn private() -> DirBuilder {
    use cap_std::fs::DirBuilderExt as _;
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

#[cfg(unix)]
fn has_mode(directory: &Dir, mode: u16) -> io::Result<bool> {
    use cap_std::fs::MetadataExt as _;
    Ok(directory.dir_metadata()?.mode() & 0o777 == u32::from(mode))
}

#[cfg(not(unix))]
fn private() -> DirBuilder {
    DirBuilder::new()
}

#[cfg(not(unix))]
fn has_mode(_directory: &Dir, _mode: u16) -> io::Result<bool> {
    Ok(false)
}

#[cfg(unix)]
fn create_link(directory: &Dir, text: &str, name: &str, complain: impl FnOnce(String)) {
    if let Err(error) = directory.symlink_contents(text, name) {
        complain(format!("the link is left out: {error}"));
    }
}

#[cfg(not(unix))]
fn create_link(_directory: &Dir, _text: &str, _name: &str, complain: impl FnOnce(String)) {
    complain("the link is left out: this system's links need to know what they lead to".into());
}
