//! The limits of this process: memory and open files.

use std::fs;

/// Memory for receivers where the system sets no limit.
const MEMORY: usize = 64 << 20;
/// Least memory, even below a lower limit.
const LEAST_MEMORY: usize = 1 << 20;

/// Memory for all receivers together: 64 MiB, or a quarter of this process's limit if that is less.
pub fn memory_for_receivers() -> usize {
    share_of(allowed_memory().unwrap_or(u64::MAX))
}

fn share_of(allowed: u64) -> usize {
    usize::try_from(allowed / 4).unwrap_or(usize::MAX).clamp(LEAST_MEMORY, MEMORY)
}

/// The smallest limit of this process's control groups (version 2), in bytes; `None` without one.
fn allowed_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let limit = |path: &str| fs::read_to_string(format!("/sys/fs/cgroup/{path}/memory.max")).ok();
    let mut path = group.as_str();
    let mut least = None;
    while !path.is_empty() {
        let bytes = limit(path).and_then(|text| text.trim().parse::<u64>().ok());
        least = match (least, bytes) {
            (Some(least), Some(bytes)) => Some(bytes.min(least)),
            (least, bytes) => least.or(bytes),
        };
        path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    least
}

/// Raises the limit of open files as far as allowed: each receiver needs one.
#[cfg(unix)]
pub fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If this fails, some receivers may get an error instead of a file.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(not(unix))]
pub fn allow_many_files() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_get_a_quarter_of_what_a_small_system_allows() {
        assert_eq!(share_of(u64::MAX), MEMORY);
        assert_eq!(share_of(64 << 20), 16 << 20);
        assert_eq!(share_of(0), LEAST_MEMORY);
    }
}
