//! How many sessions a service admits, by the memory that its process may use.
//!
//! A session with its buffers and tables takes about 40 KiB at a service. Half of the memory is for sessions at 64 KiB each;
//! an eighth is for what their receive windows promise; the rest is for paths, sockets and the program itself.

use std::time::Duration;

use anabranch_net::Limits;
use anabranch_overlay::admission::{SESSIONS_TOTAL, SessionLimits};

use anabranch_service::process::memory;

/// Memory reserved for a session.
const SESSION_COST: u64 = 64 << 10;
/// Memory reserved for a path through a relay.
const PATH_COST: u64 = 512;
/// Sessions that even the smallest machine admits.
const FEWEST_SESSIONS: u64 = 64;
/// How often the number of sessions is checked, and by how much it must fall before memory is returned.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const FLOOD: usize = 256;

/// Limits that fit the memory of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub sessions: SessionLimits,
    /// Sessions that may not use the service yet.
    pub strangers: usize,
    /// Paths through a relay.
    pub paths: usize,
    /// The endpoint's limits, which include sessions that are being opened or closed.
    pub endpoint: Limits,
}

impl Budget {
    /// Limits for the memory that this process may use.
    pub(crate) fn of_process() -> Self {
        Self::of(memory::limit())
    }

    fn of(memory: Option<u64>) -> Self {
        let memory = memory.unwrap_or(u64::MAX);
        let total = (memory / 2 / SESSION_COST).clamp(FEWEST_SESSIONS, SESSIONS_TOTAL as u64) as usize;
        let half_open = (total / 8).min(1_000);
        let endpoint = Limits {
            sessions: total + half_open + total / 8,
            half_open,
            backlog: half_open,
            memory: (memory / 8).min(1 << 30),
            ..Limits::default()
        };
        let sessions = SessionLimits { total, ..SessionLimits::default() };
        let paths = usize::try_from(memory / 8 / PATH_COST).unwrap_or(usize::MAX);
        Self { sessions, strangers: (total / 8).min(1_024), paths, endpoint }
    }
}

/// Returns memory to the system after a flood of sessions has ended.
pub(crate) async fn give_back_after_floods(count: impl Fn() -> usize) {
    let mut peak = 0;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = count();
        peak = peak.max(now);
        if peak - now >= FLOOD && now <= peak / 2 {
            memory::give_back();
            peak = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_64_mebibytes_admits_512_sessions_and_a_large_one_8192() {
        let small = Budget::of(Some(64 << 20));
        assert_eq!((small.sessions.total, small.strangers, small.paths), (512, 64, 16_384));
        assert_eq!((small.endpoint.sessions, small.endpoint.half_open), (640, 64));
        assert_eq!(small.endpoint.memory, 8 << 20);
        let large = Budget::of(None);
        assert_eq!((large.sessions.total, large.strangers), (8_192, 1_024));
        assert_eq!((large.endpoint.sessions, large.endpoint.memory), (10_216, 1 << 30));
        assert_eq!(Budget::of(Some(1)).sessions.total, 64);
    }
}
