//! System settings of the client.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anabranch_proxy::{FIRST_PACKET, forwarded_families};
use anabranch_tunnel::entry::Lane;
use anabranch_tunnel::packet::protocol;
use anabranch_tunnel::policy::{Class, Policy};
use anabranch_wire::Reach;
use ipnet::IpNet;

use super::server::{forward, forwarded_for_all};
use super::{
    RULE_PROTOCOL, Slot, Step, address_steps, dns, has, has_table, ip, kill_switch, registry, table_name,
};
use crate::error::TunnelError;

/// System settings of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSystem {
    /// The device.
    pub interface: String,
    /// Its place among the tunnels of this machine.
    pub slot: Slot,
    pub addresses: Vec<IpNet>,
    /// The server's addresses in the tunnel: connections to them stay packets, so the server's firewall sees who asks.
    pub gateways: Vec<IpAddr>,
    /// Destinations that go through the tunnel.
    pub routes: Vec<IpNet>,
    /// Networks behind this machine, for which it forwards.
    pub behind: Vec<IpNet>,
    /// Name servers, reached through the tunnel.
    pub dns: Vec<IpAddr>,
    /// UDP port of the tunnel's own packets, which stay outside.
    pub udp_port: u16,
    /// Nothing may leave outside the tunnel.
    pub kill_switch: bool,
    /// Port of the listener for TCP connections in the stream lane.
    pub stream_port: Option<u16>,
    /// Connections of classes with a lane of their own stay packets.
    pub policy: Policy,
}

impl ClientSystem {
    /// The steps, in order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = self.device_steps();
        if let Some(port) = self.stream_port {
            steps.push(Step::nft(self.redirect_script(port, &self.policy)));
        }
        steps.extend(self.rules());
        steps
    }

    /// The device's addresses and routes.
    fn device_steps(&self) -> Vec<Step> {
        let (interface, table) = (&self.interface, self.slot.table());
        // The server chooses the addresses. Their networks go into the tunnel's table, where networks of this machine come
        // before them; the main table gets none.
        let hosts: Vec<IpNet> = self.addresses.iter().map(|address| IpNet::from(address.addr())).collect();
        let mut steps = address_steps(interface, &hosts);
        for route in self.inside() {
            steps.push(Step::new(&format!(
                "{} route replace {route} dev {interface} table {table} proto {RULE_PROTOCOL}",
                ip(&route)
            )));
        }
        steps
    }

    /// The networks to which the tunnel's table has routes.
    fn inside(&self) -> BTreeSet<IpNet> {
        let own = self.addresses.iter().map(tunnel_network).filter(|network| !is_host(network));
        // The kernel takes no route to 10.20.1.1/16: that network is 10.20.0.0/16.
        own.chain(self.reached().iter().map(IpNet::trunc)).collect()
    }

    /// The destinations that do go through the tunnel: those of families in which the server gave an address.
    pub fn reached(&self) -> Vec<IpNet> {
        self.routes.iter().filter(|route| self.reaches(route)).copied().collect()
    }

    fn reaches(&self, route: &IpNet) -> bool {
        has(&self.addresses, route.addr().is_ipv6())
    }

    fn families(&self) -> impl Iterator<Item = &'static str> {
        let families = [("ip -4", has(&self.addresses, false)), ("ip -6", has(&self.addresses, true))];
        families.into_iter().filter(|(_, wanted)| *wanted).map(|(family, _)| family)
    }

    /// The rules that lead into the tunnel. They come after rules for the tunnel's own packets, identified by their
    /// port, and for routes with longer prefixes than a default route: a local network stays local. A tunnel for some
    /// networks comes before another one for everything.
    pub fn rules(&self) -> Vec<Step> {
        let lookups = [
            format!("ipproto udp sport {} lookup main", self.udp_port),
            "lookup main suppress_prefixlength 0".to_owned(),
            format!("lookup {} suppress_prefixlength 0", self.slot.table()),
            format!("lookup {}", self.slot.table()),
        ];
        let line = |family: &str, (priority, lookup): (u32, &String)| {
            format!("{family} rule add {lookup} priority {priority} protocol {RULE_PROTOCOL}")
        };
        let priorities = self.slot.priorities();
        self.families()
            .flat_map(|family| {
                priorities.into_iter().zip(&lookups).map(move |rule| Step::new(&line(family, rule)))
            })
            .collect()
    }

    /// Whether all rules of each family are there, or cannot be looked for.
    pub fn rules_are_there(&self) -> bool {
        self.families().all(|family| {
            let listed = Step::new(&format!("{family} rule show protocol {RULE_PROTOCOL}")).run();
            let Ok(listed) = listed else { return true };
            let has = |priority| listed.lines().any(|line| line.starts_with(&format!("{priority}:")));
            self.slot.priorities().into_iter().all(has)
        })
    }

    /// Whether all routes are there, or cannot be looked for. They vanish when another program shuts the device down.
    fn routes_are_there(&self) -> bool {
        let routes = self.inside();
        self.families().all(|family| {
            let device = format!("dev {} proto {RULE_PROTOCOL}", self.interface);
            let listed = Step::new(&format!("{family} route show table all {device}")).run();
            let wanted = routes.iter().filter(|route| ip(route) == family).count();
            listed.map_or(true, |listed| listed.lines().count() >= wanted)
        })
    }

    /// Puts back rules and the kill switch that another program deleted, and with a policy routes and the firewall table
    /// too. True if something was missing.
    pub fn restore(&self, policy: Option<&Policy>) -> bool {
        let was_open = self.kill_switch && kill_switch::restore(&self.interface, self.udp_port);
        let port = self.stream_port.filter(|_| policy.is_some() && !has_table(&self.interface));
        let has_routes = policy.is_none() || self.routes_are_there();
        if has_routes && port.is_none() && self.rules_are_there() {
            return was_open;
        }
        let were_missing = registry::while_running(&self.interface, |_| {
            for step in self.device_steps().iter().filter(|_| !has_routes) {
                let _ = step.run();
            }
            for rule in self.rules() {
                // Several may be left.
                let _ = rule.run();
            }
            if let (Some(port), Some(policy)) = (port, policy) {
                // Tried again at a later look.
                let _ = self.redirect(port, policy);
            }
        });
        were_missing || was_open
    }

    /// Applies all steps.
    ///
    /// # Errors
    /// The error of the first step that fails; [`clean`](super::clean) undoes those before it.
    pub fn apply(&self) -> Result<(), TunnelError> {
        if !self.behind.is_empty() {
            // Before the steps: neighbours' connections are redirected in the families that this machine forwards.
            forward(&self.interface, (has(&self.behind, false), has(&self.behind, true)))?;
        }
        self.steps().iter().try_for_each(|step| step.run().map(drop))?;
        self.warn_of_unreached();
        if self.dns.is_empty() { Ok(()) } else { dns::set(&self.interface, &self.dns) }
    }

    fn warn_of_unreached(&self) {
        let stays = if self.kill_switch {
            "the kill switch blocks these packets"
        } else {
            "these packets leave outside the tunnel; `--kill-switch` blocks them"
        };
        for network in self.routes.iter().filter(|route| !self.reaches(route)) {
            let family = if network.addr().is_ipv6() { "IPv6" } else { "IPv4" };
            tracing::warn!(%network, "the server gives no {family} address: {stays}");
        }
    }

    /// Goes over from the settings of an earlier session to these. New routes come before old ones go, so that no packet
    /// leaves outside the tunnel meanwhile.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn replace(&self, before: &Self) -> Result<(), TunnelError> {
        self.additions(before).iter().try_for_each(|step| step.run().map(drop))?;
        for step in self.removals(before) {
            // Another program may have deleted it, or shut the device down, which deletes its routes.
            let _ = step.run();
        }
        self.warn_of_unreached();
        match (&self.dns, &before.dns) {
            (now, before) if now == before => Ok(()),
            (now, _) if now.is_empty() => dns::unset(&self.interface),
            (now, _) => dns::set(&self.interface, now),
        }
    }

    /// The first steps of [`replace`](Self::replace).
    fn additions(&self, before: &Self) -> Vec<Step> {
        let mut steps = self.device_steps();
        if let Some(port) = self.stream_port {
            steps.push(Step::nft(self.redirect_script(port, &self.policy)));
        }
        let old_rules = before.rules();
        steps.extend(self.rules().into_iter().filter(|rule| !old_rules.contains(rule)));
        steps
    }

    /// The last steps of [`replace`](Self::replace).
    fn removals(&self, before: &Self) -> Vec<Step> {
        let (interface, table) = (&self.interface, self.slot.table());
        let mut steps = Vec::new();
        if self.stream_port.is_none() && before.stream_port.is_some() {
            steps.push(Step::new(&format!("nft delete table inet {}", table_name(interface))));
        }
        let (rules, old_rules) = (self.rules(), before.rules());
        // The rule that leads into the tunnel goes first.
        let gone = old_rules.iter().rev().filter(|rule| !rules.contains(rule));
        steps.extend(
            gone.map(|rule| Step::new(&rule.command.join(" ").replace(" rule add ", " rule delete "))),
        );
        for network in before.inside().difference(&self.inside()) {
            let route = format!("route delete {network} dev {interface} table {table}");
            steps.push(Step::new(&format!("{} {route}", ip(network))));
        }
        let hosts = |system: &Self| -> BTreeSet<IpNet> {
            system.addresses.iter().map(|address| IpNet::from(address.addr())).collect()
        };
        for address in hosts(before).difference(&hosts(self)) {
            steps.push(Step::new(&format!("{} address delete {address} dev {interface}", ip(address))));
        }
        steps
    }

    /// Redirects connections by another policy from now on.
    pub fn redirect(&self, port: u16, policy: &Policy) -> Result<(), TunnelError> {
        Step::nft(self.redirect_script(port, policy)).run().map(drop)
    }

    fn redirect_script(&self, port: u16, policy: &Policy) -> String {
        let forwarded = if self.behind.is_empty() {
            forwarded_for_all()
        } else {
            forwarded_families().into_iter().filter(|family| has(&self.behind, *family == "ipv6")).collect()
        };
        self.redirect_script_for(port, policy, &forwarded)
    }

    /// Local programs' TCP connections that would leave through the device go to the listener, and forwarded ones of
    /// these families, from the networks behind this machine if some are named. Those from before the rules stay packets:
    /// the listener would reset them.
    fn redirect_script_for(&self, port: u16, policy: &Policy, forwarded: &[&str]) -> String {
        let (interface, table) = (&self.interface, table_name(&self.interface));
        let gateways: String = self
            .gateways
            .iter()
            .map(|gateway| {
                let family = if gateway.is_ipv6() { "ip6" } else { "ip" };
                format!("\t\t{family} daddr {gateway} accept\n")
            })
            .collect();
        let to_port = format!("redirect to :{port}");
        let rules = |leaves: &str| {
            let classes = policy.classes.iter().flat_map(conditions_of);
            let each = classes.map(|(condition, lane)| {
                let verdict = if lane == Lane::Auto { &to_port } else { "accept" };
                format!("\t\t{leaves} {FIRST_PACKET} {condition} {verdict}\n")
            });
            each.chain([format!("\t\t{leaves} {FIRST_PACKET} {to_port}\n")]).collect::<String>()
        };
        // A machine that forwards nothing of a family must not become a gateway for its neighbours.
        let neighbours = if forwarded.is_empty() {
            String::new()
        } else {
            format!(
                "\tchain prerouting {{\n\
                 \t\ttype nat hook prerouting priority -100; policy accept;\n\
                 \t\tmeta nfproto != {{ {} }} accept\n\
                 {}\
                 {gateways}\
                 {}\
                 \t}}\n",
                forwarded.join(", "),
                self.others(),
                rules(&format!("iifname != \"{interface}\" fib daddr oifname \"{interface}\""))
            )
        };
        format!(
            "add table inet {table}\n\
             delete table inet {table}\n\
             table inet {table} {{\n\
             \tchain output {{\n\
             \t\ttype nat hook output priority -100; policy accept;\n\
             {gateways}\
             {}\
             \t}}\n\
             {neighbours}\
             }}\n",
            rules(&format!("oifname \"{interface}\""))
        )
    }

    /// Rules that leave neighbours outside the named networks alone, if some are named.
    fn others(&self) -> String {
        let families = [("ip", false), ("ip6", true)].into_iter().filter(|(_, v6)| has(&self.behind, *v6));
        let rules = families.map(|(family, v6)| {
            let networks = self.behind.iter().filter(|network| network.addr().is_ipv6() == v6);
            // The ranges of a set must not overlap.
            let apart = IpNet::aggregate(&networks.copied().collect::<Vec<IpNet>>());
            let list: Vec<String> = apart.iter().map(ToString::to_string).collect();
            format!("\t\t{family} saddr != {{ {} }} accept\n", list.join(", "))
        });
        rules.collect()
    }
}

/// The network of an address that the server has chosen: private and no larger than a tunnel needs, or the address alone.
/// Otherwise a server could lead packets to itself that the user did not send through the tunnel.
pub(crate) fn tunnel_network(address: &IpNet) -> IpNet {
    let shortest = if address.addr().is_ipv6() { 48 } else { 16 };
    match Reach::of(address.addr()) {
        Reach::Site if address.prefix_len() >= shortest => address.trunc(),
        _ => IpNet::from(address.addr()),
    }
}

fn is_host(network: &IpNet) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

/// The firewall's conditions for TCP packets of a class, one for each way to fit, with the class's lane.
fn conditions_of(class: &Class) -> Vec<(String, Lane)> {
    if class.protocol.is_some_and(|protocol| protocol != protocol::TCP) {
        return Vec::new();
    }
    let list = |texts: Vec<String>| format!("{{ {} }}", texts.join(", "));
    let either =
        |[one, other]: [&str; 2], set: String| vec![format!("{one} {set}"), format!("{other} {set}")];
    let mut ways = vec![String::new()];
    if !class.ports.is_empty() {
        let ports = list(class.ports.iter().map(|ports| format!("{}-{}", ports.first, ports.last)).collect());
        ways = either(["tcp dport", "tcp sport"], ports);
    }
    let mut by_family = Vec::new();
    for (family, v6) in [("ip", false), ("ip6", true)] {
        let networks = class.networks.iter().filter(|network| network.addr().is_ipv6() == v6);
        let networks: Vec<String> = networks.map(ToString::to_string).collect();
        let mut conditions = match (class.networks.is_empty(), networks.is_empty()) {
            (true, _) => vec![String::new()],
            (false, true) => continue,
            (false, false) => {
                either([&format!("{family} daddr"), &format!("{family} saddr")], list(networks))
            }
        };
        if !class.dscp.is_empty() {
            let marks = list(class.dscp.iter().map(ToString::to_string).collect());
            conditions.iter_mut().for_each(|condition| *condition += &format!(" {family} dscp {marks}"));
        }
        by_family.extend(conditions);
    }
    by_family.dedup();
    let each = ways.iter().flat_map(|ports| by_family.iter().map(move |rest| format!("{ports} {rest}")));
    each.map(|condition| (condition.trim().to_owned(), class.lane)).collect()
}

#[cfg(test)]
mod tests {
    use anabranch_tunnel::policy::PortRange;

    use super::*;

    fn client() -> ClientSystem {
        ClientSystem {
            interface: "anabranch0".into(),
            slot: Slot(2),
            addresses: vec!["10.77.0.2/24".parse().unwrap()],
            gateways: vec!["10.77.0.1".parse().unwrap()],
            routes: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
            behind: vec![],
            dns: vec![],
            udp_port: 4434,
            kill_switch: false,
            stream_port: Some(4000),
            policy: Policy::default(),
        }
    }

    #[test]
    fn the_rule_into_the_tunnel_comes_last_and_has_the_tag() {
        let lines: Vec<String> = client().steps().iter().map(|step| step.command.join(" ")).collect();
        assert!(lines[0].contains("address replace 10.77.0.2/32 dev anabranch0"), "{lines:#?}");
        let [.., priority] = Slot(2).priorities();
        let last = format!("lookup {} priority {priority} protocol 187", Slot(2).table());
        assert!(lines.last().unwrap().contains(&last), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("-6")), "no IPv6 without an address of it");
    }

    #[test]
    fn addresses_that_a_server_chooses_lead_nothing_else_into_the_tunnel() {
        let addresses = ["10.77.0.2/16", "192.168.1.1/25", "64.0.0.1/2", "10.0.0.1/8", "fd77::2/64"];
        let addresses = addresses.map(|address| address.parse().unwrap()).to_vec();
        let system = ClientSystem { addresses, routes: vec![], ..client() };
        let lines: Vec<String> = system.steps().iter().map(|step| step.command.join(" ")).collect();
        let with = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
        let hosts = with("/32 dev anabranch0") + with("/128 dev anabranch0");
        assert_eq!((with("address replace"), hosts), (5, 5), "{lines:#?}");
        assert_eq!(
            (with("route replace"), with(&format!("table {}", Slot(2).table()))),
            (3, 3),
            "{lines:#?}"
        );
        for network in ["10.77.0.0/16", "192.168.1.0/25", "fd77::/64"] {
            assert_eq!(with(&format!("route replace {network} dev")), 1, "{lines:#?}");
        }
    }

    #[test]
    fn a_network_may_be_named_by_an_address_in_it() {
        let system = ClientSystem { routes: vec!["10.20.1.1/16".parse().unwrap()], ..client() };
        let lines: Vec<String> = system.steps().iter().map(|step| step.command.join(" ")).collect();
        assert!(lines.iter().any(|line| line.contains("route replace 10.20.0.0/16 dev")), "{lines:#?}");
    }

    #[test]
    fn another_grant_replaces_addresses_routes_and_rules_and_keeps_the_rest() {
        let addresses = ["10.78.0.2/24", "fd78::2/64"].map(|address| address.parse().unwrap()).to_vec();
        let system = ClientSystem { addresses, stream_port: None, ..client() };
        let steps = [system.additions(&client()), system.removals(&client())].concat();
        let lines: Vec<String> = steps.iter().map(|step| step.command.join(" ")).collect();
        let at = |words: &str| lines.iter().position(|line| line.contains(words));
        assert!(at("route replace 10.78.0.0/24") < at("route delete 10.77.0.0/24"), "{lines:#?}");
        assert!(at("address replace 10.78.0.2/32") < at("address delete 10.77.0.2/32"), "{lines:#?}");
        assert!(at("route delete 10.77.0.0/24").is_some() && at("address delete 10.77.0.2/32").is_some());
        assert!(at("nft delete table").is_some() && at("ip -6 rule add").is_some(), "{lines:#?}");
        assert!(at("ip -4 rule").is_none() && at("delete 0.0.0.0/0").is_none(), "{lines:#?}");
        let back = client().removals(&system);
        let deleted: Vec<String> = back.iter().map(|step| step.command.join(" ")).collect();
        let rules = deleted.iter().filter(|line| line.starts_with("ip -6 rule delete")).count();
        assert_eq!(rules, Slot(2).priorities().len(), "{deleted:#?}");
    }

    #[test]
    fn a_family_without_an_address_does_not_go_through_the_tunnel() {
        assert_eq!(client().reached(), ["0.0.0.0/0".parse::<IpNet>().unwrap()]);
    }

    #[test]
    fn connections_to_the_server_itself_stay_packets() {
        let script = client().redirect_script(4000, &Policy::default());
        let (gateway, rest) = (script.find("ip daddr 10.77.0.1 accept"), script.find("redirect to :4000"));
        assert!(gateway.is_some() && gateway < rest, "{script}");
    }

    #[test]
    fn connections_from_before_the_tunnel_are_not_redirected() {
        let script = client().redirect_script_for(4000, &Policy::default(), &["ipv4", "ipv6"]);
        let redirecting: Vec<&str> = script.lines().filter(|line| line.contains("redirect to")).collect();
        assert_eq!(redirecting.len(), 2, "{script}");
        assert!(redirecting.iter().all(|line| line.contains("== syn redirect to :4000")), "{script}");
    }

    #[test]
    fn neighbours_use_the_tunnel_in_the_families_that_this_machine_forwards() {
        let script = |forwarded: &[&str]| client().redirect_script_for(4000, &Policy::default(), forwarded);
        assert!(!script(&[]).contains("prerouting"));
        assert!(script(&["ipv4"]).contains("meta nfproto != { ipv4 } accept"));
    }

    #[test]
    fn of_the_neighbours_only_named_networks_use_the_tunnel_if_some_are_named() {
        let behind =
            ["192.168.50.1/24", "192.168.0.0/16", "fd50::/64"].map(|network| network.parse().unwrap());
        let system = ClientSystem { behind: behind.to_vec(), ..client() };
        let script = system.redirect_script_for(4000, &Policy::default(), &["ipv4", "ipv6"]);
        let (_, neighbours) = script.split_once("prerouting").unwrap();
        let (v4, v6) = ("ip saddr != { 192.168.0.0/16 } accept", "ip6 saddr != { fd50::/64 } accept");
        let (rules, _) = neighbours.split_once("redirect to").unwrap();
        assert!(rules.contains(v4) && rules.contains(v6), "{script}");
    }

    #[test]
    fn connections_of_a_class_with_a_lane_of_its_own_stay_packets() {
        let class = Class {
            lane: Lane::Striped,
            ports: vec![PortRange { first: 22, last: 22 }],
            dscp: vec![46],
            networks: vec!["192.0.2.0/24".parse().unwrap()],
            ..Class::default()
        };
        let policy = Policy { classes: vec![class.clone()], ..Policy::default() };
        let script = client().redirect_script(4000, &policy);
        let line = "tcp dport { 22-22 } ip daddr { 192.0.2.0/24 } ip dscp { 46 } accept";
        assert!(script.find(line) < script.find("redirect") && script.contains(line), "{script}");
        assert!(!script.contains("ip6 dscp"), "{script}");
        let udp = Class { protocol: Some(17), ..class };
        assert!(conditions_of(&udp).is_empty());
        assert_eq!(conditions_of(&Class::default()), [(String::new(), Lane::Auto)]);
    }
}
