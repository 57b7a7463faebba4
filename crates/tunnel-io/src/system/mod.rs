//! System settings around the device: addresses, routes, rules, DNS, forwarding and NAT.
//!
//! All settings use the commands of an administrator (`ip`, `nft`, `resolvectl`), so an error shows a command line that
//! can be tried by hand. Settings that outlive the device are marked and removed by [`clean`]: rules have their own
//! priorities ([`Slot::priorities`]) and protocol ([`RULE_PROTOCOL`]), each device has one firewall table, and the
//! values of changed settings are in a file (`registry`).
//!
//! The order of the steps ensures that a process killed between two of them leaves no route without a device: the
//! default route is in a separate table and disappears with the device, and the rule for that table comes last.

mod client;
mod dns;
pub mod kill_switch;
mod registry;
mod server;

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use ipnet::IpNet;

use crate::error::TunnelError;

pub use client::ClientSystem;
pub(crate) use client::tunnel_network;
pub use registry::{is_running, is_running_here};
pub use server::{ServerSystem, forwarded_for_all};

/// Protocol number of the tunnel's rules and routes, as a tag.
pub const RULE_PROTOCOL: u32 = 187;
/// Start of the names of firewall tables.
const FIREWALL_TABLE: &str = "anabranch_tunnel_";
/// The routing table of the first tunnel.
const TABLE: u32 = 51_877;
/// Priority of the first rule of the first tunnel.
const PRIORITY: u32 = 5_280;
/// Number of rules for each address family.
const RULES: u32 = 4;

/// A tunnel's place among those of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// Gives this process's tunnel a place, after it has taken back what earlier ones have left.
    pub fn claim(interface: &str) -> Result<Self, TunnelError> {
        clean(interface);
        registry::update(|registry| registry.claim(interface)).map(Self)
    }

    /// Its routing table.
    pub fn table(self) -> u32 {
        TABLE + self.0
    }

    /// The priorities of its rules. No tunnel's rule that leads into a tunnel comes before another's that leads past
    /// it.
    pub fn priorities(self) -> [u32; RULES as usize] {
        [0, 1, 2, 3].map(|rule| PRIORITY + rule * registry::MOST_TUNNELS + self.0)
    }
}

/// Removes all settings of a tunnel that do not disappear with its device, and those of tunnels that were killed. A
/// tunnel of another running process stays.
pub fn clean(interface: &str) {
    if !is_running(interface) {
        // It reports no error: one would only hide the error that led here.
        let _ = take_back(interface, false);
    }
}

/// Like [`clean`], even for a running tunnel if this process runs it.
pub fn clean_after(interface: &str, process: u32) {
    let is_its = registry::runs_in(interface, process);
    if is_its || !is_running(interface) {
        let _ = take_back(interface, is_its);
    }
}

/// Like [`clean`], for a user, who learns of errors.
pub fn clean_up(interface: &str) -> Result<(), TunnelError> {
    take_back(interface, false)
}

fn take_back(interface: &str, even_running: bool) -> Result<(), TunnelError> {
    // This goes on after commands that fail.
    registry::update(|registry| {
        registry.release(interface, even_running);
        let claimed: Vec<u32> =
            registry.here().flat_map(|(_, claim)| Slot(claim.slot).priorities()).collect();
        ["ip -4", "ip -6"].into_iter().for_each(|family| delete_rules(family, &claimed));
        let names: Vec<String> = registry.here().map(|(name, _)| table_name(name)).collect();
        delete_tables(&names);
        Ok(())
    })
}

/// Deletes firewall tables that belong to no running tunnel.
fn delete_tables(claimed: &[String]) {
    let listed = Step::new("nft list tables inet").run().unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.strip_prefix("table inet "));
    for name in names.filter(|name| name.starts_with(FIREWALL_TABLE)) {
        if !claimed.iter().any(|claimed| claimed == name) {
            let _ = Step::new(&format!("nft delete table inet {name}")).run();
        }
    }
}

/// Deletes rules with the tag that belong to no running tunnel.
fn delete_rules(family: &str, claimed: &[u32]) {
    let listed = Step::new(&format!("{family} rule show protocol {RULE_PROTOCOL}")).run().unwrap_or_default();
    for priority in left_rules(&listed, claimed) {
        let _ =
            Step::new(&format!("{family} rule delete priority {priority} protocol {RULE_PROTOCOL}")).run();
    }
}

/// The priorities of listed rules that belong to no running tunnel, the rule that leads into the tunnel first. Some versions
/// of `ip` list all rules, whatever their protocol.
fn left_rules(listed: &str, claimed: &[u32]) -> Vec<u32> {
    let own = PRIORITY..PRIORITY + RULES * registry::MOST_TUNNELS;
    let priorities = listed.lines().filter_map(|line| line.split(':').next()?.parse::<u32>().ok());
    let mut left: Vec<u32> =
        priorities.filter(|priority| own.contains(priority) && !claimed.contains(priority)).collect();
    left.sort_unstable();
    left.reverse();
    left
}

/// Whether new devices take IPv6 addresses. Many administrators turn IPv6 off.
pub fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6").is_ok_and(|off| off.trim() == "0")
}

fn has(addresses: &[IpNet], v6: bool) -> bool {
    addresses.iter().any(|address| address.addr().is_ipv6() == v6)
}

/// Whether the device's firewall table is there, or cannot be looked for.
fn has_table(interface: &str) -> bool {
    is_listed(&table_name(interface))
}

/// Whether a firewall table of this name is there, or cannot be looked for.
fn is_listed(table: &str) -> bool {
    let line = format!("table inet {table}");
    Step::new("nft list tables inet").run().map_or(true, |listed| listed.lines().any(|other| other == line))
}

/// `ip` for the address family of a prefix.
fn ip(prefix: &IpNet) -> &'static str {
    if prefix.addr().is_ipv6() { "ip -6" } else { "ip -4" }
}

fn address_steps(interface: &str, addresses: &[IpNet]) -> Vec<Step> {
    let each = addresses.iter().map(|address| {
        let nodad = if address.addr().is_ipv6() { " nodad" } else { "" };
        Step::new(&format!("{} address replace {address} dev {interface}{nodad}", ip(address)))
    });
    each.chain([Step::new(&format!("ip link set dev {interface} up"))]).collect()
}

/// The name of a device's firewall table. No two devices share one.
fn table_name(interface: &str) -> String {
    let mut name = FIREWALL_TABLE.to_owned();
    for byte in interface.bytes() {
        match byte.is_ascii_alphanumeric() {
            true => name.push(char::from(byte)),
            false => name.push_str(&format!("_{byte:02x}")),
        }
    }
    name
}

/// One change of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Standard input.
    pub input: String,
}

impl Step {
    fn new(line: &str) -> Self {
        Self { command: line.split_whitespace().map(str::to_owned).collect(), input: String::new() }
    }

    fn nft(script: String) -> Self {
        Self { command: vec!["nft".into(), "-f".into(), "-".into()], input: script }
    }

    /// Runs the command.
    pub fn run(&self) -> Result<String, TunnelError> {
        let failed = |output: String| TunnelError::Command { command: self.command.join(" "), output };
        let (program, arguments) = self.command.split_first().ok_or_else(|| failed(String::new()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                failed(format!("{error}; is the package installed that contains `{program}`?"))
            })?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input reports the reason.
            let _ = stdin.write_all(self.input.as_bytes());
        }
        let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_with_similar_names_have_tables_of_their_own() {
        let names = ["a-b", "a_b", "a.b", "ab", "a_2db"].map(table_name);
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!((names[0].as_str(), different.len()), ("anabranch_tunnel_a_2db", 5));
    }

    #[test]
    fn only_rules_of_tunnels_that_do_not_run_are_deleted() {
        let [first, second] = [Slot(0), Slot(1)].map(|slot| slot.priorities());
        let all = [&[0, 5_000, 32_766][..], &first, &second].concat();
        let lines: Vec<String> =
            all.iter().map(|priority| format!("{priority}:\tfrom all lookup main")).collect();
        let mut left = first;
        left.reverse();
        assert_eq!(left_rules(&lines.join("\n"), &second), left);
    }

    #[test]
    fn a_command_that_fails_is_shown_with_its_output() {
        let error = Step::new("ip link set dev no-such-device-9 up").run().unwrap_err().to_string();
        assert!(error.contains("ip link set dev no-such-device-9 up"), "{error}");
        let error = Step::new("no-such-program-of-ours").run().unwrap_err().to_string();
        assert!(error.contains("installed"), "{error}");
    }
}
