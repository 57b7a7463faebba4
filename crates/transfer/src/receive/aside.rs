//! Puts an entry in the place of a directory, which is whole until then.
//!
//! The directory is moved aside, the entry gets its name, and the directory is cleared. An attempt that is killed in between
//! leaves the one that was moved: the next copy puts it back if its name is free, or else clears it if it may remove. It has
//! another name from when its clearing begins, and never comes back.

use std::ffi::OsStr;
use std::io;

use cap_std::fs::{Dir, Metadata};

use super::remove::{check, is_same, remove, remove_checked};
use super::shut::Shut;
use crate::path::{PART_SUFFIX, RelPath, aside_name, is_aside_name};
use crate::report::Report;

/// How a directory is removed for its replacement.
#[derive(Clone, Copy)]
pub(super) struct Clearing<'a> {
    pub report: &'a Report,
    /// The path of the replacement.
    pub path: &'a RelPath,
    pub shut: Shut,
    /// Why it must stay, if it must.
    pub why_unsafe: Option<&'static str>,
}

/// An error if a directory must stay.
pub(super) fn check_safe(why_unsafe: Option<&str>) -> io::Result<()> {
    let stays = |why| Err(io::Error::other(format!("a directory stays there, because {why}")));
    why_unsafe.map_or(Ok(()), stays)
}

/// The name of the directory `aside`, which was moved there, when it is no longer whole: with one end more.
fn clearing_name(aside: &str) -> String {
    format!("{aside}{PART_SUFFIX}")
}

/// The name of a directory that may not be whole when it was.
pub(super) fn when_whole(clearing: &str) -> Option<&str> {
    clearing.strip_suffix(PART_SUFFIX).filter(|aside| is_aside_name(aside))
}

/// Renames the complete entry `from` to `name`, where a directory may be. On an error, both are as before.
pub(super) fn replace(directory: &Dir, (from, name): (&str, &str), clearing: Clearing<'_>) -> io::Result<()> {
    let Clearing { report, path, shut, why_unsafe } = clearing;
    let entry = |name: &str| directory.symlink_metadata(name).ok();
    let Some(found) = entry(name).filter(Metadata::is_dir) else {
        return directory.rename(from, directory, name);
    };
    check_safe(why_unsafe)?;
    check(directory, OsStr::new(name), shut)?;
    let aside = aside_name(name);
    let clearing = clearing_name(&aside);
    for left in [&aside, &clearing] {
        if let Some(found) = entry(left) {
            remove(directory, left, &found, shut)?;
        }
    }
    let mut removed = 0;
    match directory.rename(name, directory, &aside) {
        // Some layered file systems cannot rename directories of a lower layer.
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            let cleared = remove_checked(directory, (name, &found), shut, &mut removed);
            report.add(|summary| summary.removed += removed);
            return cleared.and_then(|()| directory.rename(from, directory, name));
        }
        // Another copy has moved it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return directory.rename(from, directory, name);
        }
        moved => moved?,
    }
    // It may be what another copy has put in the place of the one that was found.
    let mut moved = Moved { directory, name, aside: &aside, found: entry(&aside).unwrap_or(found) };
    let placed = entry(from);
    directory.rename(from, directory, name).map_err(|error| moved.put_back(error))?;
    if directory.rename(&aside, directory, &clearing).is_ok() {
        moved.aside = &clearing;
    }
    let cleared = remove_checked(directory, (moved.aside, &moved.found), shut, &mut removed);
    report.add(|summary| summary.removed += removed);
    match cleared {
        Err(error) if removed == 0 && moved.take_away(placed.as_ref(), from) => Err(moved.put_back(error)),
        Err(error) if moved.is_there() => {
            let what = "it is in place, but the rest of the directory that it replaced cannot be removed";
            report.fail(path, format!("{what}: {}: {error}", moved.aside));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A directory that was moved aside. Another copy into this target may remove it or put it back at any time.
struct Moved<'a> {
    directory: &'a Dir,
    name: &'a str,
    aside: &'a str,
    found: Metadata,
}

impl Moved<'_> {
    /// True if it still is where it was moved to.
    fn is_there(&self) -> bool {
        self.directory.symlink_metadata(self.aside).is_ok_and(|now| is_same(&now, &self.found))
    }

    /// Gives it its name again if it is there, and says in the error where it is if not under its name.
    fn put_back(&self, error: io::Error) -> io::Error {
        let with = |what: &str| io::Error::new(error.kind(), format!("{error}; {what}"));
        if self.is_there() {
            return match self.directory.rename(self.aside, self.directory, self.name) {
                Ok(()) => error,
                Err(_) => with(&format!("the directory of its name is now {}", self.aside)),
            };
        }
        match self.directory.symlink_metadata(self.name) {
            Ok(now) if now.is_dir() => with("another copy has put a directory there"),
            _ => error,
        }
    }

    /// Renames the `placed` entry to `from` again, if the directory is there to be put back and the entry is no other copy's.
    fn take_away(&self, placed: Option<&Metadata>, from: &str) -> bool {
        let now = self.directory.symlink_metadata(self.name);
        let is_placed = now.is_ok_and(|now| placed.is_some_and(|placed| is_same(&now, placed)));
        self.is_there() && is_placed && self.directory.rename(self.name, self.directory, from).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;
    use crate::error::TransferError;

    fn replace_here(at: &std::path::Path, report: &Report) -> io::Result<()> {
        let directory = Dir::open_ambient_dir(at, cap_std::ambient_authority()).unwrap();
        let path = &RelPath::parse("d").unwrap();
        replace(&directory, ("new", "d"), Clearing { report, path, shut: Shut::Opens, why_unsafe: None })
    }

    #[test]
    fn a_directory_is_back_if_its_replacement_cannot_have_its_name() {
        let (temp, report) = (tempfile::tempdir().unwrap(), Report::default());
        let at = temp.path();
        fs::create_dir(at.join("d")).unwrap();
        fs::write(at.join("d/a"), "a").unwrap();
        let error = replace_here(at, &report).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(fs::read(at.join("d/a")).unwrap(), b"a");
        fs::write(at.join("new"), "new").unwrap();
        replace_here(at, &report).unwrap();
        assert_eq!(fs::read(at.join("d")).unwrap(), b"new");
        assert_eq!(fs::read_dir(at).unwrap().count(), 1);
        assert_eq!(report.finish().unwrap().removed, 2);
    }

    #[test]
    fn a_directory_of_which_nothing_could_be_removed_is_back_and_what_is_left_of_another_is_named() {
        if !nix::unistd::Uid::effective().is_root() {
            eprintln!("skipped: this user can make no files of others");
            return;
        }
        let (temp, report) = (tempfile::tempdir().unwrap(), Report::default());
        let at = temp.path();
        fs::create_dir(at.join("d")).unwrap();
        for name in ["d/a", "d/b", "new"] {
            fs::write(at.join(name), name).unwrap();
        }
        for (name, mode) in [("", 0o777), ("d", 0o1777)] {
            fs::set_permissions(at.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let nobody = 65_534;
        let act = || {
            std::thread::scope(|scope| {
                let run = || {
                    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(nobody));
                    replace_here(at, &report)
                };
                scope.spawn(run).join().unwrap()
            })
        };
        assert_eq!(act().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read(at.join("d/a")).unwrap(), b"d/a");
        assert_eq!(fs::read(at.join("new")).unwrap(), b"new");
        chown(at.join("d/a"), Some(nobody), None).unwrap();
        act().unwrap();
        assert_eq!(fs::read(at.join("d")).unwrap(), b"new");
        let finished = report.finish();
        let Err(TransferError::Incomplete { failures, .. }) = finished else { panic!("{finished:?}") };
        let reason = failures[0].reason.text();
        // A directory that is no longer whole has another name.
        let clearing = clearing_name(&aside_name("d"));
        assert!(reason.contains(&format!("cannot be removed: {clearing}: ")), "{reason}");
        assert_eq!(fs::read(at.join(&clearing).join("b")).unwrap(), b"d/b");
        assert_eq!(when_whole(&clearing), Some(aside_name("d").as_str()));
        for len in 1..=255 {
            let aside = aside_name(&"x".repeat(len));
            assert!(when_whole(&aside).is_none() && clearing_name(&aside).len() <= 143, "length {len}");
        }
    }

    #[test]
    fn a_placed_entry_keeps_its_name_if_another_copy_has_the_directory() {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path();
        let directory = Dir::open_ambient_dir(at, cap_std::ambient_authority()).unwrap();
        let found = |name: &str| directory.symlink_metadata(name).unwrap();
        fs::create_dir(at.join("aside")).unwrap();
        for name in ["d", "other"] {
            fs::write(at.join(name), name).unwrap();
        }
        let moved = Moved { directory: &directory, name: "d", aside: "aside", found: found("aside") };
        let placed = found("d");
        // The file of its name is another copy's.
        assert!(!moved.take_away(Some(&found("other")), "new"));
        // The directory is removed by another copy, or moved aside once more.
        fs::rename(at.join("aside"), at.join("elsewhere")).unwrap();
        for is_another in [false, true] {
            if is_another {
                fs::create_dir(at.join("aside")).unwrap();
            }
            assert!(!moved.take_away(Some(&placed), "new"));
            assert_eq!(fs::read(at.join("d")).unwrap(), b"d");
        }
        fs::remove_dir(at.join("aside")).unwrap();
        // It is put back by another copy.
        fs::remove_file(at.join("d")).unwrap();
        fs::rename(at.join("elsewhere"), at.join("d")).unwrap();
        let error = moved.put_back(io::ErrorKind::IsADirectory.into()).to_string();
        assert!(error.ends_with("another copy has put a directory there"), "{error}");
        // It is there.
        fs::rename(at.join("d"), at.join("aside")).unwrap();
        fs::rename(at.join("other"), at.join("d")).unwrap();
        assert!(moved.take_away(Some(&found("d")), "new"));
        let error = moved.put_back(io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(!error.contains("another copy") && at.join("d").is_dir(), "{error}");
        assert_eq!(fs::read(at.join("new")).unwrap(), b"other");
    }
}
