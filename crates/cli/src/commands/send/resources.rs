//! The limits of this process: memory and open files.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anabranch_service::process::memory;
use anabranch_wire::{larger_source, site, source};

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

/// A receiver that has a place.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    pub number: u64,
    /// The address from which it came, if known.
    pub address: Option<IpAddr>,
    pub since: Instant,
    /// The bytes that it took.
    pub bytes: u64,
}

/// The receiver that gives its place to a newcomer from this address when all places are taken: the one with the fewest
/// bytes in the [larger source](larger_source). If no source is larger, only receivers that came [`GRACE`] ago or earlier
/// give way: those of the newcomer's own source, without any there those of its own site, and without any there all.
pub fn gives_way(receivers: &[Placed], address: Option<IpAddr>) -> Option<u64> {
    let addresses: Vec<Option<IpAddr>> = receivers.iter().map(|one| one.address).collect();
    let larger = larger_source(&addresses, address);
    let is_own_source = |other: Option<IpAddr>| other.map(source) == address.map(source);
    let is_own_site = |other: Option<IpAddr>| other.map(site) == address.map(site);
    let has_source = addresses.iter().any(|other| is_own_source(*other));
    let has_site = addresses.iter().any(|other| is_own_site(*other));
    let is_new = |one: &Placed| one.since.elapsed() < GRACE;
    let may_yield = |one: &&Placed| match larger {
        Some(larger) => one.address.map(source) == larger,
        None if is_new(one) => false,
        None if has_source => is_own_source(one.address),
        None => !has_site || is_own_site(one.address),
    };
    let least = receivers.iter().filter(may_yield).min_by_key(|one| (is_new(one), one.bytes));
    least.map(|one| one.number)
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

    /// Receivers from these addresses, of which each took more bytes than the one before.
    fn placed(addresses: &[String], age: Duration) -> Vec<Placed> {
        let since = Instant::now().checked_sub(age).expect("the machine has run for this long");
        let one = |(number, address): (u64, &String)| Placed {
            number,
            address: Some(address.parse().unwrap()),
            since,
            bytes: number,
        };
        (0..).zip(addresses).map(one).collect()
    }

    #[test]
    fn the_source_with_most_receivers_makes_room_and_no_receiver_of_another() {
        let mut addresses = vec!["192.0.2.1".to_owned(); 6];
        addresses.insert(0, "192.0.2.2".into());
        let all = placed(&addresses, Duration::ZERO);
        let gives = |address: &str| gives_way(&all, Some(address.parse().unwrap()));
        assert_eq!(gives("192.0.2.3"), Some(1), "though all came just now");
        assert_eq!(gives("192.0.2.1"), None, "it has most itself");
        let old = placed(&addresses, GRACE);
        assert_eq!(gives_way(&old, Some([192, 0, 2, 1].into())), Some(1), "one of its own");
    }

    #[test]
    fn all_networks_of_one_ipv6_site_make_room_for_other_receivers() {
        let mut addresses: Vec<String> = (0..6).map(|net| format!("2001:db8:0:{net}::1")).collect();
        addresses.insert(0, "192.0.2.2".into());
        let old = placed(&addresses, GRACE);
        let gives = |address: &str| gives_way(&old, Some(address.parse().unwrap()));
        assert!(gives("192.0.2.3").is_some_and(|number| number > 0));
        assert_eq!(gives("2001:db8:0:9::1"), Some(1), "the first of its site");
    }

    #[test]
    fn of_many_sources_with_one_receiver_each_the_one_that_took_least_makes_room() {
        let addresses: Vec<String> = (1..9).map(|last| format!("192.0.2.{last}")).collect();
        let newcomer = Some([198, 51, 100, 1].into());
        assert_eq!(gives_way(&placed(&addresses, GRACE), newcomer), Some(0));
        assert_eq!(gives_way(&placed(&addresses, Duration::ZERO), newcomer), None);
    }
}
