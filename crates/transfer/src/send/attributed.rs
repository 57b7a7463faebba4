//! The extended attributes of a list's entries, and its unreadable files.

use super::listing::{Listing, unreadable};
use crate::attributes;
use crate::manifest::{Entry, EntryKind, LeftOut};
use crate::path::RelPath;
use crate::report::Report;

impl Listing {
    /// Reads the extended attributes of all files and directories.
    pub(super) fn add_attributes(&mut self) {
        for index in 0..self.entries.len() {
            if matches!(self.entries[index].kind, EntryKind::Link { .. }) {
                continue;
            }
            // An unreadable file is reported when it is requested.
            let Ok(file) = self.open_entry(index) else { continue };
            match attributes::read(&file) {
                Ok(found) if found.is_empty() => {}
                Ok(found) => _ = self.attributes.insert(index as u32, found),
                Err(error) => {
                    let path =
                        format!("the set of extended attributes of {}", self.entries[index].path.as_str());
                    let reason = error.to_string().into();
                    self.left_out.push(LeftOut { path: path.into(), reason, missed: false });
                }
            }
        }
    }

    /// Notes the directories whose extended attributes are not sent. Files are noted when they are read.
    pub(super) fn note_directories(&self, report: &Report) {
        let is_directory = |entry: &Entry| matches!(entry.kind, EntryKind::Directory { .. });
        let directories = self.entries.iter().enumerate().filter(|(_, entry)| is_directory(entry));
        for (index, entry) in directories.filter(|_| !self.has_attributes()) {
            if self.open_entry(index).is_ok_and(|directory| attributes::exist(&directory)) {
                report.drop_attributes(&entry.path);
            }
        }
    }

    /// Opens all files and directories.
    pub fn inspect(&self) -> Inspection<'_> {
        let mut found = Inspection::default();
        for (index, entry) in self.entries.iter().enumerate() {
            let is_file = match entry.kind {
                EntryKind::File(_) => true,
                EntryKind::Directory { .. } if !self.has_attributes() => false,
                _ => continue,
            };
            match self.open_entry(index) {
                Ok(file) if !self.has_attributes() && attributes::exist(&file) => {
                    found.first_attributed.get_or_insert(&entry.path);
                    found.attributed += 1;
                }
                Ok(_) => {}
                Err(error) if is_file => {
                    found.unreadable.push(format!("{}: {}", entry.path.shown(), unreadable(&error)));
                }
                Err(_) => {}
            }
        }
        found
    }
}

/// The findings of [`Listing::inspect`].
#[derive(Default)]
pub(crate) struct Inspection<'a> {
    /// The unreadable files, one line each.
    pub unreadable: Vec<String>,
    /// How many files and directories have extended attributes that are not sent, and the first of them.
    pub attributed: u64,
    pub first_attributed: Option<&'a RelPath>,
}
