//! A machine whose administrator has turned IPv6 off.

use super::*;

#[test]
fn a_client_without_ipv6_uses_a_server_that_has_it() {
    let test = "a_client_without_ipv6_uses_a_server_that_has_it";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let turn_off = ["-w", "net.ipv6.conf.all.disable_ipv6=1"];
    let is_off = machines.command(Side::Near, "sysctl").args(turn_off).stderr(Stdio::null()).status();
    if !is_off.is_ok_and(|status| status.success()) {
        return skip(test, "there is no IPv6 to turn off");
    }
    let plan = Plan { more: &["--address-inside", "fdab:177::1/64"], ..first() };
    let tunnel = Tunnel::planned(&machines, plan, &[]);
    wait_for("answers of an address of the Internet", || tunnel.ping(3) >= 2);
}

#[test]
fn packets_of_a_family_that_the_server_lacks_leave_outside_unless_a_kill_switch_blocks_them() {
    let test = "packets_of_a_family_that_the_server_lacks_leave_outside_unless_a_kill_switch_blocks_them";
    let Some((machines, _turn)) = machines(test, &["python3"]) else { return };
    for (side, address) in [(Side::Near, "fd00:99::1/64"), (Side::Far, "fd00:99::2/64")] {
        let words = ["-6", "address", "add", address, "dev", &Machines::interface(0), "nodad"];
        if !machines.command(side, "ip").args(words).stderr(Stdio::null()).status().unwrap().success() {
            return skip(test, "there is no IPv6");
        }
    }
    let service = "import socket\n\
        s = socket.create_server(('::', 5401), family=socket.AF_INET6)\n\
        while True: s.accept()[0].send(b'x')";
    let _service = Running::start(machines.command(Side::Far, "python3").args(["-c", service]));
    for (options, leaves, told) in [
        (&["--path-rule", "*=primary"][..], true, "`--kill-switch` blocks them"),
        (&["--kill-switch"], false, "the kill switch blocks these packets"),
    ] {
        let mut tunnel = Tunnel::up(&machines, options);
        if leaves {
            wait_for("an answer outside the tunnel", || tunnel.connects("fd00:99::2", 5401));
        } else {
            assert!(!tunnel.connects("fd00:99::2", 5401));
        }
        for words in ["down", "cleanup"] {
            assert!(ask(&tunnel, Side::Near, &[words]).0, "{words}");
        }
        let text = tunnel.client.take().unwrap().end().1;
        assert!(text.contains(told), "{text}");
    }
}
