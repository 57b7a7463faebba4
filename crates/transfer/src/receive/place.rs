//! The planner's own disk work: directories, links, and hashes of existing files.

use std::io;

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt};
use cap_std::fs::{Dir, DirBuilder, File, OpenOptions};

use super::job::DirectoryEnd;
use super::mirror::discard_staged;
use super::part::{PartFile, STORE_ATTRIBUTES, cannot_make, set_attributes};
use super::plan::{Planner, cannot_enter, unfinished};
use super::shut::{Shut, mark, open_existing, unmark};
use super::spelling::{clash, clash_above};
use super::symlink::{create_link, replace_with_link};
use super::target::{readable, set_directory_mode};
use crate::error::is_disk_full;
use crate::hash::{FileHasher, block_len, hash_block};
use crate::manifest::{Entry, EntryKind, ModifiedTime};
use crate::path::RelPath;
use crate::policy::Conflict;
use crate::send::read_full;

impl Planner {
    /// Makes the directory at `path`, accessible to its owner for now. In the end an existing one has its mode again, unless
    /// an attempt that was cut off made it. Returns what is set then.
    pub fn make_directory(
        &mut self,
        (index, path): (u32, &RelPath),
        mode: u16,
        modified: Option<ModifiedTime>,
    ) -> Option<DirectoryEnd> {
        let shut = self.tree.shut();
        // A server's quota counts what is in it, and a client must be able to change later what it made.
        let open_here = match shut {
            Shut::Stays => 0o700,
            Shut::Opens if self.room.is_some() => 0o500,
            Shut::Opens => 0,
        };
        let mode = (mode & self.tree.mode_mask()) | open_here;
        let (parent, name) = path.split();
        if self.mirror.is_some()
            && let Ok(parent) = self.tree.directory(parent)
            && let Ok(found) = parent.symlink_metadata(name)
            && !found.is_dir()
            && self.may_clear(path, &found)
        {
            // An unfinished file is not needed any more. If it stays, the directory fails.
            let _ = PartFile::discard(&parent, name);
            self.tree.stage(path.as_str());
        }
        let name = &*self.tree.current_name(path.as_str(), name);
        let made = self.tree.directory(parent).and_then(|parent| {
            match parent.create_dir_with(name, &open_to_owner(mode)) {
                Ok(()) => {
                    let directory = parent.open_dir_nofollow(name)?;
                    let is_restricted = mode & 0o700 != 0o700;
                    if is_restricted {
                        mark(&directory, None);
                    }
                    self.give_attributes(&directory, (index, path), true);
                    if let Err(error) = set_directory_mode(&directory, mode | 0o700) {
                        self.report.note("store the mode", path, &error);
                        unmark(&directory);
                        return Ok((None, true));
                    }
                    Ok((is_restricted.then_some(mode), true))
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let directory = parent.open_dir_nofollow(name)?;
                    let mode = open_existing(&directory, mode, shut);
                    self.give_attributes(&directory, (index, path), false);
                    Ok((mode, false))
                }
                Err(error) => Err(error),
            }
        });
        match made {
            Ok((mode, is_new)) => {
                if is_new {
                    self.made = Some(path.as_str().to_owned());
                }
                Some(DirectoryEnd { path: path.clone(), mode, modified, is_new })
            }
            Err(error) => {
                let shut = self.tree.why_shut(parent, &error);
                let may_be_made =
                    self.tree.directory(parent).is_ok_and(|parent| parent.symlink_metadata(name).is_err());
                let why = if may_be_made { cannot_make } else { cannot_enter };
                self.report.fail_io(path, &error, |error| shut.unwrap_or_else(|| why(error)));
                None
            }
        }
    }

    /// Gives a directory its attributes if it is new, or a mirror's.
    fn give_attributes(&self, directory: &Dir, (index, path): (u32, &RelPath), is_new: bool) {
        if !self.attributes.contains_key(&index) {
            return;
        }
        let opened = readable(directory).map(File::into_std);
        if !is_new && self.mirror.is_none() {
            return self.note_old_attributes(opened, (index, path));
        }
        match opened {
            Ok(file) => set_attributes(&file, &self.attributes, (index, path), &self.report),
            Err(error) => self.report.note(STORE_ATTRIBUTES, path, &error),
        }
    }

    /// True for a directory that is an earlier one of the share here, and for what is in it: they fail. Where files that clash
    /// are renamed, the directories become one.
    pub fn merges(&mut self, Entry { path, kind }: &Entry) -> bool {
        if self.spellings.is_in_another(path, kind) {
            self.report.fail(path, clash_above());
            return true;
        }
        if !matches!(kind, EntryKind::Directory { .. }) || !self.spellings.has_several(path) {
            return false;
        }
        let (parent, name) = path.split();
        let found = self.tree.directory(parent).and_then(|parent| parent.symlink_metadata(name));
        let merges = found.is_ok_and(|found| found.is_dir() && self.clashes(path, &found));
        if merges && self.conflict == Conflict::Rename {
            self.report.warn(&format!("{}, as another directory of the share: {}", path.as_str(), clash()));
            return false;
        }
        if merges {
            self.spellings.put_in_another(path);
            self.report.fail(path, clash());
        }
        merges
    }

    pub fn make_link(&mut self, path: &RelPath, text: &str) {
        let (parent, name) = path.split();
        let directory = match self.tree.directory(parent) {
            Ok(directory) => directory,
            Err(error) => return self.report.fail_io(path, &error, cannot_enter),
        };
        let mut name = name.to_owned();
        if let Ok(found) = directory.symlink_metadata(&name) {
            if directory.read_link_contents(&name).is_ok_and(|held| held.as_os_str() == text) {
                return;
            }
            let clashes = self.clashes(path, &found);
            match self.conflict {
                Conflict::Error => return self.report.fail(path, exists()),
                Conflict::Skip => return self.report.add(|summary| summary.skipped += 1),
                Conflict::Overwrite if clashes => return self.report.fail(path, clash()),
                Conflict::Overwrite => {
                    if self.mirror.is_some()
                        && let Err(error) = discard_staged(&directory, &name)
                    {
                        return self.report.fail(path, unfinished(&error));
                    }
                    if found.is_dir() && self.may_clear(path, &found) {
                        return self.tree.stage_link(path, text);
                    }
                    return match replace_with_link(&directory, text, &name, None) {
                        Ok(()) => self.count_link(),
                        Err(error) => {
                            self.report.fail(path, format!("it cannot be replaced by the link: {error}"));
                        }
                    };
                }
                Conflict::Rename => {
                    let mut names = self.alternatives(path);
                    match names.find(|(_, name)| directory.symlink_metadata(name).is_err()) {
                        Some((_, free)) => name = free,
                        None => return self.report.fail(path, no_name()),
                    }
                }
            }
        }
        match create_link(&directory, text, &name) {
            Ok(()) => self.count_link(),
            Err(error) if is_disk_full(&error) => self.report.fail_io(path, &error, io::Error::to_string),
            Err(error) => match self.tree.why_shut(parent, &error) {
                Some(shut) => self.report.fail(path, shut),
                // Some file systems have no links.
                None => self.report.fail_for_good(path, format!("the link cannot be made: {error}")),
            },
        }
    }

    /// Counts a link that a copy got.
    fn count_link(&self) {
        self.report.add(|summary| summary.updated += u64::from(self.mirror.is_some()));
    }
}

/// Why a file that could not be compared is not received.
pub(super) const UNREADABLE: &str = "the file of this name here cannot be read, and so not be compared; make it readable, or choose to \
     overwrite, rename or skip";

pub(crate) fn exists() -> &'static str {
    "something else has this name; choose to overwrite, rename or skip, or another directory"
}

pub(crate) fn no_name() -> &'static str {
    "a thousand names like it are taken; choose another directory"
}

/// The hash of a whole file; `None` if it cannot be read or is not wanted any more. `is_wanted` gets the bytes of each read.
pub(crate) fn hash_file(
    directory: &Dir,
    name: &str,
    mut is_wanted: impl FnMut(usize) -> bool,
) -> Option<[u8; 32]> {
    let mut file = open(directory, name).ok()?;
    let len = file.metadata().ok()?.len();
    let (mut buffer, mut hasher) = (vec![0; block_len(len, 0).max(1)], FileHasher::default());
    loop {
        let read = read_full(&mut file, &mut buffer).ok()?;
        if read == 0 {
            return Some(hasher.finish().into());
        }
        hasher.push(hash_block(hasher.blocks(), &buffer[..read]));
        if !is_wanted(read) {
            return None;
        }
    }
}

/// Opens a file for reading, but no link.
pub(super) fn open(directory: &Dir, name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::No);
    directory.open_with(name, &options)
}

/// True if this user may not read the file.
pub(super) fn is_unreadable(directory: &Dir, name: &str) -> bool {
    open(directory, name).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn open_to_owner(mode: u16) -> DirBuilder {
    use cap_std::fs::DirBuilderExt as _;
    let mut builder = DirBuilder::new();
    builder.mode(u32::from(mode | 0o700));
    builder
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_this_user_may_not_read_is_unreadable_and_a_missing_one_is_not() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temp.path(), Permissions::from_mode(0o755)).unwrap();
        for (name, mode) in [("open", 0o644), ("closed", 0)] {
            std::fs::write(temp.path().join(name), "x").unwrap();
            std::fs::set_permissions(temp.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        let directory = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        // Root may read every file, but not this thread from here on.
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
        let found = ["open", "closed", "missing"].map(|name| is_unreadable(&directory, name));
        assert_eq!(found, [false, true, false]);
    }
}
