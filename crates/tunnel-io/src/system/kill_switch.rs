//! The kill switch: a firewall table that lets nothing leave outside the tunnels.
//!
//! It stays when a tunnel ends, until its user takes it away. There is one table for all tunnels of a network namespace:
//! two tables would each drop what the other accepts.

use std::collections::BTreeMap;

use super::Step;
use super::registry::{self, Registry};
use crate::error::TunnelError;

/// The firewall table: one name, so that any later run finds it.
pub const TABLE: &str = "anabranch_kill_switch";

/// Closes it again if another program deleted it, as `nft flush ruleset` does. True if it was missing.
pub(super) fn restore(interface: &str, udp_port: u16) -> bool {
    let mut is_closed = false;
    // Once the tunnel has ended, its user may have opened it.
    let restored = !super::is_listed(TABLE)
        && registry::while_running(interface, |registry| {
            is_closed = close_in(registry, interface, udp_port).is_ok();
        });
    restored && is_closed
}

/// Allows only packets through this tunnel and others with a kill switch, and the tunnels' own packets.
pub fn close(interface: &str, udp_port: u16) -> Result<(), TunnelError> {
    registry::update(|registry| close_in(registry, interface, udp_port))
}

fn close_in(registry: &mut Registry, interface: &str, udp_port: u16) -> Result<(), TunnelError> {
    registry.close(interface, udp_port);
    Step::nft(script(&registry.closed())).run().map(drop)
}

/// The devices of tunnels that have one, whether they run or have ended.
pub fn closed() -> Vec<String> {
    registry::kill_switches()
}

/// Removes this tunnel's kill switch, at the user's request only. Those of other tunnels stay.
///
/// # Errors
/// [`TunnelError`] if it may still be there, or another process runs the tunnel.
pub fn open(interface: &str) -> Result<(), TunnelError> {
    registry::update(|registry| {
        if registry.is_running_here(interface) {
            // It may have begun a moment ago.
            return Err(TunnelError::Running(interface.to_owned()));
        }
        let closed = registry.closed();
        let Some(script) = opening(closed.clone(), interface) else { return Ok(()) };
        let opened = Step::nft(script).run();
        // Without an entry there is no kill switch, and perhaps no `nft`.
        if closed.contains_key(interface) {
            opened?;
            registry.open(interface);
        }
        Ok(())
    })
}

/// The change after which this tunnel has no kill switch; `None` if only others have one.
fn opening(mut closed: BTreeMap<String, u16>, interface: &str) -> Option<String> {
    let was_closed = closed.remove(interface).is_some();
    if closed.is_empty() {
        // Adding the table first makes a missing one no error.
        return Some(format!("add table inet {TABLE}\ndelete table inet {TABLE}\n"));
    }
    was_closed.then(|| script(&closed))
}

/// The table for these tunnels: the UDP ports of their own packets, by their devices.
fn script(tunnels: &BTreeMap<String, u16>) -> String {
    let list = |texts: Vec<String>| texts.join(", ");
    let interfaces = list(tunnels.keys().map(|interface| format!("\"{interface}\"")).collect());
    let ports = list(tunnels.values().map(ToString::to_string).collect());
    format!(
        "add table inet {TABLE}\n\
         delete table inet {TABLE}\n\
         table inet {TABLE} {{\n\
         \tchain output {{\n\
         \t\ttype filter hook output priority 0; policy drop;\n\
         \t\toifname {{ \"lo\", {interfaces} }} accept\n\
         \t\tudp sport {{ {ports} }} accept\n\
         \t\tudp dport {{ 67, 547 }} accept\n\
         \t\ticmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} accept\n\
         \t\tct direction reply ct status dnat accept comment \"neighbours whose connections became streams\"\n\
         \t\tmeta l4proto tcp ct state new reject with icmpx type admin-prohibited\n\
         \t}}\n\
         \tchain forward {{\n\
         \t\ttype filter hook forward priority 0; policy drop;\n\
         \t\toifname {{ {interfaces} }} accept\n\
         \t\tiifname {{ {interfaces} }} accept\n\
         \t}}\n\
         }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> BTreeMap<String, u16> {
        BTreeMap::from([("a0".to_owned(), 4001), ("b0".to_owned(), 4002)])
    }

    #[test]
    fn it_lets_out_every_tunnel_and_its_packets() {
        let script = script(&two());
        assert!(script.contains("oifname { \"lo\", \"a0\", \"b0\" } accept"), "{script}");
        assert!(script.contains("udp sport { 4001, 4002 } accept"), "{script}");
    }

    #[test]
    fn opening_one_leaves_the_others_closed() {
        let left = opening(two(), "a0").unwrap();
        assert!(left.contains("udp sport { 4002 } accept") && !left.contains("a0"), "{left}");
        assert_eq!(opening(two(), "c0"), None);
        let last = BTreeMap::from([("a0".to_owned(), 4001)]);
        assert!(!opening(last, "a0").unwrap().contains("chain"), "the table goes");
    }
}
