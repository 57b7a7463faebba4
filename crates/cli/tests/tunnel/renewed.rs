//! A server that comes back with other addresses and networks.

use super::*;

#[test]
fn a_client_takes_over_other_addresses_and_routes_of_a_restarted_server() {
    let test = "a_client_takes_over_other_addresses_and_routes_of_a_restarted_server";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let before = state(&machines, Side::Near);
    let mut tunnel = Tunnel::up(&machines, &[]);
    tunnel.server.take().unwrap().kill();
    // Another program may have deleted the rules of the old grant, as `nft flush ruleset` does.
    let table = format!("anabranch_tunnel_{}", tunnel.plan.near);
    let delete = ["delete", "table", "inet", &table];
    assert!(machines.command(Side::Near, "nft").args(delete).status().unwrap().success());
    let more = &["--allow", "10.20.0.0/16", "--no-streams"];
    tunnel.plan = Plan { network: "10.179.0.1/16", inside: "10.179.0.1", more, ..tunnel.plan };
    tunnel.start_server();
    wait_for("an answer at the new address", || tunnel.ping_to(&["10.179.0.1"]) > 0);
    let show = |words: &str| {
        let output = machines.command(Side::Near, "ip").args(words.split_whitespace()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let device = tunnel.plan.near;
    let addresses = show(&format!("-4 address show dev {device}"));
    assert!(addresses.contains("10.179.") && !addresses.contains("10.177."), "{addresses}");
    let routes = show(&format!("route show table all dev {device} proto 187"));
    assert!(routes.contains("10.20.0.0/16") && !routes.contains("10.177."), "{routes}");
    assert!(tunnel.ping(3) >= 2, "an address of the Internet");
    assert!(ask(&tunnel, Side::Near, &["down"]).0);
    wait_for_state(&machines, Side::Near, &before);
}
