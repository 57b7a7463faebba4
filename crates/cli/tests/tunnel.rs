//! `tunnel` between two network namespaces joined by links of 50, 30 and 20 Mbit/s. Needs root and TUN; otherwise it
//! reports a skipped test.
#![cfg(target_os = "linux")]

mod common;
#[path = "tunnel/forward.rs"]
mod forward;
#[path = "tunnel/kill.rs"]
mod kill;
#[path = "tunnel/kill_switch.rs"]
mod kill_switch;
#[path = "tunnel/limits.rs"]
mod limits;
#[path = "tunnel/load.rs"]
mod load;
#[path = "tunnel/mtu.rs"]
mod mtu;
#[path = "tunnel/outages.rs"]
mod outages;
#[path = "tunnel/quic.rs"]
mod quic;
#[path = "tunnel/refused.rs"]
mod refused;
#[path = "tunnel/renewed.rs"]
mod renewed;
#[path = "tunnel/restored.rs"]
mod restored;
#[path = "tunnel/routes.rs"]
mod routes;
#[path = "tunnel/shell.rs"]
mod shell;
#[path = "tunnel/speed.rs"]
mod speed;
#[path = "tunnel/without_ipv6.rs"]
mod without_ipv6;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};
use std::thread::sleep;
use std::time::Duration;

use common::netns::{CEILING, Machines, Namespace, Side, run, three_links, three_links_shared};
use common::programs::{PROGRAM, Running, Scratch, comes, wait_for};
use common::{skip, within_three_attempts};
use load::iperf_server;

/// An address of the far machine that stands for one on the Internet.
const PUBLIC: &str = "1.2.3.4";
/// The far machine's address in the tunnel.
const INSIDE: &str = "10.177.0.1";

/// Sends a byte to whoever connects to port 5400. A caller that has given up does not end it.
const SERVICE: &str = "
import socket
service = socket.create_server(('', 5400))
while True:
    try:
        service.accept()[0].send(b'x')
    except ConnectionError:
        pass
";

/// A server on the far machine and a client on the near one.
struct Tunnel<'a> {
    machines: &'a Machines,
    plan: Plan,
    scratch: Scratch,
    server: Option<Running>,
    client: Option<Running>,
    ticket: String,
}

/// The differences between two tunnels of the same machines.
#[derive(Clone, Copy)]
struct Plan {
    near: &'static str,
    far: &'static str,
    port: &'static str,
    network: &'static str,
    /// The far machine's address in the tunnel.
    inside: &'static str,
    /// More options of the server.
    more: &'static [&'static str],
}

thread_local! {
    /// Names of devices of this test: others may run on this machine.
    static NAMES: [&'static str; 4] = {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, test) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ["n", "f", "m", "g"].map(|end| &*format!("ab{process}{end}{test}").leak())
    };
}

fn first() -> Plan {
    let [near, far, ..] = NAMES.with(|names| *names);
    Plan { near, far, port: "4434", network: "10.177.0.1/16", inside: INSIDE, more: &[] }
}

fn second() -> Plan {
    let [.., near, far] = NAMES.with(|names| *names);
    Plan { near, far, port: "4435", network: "10.178.0.1/16", inside: "10.178.0.1", more: &[] }
}

impl<'a> Tunnel<'a> {
    /// Starts both, and passes these options to the client.
    fn up(machines: &'a Machines, options: &[&str]) -> Self {
        Self::planned(machines, first(), options)
    }

    fn planned(machines: &'a Machines, plan: Plan, options: &[&str]) -> Self {
        let mut tunnel = Self::served(machines, plan, plan.more);
        tunnel.start_client(options);
        tunnel
    }

    /// Starts the server alone, with these options.
    fn served(machines: &'a Machines, plan: Plan, options: &[&str]) -> Self {
        let far = |words: &str| {
            let output = machines.command(Side::Far, "ip").args(words.split_whitespace()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        far(&format!("address replace {PUBLIC}/32 dev lo"));
        let (server, client, ticket) = (None, None, String::new());
        let mut tunnel = Self { machines, plan, scratch: Scratch::new(), server, client, ticket };
        tunnel.start_server_with(options);
        tunnel
    }

    fn command(&self, side: Side, name: &str, words: &[&str]) -> Command {
        let mut command = self.machines.command(side, PROGRAM);
        command.args(words).env("HOME", self.scratch.path(name)).env_remove("ANABRANCH_KEY");
        command.env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
        command
    }

    fn start_server(&mut self) {
        self.start_server_with(self.plan.more);
    }

    fn start_server_with(&mut self, options: &[&str]) {
        let mut server = self.spawn_server(options);
        let mut line = String::new();
        BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ticket = line.split_whitespace().last();
        let Some(ticket) = ticket else { panic!("no ticket: {}", server.end().1) };
        ticket.clone_into(&mut self.ticket);
        self.server = Some(server);
    }

    fn spawn_server(&self, options: &[&str]) -> Running {
        let public = format!("{PUBLIC}/32");
        // The far machine's own addresses are denied unless each is allowed by itself.
        let words = [
            ["tunnel", "serve", "--interface", self.plan.far].as_slice(),
            &["--port", self.plan.port, "--address-inside", self.plan.network, "--allow", &public],
            options,
        ]
        .concat();
        Running::start(&mut self.command(Side::Far, "from", &words))
    }

    fn start_client(&mut self, options: &[&str]) {
        self.client = Some(self.spawn_client(options));
        wait_for("an answer through the tunnel", || self.ping_to(&[self.plan.inside]) > 0);
    }

    fn spawn_client(&self, options: &[&str]) -> Running {
        let words = [&["tunnel", "up", &self.ticket, "--interface", self.plan.near], options].concat();
        Running::start(&mut self.command(Side::Near, "to", &words))
    }

    /// Sends `count` pings and returns how many are answered.
    fn ping(&self, count: u32) -> usize {
        let (count, wait) = (count.to_string(), "1");
        let words = ["-c", &count, "-W", wait, "-i", "0.02", PUBLIC];
        let output = self.machines.command(Side::Near, "ping").args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).matches("bytes from").count()
    }

    /// Sends two pings with these words at the end of the command line, and returns how many are answered.
    fn ping_to(&self, words: &[&str]) -> usize {
        let words = [&["-c", "2", "-W", "1", "-i", "0.1"], words].concat();
        let output = self.machines.command(Side::Near, "ping").args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).matches("bytes from").count()
    }

    /// Whether a program of the near machine can connect to this address and port, and read a byte, within a second.
    fn connects(&self, address: &str, port: u16) -> bool {
        let script = format!("read -n 1 < /dev/tcp/{address}/{port}");
        let words = ["1", "bash", "-c", &script];
        let status = self.machines.command(Side::Near, "timeout").args(words).stderr(Stdio::null()).status();
        status.unwrap().success()
    }

    /// The status of one end.
    fn status(&self, side: Side) -> serde_json::Value {
        let name = if side == Side::Near { self.plan.near } else { self.plan.far };
        let words = ["tunnel", "status", "--json", "--interface", name];
        let output = self.command(side, "to", &words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Goodput of `iperf3` to an address of the far machine with these options, in Mbit/s.
    fn iperf(&self, to: &str, options: &[&str]) -> f64 {
        let mut server = iperf_server(self.machines, &["-1", "-p", "5301"]);
        let ask = [&["-c", to, "-p", "5301", "-J"], options].concat();
        let output = self.machines.command(Side::Near, "iperf3").args(ask).output().unwrap();
        let _ = server.child.kill();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let sums = &report["end"];
        let received = sums["sum_received"]["bits_per_second"].as_f64();
        received.or_else(|| sums["sum"]["bits_per_second"].as_f64()).unwrap_or(0.0) / 1e6
    }
}

/// Returns the machine's network settings without the address that stands for the Internet, to check that a tunnel leaves
/// nothing behind.
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
        show("ls", "/sys/class/net"),
    ];
    let all = shown.join("\n");
    let mut lines: Vec<&str> = all.lines().filter(|line| !line.contains(PUBLIC)).collect();
    // The order of routes changes when a link comes back.
    lines.sort_unstable();
    lines.join("\n")
}

/// Waits until the machine's network settings are as they were; otherwise names the differences.
fn wait_for_state(machines: &Machines, side: Side, before: &str) {
    if !comes(|| state(machines, side) == before) {
        let now = state(machines, side);
        let only = |this: &str, other: &str| -> Vec<String> {
            this.lines().filter(|line| !other.lines().any(|o| o == *line)).map(Into::into).collect()
        };
        panic!("{side:?}: left behind {:#?}, missing {:#?}", only(&now, before), only(before, &now));
    }
}

/// Whether this machine supports a tunnel; prints the reason if not.
/// Machines that other tests use, too, if there are TUN devices and these programs; otherwise reports a skipped test.
fn machines(test: &str, programs: &[&str]) -> Option<(Machines, RwLockReadGuard<'static, ()>)> {
    three_links_shared(test).filter(|_| has(test, programs))
}

/// Machines for a measurement, under the same conditions.
fn alone(test: &str, programs: &[&str]) -> Option<(Machines, RwLockWriteGuard<'static, ()>)> {
    three_links(test).filter(|_| has(test, programs))
}

fn has(test: &str, programs: &[&str]) -> bool {
    let is_missing = |program: &&&str| Command::new(program).arg("--version").output().is_err();
    let why = match programs.iter().find(is_missing) {
        Some(program) => format!("{program} is not installed"),
        None if !std::path::Path::new("/dev/net/tun").exists() => "there is no /dev/net/tun".to_owned(),
        None => return true,
    };
    skip(test, &why);
    false
}

/// A machine behind the near one, which forwards its packets.
fn behind(machines: &Machines) -> Namespace {
    let lan = Namespace::new().unwrap();
    let (near, name) = (machines.namespace_name(Side::Near), lan.name());
    for line in [
        format!("-n {near} link add lan type veth peer name lan netns {name}"),
        format!("-n {near} address add 192.168.50.1/24 dev lan"),
        format!("-n {near} link set lan up"),
        format!("-n {name} address add 192.168.50.2/24 dev lan"),
        format!("-n {name} link set lan up"),
        format!("-n {name} route add default via 192.168.50.1"),
    ] {
        run("ip", &line).unwrap();
    }
    let forward = ["-w", "net.ipv4.ip_forward=1"];
    assert!(machines.command(Side::Near, "sysctl").args(forward).status().unwrap().success());
    lan
}

#[test]
fn one_connection_through_the_tunnel_runs_at_the_sum_of_the_links() {
    let test = "one_connection_through_the_tunnel";
    let Some((machines, _turn)) = alone(test, &["iperf3"]) else { return };
    let tunnel = Tunnel::up(&machines, &[]);
    within_three_attempts(test, || {
        let rate = tunnel.iperf(PUBLIC, &["-t", "4", "-O", "2"]);
        let found = format!("{rate:.1} Mbit/s as a stream");
        if rate >= 0.9 * CEILING { Ok(found) } else { Err(found) }
    });
}

#[test]
fn packets_of_one_udp_flow_take_all_paths_and_arrive_in_order() {
    let test = "packets_of_one_udp_flow";
    let Some((machines, _turn)) = alone(test, &["iperf3"]) else { return };
    let tunnel = Tunnel::up(&machines, &[]);
    within_three_attempts(test, || {
        let rate = tunnel.iperf(INSIDE, &["-u", "-b", "80M", "-l", "1200", "-t", "4", "-O", "2"]);
        let found = format!("{rate:.1} of 80 Mbit/s");
        if rate >= 70.0 { Ok(found) } else { Err(found) }
    });
}

#[test]
fn a_client_reaches_public_addresses_only() {
    let test = "a_client_reaches_public_addresses_only";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let tunnel = Tunnel::up(&machines, &["--no-streams"]);
    wait_for("answers of an address of the Internet", || tunnel.ping(3) >= 2);
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
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let before = [Side::Near, Side::Far].map(|side| state(&machines, side));
    let mut tunnel = Tunnel::up(&machines, &[]);
    assert_ne!(state(&machines, Side::Near), before[0]);
    tunnel.client.take().unwrap().kill();
    wait_for_state(&machines, Side::Near, &before[0]);
    tunnel.start_client(&[]);
    tunnel.server.take().unwrap().kill();
    wait_for_state(&machines, Side::Far, &before[1]);
}

#[test]
fn programs_go_on_when_the_server_was_restarted() {
    let test = "programs_go_on_when_the_server_was_restarted";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let mut tunnel = Tunnel::up(&machines, &["--no-streams"]);
    tunnel.server.take().unwrap().kill();
    let ticket = tunnel.ticket.clone();
    tunnel.start_server();
    assert_eq!(tunnel.ticket, ticket, "the ticket stays good");
    wait_for("an answer from the restarted server", || tunnel.ping(1) > 0);
}

#[test]
fn a_client_that_sends_from_anothers_address_is_not_heard() {
    let test = "a_client_that_sends_from_anothers_address_is_not_heard";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let tunnel = Tunnel::up(&machines, &[]);
    let refused = |side| {
        let status = tunnel.status(side);
        status["peers"][0]["received"]["refused"].as_u64().unwrap()
    };
    let near = |words: &str| {
        let status = machines.command(Side::Near, "ip").args(words.split_whitespace()).status();
        assert!(status.unwrap().success(), "{words}");
    };
    // Another client's address, one of the outer network, and one of the Internet.
    for stolen in ["10.177.200.200", "10.77.1.77", "9.9.9.9"] {
        let before = refused(Side::Far);
        near(&format!("address add {stolen}/32 dev {}", tunnel.plan.near));
        assert_eq!(tunnel.ping_to(&["-I", stolen, INSIDE]), 0, "{stolen}");
        wait_for(&format!("packets from {stolen}"), || refused(Side::Far) >= before + 2);
    }
    wait_for("an answer to its own address", || tunnel.ping_to(&[INSIDE]) > 0);
}

#[test]
fn two_tunnels_of_one_machine_leave_each_other_alone() {
    let test = "two_tunnels_of_one_machine_leave_each_other_alone";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let before = [Side::Near, Side::Far].map(|side| state(&machines, side));
    let first = Tunnel::planned(&machines, first(), &[]);
    let with_first = [Side::Near, Side::Far].map(|side| state(&machines, side));
    let mut second = Tunnel::planned(&machines, second(), &["--to", "10.178.0.0/16"]);
    let works = |tunnel: &Tunnel<'_>| tunnel.ping_to(&[tunnel.plan.inside]) > 0;
    wait_for("answers through both", || works(&first) && works(&second));
    // One is killed, the other stays as it is.
    second.client.take().unwrap().kill();
    wait_for_state(&machines, Side::Near, &with_first[0]);
    second.start_client(&["--to", "10.178.0.0/16"]);
    wait_for("answers through both", || works(&first) && works(&second));
    second.server.take().unwrap().kill();
    second.client.take().unwrap().kill();
    wait_for_state(&machines, Side::Far, &with_first[1]);
    wait_for("an answer through the first", || works(&first));
    // Forwarding ends with the last tunnel that needs it.
    drop(first);
    wait_for_state(&machines, Side::Far, &before[1]);
    wait_for_state(&machines, Side::Near, &before[0]);
}

#[test]
fn a_server_still_learns_its_default_route_from_router_advertisements() {
    let test = "a_server_still_learns_its_default_route";
    let Some((machines, _turn)) = machines(test, &["python3"]) else { return };
    let setting = || {
        let file = "/proc/sys/net/ipv6/conf/path0/accept_ra";
        let output = machines.command(Side::Far, "cat").arg(file).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    if setting() != "1" {
        return skip(test, "there is no IPv6, or it ignores router advertisements");
    }
    let mut tunnel = Tunnel {
        machines: &machines,
        plan: Plan { network: "fdab:177::1/64", ..first() },
        scratch: Scratch::new(),
        server: None,
        client: None,
        ticket: String::new(),
    };
    tunnel.start_server();
    assert_eq!(setting(), "2");
    let router = "import socket, struct\n\
        s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)\n\
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)\n\
        advertisement = struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 1800, 0, 0)\n\
        s.sendto(advertisement, ('ff02::1', 0, 0, socket.if_nametoindex('path0')))";
    // The address of the sender takes a moment to be usable.
    wait_for("the advertised default route", || {
        let mut advertise = machines.command(Side::Near, "python3");
        let _ = advertise.args(["-c", router]).stderr(Stdio::null()).status();
        let words = ["-6", "route", "show", "default"];
        let output = machines.command(Side::Far, "ip").args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("path0")
    });
    tunnel.server.take().unwrap().kill();
    wait_for("the setting to be as before", || setting() == "1");
}

/// Runs a subcommand of `tunnel` for an end of the tunnel; returns whether it succeeded and its output.
fn ask(tunnel: &Tunnel<'_>, side: Side, words: &[&str]) -> (bool, String) {
    let name = if side == Side::Near { tunnel.plan.near } else { tunnel.plan.far };
    let words = [&["tunnel"], words, &["--interface", name]].concat();
    let output = tunnel.command(side, "to", &words).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}

#[test]
fn a_running_tunnel_is_shown_changed_and_ended() {
    let test = "a_running_tunnel_is_shown_changed_and_ended";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let before = [Side::Near, Side::Far].map(|side| state(&machines, side));
    let scratch = Scratch::new();
    let write = |lane: &str| {
        let class = format!("[[class]]\nname = \"ping\"\nprotocol = \"icmp\"\nlane = \"{lane}\"\n");
        std::fs::write(scratch.path("tunnel.toml"), class).unwrap();
    };
    write("redundant");
    let file = scratch.text("tunnel.toml");
    let mut tunnel = Tunnel::up(&machines, &["--config", &file, "--metrics", "127.0.0.1:9601"]);
    let lane_of_pings = |side| {
        wait_for("an answer to a ping", || tunnel.ping_to(&[INSIDE]) > 0);
        let status = tunnel.status(side);
        let flows = status["peers"][0]["flows"].as_array().unwrap();
        let pings = flows.iter().find(|flow| flow["name"].as_str().unwrap().starts_with("icmp 10.177."));
        let ping = pings.unwrap_or_else(|| panic!("{status}"));
        assert!(ping["reason"].as_str().unwrap().len() > 5, "{ping}");
        ping["lane"].as_str().unwrap().to_owned()
    };
    assert_eq!(lane_of_pings(Side::Near), "redundant");
    // The client's classes count for both directions.
    wait_for("the server to follow", || lane_of_pings(Side::Far) == "redundant");
    assert!(ask(&tunnel, Side::Near, &["set", "class.ping=striped", "path.path2=backup"]).0);
    wait_for("the server to follow", || lane_of_pings(Side::Far) == "striped");
    write("low-latency");
    assert!(ask(&tunnel, Side::Near, &["reload"]).0);
    wait_for("the server to follow", || lane_of_pings(Side::Far) == "low-latency");
    for (words, wanted) in [
        (&["set", "class.ping=routed", "class.pong=striped"][..], "there is no class `pong`"),
        (&["set", "lane=stripped"], "did you mean `striped`?"),
        (&["set", "speed=9"], "`speed` is not a setting"),
        (&["cleanup"], "is running"),
    ] {
        let (succeeded, text) = ask(&tunnel, Side::Near, words);
        assert!(!succeeded && text.contains(wanted), "{text}");
    }
    // It says so when it may not clean up.
    let cleanup = ["tunnel", "cleanup", "--interface", "none"];
    let output = machines.command_as_nobody(Side::Near, PROGRAM).args(cleanup).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("sudo"), "{text}");
    // Flows of earlier pings are still listed with their lanes.
    wait_for("an answer to a ping", || tunnel.ping_to(&[INSIDE]) > 0);
    let status = tunnel.status(Side::Near);
    let flows = status["peers"][0]["flows"].as_array().unwrap();
    let pings = flows.iter().filter(|flow| flow["name"].as_str().unwrap().starts_with("icmp 10.177."));
    let lanes: Vec<_> = pings.map(|flow| flow["lane"].as_str().unwrap()).collect();
    assert!(lanes.contains(&"low-latency") && !lanes.contains(&"routed"), "nothing was set: {lanes:?}");
    assert!(ask(&tunnel, Side::Near, &["flows"]).1.contains("low-latency"));
    let script = "exec 3<>/dev/tcp/127.0.0.1/9601; \
        printf 'GET /metrics HTTP/1.1\\r\\nHost: 127.0.0.1:9601\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3";
    let metrics = machines.command(Side::Near, "bash").args(["-c", script]).output().unwrap();
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    assert!(metrics.contains("anabranch_tunnel_peer_connected{peer="), "{metrics}");
    // Both ends end on request and leave nothing behind.
    for side in [Side::Near, Side::Far] {
        assert!(ask(&tunnel, side, &["down"]).0);
        let now = state(&machines, side);
        let before = &before[usize::from(side == Side::Far)];
        assert!(now.lines().filter(|line| !line.contains(PUBLIC)).eq(before.lines()), "{now}\n\n{before}");
        assert!(!ask(&tunnel, side, &["status"]).0);
    }
    assert_eq!(tunnel.client.take().unwrap().end().0, Some(0));
}
