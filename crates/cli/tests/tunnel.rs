//! `tunnel` between two network namespaces joined by links of 50, 30 and 20 Mbit/s. Needs root and TUN; otherwise it
//! reports a skipped test.
#![cfg(target_os = "linux")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use common::netns::{CEILING, Machines, Side, three_links};
use common::programs::{PROGRAM, Running, Scratch, wait_for};
use common::{skip, within_three_attempts};

/// An address of the far machine that stands for one on the Internet.
const PUBLIC: &str = "1.2.3.4";
/// The far machine's address in the tunnel.
const INSIDE: &str = "10.177.0.1";

/// A server on the far machine and a client on the near one.
struct Tunnel<'a> {
    machines: &'a Machines,
    scratch: Scratch,
    server: Option<Running>,
    client: Option<Running>,
    ticket: String,
}

impl<'a> Tunnel<'a> {
    /// Starts both, and passes these options to the client.
    fn up(machines: &'a Machines, options: &[&str]) -> Self {
        let far = |words: &str| {
            let output = machines.command(Side::Far, "ip").args(words.split_whitespace()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        far(&format!("address replace {PUBLIC}/32 dev lo"));
        let scratch = Scratch::new();
        let mut tunnel = Self { machines, scratch, server: None, client: None, ticket: String::new() };
        tunnel.start_server();
        tunnel.start_client(options);
        tunnel
    }

    fn command(&self, side: Side, name: &str, words: &[&str]) -> Command {
        let mut command = self.machines.command(side, PROGRAM);
        command.args(words).env("HOME", self.scratch.path(name)).env_remove("ANABRANCH_KEY");
        command.env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
        command
    }

    fn start_server(&mut self) {
        let words = ["tunnel", "serve", "--interface", "ab-far"];
        let mut server = Running::start(&mut self.command(Side::Far, "from", &words));
        let mut line = String::new();
        BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ticket = line.split_whitespace().last();
        let Some(ticket) = ticket else { panic!("no ticket: {}", server.end().1) };
        ticket.clone_into(&mut self.ticket);
        self.server = Some(server);
    }

    fn start_client(&mut self, options: &[&str]) {
        let ticket = self.ticket.clone();
        let words = [&["tunnel", "up", &ticket, "--interface", "ab-near"], options].concat();
        self.client = Some(Running::start(&mut self.command(Side::Near, "to", &words)));
        wait_for("an answer through the tunnel", || self.ping(1) > 0);
    }

    /// Sends `count` pings and returns how many are answered.
    fn ping(&self, count: u32) -> usize {
        let (count, wait) = (count.to_string(), "1");
        let words = ["-c", &count, "-W", wait, "-i", "0.02", PUBLIC];
        let output = self.machines.command(Side::Near, "ping").args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).matches("bytes from").count()
    }

    /// Goodput of `iperf3` to an address of the far machine with these options, in Mbit/s.
    fn iperf(&self, to: &str, options: &[&str]) -> f64 {
        let serve = ["-s", "-1", "-p", "5301"];
        let mut server = Running::start(self.machines.command(Side::Far, "iperf3").args(serve));
        sleep(Duration::from_millis(500));
        let ask = [&["-c", to, "-p", "5301", "-J"], options].concat();
        let output = self.machines.command(Side::Near, "iperf3").args(ask).output().unwrap();
        let _ = server.child.kill();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let sums = &report["end"];
        let received = sums["sum_received"]["bits_per_second"].as_f64();
        received.or_else(|| sums["sum"]["bits_per_second"].as_f64()).unwrap_or(0.0) / 1e6
    }
}

/// Returns the machine's network settings, to check that a tunnel leaves nothing behind.
fn state(machines: &Machines, side: Side) -> String {
    let show = |program: &str, words: &str| {
        let output = machines.command(side, program).args(words.split_whitespace()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = [
        show("ip", "rule show"),
        show("ip", "-6 rule show"),
        show("ip", "-4 route show table all"),
        show("nft", "list ruleset"),
        show("cat", "/proc/sys/net/ipv4/ip_forward"),
        show("ip", "-o link show"),
    ];
    shown.join("\n")
}

/// Whether this machine supports a tunnel; prints the reason if not.
fn has_tun(test: &str) -> bool {
    let has = std::path::Path::new("/dev/net/tun").exists();
    if !has {
        skip(test, "there is no /dev/net/tun");
    }
    has
}

fn has_iperf(test: &str) -> bool {
    let has = Command::new("iperf3").arg("--version").output().is_ok();
    if !has {
        skip(test, "iperf3 is not installed");
    }
    has
}

#[test]
fn one_connection_through_the_tunnel_runs_at_the_sum_of_the_links() {
    let test = "one_connection_through_the_tunnel";
    let Some((machines, _turn)) = three_links(test).filter(|_| has_tun(test) && has_iperf(test)) else {
        return;
    };
    let tunnel = Tunnel::up(&machines, &[]);
    within_three_attempts(test, || {
        let rate = tunnel.iperf(PUBLIC, &["-t", "6", "-O", "2"]);
        let found = format!("{rate:.1} Mbit/s as a stream");
        if rate >= 0.9 * CEILING { Ok(found) } else { Err(found) }
    });
}

#[test]
fn packets_of_one_udp_flow_take_all_paths_and_arrive_in_order() {
    let test = "packets_of_one_udp_flow";
    let Some((machines, _turn)) = three_links(test).filter(|_| has_tun(test) && has_iperf(test)) else {
        return;
    };
    let tunnel = Tunnel::up(&machines, &[]);
    within_three_attempts(test, || {
        let rate = tunnel.iperf(INSIDE, &["-u", "-b", "80M", "-l", "1200", "-t", "6", "-O", "2"]);
        let found = format!("{rate:.1} of 80 Mbit/s");
        if rate >= 70.0 { Ok(found) } else { Err(found) }
    });
}

#[test]
fn a_client_reaches_public_addresses_only() {
    let test = "a_client_reaches_public_addresses_only";
    let Some((machines, _turn)) = three_links(test).filter(|_| has_tun(test)) else { return };
    let tunnel = Tunnel::up(&machines, &["--no-streams"]);
    assert!(tunnel.ping(3) >= 2);
    // A network of the far machine that the tunnel's settings do not list.
    let far =
        machines.command(Side::Far, "ip").args(["address", "add", "10.99.0.1/32", "dev", "lo"]).status();
    assert!(far.unwrap().success());
    let words = ["-c", "2", "-W", "1", "10.99.0.1"];
    let output = machines.command(Side::Near, "ping").args(words).output().unwrap();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_killed_tunnel_leaves_nothing_behind_and_the_next_one_works() {
    let test = "a_killed_tunnel_leaves_nothing_behind";
    let Some((machines, _turn)) = three_links(test).filter(|_| has_tun(test)) else { return };
    let before = [Side::Near, Side::Far].map(|side| state(&machines, side));
    let mut tunnel = Tunnel::up(&machines, &[]);
    assert_ne!(state(&machines, Side::Near), before[0]);
    tunnel.client.take().unwrap().kill();
    // The test itself added the address that stands for the Internet.
    let is_as_before = |side: Side, before: &str| {
        let now = state(&machines, side);
        now.lines().filter(|line| !line.contains(PUBLIC)).eq(before.lines())
    };
    wait_for("the client's rules to go", || is_as_before(Side::Near, &before[0]));
    tunnel.start_client(&[]);
    tunnel.server.take().unwrap().kill();
    wait_for("the server's rules to go", || is_as_before(Side::Far, &before[1]));
}

#[test]
fn programs_go_on_when_the_server_was_restarted() {
    let test = "programs_go_on_when_the_server_was_restarted";
    let Some((machines, _turn)) = three_links(test).filter(|_| has_tun(test)) else { return };
    let mut tunnel = Tunnel::up(&machines, &["--no-streams"]);
    tunnel.server.take().unwrap().kill();
    let ticket = tunnel.ticket.clone();
    tunnel.start_server();
    assert_eq!(tunnel.ticket, ticket, "the ticket stays good");
    wait_for("an answer from the restarted server", || tunnel.ping(1) > 0);
}
