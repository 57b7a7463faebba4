//! How much memory the process may use, and how to return free memory.
//!
//! The limit is the lowest of the machine's memory, the limits of the control groups that the process is in (version 1 and
//! 2), and its address-space limit (`ulimit -v`). Services derive their own limits from it, so that a small machine refuses
//! clients instead of being killed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

/// How often [`give_back_unused`] looks, and the free memory that is worth returning: it costs some milliseconds.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const WORTH_GIVING_BACK: u64 = 16 << 20;

/// Memory that this process may use, in bytes; `None` if the system does not report it.
pub fn limit() -> Option<u64> {
    let sources = [machine(), installed(), control_groups(Path::new("/")), address_space()];
    sources.into_iter().flatten().min()
}

/// Returns free memory to the system. Otherwise the allocator would keep it after a flood of sessions.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: `malloc_trim` may be called at any time from any thread; it releases only memory that is free.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Returns memory to the system whenever the allocator keeps much that is free. Does not end.
pub async fn give_back_unused() {
    let mut keeper = Keeper::default();
    loop {
        sleep(LOOK_EVERY).await;
        if unused().is_some_and(|unused| keeper.gives_back(unused)) {
            give_back();
            keeper.kept = unused().unwrap_or_default();
        }
    }
}

/// Decides when memory is returned.
#[derive(Debug, Default)]
struct Keeper {
    /// Free memory that could not be returned: it lies between pieces that are in use.
    kept: u64,
}

impl Keeper {
    fn gives_back(&mut self, unused: u64) -> bool {
        self.kept = self.kept.min(unused);
        unused - self.kept >= WORTH_GIVING_BACK
    }
}

/// Memory that the process occupies and does not use.
fn unused() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [_, resident, shared, ..] = pages[..] else { return None };
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    Some((resident.saturating_sub(shared) * u64::try_from(page).ok()?).saturating_sub(allocated()?))
}

/// Bytes that the program has asked for.
#[cfg(target_env = "gnu")]
fn allocated() -> Option<u64> {
    #[allow(unsafe_code)]
    // SAFETY: `mallinfo` only counts. Any thread may call it while none calls `mallopt`, and nothing here does.
    let counts = unsafe { nix::libc::mallinfo() };
    // Its counters are those of 32 bits: beyond 4 GiB more seems to be free than is, and is kept in the next look.
    let [used, mapped] = [counts.uordblks, counts.hblkhd].map(|bytes| u64::from(bytes as u32));
    Some(used + mapped)
}

/// Other allocators do not tell.
#[cfg(not(target_env = "gnu"))]
fn allocated() -> Option<u64> {
    None
}

fn machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1_024)
}

/// The machine's memory as the kernel tells it without a file: a unit with `ProcSubset=pid` hides `/proc/meminfo`.
fn installed() -> Option<u64> {
    Some(nix::sys::sysinfo::sysinfo().ok()?.ram_total())
}

/// The lowest limit of the process's control groups and their parents. `root` is `/`, except in tests.
fn control_groups(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = groups.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(':')?;
        let (base, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        lowest(&root.join(base), group, file)
    });
    limits.min()
}

/// The lowest limit of a group and of its parents. Very large numbers mean that there is no limit.
fn lowest(base: &Path, group: &str, file: &str) -> Option<u64> {
    const NONE: u64 = 1 << 62;
    let group = PathBuf::from(group.trim_start_matches('/'));
    let limits = group.ancestors().filter_map(|group| {
        let text = std::fs::read_to_string(base.join(group).join(file)).ok()?;
        text.trim().parse().ok().filter(|limit| *limit < NONE)
    });
    limits.min()
}

/// The limit on the address space (`ulimit -v`) in bytes, if there is one.
pub fn address_space() -> Option<u64> {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
    let (soft, _) = getrlimit(Resource::RLIMIT_AS).ok()?;
    (soft != RLIM_INFINITY).then_some(soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    #[test]
    fn the_lowest_limit_of_a_group_and_its_parents_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "proc/self/cgroup", "0::/system.slice/relay.service\n");
        assert_eq!(control_groups(root), None);
        write(root, "sys/fs/cgroup/system.slice/relay.service/memory.max", "max\n");
        assert_eq!(control_groups(root), None);
        write(root, "sys/fs/cgroup/system.slice/memory.max", "67108864\n");
        assert_eq!(control_groups(root), Some(64 << 20));
        write(root, "sys/fs/cgroup/system.slice/relay.service/memory.max", "1048576\n");
        assert_eq!(control_groups(root), Some(1 << 20));
    }

    #[test]
    fn groups_of_version_1_count_too_and_their_largest_number_is_no_limit() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n");
        write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(control_groups(root), None);
        write(root, "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "33554432\n");
        assert_eq!(control_groups(root), Some(32 << 20));
    }

    #[test]
    fn memory_is_given_back_when_much_more_is_free_than_could_be_returned_last() {
        const MIB: u64 = 1 << 20;
        let mut keeper = Keeper::default();
        assert!(!keeper.gives_back(15 * MIB) && keeper.gives_back(16 * MIB));
        keeper.kept = 10 * MIB;
        assert!(!keeper.gives_back(25 * MIB) && keeper.gives_back(26 * MIB));
        // The pieces in between have gone meanwhile.
        assert!(!keeper.gives_back(2 * MIB) && keeper.gives_back(18 * MIB));
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_is_allocated_is_not_unused() {
        let before = allocated().unwrap();
        // Much, because other tests of this program allocate and free meanwhile. It is never written, so it takes no memory.
        let bytes = Vec::<u8>::with_capacity(256 << 20);
        let after = allocated().unwrap();
        assert!(after >= before + (200 << 20), "{before} {after} {}", bytes.capacity());
        assert!(unused().is_some());
    }

    #[test]
    fn a_machine_has_memory_and_giving_some_back_does_no_harm() {
        assert!(limit().is_some_and(|bytes| bytes > 16 << 20));
        assert!(installed().is_some_and(|bytes| bytes > 16 << 20));
        give_back();
    }
}
