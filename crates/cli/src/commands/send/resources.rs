//! The limits of this process: memory and open files.

use std::time::{Duration, Instant};

use anabranch_service::process::memory;

/// Memory for receivers where the system sets no limit.
const MEMORY: usize = 64 << 20;
/// Least memory, even below a lower limit.
const LEAST_MEMORY: usize = 1 << 20;

/// A receiver keeps its place for this long, however little it takes.
const GRACE: Duration = Duration::from_secs(10);
/// Memory of this process for each receiver that it admits. One that stalls holds about 160 KiB.
const FOR_EACH_RECEIVER: u64 = 512 << 10;
/// Bounds of the number of receivers at the same time.
const RECEIVERS: (u64, u64) = (16, 8_192);

/// Most receivers at the same time: as many as this process has memory for.
pub fn most_receivers() -> usize {
    receivers_within(memory::limit().unwrap_or(u64::MAX))
}

/// The receiver that gives its place to another: of those that came [`GRACE`] ago or earlier, the one with the fewest
/// bytes. Each has a number, the time when it came, and its bytes.
pub fn gives_way(receivers: impl Iterator<Item = (u64, Instant, u64)>) -> Option<u64> {
    let old = receivers.filter(|(_, since, _)| since.elapsed() >= GRACE);
    old.min_by_key(|(_, _, bytes)| *bytes).map(|(number, ..)| number)
}

fn receivers_within(allowed: u64) -> usize {
    (allowed / FOR_EACH_RECEIVER).clamp(RECEIVERS.0, RECEIVERS.1) as usize
}

/// Memory for all receivers together: 64 MiB, or a quarter of what this process may use if that is less.
pub fn memory_for_receivers() -> usize {
    share_of(memory::limit().unwrap_or(u64::MAX))
}

fn share_of(allowed: u64) -> usize {
    usize::try_from(allowed / 4).unwrap_or(usize::MAX).clamp(LEAST_MEMORY, MEMORY)
}

/// Raises the limit of open files as far as allowed: each receiver, and each connection of a proxy, an exit or a tunnel,
/// needs some.
pub fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If this fails, some get an error instead of a file or a connection.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_get_a_quarter_of_what_a_small_system_allows() {
        assert_eq!(share_of(u64::MAX), MEMORY);
        assert_eq!(share_of(64 << 20), 16 << 20);
        assert_eq!(share_of(0), LEAST_MEMORY);
    }

    #[test]
    fn a_process_of_64_mebibytes_admits_128_receivers_and_a_large_one_8192() {
        assert_eq!(receivers_within(64 << 20), 128);
        assert_eq!((receivers_within(0), receivers_within(u64::MAX)), (16, 8_192));
    }
}
