//! System settings of the server.

use std::fmt::Write as _;
use std::fs;

use ipnet::IpNet;

use super::{RULE_PROTOCOL, Step, address_steps, has, has_table, ip, registry, table_name};
use crate::error::TunnelError;

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
    /// The steps, in order.
    pub fn steps(&self) -> Vec<Step> {
        let interface = &self.interface;
        let mut steps = address_steps(interface, &self.addresses);
        for network in self.behind.iter().map(IpNet::trunc) {
            steps.push(Step::new(&format!(
                "{} route replace {network} dev {interface} proto {RULE_PROTOCOL}",
                ip(&network)
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
    /// The error of the first step that fails; [`clean`](super::clean) undoes those before it.
    pub fn apply(&self) -> Result<(), TunnelError> {
        if self.forwards {
            registry::update(|registry| {
                if has(&self.addresses, true) {
                    // A forwarding machine ignores router advertisements, and with them its default route, unless told
                    // otherwise.
                    for setting in listening_for_routers() {
                        registry.set(&self.interface, &setting, "2")?;
                    }
                    registry.set(&self.interface, "net/ipv6/conf/all/forwarding", "1")?;
                }
                registry.set(&self.interface, "net/ipv4/ip_forward", "1")
            })?;
        }
        self.steps().iter().try_for_each(|step| step.run().map(drop))
    }

    /// Puts the firewall table back if another program deleted it, as `nft flush ruleset` does. True if it was missing.
    pub fn restore(&self) -> bool {
        self.exit
            && !has_table(&self.interface)
            && registry::while_running(&self.interface, || {
                // Tried again at the next look.
                let _ = Step::nft(self.masquerade_script()).run();
            })
    }
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

    #[test]
    fn the_server_masquerades_its_clients_and_nothing_else() {
        let server = ServerSystem {
            interface: "anabranch0".into(),
            addresses: vec!["10.77.0.1/24".parse().unwrap(), "fd77::1/64".parse().unwrap()],
            behind: vec!["192.168.50.1/24".parse().unwrap()],
            forwards: true,
            exit: true,
        };
        let steps = server.steps();
        let script = &steps.last().unwrap().input;
        assert!(script.contains("ip saddr 10.77.0.0/24 oifname != \"anabranch0\" masquerade"), "{script}");
        assert!(script.contains("ip6 saddr fd77::/64"), "{script}");
        assert!(steps.iter().any(|step| step.command.join(" ").contains("route replace 192.168.50.0/24")));
    }
}
