//! System settings around the device: addresses, routes, rules, DNS, forwarding and NAT.
//!
//! All settings use the commands of an administrator (`ip`, `nft`, `resolvectl`), so an error shows a command line that
//! can be tried by hand. Settings that outlive the device are marked and removed by [`clean`]: rules have their own
//! priority ([`RULE_PRIORITY`]) and protocol ([`RULE_PROTOCOL`]), each device has one firewall table, and the values of
//! changed settings are in a file below `/var/lib/anabranch`, which survives a power cut.
//!
//! The order of the steps ensures that a process killed between two of them leaves no route without a device: the
//! default route is in a separate table and disappears with the device, and the rule for that table comes last.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::TunnelError;

/// The routing table of the tunnel's routes.
pub const TABLE: u32 = 51_877;
/// Priority of the first of the tunnel's rules; the next two numbers are used as well.
pub const RULE_PRIORITY: u32 = 5_270;
/// Number of rules for each address family.
const RULES: u32 = 3;
/// Protocol number of the tunnel's rules and routes, as a tag.
pub const RULE_PROTOCOL: u32 = 187;
/// The firewall table of the kill switch: one name, so that any later run finds it.
pub const KILL_SWITCH: &str = "anabranch_kill_switch";
/// The directory for the previous values of changed settings.
const STATE: &str = "/var/lib/anabranch";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const MANAGED: &str = "# written by anabranch tunnel; the original is restored when the tunnel ends\n";

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
    ///
    /// # Errors
    /// [`TunnelError::Command`] with the command's output.
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

/// System settings of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSystem {
    /// The device.
    pub interface: String,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Destinations that go through the tunnel.
    pub routes: Vec<IpNet>,
    /// Name servers, reached through the tunnel.
    pub dns: Vec<IpAddr>,
    /// UDP port of the tunnel's own packets, which stay outside.
    pub udp_port: u16,
    /// Port of the listener for TCP connections in the stream lane.
    pub stream_port: Option<u16>,
}

/// System settings of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSystem {
    /// The device.
    pub interface: String,
    /// Its addresses, with the length of the clients' networks.
    pub addresses: Vec<IpNet>,
    /// Networks behind clients.
    pub behind: Vec<IpNet>,
    /// Clients leave for other networks under the server's addresses.
    pub exit: bool,
}

fn has(addresses: &[IpNet], v6: bool) -> bool {
    addresses.iter().any(|address| address.addr().is_ipv6() == v6)
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

impl ClientSystem {
    /// The steps, in order.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let interface = &self.interface;
        let mut steps = address_steps(interface, &self.addresses);
        for route in &self.routes {
            if has(&self.addresses, route.addr().is_ipv6()) {
                steps.push(Step::new(&format!(
                    "{} route replace {route} dev {interface} table {TABLE} proto {RULE_PROTOCOL}",
                    ip(route)
                )));
            }
        }
        if let Some(port) = self.stream_port {
            steps.push(Step::nft(redirect_script(interface, port)));
        }
        steps.extend(self.rules());
        steps
    }

    /// The rules that lead into the tunnel. They come after rules for the tunnel's own packets, identified by their
    /// port, and for routes with longer prefixes than a default route: a local network stays local.
    #[must_use]
    pub fn rules(&self) -> Vec<Step> {
        let families = [("ip -4", has(&self.addresses, false)), ("ip -6", has(&self.addresses, true))];
        let families = families.into_iter().filter(|(_, wanted)| *wanted).map(|(family, _)| family);
        let lookups = [
            format!("ipproto udp sport {} lookup main", self.udp_port),
            "lookup main suppress_prefixlength 0".to_owned(),
            format!("lookup {TABLE}"),
        ];
        let line = |family: &str, (index, lookup): (u32, &String)| {
            format!("{family} rule add {lookup} priority {} protocol {RULE_PROTOCOL}", RULE_PRIORITY + index)
        };
        families
            .flat_map(|family| (0..).zip(&lookups).map(move |rule| Step::new(&line(family, rule))))
            .collect()
    }

    /// Applies all steps.
    ///
    /// # Errors
    /// The error of the first step that fails; [`clean`] undoes those before it.
    pub fn apply(&self) -> Result<(), TunnelError> {
        self.steps().iter().try_for_each(|step| step.run().map(drop))?;
        if self.dns.is_empty() { Ok(()) } else { set_dns(&self.interface, &self.dns) }
    }
}

/// Local programs' TCP connections that would leave through the device, and forwarded ones, go to the listener.
fn redirect_script(interface: &str, port: u16) -> String {
    let table = table_name(interface);
    // A machine that forwards nothing must not become a gateway for its neighbours.
    let forwards =
        fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|setting| setting.trim() == "1");
    let neighbours = if forwards {
        format!(
            "\tchain prerouting {{\n\
             \t\ttype nat hook prerouting priority -100; policy accept;\n\
             \t\tiifname != \"{interface}\" fib daddr oifname \"{interface}\" meta l4proto tcp redirect to :{port}\n\
             \t}}\n"
        )
    } else {
        String::new()
    };
    format!(
        "table inet {table} {{\n\
         \tchain output {{\n\
         \t\ttype nat hook output priority -100; policy accept;\n\
         \t\toifname \"{interface}\" meta l4proto tcp redirect to :{port}\n\
         \t}}\n\
         {neighbours}\
         }}\n"
    )
}

fn kill_switch_script(interface: &str, udp_port: u16) -> String {
    format!(
        "add table inet {KILL_SWITCH}\n\
         delete table inet {KILL_SWITCH}\n\
         table inet {KILL_SWITCH} {{\n\
         \tchain output {{\n\
         \t\ttype filter hook output priority 0; policy drop;\n\
         \t\toifname \"lo\" accept\n\
         \t\toifname \"{interface}\" accept\n\
         \t\tudp sport {udp_port} accept\n\
         \t\tudp dport {{ 67, 547 }} accept\n\
         \t\ticmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} accept\n\
         \t}}\n\
         \tchain forward {{\n\
         \t\ttype filter hook forward priority 0; policy drop;\n\
         \t\toifname \"{interface}\" accept\n\
         \t\tiifname \"{interface}\" accept\n\
         \t}}\n\
         }}\n"
    )
}

impl ServerSystem {
    /// The steps, in order.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let interface = &self.interface;
        let mut steps = address_steps(interface, &self.addresses);
        for network in &self.behind {
            steps.push(Step::new(&format!(
                "{} route replace {network} dev {interface} proto {RULE_PROTOCOL}",
                ip(network)
            )));
        }
        if self.exit {
            steps.push(Step::nft(self.masquerade_script()));
        }
        steps
    }

    fn masquerade_script(&self) -> String {
        let interface = &self.interface;
        let mut lines = String::new();
        for address in &self.addresses {
            let (family, network) = (if address.addr().is_ipv6() { "ip6" } else { "ip" }, address.trunc());
            let _ = writeln!(lines, "\t\t{family} saddr {network} oifname != \"{interface}\" masquerade");
        }
        format!(
            "table inet {} {{\n\
             \tchain postrouting {{\n\
             \t\ttype nat hook postrouting priority 100; policy accept;\n\
             {lines}\
             \t}}\n\
             }}\n",
            table_name(interface)
        )
    }

    /// Applies all steps.
    ///
    /// # Errors
    /// The error of the first step that fails; [`clean`] undoes those before it.
    pub fn apply(&self) -> Result<(), TunnelError> {
        if self.exit {
            let mut settings = vec!["net/ipv4/ip_forward"];
            if has(&self.addresses, true) {
                settings.push("net/ipv6/conf/all/forwarding");
            }
            let mut state = State::load(&self.interface);
            for setting in settings {
                state.set(setting, "1", &self.interface)?;
            }
        }
        self.steps().iter().try_for_each(|step| step.run().map(drop))
    }
}

/// The name of a device's firewall table.
fn table_name(interface: &str) -> String {
    let plain = interface.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' });
    format!("anabranch_tunnel_{}", plain.collect::<String>())
}

/// Previous settings of the system.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// Below `/proc/sys`, with the value before.
    settings: Vec<(String, String)>,
    /// The contents of `/etc/resolv.conf` before.
    resolv_conf: Option<String>,
}

impl State {
    fn file(interface: &str) -> PathBuf {
        Path::new(STATE).join(format!("tunnel-{interface}.json"))
    }

    fn load(interface: &str) -> Self {
        let text = fs::read_to_string(Self::file(interface)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Written before the change that it remembers.
    fn save(&self, interface: &str) -> Result<(), TunnelError> {
        let file = Self::file(interface);
        let failed = |error| TunnelError::File { file: file.display().to_string(), error };
        fs::create_dir_all(STATE).map_err(failed)?;
        let part = file.with_extension("part");
        fs::write(&part, serde_json::to_vec(self).unwrap_or_default()).map_err(failed)?;
        fs::rename(&part, &file).map_err(failed)
    }

    fn set(&mut self, setting: &str, value: &str, interface: &str) -> Result<(), TunnelError> {
        let file = Path::new("/proc/sys").join(setting);
        let failed = |error| TunnelError::File { file: file.display().to_string(), error };
        let before = fs::read_to_string(&file).map_err(failed)?;
        if before.trim() == value {
            return Ok(());
        }
        if !self.settings.iter().any(|(known, _)| known == setting) {
            self.settings.push((setting.to_owned(), before.trim().to_owned()));
            self.save(interface)?;
        }
        fs::write(&file, value).map_err(failed)
    }
}

/// Sends the system's name queries to these servers: for this link only with systemd-resolved, which forgets them with the link; otherwise by
/// rewriting `/etc/resolv.conf`.
fn set_dns(interface: &str, servers: &[IpAddr]) -> Result<(), TunnelError> {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    let resolved = [
        Step::new(&format!("resolvectl dns {interface} {}", servers.join(" "))),
        Step::new(&format!("resolvectl domain {interface} ~.")),
        Step::new(&format!("resolvectl default-route {interface} yes")),
    ];
    if resolved.iter().try_for_each(|step| step.run().map(drop)).is_ok() {
        return Ok(());
    }
    let failed = |error| TunnelError::File { file: RESOLV_CONF.to_owned(), error };
    let before = fs::read_to_string(RESOLV_CONF).map_err(failed)?;
    let mut state = State::load(interface);
    if !before.starts_with(MANAGED) {
        state.resolv_conf = Some(before);
        state.save(interface)?;
    }
    let lines: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    // The file itself is written, not replaced: it may be a mount or a link.
    fs::write(RESOLV_CONF, format!("{MANAGED}{lines}")).map_err(failed)
}

/// Removes all settings of a device that do not disappear with it, if there are any.
pub fn clean(interface: &str) {
    for family in ["ip -4", "ip -6"] {
        for priority in (RULE_PRIORITY..RULE_PRIORITY + RULES).rev() {
            // Each call deletes one rule; more than one is there after a run that was killed.
            let delete =
                Step::new(&format!("{family} rule delete priority {priority} protocol {RULE_PROTOCOL}"));
            let mut left = 16;
            while left > 0 && delete.run().is_ok() {
                left -= 1;
            }
        }
    }
    let table = table_name(interface);
    let _ = Step::new(&format!("nft delete table inet {table}")).run();
    let state = State::load(interface);
    for (setting, value) in &state.settings {
        let _ = fs::write(Path::new("/proc/sys").join(setting), value);
    }
    if let Some(before) = &state.resolv_conf
        && fs::read_to_string(RESOLV_CONF).is_ok_and(|now| now.starts_with(MANAGED))
    {
        let _ = fs::write(RESOLV_CONF, before);
    }
    let _ = fs::remove_file(State::file(interface));
    // Others may have files there.
    let _ = fs::remove_dir(STATE);
}

/// Allows only the tunnel's own packets to be sent outside the tunnel. Replaces an earlier kill switch.
///
/// # Errors
/// [`TunnelError::Command`].
pub fn close_kill_switch(interface: &str, udp_port: u16) -> Result<(), TunnelError> {
    Step::nft(kill_switch_script(interface, udp_port)).run().map(drop)
}

/// Removes the kill switch; called only at the user's request.
pub fn open_kill_switch() {
    let _ = Step::new(&format!("nft delete table inet {KILL_SWITCH}")).run();
}

/// Whether all rules of each family are there.
#[must_use]
pub fn rules_are_there(system: &ClientSystem) -> bool {
    let families = [("ip -4", has(&system.addresses, false)), ("ip -6", has(&system.addresses, true))];
    families.into_iter().filter(|(_, wanted)| *wanted).all(|(family, _)| {
        let listed =
            Step::new(&format!("{family} rule show protocol {RULE_PROTOCOL}")).run().unwrap_or_default();
        (RULE_PRIORITY..RULE_PRIORITY + RULES)
            .all(|priority| listed.lines().any(|line| line.starts_with(&format!("{priority}:"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> ClientSystem {
        ClientSystem {
            interface: "anabranch0".into(),
            addresses: vec!["10.77.0.2/24".parse().unwrap()],
            routes: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
            dns: vec![],
            udp_port: 4434,
            stream_port: Some(4000),
        }
    }

    #[test]
    fn the_rule_into_the_tunnel_comes_last_and_has_the_tag() {
        let lines: Vec<String> = client().steps().iter().map(|step| step.command.join(" ")).collect();
        assert!(lines[0].contains("address replace 10.77.0.2/24 dev anabranch0"), "{lines:#?}");
        assert!(lines.last().unwrap().contains(&format!("lookup {TABLE} priority 5272 protocol 187")));
        assert!(!lines.iter().any(|line| line.contains("-6")), "no IPv6 without an address of it");
    }

    #[test]
    fn the_server_masquerades_its_clients_and_nothing_else() {
        let server = ServerSystem {
            interface: "anabranch0".into(),
            addresses: vec!["10.77.0.1/24".parse().unwrap(), "fd77::1/64".parse().unwrap()],
            behind: vec!["192.168.50.0/24".parse().unwrap()],
            exit: true,
        };
        let steps = server.steps();
        let script = &steps.last().unwrap().input;
        assert!(script.contains("ip saddr 10.77.0.0/24 oifname != \"anabranch0\" masquerade"), "{script}");
        assert!(script.contains("ip6 saddr fd77::/64"), "{script}");
        assert!(steps.iter().any(|step| step.command.join(" ").contains("route replace 192.168.50.0/24")));
    }

    #[test]
    fn a_command_that_fails_is_shown_with_its_output() {
        let error = Step::new("ip link set dev no-such-device-9 up").run().unwrap_err().to_string();
        assert!(error.contains("ip link set dev no-such-device-9 up"), "{error}");
        let error = Step::new("no-such-program-of-ours").run().unwrap_err().to_string();
        assert!(error.contains("installed"), "{error}");
    }
}
