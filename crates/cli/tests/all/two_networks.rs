//! Relays with one address for the client and another for the next hop, in network namespaces: on two interfaces without a
//! default route, or on one. Needs root; otherwise it reports a skipped test.
#![cfg(target_os = "linux")]

use crate::common;

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::netns::{Namespace, run};
use common::programs::{PROGRAM, Running, Scratch, new_key, wait_for};
use serde_json::Value;

/// Joins two namespaces by a veth pair without addresses.
fn join((a, b): (&Namespace, &Namespace), name: &str) -> Result<(), String> {
    run("ip", &format!("-n {} link add {name} type veth peer name {name} netns {}", a.name(), b.name()))?;
    for end in [a, b] {
        run("ip", &format!("-n {} link set {name} up", end.name()))?;
    }
    Ok(())
}

fn give(machine: &Namespace, name: &str, address: &str) -> Result<(), String> {
    run("ip", &format!("-n {} address add {address}/24 dev {name}", machine.name())).map(drop)
}

/// A client, a relay and a server, each pair joined by its own network. The relay has no address in the server's network.
fn triangle() -> Result<[Namespace; 3], String> {
    let machines = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
    let [client, relay, server] = &machines;
    join((client, relay), "first")?;
    join((relay, server), "second")?;
    join((client, server), "direct")?;
    give(client, "first", "10.88.1.1")?;
    give(relay, "first", "10.88.1.2")?;
    give(server, "second", "10.88.2.2")?;
    give(client, "direct", "10.88.3.1")?;
    give(server, "direct", "10.88.3.2")?;
    Ok(machines)
}

const OF_THE_RELAY: &str = "10.88.2.1";

/// A relay, and a bench whose client uses it.
struct Overlay {
    machines: [Namespace; 3],
    scratch: Scratch,
    running: Vec<Running>,
}

impl Overlay {
    fn start(machines: [Namespace; 3], entry: Option<&str>) -> Self {
        Self::over(machines, entry, &["--time", "50s", "-q"])
    }

    /// Starts the bench with these options.
    fn over(machines: [Namespace; 3], entry: Option<&str>, options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let key = scratch.text("user.key");
        let settings = format!(
            "key = \"relay.key\"\ncontrol = \"relay.sock\"\nnext_hops = [\"private\"]\n[[user]]\nkey = \"{}\"\n",
            new_key(&key)
        );
        fs::write(scratch.path("relay.toml"), settings).unwrap();
        let start = |machine: &Namespace, words: &[&str]| {
            let mut command: Command = machine.command(PROGRAM);
            Running::start(command.args(words).stdin(Stdio::null()))
        };
        let [client, relay, server] = &machines;
        let mut forwarder = start(relay, &["relay", "--config", &scratch.text("relay.toml")]);
        let line = forwarder.line();
        // Keep only the address at which the client reaches the relay.
        let key_of_relay = line.split('@').next().expect("a key");
        let route = entry.map_or_else(|| line.clone(), |entry| format!("{key_of_relay}@{entry}:4600"));
        let mut bench = start(server, &["bench", "server"]);
        let ticket = bench.line().split_whitespace().last().expect("the line to paste").to_owned();
        let words = ["bench", "client", &ticket, "--key", &key, "--relay", &route];
        let sender = start(client, &[&words, options].concat());
        Self { machines, scratch, running: vec![forwarder, bench, sender] }
    }

    fn forwarded(&self) -> u64 {
        let socket = self.scratch.text("relay.sock");
        let mut ask = self.machines[1].command(PROGRAM);
        let asked = ask.args(["relay", "status", "--json", "--control", &socket]).output().unwrap();
        let status: Value = serde_json::from_slice(&asked.stdout).unwrap_or_default();
        status["forwarded_packets"].as_u64().unwrap_or_default()
    }
}

#[test]
fn a_relay_forwards_to_a_next_hop_that_only_its_second_network_leads_to() {
    let machines = match triangle() {
        Ok(machines) => machines,
        Err(why) => return common::skip("a_relay_forwards_to_a_next_hop_that_only_its_second_network", &why),
    };
    give(&machines[1], "second", OF_THE_RELAY).unwrap();
    let overlay = Overlay::start(machines, None);
    wait_for("packets of the session are forwarded", || overlay.forwarded() > 100);
    drop(overlay.running);
}

#[test]
fn a_network_that_comes_while_the_relay_runs_is_used_as_well() {
    let machines = match triangle() {
        Ok(machines) => machines,
        Err(why) => return common::skip("a_network_that_comes_while_the_relay_runs", &why),
    };
    let overlay = Overlay::start(machines, None);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(overlay.forwarded(), 0);
    give(&overlay.machines[1], "second", OF_THE_RELAY).unwrap();
    wait_for("packets of the session are forwarded", || overlay.forwarded() > 100);
    drop(overlay.running);
}

/// A client, a relay and a server, each joined to a router. The relay's interface has two addresses, and its default route
/// prefers the second, the only one to which the server has a route.
fn star() -> Result<([Namespace; 3], Namespace), String> {
    let machines = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
    let router = Namespace::new()?;
    let names = ["client", "relay", "server"];
    for (machine, name) in machines.iter().zip(names) {
        join((machine, &router), name)?;
    }
    run("ip", &format!("netns exec {} sysctl -qw net.ipv4.ip_forward=1", router.name()))?;
    for (machine, name, address) in [
        (&machines[0], "client", "70.1.0.2"),
        (&router, "client", "70.1.0.1"),
        (&machines[1], "relay", "10.19.0.5"),
        (&machines[1], "relay", "50.1.0.2"),
        (&router, "relay", "10.19.0.1"),
        (&router, "relay", "50.1.0.1"),
        (&machines[2], "server", "60.1.0.2"),
        (&router, "server", "60.1.0.1"),
    ] {
        give(machine, name, address)?;
    }
    for (machine, route) in [
        (&machines[0], "default via 70.1.0.1"),
        (&machines[1], "default via 50.1.0.1 src 50.1.0.2"),
        (&machines[2], "50.1.0.0/24 via 60.1.0.1"),
        (&machines[2], "70.1.0.0/24 via 60.1.0.1"),
    ] {
        run("ip", &format!("-n {} route add {route}", machine.name()))?;
    }
    Ok((machines, router))
}

#[test]
fn a_relay_with_two_addresses_on_one_interface_sends_from_the_one_that_its_routes_prefer() {
    let (machines, _router) = match star() {
        Ok(made) => made,
        Err(why) => return common::skip("a_relay_with_two_addresses_on_one_interface", &why),
    };
    let overlay = Overlay::start(machines, Some("50.1.0.2"));
    wait_for("packets of the session are forwarded", || overlay.forwarded() > 100);
    drop(overlay.running);
}

/// A client and a relay joined by two links, and a server that only the relay reaches.
fn two_links() -> Result<[Namespace; 3], String> {
    let machines = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
    let [client, relay, server] = &machines;
    for (name, network, rate) in [("slow", "10.88.4", 8), ("fast", "10.88.5", 40)] {
        join((client, relay), name)?;
        for (end, host) in [(client, 1), (relay, 2)] {
            give(end, name, &format!("{network}.{host}"))?;
            let qdisc = format!("root tbf rate {rate}mbit burst 32kb latency 50ms");
            run("tc", &format!("-n {} qdisc add dev {name} {qdisc}", end.name()))?;
        }
    }
    join((relay, server), "second")?;
    give(relay, "second", OF_THE_RELAY)?;
    give(server, "second", "10.88.2.2")?;
    Ok(machines)
}

/// Runs a bench through a relay with two addresses; the path over the fast link must be left. Then checks its rate.
fn bench_over_two_addresses(options: &[&str]) -> Result<String, String> {
    let words = [&["--time", "9s", "--json"], options].concat();
    // Nothing answers at the second address.
    let entries = "10.88.4.2:4600,10.88.4.9:4600,10.88.5.2";
    let mut overlay = Overlay::over(two_links()?, Some(entries), &words);
    let mut report = String::new();
    let mut client = overlay.running.pop().expect("the client");
    client.child.stdout.take().expect("a pipe").read_to_string(&mut report).map_err(|why| why.to_string())?;
    let (code, errors) = client.end();
    if code != Some(0) {
        return Err(errors);
    }
    if !errors.contains("relay 10.88.4.9:4600 has not answered for 5 s") {
        return Err(errors);
    }
    let report: Value = serde_json::from_str(&report).map_err(|why| why.to_string())?;
    let intervals = report["intervals"].as_array().ok_or("no intervals")?;
    let paths = intervals.last().and_then(|last| last["paths"].as_array()).ok_or("no paths")?;
    let left: Vec<&Value> = paths.iter().filter(|path| path["state"] != "closed").collect();
    if left.len() != 1 || left[0]["remote"] != "10.88.5.2:4600" {
        return Err(format!("{paths:?}"));
    }
    // By then, the addresses have been tried.
    let late = intervals.iter().filter(|interval| interval["t_s"].as_f64() > Some(6.0));
    let sum = |key: &str| late.clone().filter_map(|interval| interval[key].as_f64()).sum::<f64>();
    let rate = sum("bytes") * 8e-6 / sum("seconds");
    if rate > 33.0 { Ok(format!("{rate:.1} Mbit/s")) } else { Err(format!("{rate:.1} Mbit/s")) }
}

fn keep_the_faster(test: &str, options: &[&str]) {
    if let Err(why) = two_links() {
        return common::skip(test, &why);
    }
    common::within_three_attempts(test, || bench_over_two_addresses(options));
}

#[test]
fn of_a_relays_two_addresses_the_one_behind_the_faster_link_is_kept_by_a_sender() {
    keep_the_faster("of_a_relays_two_addresses_a_sender_keeps_the_faster", &[]);
}

#[test]
fn of_a_relays_two_addresses_the_one_behind_the_faster_link_is_kept_by_a_receiver() {
    keep_the_faster("of_a_relays_two_addresses_a_receiver_keeps_the_faster", &["--reverse"]);
}
