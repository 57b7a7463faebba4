//! The extended attributes of a list's entries.

use super::listing::Listing;
use crate::attributes;
use crate::manifest::{EntryKind, LeftOut};
use crate::path::RelPath;

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

    /// The paths of files and directories that have extended attributes.
    pub fn attributed(&self) -> Vec<&RelPath> {
        let all = self.entries.iter().enumerate();
        let all = all.filter(|(_, entry)| !matches!(entry.kind, EntryKind::Link { .. }));
        let all = all.filter(|(index, _)| self.open_entry(*index).is_ok_and(|file| attributes::exist(&file)));
        all.map(|(_, entry)| &entry.path).collect()
    }
}
