//! Directories whose owner may not write into them, opened for as long as their content arrives.
//!
//! A server opens none: its operator shut them, because clients' directories stay open to it.
//!
//! A mark in such a directory has its mode, so that it gets that in the end even if this attempt is cut off.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anabranch_wire::Escaped;
use cap_fs_ext::{DirExt as _, FollowSymlinks, OpenOptionsFollowExt as _};
use cap_std::fs::{Dir, OpenOptions};
use rustix::fs::{Access, AtFlags, accessat};

use crate::path::trial_name;

/// For the name of the file that marks a directory.
const MARK: &str = "mode";
/// Most bytes of its content that are read.
const LONGEST_MARK: u64 = 8;
/// Most entries that are looked at for the reason why one is not removed.
const MOST_SEARCHED: usize = 1000;
/// The bits of a mode.
const ALL: u16 = 0o7777;

/// Whether existing directories without write permission are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shut {
    /// They are the user's own, and opened.
    Opens,
    /// They are a server's, and stay shut.
    Stays,
}

/// Marks a directory that gets this mode in the end, or the sender's if it is new.
pub(super) fn mark(directory: &Dir, mode: Option<u16>) {
    use cap_std::fs::OpenOptionsExt as _;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    if let (Ok(mut file), Some(mode)) = (directory.open_with(trial_name(MARK), &options), mode) {
        let _ = write!(file, "{mode:o}");
    }
}

/// Removes the mark of a directory that gets its mode now.
pub(super) fn unmark(directory: &Dir) {
    let _ = directory.remove_file(trial_name(MARK));
}

/// Opens an existing directory to this user, if `shut` allows. Returns the mode that it gets in the end, if it differs: for
/// one that an earlier attempt made, `listed`.
pub(super) fn open_existing(directory: &Dir, listed: u16, shut: Shut) -> Option<u16> {
    let had = open_up(directory, shut);
    if let Some(marked) = read_mark(directory) {
        return Some(u16::from_str_radix(&marked, 8).map_or(listed, |mode| mode & ALL));
    }
    had.inspect(|mode| mark(directory, Some(*mode)))
}

/// The content of a directory's mark, if the directory's owner made it: others who may write there must not set its mode.
fn read_mark(directory: &Dir) -> Option<String> {
    use cap_std::fs::{MetadataExt as _, OpenOptionsExt as _};
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    options.follow(FollowSymlinks::No);
    let file = directory.open_with(trial_name(MARK), &options).ok()?;
    let meta = file.metadata().ok()?;
    let is_own = meta.uid() == directory.dir_metadata().ok()?.uid() && meta.nlink() == 1;
    let mut content = String::new();
    (meta.is_file() && is_own).then(|| file.take(LONGEST_MARK).read_to_string(&mut content).ok())??;
    Some(content)
}

/// Lets this user read and write a directory of their own, if `shut` allows. Returns the mode that it had, if it was opened.
pub(super) fn open_up(directory: &Dir, shut: Shut) -> Option<u16> {
    use cap_std::fs::MetadataExt as _;
    if shut == Shut::Stays {
        return None;
    }
    let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    if accessat(directory, ".", all, AtFlags::EACCESS).is_ok() {
        return None;
    }
    let had = (directory.dir_metadata().ok()?.mode() & u32::from(ALL)) as u16;
    set_mode(directory, had | 0o700).ok()?;
    Some(had)
}

/// Gives a directory that was opened the mode again that it had.
pub(super) fn shut_again(directory: &Dir, mode: u16) {
    let _ = set_mode(directory, mode);
}

/// True if the error comes from a directory of this user's that is shut, which a command can open.
pub(super) fn is_shut(directory: &Dir, error: &Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied && is_own_and_shut(directory)
}

/// True if the directory `name`, or one in it, is this user's and shut, as far as a bounded search finds it.
pub(super) fn holds_shut(directory: &Dir, name: &str) -> bool {
    finds_shut(directory, OsStr::new(name), &mut { MOST_SEARCHED })
}

/// Looks at no more than `left` entries, and counts them down.
fn finds_shut(directory: &Dir, name: &OsStr, left: &mut usize) -> bool {
    let Ok(inner) = directory.open_dir_nofollow(name) else { return false };
    if is_own_and_shut(&inner) {
        return true;
    }
    let Ok(entries) = inner.entries() else { return false };
    for entry in entries.map_while(Result::ok) {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        // Some file systems do not list the kinds of entries.
        let may_be_one = entry.file_type().is_ok_and(|kind| !kind.is_file() && !kind.is_symlink());
        if may_be_one && finds_shut(&inner, &entry.file_name(), left) {
            return true;
        }
    }
    false
}

fn is_own_and_shut(directory: &Dir) -> bool {
    use cap_std::fs::MetadataExt as _;
    directory.dir_metadata().is_ok_and(|found| found.mode() & 0o200 == 0 && found.uid() == user())
}

/// The user whose rights this thread has.
#[cfg(not(test))]
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Threads of tests leave root by `setfsuid`, which changes nothing for a number that no user has.
#[cfg(test)]
fn user() -> u32 {
    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(u32::MAX)).as_raw()
}

/// The command that opens what is at `path` below a shared folder, for a server's operator. Clients choose the path.
pub(super) fn opening(path: &Path, options: &str) -> String {
    let path = path.to_string_lossy();
    let path = Escaped(if path.is_empty() { "." } else { &path }).to_string();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._/".contains(letter);
    let path = if path.chars().all(is_plain) { path } else { format!("'./{}'", path.replace('\'', r"'\''")) };
    format!("`chmod {options}u+rwX {path}` in the shared folder")
}

fn set_mode(directory: &Dir, mode: u16) -> std::io::Result<()> {
    // The handle itself permits no change, and nothing in a directory without execute permission has a path.
    let handle = format!("/proc/self/fd/{}", directory.as_raw_fd());
    std::fs::set_permissions(handle, Permissions::from_mode(mode.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_for_a_shut_directory_has_an_end() {
        let temp = tempfile::tempdir().unwrap();
        let innermost = temp.path().join("a/b/c");
        std::fs::create_dir_all(&innermost).unwrap();
        std::fs::set_permissions(innermost, Permissions::from_mode(0o555)).unwrap();
        let directory = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        assert!(holds_shut(&directory, "a"));
        assert!(finds_shut(&directory, OsStr::new("a"), &mut 2));
        assert!(!finds_shut(&directory, OsStr::new("a"), &mut 1));
    }

    #[test]
    fn a_command_for_the_operator_is_one_word_after_its_options_whatever_path_a_client_chose() {
        let command = |path: &str| opening(Path::new(path), "");
        assert_eq!(command("a/b.c"), "`chmod u+rwX a/b.c` in the shared folder");
        assert_eq!(command(""), "`chmod u+rwX .` in the shared folder");
        assert_eq!(command("-R"), "`chmod u+rwX './-R'` in the shared folder");
        let nasty = command("a'; rm b\n`c`");
        assert_eq!(nasty, r"`chmod u+rwX './a'\''; rm b\u{a}`c`'` in the shared folder");
    }
}
