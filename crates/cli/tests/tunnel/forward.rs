//! Machines that forward for the networks behind them.

use super::*;

#[test]
fn a_server_that_is_no_exit_forwards_to_the_networks_behind_it() {
    let test = "a_server_that_is_no_exit_forwards_to_the_networks_behind_it";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
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

#[test]
fn a_client_forwards_for_the_network_behind_it_as_long_as_it_runs() {
    let test = "a_client_forwards_for_the_network_behind_it_as_long_as_it_runs";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let setting = || {
        let words = ["/proc/sys/net/ipv4/ip_forward"];
        let output = machines.command(Side::Near, "cat").args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    if setting() == "1" {
        return skip(test, "new network namespaces forward");
    }
    let mut tunnel = Tunnel::served(&machines, first(), &[]);
    let made = tunnel.command(Side::Near, "to", &["keys", "new", "--json"]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let client =
        format!("{}=192.168.50.0/24", shown["public_key"].as_str().unwrap_or_else(|| panic!("{shown}")));
    tunnel.server.take().unwrap().kill();
    tunnel.start_server_with(&["--client", &client]);
    tunnel.start_client(&["--network", "192.168.50.0/24"]);
    assert_eq!(setting(), "1");
    assert!(state(&machines, Side::Near).contains("ip saddr != "), "others do not use the tunnel");
    assert!(ask(&tunnel, Side::Near, &["down"]).0);
    assert_eq!(setting(), "0");
}
