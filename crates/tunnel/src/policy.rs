//! A user's policy: classes of packets, and the lane of each.
//!
//! The first class that fits a packet decides. A class counts for both directions of a flow: its ports and networks may
//! be those of either end. A packet that no class fits takes the usual lane. While that is `auto`, packets that ask for
//! low delay, pings and name queries take the fastest path. The client sends its policy to the server, so that packets
//! in both directions are treated alike.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::entry::Lane;
use crate::packet::{Header, protocol};

/// Most classes of a policy.
pub const MOST_CLASSES: usize = 64;
/// Most ports, code points or networks of a class.
pub const MOST_ENTRIES: usize = 32;

/// Longest name of a class, in bytes.
pub const LONGEST_NAME: usize = 64;

/// How packets travel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The lane of packets without a class.
    #[serde(default)]
    pub lane: Lane,
    /// The classes, tried in this order.
    #[serde(default)]
    pub classes: Vec<Class>,
}

/// Packets with something in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Its name, for people.
    #[serde(default)]
    pub name: String,
    /// How its packets travel.
    pub lane: Lane,
    /// The protocol's number; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// Ports of either end; all if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRange>,
    /// Code points (RFC 2474); all if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dscp: Vec<u8>,
    /// Networks of either end; all if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<IpNet>,
}

/// Ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl PortRange {
    fn holds(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl Policy {
    /// The lane for a packet.
    pub fn lane_of(&self, header: &Header, packet: &[u8]) -> Lane {
        let class = self.classes.iter().find(|class| class.fits(header, packet));
        class.map_or_else(|| self.usual(header, packet), |class| class.lane)
    }

    /// Whether the policy has no more classes and entries than an end accepts from the other.
    pub fn is_bounded(&self) -> bool {
        let is_small = |class: &Class| {
            let longest = class.ports.len().max(class.dscp.len()).max(class.networks.len());
            longest <= MOST_ENTRIES && class.name.len() <= LONGEST_NAME
        };
        self.classes.len() <= MOST_CLASSES && self.classes.iter().all(is_small)
    }

    /// Packets that ask for low delay by their code point (RFC 2474, RFC 3246, RFC 8622), ICMP and name queries take
    /// the fastest path.
    fn usual(&self, header: &Header, packet: &[u8]) -> Lane {
        const EXPEDITED: u8 = 46;
        const LOWEST_OF_CLASS_5: u8 = 40;
        let is_urgent = matches!(header.dscp(), EXPEDITED | LOWEST_OF_CLASS_5 | 48 | 56);
        let is_icmp = matches!(header.protocol, protocol::ICMP | protocol::ICMPV6);
        let asks_name = header.protocol == protocol::UDP
            && header.ports(packet).is_some_and(|(from, to)| from == 53 || to == 53);
        if self.lane == Lane::Auto && (is_urgent || is_icmp || asks_name) {
            Lane::LowLatency
        } else {
            self.lane
        }
    }
}

impl Class {
    fn fits(&self, header: &Header, packet: &[u8]) -> bool {
        let fits_ports = || {
            let holds = |port: u16| self.ports.iter().any(|range| range.holds(port));
            header.ports(packet).is_some_and(|(from, to)| holds(from) || holds(to))
        };
        let in_network = || {
            let mut networks = self.networks.iter();
            networks.any(|network| network.contains(&header.source) || network.contains(&header.destination))
        };
        self.protocol.is_none_or(|protocol| protocol == header.protocol)
            && (self.ports.is_empty() || fits_ports())
            && (self.dscp.is_empty() || self.dscp.contains(&header.dscp()))
            && (self.networks.is_empty() || in_network())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn lane(policy: &Policy, packet: &[u8]) -> Lane {
        policy.lane_of(&Header::read(packet).unwrap(), packet)
    }

    #[test]
    fn the_first_class_that_fits_decides_in_both_directions() {
        let ports = |first, last| vec![PortRange { first, last }];
        let game = Class { lane: Lane::LowLatency, ports: ports(1990, 2010), ..Class::default() };
        let rest = Class { lane: Lane::Striped, protocol: Some(protocol::UDP), ..Class::default() };
        let policy = Policy { lane: Lane::Routed, classes: vec![game, rest] };
        // The sample goes from port 1000 to port 2000.
        assert_eq!(lane(&policy, &samples::udp_v4(b"a")), Lane::LowLatency);
        assert_eq!(lane(&policy, &samples::tcp_v4(1, b"a")), Lane::LowLatency);
        let mut other = policy.clone();
        other.classes[0].ports = ports(3000, 3000);
        assert_eq!(lane(&other, &samples::udp_v4(b"a")), Lane::Striped);
        assert_eq!(lane(&other, &samples::tcp_v4(1, b"a")), Lane::Routed, "no class");
        other.classes[0].ports = ports(1000, 1000);
        assert_eq!(lane(&other, &samples::udp_v4(b"a")), Lane::LowLatency, "the other end's port");
    }

    #[test]
    fn classes_go_by_code_point_and_network() {
        let marked = Class { lane: Lane::Redundant, dscp: vec![34], ..Class::default() };
        let office = Class {
            lane: Lane::Striped,
            networks: vec!["198.51.100.0/24".parse().unwrap()],
            ..Class::default()
        };
        let policy = Policy { lane: Lane::Auto, classes: vec![marked, office] };
        let mut packet = samples::udp_v4(b"a");
        assert_eq!(lane(&policy, &packet), Lane::Striped);
        packet[1] = 34 << 2 | 1;
        assert_eq!(lane(&policy, &packet), Lane::Redundant);
        packet = samples::udp_v6(b"a");
        assert_eq!(lane(&policy, &packet), Lane::Auto);
        packet[0] = 0x60 | 46 >> 2;
        packet[1] = ((46_u16 << 6) & 0xff) as u8;
        assert_eq!(lane(&policy, &packet), Lane::LowLatency, "expedited forwarding");
    }

    #[test]
    fn a_policy_of_the_other_end_is_bounded() {
        let class = Class::default();
        assert!(Policy { classes: vec![class.clone(); MOST_CLASSES], ..Policy::default() }.is_bounded());
        assert!(!Policy { classes: vec![class; MOST_CLASSES + 1], ..Policy::default() }.is_bounded());
        let long = Class { dscp: vec![0; MOST_ENTRIES + 1], ..Class::default() };
        assert!(!Policy { classes: vec![long], ..Policy::default() }.is_bounded());
    }
}
