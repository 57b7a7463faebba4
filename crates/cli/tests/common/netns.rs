//! Two machines for a test: network namespaces joined by veth pairs, each pair a link with a rate of its own.
//!
//! ```text
//!   near                        far
//!   path0 10.77.1.1/24 ─── 10.77.1.2/24 path0      tbf at both ends
//!   path1 10.77.2.1/24 ─── 10.77.2.2/24 path1
//! ```
//! Needs root and the `ip`, `tc` and `nft` commands. Names carry the process and a number, so that tests and
//! test programs run side by side; everything goes when the [`Machines`] are dropped, programs still running
//! in them included.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The rates in Mbit/s of the links of [`three_links`].
pub const RATES: [u32; 3] = [50, 30, 20];
/// What they carry of payload in full packets, in Mbit/s.
pub const CEILING: f64 = 94.4;
/// The start, which does not count.
pub const START_S: f64 = 2.0;

/// Machines joined by three links, for one test of a program at a time: what one measures the others would disturb.
/// Says so where they cannot be had.
pub fn three_links(test: &str) -> Option<(Machines, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let machines = Machines::new(&RATES).map_err(|why| super::skip(test, &why)).ok()?;
    Some((machines, turn))
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
    /// Why it cannot be done here, for [`super::skip`].
    pub fn new(rates: &[u32]) -> Result<Self, String> {
        // What tests want only later is missed here already.
        run("nft", "--version")?;
        let machines = Self { near: Namespace::new()?, far: Namespace::new()?, links: rates.len() };
        for (link, rate) in rates.iter().enumerate() {
            machines.join(link)?;
            machines.shape(link, *rate)?;
        }
        Ok(machines)
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

    /// Gives a link another rate.
    ///
    /// # Errors
    /// What `tc` says.
    pub fn shape(&self, link: usize, mbit: u32) -> Result<(), String> {
        for side in [Side::Near, Side::Far] {
            let (namespace, name) = (self.namespace(side).name(), Self::interface(link));
            let shape = format!("root tbf rate {mbit}mbit burst 32kb latency 50ms");
            run("tc", &format!("-n {namespace} qdisc replace dev {name} {shape}"))?;
        }
        Ok(())
    }

    /// Gives both machines default routes over the first two links, as a host with two uplinks has.
    ///
    /// # Errors
    /// What `ip` says.
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

    /// Takes a machine's end of a link down, or up again, as when a cable is pulled: the other end sees it.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn set_link(&self, (side, link): (Side, usize), is_up: bool) -> Result<(), String> {
        let (name, state) = (Self::interface(link), if is_up { "up" } else { "down" });
        run("ip", &format!("-n {} link set {name} {state}", self.namespace(side).name())).map(drop)
    }

    /// Lets everything that comes over the link vanish, in both directions, without a word.
    ///
    /// # Errors
    /// What `nft` says.
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
    /// What `nft` says.
    pub fn restore(&self, link: usize) -> Result<(), String> {
        for side in [Side::Near, Side::Far] {
            succeed(self.namespace(side).command("nft").arg(format!("delete table inet cut{link}")))?;
        }
        Ok(())
    }

    /// Lets nothing from the near machine in at the far one over a link, unless the far one spoke first: what a
    /// firewall or a NAT does.
    ///
    /// # Errors
    /// What `nft` says.
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

    /// Bytes that a machine has sent over a link, as its interface counts them.
    ///
    /// # Errors
    /// When the counter cannot be read.
    pub fn bytes_sent(&self, side: Side, link: usize) -> Result<u64, String> {
        let path = format!("/sys/class/net/{}/statistics/tx_bytes", Self::interface(link));
        let text = succeed(self.namespace(side).command("cat").arg(path))?;
        text.trim().parse().map_err(|error| format!("{text:?}: {error}"))
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

/// A network namespace with nothing but loopback, removed when dropped.
pub struct Namespace(String);

impl Namespace {
    /// Makes one.
    ///
    /// # Errors
    /// Why it cannot be done here: mostly that this is not root.
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
            // What ended meanwhile needs no kill.
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

/// Runs a command with the words of `line`; gives its output.
///
/// # Errors
/// What it says when it fails.
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
