//! Entries that take the place of others of another kind, which are removed when all else has arrived and is safe.

use std::borrow::Cow;

use super::part::PartFile;
use super::remove::Clearing;
use super::symlink::replace_with_link;
use super::target::{StagedFile, TargetTree, sync_or_note};
use crate::path::{RelPath, part_name};
use crate::report::{Report, Watch};

impl TargetTree {
    /// The present name of the directory at `path`, which ends in `name`.
    pub fn current_name<'a>(&self, path: &str, name: &'a str) -> Cow<'a, str> {
        if self.staged().directories.contains(path) { part_name(name).into() } else { name.into() }
    }

    /// Gives the new directory at `path` another name, until the file of this name is removed.
    pub fn stage(&mut self, path: &str) {
        self.staged().directories.insert(path.to_owned());
        self.forget_last();
    }

    /// Keeps a link whose place a directory has, until the end.
    pub fn stage_link(&self, path: &RelPath, text: &str) {
        self.staged().links.push((path.clone(), text.to_owned()));
    }

    /// Keeps a file whose place a directory has, until the end.
    pub fn stage_file(&self, file: StagedFile) {
        self.staged().files.push(file);
    }

    /// Puts all staged entries in their places.
    pub(super) fn end_staging(&mut self, watch: &Watch) {
        // An entry that fails from here on has arrived, so it keeps no other from its place.
        let why_unsafe = watch.report.why_unsafe();
        self.end_staging_files(watch, why_unsafe);
        self.end_staging_links(&watch.report, why_unsafe);
        self.end_staging_directories(&watch.report, why_unsafe);
    }

    /// Puts staged files in the place of directories, which stay unless all else is safe.
    fn end_staging_files(&mut self, watch: &Watch, why_unsafe: Option<&'static str>) {
        let (staged, report) = (std::mem::take(&mut self.staged().files), &watch.report);
        for StagedFile { job, id, len } in staged {
            let why_unsafe = why_unsafe.or_else(|| report.why_unsynced());
            let clearing = Clearing { report, shut: self.shut(), why_unsafe };
            let placed = self.directory(&job.parent).and_then(|directory| {
                PartFile::replace_directory(&directory, &job.name, (id, len), clearing)?;
                sync_or_note(&directory, &job.parent, report)
            });
            match placed {
                Ok(()) => {
                    watch.progress.add_file();
                    report.add(|summary| summary.files += 1);
                }
                Err(error) => {
                    report.fail_io(&job.path, &error, |error| format!("it cannot be put in place: {error}"));
                }
            }
        }
    }

    /// Puts staged links in the place of directories, which stay unless all else is safe.
    fn end_staging_links(&mut self, report: &Report, why_unsafe: Option<&'static str>) {
        let staged = std::mem::take(&mut self.staged().links);
        for (path, text) in &staged {
            let (parent, name) = path.split();
            let why_unsafe = why_unsafe.or_else(|| report.why_unsynced());
            let clearing = Clearing { report, shut: self.shut(), why_unsafe };
            let replaced = self.directory(parent).and_then(|parent| {
                replace_with_link(&parent, text, name, Some(clearing))?;
                sync_or_note(&parent, path.split().0, report)
            });
            match replaced {
                // Only a copy stages links.
                Ok(()) => report.add(|summary| summary.updated += 1),
                Err(error) => {
                    report.fail(path, format!("the link cannot take the place of a directory: {error}"));
                }
            }
        }
    }

    /// Removes the files whose names staged directories are to have, and renames those. The files stay unless all else is
    /// safe.
    fn end_staging_directories(&mut self, report: &Report, why_unsafe: Option<&'static str>) {
        let staged = self.staged().directories.clone();
        // Children first: the paths to them have the names that their parents have until then.
        for path in staged.iter().rev().filter_map(|path| RelPath::parse(path).ok()) {
            if let Some(why) = why_unsafe.or_else(|| report.why_unsynced()) {
                report.fail(&path, format!("a file of this name stays, because {why}"));
                continue;
            }
            let (parent, name) = path.split();
            let renamed = self.directory(parent).and_then(|parent| {
                parent.remove_file(name)?;
                parent.rename(part_name(name), &parent, name)?;
                sync_or_note(&parent, path.split().0, report)
            });
            match renamed {
                Ok(()) => report.add(|summary| summary.removed += 1),
                Err(error) => report.fail(&path, format!("it cannot take the place of a file: {error}")),
            }
            self.staged().directories.remove(path.as_str());
        }
        // Those that stay where they are get no mode: the next attempt writes into them.
        self.staged().directories.clear();
        self.forget_last();
    }
}
