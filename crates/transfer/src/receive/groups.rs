//! Syncs many files at once, with all else on their file system.
//!
//! On a disk, a sync of one small file takes as long as a sync of many. But only some file systems are known to store
//! everything then; others get a sync for each file. So do all once it took long, because other programs write a lot.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cap_std::fs::Dir;

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
    is_slow: AtomicBool,
}

impl Groups {
    /// Looks at the file system of the target directory.
    pub fn of(root: &Dir) -> Self {
        use cap_std::fs::MetadataExt as _;
        let is_known = rustix::fs::fstatfs(root).is_ok_and(|found| KNOWN.contains(&(found.f_type as u32)));
        let device = root.dir_metadata().ok().filter(|_| is_known && reports_failures());
        Self { device: device.map(|found| found.dev()), is_slow: AtomicBool::new(false) }
    }

    /// True while files of this target are synced together.
    pub fn are_used(&self) -> bool {
        self.device.is_some() && !self.is_slow.load(Ordering::Relaxed)
    }

    /// Syncs the files on these devices together. Returns the device whose files are synced now, if that worked.
    pub fn sync(&self, first: &File, devices: &[Option<u64>]) -> Option<u64> {
        let count = devices.iter().filter(|device| device.is_some() && **device == self.device).count();
        if count < FEWEST || !self.are_used() || devices.first() != Some(&self.device) {
            return None;
        }
        let begin = Instant::now();
        let synced = rustix::fs::syncfs(first);
        let took = begin.elapsed();
        if took > SLOW && took > SLOW_EACH * count as u32 {
            self.is_slow.store(true, Ordering::Relaxed);
        }
        // After a failure, each file's own sync reports whether that file is concerned.
        self.device.filter(|_| synced.is_ok())
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

    #[test]
    fn only_enough_files_on_the_device_of_the_target_are_synced_together() {
        let temp = tempfile::tempdir().unwrap();
        let file = File::create(temp.path().join("a")).unwrap();
        let mut groups = Groups { device: Some(1), is_slow: AtomicBool::new(false) };
        assert_eq!(groups.sync(&file, &[Some(1); FEWEST]), Some(1));
        let elsewhere = [Some(1), Some(2), Some(1), Some(1), None];
        assert_eq!(groups.sync(&file, &elsewhere), None, "too few of them");
        let first_elsewhere = [Some(2), Some(1), Some(1), Some(1), Some(1)];
        assert_eq!(groups.sync(&file, &first_elsewhere), None, "its sync concerns another device");
        groups.is_slow = AtomicBool::new(true);
        assert_eq!(groups.sync(&file, &[Some(1); FEWEST]), None);
        groups = Groups { device: None, is_slow: AtomicBool::new(false) };
        assert_eq!(groups.sync(&file, &[None; FEWEST]), None, "a file system that may store nothing");
    }
}
