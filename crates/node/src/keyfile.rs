//! Node key files: created for their owner only, and refused if others can read them.
//!
//! The default is `$XDG_CONFIG_HOME/anabranch/key`, or `~/.config/anabranch/key`. [`NodeKey::to_file_text`] defines the
//! content; this module handles the file. A new key is written under another name, flushed, then linked to its final
//! name. The link fails if that name is taken. So a key is never overwritten or seen half-written, even by two programs
//! that start together. After a program has read or made a key, or drawn a secret, it leaves no core dump.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anabranch_secure::NodeKey;
use anabranch_service::process;
use zeroize::Zeroizing;

use crate::error::Error;

/// Longer files are not key files.
const MAX_LEN: u64 = 4096;

/// The default key file.
pub fn default_path() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    path_from(variable("XDG_CONFIG_HOME"), variable("HOME"), variable("APPDATA")).ok_or_else(|| {
        Error::local("cannot tell where the key file is: HOME is not set")
            .hint("name it with `--key FILE` or ANABRANCH_KEY")
    })
}

/// The XDG rule: a relative `XDG_CONFIG_HOME` counts as unset.
fn path_from(config: Option<PathBuf>, home: Option<PathBuf>, appdata: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let dir = config.and_then(absolute).or_else(|| home.and_then(absolute).map(|home| home.join(".config")));
    let dir = dir.or_else(|| appdata.and_then(absolute));
    dir.map(|dir| dir.join("anabranch").join("key"))
}

/// A new key from the operating system's randomness, without a file.
pub fn fresh() -> Result<NodeKey, Error> {
    Ok(NodeKey::from_random(*random()?))
}

/// Random bytes from the operating system, wiped when dropped.
pub fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, Error> {
    process::protect_secrets();
    let mut random = Zeroizing::new([0; N]);
    getrandom::fill(&mut *random)
        .map_err(|error| Error::local(format!("the operating system gave no randomness: {error}")))?;
    Ok(random)
}

/// Makes a new key from the operating system's randomness and stores it at `path`, mode 0600.
///
/// # Errors
/// When the file exists or cannot be written.
pub fn create(path: &Path) -> Result<NodeKey, Error> {
    check_regular(path)?;
    let key = fresh()?;
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        private_dir(dir).map_err(|error| Error::file("create the directory", dir, &error))?;
    }
    match write_new(path, key.to_file_text().as_bytes()) {
        Ok(()) => Ok(key),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::local(format!(
            "there is a key at {} already",
            path.display()
        ))
        .hint(format!(
            "`anabranch keys show --key {}` shows it; to make another, name its file: `anabranch keys new --key FILE`",
            quoted(path)
        ))),
        Err(error) => Err(Error::file("write", path, &error)),
    }
}

/// Reads the key at `path`.
///
/// # Errors
/// If the file is missing or not a key file, or others may read or change it.
pub fn load(path: &Path) -> Result<NodeKey, Error> {
    process::protect_secrets();
    check_regular(path)?;
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::local(format!("there is no key at {}", path.display()))
            .hint(format!("`{}` makes one", command_for_new(path))),
        _ => Error::file("read", path, &error),
    })?;
    let unreadable = |error| Error::file("read", path, &error);
    check_private(path, &file.metadata().map_err(unreadable)?)?;
    // Allocated once: a growing string would leave copies of the key behind.
    let mut text = Zeroizing::new(String::with_capacity(MAX_LEN as usize + 2));
    file.take(MAX_LEN + 1).read_to_string(&mut text).map_err(unreadable)?;
    NodeKey::from_file_text(&text).map_err(|error| {
        Error::local(format!("{} is not a key file: {error}", path.display())).hint(format!(
            "restore it from a copy, or move it away and make a new one with `{}`",
            command_for_new(path)
        ))
    })
}

/// The command that makes a key in this file, whatever the environment says.
fn command_for_new(path: &Path) -> String {
    format!("anabranch keys new --key {}", quoted(path))
}

/// A path as one word of a command line.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |character: char| character.is_alphanumeric() || "/\\:._-+@~".contains(character);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Reads the key in a named file, or the one in the default file, which is created if it is missing.
pub fn named_or_usual(file: Option<&Path>) -> Result<NodeKey, Error> {
    file.map_or_else(|| load_or_create(&default_path()?), load)
}

/// Reads the key at `path`, or creates one there if the file is missing.
pub fn load_or_create(path: &Path) -> Result<NodeKey, Error> {
    if path.exists() {
        return load(path);
    }
    // Another program may have just made one; then that one counts.
    create(path).or_else(|error| if path.exists() { load(path) } else { Err(error) })
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(format!(".new-{:016x}", getrandom::u64()?));
    let draft = path.with_file_name(name);
    let written = write_private(&draft, text);
    move_new(&draft, path, written)
}

/// Renames a draft that was written completely, and removes any other: a full disk leaves no part of a key behind.
fn move_new(draft: &Path, path: &Path, written: io::Result<()>) -> io::Result<()> {
    let linked = written.and_then(|()| fs::hard_link(draft, path));
    let removed = fs::remove_file(draft);
    linked.and(removed)
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Refuses directories, whose mode must not change, and pipes, which might block. A missing file is reported elsewhere.
fn check_regular(path: &Path) -> Result<(), Error> {
    let Some(metadata) = fs::metadata(path).ok().filter(|metadata| !metadata.is_file()) else {
        return Ok(());
    };
    let what = if metadata.is_dir() { "a directory" } else { "no regular file" };
    Err(Error::local(format!("{} is {what}, not a key file", path.display()))
        .hint("name the file itself; `anabranch keys new --key FILE` makes one"))
}

/// Refuses a key that the group or the world has any permission on.
fn check_private(path: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(Error::local(format!("others may use the key at {}: its mode is {mode:04o}", path.display()))
        .hint(format!("`chmod 600 {}`; if others could read it, make a new key instead", path.display())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A directory for one test, removed afterwards.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("anabranch-keyfile-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn key(&self) -> PathBuf {
            self.0.join("config/anabranch/key")
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_new_key_is_read_back_and_nothing_else_is_left_beside_it() {
        let dir = Dir::new("new");
        let made = create(&dir.key()).unwrap();
        assert_eq!(load(&dir.key()).unwrap().public(), made.public());
        assert_eq!(fs::read_dir(dir.key().parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn only_the_owner_may_read_a_new_key_or_its_directory() {
        use std::os::unix::fs::PermissionsExt;
        let dir = Dir::new("mode");
        create(&dir.key()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.key()), 0o600);
        assert_eq!(mode(dir.key().parent().unwrap()), 0o700);
    }

    #[test]
    fn a_key_that_others_may_use_is_refused_with_the_command_that_mends_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = Dir::new("open");
        create(&dir.key()).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o666] {
            fs::set_permissions(dir.key(), fs::Permissions::from_mode(mode)).unwrap();
            let error = load(&dir.key()).unwrap_err();
            assert!(error.message.contains(&format!("{mode:04o}")), "{error}");
            assert!(error.hint.unwrap().contains("chmod 600"));
        }
        fs::set_permissions(dir.key(), fs::Permissions::from_mode(0o400)).unwrap();
        assert!(load(&dir.key()).is_ok());
    }

    #[test]
    fn a_key_is_never_overwritten() {
        let dir = Dir::new("twice");
        let first = create(&dir.key()).unwrap();
        let error = create(&dir.key()).unwrap_err();
        assert!(error.message.contains("already"), "{error}");
        assert_eq!(load_or_create(&dir.key()).unwrap().public(), first.public());
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_behind() {
        let dir = Dir::new("full");
        let (draft, path) = (dir.0.join("key.new-1"), dir.0.join("key"));
        fs::write(&draft, "half of a k").unwrap();
        let failed = move_new(&draft, &path, Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
    }

    #[test]
    fn a_process_that_has_drawn_a_secret_leaves_no_core_dump() {
        random::<16>().unwrap();
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    }

    #[test]
    fn programs_that_start_together_agree_on_one_key() {
        let dir = Arc::new(Dir::new("race"));
        let starts = (0..8).map(|_| {
            let dir = Arc::clone(&dir);
            std::thread::spawn(move || load_or_create(&dir.key()).map(|key| key.public()))
        });
        let keys: Vec<_> =
            starts.collect::<Vec<_>>().into_iter().map(|start| start.join().unwrap()).collect();
        let kept = load(&dir.key()).unwrap().public();
        assert!(keys.iter().all(|key| key.as_ref() == Ok(&kept)), "{keys:?}");
    }

    #[test]
    fn a_missing_a_damaged_and_an_endless_key_file_each_say_so() {
        let dir = Dir::new("bad");
        let path = dir.0.join("key");
        let hint = load(&path).unwrap_err().hint.unwrap();
        assert_eq!(hint, format!("`anabranch keys new --key {}` makes one", path.display()));
        write_private(&path, b"not a key").unwrap();
        assert!(load(&path).unwrap_err().message.contains("is not a key file"));
        fs::remove_file(&path).unwrap();
        write_private(&path, &vec![b'#'; 1 << 20]).unwrap();
        assert!(load(&path).unwrap_err().message.contains("is not a key file"));
    }

    #[test]
    fn what_is_no_file_is_refused_as_that_and_nobody_is_told_to_change_its_mode() {
        let dir = Dir::new("directory");
        for error in [load(&dir.0), create(&dir.0)].map(Result::unwrap_err) {
            assert!(error.message.ends_with("is a directory, not a key file"), "{error}");
            assert!(error.hint.unwrap().contains("name the file itself"));
        }
        let error = load(Path::new("/dev/null")).unwrap_err();
        assert!(error.message.ends_with("is no regular file, not a key file"), "{error}");
    }

    #[test]
    fn a_path_in_advice_is_one_word_of_a_command_line() {
        let quoted = |text: &str| quoted(Path::new(text));
        assert_eq!(quoted("~/keys/k-1.key"), "~/keys/k-1.key");
        assert_eq!(quoted("my key"), "'my key'");
        assert_eq!(quoted("a'b;c"), r"'a'\''b;c'");
    }

    #[test]
    fn the_default_place_follows_the_xdg_rule() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(path_from(path("/c"), path("/home/u"), None), path("/c/anabranch/key"));
        assert_eq!(path_from(path("relative"), path("/home/u"), None), path("/home/u/.config/anabranch/key"));
        assert_eq!(path_from(None, path("/home/u"), None), path("/home/u/.config/anabranch/key"));
        assert_eq!(path_from(None, None, None), None);
    }
}
