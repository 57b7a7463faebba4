//! The kill switch: a firewall table that lets nothing leave outside the tunnels.
//!
//! It stays when a tunnel ends, until its user takes it away. There is one table for all tunnels of the machine: two
//! tables would each drop what the other accepts.

use super::{Step, registry};
use crate::error::TunnelError;

/// The firewall table: one name, so that any later run finds it.
pub const TABLE: &str = "anabranch_kill_switch";

/// Closes it again if another program deleted it, as `nft flush ruleset` does. True if it was missing.
pub(super) fn restore(interface: &str, udp_port: u16) -> bool {
    // Once the tunnel has ended, its user may have opened it.
    !super::is_listed(TABLE)
        && registry::while_running(interface, || {})
        && close(interface, udp_port).is_ok()
}

/// Allows only packets through this tunnel and others with a kill switch, and the tunnels' own packets.
///
/// # Errors
/// [`TunnelError::Command`].
pub fn close(interface: &str, udp_port: u16) -> Result<(), TunnelError> {
    registry::update(|registry| {
        registry.kill_switch.insert(interface.to_owned(), udp_port);
        let tunnels: Vec<(&String, u16)> =
            registry.kill_switch.iter().map(|(interface, port)| (interface, *port)).collect();
        Step::nft(script(&tunnels)).run().map(drop)
    })
}

/// Whether there is one, of a tunnel that runs or has ended.
#[must_use]
pub fn is_closed() -> bool {
    registry::has_kill_switch()
}

/// Removes the kill switch; called only at the user's request.
///
/// # Errors
/// [`TunnelError`] if it may still be there.
pub fn open() -> Result<(), TunnelError> {
    registry::update(|registry| {
        // Adding the table first makes a missing one no error.
        let opened = Step::nft(format!("add table inet {TABLE}\ndelete table inet {TABLE}\n")).run();
        // Without an entry there is no kill switch, and perhaps no `nft`.
        if !registry.kill_switch.is_empty() {
            opened?;
            registry.kill_switch.clear();
        }
        Ok(())
    })
}

fn script(tunnels: &[(&String, u16)]) -> String {
    let list = |texts: Vec<String>| texts.join(", ");
    let interfaces = list(tunnels.iter().map(|(interface, _)| format!("\"{interface}\"")).collect());
    let ports = list(tunnels.iter().map(|(_, port)| port.to_string()).collect());
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

    #[test]
    fn it_lets_out_every_tunnel_and_its_packets() {
        let (one, other) = ("a0".to_owned(), "b0".to_owned());
        let script = script(&[(&one, 4001), (&other, 4002)]);
        assert!(script.contains("oifname { \"lo\", \"a0\", \"b0\" } accept"), "{script}");
        assert!(script.contains("udp sport { 4001, 4002 } accept"), "{script}");
    }
}
