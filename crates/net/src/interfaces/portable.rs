//! Interfaces by polling, for systems without netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anabranch_engine::Prefix;

use super::{InterfaceAddress, Link, POLL_INTERVAL, is_unicast, is_usable};

/// Reports a possible change at regular intervals, since the system does not report changes.
pub(super) struct Changes;

impl Changes {
    pub(super) fn subscribe() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Routes are unknown here.
pub(super) async fn routes() -> io::Result<Vec<Prefix>> {
    Ok(Vec::new())
}

/// All usable addresses. Routes are unknown here, so each interface is assumed to have a default route. A path that leads
/// nowhere fails to open, without other harm.
pub(super) async fn list() -> io::Result<Vec<InterfaceAddress>> {
    let mut list = Vec::new();
    for found in if_addrs::get_if_addrs()? {
        let link = Link {
            name: found.name.clone(),
            running: found.is_oper_up(),
            loopback: found.is_loopback(),
            ..Link::default()
        };
        if !is_unicast(found.ip()) || !is_usable(&link, &[]) {
            continue;
        }
        let (prefix, everything) = match &found.addr {
            if_addrs::IfAddr::V4(v4) => (v4.prefixlen, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            if_addrs::IfAddr::V6(v6) => (v6.prefixlen, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        let everywhere = Prefix { address: everything, bits: 0 };
        list.push(InterfaceAddress {
            interface: found.name.as_str().into(),
            index: found.index.unwrap_or(0),
            address: found.ip(),
            prefix,
            mtu: 0,
            loopback: found.is_loopback(),
            routes: if found.is_loopback() { Arc::from([]) } else { Arc::from([everywhere]) },
        });
    }
    Ok(list)
}
