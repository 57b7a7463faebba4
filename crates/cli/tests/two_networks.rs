//! A relay with two networks and no default route, in network namespaces: its client is in one of them, the next hop in the other. Needs
//! root; says so where there is none.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::netns::{Namespace, run};
use common::programs::{PROGRAM, Running, Scratch, new_key, wait_for};
use serde_json::Value;

/// Joins two namespaces by a veth pair, whose ends have no address yet.
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

/// A client, a relay and a server: each is joined to both others, by one network a pair. The relay has no address in the server's.
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
    fn start(machines: [Namespace; 3]) -> Self {
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
        let route = forwarder.line();
        let mut bench = start(server, &["bench", "server"]);
        let ticket = bench.line().split_whitespace().last().expect("the line to paste").to_owned();
        let words = ["bench", "client", &ticket, "--time", "50s", "--key", &key, "--relay", &route, "-q"];
        let sender = start(client, &words);
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
    let overlay = Overlay::start(machines);
    wait_for("packets of the session are forwarded", || overlay.forwarded() > 100);
    drop(overlay.running);
}

#[test]
fn a_network_that_comes_while_the_relay_runs_is_used_as_well() {
    let machines = match triangle() {
        Ok(machines) => machines,
        Err(why) => return common::skip("a_network_that_comes_while_the_relay_runs", &why),
    };
    let overlay = Overlay::start(machines);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(overlay.forwarded(), 0);
    give(&overlay.machines[1], "second", OF_THE_RELAY).unwrap();
    wait_for("packets of the session are forwarded", || overlay.forwarded() > 100);
    drop(overlay.running);
}
