//! Checks the host that a request names, against DNS rebinding: a web page has its own name lead to this server, and
//! reads the answers through the browser of someone who reaches it.
//!
//! A browser sends the page's name as `Host`. The page's owner has registered that name, so it is no address, and not one
//! of the names for private networks.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};

/// Ends of names that cannot be registered: RFC 6762, RFC 8375, what ICANN keeps for private use, and what routers give.
const PRIVATE: [&str; 4] = ["local", "home.arpa", "internal", "lan"];

/// The hosts under which a server is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hosts {
    /// Of a loopback address: loopback addresses and `localhost`.
    Loopback,
    /// Of another address: every address, names that cannot be registered, and the name of this machine.
    Network {
        /// The name of this machine, if known.
        own: Option<String>,
    },
}

impl Hosts {
    /// The hosts for a server that listens at this address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_loopback() {
            return Self::Loopback;
        }
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Self::Network { own: own.map(|own| own.trim().to_owned()).filter(|own| !own.is_empty()) }
    }

    /// Tells a client with another host how to ask.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Loopback => {
                "ask by a loopback address, such as http://127.0.0.1:8080/, or `localhost`; a reverse proxy has to send \
                 one of them as `Host`\n"
            }
            Self::Network { .. } => {
                "ask by an address, such as http://192.0.2.1:8080/, by the host name of this machine, or by a name such \
                 as `nas` or `nas.local`; a reverse proxy has to send one of them as `Host`\n"
            }
        }
    }

    /// Whether a request names one of them. HTTP/1.0 requests may omit the host.
    pub fn are_named(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(header::HOST) else { return true };
        let Ok(host) = host.to_str() else { return false };
        let bare = host.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(ip, _)| ip);
        let name = bare.unwrap_or_else(|| host.rsplit_once(':').map_or(host, |(name, _)| name));
        let name = name.strip_suffix('.').unwrap_or(name);
        let ip = name.parse::<IpAddr>().ok();
        match self {
            _ if name.eq_ignore_ascii_case("localhost") => true,
            Self::Loopback => ip.is_some_and(|ip| ip.is_loopback()),
            Self::Network { own } => {
                ip.is_some()
                    || is_private(name)
                    || own.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(name))
            }
        }
    }
}

/// Whether a name has no dot, or one of the [`PRIVATE`] ends.
fn is_private(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let has_end = |end: &&str| name.strip_suffix(*end).is_some_and(|rest| rest.ends_with('.'));
    !name.is_empty() && (!name.contains(['.', ':']) || PRIVATE.iter().any(has_end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(hosts: &Hosts, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        hosts.are_named(&headers)
    }

    #[test]
    fn a_page_under_a_name_of_its_own_is_not_answered() {
        let hosts = Hosts::of([127, 0, 0, 1].into());
        assert!(hosts.are_named(&HeaderMap::new()));
        for host in ["127.0.0.1", "127.0.0.1:4780", "[::1]:4780", "[::1]", "localhost:1", "LOCALHOST"] {
            assert!(asked(&hosts, host), "{host}");
        }
        for host in ["evil.example", "evil.example:4780", "192.0.2.1", "localhost.evil.example", "", "::1x"] {
            assert!(!asked(&hosts, host), "{host}");
        }
    }

    #[test]
    fn a_network_asks_by_address_or_by_a_name_that_cannot_be_registered() {
        assert!(matches!(Hosts::of([0, 0, 0, 0].into()), Hosts::Network { .. }));
        let hosts = Hosts::Network { own: Some("files.example.org".into()) };
        for host in [
            "192.0.2.1:8080",
            "[2001:db8::1]:8080",
            "localhost:8080",
            "nas:8080",
            "NAS.local",
            "a.nas.lan.:8080",
            "nas.home.arpa",
            "Files.Example.org:8080",
        ] {
            assert!(asked(&hosts, host), "{host}");
        }
        for host in
            ["evil.example:8080", "a.files.example.org", "evillocal.example", "evil.xlocal", "", "::1x"]
        {
            assert!(!asked(&hosts, host), "{host}");
        }
    }
}
