//! Entries that take the place of others of another kind, which are removed when all else has arrived and is safe.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use super::aside::{Clearing, check_safe};
use super::links::Links;
use super::part::PartFile;
use super::place::hash_file;
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
    pub(super) fn end_staging(&mut self, links: Option<&Links>, watch: &Watch) {
        self.end_staging_files(links, watch);
        // A link or directory that fails from here on has arrived, so it keeps no other from its place.
        let why_unsafe = watch.report.why_unsafe();
        self.end_staging_links(&watch.report, why_unsafe);
        self.end_staging_directories(&watch.report, why_unsafe);
    }

    /// Puts staged files in the place of directories, which stay unless all else is safe, the files before included.
    fn end_staging_files(&mut self, links: Option<&Links>, watch: &Watch) {
        let (staged, report) = (std::mem::take(&mut self.staged().files), &watch.report);
        for StagedFile { job, found, hash, keeping } in staged {
            let placed = self.directory(&job.parent).and_then(|directory| {
                check_safe(report.why_unsafe())?;
                // It is locked until it has its name.
                let part = PartFile::reopen(Arc::clone(&directory), &job.name, found)?;
                let same =
                    part.filter(|_| hash_file(&directory, &part_name(&job.name), |_| true) == Some(hash));
                let taken = || io::Error::other("another program changed it; run the same command again");
                same.ok_or_else(taken)?.commit(&job, &keeping, report)?;
                sync_or_note(&directory, &job.parent, report)
            });
            match placed {
                Ok(()) => {
                    watch.progress.add_file();
                    report.add(|summary| summary.files += 1);
                    links.iter().for_each(|links| links.put(&job, found.0));
                }
                Err(error) => {
                    report.fail_io(&job.path, &error, |error| format!("it cannot be put in place: {error}"));
                }
            }
        }
        // Further names of files that were staged became links only now, and those of others have failed.
        for path in links.map(Links::finish).unwrap_or_default() {
            let synced = self.directory(&path).and_then(|directory| sync_or_note(&directory, &path, report));
            if let Err(error) = synced {
                report.note_unsynced(&path, &error);
            }
        }
    }

    /// Puts staged links in the place of directories, which stay unless all else is safe.
    fn end_staging_links(&mut self, report: &Report, why_unsafe: Option<&'static str>) {
        let staged = std::mem::take(&mut self.staged().links);
        for (path, text) in &staged {
            let (parent, name) = path.split();
            let why_unsafe = why_unsafe.or_else(|| report.why_unsynced());
            let clearing = Clearing { report, path, shut: self.shut(), why_unsafe };
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::error::TransferError;
    use crate::manifest::FileMeta;
    use crate::progress::Progress;
    use crate::receive::job::{FileJob, Keeping};
    use crate::receive::shut::Shut;
    use crate::report::Report;

    /// Stages a complete file in the place of a directory, and unlocks it.
    fn stage(tree: &mut TargetTree, name: &str, content: &[u8]) {
        let directory = tree.directory("").unwrap();
        let mut part = PartFile::open(directory, name, Some(content.len() as u64)).unwrap();
        part.write(0, content).unwrap();
        let (hash, found) = (blake3::hash(content).into(), (part.id().unwrap(), part.len()));
        let meta = FileMeta { size: Some(part.len()), mode: 0o444, modified: None, data: None };
        let job = FileJob::new(0, RelPath::parse(name).unwrap(), meta);
        let job = Arc::new(FileJob { replace: true, clears: Some(Shut::Opens), ..job });
        let keeping = Keeping { mode_mask: 0o777, attributes: Arc::default() };
        tree.stage_file(StagedFile { job, found, hash, keeping });
    }

    #[test]
    fn a_staged_file_that_another_receiver_changed_replaces_no_directory_and_keeps_others_from_it() {
        for changed in [false, true] {
            let temp = tempfile::tempdir().unwrap();
            let to = temp.path();
            for name in ["e", "f", "l"] {
                fs::create_dir(to.join(name)).unwrap();
                fs::write(to.join(name).join("old"), "old").unwrap();
            }
            fs::write(to.join("d"), "old").unwrap();
            let mut tree = TargetTree::open(to, false).unwrap();
            stage(&mut tree, "e", b"ours");
            stage(&mut tree, "f", b"ours");
            tree.stage_link(&RelPath::parse("l").unwrap(), "f");
            tree.stage("d");
            fs::create_dir(to.join(part_name("d"))).unwrap();
            if changed {
                let other = PartFile::open(tree.directory("").unwrap(), "e", Some(4)).unwrap();
                fs::OpenOptions::new()
                    .write(true)
                    .open(to.join(part_name("e")))
                    .unwrap()
                    .write_all_at(b"n", 1)
                    .unwrap();
                drop(other);
            }
            let watch = Watch { report: Report::default(), progress: Progress::new() };
            tree.end_staging(None, &watch);
            if !changed {
                assert!(!watch.report.has_failed());
                assert_eq!([fs::read(to.join("e")).unwrap(), fs::read(to.join("l")).unwrap()], [b"ours"; 2]);
                assert!(to.join("d").is_dir());
                continue;
            }
            let finished = watch.report.finish();
            let Err(TransferError::Incomplete { failures, .. }) = finished else { panic!("{finished:?}") };
            let stays = |what: &str| format!("{what}stays there, because not everything has arrived");
            let lines: Vec<_> = failures.iter().map(ToString::to_string).collect();
            assert_eq!(
                lines,
                [
                    "e: it cannot be put in place: another program changed it; run the same command again"
                        .to_owned(),
                    stays("f: it cannot be put in place: a directory "),
                    stays("l: the link cannot take the place of a directory: a directory "),
                    "d: a file of this name stays, because not everything has arrived".to_owned(),
                ]
            );
            for name in ["e", "f", "l"] {
                assert_eq!(fs::read(to.join(name).join("old")).unwrap(), b"old");
            }
            assert_eq!(fs::read(to.join("d")).unwrap(), b"old");
        }
    }
}
