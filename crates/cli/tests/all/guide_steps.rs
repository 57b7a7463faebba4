//! The steps of the guide, typed as written there, on eight machines: two nodes, three relays, two routers and a
//! controller.
//!
//! ```text
//!  controller ─┐     ┌── relay 1 (30 Mbit/s) ──┐
//!              ├─ r1 ┼── relay 2 (20 Mbit/s) ──┼ r2 ── far
//!  near ───────┘  │  └── relay 3 (20 Mbit/s) ──┘  │
//!                 └───────── 10 Mbit/s ───────────┘
//! ```
//! Each router knows only the near side of the relays, so a route through a relay avoids the slow link. The addresses
//! are public or private ones, in namespaces that nothing leaves.

#![cfg(target_os = "linux")]

use crate::common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::netns::{Namespace, run};
use common::programs::{PROGRAM, Running, Scratch, noise, wait_for};
use serde_json::Value;

/// Time within which the guide promises success.
const PROMISED: Duration = Duration::from_secs(300);
const RELAYS: usize = 3;
const RATES: [u32; RELAYS] = [30, 20, 20];
/// The pages whose steps the tests follow.
const GUIDE: &str = concat!(
    include_str!("../../../../docs/guide/send.md"),
    include_str!("../../../../docs/guide/measure.md"),
    include_str!("../../../../docs/guide/relay.md"),
    include_str!("../../../../docs/guide/controller.md"),
);

/// First bytes of addresses.
const PUBLIC: u8 = 5;
const PRIVATE: u8 = 10;

/// A machine, and its user's working directory.
struct Machine {
    namespace: Namespace,
    home: PathBuf,
    /// First byte of its addresses; the guide's are written with a 5.
    net: u8,
}

/// One side of a link between machines.
struct Side<'a> {
    interface: &'a str,
    ip: &'a str,
}

fn side<'a>(interface: &'a str, ip: &'a str) -> Side<'a> {
    Side { interface, ip }
}

impl Machine {
    fn new(scratch: &Scratch, name: &str, net: u8) -> Result<Self, String> {
        let home = scratch.path(name);
        fs::create_dir(&home).map_err(|error| error.to_string())?;
        let namespace = Namespace::new()?;
        for setting in
            ["net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"]
        {
            run("ip", &format!("netns exec {} sysctl -qw {setting}", namespace.name()))?;
        }
        Ok(Self { namespace, home, net })
    }

    fn address(&self, text: &str) -> String {
        text.strip_prefix("5.").map_or_else(|| text.to_owned(), |rest| format!("{}.{rest}", self.net))
    }

    /// Joins it to another machine by a link with this rate both ways.
    fn join(&self, own: Side<'_>, other: &Self, theirs: Side<'_>, mbit: u32) -> Result<(), String> {
        let (here, there) = (self.namespace.name(), other.namespace.name());
        let (own_name, their_name) = (own.interface, theirs.interface);
        run("ip", &format!("-n {here} link add {own_name} type veth peer name {their_name} netns {there}"))?;
        for (namespace, side) in [(here, own), (there, theirs)] {
            let (name, ip) = (side.interface, self.address(side.ip));
            run("ip", &format!("-n {namespace} address add {ip}/24 dev {name}"))?;
            run("ip", &format!("-n {namespace} link set {name} up"))?;
            run(
                "tc",
                &format!(
                    "-n {namespace} qdisc replace dev {name} root tbf rate {mbit}mbit burst 32kb latency 50ms"
                ),
            )?;
        }
        Ok(())
    }

    fn route(&self, to: &str, via: &str) -> Result<(), String> {
        let (to, via) = (self.address(to), self.address(via));
        run("ip", &format!("-n {} route add {to} via {via}", self.namespace.name())).map(drop)
    }

    /// A command of the guide, with values for the words in capitals.
    fn typed(&self, line: &str, words: &[(&str, &str)]) -> Command {
        assert!(GUIDE.contains(&format!("\n{line}\n")), "the guide does not have `{line}`");
        let line = words.iter().fold(line.to_owned(), |line, (from, to)| line.replace(from, to));
        self.command(line.split_whitespace().skip(1))
    }

    fn command<'a>(&self, words: impl Iterator<Item = &'a str>) -> Command {
        let mut command = self.namespace.command(PROGRAM);
        command.args(words).current_dir(&self.home).env("HOME", &self.home);
        for name in ["XDG_CONFIG_HOME", "ANABRANCH_KEY", "ANABRANCH_CONTROLLER"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command and returns its output.
    fn told(&self, line: &str, words: &[(&str, &str)]) -> String {
        let output = self.typed(line, words).output().expect("the program");
        assert!(output.status.success(), "{line}: {}", common::programs::errors(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Generates its key as the guide says; returns the public key.
    fn key(&self, option: &str) -> String {
        self.told(format!("anabranch keys new {option}").trim(), &[]);
        let shown = self.told(format!("anabranch keys show {option}").trim(), &[]);
        shown.split_whitespace().find(|word| word.starts_with("ab1")).expect("a public key").to_owned()
    }
}

/// The guide's settings file with this beginning.
fn block(begins: &str) -> &'static str {
    let (_, rest) = GUIDE.split_once("```toml\n").expect("the guide has files");
    let file = rest.split("```toml\n").find(|block| block.starts_with(begins));
    file.expect("the guide has this file").split("```").next().expect("it ends")
}

struct Network {
    near: Machine,
    far: Machine,
    relays: Vec<Machine>,
    controller: Machine,
    routers: [Machine; 2],
}

impl Network {
    fn new(scratch: &Scratch, net: u8) -> Result<Self, String> {
        let machine = |name: &str| Machine::new(scratch, name, net);
        let routers = [machine("r1")?, machine("r2")?];
        let [r1, r2] = &routers;
        let (near, far, controller) = (machine("near")?, machine("far")?, machine("controller")?);
        near.join(side("net", "5.1.0.2"), r1, side("near", "5.1.0.1"), 200)?;
        far.join(side("net", "5.2.0.2"), r2, side("far", "5.2.0.1"), 200)?;
        controller.join(side("net", "5.4.0.2"), r1, side("control", "5.4.0.1"), 200)?;
        r1.join(side("slow", "5.3.0.1"), r2, side("slow", "5.3.0.2"), 10)?;
        r1.route("5.2.0.0/24", "5.3.0.2")?;
        for net in ["5.1.0.0/24", "5.4.0.0/24"] {
            r2.route(net, "5.3.0.1")?;
        }
        for (machine, gateway) in [(&near, "5.1.0.1"), (&far, "5.2.0.1"), (&controller, "5.4.0.1")] {
            machine.route("default", gateway)?;
        }
        let mut relays = Vec::new();
        for (at, rate) in RATES.iter().enumerate() {
            let (relay, net, name) =
                (machine(&format!("relay{at}"))?, format!("5.{}", 11 + at), format!("relay{at}"));
            let ip = |host: &str| format!("{net}.{host}");
            relay.join(side("left", &ip("1.2")), r1, side(&name, &ip("1.1")), *rate)?;
            relay.join(side("right", &ip("2.2")), r2, side(&name, &ip("2.1")), *rate)?;
            for left in ["5.1.0.0/24", "5.4.0.0/24"] {
                relay.route(left, &ip("1.1"))?;
            }
            relay.route("default", &ip("2.1"))?;
            relays.push(relay);
        }
        Ok(Self { near, far, relays, controller, routers })
    }
}

/// Sets up the overlay as the guide says; returns the address of the controller.
fn set_up(network: &Network, running: &mut Vec<Running>) -> String {
    let relays: Vec<String> = network.relays.iter().map(|relay| relay.key("--key relay.key")).collect();
    let client = network.near.key("");
    let text = block("key = \"controller.key\"");
    let table = "[[relay]]\nkey = \"RELAY-KEY\"\n";
    let tables: String = relays.iter().map(|key| table.replace("RELAY-KEY", key)).collect();
    assert!(text.contains(table), "{text}");
    let text = text.replace(table, &tables).replace("CLIENT-KEY", &client);
    fs::write(network.controller.home.join("controller.toml"), text).unwrap();
    let line = "anabranch controller --config controller.toml";
    let mut controller = Running::start(&mut network.controller.typed(line, &[]));
    let (at, signs) = (controller.line(), controller.line());
    running.push(controller);
    let text = block("key = \"relay.key\"\n[[controller]]")
        .replace("FIRST-LINE", &at)
        .replace("SECOND-LINE", &signs);
    let text = match network.near.net {
        PRIVATE => private(&text, "[[controller]]"),
        _ => text,
    };
    for relay in &network.relays {
        fs::write(relay.home.join("relay.toml"), &text).unwrap();
        let mut relay = Running::start(&mut relay.typed("anabranch relay --config relay.toml", &[]));
        assert!(relay.line().starts_with("ab1"));
        running.push(relay);
    }
    at
}

/// Returns the server's goodput in Mbit/s and its number of paths.
fn measured(command: &mut Command) -> (f64, usize) {
    let output = command.args(["--json", "--time", "5s"]).output().expect("the program");
    assert!(output.status.success(), "{}", common::programs::errors(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let paths = report["end"]["paths"].as_array().map_or(0, Vec::len);
    (report["end"]["goodput_mbit_s"].as_f64().unwrap_or_else(|| panic!("{report}")), paths)
}

/// Sets up one relay as the guide says; returns its output.
fn set_up_relay(network: &Network, running: &mut Vec<Running>) -> String {
    let relay = &network.relays[0];
    let text = block("key = \"relay.key\"\n[[user]]").replace("ab1...", &network.near.key(""));
    let text = match network.near.net {
        PRIVATE => private(&text, "[[user]]"),
        _ => text,
    };
    fs::write(relay.home.join("relay.toml"), text).unwrap();
    let mut forwarder = Running::start(&mut relay.typed("anabranch relay --config relay.toml", &[]));
    let line = forwarder.line();
    running.push(forwarder);
    line
}

/// Adds the lines that a private network needs before the table `table`.
fn private(text: &str, table: &str) -> String {
    let line = "next_hops = [\"private\"]";
    assert!(GUIDE.contains(line), "the guide does not say what private networks need");
    text.replacen(table, &format!("{line}\n{table}"), 1)
}

#[test]
fn the_guides_steps_turn_a_spare_machine_into_a_path_and_a_meeting_place() {
    follow_to_one_relay("the_guides_steps_turn_a_spare_machine_into_a_path", PUBLIC);
}

#[test]
fn a_relay_on_a_private_network_needs_the_line_that_the_guide_names() {
    follow_to_one_relay("a_relay_on_a_private_network", PRIVATE);
}

fn follow_to_one_relay(test: &str, net: u8) {
    let scratch = Scratch::new();
    let network = match Network::new(&scratch, net) {
        Ok(network) => network,
        Err(why) => return common::skip(test, &why),
    };
    let mut running = Vec::new();
    let route = set_up_relay(&network, &mut running);
    let mut server = Running::start(&mut network.far.typed("anabranch bench server", &[]));
    let ticket = server.line().split_whitespace().last().expect("a ticket").to_owned();
    let words = [("TICKET", ticket.as_str()), ("KEY@ADDRESS:4600", &route)];
    let line = "anabranch bench client TICKET --relay KEY@ADDRESS:4600";
    common::within_three_attempts(test, || {
        let direct = measured(&mut network.near.command(["bench", "client", &ticket].into_iter()));
        let both = measured(&mut network.near.typed(line, &words));
        let found = format!("direct {direct:?}, with the relay {both:?} Mbit/s and paths");
        if both.0 > 2.0 * direct.0 && both.1 == 2 { Ok(found) } else { Err(found) }
    });

    // The sender cannot be reached from there any more.
    let left = network.near.address("5.1.0.0/24");
    run("ip", &format!("-n {} route del {left}", network.routers[1].namespace.name())).unwrap();
    let line = "anabranch send photos/ --relay KEY@ADDRESS:4600";
    fetch_photos(&network, network.near.typed(line, &words));
}

/// Has one machine send photos, and the other receive them.
fn fetch_photos(network: &Network, mut send: Command) {
    fs::create_dir(network.near.home.join("photos")).unwrap();
    fs::write(network.near.home.join("photos/one"), noise(4 << 20, 1)).unwrap();
    let mut send = Running::start(&mut send);
    let ticket = send.line();
    network.far.told("anabranch receive TICKET", &[("TICKET", &format!("{ticket} --yes"))]);
    wait_for("the photos", || network.far.home.join("photos/one").exists());
    assert!(fs::read(network.far.home.join("photos/one")).unwrap() == noise(4 << 20, 1));
}

#[test]
fn the_guides_steps_give_an_overlay_that_carries_several_times_the_direct_path() {
    follow_the_guide("the_guides_steps_give_an_overlay", PUBLIC);
}

#[test]
fn they_do_so_on_a_private_network_with_the_line_that_it_needs() {
    follow_the_guide("they_do_so_on_a_private_network", PRIVATE);
}

fn follow_the_guide(test: &str, net: u8) {
    let scratch = Scratch::new();
    let network = match Network::new(&scratch, net) {
        Ok(network) => network,
        Err(why) => return common::skip(test, &why),
    };
    let mut running = Vec::new();
    let begin = Instant::now();
    let at = set_up(&network, &mut running);
    let mut server = Running::start(&mut network.far.typed("anabranch bench server", &[]));
    let ticket = server.line().split_whitespace().last().expect("a ticket").to_owned();
    let words = [("TICKET", ticket.as_str()), ("FIRST-LINE", at.as_str())];
    let line = "anabranch bench client TICKET --controller FIRST-LINE";
    common::within_three_attempts(test, || {
        let direct = measured(&mut network.near.command(["bench", "client", &ticket].into_iter()));
        let overlay = measured(&mut network.near.typed(line, &words));
        let took = begin.elapsed();
        let found =
            format!("direct {direct:?}, overlay {overlay:?} Mbit/s and paths, {took:?} after the first step");
        if overlay.0 > 3.0 * direct.0 { Ok(found) } else { Err(found) }
    });
    assert!(begin.elapsed() < PROMISED, "{:?}", begin.elapsed());

    let line = "anabranch send photos/ --controller FIRST-LINE";
    fetch_photos(&network, network.near.typed(line, &words));
}
