//! Removes entries of the target without following links, and tells entries apart.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, Metadata};
use rustix::fs::{Access, AtFlags, StatxAttributes, StatxFlags, accessat, statx};

use super::shut::{Shut, open_up, shut_again};

/// Removes a file or a whole directory, without following links; returns how many entries. Removes nothing if a part could
/// not be removed, as far as that can be known.
pub(super) fn remove(directory: &Dir, name: &str, found: &Metadata, shut: Shut) -> io::Result<u64> {
    check(directory, OsStr::new(name), shut)?;
    let mut count = 0;
    remove_checked(directory, (name, found), shut, &mut count)?;
    Ok(count)
}

/// An error if something in the directory `name`, or that itself, could not be removed, or is on another file system. No error
/// if another copy removes it meanwhile.
pub(super) fn check(directory: &Dir, name: &OsStr, shut: Shut) -> io::Result<()> {
    or_gone(check_found(directory, name, shut))
}

/// No error if something is gone, as another copy into this target may have removed it.
fn or_gone(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn check_found(directory: &Dir, name: &OsStr, shut: Shut) -> io::Result<()> {
    use cap_std::fs::MetadataExt as _;
    let found = directory.symlink_metadata(name)?;
    let is_another = || directory.dir_metadata().map(|parent| found.is_dir() && found.dev() != parent.dev());
    if is_mounted(directory, name) || is_another()? {
        let name = name.to_string_lossy();
        let what =
            format!("{name} is another file system (a mount or subvolume); unmount or remove it first");
        return Err(io::Error::other(what));
    }
    if name.to_str().is_none() {
        return Err(io::Error::other("a name in it is not UTF-8"));
    }
    if !found.is_dir() {
        return Ok(());
    }
    let inner = directory.open_dir_nofollow(name)?;
    let had = open_up(&inner, shut);
    let checked = names(&inner).and_then(|names| {
        if !names.is_empty() {
            accessat(&inner, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?;
        }
        names.iter().try_for_each(|name| check(&inner, name, shut))
    });
    if let Some(mode) = had {
        shut_again(&inner, mode);
    }
    checked
}

/// True for the root of a mount, which may be one of the same file system. Old systems do not report it.
fn is_mounted(directory: &Dir, name: &OsStr) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(directory, name, flags, StatxFlags::TYPE)
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Removes a checked file or directory, and counts the entries. A directory that stays has its mode again. Entries that
/// another copy removes meanwhile are not counted.
pub(super) fn remove_checked(
    directory: &Dir,
    (name, found): (&str, &Metadata),
    shut: Shut,
    count: &mut u64,
) -> io::Result<()> {
    or_gone(remove_found(directory, (name, found), shut, count))
}

fn remove_found(
    directory: &Dir,
    (name, found): (&str, &Metadata),
    shut: Shut,
    count: &mut u64,
) -> io::Result<()> {
    if !found.is_dir() {
        directory.remove_file(name)?;
        *count += 1;
        return Ok(());
    }
    let inner = directory.open_dir_nofollow(name)?;
    let had = open_up(&inner, shut);
    let removed = empty(&inner, shut, count).and_then(|()| directory.remove_dir(name));
    match (&removed, had) {
        (Ok(()), _) => *count += 1,
        (Err(_), Some(mode)) => shut_again(&inner, mode),
        (Err(_), None) => {}
    }
    removed
}

/// Removes what is in a directory.
fn empty(directory: &Dir, shut: Shut, count: &mut u64) -> io::Result<()> {
    for name in names(directory)? {
        let name = name.to_str().ok_or_else(|| io::Error::other("a name in it is not UTF-8"))?.to_owned();
        let found = match directory.symlink_metadata(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        remove_checked(directory, (&name, &found), shut, count)?;
    }
    Ok(())
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
        remove_checked(&directory, ("d", &found), Shut::Opens, &mut 0).unwrap_err();
        let mode = |path| fs::metadata(temp.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(["d", "d/e"].map(mode), [0o555, 0o555]);
    }
    #[test]
    fn a_directory_that_cannot_be_removed_as_a_whole_keeps_everything() {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
        let d = temp.path().join("d");
        fs::create_dir_all(d.join("shut")).unwrap();
        fs::create_dir_all(d.join("z")).unwrap();
        for name in [&b"a"[..], b"shut/b", b"z/\xff"] {
            fs::write(d.join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
        }
        fs::set_permissions(d.join("shut"), fs::Permissions::from_mode(0o555)).unwrap();
        let directory = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        let found = directory.symlink_metadata("d").unwrap();
        for (shut, why) in [(Shut::Stays, "Permission denied"), (Shut::Opens, "not UTF-8")] {
            let error = remove(&directory, "d", &found, shut).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert!(d.join("a").exists() && d.join("shut/b").exists());
        }
        fs::remove_file(d.join(std::ffi::OsStr::from_bytes(b"z/\xff"))).unwrap();
        assert_eq!(remove(&directory, "d", &found, Shut::Opens).unwrap(), 5);
        assert!(!d.exists());
    }

    #[test]
    fn what_holds_a_mount_is_not_removed_even_one_of_the_same_file_system() {
        use nix::mount::{MntFlags, MsFlags, mount, umount2};
        let none = None::<&str>;
        // Its mounts are this thread's only.
        if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).is_err() {
            eprintln!("skipped: this user may not mount");
            return;
        }
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let [d, other, at] = ["d", "other", "d/e/m"].map(|name| temp.path().join(name));
        fs::create_dir_all(&at).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(d.join("a"), "a").unwrap();
        let directory = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        let found = directory.symlink_metadata("d").unwrap();
        for is_bound in [false, true] {
            match is_bound {
                false => mount(Some("none"), &at, Some("tmpfs"), MsFlags::empty(), none).unwrap(),
                true => mount(Some(&other), &at, none, MsFlags::MS_BIND, none).unwrap(),
            }
            fs::write(at.join("x"), "x").unwrap();
            let error = remove(&directory, "d", &found, Shut::Opens).unwrap_err();
            assert!(error.to_string().starts_with("m is another file system"), "{error}");
            assert!(d.join("a").exists() && at.join("x").exists());
            umount2(&at, MntFlags::MNT_DETACH).unwrap();
        }
        assert_eq!(remove(&directory, "d", &found, Shut::Opens).unwrap(), 4);
    }

    #[test]
    fn what_another_copy_has_removed_is_no_error() {
        let temp = tempfile::tempdir().unwrap();
        let directory = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        fs::create_dir(temp.path().join("d")).unwrap();
        fs::write(temp.path().join("a"), "a").unwrap();
        for name in ["d", "a"] {
            let found = directory.symlink_metadata(name).unwrap();
            let inner = directory.open_dir_nofollow("d");
            assert_eq!(remove(&directory, name, &found, Shut::Opens).unwrap(), 1);
            assert_eq!(remove(&directory, name, &found, Shut::Opens).unwrap(), 0);
            // It is open already.
            if let Ok(inner) = inner {
                assert_eq!(or_gone(empty(&inner, Shut::Opens, &mut 0)).ok(), Some(()));
            }
        }
    }
}
