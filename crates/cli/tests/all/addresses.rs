//! Addresses of all kinds between two network namespaces. Needs root; otherwise it reports a skipped test.
#![cfg(target_os = "linux")]

use crate::common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use common::netns::{Machines, Side, run};
use common::programs::{PROGRAM, Running, Sender, receive};

/// Runs the command that follows where `socket` refuses netlink, as a service manager can have it.
const WITHOUT_NETLINK: &str = r#"
import ctypes, errno, os, platform, struct, sys
call = {"x86_64": 41, "aarch64": 198}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 3, call), (0x20, 0, 0, 16), (0x15, 0, 1, 16),
         (6, 0, 0, 0x50000 | errno.EAFNOSUPPORT), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
filter = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, filter, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Two machines joined by this many links; `None` where namespaces are unavailable.
fn machines(test: &str, links: usize) -> Option<Machines> {
    Machines::new(&vec![50; links]).map_err(|why| common::skip(test, &why)).ok()
}

/// Runs `ip` in a machine's namespace.
fn ip(machines: &Machines, side: Side, line: &str) {
    run("ip", &format!("-n {} {line}", machines.namespace_name(side))).unwrap();
}

/// Starts a test server on the far machine; returns it with its ticket.
fn server(machines: &Machines) -> (Running, String) {
    let mut command = machines.command(Side::Far, PROGRAM);
    let mut server = Running::start(command.args(["bench", "server"]).stdin(Stdio::null()));
    let mut line = String::new();
    BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ticket = line.split_whitespace().last().expect("the line to paste").to_owned();
    (server, ticket)
}

/// Runs a short test from the near machine.
fn bench(machines: &Machines, ticket: &str, options: &[&str]) -> Output {
    let mut client: Command = machines.command(Side::Near, PROGRAM);
    client.args(["bench", "client", ticket, "--time", "1s"]).args(options).stdin(Stdio::null());
    client.output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn link_local_addresses_carry_a_session_over_a_direct_cable() {
    let Some(machines) = machines("link_local_addresses", 1) else { return };
    for (only, words) in [("IPv6", None), ("IPv4", Some("169.254.9"))] {
        for (side, host) in [(Side::Near, 1), (Side::Far, 2)] {
            ip(&machines, side, "-4 address flush dev path0");
            if let Some(net) = words {
                ip(&machines, side, "-6 address flush dev path0");
                ip(&machines, side, &format!("address add {net}.{host}/16 dev path0"));
            }
        }
        // As if it had just been plugged in: the addresses are being checked for duplicates.
        ip(&machines, Side::Near, "link set path0 down");
        ip(&machines, Side::Near, "link set path0 up");
        let (_server, ticket) = server(&machines);
        let output = bench(&machines, &ticket, &["--json"]);
        assert!(output.status.success(), "{only}: {}", errors(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let path = report["intervals"].as_array().unwrap().last().unwrap()["paths"][0]["remote"].to_string();
        assert!(path.contains(words.unwrap_or("[fe80::")), "{only}: {path}");
    }
}

#[test]
fn the_own_firewall_and_a_small_mtu_are_named() {
    let Some(machines) = machines("the_own_firewall", 1) else { return };
    let (_server, ticket) = server(&machines);
    let rules = "add table inet shut; add chain inet shut output { type filter hook output priority 0; }; \
                 add rule inet shut output meta l4proto udp drop";
    assert!(machines.command(Side::Near, "nft").arg(rules).status().unwrap().success());
    let output = errors(&bench(&machines, &ticket, &[]));
    assert!(output.contains("own firewall refuses packets from 10.77.1.1"), "{output}");
    assert!(machines.command(Side::Near, "nft").arg("delete table inet shut").status().unwrap().success());
    ip(&machines, Side::Near, "link set path0 mtu 1000");
    let output = errors(&bench(&machines, &ticket, &[]));
    assert!(output.contains("path0 carries packets of 1000 bytes at most"), "{output}");
}

#[test]
fn a_rule_for_an_interface_that_is_not_there_is_reported() {
    let Some(machines) = machines("a_rule_for_an_interface", 1) else { return };
    let (_server, ticket) = server(&machines);
    let output = bench(&machines, &ticket, &["--path-rule", "wlan*=backup", "--path-rule", "path0=primary"]);
    let text = errors(&output);
    assert!(output.status.success() && text.contains("no interface fits the rule `wlan*=backup`"), "{text}");
    assert!(!text.contains("path0=primary"), "{text}");
}

#[test]
fn a_ticket_has_an_address_of_every_network_and_the_sender_names_the_omitted_ones() {
    let Some(machines) = machines("a_ticket_has_an_address_of_every_network", 2) else { return };
    for host in 10..30 {
        ip(&machines, Side::Far, &format!("address add 10.77.1.{host}/24 dev path0"));
    }
    let mut command = machines.command(Side::Far, PROGRAM);
    command.args(["send", "/etc/hostname"]).stdin(Stdio::null());
    let mut sender = Running::start(&mut command);
    let mut ticket = String::new();
    BufReader::new(sender.child.stdout.take().unwrap()).read_line(&mut ticket).unwrap();
    // So does any other command that makes a ticket.
    let omitted = "room for 16 addresses; left out: 10.77.1.";
    let (bench, _) = server(&machines);
    bench.interrupt();
    let (_, text) = bench.end();
    assert!(text.contains(omitted), "{text}");
    machines.set_link((Side::Near, 0), false).unwrap();
    let mut receiver = machines.command(Side::Near, PROGRAM);
    let received =
        receiver.args(["receive", ticket.trim(), "-", "--yes"]).stdin(Stdio::null()).output().unwrap();
    assert!(received.status.success(), "{}", errors(&received));
    sender.interrupt();
    let (_, text) = sender.end();
    assert!(text.contains(omitted), "{text}");
}

#[test]
fn a_receiver_may_be_told_a_further_address() {
    let Some(machines) = machines("a_receiver_may_be_told_a_further_address", 1) else { return };
    let mut command = machines.command(Side::Far, PROGRAM);
    let mut sender = Running::start(command.args(["send", "/etc/hostname"]).stdin(Stdio::null()));
    let mut ticket = String::new();
    BufReader::new(sender.child.stdout.take().unwrap()).read_line(&mut ticket).unwrap();
    for (side, host) in [(Side::Near, 1), (Side::Far, 2)] {
        ip(&machines, side, &format!("address add 10.88.1.{host}/24 dev path0"));
        ip(&machines, side, &format!("address delete 10.77.1.{host}/24 dev path0"));
    }
    let receive = |options: &[&str]| {
        let mut receiver = machines.command(Side::Near, PROGRAM);
        receiver.args(["receive", ticket.trim(), "-", "--yes"]).args(options);
        receiver.stdin(Stdio::null()).output().unwrap()
    };
    assert!(!receive(&["--timeout", "2s"]).status.success());
    let received = receive(&["--address", "10.88.1.2"]);
    assert!(received.status.success(), "{}", errors(&received));

    // Both ends have addresses that do not fit, besides their link-local ones.
    ip(&machines, Side::Near, "address delete 10.88.1.1/24 dev path0");
    ip(&machines, Side::Near, "address add 10.99.1.1/24 dev path0");
    assert!(!receive(&["--address", "10.88.1.2", "--timeout", "2s"]).status.success());
    let local = |side| {
        let line = "-6 -oneline address show dev path0 scope link -tentative";
        run("ip", &format!("-n {} {line}", machines.namespace_name(side))).unwrap()
    };
    for side in [Side::Near, Side::Far] {
        common::programs::wait_for("an address that is not tentative", || local(side).contains("inet6"));
    }
    let far = local(Side::Far);
    let far = far.split_whitespace().find_map(|word| word.strip_suffix("/64")).expect("a link-local address");
    let received = receive(&["--address", &format!("[{far}%path0]")]);
    assert!(received.status.success(), "{}", errors(&received));
}

#[test]
fn without_netlink_addresses_are_found_and_a_hint_is_given() {
    let without = |words: &[&str]| {
        let mut command = Command::new("python3");
        command.args(["-c", WITHOUT_NETLINK]).args(words).stdin(Stdio::null());
        command
    };
    if !without(&["/bin/true"]).output().is_ok_and(|probe| probe.status.success()) {
        return common::skip("without_netlink", "python3 cannot forbid netlink sockets here");
    }
    let mut command = without(&[PROGRAM, "send", "/etc/hostname"]);
    let sender = Sender::start_as(command.env_remove("ANABRANCH_KEY").env_remove("ANABRANCH_CONTROLLER"));
    let received = receive(&[&sender.ticket, "-"]);
    assert!(received.status.success(), "{}", errors(&received));
    sender.running.interrupt();
    let (_, told) = sender.running.end();
    assert!(told.contains("cannot open a netlink socket"), "{told}");
    assert!(told.contains("let this program open sockets of AF_NETLINK"), "{told}");
}
