//! Removes entries of the target without following links, and tells entries apart.

use std::collections::BTreeSet;
use std::io;

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, Metadata};

use super::shut::{Shut, open_up, shut_again};
use crate::report::Report;

/// How a directory is removed for its replacement.
#[derive(Clone, Copy)]
pub(super) struct Clearing<'a> {
    pub report: &'a Report,
    pub shut: Shut,
    /// Why it must stay, if it must.
    pub why_unsafe: Option<&'static str>,
}

/// Removes the directory `name`, whose replacement is complete, unless something is not safe by then.
pub(super) fn clear(directory: &Dir, name: &str, clearing: Clearing<'_>) -> io::Result<()> {
    let Clearing { report, shut, why_unsafe } = clearing;
    let Some(found) = directory.symlink_metadata(name).ok().filter(Metadata::is_dir) else { return Ok(()) };
    check_safe(why_unsafe)?;
    let removed = remove(directory, name, &found, shut)?;
    report.add(|summary| summary.removed += removed);
    Ok(())
}

/// An error if a directory must stay.
pub(super) fn check_safe(why_unsafe: Option<&str>) -> io::Result<()> {
    let stays = |why| Err(io::Error::other(format!("a directory stays there, because {why}")));
    why_unsafe.map_or(Ok(()), stays)
}

/// Removes a file or a whole directory, without following links; returns how many entries. A directory that stays has its
/// mode again.
pub(super) fn remove(directory: &Dir, name: &str, found: &Metadata, shut: Shut) -> io::Result<u64> {
    if !found.is_dir() {
        directory.remove_file(name)?;
        return Ok(1);
    }
    let inner = directory.open_dir_nofollow(name)?;
    let had = open_up(&inner, shut);
    let removed = empty(&inner, shut).and_then(|count| {
        directory.remove_dir(name)?;
        Ok(count + 1)
    });
    if let (Err(_), Some(mode)) = (&removed, had) {
        shut_again(&inner, mode);
    }
    removed
}

/// Removes what is in a directory; returns how many entries.
fn empty(directory: &Dir, shut: Shut) -> io::Result<u64> {
    let mut count = 0;
    for name in names(directory)? {
        let name = name.to_str().ok_or_else(|| io::Error::other("a name in it is not UTF-8"))?.to_owned();
        let found = directory.symlink_metadata(&name)?;
        count += remove(directory, &name, &found, shut)?;
    }
    Ok(count)
}

/// The names in a directory, read before any of them is removed.
pub(super) fn names(directory: &Dir) -> io::Result<BTreeSet<std::ffi::OsString>> {
    directory.entries()?.map(|entry| entry.map(|entry| entry.file_name())).collect()
}

pub(super) fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use cap_std::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_cannot_be_removed_has_its_mode_again() {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
        // Root may write into every directory, but not this thread from here on.
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
        let inner = temp.path().join("d/e");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
        for shut in [&inner, &temp.path().join("d")] {
            fs::set_permissions(shut, fs::Permissions::from_mode(0o555)).unwrap();
        }
        let directory = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        let found = directory.symlink_metadata("d").unwrap();
        remove(&directory, "d", &found, Shut::Opens).unwrap_err();
        let mode = |path| fs::metadata(temp.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(["d", "d/e"].map(mode), [0o555, 0o555]);
    }
}
