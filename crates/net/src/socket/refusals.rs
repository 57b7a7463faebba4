//! Remembers to which destinations the system refuses datagrams, and logs when the firewall's refusals begin and end.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Most destinations remembered.
const MOST: usize = 1024;
/// Shortest time between two warnings about the firewall, which may refuse a packet now and then to limit a rate.
const PAUSE: Duration = Duration::from_secs(60);

/// Why the system refused a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendRefusal {
    /// The firewall forbids it (EPERM).
    Firewall,
    /// It is too long for the interface or the path (EMSGSIZE).
    TooLong,
}

/// The refusals of a socket.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    current: Mutex<Current>,
    /// True while there are some; most sockets have none and need not lock them.
    any: AtomicBool,
}

impl Refusals {
    /// Notes that a datagram from this local address was refused. Logs the beginning of a problem with the firewall.
    pub fn on_refused(&self, local: IpAddr, remote: SocketAddr, why: SendRefusal) {
        let mut current = self.current();
        let is_news = current.on_refused(remote, why, Instant::now());
        self.any.store(true, Ordering::Relaxed);
        drop(current);
        if is_news {
            tracing::warn!(
                %local,
                "this machine's own firewall refuses packets (operation not permitted): let UDP out, \
                 `nft list ruleset` or `iptables -S` shows the rules"
            );
        }
    }

    /// Notes that a datagram left. Logs the end of a problem with the firewall.
    pub fn on_sent(&self, local: IpAddr, remote: SocketAddr) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut current = self.current();
        let is_over = current.on_sent(remote);
        self.any.store(!current.is_empty(), Ordering::Relaxed);
        drop(current);
        if is_over {
            tracing::warn!(%local, "this machine's own firewall lets packets out again");
        }
    }

    /// Why the last datagram to this destination was refused; `None` if it left.
    pub fn of(&self, remote: SocketAddr) -> Option<SendRefusal> {
        self.current().by_remote.get(&remote).copied()
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().expect("no panic while held")
    }
}

/// The destinations whose last datagram was refused.
#[derive(Debug, Default)]
struct Current {
    by_remote: BTreeMap<SocketAddr, SendRefusal>,
    /// The last destination that the firewall refused. Only a datagram that leaves to it ends the refusals, since a rule
    /// may concern one destination.
    forbidden: Option<SocketAddr>,
    /// When the log last got a warning about the firewall.
    warned: Option<Instant>,
    /// True while the log has a warning, but not yet its end.
    is_open: bool,
}

impl Current {
    /// Notes a refused datagram. True if the firewall's refusals are to be logged.
    fn on_refused(&mut self, remote: SocketAddr, why: SendRefusal, now: Instant) -> bool {
        if self.by_remote.len() >= MOST && !self.by_remote.contains_key(&remote) {
            self.by_remote.clear();
        }
        self.by_remote.insert(remote, why);
        if why != SendRefusal::Firewall {
            return false;
        }
        self.forbidden = Some(remote);
        let is_news = !self.is_open && self.warned.is_none_or(|warned| now.duration_since(warned) >= PAUSE);
        if is_news {
            (self.warned, self.is_open) = (Some(now), true);
        }
        is_news
    }

    /// Notes a datagram that left. True if the end of the firewall's refusals is to be logged.
    fn on_sent(&mut self, remote: SocketAddr) -> bool {
        self.by_remote.remove(&remote);
        let is_over = self.forbidden.take_if(|forbidden| *forbidden == remote).is_some();
        is_over && std::mem::take(&mut self.is_open)
    }

    /// True if no destination is refused.
    fn is_empty(&self) -> bool {
        self.by_remote.is_empty() && self.forbidden.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    #[test]
    fn refusals_of_the_firewall_begin_and_end_once() {
        let (mut refusals, now) = (Current::default(), Instant::now());
        let firewall = SendRefusal::Firewall;
        assert!(!refusals.on_refused(remote(1), SendRefusal::TooLong, now), "it is not the firewall's");
        assert!(refusals.on_refused(remote(1), firewall, now));
        assert!(!refusals.on_refused(remote(1), firewall, now + PAUSE) && !refusals.on_sent(remote(2)));
        // The first destination may never be tried again.
        assert!(!refusals.on_refused(remote(3), firewall, now));
        assert!(!refusals.on_sent(remote(1)) && refusals.on_sent(remote(3)));
        assert!(refusals.is_empty() && refusals.on_refused(remote(1), firewall, now + PAUSE));
    }

    #[test]
    fn a_firewall_that_refuses_some_packets_among_many_is_logged_once_a_minute() {
        let (mut refusals, begin) = (Current::default(), Instant::now());
        let mut logged = 0;
        for step in 0..600 {
            let now = begin + Duration::from_millis(step * 100);
            logged += u32::from(refusals.on_refused(remote(1), SendRefusal::Firewall, now));
            logged += u32::from(refusals.on_sent(remote(1)));
        }
        assert_eq!(logged, 2, "the beginning and the end");
        // A refusal after that is news again.
        assert!(refusals.on_refused(remote(1), SendRefusal::Firewall, begin + PAUSE));
    }

    #[test]
    fn a_refusal_is_over_when_a_datagram_leaves_for_its_destination() {
        let (local, refusals) = (remote(0).ip(), Refusals::default());
        refusals.on_refused(local, remote(1), SendRefusal::TooLong);
        refusals.on_refused(local, remote(2), SendRefusal::Firewall);
        refusals.on_sent(local, remote(2));
        assert_eq!([1, 2].map(|port| refusals.of(remote(port))), [Some(SendRefusal::TooLong), None]);
    }

    #[test]
    fn the_number_of_destinations_is_bounded() {
        let mut refusals = Current::default();
        let now = Instant::now();
        (0..u16::MAX).for_each(|port| _ = refusals.on_refused(remote(port), SendRefusal::Firewall, now));
        assert!(refusals.by_remote.len() <= MOST);
        assert!(refusals.by_remote.contains_key(&remote(u16::MAX - 1)));
    }
}
