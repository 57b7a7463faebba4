//! Puts an entry in the place of a directory, which is whole until then.
//!
//! The directory is moved aside, the entry gets its name, and the directory is cleared. An attempt that is killed in between
//! leaves the one that was moved: the next copy puts it back if its name is free, or else clears it if it may remove.

use std::ffi::OsStr;
use std::io;

use cap_std::fs::{Dir, Metadata};

use super::remove::{check, remove, remove_checked};
use super::shut::Shut;
use crate::path::{RelPath, aside_name};
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

/// Renames the complete entry `from` to `name`, where a directory may be. On an error, both are as before.
pub(super) fn replace(directory: &Dir, (from, name): (&str, &str), clearing: Clearing<'_>) -> io::Result<()> {
    let Clearing { report, path, shut, why_unsafe } = clearing;
    let is_directory = |name: &str| directory.symlink_metadata(name).ok().filter(Metadata::is_dir);
    let Some(found) = is_directory(name) else { return directory.rename(from, directory, name) };
    check_safe(why_unsafe)?;
    check(directory, OsStr::new(name), shut)?;
    let aside = aside_name(name);
    if let Some(left) = is_directory(&aside) {
        remove(directory, &aside, &left, shut)?;
    }
    let mut removed = 0;
    match directory.rename(name, directory, &aside) {
        // Some layered file systems cannot rename directories of a lower layer.
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            let cleared = remove_checked(directory, (name, &found), shut, &mut removed);
            report.add(|summary| summary.removed += removed);
            return cleared.and_then(|()| directory.rename(from, directory, name));
        }
        moved => moved?,
    }
    let back = |error: io::Error| match directory.rename(&aside, directory, name) {
        Ok(()) => error,
        Err(_) => io::Error::new(error.kind(), format!("{error}; the directory of its name is now {aside}")),
    };
    directory.rename(from, directory, name).map_err(back)?;
    let cleared = remove_checked(directory, (&aside, &found), shut, &mut removed);
    report.add(|summary| summary.removed += removed);
    match cleared {
        Err(error) if removed == 0 => {
            directory.rename(name, directory, from)?;
            Err(back(error))
        }
        Err(error) => {
            let what = "it is in place, but what is left of the directory that it replaced cannot be removed";
            report.fail(path, format!("{what}: {aside}: {error}"));
            Ok(())
        }
        Ok(()) => Ok(()),
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
        assert!(reason.contains(&format!("cannot be removed: {}: ", aside_name("d"))), "{reason}");
        assert_eq!(fs::read(at.join(aside_name("d")).join("b")).unwrap(), b"d/b");
    }
}
