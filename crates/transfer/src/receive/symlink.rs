//! Symbolic links on the receiver's disk.

use std::io;

use cap_std::fs::Dir;

use super::aside::{Clearing, replace};
use super::part::PartFile;
use crate::path::part_name;

/// Puts a link in the place of `name`, which stays if the link cannot be made. With `clears`, removes a directory.
pub(super) fn replace_with_link(
    directory: &Dir,
    text: &str,
    name: &str,
    clears: Option<Clearing<'_>>,
) -> io::Result<()> {
    let part = part_name(name);
    PartFile::discard(directory, name)?;
    if directory.symlink_metadata(&part).is_ok_and(|left| left.is_symlink()) {
        directory.remove_file(&part)?;
    }
    create_link(directory, text, &part)?;
    let rename = || directory.rename(&part, directory, name);
    clears.map_or_else(rename, |clearing| replace(directory, (&part, name), clearing)).inspect_err(|_| {
        // The first error counts.
        let _ = directory.remove_file(&part);
    })
}

pub(super) fn create_link(directory: &Dir, text: &str, name: &str) -> io::Result<()> {
    directory.symlink_contents(text, name)
}

#[cfg(test)]
mod tests {
    use cap_std::ambient_authority;

    use super::*;

    #[test]
    fn a_file_stays_unless_the_link_that_replaces_it_is_made() {
        let place = tempfile::tempdir().unwrap();
        let directory = Dir::open_ambient_dir(place.path(), ambient_authority()).unwrap();
        directory.write("file", "content").unwrap();
        // Linux takes 4,095 bytes.
        assert!(replace_with_link(&directory, &"x".repeat(4096), "file", None).is_err());
        assert_eq!(directory.read_to_string("file").unwrap(), "content");
        replace_with_link(&directory, "elsewhere", "file", None).unwrap();
        assert_eq!(directory.read_link_contents("file").unwrap().to_str(), Some("elsewhere"));
        assert_eq!(directory.entries().unwrap().count(), 1, "no part is left");
    }
}
