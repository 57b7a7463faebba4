//! Connects to a destination from the exit: resolves its name, keeps the allowed addresses, and tries them.
//!
//! The policy is asked about each resolved address, and exactly that address is connected to. A name cannot point elsewhere between
//! the two.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::message::Outcome;
use crate::policy::{Policy, Verdict};
use crate::race::race;
use crate::target::Target;
use anabranch_tunnel::access::embedded;

/// How long a name may take to resolve.
const PATIENCE: Duration = Duration::from_secs(10);

/// Resolves names.
pub type Resolver = Box<dyn Fn(String, u16) -> Resolving + Send + Sync>;
/// A name that is being resolved.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Finds and opens destinations within a policy.
pub struct Connector {
    policy: Policy,
    resolver: Resolver,
}

impl Connector {
    /// A connector that asks the system's resolver.
    pub fn new(policy: Policy) -> Self {
        Self::with_resolver(
            policy,
            Box::new(|name, port| {
                Box::pin(async move { Ok(lookup_host((name, port)).await?.collect::<Vec<_>>()) })
            }),
        )
    }

    /// A connector that asks this resolver.
    pub fn with_resolver(policy: Policy, resolver: Resolver) -> Self {
        Self { policy, resolver }
    }

    /// Opens a TCP connection to a destination.
    pub async fn connect(&self, to: &Target, lookups: &Arc<Semaphore>) -> Result<TcpStream, Outcome> {
        let addresses = self.resolve(to, lookups).await?;
        dial(addresses).await
    }

    /// The addresses of a destination that may be connected to; at least one.
    pub async fn resolve(&self, to: &Target, lookups: &Arc<Semaphore>) -> Result<Vec<SocketAddr>, Outcome> {
        if to.port() == 0 {
            return Err(Outcome::Denied);
        }
        let mut addresses = match to {
            Target::Address(address) => vec![*address],
            Target::Name(name, port) => {
                let asked = async {
                    let turn = lookups.clone().acquire_owned().await.map_err(|_| Outcome::Busy)?;
                    let resolving = (self.resolver)(name.as_str().to_owned(), *port);
                    // The system's resolver holds a thread until it has an answer, even if no one waits any more.
                    let looked_up = tokio::spawn(async move {
                        let _turn = turn;
                        resolving.await
                    });
                    looked_up.await.ok().and_then(Result::ok).ok_or(Outcome::UnknownName)
                };
                timeout(PATIENCE, asked).await.unwrap_or(Err(Outcome::UnknownName))?
            }
        };
        if addresses.is_empty() {
            return Err(Outcome::UnknownName);
        }
        let mut why_not = Outcome::Denied;
        addresses.retain(|address| match self.judge(*address) {
            Ok(()) => true,
            Err(outcome) => {
                why_not = telling(why_not, outcome);
                false
            }
        });
        if addresses.is_empty() { Err(why_not) } else { Ok(addresses) }
    }

    /// Whether the policy lets clients reach this address.
    pub fn allows(&self, address: SocketAddr) -> bool {
        self.judge(address).is_ok()
    }

    /// Why clients cannot reach this address now, if they cannot.
    fn judge(&self, address: SocketAddr) -> Result<(), Outcome> {
        match self.policy.judge(address) {
            Verdict::Denied => Err(Outcome::Denied),
            Verdict::Listed => Ok(()),
            // A firewall guards the exit's own services from outside, not from the exit itself.
            Verdict::Allowed => match is_own(address) {
                Ok(false) => Ok(()),
                Ok(true) => Err(Outcome::Denied),
                Err(error) => Err(when_unknown(&error)),
            },
        }
    }
}

/// Opens a connection to the first of these addresses that answers.
pub async fn dial(addresses: Vec<SocketAddr>) -> Result<TcpStream, Outcome> {
    if addresses.is_empty() {
        return Err(Outcome::Unreachable);
    }
    race(addresses, attempt, telling).await.map_err(|outcome| outcome.unwrap_or(Outcome::Silent))
}

/// The outcome when the system does not say whether an address is one of this machine's: never a connection, because clients
/// can use up the descriptors or ports that the question takes.
fn when_unknown(error: &io::Error) -> Outcome {
    /// No descriptor is left, in the system or in this process; the same on all kinds of Unix.
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    let is_used_up = matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
        || matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::OutOfMemory);
    if is_used_up { Outcome::Busy } else { Outcome::Denied }
}

/// Whether an address, or an IPv4 address inside it, is one of this machine's.
fn is_own(to: SocketAddr) -> io::Result<bool> {
    for ip in std::iter::once(to.ip().to_canonical()).chain(embedded(to.ip()).map(IpAddr::from)) {
        if is_bindable(SocketAddr::new(ip, to.port()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an address is one of this machine's: it can then be bound to.
fn is_bindable(to: SocketAddr) -> io::Result<bool> {
    let ip = to.ip();
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => return Ok(false),
        Err(error) => return Err(error),
    }
    // With `ip_nonlocal_bind` any address can be bound to; then the address that the system sends from decides.
    let foreign: IpAddr =
        if ip.is_ipv4() { Ipv4Addr::new(192, 0, 2, 1).into() } else { DOCUMENTATION.into() };
    let binds_all = UdpSocket::bind((foreign, 0)).is_ok();
    Ok(!binds_all || sends_from(to).is_none_or(|from| from == ip))
}

/// An address that no machine has (RFC 3849).
const DOCUMENTATION: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The address from which the system would send there.
fn sends_from(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Sends nothing: it only chooses a route.
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip().to_canonical())
}

/// The outcome that tells more: that a host refused, or that the exit is out of descriptors.
fn telling(one: Outcome, other: Outcome) -> Outcome {
    let rank = |outcome| match outcome {
        Outcome::Refused => 3,
        Outcome::Busy => 2,
        Outcome::Silent => 1,
        _ => 0,
    };
    if rank(other) > rank(one) { other } else { one }
}

async fn attempt(to: SocketAddr) -> Result<TcpStream, Outcome> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(|_| Outcome::Busy)?;
    socket.connect(to).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Outcome::Refused,
        io::ErrorKind::TimedOut => Outcome::Silent,
        _ => Outcome::Unreachable,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    fn ranges(texts: &[&str]) -> Vec<crate::policy::AddressRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// A resolver that gives these answers one after the other, the last one again and again.
    fn answers(each: Vec<Vec<&'static str>>) -> (Resolver, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let resolver: Resolver = Box::new(move |_, port| {
            let turn = count.fetch_add(1, Ordering::Relaxed).min(each.len() - 1);
            let found = each[turn].iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect();
            Box::pin(async move { Ok(found) })
        });
        (resolver, asked)
    }

    async fn resolve(allowed: &[&str], each: Vec<&'static str>) -> Result<Vec<String>, Outcome> {
        let connector = Connector::with_resolver(Policy::new(&ranges(allowed), &[]), answers(vec![each]).0);
        let found =
            connector.resolve(&"name.example:80".parse().unwrap(), &Arc::new(Semaphore::new(1))).await;
        found.map(|found| found.iter().map(|address| address.ip().to_string()).collect())
    }

    /// Row 5 of the proxy's policy: addresses, and names that resolve to them.
    #[tokio::test]
    async fn private_and_metadata_addresses_are_refused_and_so_are_names_for_them() {
        for denied in [
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "127.0.0.1",
            "0.0.0.0",
            "169.254.1.1",
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "::ffff:0:127.0.0.1",
            "2002:a00:1::1",
            "2002:a00:1::",
            "::127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            assert_eq!(resolve(&[], vec![denied]).await, Err(Outcome::Denied), "{denied}");
            let connector = Connector::new(Policy::new(&[], &[]));
            let to = Target::from_host(denied, 80).unwrap();
            assert_eq!(
                connector.resolve(&to, &Arc::new(Semaphore::new(1))).await,
                Err(Outcome::Denied),
                "{denied}"
            );
        }
        // Of a name with both, only the public address is used.
        assert_eq!(resolve(&[], vec!["10.0.0.1", "192.0.2.1", "1.1.1.1"]).await.unwrap(), ["1.1.1.1"]);
        assert_eq!(resolve(&["10.0.0.0/8:80"], vec!["10.0.0.1"]).await.unwrap(), ["10.0.0.1"]);
        assert_eq!(resolve(&["10.0.0.0/8:81"], vec!["10.0.0.1"]).await, Err(Outcome::Denied));
        assert_eq!(resolve(&[], vec![]).await, Err(Outcome::UnknownName));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_nobody_waits_for_any_more_keeps_its_turn() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let silent: Resolver = Box::new(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                sleep(PATIENCE * 4).await;
                Ok(Vec::new())
            })
        });
        let connector = Connector::with_resolver(Policy::default(), silent);
        let (to, lookups) = ("name.example:80".parse().unwrap(), Arc::new(Semaphore::new(1)));
        for _ in 0..3 {
            assert_eq!(connector.resolve(&to, &lookups).await, Err(Outcome::UnknownName));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1, "one at a time");
        sleep(PATIENCE * 2).await;
        assert_eq!(connector.resolve(&to, &lookups).await, Err(Outcome::UnknownName));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn the_address_that_was_checked_is_the_one_that_is_connected_to() {
        // The first answer is allowed and listens; the second, which a rebinding name server would give, is denied and listens, too.
        let allowed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = allowed.local_addr().unwrap().port();
        let rebound = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let (resolver, asked) = answers(vec![vec!["127.0.0.1"], vec!["127.0.0.2"]]);
        let connector = Connector::with_resolver(Policy::new(&ranges(&["127.0.0.1"]), &[]), resolver);
        let to = format!("name.example:{port}").parse().unwrap();
        let connection = connector.connect(&to, &Arc::new(Semaphore::new(1))).await.unwrap();
        assert_eq!(connection.peer_addr().unwrap(), allowed.local_addr().unwrap());
        assert_eq!(asked.load(Ordering::Relaxed), 1, "resolved once for check and connection");
        assert_eq!(connector.connect(&to, &Arc::new(Semaphore::new(1))).await.unwrap_err(), Outcome::Denied);
        drop(rebound);
    }

    #[tokio::test]
    async fn the_exits_own_addresses_are_reached_only_when_they_are_listed() {
        // An address of this machine outside the denied ranges is not to be had everywhere; the check itself is.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let is_own = |to| super::is_own(to).unwrap();
        assert!(is_own(listener.local_addr().unwrap()));
        assert!(is_own("127.9.9.9:1".parse().unwrap()) && is_own("[::ffff:127.0.0.1]:1".parse().unwrap()));
        assert!(!is_own("192.0.2.1:1".parse().unwrap()) && !is_own("[2001:db8::9]:1".parse().unwrap()));
        assert!(is_own("[64:ff9b::127.0.0.1]:1".parse().unwrap()), "behind a translator");
        assert_eq!(sends_from("127.0.0.1:1".parse().unwrap()), Some(Ipv4Addr::LOCALHOST.into()));
    }

    /// The descriptors of this test's program are used up, so it runs in one of its own.
    #[test]
    fn without_descriptors_the_exit_is_busy() {
        const CHILD: &str = "ANABRANCH_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(CHILD).is_none() {
            let name = "exit::connect::tests::without_descriptors_the_exit_is_busy";
            let program = std::env::current_exe().unwrap();
            let line = format!("ulimit -n 32 && exec {program:?} --exact {name} --nocapture");
            let status = std::process::Command::new("sh").args(["-c", &line]).env(CHILD, "1").status();
            return assert!(status.unwrap().success());
        }
        let (connector, public) = (Connector::new(Policy::new(&[], &[])), "8.8.8.8:9".parse().unwrap());
        assert_eq!(connector.judge(public), Ok(()));
        let mut held = Vec::new();
        while let Ok(socket) = UdpSocket::bind("127.0.0.1:0") {
            held.push(socket);
        }
        assert_eq!(connector.judge(public), Err(Outcome::Busy), "with {} sockets", held.len());
    }

    #[tokio::test]
    async fn a_refusing_address_leaves_its_turn_to_the_next_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let closed = SocketAddr::from(([127, 0, 0, 3], port));
        let mut least = Duration::MAX;
        for _ in 0..10 {
            let begin = tokio::time::Instant::now();
            let connection = dial(vec![closed, listener.local_addr().unwrap()]).await.unwrap();
            assert_eq!(connection.peer_addr().unwrap(), listener.local_addr().unwrap());
            least = least.min(begin.elapsed());
        }
        assert!(least < Duration::from_millis(200), "{least:?}");
        assert_eq!(dial(vec![closed]).await.unwrap_err(), Outcome::Refused);
    }
}
