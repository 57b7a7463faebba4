//! The text of the firewall's rules, without I/O.
//!
//! One table holds a chain for connections of this machine and one for those that it forwards. Both first accept
//! what stays direct. With [`Method::Redirect`] the kernel then rewrites the destination. With [`Method::Tproxy`] it
//! leaves the connection as it is and hands it to the proxy's socket; for that, packets are marked, and a routing rule
//! leads marked ones to this machine.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use anabranch_tunnel::access::DENIED;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::Method;

/// The firewall's table. One name: two tables would compete for the same connections.
pub(super) const TABLE: &str = "anabranch_proxy";
/// Mark of the proxy's own TCP sockets, which stay direct ("ab", 1).
pub(crate) const OWN_MARK: u32 = 0x6162_0001;
/// Mark of packets that the proxy's socket takes.
const TAKEN_MARK: u32 = 0x6162_0002;
/// Table and priority of the routing rule for those, below the tunnel's.
const ROUTES: u32 = 51_876;
const PRIORITY: u32 = 5_270;
/// Matches the first packet of a connection. Connections from before the rules stay as they are.
pub const FIRST: &str = "tcp flags & (fin | syn | rst | ack) == syn";

/// The inputs of the rules that stay the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) method: Method,
    /// Where the proxy takes connections.
    pub(super) port: u16,
    /// The families whose packets from neighbours are taken: `ipv4`, `ipv6`.
    pub(super) forwarded: Vec<&'static str>,
}

/// Destinations that stay direct, besides special ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Direct {
    /// The exit and relays: connections to them, and forwarded ones from them.
    pub(super) nodes: BTreeSet<IpAddr>,
    /// Networks with a route of their own.
    pub(super) networks: Vec<IpNet>,
}

impl Direct {
    /// The firewall's sets with their elements.
    fn sets(&self) -> [(&'static str, String); 4] {
        let special = DENIED.iter().filter_map(|range| range.parse::<IpNet>().ok());
        let all =
            special.chain(self.nodes.iter().copied().map(IpNet::from)).chain(self.networks.iter().copied());
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in all {
            match network {
                IpNet::V4(network) => v4.push(network),
                IpNet::V6(network) => v6.push(network),
            }
        }
        let nodes = |is_v4| list(self.nodes.iter().filter(|node| node.is_ipv4() == is_v4));
        [
            // The ranges of a set must not overlap.
            ("direct4", list(Ipv4Net::aggregate(&v4))),
            ("direct6", list(Ipv6Net::aggregate(&v6))),
            ("nodes4", nodes(true)),
            ("nodes6", nodes(false)),
        ]
    }

    /// The change after which the rules know this, as one line.
    pub(super) fn update(&self) -> String {
        let change = |(set, elements): (&str, String)| {
            let flush = format!("flush set inet {TABLE} {set}");
            if elements.is_empty() {
                flush
            } else {
                format!("{flush}; add element inet {TABLE} {set} {{ {elements} }}")
            }
        };
        self.sets().map(change).join("; ")
    }
}

impl Rules {
    /// The table, as one line: `nft -i` takes a line as one change of the firewall.
    pub(super) fn table(&self, direct: &Direct) -> String {
        let set = |(set, elements): (&str, String)| {
            let kind = if set.ends_with('4') { "ipv4_addr" } else { "ipv6_addr" };
            let elements =
                if elements.is_empty() { elements } else { format!(" elements = {{ {elements} }};") };
            format!("set {set} {{ type {kind}; flags interval;{elements} }};")
        };
        let sets = direct.sets().map(set).join(" ");
        let chains = match self.method {
            Method::Redirect => self.redirecting(),
            Method::Tproxy => self.handing_over(),
        };
        format!(
            "table inet {TABLE} {{ flags owner; \
             {sets} \
             chain direct {{ \
             meta mark {OWN_MARK:#x} accept; \
             tcp dport {{ 53, 853 }} accept; \
             fib daddr type {{ local, broadcast, multicast }} accept; \
             ip daddr @direct4 accept; \
             ip6 daddr @direct6 accept; }}; \
             {chains}}}"
        )
    }

    fn redirecting(&self) -> String {
        let to = format!("{FIRST} jump direct; {FIRST} redirect to :{};", self.port);
        let mut chains = format!("chain output {{ type nat hook output priority -100; {to} }}; ");
        if !self.forwarded.is_empty() {
            let _ = write!(
                chains,
                "chain prerouting {{ type nat hook prerouting priority -100; \
                 {} {to} }}; ",
                self.not_forwarded()
            );
        }
        chains
    }

    /// Packets of this machine leave, are marked, and so come back over `lo`, where the proxy's socket takes them.
    fn handing_over(&self) -> String {
        let (port, mark) = (self.port, TAKEN_MARK);
        let mut chains = format!(
            "chain take {{ \
             meta nfproto ipv4 meta l4proto tcp meta mark set {mark:#x} tproxy ip to 127.0.0.1:{port} accept; \
             meta nfproto ipv6 meta l4proto tcp meta mark set {mark:#x} tproxy ip6 to [::1]:{port} accept; }}; \
             chain output {{ type route hook output priority -150; meta l4proto != tcp accept; \
             {FIRST} jump direct; \
             {FIRST} ct mark set {mark:#x}; \
             ct direction original ct mark {mark:#x} meta mark set {mark:#x}; }}; \
             chain prerouting {{ type filter hook prerouting priority -150; meta l4proto != tcp accept; \
             socket transparent 1 meta mark set {mark:#x} accept; \
             {FIRST} iif lo meta mark {mark:#x} jump take; \
             {FIRST} iif != lo jump forwarded; }}; "
        );
        let forwarded = match self.forwarded.is_empty() {
            true => "accept;".to_owned(),
            false => format!("{} jump direct; jump take;", self.not_forwarded()),
        };
        let _ = write!(chains, "chain forwarded {{ {forwarded} }}; ");
        chains
    }

    /// Accepts packets of the other families, and connections from the exit or a relay if that is behind this machine.
    fn not_forwarded(&self) -> String {
        let families = self.forwarded.join(", ");
        format!("meta nfproto != {{ {families} }} accept; ip saddr @nodes4 accept; ip6 saddr @nodes6 accept;")
    }

    /// The shell's command that runs `nft`. For [`Method::Tproxy`] it first leads marked packets to this machine, and
    /// takes that back in the end, unless another proxy needs the same.
    pub(super) fn command(&self) -> String {
        let marked = format!("fwmark {TAKEN_MARK:#x} lookup {ROUTES} priority {PRIORITY}");
        let add = |ip: &str| {
            format!("{ip} rule add {marked} && {ip} route add local default dev lo table {ROUTES}")
        };
        let delete = ["ip -4", "ip -6"]
            .map(|ip| format!("{ip} rule delete {marked}; {ip} route flush table {ROUTES}"))
            .join("; ");
        match self.method {
            Method::Redirect => "nft -i".to_owned(),
            // A machine may be without IPv6, and there may be nothing to delete.
            Method::Tproxy => format!(
                "delete() {{ nft list chain inet {TABLE} take >&2 || {{ {delete}; }}; }} 2>/dev/null; delete; \
                 {} && {{ {{ {}; }} 2>/dev/null || :; }} && nft -i; delete",
                add("ip -4"),
                add("ip -6")
            ),
        }
    }
}

fn list<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|one| one.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(method: Method) -> Rules {
        Rules { method, port: 4000, forwarded: vec!["ipv4"] }
    }

    fn direct(nodes: &[&str], networks: &[&str]) -> Direct {
        Direct {
            nodes: nodes.iter().map(|text| text.parse().unwrap()).collect(),
            networks: networks.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn what_stays_direct_is_one_list_without_overlaps() {
        let networks = ["93.184.216.0/24", "10.1.0.0/16", "2a00:1::/64"];
        let [(_, v4), (_, v6), (_, nodes4), (_, nodes6)] = direct(&["192.0.2.9"], &networks).sets();
        assert!(v4.contains("93.184.216.0/24") && v4.contains("10.0.0.0/8") && !v4.contains("10.1"), "{v4}");
        assert!(v6.contains("2a00:1::/64") && v6.contains("fc00::/7") && !v6.contains("::1/128"), "{v6}");
        assert_eq!((nodes4.as_str(), nodes6.as_str()), ("192.0.2.9", ""));
    }

    #[test]
    fn a_machine_that_forwards_nothing_takes_nothing_of_its_neighbours() {
        for method in [Method::Redirect, Method::Tproxy] {
            let forwards = rules(method).table(&Direct::default());
            assert!(forwards.contains("ip saddr @nodes4 accept"), "{forwards}");
            let forwards_nothing = Rules { forwarded: Vec::new(), ..rules(method) }.table(&Direct::default());
            assert!(!forwards_nothing.contains("saddr"), "{forwards_nothing}");
        }
    }

    #[test]
    fn each_change_is_one_line() {
        let direct = direct(&["1.2.3.4", "2a00::1"], &["1.2.0.0/16"]);
        for method in [Method::Redirect, Method::Tproxy] {
            assert!(!(rules(method).table(&direct) + &direct.update()).contains('\n'));
        }
        assert!(Direct::default().update().ends_with("flush set inet anabranch_proxy nodes6"));
    }
}
