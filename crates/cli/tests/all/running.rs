//! Other commands list, remove and add paths while a transfer runs.
//!
//! The test feeds the data through a pipe, so the transfer lasts as long as the test needs.

#![cfg(unix)]

use crate::common;

use std::fs;
use std::io::Write;
use std::process::Stdio;

use common::programs::{Running, Scratch, Sender, errors, new_key, noise, program, wait_for};
use serde_json::Value;

/// Bytes written at a time.
const PIECE: usize = 50_000;

/// A relay, and a running stream from a sender that lists the relay's key.
struct Stage {
    scratch: Scratch,
    _relay: Running,
    route: String,
    sender: Sender,
    receiver: Running,
    sent: Vec<u8>,
}

impl Stage {
    /// If `met_there`, the sender's ticket names the relay.
    fn new(met_there: bool) -> Self {
        let scratch = Scratch::new();
        let key = scratch.text("user.key");
        let config = format!(
            "key = \"relay.key\"\nport = 0\naddresses = [\"127.0.0.1\"]\nnext_hops = [\"loopback\", \"private\"]\n\
             control = \"relay.sock\"\n[[user]]\nname = \"sender\"\nkey = \"{}\"\n",
            new_key(&key)
        );
        fs::write(scratch.path("relay.toml"), config).unwrap();
        let mut relay = Running::start(&mut program(&["relay", "--config", &scratch.text("relay.toml")]));
        let route = relay.line();
        let (send, receive) = (scratch.text("send.sock"), scratch.text("receive.sock"));
        let mut command = program(&["send", "-", "--quiet", "--key", &key, "--control", &send]);
        if met_there {
            command.args(["--relay", &route]);
        }
        let sender = Sender::start_as(command.stdin(Stdio::piped()));
        let words =
            ["receive", "--yes", &sender.ticket, &scratch.text("to"), "--quiet", "--control", &receive];
        let receiver = Running::start(program(&words).env("XDG_CONFIG_HOME", scratch.path("config")));
        Self { scratch, _relay: relay, route, sender, receiver, sent: Vec::new() }
    }

    fn ask(&self, socket: &str, words: &[&str]) -> Result<Value, String> {
        let output =
            program(words).args(["--json", "--control", &self.scratch.text(socket)]).output().unwrap();
        let said = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if output.status.success() { Ok(said) } else { Err(format!("{said} {}", errors(&output))) }
    }

    fn must(&self, socket: &str, words: &[&str]) {
        self.ask(socket, &[&["path"], words].concat()).unwrap();
    }

    /// The numbers of the open paths, relayed or direct. On a busy machine a path may be suspected for a moment.
    fn open(&self, socket: &str, through_relays: bool) -> Vec<String> {
        let Ok(Value::Array(paths)) = self.ask(socket, &["path", "list"]) else { return Vec::new() };
        let open = |path: &&Value| !["validating", "closing"].contains(&path["state"].as_str().unwrap());
        let wanted = |path: &&Value| path["relays"][0].is_string() == through_relays;
        paths.iter().filter(open).filter(wanted).map(|path| path["id"].to_string()).collect()
    }

    fn forwarded(&self) -> u64 {
        self.ask("relay.sock", &["relay", "status"]).unwrap()["forwarded_bytes"].as_u64().unwrap()
    }

    fn send_piece(&mut self) {
        let piece = noise(PIECE, self.sent.len() as u64);
        self.sender.stdin.as_mut().unwrap().write_all(&piece).unwrap();
        self.sent.extend(piece);
    }

    /// Sends the last piece and checks that everything arrived unchanged.
    fn finish(mut self) {
        self.send_piece();
        drop(self.sender.stdin.take());
        for running in [self.receiver, self.sender.running] {
            let (code, told) = running.end();
            assert_eq!(code, Some(0), "{told}");
        }
        assert!(fs::read(self.scratch.path("to/stdin")).unwrap() == self.sent, "others arrived");
        assert!(!self.scratch.path("send.sock").exists() && !self.scratch.path("receive.sock").exists());
    }
}

#[test]
fn a_running_send_takes_and_loses_a_path_through_a_relay_and_all_arrives() {
    let mut stage = Stage::new(false);
    stage.send_piece();
    wait_for("a session", || !stage.open("send.sock", false).is_empty());
    let status = stage.ask("send.sock", &["status"]).unwrap();
    assert_eq!(status["services"][0]["kind"], "session", "{status}");
    assert_eq!(status["services"][0]["paths"][0]["session"], 1, "{status}");

    stage.must("send.sock", &["add", &stage.route]);
    for direct in stage.open("send.sock", false) {
        stage.must("send.sock", &["set", &format!("{direct}=backup")]);
    }
    let before = stage.forwarded();
    while stage.forwarded() < before + 2 * PIECE as u64 {
        assert!(stage.sent.len() < 100 * PIECE, "the path that was added carries nothing");
        stage.send_piece();
    }
    let status = stage.ask("relay.sock", &["relay", "status"]).unwrap();
    assert_eq!(status["users"][0]["name"], "sender", "{status}");
    let interface = &status["interfaces"][0];
    assert!(interface["name"] == "lo" && interface["packets"][0].as_u64() > Some(10), "{status}");
    let [added] = &stage.open("send.sock", true)[..] else { panic!("one path through the relay") };
    stage.must("send.sock", &["remove", added]);
    assert!(stage.open("send.sock", true).is_empty());
    let refused = stage.ask("send.sock", &["path", "add", &stage.route, "--session", "7"]).unwrap_err();
    assert!(refused.contains("no session 7"), "{refused}");
    stage.finish();
}

#[test]
fn a_running_receive_loses_and_takes_again_the_path_through_the_relay_of_its_ticket() {
    let mut stage = Stage::new(true);
    stage.send_piece();
    wait_for("a path through the relay", || stage.open("receive.sock", true).len() == 1);
    wait_for("a direct path", || !stage.open("receive.sock", false).is_empty());
    let id = stage.open("receive.sock", true).remove(0);
    stage.must("receive.sock", &["remove", &id]);
    assert!(stage.open("receive.sock", true).is_empty());
    stage.send_piece();
    stage.must("receive.sock", &["add", &stage.route]);
    assert_eq!(stage.open("receive.sock", true).len(), 1);
    let refused = stage.ask("receive.sock", &["path", "add", &stage.route]).unwrap_err();
    assert!(refused.contains("kept already"), "{refused}");
    stage.finish();
}

/// As the examples of `path --help` say, with the key that `keys show` prints.
#[test]
fn a_relay_that_lists_the_usual_key_is_added_to_a_test() {
    let scratch = Scratch::new();
    let usual = |words: &[&str]| {
        let mut command = program(words);
        command.env("XDG_CONFIG_HOME", scratch.path("config"));
        command
    };
    let must = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    must(&mut usual(&["keys", "new"]));
    let shown = must(&mut usual(&["keys", "show"]));
    let key = shown.split_whitespace().find(|word| word.starts_with("ab1")).expect("a key");
    let settings = format!(
        "key = \"relay.key\"\nport = 0\naddresses = [\"127.0.0.1\"]\nnext_hops = [\"loopback\"]\n[[user]]\nkey = \"{key}\"\n"
    );
    fs::write(scratch.path("relay.toml"), settings).unwrap();
    let mut relay = Running::start(&mut program(&["relay", "--config", &scratch.text("relay.toml")]));
    let route = relay.line();
    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let socket = scratch.text("bench.sock");
    let words = ["bench", "client", &ticket, "--time", "5m", "--control", &socket];
    let client = Running::start(&mut usual(&words));
    wait_for("a session", || {
        let list = program(&["path", "list", "--json", "--control", &socket]).output().unwrap();
        list.status.success() && String::from_utf8_lossy(&list.stdout).contains("active")
    });
    let added = must(&mut program(&["path", "add", &route, "--control", &socket]));
    assert!(added.contains("through 1 relay"), "{added}");
    let listed = must(&mut program(&["path", "list", "--control", &socket]));
    assert!(
        listed.contains("bit/s out") && listed.contains("bit/s in") && listed.contains("lo 127.0.0.1"),
        "{listed}"
    );
    client.interrupt();
    assert_eq!(client.end().0, Some(130));
    server.interrupt();
    let (_, told) = server.end();
    assert!(told.contains("client 1 at 127.0.0.1: key ab1"), "{told}");
}

#[test]
fn a_cap_that_is_set_while_a_command_runs_lasts_and_a_rule_for_no_interface_is_reported() {
    let scratch = Scratch::new();
    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let socket = scratch.text("bench.sock");
    let mut client = program(&["bench", "client", &ticket, "--time", "5m", "--control", &socket]);
    client.env("XDG_CONFIG_HOME", scratch.path("config")).env("XDG_STATE_HOME", scratch.path("state"));
    let client = Running::start(client.env_remove("STATE_DIRECTORY"));
    let set = |rule: &str| program(&["path", "set", rule, "--control", &socket]).output().unwrap();
    wait_for("a session", || set("lo=primary:900GB/15").status.success());
    wait_for("its use in the record of caps", || {
        let record = fs::read_to_string(scratch.path("state/anabranch/caps")).unwrap_or_default();
        record.lines().any(|line| line.starts_with("lo\t") && !line.ends_with("\t0"))
    });
    let refused = set("0=primary:900GB/15");
    assert!(!refused.status.success() && errors(&refused).contains("interface"), "{}", errors(&refused));
    assert!(set("wlan9=backup").status.success());
    wait_for("a warning", || client.told().contains("no interface fits the rule `wlan9=backup` now"));
    client.interrupt();
    assert_eq!(client.end().0, Some(130));
}
