//! A server that is no exit.

use super::*;

#[test]
fn a_server_that_is_no_exit_forwards_to_the_networks_behind_it() {
    let test = "a_server_that_is_no_exit_forwards_to_the_networks_behind_it";
    let Some((machines, _turn)) = three_links_shared(test).filter(|_| has_tun(test)) else { return };
    let forwards = || {
        let file = "/proc/sys/net/ipv4/ip_forward";
        let output = machines.command(Side::Far, "cat").arg(file).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim() == "1"
    };
    if forwards() {
        return skip(test, "new network namespaces forward");
    }
    let plan = Plan { more: &["--no-exit"], ..first() };
    let tunnel = Tunnel::planned(&machines, plan, &["--no-streams"]);
    assert!(forwards());
    drop(tunnel);
    wait_for("the setting to be as before", || !forwards());
}
