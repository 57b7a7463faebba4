//! Two machines behind NATs that a relay introduces: a direct path wherever their NATs allow one, else the relay. Needs
//! root; otherwise it reports a skipped test.
//!
//! ```text
//!  sender ── NAT ──┐                          ┌── NAT ── receiver
//!  192.168.1.2     60.1.0.2 ── internet ── 70.1.0.2     192.168.2.2
//!                                 │
//!                              50.1.0.2 relay
//! ```
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anabranch_secure::Ticket;
use common::netns::{Namespace, run};
use common::programs::{PROGRAM, Running, Scratch, Sender, new_key, noise, wait_for};
use common::within_three_attempts;
use serde_json::Value;

/// A kind of NAT, by the packets that it admits and the ports that it maps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nat {
    /// Lets in everything.
    FullCone,
    /// Lets in packets from addresses to which its machine has sent.
    Restricted,
    /// The same with ports.
    PortRestricted,
    /// The same, and maps each destination to another port.
    Symmetric,
}

impl Nat {
    /// The rules of a NAT with this outer address, for the machine behind it.
    fn rules(self, outer: &str, machine: &str) -> String {
        let (map, admit) = match self {
            Self::FullCone => ("", format!("meta l4proto udp dnat to {machine}")),
            Self::Restricted => {
                ("update @sent { ip daddr }; ", format!("ip saddr @sent meta l4proto udp dnat to {machine}"))
            }
            Self::PortRestricted | Self::Symmetric => ("", "counter".to_owned()),
        };
        let ports = if self == Self::Symmetric { ":20000-60000 fully-random" } else { "" };
        format!(
            "table ip nat {{
                set sent {{ type ipv4_addr; flags dynamic; timeout 1m; }}
                chain out {{ type nat hook postrouting priority 100; oifname outer meta l4proto udp {map}snat to {outer}{ports}; }}
                chain in {{ type nat hook prerouting priority -100; iifname outer {admit}; }}
                chain own {{ type filter hook input priority 0; iifname outer drop; }}
            }}"
        )
    }

    /// Whether two machines can send to each other directly when each knows the other's address at the relay. Behind a
    /// symmetric NAT, a machine sends to the other from a port that the other cannot know.
    fn lets_meet(self, other: Self) -> bool {
        let pair = [self, other];
        !pair.contains(&Self::Symmetric)
            || pair.iter().any(|nat| matches!(nat, Self::FullCone | Self::Restricted))
    }
}

fn ip(machine: &Namespace, line: &str) -> Result<(), String> {
    run("ip", &format!("-n {} {line}", machine.name())).map(drop)
}

/// Joins a machine to a router by a network of three bytes, in which the router has the address 1 and the machine 2.
fn join(machine: (&Namespace, &str), router: (&Namespace, &str), network: &str) -> Result<(), String> {
    let peer = format!("type veth peer name {} netns {}", router.1, router.0.name());
    ip(machine.0, &format!("link add {} {peer}", machine.1))?;
    for ((end, name), host) in [(machine, 2), (router, 1)] {
        ip(end, &format!("link set {name} up"))?;
        ip(end, &format!("address add {network}.{host}/24 dev {name}"))?;
    }
    ip(machine.0, &format!("route add default via {network}.1"))
}

/// The machines of one test.
struct World {
    sender: Namespace,
    receiver: Namespace,
    relay: Namespace,
    routers: [Namespace; 3],
}

impl World {
    /// Machines without networks.
    fn new() -> Result<Self, String> {
        run("nft", "--version")?;
        let [sender, receiver, relay] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        Ok(Self {
            sender,
            receiver,
            relay,
            routers: [Namespace::new()?, Namespace::new()?, Namespace::new()?],
        })
    }

    /// Joins them by their networks and NATs.
    fn join(&self, nats: [Nat; 2]) -> Result<(), String> {
        let [internet, near, far] = &self.routers;
        join((&self.relay, "net"), (internet, "relay"), "50.1.0")?;
        join((near, "outer"), (internet, "near"), "60.1.0")?;
        join((far, "outer"), (internet, "far"), "70.1.0")?;
        join((&self.sender, "lan"), (near, "lan"), "192.168.1")?;
        join((&self.receiver, "lan"), (far, "lan"), "192.168.2")?;
        self.forward()?;
        let outer = [(near, "60.1.0.2", "192.168.1.2"), (far, "70.1.0.2", "192.168.2.2")];
        for (nat, (router, outer, machine)) in nats.into_iter().zip(outer) {
            done(router.command("nft").arg(nat.rules(outer, machine)))?;
        }
        Ok(())
    }

    /// Joins both to one NAT, each by a network of its own. The NAT drops what they send to its outer address.
    fn join_one(&self) -> Result<(), String> {
        let [internet, nat, _] = &self.routers;
        join((&self.relay, "net"), (internet, "relay"), "50.1.0")?;
        join((nat, "outer"), (internet, "near"), "60.1.0")?;
        join((&self.sender, "lan"), (nat, "lan1"), "192.168.1")?;
        join((&self.receiver, "lan"), (nat, "lan2"), "192.168.2")?;
        self.forward()?;
        done(nat.command("nft").arg(Nat::PortRestricted.rules("60.1.0.2", "192.168.1.2")))
    }

    fn forward(&self) -> Result<(), String> {
        let mut routers = self.routers.iter();
        routers.try_for_each(|router| done(router.command("sysctl").args(["-qw", "net.ipv4.ip_forward=1"])))
    }
}

fn done(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {errors}")) }
}

/// A transfer whose sender is reachable only through a relay at first.
struct Meeting {
    _receiver: Running,
    _sender: Sender,
    _relay: Running,
    scratch: Scratch,
    world: World,
}

impl Meeting {
    fn start(world: World) -> Self {
        Self::start_with(world, |_| {})
    }

    /// The receiver has the ticket with this change.
    fn start_with(world: World, change: impl FnOnce(&mut Ticket)) -> Self {
        let scratch = Scratch::new();
        let key = scratch.text("user.key");
        let settings =
            format!("key = \"relay.key\"\ncontrol = \"relay.sock\"\n[[user]]\nkey = \"{}\"\n", new_key(&key));
        fs::write(scratch.path("relay.toml"), settings).unwrap();
        // Twenty seconds, more than a busy machine needs to find a path.
        fs::write(scratch.path("film"), noise(24 << 20, 1)).unwrap();
        let mut relay = world.relay.command(PROGRAM);
        let config = scratch.text("relay.toml");
        let mut relay = Running::start(relay.args(["relay", "--config", &config]).stdin(Stdio::null()));
        let (route, film) = (relay.line(), scratch.text("film"));
        let mut sender = world.sender.command(PROGRAM);
        let words = ["send", "--relay", &route, "--key", &key, "--rate", "10Mbit/s", &film];
        let sender = Sender::start_as(sender.args(words).stdin(Stdio::null()));
        let (into, control) = (scratch.text("into"), scratch.text("paths.sock"));
        let mut receiver = world.receiver.command(PROGRAM);
        let ticket = sender.ticket_with(change);
        let words = ["receive", &ticket, &into, "--yes", "--control", &control];
        receiver.env("XDG_CONFIG_HOME", scratch.text("settings"));
        let receiver = Running::start(receiver.args(words).stdin(Stdio::null()));
        Self { _receiver: receiver, _sender: sender, _relay: relay, scratch, world }
    }

    /// The receiver's open paths.
    fn paths(&self) -> Vec<Value> {
        let control = self.scratch.text("paths.sock");
        let mut list = self.world.receiver.command(PROGRAM);
        let listed = list.args(["path", "list", "--json", "--control", &control]).output().unwrap();
        let paths: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        paths.into_iter().filter(|path| path["state"] == "active").collect()
    }

    /// Bytes that the receiver got over paths of this kind.
    fn received(paths: &[Value], is_direct: bool) -> u64 {
        let of_kind = paths.iter().filter(|path| path["relays"][0].is_string() != is_direct);
        of_kind.filter_map(|path| path["bytes"][1].as_u64()).sum()
    }

    fn has(&self, is_direct: bool) -> bool {
        self.paths().iter().any(|path| path["relays"][0].is_string() != is_direct)
    }

    /// How long after the session's first path a direct one opened, if it did within this time.
    fn direct_within(&self, patience: Duration) -> Option<Duration> {
        wait_for("a path through the relay", || self.has(false));
        let begin = Instant::now();
        while begin.elapsed() < patience {
            if self.has(true) {
                return Some(begin.elapsed());
            }
            sleep(Duration::from_millis(10));
        }
        None
    }
}

/// Has the network between two NATs drop everything at first, and checks the transfer when it stops doing so.
fn open_while_data_flow(world: World) -> Result<String, String> {
    world.join([Nat::PortRestricted; 2])?;
    let internet = &world.routers[0];
    let wall = "table ip wall { chain between { type filter hook forward priority 0; iifname far oifname near drop; \
                iifname near oifname far drop; }; }";
    done(internet.command("nft").arg(wall))?;
    let meeting = Meeting::start(world);
    let flows = || Meeting::received(&meeting.paths(), false) > 1 << 20;
    wait_for("data through the relay", flows);
    assert!(!meeting.has(true), "{:#?}", meeting.paths());
    done(meeting.world.routers[0].command("nft").arg("delete table ip wall"))?;
    let begin = Instant::now();
    let (mut before, mut moved_at, mut pause, mut opened) = (0, begin, Duration::ZERO, None);
    while begin.elapsed() < Duration::from_secs(3) {
        let paths = meeting.paths();
        let direct = Meeting::received(&paths, true);
        let bytes = direct + Meeting::received(&paths, false);
        if bytes > before {
            pause = pause.max(moved_at.elapsed());
            (before, moved_at) = (bytes, Instant::now());
        }
        // Much more than challenges and their answers.
        opened = opened.or_else(|| (direct > 100_000).then(|| begin.elapsed()));
        sleep(Duration::from_millis(5));
    }
    let pause = pause.max(moved_at.elapsed());
    let found = format!("data over the direct path after {opened:?}, longest pause {pause:?}");
    let is_soon = opened.is_some_and(|after| after < Duration::from_secs(2));
    if is_soon && pause < Duration::from_millis(200) { Ok(found) } else { Err(found) }
}

#[test]
fn a_direct_path_joins_without_a_pause_while_data_flow_through_the_relay() {
    if let Err(why) = World::new() {
        return common::skip("a_direct_path_joins_without_a_pause", &why);
    }
    within_three_attempts("a_direct_path_joins_without_a_pause", || open_while_data_flow(World::new()?));
}

/// Lets two machines behind such NATs meet, and checks that they do where they can.
fn meet(test: &str, sender: Nat, receiver: Nat) {
    let world = match World::new() {
        Ok(world) => world,
        Err(why) => return common::skip(test, &why),
    };
    world.join([sender, receiver]).unwrap();
    let meeting = Meeting::start(world);
    let patience = if sender.lets_meet(receiver) { 15 } else { 2 };
    let found = meeting.direct_within(Duration::from_secs(patience));
    println!("{sender:?} and {receiver:?}: {found:?}");
    let paths = meeting.paths();
    assert_eq!(found.is_some(), sender.lets_meet(receiver), "{sender:?} and {receiver:?}: {paths:#?}");
    wait_for("the relay as one of the paths", || meeting.has(false));
}

#[test]
fn machines_behind_one_nat_find_each_other_although_the_ticket_has_no_right_address() {
    let test = "machines_behind_one_nat_find_each_other";
    let world = match World::new() {
        Ok(world) => world,
        Err(why) => return common::skip(test, &why),
    };
    world.join_one().unwrap();
    // One that the sender had before.
    let former = SocketAddr::from(([192, 168, 1, 9], 4433));
    let meeting = Meeting::start_with(world, |ticket| ticket.addresses = vec![former]);
    let found = meeting.direct_within(Duration::from_secs(15));
    println!("behind one NAT: {found:?}");
    let paths = meeting.paths();
    assert!(found.is_some(), "{paths:#?}");
    let is_near = |path: &Value| path["remote"].as_str().is_some_and(|at| at.starts_with("192.168.1.2:"));
    assert!(paths.iter().any(is_near), "{paths:#?}");
}

#[test]
fn machines_behind_cones_find_a_direct_path() {
    for nat in [Nat::FullCone, Nat::Restricted, Nat::PortRestricted] {
        meet("machines_behind_cones_find_a_direct_path", nat, nat);
    }
}

#[test]
fn a_symmetric_nat_at_one_end_is_met_where_the_other_admits_unknown_ports() {
    let test = "a_symmetric_nat_at_one_end_is_met";
    meet(test, Nat::Symmetric, Nat::FullCone);
    meet(test, Nat::Restricted, Nat::Symmetric);
}

#[test]
fn machines_behind_symmetric_nats_that_cannot_meet_keep_the_relay() {
    let test = "machines_behind_symmetric_nats_that_cannot_meet_keep_the_relay";
    meet(test, Nat::Symmetric, Nat::Symmetric);
    meet(test, Nat::Symmetric, Nat::PortRestricted);
}
