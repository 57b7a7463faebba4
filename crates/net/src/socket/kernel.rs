//! Kernels that damage batches: on some network cards, Linux 7.0 to 7.1.4 sends wrong headers when all datagrams of a
//! batch are equally long. The sender cannot see the damage, so the version decides.

/// The kernel's release, such as `7.0.0-14-generic`; empty on other systems.
pub(super) fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// True for the release of a kernel that damages batches of equal datagrams.
pub(super) fn damages_equal_batches(release: &str) -> bool {
    let mut numbers = release.trim().split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (7, 0, _) => true,
        (7, 1, patch) => patch < 5,
        _ => false,
    }
}

/// True for several datagrams of `segment` bytes each, the last included.
pub(super) fn is_equal_batch(contents: &[u8], segment: usize) -> bool {
    contents.len() > segment && contents.len().is_multiple_of(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_that_damage_batches_are_known_by_their_releases() {
        for release in ["7.0.0-14-generic\n", "7.0.9", "7.1-rc5", "7.1.0", "7.1.4-arch1-1"] {
            assert!(damages_equal_batches(release), "{release}");
        }
        for release in ["", "6.17.0-41-generic", "6.18.2", "7.1.5", "7.1.10-1-pve", "7.2.0-rc1", "17.0.1"] {
            assert!(!damages_equal_batches(release), "{release}");
        }
    }
}
