//! The list of a share's entries, and the checks on it before anything is written.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use anabranch_wire::ForeignText;

use crate::attributes::{Attribute, Attributes, are_few};
use crate::error::TransferError;
use crate::path::{RelPath, check_link};

/// Limits for a sender's list: senders are not trusted.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most entries (files, directories, links) in a share.
    pub entries: u64,
    /// Most bytes of names and link texts together; the receiver holds them in memory.
    pub names: u64,
}

impl Default for Limits {
    /// A million entries, 128 MiB of names.
    fn default() -> Self {
        Self { entries: 1 << 20, names: 128 << 20 }
    }
}

/// Bytes that each hard link counts, and each attribute in addition to its name and value: tiny ones take far more memory.
const PER_ATTRIBUTE: u64 = 32;

/// Time of a file's last modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModifiedTime {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds after that second, below 10⁹.
    pub nanoseconds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileMeta {
    /// Length in bytes; `None` for a stream, whose length is unknown.
    pub size: Option<u64>,
    /// Permission bits `rwxrwxrwx`.
    pub mode: u16,
    /// When its content was last modified, if known.
    pub modified: Option<ModifiedTime>,
    /// Bytes outside its holes, if it has holes.
    pub data: Option<u64>,
}

impl FileMeta {
    /// The bytes that it takes on a disk that can store holes, if its length is known.
    pub fn stored(&self) -> Option<u64> {
        self.size.map(|size| self.data.map_or(size, |data| data.min(size)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File(FileMeta),
    Directory { mode: u16, modified: Option<ModifiedTime> },
    Link { text: String },
}

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub path: RelPath,
    pub kind: EntryKind,
}

/// An entry that is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Its path in the share.
    pub path: ForeignText,
    /// The reason, as the sender reports it.
    pub reason: ForeignText,
    /// True if it should be sent but cannot be; false for a kind that is never sent.
    pub missed: bool,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is left out: {}", self.path, self.reason)
    }
}

/// Files that are further names of an earlier file of the list: both numbers.
pub(crate) type Links = BTreeMap<u32, u32>;

/// A sender's list.
#[derive(Default)]
pub(crate) struct List {
    pub entries: Vec<Entry>,
    /// Paths that the sender has and does not send.
    pub left_out: Vec<String>,
    pub attributes: Attributes,
    pub links: Links,
}

/// Collects a sender's entries and rejects harmful ones.
///
/// A path occurs once, and after its directory. So the sender cannot write through a link or a file that it listed.
pub(crate) struct ManifestBuilder<'a> {
    limits: &'a Limits,
    names: u64,
    seen: HashMap<RelPath, bool>,
    list: List,
}

impl<'a> ManifestBuilder<'a> {
    pub fn new(limits: &'a Limits) -> Self {
        Self { limits, names: 0, seen: HashMap::new(), list: List::default() }
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// [`TransferError::TooMuch`] over a limit; [`TransferError::UnsafePath`] or [`TransferError::Protocol`] for a
    /// harmful entry.
    pub fn push(&mut self, entry: Entry) -> Result<(), TransferError> {
        self.check_count()?;
        self.names += entry.path.as_str().len() as u64;
        if let EntryKind::Link { text } = &entry.kind {
            self.names += text.len() as u64;
            check_link(&entry.path, text)?;
        }
        self.check_names()?;
        let (parent, _) = entry.path.split();
        if !parent.is_empty() && self.seen.get(&RelPath::parse(parent)?) != Some(&true) {
            return Err(unsafe_path(&entry.path, "it is in something that is not a directory of the share"));
        }
        let is_directory = matches!(entry.kind, EntryKind::Directory { .. });
        if self.seen.insert(entry.path.clone(), is_directory).is_some() {
            return Err(unsafe_path(&entry.path, "it is listed twice"));
        }
        self.list.entries.push(entry);
        Ok(())
    }

    /// Adds an extended attribute of the last entry.
    ///
    /// # Errors
    /// [`TransferError::TooMuch`] over a limit; [`TransferError::Protocol`] without a file or directory.
    pub fn add_attribute(&mut self, attribute: Attribute) -> Result<(), TransferError> {
        let last = self.list.entries.last().filter(|entry| !matches!(entry.kind, EntryKind::Link { .. }));
        if last.is_none() || !self.list.left_out.is_empty() {
            return Err(TransferError::protocol("an extended attribute of nothing"));
        }
        self.names += PER_ATTRIBUTE + attribute.len() as u64;
        self.check_names()?;
        let held = self.list.attributes.entry(self.list.entries.len() as u32 - 1).or_default();
        held.push(attribute);
        if are_few(held) {
            return Ok(());
        }
        Err(TransferError::protocol("more extended attributes than an entry may have"))
    }

    /// Makes the last entry another name of the file with this number.
    ///
    /// # Errors
    /// [`TransferError::TooMuch`] over a limit; [`TransferError::Protocol`] unless both are files of one length, and the first
    /// is no further name.
    pub fn add_link(&mut self, first: u32) -> Result<(), TransferError> {
        let List { entries, left_out, links, .. } = &mut self.list;
        let size = |entry: &Entry| match &entry.kind {
            EntryKind::File(meta) => meta.size,
            _ => None,
        };
        let last = entries.len().saturating_sub(1) as u32;
        let [one, other] = [first, last].map(|index| entries.get(index as usize).and_then(size));
        let is_good = first < last && one.is_some() && one == other && !links.contains_key(&first);
        if !is_good || !left_out.is_empty() || links.insert(last, first).is_some() {
            return Err(TransferError::protocol("a hard link of no file before it"));
        }
        self.names += PER_ATTRIBUTE;
        self.check_names()
    }

    /// Counts an entry that is not sent.
    pub fn leave_out(&mut self, path: &ForeignText) -> Result<(), TransferError> {
        self.check_count()?;
        self.names += path.raw().len() as u64;
        self.list.left_out.push(path.raw().to_owned());
        self.check_names()
    }

    fn check_names(&self) -> Result<(), TransferError> {
        if self.names > self.limits.names {
            return Err(TransferError::TooMuch { what: "bytes of names", most: self.limits.names });
        }
        Ok(())
    }

    fn check_count(&self) -> Result<(), TransferError> {
        if (self.list.entries.len() + self.list.left_out.len()) as u64 >= self.limits.entries {
            return Err(TransferError::TooMuch { what: "entries", most: self.limits.entries });
        }
        Ok(())
    }

    pub fn finish(self) -> List {
        self.list
    }
}

fn unsafe_path(path: &RelPath, why: &'static str) -> TransferError {
    TransferError::UnsafePath { path: path.to_foreign(), why }
}

/// The number of files and bytes in `entries`; files of unknown length add no bytes.
pub(crate) fn totals(entries: &[Entry]) -> (u64, u64) {
    entries.iter().fold((0, 0), |(files, bytes), entry| match &entry.kind {
        EntryKind::File(meta) => (files + 1, u64::saturating_add(bytes, meta.size.unwrap_or(0))),
        _ => (files, bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: EntryKind) -> Entry {
        Entry { path: RelPath::parse(path).unwrap(), kind }
    }

    fn collect(entries: &[Entry], limits: &Limits) -> Result<Vec<Entry>, TransferError> {
        let mut builder = ManifestBuilder::new(limits);
        entries.iter().try_for_each(|entry| builder.push(entry.clone()))?;
        Ok(builder.finish().entries)
    }

    fn link(text: &str) -> EntryKind {
        EntryKind::Link { text: text.into() }
    }

    const DIRECTORY: EntryKind = EntryKind::Directory { mode: 0o755, modified: None };
    const FILE: EntryKind =
        EntryKind::File(FileMeta { size: Some(1), mode: 0o644, modified: None, data: None });

    #[test]
    fn a_file_below_a_link_or_a_file_or_nothing_is_refused() {
        let limits = Limits::default();
        assert!(collect(&[entry("a", DIRECTORY), entry("a/b", FILE)], &limits).is_ok());
        for first in [entry("a", link("b")), entry("a", FILE), entry("b", DIRECTORY)] {
            let refused = collect(&[first, entry("a/b", FILE)], &limits);
            assert!(matches!(refused, Err(TransferError::UnsafePath { .. })), "{refused:?}");
        }
    }

    #[test]
    fn an_entry_listed_twice_is_refused() {
        let refused = collect(&[entry("a", DIRECTORY), entry("a", link("b"))], &Limits::default());
        assert!(matches!(refused, Err(TransferError::UnsafePath { .. })), "{refused:?}");
    }

    #[test]
    fn the_limits_hold() {
        let entries: Vec<Entry> = (0..10).map(|at| entry(&format!("file{at}"), FILE)).collect();
        let few = collect(&entries, &Limits { entries: 9, names: 1000 });
        assert!(matches!(few, Err(TransferError::TooMuch { what: "entries", most: 9 })), "{few:?}");
        let short = collect(&entries, &Limits { entries: 10, names: 49 });
        assert!(matches!(short, Err(TransferError::TooMuch { what: "bytes of names", .. })), "{short:?}");
        assert_eq!(collect(&entries, &Limits { entries: 10, names: 50 }).unwrap().len(), 10);

        let limits = Limits { entries: 2, names: 50 };
        let mut builder = ManifestBuilder::new(&limits);
        builder.push(entries[0].clone()).unwrap();
        builder.leave_out(&"s".into()).unwrap();
        assert!(builder.leave_out(&"t".into()).is_err() && builder.push(entries[1].clone()).is_err());
    }

    #[test]
    fn an_attribute_counts_more_than_its_few_bytes() {
        let limits = Limits { entries: 1, names: 1000 };
        let mut builder = ManifestBuilder::new(&limits);
        builder.push(entry("a", FILE)).unwrap();
        let tiny = || Attribute { name: "user.".into(), value: Vec::new() };
        let taken = (0..64).take_while(|_| builder.add_attribute(tiny()).is_ok()).count();
        assert_eq!(taken, 999 / 37);
    }
}
