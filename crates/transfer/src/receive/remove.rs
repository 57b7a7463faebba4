//! Removes entries of the target without following links, and tells entries apart.

use std::collections::BTreeSet;
use std::io;

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, Metadata};

use super::shut::open_up;
use crate::report::Report;

/// Removes the directory `name`, whose replacement is complete, unless something has failed meanwhile.
pub(super) fn clear(directory: &Dir, name: &str, report: &Report) -> io::Result<()> {
    let Some(found) = directory.symlink_metadata(name).ok().filter(Metadata::is_dir) else { return Ok(()) };
    if report.has_failed() {
        return Err(io::Error::other("a directory stays there, because not everything has arrived"));
    }
    let removed = remove(directory, name, &found)?;
    report.add(|summary| summary.removed += removed);
    Ok(())
}

/// Removes a file or a whole directory, without following links; returns how many entries.
pub(super) fn remove(directory: &Dir, name: &str, found: &Metadata) -> io::Result<u64> {
    if !found.is_dir() {
        directory.remove_file(name)?;
        return Ok(1);
    }
    let mut count = 1;
    let inner = directory.open_dir_nofollow(name)?;
    open_up(&inner);
    for name in names(&inner)? {
        let name = name.to_str().ok_or_else(|| io::Error::other("a name in it is not UTF-8"))?.to_owned();
        let found = inner.symlink_metadata(&name)?;
        count += remove(&inner, &name, &found)?;
    }
    directory.remove_dir(name)?;
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
