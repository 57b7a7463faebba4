//! Two machines for a test: network namespaces joined by veth pairs, each pair a link with its own rate.
//!
//! ```text
//!   near                        far
//!   path0 10.77.1.1/24 ─── 10.77.1.2/24 path0      tbf at both ends
//!   path1 10.77.2.1/24 ─── 10.77.2.2/24 path1
//! ```
//! Needs root and the `ip`, `tc` and `nft` commands. Names contain the process id and a number, so tests and test
//! programs can run in parallel. Dropping [`Machines`] removes everything and kills the programs still running in them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::sleep;
use std::time::Duration;

/// The rates in Mbit/s of the links of [`three_links`].
pub const RATES: [u32; 3] = [50, 30, 20];
/// Payload capacity of all three links with full packets, in Mbit/s.
pub const CEILING: f64 = 94.4;
/// Start-up time that measurements leave out.
pub const START_S: f64 = 2.0;

/// Tests that measure rates or gaps run alone, the others beside each other.
static TURN: RwLock<()> = RwLock::new(());

/// Machines joined by three links, for a measurement. Reports a skipped test where namespaces are unavailable.
pub fn three_links(test: &str) -> Option<(Machines, RwLockWriteGuard<'static, ()>)> {
    let turn = TURN.write().unwrap_or_else(PoisonError::into_inner);
    machines(test).map(|machines| (machines, turn))
}

/// As [`three_links`], for tests that measure nothing.
pub fn three_links_shared(test: &str) -> Option<(Machines, RwLockReadGuard<'static, ()>)> {
    let turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    machines(test).map(|machines| (machines, turn))
}

fn machines(test: &str) -> Option<Machines> {
    Machines::new(&RATES).map_err(|why| super::skip(test, &why)).ok()
}

/// A user without any privilege, for [`Machines::command_as_nobody`].
const NOBODY: &str = "65534";

/// One of the two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Near,
    Far,
}

/// Two network namespaces and the links between them.
pub struct Machines {
    near: Namespace,
    far: Namespace,
    links: usize,
}

impl Machines {
    /// Two machines joined by one link for each rate, in Mbit/s, each shaped by `tbf` with a burst of 32 kB and
    /// a queue of 50 ms.
    ///
    /// # Errors
    /// The reason it is impossible here, for [`super::skip`].
    pub fn new(rates: &[u32]) -> Result<Self, String> {
        // Check early for the tools that tests need later.
        run("nft", "--version")?;
        let machines = Self { near: Namespace::new()?, far: Namespace::new()?, links: rates.len() };
        for (link, rate) in rates.iter().enumerate() {
            machines.join(link)?;
            machines.shape(link, *rate)?;
        }
        machines.wait_for_links()?;
        Ok(machines)
    }

    /// Waits until the kernel reports every link as up: a busy machine notices this up to a second later.
    fn wait_for_links(&self) -> Result<(), String> {
        for side in [Side::Near, Side::Far] {
            for _ in 0..250 {
                let shown = run("ip", &format!("-n {} -br link show up", self.namespace(side).name()))?;
                if shown.matches(" UP ").count() == self.links {
                    break;
                }
                sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    fn join(&self, link: usize) -> Result<(), String> {
        let name = Self::interface(link);
        let far = self.far.name();
        run(
            "ip",
            &format!("-n {} link add {name} type veth peer name {name} netns {far}", self.near.name()),
        )?;
        for side in [Side::Near, Side::Far] {
            let (namespace, address) = (self.namespace(side).name(), self.address(side, link));
            run("ip", &format!("-n {namespace} address add {address}/24 dev {name}"))?;
            run("ip", &format!("-n {namespace} link set {name} up"))?;
        }
        Ok(())
    }

    /// Changes the rate of a link.
    ///
    /// # Errors
    /// The error of `tc`.
    pub fn shape(&self, link: usize, mbit: u32) -> Result<(), String> {
        for side in [Side::Near, Side::Far] {
            let (namespace, name) = (self.namespace(side).name(), Self::interface(link));
            let shape = format!("root tbf rate {mbit}mbit burst 32kb latency 50ms");
            run("tc", &format!("-n {namespace} qdisc replace dev {name} {shape}"))?;
        }
        Ok(())
    }

    /// Adds default routes over the first two links on both machines, as on a host with two uplinks.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn add_two_default_routes(&self) -> Result<(), String> {
        for (side, other) in [(Side::Near, Side::Far), (Side::Far, Side::Near)] {
            for link in 0..self.links.min(2) {
                let (namespace, name) = (self.namespace(side).name(), Self::interface(link));
                let (gateway, metric) = (self.address(other, link), 100 + link);
                let route = format!("default via {gateway} dev {name} metric {metric}");
                run("ip", &format!("-n {namespace} route add {route}"))?;
            }
        }
        Ok(())
    }

    /// Takes a machine's end of a link down or up, like a pulled cable: the other end notices.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn set_link(&self, (side, link): (Side, usize), is_up: bool) -> Result<(), String> {
        let (name, state) = (Self::interface(link), if is_up { "up" } else { "down" });
        run("ip", &format!("-n {} link set {name} {state}", self.namespace(side).name())).map(drop)
    }

    /// Removes a link and its interfaces, as if they were unplugged.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn unplug(&self, link: usize) -> Result<(), String> {
        run("ip", &format!("-n {} link delete {}", self.near.name(), Self::interface(link))).map(drop)
    }

    /// Adds the link again after [`Self::unplug`], with this rate in Mbit/s.
    ///
    /// # Errors
    /// The error of `ip` or `tc`.
    pub fn plug(&self, link: usize, mbit: u32) -> Result<(), String> {
        self.join(link)?;
        self.shape(link, mbit)
    }

    /// Silently drops all packets on the link, in both directions.
    ///
    /// # Errors
    /// The error of `nft`.
    pub fn blackhole(&self, link: usize) -> Result<(), String> {
        for side in [Side::Near, Side::Far] {
            let rules = format!(
                "add table inet cut{link}; \
                 add chain inet cut{link} input {{ type filter hook input priority 0; }}; \
                 add rule inet cut{link} input iifname {} drop",
                Self::interface(link)
            );
            succeed(self.namespace(side).command("nft").arg(rules))?;
        }
        Ok(())
    }

    /// Ends a [`Self::blackhole`].
    ///
    /// # Errors
    /// The error of `nft`.
    pub fn restore(&self, link: usize) -> Result<(), String> {
        for side in [Side::Near, Side::Far] {
            succeed(self.namespace(side).command("nft").arg(format!("delete table inet cut{link}")))?;
        }
        Ok(())
    }

    /// Blocks packets from the near machine on a link unless the far one sent first, like a firewall or a NAT.
    ///
    /// # Errors
    /// The error of `nft`.
    pub fn wall(&self, link: usize) -> Result<(), String> {
        let rules = format!(
            "add table inet wall{link}; \
             add chain inet wall{link} input {{ type filter hook input priority 0; }}; \
             add rule inet wall{link} input iifname {} meta l4proto udp ct state new drop",
            Self::interface(link)
        );
        succeed(self.namespace(Side::Far).command("nft").arg(rules))?;
        Ok(())
    }

    /// The name of a link's interface, the same on both machines.
    pub fn interface(link: usize) -> String {
        format!("path{link}")
    }

    /// The address that a machine has on a link.
    pub fn address(&self, side: Side, link: usize) -> IpAddr {
        let host = if side == Side::Near { 1 } else { 2 };
        let net = u8::try_from(link + 1).expect("a handful of links");
        Ipv4Addr::new(10, 77, net, host).into()
    }

    /// A command that runs on a machine, as root.
    pub fn command(&self, side: Side, program: &str) -> Command {
        self.namespace(side).command(program)
    }

    /// A command that runs on a machine without root and without capabilities.
    pub fn command_as_nobody(&self, side: Side, program: &str) -> Command {
        let mut command = self.namespace(side).command("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs", program]);
        command
    }

    /// Bytes that a machine has sent over a link, by its interface's counter.
    ///
    /// # Errors
    /// When the counter cannot be read.
    pub fn bytes_sent(&self, side: Side, link: usize) -> Result<u64, String> {
        let path = format!("/sys/class/net/{}/statistics/tx_bytes", Self::interface(link));
        let text = succeed(self.namespace(side).command("cat").arg(path))?;
        text.trim().parse().map_err(|error| format!("{text:?}: {error}"))
    }

    /// The name of a machine's namespace.
    pub fn namespace_name(&self, side: Side) -> &str {
        self.namespace(side).name()
    }

    fn namespace(&self, side: Side) -> &Namespace {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }
}

impl fmt::Debug for Machines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machines({}, {}, {} links)", self.near.name(), self.far.name(), self.links)
    }
}

/// A network namespace with only loopback, removed when dropped.
pub struct Namespace(String);

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Errors
    /// The reason it is impossible here: usually, the test does not run as root.
    pub fn new() -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("anabranch-test-{}-{number}", std::process::id());
        run("ip", &format!("netns add {name}"))?;
        let namespace = Self(name);
        run("ip", &format!("-n {} link set lo up", namespace.name()))?;
        Ok(namespace)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// A command that runs in it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }

    /// Kills every process in it.
    fn kill_all(&self) {
        let pids = run("ip", &format!("netns pids {}", self.0)).unwrap_or_default();
        if !pids.trim().is_empty() {
            // A process may have exited meanwhile.
            let _ = run("kill", &format!("-9 {}", pids.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.kill_all();
        if let Err(error) = run("ip", &format!("netns delete {}", self.0)) {
            super::skip("removal of a namespace", &error);
        }
    }
}

/// Runs a command with the words of `line`; returns its output.
///
/// # Errors
/// Its error output when it fails.
pub fn run(program: &str, line: &str) -> Result<String, String> {
    succeed(Command::new(program).args(line.split_whitespace()))
}

fn succeed(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
