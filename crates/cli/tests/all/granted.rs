//! A controller, relays and clients as people run them: from configuration files, with each command's output fed to the next.

#![cfg(unix)]

use crate::common;

use std::fs;
use std::process::{Command, Output};

use common::clock::WallClock;
use common::programs::{Running, Scratch, errors, free_port, new_key, program, wait_for};
use common::skip;
use serde_json::Value;

fn must(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn ask(scratch: &Scratch, socket: &str, words: &[&str]) -> Value {
    let socket = scratch.text(socket);
    let said = must(program(words).args(["--json", "--control", &socket]));
    serde_json::from_str(&said).unwrap()
}

struct Overlay {
    scratch: Scratch,
    /// The controller's address and signing key.
    at: String,
    signs: String,
    port: u16,
    relays: [String; 2],
}

impl Overlay {
    fn new() -> (Self, Running) {
        let scratch = Scratch::new();
        let relays = ["r0.key", "r1.key"].map(|name| new_key(&scratch.text(name)));
        // The controller is restarted: meanwhile no other test's socket may get its port.
        let port = free_port();
        let mut overlay = Self { scratch, at: String::new(), signs: String::new(), port, relays };
        let client = new_key(&overlay.scratch.text("user.key"));
        let controller = overlay.controller(&client);
        (overlay, controller)
    }

    fn configure(&self, clients: &str) -> String {
        let listed: String = self.relays.iter().map(|key| format!("[[relay]]\nkey = \"{key}\"\n")).collect();
        let file = self.scratch.text("controller.toml");
        let text = format!(
            "key = \"c.key\"\nport = {}\naddresses = [\"127.0.0.1\"]\ncontrol = \"c.sock\"\n[store]\nfile = \"c.store\"\n\
             {listed}{clients}",
            self.port
        );
        fs::write(&file, text).unwrap();
        file
    }

    fn controller(&mut self, client: &str) -> Running {
        let file = self.configure(&format!("[[client]]\nkey = \"{client}\"\n"));
        let mut running = Running::start(&mut program(&["--quiet", "controller", "--config", &file]));
        self.at = running.line();
        self.signs = running.line();
        running
    }

    fn relay(&self, number: usize) -> Running {
        self.relay_by(number, None)
    }

    /// Starts a relay under this clock.
    fn relay_by(&self, number: usize, clock: Option<&WallClock>) -> Running {
        let file = self.scratch.text(&format!("r{number}.toml"));
        let text = format!(
            "key = \"r{number}.key\"\nport = 0\naddresses = [\"127.0.0.{}\"]\nplace = \"p{number}\"\n\
             next_hops = [\"loopback\", \"private\"]\ncontrol = \"r{number}.sock\"\n\
             [[controller]]\nat = \"{}\"\nsigns = \"{}\"\n",
            2 + number,
            self.at,
            self.signs
        );
        fs::write(&file, text).unwrap();
        let mut command = program(&["relay", "--config", &file]);
        if let Some(clock) = clock {
            clock.command(&mut command);
        }
        let mut running = Running::start(&mut command);
        running.line();
        wait_for("registered", || {
            ask(&self.scratch, &format!("r{number}.sock"), &["relay", "status"])["controllers"][0]["registered"]
                == true
        });
        running
    }

    fn forwarded(&self, number: usize) -> u64 {
        let status = ask(&self.scratch, &format!("r{number}.sock"), &["relay", "status"]);
        status["forwarded_packets"].as_u64().unwrap()
    }

    fn bench(&self, ticket: &str) -> Output {
        let key = self.scratch.text("user.key");
        let words = ["bench", "client", ticket, "--time", "2s", "--controller", &self.at, "--key", &key];
        program(&words).output().unwrap()
    }

    /// Runs tests until this is so. On a busy machine, a grant may come too late for a short one.
    fn bench_until(&self, ticket: &str, what: &str, is_so: impl Fn(&str) -> bool) {
        wait_for(what, || {
            let bench = self.bench(ticket);
            assert!(bench.status.success(), "{}", errors(&bench));
            is_so(&errors(&bench))
        });
    }
}

#[test]
fn relays_that_registered_are_granted_used_without_any_controller_and_taken_back() {
    let (mut overlay, controller) = Overlay::new();
    let _relays = [overlay.relay(0), overlay.relay(1)];
    let status = ask(&overlay.scratch, "c.sock", &["controller", "status"]);
    assert_eq!(status["relays"].as_array().unwrap().len(), 2);

    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let forwarded = || [0, 1].map(|number| overlay.forwarded(number));
    overlay.bench_until(&ticket, "packets through both relays", |_| forwarded().iter().all(|all| *all > 10));
    controller.kill();
    let first = forwarded();
    overlay.bench_until(&ticket, "a use of the grant that was kept", |_| {
        forwarded().iter().zip(first).all(|(now, first)| *now > first)
    });
    let file = overlay.scratch.file("from/file", 300_000, 1);
    let (key, at) = (overlay.scratch.text("user.key"), overlay.at.clone());
    let send = ["send", "--once", "--controller", &at, "--key", &key, file.to_str().unwrap()];
    let mut send = Running::start(&mut program(&send));
    let copy = overlay.scratch.text("to");
    must(&mut program(&["receive", "--yes", &send.line(), &copy]));
    // While it runs, it also learns of the withdrawal and drops the grant.
    assert_eq!(send.end().0, Some(0));
    assert_eq!(fs::read(file).unwrap(), fs::read(overlay.scratch.path("to/file")).unwrap());

    // The controller is back with its stored state; the operator removes the client and with it the grant.
    let client = must(&mut program(&["keys", "show", "--key", &key]));
    let client = client.split_whitespace().find(|word| word.starts_with("ab1")).unwrap().to_owned();
    let running = overlay.controller(&client);
    let held = ask(&overlay.scratch, "c.sock", &["controller", "grants", &client]);
    assert_eq!((held.as_array().unwrap().len(), &held[0]["paths"]), (1, &Value::from(16)));
    overlay.configure("");
    running.signal("-HUP");
    ask(&overlay.scratch, "c.sock", &["controller", "revoke", &client]);
    wait_for("both relays know", || {
        let status = ask(&overlay.scratch, "c.sock", &["controller", "status"]);
        status["relays"]
            .as_array()
            .unwrap()
            .iter()
            .all(|relay| relay["alive"] == true && relay["pids"][1] == 0)
    });
    let before = overlay.forwarded(0) + overlay.forwarded(1);
    let bench = overlay.bench(&ticket);
    assert!(bench.status.success(), "the direct path is as good as ever: {}", errors(&bench));
    assert_eq!(overlay.forwarded(0) + overlay.forwarded(1), before, "nothing of the bench");
    let is_told = |why: &str| why.contains("no relays") && why.contains("list");
    overlay.bench_until(&ticket, "the reason", is_told);
}

/// A controller that has no relays, one that is silent, and none at all.
#[test]
fn send_and_bench_go_on_when_no_controller_grants_anything_and_say_why_once() {
    let (mut overlay, controller) = Overlay::new();
    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let key = must(&mut program(&["keys", "show", "--key", &overlay.scratch.text("user.key")]));
    let key = key.split_whitespace().find(|word| word.starts_with("ab1")).unwrap().to_owned();
    let goes_on = |overlay: &Overlay, why: &str| {
        overlay.bench_until(&ticket, why, |told| {
            let times = told.matches("no relays of controllers yet").count();
            assert!(times <= 1, "{told}");
            times == 1 && told.contains(why)
        });
    };
    // No relay has registered.
    goes_on(&overlay, "the controller refused");
    controller.signal("-STOP");
    goes_on(&overlay, "the controller does not answer");
    controller.kill();
    goes_on(&overlay, &format!("list this node's key, {key}, as a client"));
    let file = overlay.scratch.file("from/file", 300_000, 1);
    let (key_file, at) = (overlay.scratch.text("user.key"), overlay.at.clone());
    let send = ["send", "--once", "--controller", &at, "--key", &key_file, file.to_str().unwrap()];
    let mut send = Running::start(&mut program(&send));
    must(&mut program(&["receive", "--yes", &send.line(), &overlay.scratch.text("to")]));
    assert_eq!(send.end().0, Some(0));

    // One dies while the test runs.
    let controller = overlay.controller(&key);
    let relays = [overlay.relay(0), overlay.relay(1)];
    let words = ["bench", "client", &ticket, "--time", "6s", "--controller", &overlay.at, "--key", &key_file];
    let bench = Running::start(&mut program(&words));
    wait_for("packets through a relay", || overlay.forwarded(0) > 10);
    controller.kill();
    let (code, told) = bench.end();
    assert!(code == Some(0) && !told.contains("no relays"), "{told}");
    drop(relays);
}

#[test]
fn relays_measure_each_other_and_people_see_it() {
    let (overlay, _controller) = Overlay::new();
    let [_first, second] = [overlay.relay(0), overlay.relay(1)];
    wait_for("each measures the other", || {
        let status = ask(&overlay.scratch, "c.sock", &["controller", "status"]);
        status["relays"].as_array().unwrap().iter().all(|relay| relay["links"] == serde_json::json!([1, 0]))
    });
    let sockets = ["c.sock", "r0.sock"].map(|name| overlay.scratch.text(name));
    let words = ["status", "--control", &sockets[0], "--control", &sockets[1]];
    let text = must(&mut program(&words));
    assert!(text.contains("controller at") && text.contains("measures 1 link"), "{text}");
    assert!(text.contains("relay at") && text.contains("  link      ab1"), "{text}");
    let said: Value = serde_json::from_str(&must(program(&words).arg("--json"))).unwrap();
    assert_eq!(
        (&said["services"][0]["kind"], &said["services"][1]["kind"]),
        (&"controller".into(), &"relay".into())
    );
    assert_eq!(said["services"][1]["status"]["links"][0]["up"], true);
    let none = program(&["status", "--control", "/nowhere.sock"]).output().unwrap();
    assert!(!none.status.success() && errors(&none).contains("is it running"), "{}", errors(&none));

    // The route past the first relay to the second: a relay measures the stretch between them.
    let key = overlay.scratch.text("user.key");
    let paths = ["trace", "127.0.0.3", "--controller", &overlay.at, "--key", &key];
    let said: Value = serde_json::from_str(&must(program(&paths).arg("--json"))).unwrap();
    let way = said["ways"].as_array().unwrap().iter().find(|way| way["name"] == "127.0.0.2").expect("a way");
    let told = &way["told"][0];
    assert_eq!(
        (&told["from"], &told["to"], &told["estimated"]),
        (&"127.0.0.2".into(), &"127.0.0.3".into(), &Value::Null)
    );
    // On a busy machine it takes its time.
    assert!(told["rtt_ms"].as_f64().unwrap() < 5_000.0, "{told}");
    let text = must(&mut program(&paths));
    assert!(text.contains("measured by a relay"), "{text}");

    let listed = must(&mut program(&["relay", "list", "--controller", &overlay.at, "--key", &key]));
    assert!(listed.lines().count() == 2 && listed.lines().all(|line| line.starts_with("ab1")), "{listed}");

    // The capacity from here to the relay, measured with a packet train.
    let said: Value = serde_json::from_str(&must(program(&paths).args(["--capacity", "--json"]))).unwrap();
    let way = said["ways"].as_array().unwrap().iter().find(|way| way["name"] == "127.0.0.2").expect("a way");
    assert!(way["capacity_mbit"].as_f64().is_some_and(|mbit| mbit > 1.0), "{way}");
    assert_eq!(said["silent"], serde_json::json!([]));

    // A relay that is gone is named without the full wait for a train; the other's known values are printed.
    let key_of_second = &overlay.relays[1];
    second.kill();
    common::within_three_attempts("a silent relay is named", || {
        let begun = std::time::Instant::now();
        let said: Value =
            serde_json::from_str(&must(program(&paths).args(["--capacity", "--json"]))).unwrap();
        let took = begun.elapsed().as_secs_f64();
        let silent = said["silent"].as_array().unwrap();
        assert!(silent.len() == 1 && silent[0].as_str().unwrap().starts_with(key_of_second), "{silent:?}");
        let found = format!("after {took:.1} s: {}", said["ways"]);
        if took < 13.0 { Ok(found) } else { Err(found) }
    });
}

/// One relay's clock says that the grant has expired; the other's, that it is not yet valid.
#[test]
fn relays_whose_clocks_are_wrong_go_by_the_controllers_and_say_so() {
    let (overlay, _controller) = Overlay::new();
    let scratches = [Scratch::new(), Scratch::new()];
    let clocks = scratches.each_ref().map(WallClock::new);
    let [Ok(ahead), Ok(behind)] = &clocks else {
        return skip("relays_whose_clocks_are_wrong", "no clock can be set");
    };
    ahead.set_off(30 * 24 * 3_600);
    behind.set_off(-30 * 24 * 3_600);
    let relays = [overlay.relay_by(0, Some(ahead)), overlay.relay_by(1, Some(behind))];
    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let is_used = |_: &str| [0, 1].iter().all(|number| overlay.forwarded(*number) > 10);
    overlay.bench_until(&ticket, "packets through both relays", is_used);
    for relay in relays {
        relay.signal("-TERM");
        let (code, told) = relay.end();
        assert!(code == Some(0) && told.contains("correct it"), "{told}");
    }
}
