//! Planning of further names of a file: hard links.

use cap_std::fs::Dir;

use super::job::FileJob;
use super::links::{Further, Leader};
use super::mirror::discard_staged;
use super::part::FileId;
use super::plan::Planner;
use crate::policy::Conflict;

/// The decision about a further name.
enum Step {
    /// It is or will be a link, or failed.
    Taken,
    /// It is received as a file of its own.
    Own(FileJob),
    /// Its group has no leader yet.
    Later(FileJob),
}

impl Planner {
    /// Plans a file that may be a further name of another; gives it back if it is to be received. Without `is_last`, one
    /// whose group has no leader yet is kept for later.
    pub(super) fn plan_name(&mut self, job: FileJob, is_last: bool) -> Option<FileJob> {
        if !self.links.as_ref().is_some_and(|links| links.has(job.index)) {
            return Some(job);
        }
        match self.plan_link(job) {
            Step::Taken => None,
            Step::Own(job) => Some(job),
            Step::Later(job) if is_last => Some(job),
            Step::Later(job) => {
                self.later.push(job.index);
                None
            }
        }
    }

    fn plan_link(&mut self, mut job: FileJob) -> Step {
        let Some(links) = self.links.clone() else { return Step::Own(job) };
        let Some(group) = links.group(job.index) else { return Step::Own(job) };
        // Its directory or its name may be of no use; then it fails as any file does.
        let Ok(directory) = self.tree.directory(&job.parent) else { return Step::Own(job) };
        match directory.symlink_metadata(&job.name) {
            Err(_) if self.spellings.meet(&mut self.tree, &job.path) => return Step::Own(job),
            Err(_) => {}
            Ok(found) => {
                if let Some(Leader::There { id: there, .. }) = links.state().leaders.get(&group)
                    && *there == FileId::of(&found)
                {
                    self.skip(&job, true);
                    return Step::Taken;
                }
                let may_replace = self.conflict == Conflict::Overwrite && found.is_file();
                if !may_replace || self.clashes(&job.path, &found) {
                    return Step::Own(job);
                }
                job.replace = true;
            }
        }
        if self.mirror.is_some() {
            // If it stays, only its room is lost.
            let _ = discard_staged(&directory, &job.name);
        }
        let mut state = links.state();
        match state.leaders.remove(&group) {
            None => return Step::Later(job),
            Some(Leader::Coming { index, mut waiting }) => {
                waiting.push(Further { index: job.index, replace: job.replace });
                state.leaders.insert(group, Leader::Coming { index, waiting });
            }
            Some(there) => {
                links.link(&mut state, &there, &job);
                state.leaders.insert(group, there);
            }
        }
        Step::Taken
    }

    /// Records that a copy keeps a file, to which further names may be links.
    pub(super) fn keep_leader(&self, directory: &Dir, job: &FileJob) {
        if let Some(links) =
            self.links.as_ref().filter(|links| self.mirror.is_some() && links.concerns(job.index))
            && let Ok(found) = directory.symlink_metadata(&job.name)
            && found.is_file()
        {
            links.put(job, FileId::of(&found));
        }
    }
}
