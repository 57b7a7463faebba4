//! The process that owns the firewall's rules.
//!
//! An interactive `nft` reads changes from a pipe of this program and owns their table (`flags owner`). When this program ends,
//! however it ends, the pipe closes, `nft` ends, and the kernel removes the table. No other program can delete it meanwhile. A
//! shell around `nft` adds and removes the routing rule that [`Method::Tproxy`](super::Method) needs.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use anabranch_net::interfaces::{RouteWatch, local_addresses};
use anabranch_node::Grants;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::time::timeout;

use super::rules::{Direct, Rules, TABLE};
use super::{Redirection, networks};

/// How long `nft` may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the rest of an error message may take.
const REST: Duration = Duration::from_millis(100);
/// How often and how long the end of `nft` is waited for.
const LOOKS: u32 = 400;
const LOOK: Duration = Duration::from_millis(5);

/// Why connections are not led through the proxy.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// The rules need root.
    #[error("redirecting connections needs root")]
    NotRoot,
    /// The command is missing.
    #[error("the command `nft` is not installed")]
    NoNft,
    /// Another program has the table.
    #[error("another proxy redirects the connections of this machine (firewall table {TABLE})")]
    Taken,
    /// The exit's own connections would be redirected.
    #[error("the exit runs on this machine, so its connections would come back to the proxy")]
    ExitHere,
    /// The kernel or `nft` does not know a rule.
    #[error("the firewall does not take the rules: {0}")]
    Unsupported(String),
    /// The rules are gone.
    #[error("the process that holds the firewall's rules ended, so connections are direct again{0}")]
    Gone(String),
    /// The system's error.
    #[error("the firewall's rules could not be set: {0}")]
    Io(io::Error),
}

impl From<io::Error> for RedirectError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::PermissionDenied { Self::NotRoot } else { Self::Io(error) }
    }
}

/// The rules, in force or not yet.
#[derive(Debug)]
pub(crate) struct Keeper {
    rules: Rules,
    /// The exit and relays as the user named them.
    nodes: Vec<IpAddr>,
    watch: RouteWatch,
}

impl Keeper {
    /// Makes sure that rules for this port can be set.
    pub(crate) async fn prepare(redirection: &Redirection, port: u16) -> Result<Self, RedirectError> {
        let rules = Rules { method: redirection.method, port, forwarded: redirection.forwarded.clone() };
        let watch = RouteWatch::start().await?;
        let keeper = Self { rules, nodes: redirection.nodes.clone(), watch };
        keeper.check().await?;
        Ok(keeper)
    }

    /// Has the kernel check the rules without setting them.
    async fn check(&self) -> Result<(), RedirectError> {
        let mut nft = Command::new("nft");
        nft.env("PATH", search_path());
        nft.args(["-c", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = nft.kill_on_drop(true).spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RedirectError::NoNft,
            _ => error.into(),
        })?;
        if let Some(mut input) = child.stdin.take() {
            // An `nft` that does not read its input reports the reason.
            let _ = input.write_all(self.table(&self.direct(&BTreeSet::new())).as_bytes()).await;
        }
        let output = timeout(PATIENCE, child.wait_with_output()).await.map_err(|_| slow())??;
        match output.status.success() {
            true => Ok(()),
            false => Err(reason(&String::from_utf8_lossy(&output.stderr))),
        }
    }

    fn table(&self, direct: &Direct) -> String {
        self.rules.table(direct) + "\n"
    }

    /// The destinations that stay direct while controllers grant the relays at these hosts.
    fn direct(&self, granted: &BTreeSet<IpAddr>) -> Direct {
        let nodes = self.nodes.iter().chain(granted).map(IpAddr::to_canonical).collect();
        Direct { nodes, networks: networks(&self.watch.current()) }
    }

    /// Sets the rules for an exit at these addresses. They are in force until the result is dropped or this program
    /// ends.
    pub(crate) async fn set(&self, exit: &[IpAddr], grants: Grants) -> Result<InForce<'_>, RedirectError> {
        let own = local_addresses().await?;
        if exit.iter().any(|exit| exit.is_loopback() || own.iter().any(|own| own.address == *exit)) {
            return Err(RedirectError::ExitHere);
        }
        // The pipe alone ends it: signals may reach all programs of a terminal or a service.
        let script = format!("trap '' INT TERM HUP; {}", self.rules.command());
        let mut shell = Command::new("sh");
        // An interactive `nft` keeps a history in the home directory.
        shell.args(["-c", &script]).process_group(0).env("HOME", "/dev/null").env("PATH", search_path());
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(RedirectError::Gone(String::new()));
        };
        let (output, errors) = (BufReader::new(output).lines(), BufReader::new(errors).lines());
        let granted = grants.hosts();
        let direct = self.direct(&granted);
        let mut rules =
            InForce { keeper: self, grants, granted, direct, child, input: Some(input), output, errors };
        let table = self.table(&rules.direct);
        rules.write(&format!("{table}list tables inet\n")).await?;
        let InForce { output, errors, .. } = &mut rules;
        let is_set = async {
            while let Some(line) = output.next_line().await? {
                if line.split_whitespace().eq(["table", "inet", TABLE]) {
                    return Ok(());
                }
            }
            Err(RedirectError::Gone(String::new()))
        };
        let set = tokio::select! {
            biased;
            line = errors.next_line() => Err(line?.unwrap_or_default()),
            set = timeout(PATIENCE, is_set) => Ok(set.map_err(|_| slow())?),
        };
        match set {
            Ok(set) => set.map(|()| rules),
            Err(first) => Err(reason(&rules.rest(first).await)),
        }
    }
}

/// Rules that are in force.
#[derive(Debug)]
pub(crate) struct InForce<'a> {
    keeper: &'a Keeper,
    grants: Grants,
    granted: BTreeSet<IpAddr>,
    /// The destinations that the rules leave direct.
    direct: Direct,
    child: Child,
    input: Option<ChildStdin>,
    /// Read to the end: an `nft` that shows a prompt would block or die if no one did.
    output: Lines<BufReader<tokio::process::ChildStdout>>,
    errors: Lines<BufReader<ChildStderr>>,
}

impl InForce<'_> {
    /// Follows the networks of this machine and granted relays until the rules are gone; returns why.
    pub(crate) async fn follow(mut self) -> RedirectError {
        let mut changes = self.keeper.watch.subscribe();
        loop {
            tokio::select! {
                line = self.errors.next_line() => match line {
                    Ok(Some(line)) => tracing::warn!(line, "nft"),
                    _ => return RedirectError::Gone(String::new()),
                },
                Ok(Some(_)) = self.output.next_line() => {}
                Ok(()) = changes.changed() => {}
                granted = self.grants.hosts_changed(&self.granted) => self.granted = granted,
            }
            let now = self.keeper.direct(&self.granted);
            if now != self.direct
                && let Err(error) = self.write(&(now.update() + "\n")).await
            {
                return RedirectError::Gone(format!(": {error}"));
            }
            self.direct = now;
        }
    }

    async fn write(&mut self, lines: &str) -> io::Result<()> {
        match &mut self.input {
            Some(input) => input.write_all(lines.as_bytes()).await,
            None => Ok(()),
        }
    }

    /// The rest of an error message.
    async fn rest(&mut self, first: String) -> String {
        let mut text = first;
        while let Ok(Ok(Some(line))) = timeout(REST, self.errors.next_line()).await {
            text.push('\n');
            text.push_str(&line);
        }
        text
    }
}

impl Drop for InForce<'_> {
    /// The rules are gone when this returns.
    fn drop(&mut self) {
        drop(self.input.take());
        for _ in 0..LOOKS {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(LOOK),
                _ => return,
            }
        }
    }
}

/// The families whose packets this machine forwards, as the firewall names them.
pub fn forwarded() -> Vec<&'static str> {
    let is_on = |setting: &str| {
        fs::read_to_string(format!("/proc/sys/net/{setting}")).is_ok_and(|value| value.trim() == "1")
    };
    let families = [("ipv4", "ipv4/ip_forward"), ("ipv6", "ipv6/conf/all/forwarding")];
    families.into_iter().filter(|(_, setting)| is_on(setting)).map(|(family, _)| family).collect()
}

/// Where commands are looked for: users often lack the folders of an administrator's commands.
fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

fn slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "`nft` does not answer")
}

/// Reads the reason from a message of `nft`.
fn reason(message: &str) -> RedirectError {
    if message.contains("you must be root") || message.contains("cache initialization failed") {
        RedirectError::NotRoot
    } else if ["Could not process rule: Operation not permitted", "RTNETLINK answers: File exists"]
        .iter()
        .any(|of_another| message.contains(of_another))
    {
        RedirectError::Taken
    } else {
        // The other lines repeat the rules, which are long.
        let first = message.lines().find(|line| !line.trim().is_empty());
        RedirectError::Unsupported(first.unwrap_or("no reason given").trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_nft_are_understood() {
        let not_root = reason("netlink: Error: cache initialization failed: Operation not permitted\n");
        assert!(matches!(not_root, RedirectError::NotRoot), "{not_root}");
        let taken = reason("/dev/stdin:1:1-9: Error: Could not process rule: Operation not permitted\n");
        assert!(matches!(taken, RedirectError::Taken), "{taken}");
        let has_route = reason("RTNETLINK answers: File exists\n");
        assert!(matches!(has_route, RedirectError::Taken), "{has_route}");
        let unsupported = reason("\nError: syntax error, unexpected string\ntable inet\n      ^^^^\n");
        assert!(unsupported.to_string().ends_with("syntax error, unexpected string"), "{unsupported}");
    }
}
