//! System settings of the server.

use std::fmt::Write as _;
use std::fs;

use ipnet::IpNet;

use super::{RULE_PROTOCOL, Step, address_steps, has, has_table, ip, registry, table_name};
use crate::error::TunnelError;

/// Most connections of a client that pass the exit as packets at the same time. The kernel walks a list of them for each
/// new one.
const MOST_CONNECTIONS: u32 = 8192;
/// The kernel's settings that turn forwarding on.
const FORWARDING_V4: &str = "net/ipv4/ip_forward";
const FORWARDING_V6: &str = "net/ipv6/conf/all/forwarding";

/// System settings of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSystem {
    /// The device.
    pub interface: String,
    /// Its addresses, with the length of the clients' networks.
    pub addresses: Vec<IpNet>,
    /// Networks behind clients.
    pub behind: Vec<IpNet>,
    /// This machine forwards between clients and other networks.
    pub forwards: bool,
    /// Clients leave for other networks under the server's addresses.
    pub exit: bool,
}

impl ServerSystem {
    /// The steps before the firewall's, in order.
    pub fn steps(&self) -> Vec<Step> {
        let interface = &self.interface;
        let mut steps = address_steps(interface, &self.addresses);
        for network in self.behind.iter().map(IpNet::trunc) {
            steps.push(Step::new(&format!(
                "{} route replace {network} dev {interface} proto {RULE_PROTOCOL}",
                ip(&network)
            )));
        }
        steps
    }

    /// Lets clients out under this machine's addresses. One must not fill the kernel's table of connections for all.
    fn masquerade(&self) -> Result<(), TunnelError> {
        let Err(error) = Step::nft(self.masquerade_script(true)).run() else { return Ok(()) };
        Step::nft(self.masquerade_script(false)).run()?;
        tracing::warn!(%error, "the kernel cannot count connections; one client may use up those of all");
        Ok(())
    }

    /// A chain of this type sees the first packet of each connection only.
    fn masquerade_script(&self, is_bounded: bool) -> String {
        let interface = &self.interface;
        let (mut sets, mut lines) = (String::new(), String::new());
        let kinds = [("clients4", "ipv4_addr"), ("clients6", "ipv6_addr")];
        for (set, kind) in kinds.into_iter().filter(|_| is_bounded) {
            let _ = writeln!(sets, "\tset {set} {{ type {kind}; flags dynamic; }}");
        }
        for address in &self.addresses {
            let is_v6 = address.addr().is_ipv6();
            let (family, set) = if is_v6 { ("ip6", "clients6") } else { ("ip", "clients4") };
            let leaves = format!("{family} saddr {} oifname != \"{interface}\"", address.trunc());
            if is_bounded {
                let count = format!("{family} saddr ct count over {MOST_CONNECTIONS}");
                let _ = writeln!(lines, "\t\t{leaves} add @{set} {{ {count} }} drop");
            }
            let _ = writeln!(lines, "\t\t{leaves} masquerade");
        }
        format!(
            "table inet {} {{\n\
             {sets}\
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
    /// The error of the first step that fails; [`clean`](super::clean) undoes those before it.
    pub fn apply(&self) -> Result<(), TunnelError> {
        if self.forwards {
            forward(&self.interface, (true, has(&self.addresses, true)))?;
        }
        self.steps().iter().try_for_each(|step| step.run().map(drop))?;
        if self.exit { self.masquerade() } else { Ok(()) }
    }

    /// Puts the firewall table back if another program deleted it, as `nft flush ruleset` does. True if it was missing.
    pub fn restore(&self) -> bool {
        self.exit
            && !has_table(&self.interface)
            && registry::while_running(&self.interface, |_| {
                // Tried again at the next look.
                let _ = self.masquerade();
            })
    }
}

/// Lets this machine forward IPv4 and IPv6 packets as long as the tunnel runs.
///
/// # Errors
/// [`TunnelError::File`].
pub(super) fn forward(interface: &str, (v4, v6): (bool, bool)) -> Result<(), TunnelError> {
    registry::update(|registry| {
        if v6 {
            // A forwarding machine ignores router advertisements, and with them its default route, unless told otherwise.
            registry.share(interface, |setting| setting.ends_with("/accept_ra"));
            for setting in listening_for_routers() {
                registry.set(interface, &setting, "2")?;
            }
            registry.set(interface, FORWARDING_V6, "1")?;
        }
        if v4 { registry.set(interface, FORWARDING_V4, "1") } else { Ok(()) }
    })
}

/// The families that this machine forwards for all its neighbours, as the firewall names them: those for which the
/// administrator turned forwarding on. A tunnel does that for the networks of its user alone.
pub fn forwarded_for_all() -> Vec<&'static str> {
    let setting = |family: &str| if family == "ipv6" { FORWARDING_V6 } else { FORWARDING_V4 };
    let families = anabranch_proxy::forwarded_families().into_iter();
    families.filter(|family| !registry::has_changed(setting(family))).collect()
}

/// The settings of interfaces that accept router advertisements as long as they do not forward.
fn listening_for_routers() -> Vec<String> {
    let interfaces = fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten();
    let settings = interfaces.filter_map(|interface| {
        let value = |name| fs::read_to_string(interface.path().join(name)).unwrap_or_default();
        let name = interface.file_name().into_string().ok()?;
        let listens = value("accept_ra").trim() == "1" && value("forwarding").trim() == "0";
        (listens && name != "all" && name != "lo").then(|| format!("net/ipv6/conf/{name}/accept_ra"))
    });
    settings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerSystem {
        ServerSystem {
            interface: "anabranch0".into(),
            addresses: vec!["10.77.0.1/24".parse().unwrap(), "fd77::1/64".parse().unwrap()],
            behind: vec!["192.168.50.1/24".parse().unwrap()],
            forwards: true,
            exit: true,
        }
    }

    #[test]
    fn the_server_masquerades_its_clients_and_nothing_else() {
        let script = server().masquerade_script(true);
        assert!(script.contains("ip saddr 10.77.0.0/24 oifname != \"anabranch0\" masquerade"), "{script}");
        assert!(script.contains("ip6 saddr fd77::/64"), "{script}");
        let steps = server().steps();
        assert!(steps.iter().any(|step| step.command.join(" ").contains("route replace 192.168.50.0/24")));
    }

    #[test]
    fn no_client_fills_the_exits_table_of_connections() {
        let script = server().masquerade_script(true);
        for (network, set) in [("ip saddr 10.77.0.0/24", "clients4"), ("ip6 saddr fd77::/64", "clients6")] {
            let leaves = format!("{network} oifname != \"anabranch0\"");
            let bound = script.find(&format!("{leaves} add @{set} {{ "));
            let out = script.find(&format!("{leaves} masquerade"));
            assert!(bound.is_some() && bound < out, "{script}");
        }
        assert_eq!(script.matches("saddr ct count over 8192 } drop").count(), 2, "{script}");
        let without = server().masquerade_script(false);
        assert!(!without.contains("clients") && without.contains("masquerade"), "{without}");
    }
}
