//! The policy of an exit, without I/O: which addresses and ports clients may reach.
//!
//! By default private and special addresses are denied, so that a client reaches the Internet and nothing behind the
//! exit. Of all ranges that hold an address, the one with the longest prefix decides. Among equal prefixes, one denied
//! by the operator counts before an allowed one, and that before a default.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use anabranch_tunnel::access::{DENIED, embedded};
use ipnet::IpNet;

/// The destinations that clients may reach through an exit.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The first that holds an address decides.
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    range: AddressRange,
    verdict: Verdict,
}

/// The policy's answer about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not to be reached.
    Denied,
    /// Public, or in a network that is allowed: to be reached unless it is one of the exit's own addresses.
    Allowed,
    /// Allowed by itself, so the exit's own addresses, too.
    Listed,
}

/// Addresses and ports, written `10.20.0.0/16`, `10.20.0.5:443` or `[fd00::1]:8000-8010`, `fd00::/8:53`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The addresses.
    pub network: IpNet,
    /// The ports.
    pub ports: RangeInclusive<u16>,
}

impl From<IpNet> for AddressRange {
    fn from(network: IpNet) -> Self {
        Self { network, ports: 0..=u16::MAX }
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no range; write 10.20.0.0/16, 10.20.0.5:443 or [fd00::1]:8000-8010");
        // The colon before ports comes after the length of a prefix or a bracket, or is the only one.
        let after = text.find(['/', ']']).unwrap_or(0);
        let colon = text[after..].find(':').map(|at| after + at);
        let colon = colon.filter(|_| after > 0 || text.matches(':').count() == 1);
        let (network, ports) = match colon {
            Some(colon) => (&text[..colon], ports(&text[colon + 1..]).ok_or_else(wrong)?),
            None => (text, 0..=u16::MAX),
        };
        let bare = network.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(network);
        let network = bare.parse::<IpNet>().or_else(|_| bare.parse::<IpAddr>().map(IpNet::from));
        Ok(Self { network: network.map_err(|_| wrong())?.trunc(), ports })
    }
}

fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (0 < first && first <= last).then_some(first..=last)
}

impl Policy {
    /// Everything public, and what is allowed besides, but nothing that is denied.
    pub fn new(allowed: &[AddressRange], denied: &[AddressRange]) -> Self {
        let rule = |verdict| move |range: &AddressRange| Rule { range: range.clone(), verdict };
        let usual = DENIED.iter().filter_map(|prefix| prefix.parse::<AddressRange>().ok());
        let mut rules: Vec<Rule> = denied.iter().map(rule(Verdict::Denied)).collect();
        let is_host = |range: &AddressRange| range.network.prefix_len() == range.network.max_prefix_len();
        rules.extend(allowed.iter().map(|range| {
            let verdict = if is_host(range) { Verdict::Listed } else { Verdict::Allowed };
            rule(verdict)(range)
        }));
        rules.extend(usual.map(|range| rule(Verdict::Denied)(&range)));
        // The sort is stable: among equals the order stays.
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.range.network.prefix_len()));
        Self { rules }
    }

    /// Judges a destination. One in an IPv6 form of IPv4 must not be denied in either form, unless it is listed as it is.
    pub fn judge(&self, to: SocketAddr) -> Verdict {
        let own = self.verdict(to.ip().to_canonical(), to.port());
        if own != Verdict::Allowed {
            return own;
        }
        let inner = embedded(to.ip()).map(|v4| self.verdict(v4.into(), to.port()));
        inner.reduce(|one, other| if one == Verdict::Denied { one } else { other }).unwrap_or(own)
    }

    fn verdict(&self, address: IpAddr, port: u16) -> Verdict {
        let holds = |rule: &&Rule| rule.range.network.contains(&address) && rule.range.ports.contains(&port);
        self.rules.iter().find(holds).map_or(Verdict::Allowed, |rule| rule.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_network_or_an_address_with_or_without_ports() {
        let read = |text: &str| {
            let range: AddressRange = text.parse().unwrap_or_else(|error| panic!("{error}"));
            (range.network.to_string(), *range.ports.start(), *range.ports.end())
        };
        assert_eq!(read("10.20.1.1/16"), ("10.20.0.0/16".to_owned(), 0, u16::MAX));
        assert_eq!(read("10.20.0.5:443"), ("10.20.0.5/32".to_owned(), 443, 443));
        assert_eq!(read("10.20.0.0/16:80-90"), ("10.20.0.0/16".to_owned(), 80, 90));
        assert_eq!(read("fd00::/8:53"), ("fd00::/8".to_owned(), 53, 53));
        assert_eq!(read("[fd00::1]:1-2"), ("fd00::1/128".to_owned(), 1, 2));
        assert_eq!(read("fd00::1"), ("fd00::1/128".to_owned(), 0, u16::MAX));
        for wrong in ["", "x", "10.0.0.0/33", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:9-8", "10.0.0.1:70000"] {
            assert!(wrong.parse::<AddressRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn forbidden_ipv4_addresses_are_denied_in_every_ipv6_form() {
        let allowed = |texts: &[&str]| {
            let ranges: Vec<AddressRange> = texts.iter().map(|text| text.parse().unwrap()).collect();
            Policy::new(&ranges, &[])
        };
        let usual = allowed(&[]);
        let forms = ["::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "2002::/16", "2001::/23"];
        let lenient = allowed(&forms);
        for denied in [
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::10.0.0.1",
            "2002:a9fe:a9fe::1",
            "2001:0:101:101::f5ff:fffe",
            "2606:4700::5efe:10.0.0.1",
        ] {
            let to = SocketAddr::new(denied.parse().unwrap(), 80);
            assert_eq!(usual.judge(to), Verdict::Denied, "{denied}");
            assert_eq!(lenient.judge(to), Verdict::Denied, "{denied} though its form is allowed");
        }
        let listed = allowed(&["2002:a9fe:a9fe::1"]);
        assert_eq!(listed.judge("[2002:a9fe:a9fe::1]:80".parse().unwrap()), Verdict::Listed);
        assert_eq!(lenient.judge("[2002:101:101::1]:80".parse().unwrap()), Verdict::Allowed);
    }

    #[test]
    fn the_longest_range_decides_and_among_equals_the_denied_one() {
        let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let rules = Policy::new(
            &ranges(&["127.0.0.1:8000-8010", "203.0.113.0/24", "10.0.0.0/8"]),
            &ranges(&["0.0.0.0/0:25", "::/0:25", "203.0.113.0/24:22", "10.9.0.0/16"]),
        );
        let judge = |text: &str| rules.judge(text.parse().unwrap());
        assert_eq!(judge("127.0.0.1:8005"), Verdict::Listed);
        assert_eq!(judge("127.0.0.1:8011"), Verdict::Denied);
        assert_eq!(judge("1.1.1.1:25"), Verdict::Denied);
        assert_eq!(judge("[2606:4700::1111]:25"), Verdict::Denied);
        assert_eq!(judge("1.1.1.1:443"), Verdict::Allowed);
        assert_eq!((judge("203.0.113.1:80"), judge("203.0.113.1:22")), (Verdict::Allowed, Verdict::Denied));
        assert_eq!((judge("10.1.0.1:1"), judge("10.9.0.1:1")), (Verdict::Allowed, Verdict::Denied));
        assert_eq!(judge("[::ffff:10.9.0.1]:1"), Verdict::Denied);
        assert_eq!(judge("[64:ff9b::1.1.1.1]:443"), Verdict::Allowed);
        assert_eq!(judge("[64:ff9b::127.0.0.1]:8005"), Verdict::Listed);
        assert_eq!(judge("[64:ff9b::127.0.0.1]:22"), Verdict::Denied);
        let no_v6 = Policy::new(&[], &ranges(&["::/0"]));
        assert_eq!(no_v6.judge("[64:ff9b::1.1.1.1]:443".parse().unwrap()), Verdict::Denied);
        assert_eq!(no_v6.judge("[::ffff:1.1.1.1]:443".parse().unwrap()), Verdict::Allowed);
    }
}
