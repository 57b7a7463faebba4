//! Decides which addresses may be sent packets before they have answered.
//!
//! An address may be that of a third party, or lie behind this machine's firewall. [`may_try`] is the one rule for all
//! of them:
//!
//! | address | user typed it | ticket or configuration lists it | peer, relay or controller announced it |
//! |---|---|---|---|
//! | multicast, broadcast, unspecified, port 0 | never | never | never |
//! | loopback | yes | if the list has no other | if the announcer is reached at one |
//! | link-local | yes | if a socket here is bound to one | the same, and the announcer is reached at one |
//! | private and otherwise not public | yes | if a socket here is bound to one, or to loopback | the same, and the announcer is reached at one |
//! | public | yes | yes | yes |
//!
//! So two machines on one network find each other: the ticket lists the private address, and a peer reached at a
//! private address may announce others. So may a peer behind the same NAT that a relay introduced
//! ([`Direct::reached`](crate::Direct::reached)).

use std::net::SocketAddr;

use anabranch_wire::Reach;

/// A set of [`Reach`]es.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaches(u8);

impl Reaches {
    /// True if the set contains this reach.
    pub fn contains(self, reach: Reach) -> bool {
        self.0 & Self::bit(reach) != 0
    }

    /// Adds an address's reach.
    pub fn insert(&mut self, address: SocketAddr) {
        self.add(Reach::of(address.ip()));
    }

    /// Adds a reach.
    pub(crate) fn add(&mut self, reach: Reach) {
        self.0 |= Self::bit(reach);
    }

    fn bit(reach: Reach) -> u8 {
        1 << reach as u8
    }
}

impl Extend<SocketAddr> for Reaches {
    fn extend<I: IntoIterator<Item = SocketAddr>>(&mut self, addresses: I) {
        addresses.into_iter().for_each(|address| self.insert(address));
    }
}

impl FromIterator<SocketAddr> for Reaches {
    fn from_iter<I: IntoIterator<Item = SocketAddr>>(addresses: I) -> Self {
        let mut reaches = Self::default();
        reaches.extend(addresses);
        reaches
    }
}

/// The origin of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The user, on the command line.
    ByUser,
    /// A ticket or a configuration that the user trusts; it has addresses of these reaches.
    InList(Reaches),
    /// A peer, relay or controller that was reached at addresses of these reaches.
    ByPeer(Reaches),
}

/// The application's verdict on an address, in addition to the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permission {
    /// The rule decides.
    #[default]
    ByRule,
    /// The operator's configuration allows the address, public or not.
    Granted,
    /// The address must not be tried.
    Denied,
}

/// True if packets may be sent to an address that has not answered. `locals` are the reaches of this machine's sockets.
pub fn may_try(address: SocketAddr, named: Named, locals: Reaches) -> bool {
    let reach = Reach::of(address.ip());
    if reach == Reach::Nowhere || address.port() == 0 {
        return false;
    }
    let near = match reach {
        Reach::Site => locals.contains(Reach::Site) || locals.contains(Reach::Loopback),
        _ => locals.contains(reach),
    };
    match named {
        Named::ByUser => true,
        _ if reach == Reach::Public => true,
        Named::InList(list) if reach == Reach::Loopback => {
            [Reach::Link, Reach::Site, Reach::Public].iter().all(|other| !list.contains(*other))
        }
        Named::InList(_) => near,
        Named::ByPeer(reached) => near && reached.contains(reach),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), 4433)
    }

    fn reaches(ips: &[&str]) -> Reaches {
        ips.iter().map(|ip| at(ip)).collect()
    }

    #[test]
    fn what_may_be_tried_follows_the_table() {
        const LAN: &[&str] = &["192.168.1.20", "127.0.0.1"];
        const ADDRESSES: [&str; 12] = [
            "8.8.8.8",
            "192.168.1.7",
            "10.9.9.9",
            "100.64.0.1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
        ];
        // A letter for each address above: y for allowed, n for not.
        let table = [
            ("typed", Named::ByUser, LAN, "yyyyyyyyyynn"),
            (
                "a ticket with public and private addresses",
                Named::InList(reaches(&["8.8.8.8", "10.9.9.9"])),
                LAN,
                "yyyyyynnnnnn",
            ),
            ("a ticket for this machine", Named::InList(reaches(&["127.0.0.1"])), LAN, "yyyyyyyynnnn"),
            (
                "a ticket, on a machine with public addresses",
                Named::InList(reaches(&["10.9.9.9"])),
                &["8.8.4.4"],
                "ynnnnnnnnnnn",
            ),
            (
                "a ticket, on a machine with a link-local address",
                Named::InList(reaches(&["169.254.7.7"])),
                &["169.254.1.1"],
                "ynnnnnnnyynn",
            ),
            ("a peer at a public address", Named::ByPeer(reaches(&["8.8.4.4"])), LAN, "ynnnnnnnnnnn"),
            ("a peer on the same network", Named::ByPeer(reaches(&["192.168.1.7"])), LAN, "yyyyyynnnnnn"),
            ("a peer on the same machine", Named::ByPeer(reaches(&["127.0.0.1"])), LAN, "ynnnnnyynnnn"),
            (
                "a peer on the same link",
                Named::ByPeer(reaches(&["169.254.7.7"])),
                &["169.254.1.1"],
                "ynnnnnnnyynn",
            ),
            ("a peer not reached yet", Named::ByPeer(Reaches::default()), LAN, "ynnnnnnnnnnn"),
        ];
        for (name, named, locals, expected) in table {
            let found = |ip: &&str| if may_try(at(ip), named, reaches(locals)) { 'y' } else { 'n' };
            assert_eq!(ADDRESSES.iter().map(found).collect::<String>(), expected, "{name}");
        }
        let no_port = SocketAddr::new("8.8.8.8".parse().unwrap(), 0);
        assert!(!may_try(no_port, Named::ByUser, reaches(LAN)));
    }
}
