//! Names from the other end, checked before they touch a file system.
//!
//! A path in a share is relative, `/`-separated UTF-8. Each component must be a plain name. It is not empty, `.` or
//! `..`, has no separator or NUL, and is not a name of this program's unfinished files.
//!
//! A symbolic link may start with `..` components, but must stay below the share's top level. `..` after a name is
//! refused: the name could itself be a link, and `..` would then start from its destination.

use anabranch_wire::{Escaped, ForeignText};

use crate::error::{TransferError, cut};

/// Suffix of an unfinished file's name.
pub(crate) const PART_SUFFIX: &str = ".anabranch-part";
/// Longest name of one entry, in bytes, as on all common file systems.
const LONGEST_NAME: usize = 255;
/// Longest name of an unfinished file, in bytes. Some encrypted file systems, such as eCryptfs, take no longer names.
const LONGEST_PART: usize = 143;
/// How many times a directory that is moved aside has the ends of an unfinished file's name; others have at most three.
const ASIDE: usize = 4;
/// Longest path or link text, in bytes.
pub(crate) const LONGEST_PATH: usize = 4096;
/// Most components in a path.
const DEEPEST: usize = 128;

/// A checked path inside a share, relative to the target directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RelPath(String);

impl RelPath {
    /// Checks `text`.
    pub fn parse(text: &str) -> Result<Self, TransferError> {
        match check_path(text) {
            Ok(()) => Ok(Self(text.to_owned())),
            Err(why) => Err(TransferError::UnsafePath { path: text.into(), why }),
        }
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Directory part ("" at the top level) and name.
    pub fn split(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }

    /// The path, printable.
    pub fn shown(&self) -> String {
        Escaped(&self.0).to_string()
    }

    /// The path as untrusted text.
    pub fn to_foreign(&self) -> ForeignText {
        self.0.as_str().into()
    }
}

/// Checks that a link at `link` to `text` stays below the share's top level.
pub(crate) fn check_link(link: &RelPath, text: &str) -> Result<(), TransferError> {
    let depth = link.as_str().matches('/').count();
    check_link_text(depth, text)
        .map_err(|why| TransferError::UnsafePath { path: format!("{} -> {text}", link.as_str()).into(), why })
}

/// True for names of unfinished files.
pub(crate) fn is_part_name(name: &str) -> bool {
    let tail = name.len().checked_sub(PART_SUFFIX.len()).and_then(|start| name.get(start..));
    tail.is_some_and(|tail| tail.eq_ignore_ascii_case(PART_SUFFIX))
}

/// Name of the unfinished file that will become `name`, in the same directory.
pub(crate) fn part_name(name: &str) -> String {
    part_name_within(LONGEST_PART, name)
}

/// The same for trials of spellings: `name` is kept as long as file systems allow.
pub(crate) fn spelled_part_name(name: &str) -> String {
    part_name_within(LONGEST_NAME, name)
}

/// A name that no entry of a share, no unfinished file and no link under way can have.
pub(crate) fn trial_name(name: &str) -> String {
    part_name(&part_name(&part_name(name)))
}

/// Name of a directory that is moved aside for another entry of its name. Nothing else can have it, not a trial either.
pub(crate) fn aside_name(name: &str) -> String {
    let hash = blake3::hash(name.as_bytes()).to_hex();
    let name = if name.len() < hash.len() { name } else { hash.as_str() };
    format!("{}{name}{}", ".".repeat(ASIDE), PART_SUFFIX.repeat(ASIDE))
}

/// True for names of directories that were moved aside.
pub(crate) fn is_aside_name(name: &str) -> bool {
    without_ends(name).is_some()
}

/// The name of a directory before it was moved aside; `None` for a long one.
pub(crate) fn moved_aside(aside: &str) -> Option<&str> {
    without_ends(aside).filter(|name| name.len() < 2 * blake3::OUT_LEN)
}

fn without_ends(aside: &str) -> Option<&str> {
    aside.strip_prefix(&".".repeat(ASIDE))?.strip_suffix(&PART_SUFFIX.repeat(ASIDE))
}

fn part_name_within(most: usize, name: &str) -> String {
    if name.len() + PART_SUFFIX.len() < most {
        return format!(".{name}{PART_SUFFIX}");
    }
    format!(".{}{PART_SUFFIX}", blake3::hash(name.as_bytes()).to_hex())
}

/// The `attempt`th alternative to a taken `name`: "a.txt", "a (1).txt", "a (2).txt". A name that would be too long
/// loses the end of its stem.
pub(crate) fn alternative_name(name: &str, attempt: u32) -> String {
    if attempt == 0 {
        return name.to_owned();
    }
    let extended =
        name.rsplit_once('.').filter(|(stem, extension)| !stem.is_empty() && extension.len() < 100);
    let (stem, end) = match extended {
        Some((stem, extension)) => (stem, format!(" ({attempt}).{extension}")),
        None => (name, format!(" ({attempt})")),
    };
    format!("{}{end}", cut(stem, LONGEST_NAME.saturating_sub(end.len())))
}

fn check_path(text: &str) -> Result<(), &'static str> {
    if text.len() > LONGEST_PATH {
        return Err("it is longer than 4096 bytes");
    }
    if text.starts_with('/') {
        return Err("it is absolute");
    }
    if text.split('/').count() > DEEPEST {
        return Err("it is more than 128 levels deep");
    }
    text.split('/').try_for_each(check_name)
}

fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => return Err("it has an empty name in it"),
        "." | ".." => return Err("it has . or .. in it"),
        _ => {}
    }
    if name.len() > LONGEST_NAME {
        return Err("a name in it is longer than 255 bytes");
    }
    if name.contains('\0') {
        return Err("it has a zero byte in it");
    }
    if is_part_name(name) {
        return Err("names ending in .anabranch-part are for unfinished files");
    }
    Ok(())
}

fn check_link_text(depth: usize, text: &str) -> Result<(), &'static str> {
    if text.is_empty() || text.len() > LONGEST_PATH {
        return Err("the link leads nowhere");
    }
    if text.starts_with('/') {
        return Err("the link is absolute");
    }
    let mut names = text.split('/').filter(|name| !matches!(*name, "" | ".")).peekable();
    let mut climbed = 0;
    while names.next_if_eq(&"..").is_some() {
        climbed += 1;
    }
    if climbed > depth {
        return Err("the link leads out of the share");
    }
    for name in names {
        if name == ".." {
            return Err("the link has .. after a name");
        }
        if name.contains('\0') {
            return Err("the link has a zero byte in it");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_leave_the_target_are_refused() {
        for bad in [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            "a/.",
            "a\0b",
            "x/.y.anabranch-part",
        ] {
            assert!(check_path(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(check_path(&"a/".repeat(200)).is_err());
        assert!(check_path(&"a".repeat(256)).is_err());
        for good in ["a", "a/b c/…", "..a", "a..", "...", "-rf", "ünï/日本/🙂", "back\\slash"] {
            assert_eq!(check_path(good), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn links_may_lead_around_the_share_but_not_out_of_it() {
        for (depth, good) in [(0, "a"), (0, "./a/b"), (1, "../a"), (2, "../../a/b"), (0, "a/")] {
            assert_eq!(check_link_text(depth, good), Ok(()), "{good:?} at {depth}");
        }
        for (depth, bad) in
            [(0, ".."), (0, "/etc"), (1, "../../x"), (3, "a/../b"), (0, ""), (0, "a\0"), (1, "./../.././x")]
        {
            assert!(check_link_text(depth, bad).is_err(), "{bad:?} at {depth} was accepted");
        }
    }

    #[test]
    fn alternative_names_keep_the_extension() {
        assert_eq!(alternative_name("a.tar.gz", 2), "a.tar (2).gz");
        assert_eq!(alternative_name(".profile", 1), ".profile (1)");
        assert_eq!(alternative_name("a", 0), "a");
    }

    #[test]
    fn alternative_names_fit_the_file_system() {
        let umlauts = "ü".repeat(125);
        for name in [format!("{umlauts}.txt"), "x".repeat(255), format!("a.{}", "x".repeat(253)), umlauts] {
            let other = alternative_name(&name, 999);
            assert!(other.len() <= 255 && other.contains(" (999)"), "{other}");
        }
    }

    #[test]
    fn the_unfinished_name_of_any_name_fits_the_file_system() {
        for len in 1..=255 {
            let part = part_name(&"x".repeat(len));
            assert!(part.len() <= LONGEST_PART && is_part_name(&part), "length {len}");
            let aside = aside_name(&"x".repeat(len));
            assert!(aside.len() <= LONGEST_PART && is_part_name(&aside), "length {len}");
            assert!(is_aside_name(&aside) && !is_aside_name(&trial_name(&"x".repeat(len))), "length {len}");
        }
    }
}
