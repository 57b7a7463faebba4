//! Whether an existing file may be the one in the list: its length and time tell.

use std::time::SystemTime;

use cap_std::fs::Metadata;

use super::job::FileJob;
use super::part::system_time;
use crate::hash::MOST_COMPARED;
use crate::manifest::ModifiedTime;

/// True for an existing file that is worth a comparison: it has the listed length. From a sender that `compares_all` files
/// also if it is not too long where none is known, or it has the listed time where the listed length may be too large.
pub(super) fn may_be_alike(job: &FileJob, found: &Metadata, compares_all: bool) -> bool {
    let may_differ = || {
        let may_end_there = match job.meta.size {
            Some(size) => found.len() < size && has_second(job, found),
            None => found.len() <= MOST_COMPARED,
        };
        compares_all && !job.is_stream() && may_end_there
    };
    found.is_file() && (Some(found.len()) == job.meta.size || may_differ())
}

/// True if the file has the listed time to the fraction of a second.
pub(super) fn has_time(job: &FileJob, found: &Metadata) -> bool {
    times(job, found).is_some_and(|(listed, found)| system_time(listed) == Some(found))
}

/// True if the file has the listed time, or its second without the fraction, as on file systems that store none. The content
/// may have changed within that second.
pub(super) fn has_second(job: &FileJob, found: &Metadata) -> bool {
    let is_whole = |(listed, found)| system_time(ModifiedTime { nanoseconds: 0, ..listed }) == Some(found);
    has_time(job, found) || times(job, found).is_some_and(is_whole)
}

/// The listed time of a file, and the one found.
fn times(job: &FileJob, found: &Metadata) -> Option<(ModifiedTime, SystemTime)> {
    Some((job.meta.modified?, found.modified().ok()?.into_std()))
}
