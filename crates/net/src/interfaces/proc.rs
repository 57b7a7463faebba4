//! Addresses from `/proc/net`, where netlink sockets are forbidden: some sandboxes allow only AF_INET.
//!
//! `fib_trie` has the IPv4 addresses, `route` and `ipv6_route` say over which interface a destination is reached, and
//! `if_inet6` has the IPv6 addresses with their interfaces.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anabranch_engine::Prefix;

use super::{InterfaceAddress, Link, is_unicast, is_usable};

/// The files read.
struct Tables {
    fib_trie: String,
    route: String,
    if_inet6: String,
}

/// True if the files exist.
pub(super) fn is_there() -> bool {
    Path::new("/proc/net/fib_trie").exists()
}

/// All usable addresses.
pub(super) fn list() -> io::Result<Vec<InterfaceAddress>> {
    let read = |name: &str| std::fs::read_to_string(Path::new("/proc/net").join(name));
    let tables = Tables {
        fib_trie: read("fib_trie")?,
        route: read("route")?,
        // Missing without IPv6.
        if_inet6: read("if_inet6").unwrap_or_default(),
    };
    Ok(combine(&tables, number_of))
}

/// Destinations of the IPv4 routes over all interfaces.
pub(super) fn routes() -> io::Result<Vec<Prefix>> {
    let table = std::fs::read_to_string("/proc/net/route")?;
    Ok(table.lines().skip(1).filter_map(read_route).map(|(_, prefix)| prefix).collect())
}

/// The routers of the IPv4 default routes, with the numbers of their interfaces.
pub(super) fn routers() -> io::Result<Vec<(u32, Ipv4Addr)>> {
    let table = std::fs::read_to_string("/proc/net/route")?;
    let routers = table.lines().skip(1).filter_map(read_router);
    Ok(routers.map(|(interface, router)| (number_of(&interface), router)).collect())
}

/// The number of an interface; 0 if unknown.
fn number_of(interface: &str) -> u32 {
    let file = Path::new("/sys/class/net").join(interface).join("ifindex");
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn combine(tables: &Tables, number_of: impl Fn(&str) -> u32) -> Vec<InterfaceAddress> {
    let mut routes: BTreeMap<String, Vec<Prefix>> = BTreeMap::new();
    for (interface, prefix) in tables.route.lines().skip(1).filter_map(read_route) {
        routes.entry(interface).or_default().push(prefix);
    }
    let mut list = Vec::new();
    let mut add = |interface: &str, address: IpAddr, bits: u8| {
        let link = Link { name: interface.to_owned(), running: true, ..Link::default() };
        if !is_unicast(address) || !is_usable(&link, &[]) {
            return;
        }
        let mut known = routes.get(interface).cloned().unwrap_or_default();
        if address.is_ipv6() && !address.is_loopback() {
            // Which interface has the IPv6 default route is unknown; a path that leads nowhere fails to open.
            known.push(Prefix { address: Ipv6Addr::UNSPECIFIED.into(), bits: 0 });
        }
        list.push(InterfaceAddress {
            interface: interface.into(),
            index: number_of(interface),
            address,
            prefix: bits,
            mtu: 0,
            loopback: address.is_loopback(),
            routes: known.into(),
            spare: false,
        });
    };
    for address in own_addresses(&tables.fib_trie) {
        let on_link = routes.iter().flat_map(|(name, list)| list.iter().map(move |route| (name, route)));
        let on_link = on_link.filter(|(_, route)| route.bits > 0 && route.contains(address.into()));
        match on_link.max_by_key(|(_, route)| route.bits) {
            _ if address.is_loopback() => add("lo", address.into(), 8),
            Some((interface, route)) => add(interface, address.into(), route.bits),
            None => {}
        }
    }
    for (interface, address, bits) in tables.if_inet6.lines().filter_map(read_inet6) {
        add(&interface, address.into(), bits);
    }
    list
}

/// The addresses of this machine: each `/32 host LOCAL` belongs to the address on the line above.
fn own_addresses(fib_trie: &str) -> Vec<Ipv4Addr> {
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last.filter(|address| !found.contains(address)));
        }
    }
    found
}

/// A line of `route`: interface and destination, in hexadecimal in the machine's byte order.
fn read_route(line: &str) -> Option<(String, Prefix)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
    let (destination, mask) = (number(1)?.to_ne_bytes(), number(7)?);
    let address = IpAddr::V4(Ipv4Addr::from(destination));
    Some((words.first()?.to_string(), Prefix { address, bits: mask.count_ones() as u8 }))
}

/// The interface and the router in a line of `route`, if that is a default route with one.
fn read_router(line: &str) -> Option<(String, Ipv4Addr)> {
    let (interface, prefix) = read_route(line)?;
    let router = u32::from_str_radix(line.split_whitespace().nth(2)?, 16).ok()?;
    (prefix.bits == 0 && router != 0).then(|| (interface, router.to_ne_bytes().into()))
}

/// A line of `if_inet6`: address, interface number, prefix, scope, flags, interface.
fn read_inet6(line: &str) -> Option<(String, Ipv6Addr, u8)> {
    /// Duplicate, deprecated or tentative.
    const UNFIT: u8 = 0x08 | 0x20 | 0x40;
    let words: Vec<&str> = line.split_whitespace().collect();
    let address = Ipv6Addr::from(u128::from_str_radix(words.first()?, 16).ok()?);
    let byte = |at: usize| u8::from_str_radix(words.get(at)?, 16).ok();
    let (bits, flags) = (byte(2)?, byte(4)?);
    (flags & UNFIT == 0).then(|| words.get(5).map(|name| ((*name).to_owned(), address, bits)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_joined_with_their_interfaces() {
        let tables = Tables {
            fib_trie: "Main:\n  +-- 192.0.2.0/24 2 0 2\n     |-- 192.0.2.0\n        /24 link UNICAST\n     \
                       |-- 192.0.2.2\n        /32 host LOCAL\n  |-- 127.0.0.1\n     /32 host LOCAL\nLocal:\n  \
                       |-- 192.0.2.2\n     /32 host LOCAL\n"
                .to_owned(),
            route: "Iface Destination Gateway Flags RefCnt Use Metric Mask\n\
                    eth0 00000000 010200C0 0003 0 0 0 00000000\n\
                    eth0 000200C0 00000000 0001 0 0 0 00FFFFFF\n"
                .to_owned(),
            if_inet6: "20010db8000000000000000000000009 04 40 00 80 eth0\n\
                       20010db8000000000000000000000008 04 40 00 40 eth0\n\
                       00000000000000000000000000000001 01 80 10 80 lo\n"
                .to_owned(),
        };
        let routers: Vec<_> = tables.route.lines().skip(1).filter_map(read_router).collect();
        assert_eq!(routers, [("eth0".to_owned(), Ipv4Addr::new(192, 0, 2, 1))]);
        let list = combine(&tables, |name| if name == "eth0" { 4 } else { 1 });
        let shown: Vec<String> = list
            .iter()
            .map(|at| {
                format!(
                    "{} {} {}/{} {}",
                    at.interface,
                    at.index,
                    at.address,
                    at.prefix,
                    at.has_default_route()
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "eth0 4 192.0.2.2/24 true",
                "lo 1 127.0.0.1/8 false",
                "eth0 4 2001:db8::9/64 true",
                "lo 1 ::1/128 false"
            ]
        );
    }

    #[tokio::test]
    async fn the_files_of_this_machine_give_what_netlink_gives() {
        let known: Vec<IpAddr> =
            super::super::local_addresses().await.unwrap().iter().map(|at| at.address).collect();
        let found = list().unwrap();
        let v4 = |list: &mut dyn Iterator<Item = IpAddr>| {
            let mut list: Vec<IpAddr> = list.filter(IpAddr::is_ipv4).collect();
            list.sort();
            list
        };
        assert_eq!(v4(&mut found.iter().map(|at| at.address)), v4(&mut known.iter().copied()));
    }
}
