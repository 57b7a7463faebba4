//! Syncs many files at once, with all else on their file system.
//!
//! On a disk, a sync of one small file takes as long as a sync of many. But only some file systems are known to store
//! everything then; others get a sync for each file. So do all once it took long, because other programs write a lot.
//!
//! The system reports data that it could not write once for each open file, to a sync after that. So groups are synced by
//! handles that were opened before any file of the transfer, each used by one thread at a time. The failure may concern a
//! file that is not complete yet, so it ends the use of groups.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags};

/// Fewer files are synced one by one.
const FEWEST: usize = 4;
/// A sync of a group is slow if it takes longer than this, and than this for each file.
const SLOW: Duration = Duration::from_secs(1);
const SLOW_EACH: Duration = Duration::from_millis(20);
/// File systems that write everything and report failures: ext2 to ext4, XFS, Btrfs, F2FS.
const KNOWN: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Decides which files are synced together.
pub(super) struct Groups {
    /// The device of the target directory, if it is on such a file system. Others may be mounted below it.
    device: Option<u64>,
    /// Handles of the target directory, for as many syncs at the same time.
    handles: Mutex<Vec<OwnedFd>>,
    /// A sync was slow, or failed.
    is_over: AtomicBool,
}

impl Groups {
    /// Looks at the file system of the target directory.
    pub fn of(root: &Dir, threads: usize) -> Self {
        use cap_std::fs::MetadataExt as _;
        let is_known = rustix::fs::fstatfs(root).is_ok_and(|found| KNOWN.contains(&(found.f_type as u32)));
        let device = root.dir_metadata().ok().filter(|_| is_known && reports_failures());
        let open = |_| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(root, ".", flags, Mode::empty()).ok()
        };
        let handles = Mutex::new((0..threads).filter_map(open).collect());
        Self { device: device.map(|found| found.dev()), handles, is_over: AtomicBool::new(false) }
    }

    /// True while files of this target are synced together.
    pub fn are_used(&self) -> bool {
        self.device.is_some() && !self.is_over.load(Ordering::Relaxed)
    }

    /// Syncs the files on these devices together. Returns the device whose files are synced now, if that worked.
    pub fn sync(&self, devices: &[Option<u64>]) -> Option<u64> {
        let count = devices.iter().filter(|device| device.is_some() && **device == self.device).count();
        if count < FEWEST || !self.are_used() {
            return None;
        }
        let handle = self.handles().pop()?;
        let begin = Instant::now();
        let synced = rustix::fs::syncfs(&handle);
        let took = begin.elapsed();
        if synced.is_err() || took > SLOW && took > SLOW_EACH * count as u32 {
            self.is_over.store(true, Ordering::Relaxed);
        }
        self.handles().push(handle);
        // After a failure, each file's own sync reports whether that file is concerned.
        self.device.filter(|_| synced.is_ok())
    }

    fn handles(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if the system reports data that could not be written: Linux does since 5.8.
fn reports_failures() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(device: Option<u64>) -> (tempfile::TempDir, Groups) {
        let temp = tempfile::tempdir().unwrap();
        let root = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        let groups = Groups { device, ..Groups::of(&root, 1) };
        (temp, groups)
    }

    #[test]
    fn only_enough_files_on_the_device_of_the_target_are_synced_together() {
        let (_temp, here) = groups(Some(1));
        assert_eq!(here.sync(&[Some(1); FEWEST]), Some(1));
        let elsewhere = [Some(2), Some(1), Some(1), Some(1), None];
        assert_eq!(here.sync(&elsewhere), None, "too few of them");
        assert_eq!(here.sync(&[Some(2); FEWEST]), None, "another device");
        let (_temp, unknown) = groups(None);
        assert_eq!(unknown.sync(&[None; FEWEST]), None, "a file system that may store nothing");
    }

    #[test]
    fn no_group_is_synced_after_a_failure() {
        let (temp, groups) = groups(Some(1));
        // The system syncs nothing by such a handle.
        let bad = rustix::fs::open(temp.path(), OFlags::PATH, Mode::empty()).unwrap();
        let good = std::mem::replace(&mut groups.handles()[0], bad);
        assert_eq!(groups.sync(&[Some(1); FEWEST]), None);
        groups.handles()[0] = good;
        assert_eq!(groups.sync(&[Some(1); FEWEST]), None);
    }
}
