//! A machine whose administrator has turned IPv6 off.

use super::*;

#[test]
fn a_client_without_ipv6_uses_a_server_that_has_it() {
    let test = "a_client_without_ipv6_uses_a_server_that_has_it";
    let Some((machines, _turn)) = three_links_shared(test).filter(|_| has_tun(test)) else { return };
    let turn_off = ["-w", "net.ipv6.conf.all.disable_ipv6=1"];
    let is_off = machines.command(Side::Near, "sysctl").args(turn_off).stderr(Stdio::null()).status();
    if !is_off.is_ok_and(|status| status.success()) {
        return skip(test, "there is no IPv6 to turn off");
    }
    let plan = Plan { more: &["--address-inside", "fdab:177::1/64"], ..first() };
    let tunnel = Tunnel::planned(&machines, plan, &[]);
    wait_for("answers of an address of the Internet", || tunnel.ping(3) >= 2);
}
