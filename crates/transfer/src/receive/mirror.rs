//! Keeps the target a copy of the share: what is unchanged stays, and what the share does not have is removed on request.
//!
//! A file of the same length and time counts as unchanged, as with rsync; its content is compared on request, or if the time
//! has lost its fraction of a second. Removal comes last, and only when everything else has arrived: an unreadable directory
//! at the sender must not empty its copy.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;

use cap_fs_ext::DirExt as _;
use cap_std::fs::{Dir, Metadata};

use super::alike::{has_second, has_time};
use super::aside::when_whole;
use super::job::FileJob;
use super::part::{FileId, set_attributes, set_mode, set_modified, system_time};
use super::place::open;
use super::plan::Planner;
use super::remove::{is_same, names, remove};
use super::shut::Shut;
use super::spelling::are_alike;
use super::target::{TargetTree, sync_or_note};
use crate::attributes;
use crate::error::TransferError;
use crate::manifest::Entry;
use crate::path::{RelPath, is_aside_name, is_part_name, moved_aside, part_name};
use crate::report::Report;

impl Planner {
    /// True for a file that a mirror keeps without a look at its content.
    pub(super) fn is_unchanged(&self, job: &FileJob, found: &Metadata) -> bool {
        self.mirror.is_some_and(|mirror| !mirror.by_content)
            && found.is_file()
            && Some(found.len()) == job.meta.size
            && has_time(job, found)
    }

    /// Gives a kept file the time, mode and attributes of the source's, in a mirror. Otherwise its attributes and links stay
    /// what they are, with a note.
    pub(super) fn renew(&self, directory: &Dir, job: &FileJob) {
        let Ok(found) = directory.symlink_metadata(&job.name) else { return };
        if self.mirror.is_none() {
            if self.attributes.contains_key(&job.index) {
                let file = open(directory, &job.name).map(cap_std::fs::File::into_std);
                self.note_old_attributes(file, (job.index, &job.path));
            }
            if self.links.as_ref().is_some_and(|links| !links.keep(job.index, FileId::of(&found))) {
                self.report.copy_link(&job.path);
            }
            return;
        }
        let mode = job.meta.mode & self.tree.mode_mask();
        let is_current = has_second(job, &found) && has_mode(&found, mode);
        let is_attributed = self.attributes.contains_key(&job.index);
        if is_current && has_time(job, &found) && !is_attributed {
            return;
        }
        let renewed = open(directory, &job.name).and_then(|file| {
            let file = file.into_std();
            set_attributes(&file, &self.attributes, (job.index, &job.path), &self.report);
            if let Some(time) = job.meta.modified.and_then(system_time) {
                set_modified(&file, time)?;
            }
            set_mode(&file, mode)
        });
        match renewed {
            Ok(()) => self.report.add(|summary| summary.updated += u64::from(!is_current)),
            // The fraction of a second only spares the next comparison.
            Err(_) if is_current && !is_attributed => {}
            Err(error) => self.report.note("store the time and mode", &job.path, &error),
        }
    }

    /// Notes that an existing entry, which is this open file, lacks attributes of the source's.
    pub(super) fn note_old_attributes(&self, file: io::Result<File>, (index, path): (u32, &RelPath)) {
        let wanted = self.attributes.get(&index).map_or(&[][..], Vec::as_slice);
        if !file.is_ok_and(|file| attributes::are_on(&file, wanted)) {
            self.report.keep_attributes(path);
        }
    }

    /// True if the existing entry may be removed for one of another kind at `path`: the mirror may remove, nothing has failed
    /// so far, and the existing one is no other entry of the share.
    pub(super) fn may_clear(&mut self, path: &RelPath, found: &Metadata) -> bool {
        let may_remove = self.mirror.is_some_and(|mirror| mirror.delete) && !self.report.has_failed();
        may_remove && !self.clashes(path, found)
    }

    /// Puts back what a copy that was killed has moved aside in the directory at `path`, if its name is free.
    pub(super) fn put_back(&mut self, path: &str) {
        let Some(mirror) = self.mirror else { return };
        if let Ok(directory) = self.tree.directory(path) {
            put_back(&directory, path, mirror.delete, &self.report);
        }
    }
}

/// Puts back the whole directories that were moved aside in `directory` if their names are free. Names the others, unless
/// the copy removes them.
fn put_back(directory: &Dir, path: &str, delete: bool, report: &Report) {
    let names = names(directory).unwrap_or_default();
    for aside in names.iter().filter_map(|name| name.to_str()).filter(|name| is_aside_name(name)) {
        let whole = moved_aside(aside).filter(|_| when_whole(aside).is_none());
        let name = whole.filter(|name| directory.symlink_metadata(name).is_err());
        if let Some(name) = name.filter(|name| directory.rename(aside, directory, name).is_ok()) {
            let path = join(path, name);
            report
                .warn(&format!("{path} is there again: an earlier copy that was cut off had moved it aside"));
        } else if !delete {
            let path = join(path, aside);
            report.warn(&format!(
                "{path} is what an earlier copy left of a directory; remove it, or sync with `--delete`"
            ));
        }
    }
}

/// Removes the directory that an interrupted copy was to put in the place of the file `name`.
pub(super) fn discard_staged(directory: &Dir, name: &str) -> std::io::Result<()> {
    let part = part_name(name);
    match directory.symlink_metadata(&part) {
        Ok(found) if found.is_dir() => remove(directory, &part, &found, Shut::Opens).map(|_| ()),
        _ => Ok(()),
    }
}

/// Removes what is in the tree and not in the list, if everything of the list has arrived. `left_out` are paths that the
/// sender has and cannot send.
pub(super) fn remove_others(
    tree: &mut TargetTree,
    (entries, left_out): (&[Entry], &[String]),
    report: &Report,
) -> Result<(), TransferError> {
    let lists = (entries, left_out);
    if let Some(why) = report.why_unsafe() {
        let room = if report.lacks_room() { room_of_others(tree, lists) } else { None };
        report.warn(&format!("nothing else was removed, because {why}{}", room.unwrap_or_default()));
        return Ok(());
    }
    let act = |tree: &TargetTree, directory: &Dir, (inner, name): (&str, &str), found: &Metadata| match remove(
        directory,
        name,
        found,
        tree.shut(),
    ) {
        Ok(removed) => report.add(|summary| summary.removed += removed),
        Err(error) => match (RelPath::parse(inner), path_of_leftover(inner)) {
            (Ok(path), _) => report.fail(&path, tree.why_stays((directory, inner), &error)),
            (_, Some(path)) => {
                let what = "which an earlier copy left of a directory, cannot be removed";
                report.fail(&path, format!("{name}, {what}: {error}"));
            }
            _ => report.warn(&format!("{inner} cannot be removed: {error}")),
        },
    };
    for_others(tree, lists, act, |directory, path| sync_or_note(directory, path, report))
}

/// The path under which a failure with the directory `inner`, which was moved aside, is reported: that of before, or else of
/// the directory that it is in.
fn path_of_leftover(inner: &str) -> Option<RelPath> {
    let (parent, aside) = inner.rsplit_once('/').unwrap_or(("", inner));
    let before = moved_aside(when_whole(aside).unwrap_or(aside))
        .and_then(|name| RelPath::parse(&join(parent, name)).ok());
    // The target itself has no path: the name without its ends, which is a hash, stands for it.
    let hash = || RelPath::parse(aside.trim_start_matches('.').split('.').next()?).ok();
    is_aside_name(aside).then(|| before.or_else(|| RelPath::parse(parent).ok()).or_else(hash))?
}

/// How much room the entries take that would be removed if all had arrived, for a user whose disk is full: a renamed file
/// may not fit next to the one of its old name. To remove it first is not safe, as the other end may be lost then.
fn room_of_others(tree: &mut TargetTree, lists: (&[Entry], &[String])) -> Option<String> {
    let (mut largest, mut bytes) = ((0, String::new()), 0_u64);
    let act = |_: &TargetTree, directory: &Dir, (inner, name): (&str, &str), found: &Metadata| {
        let size = size(directory, name, found);
        bytes = bytes.saturating_add(size);
        if size > largest.0 {
            largest = (size, inner.to_owned());
        }
    };
    // Without an answer, there is no hint.
    for_others(tree, lists, act, |_, _| Ok(())).ok()?;
    let what = "; what the source does not have takes";
    (bytes > 0)
        .then(|| format!("{what} {bytes} bytes: remove it yourself to make room, such as {}", largest.1))
}

/// The bytes of a file, or of all files in a directory.
fn size(directory: &Dir, name: &str, found: &Metadata) -> u64 {
    if !found.is_dir() {
        return if found.is_file() { found.len() } else { 0 };
    }
    let inner = directory.open_dir_nofollow(name);
    let entries = inner.and_then(|inner| names(&inner).map(|names| (inner, names)));
    entries.map_or(0, |(inner, names)| {
        let names = names.iter().filter_map(|name| name.to_str());
        let found = names.filter_map(|name| Some((name, inner.symlink_metadata(name).ok()?)));
        found.map(|(name, found)| size(&inner, name, &found)).sum()
    })
}

/// Calls `act` for each entry that is in the tree and not in the lists, but for what is in it, and `end` for each directory
/// with any.
fn for_others(
    tree: &mut TargetTree,
    (entries, left_out): (&[Entry], &[String]),
    mut act: impl FnMut(&TargetTree, &Dir, (&str, &str), &Metadata),
    end: impl Fn(&Dir, &str) -> io::Result<()>,
) -> Result<(), TransferError> {
    let known: HashSet<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    let left_out: HashSet<&str> = left_out.iter().map(String::as_str).collect();
    let mut listed: HashMap<&str, Vec<&str>> = HashMap::new();
    for (parent, name) in entries.iter().map(|entry| entry.path.split()) {
        listed.entry(parent).or_default().push(name);
    }
    // Paths, not handles: a directory may have more directories than this process may open.
    let mut pending = vec![String::new()];
    while let Some(path) = pending.pop() {
        let failed = |what, error| TransferError::io(what, path.clone(), error);
        let directory = tree.directory(&path).map_err(|error| failed("open", error))?;
        let names = names(&directory).map_err(|error| failed("read", error))?;
        let aliases = aliases(&directory, listed.get(path.as_str()).map_or(&[][..], Vec::as_slice), &names);
        let mut changed = false;
        for name in &names {
            let Some(text) = name.to_str() else { continue };
            let inner = join(&path, text);
            // Unfinished files may be at work.
            let Ok(found) = directory.symlink_metadata(text) else { continue };
            if is_part_name(text) && !is_aside_name(text) || left_out.contains(inner.as_str()) {
                continue;
            }
            let alias = aliases.iter().find(|(name, meta)| is_same(meta, &found) || are_alike(name, text));
            let alias = alias.map(|(name, _)| join(&path, name));
            if known.contains(inner.as_str()) && alias.is_some() {
                // Its content may be listed under either spelling.
                continue;
            }
            if known.contains(inner.as_str()) || alias.is_some() {
                pending.extend(found.is_dir().then(|| alias.unwrap_or(inner)));
                continue;
            }
            act(tree, &directory, (&inner, text), &found);
            changed = true;
        }
        if changed {
            end(&directory, &path).map_err(|error| failed("sync", error))?;
        }
    }
    Ok(())
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// Listed names that the directory has under another name, because its file system ignores case or the form of accents.
fn aliases<'a>(
    directory: &Dir,
    listed: &[&'a str],
    names: &BTreeSet<std::ffi::OsString>,
) -> Vec<(&'a str, Metadata)> {
    let others = listed.iter().filter(|name| !names.contains(std::ffi::OsStr::new(**name)));
    others.filter_map(|name| Some((*name, directory.symlink_metadata(name).ok()?))).collect()
}

fn has_mode(found: &Metadata, mode: u16) -> bool {
    use cap_std::fs::MetadataExt as _;
    found.mode() & 0o777 == u32::from(mode)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::path::{PART_SUFFIX, aside_name};

    #[test]
    fn what_is_left_of_a_directory_and_cannot_be_removed_is_a_failure_each_time() {
        let temp = tempfile::tempdir().unwrap();
        let long = "x".repeat(100);
        for name in ["d", &long] {
            let aside = temp.path().join(aside_name(name));
            fs::create_dir(&aside).unwrap();
            fs::write(aside.join(OsStr::from_bytes(b"\xff")), "").unwrap();
        }
        for _ in 0..2 {
            let (mut tree, report) = (TargetTree::open(temp.path(), false).unwrap(), Report::default());
            remove_others(&mut tree, (&[], &[]), &report).unwrap();
            let finished = report.finish();
            let Err(TransferError::Incomplete { failures, .. }) = finished else { panic!("{finished:?}") };
            let mut texts: Vec<_> = failures.iter().map(|failure| format!("{failure:?}")).collect();
            texts.sort_by_key(|text| !text.contains("\"d\""));
            assert!(
                texts.len() == 2 && texts[0].contains("\"d\"") && texts[0].contains(&aside_name("d")),
                "{texts:?}"
            );
            assert!(texts[1].contains(&aside_name(&long)), "{texts:?}");
        }
        let before = |path: &str| path_of_leftover(path).unwrap().as_str().to_owned();
        assert_eq!(before(&format!("a/{}", aside_name("d"))), "a/d");
        assert_eq!(before(&format!("a/{}{PART_SUFFIX}", aside_name("d"))), "a/d");
        assert_eq!(before(&format!("a/{}", aside_name(&long))), "a");
    }

    #[test]
    fn only_a_whole_directory_is_put_back_and_that_is_said() {
        let temp = tempfile::tempdir().unwrap();
        let clearing = format!("{}{PART_SUFFIX}", aside_name("e"));
        for name in [&aside_name("d"), &clearing] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        let (mut tree, report) = (TargetTree::open(temp.path(), false).unwrap(), Report::default());
        put_back(&tree.directory("").unwrap(), "", false, &report);
        let names = names(&tree.directory("").unwrap()).unwrap();
        assert_eq!(names, BTreeSet::from([clearing.as_str().into(), "d".into()]));
        let warnings = report.finish().unwrap().warnings;
        let has = |text: &str| warnings.iter().any(|warning| warning.starts_with(text));
        assert!(has("d is there again") && has(&format!("{clearing} is what")), "{warnings:?}");
        // A copy that removes removes it.
        let report = Report::default();
        put_back(&tree.directory("").unwrap(), "", true, &report);
        fs::remove_dir(temp.path().join("d")).unwrap();
        remove_others(&mut tree, (&[], &[]), &report).unwrap();
        assert_eq!(report.finish().unwrap().removed, 1);
    }
}
