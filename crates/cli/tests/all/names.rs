//! Host names in the settings of relays and controllers, resolved from the tests' own hosts file.

#![cfg(unix)]

use crate::common;
use crate::relay::{Running, first_line};

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::programs::{PROGRAM, new_key, program};
use common::skip;
use serde_json::Value;
use tempfile::TempDir;

/// A directory with a hosts file, the only source of names for programs started here.
struct Hosts(TempDir);

impl Hosts {
    fn new() -> Option<Self> {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("nsswitch.conf"), "hosts: files\n").unwrap();
        let hosts = Self(dir);
        hosts.are("");
        let tried = hosts.command("true", &[]).output().ok()?;
        tried.status.success().then_some(hosts)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Replaces the hosts file.
    fn are(&self, lines: &str) {
        fs::write(self.0.path().join("hosts"), lines).unwrap();
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let dir = self.0.path().display();
        let files = ["nsswitch.conf", "hosts", "resolv.conf"];
        let files = files.into_iter().filter(|name| self.0.path().join(name).exists());
        let mounts: Vec<String> =
            files.map(|name| format!("mount --bind '{dir}/{name}' /etc/{name} && ")).collect();
        let script = format!("{}exec \"$@\"", mounts.concat());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "sh", program]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, args: &[&str]) -> Running {
        Running(self.command(PROGRAM, args).spawn().unwrap())
    }
}

fn started(args: &[&str]) -> Running {
    Running(program(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
}

/// Starts a relay on one address; returns the key and port that it prints.
fn relay(dir: &Path, (name, address): (&str, &str), user: &str) -> (Running, String, u16) {
    let config = dir.join(format!("{name}.toml"));
    let text = format!(
        "key = \"{name}.key\"\nport = 0\naddresses = [\"{address}\"]\nnext_hops = [\"loopback\", \"private\"]\n\n[[user]]\nkey = \"{user}\"\n"
    );
    fs::write(&config, text).unwrap();
    let mut relay = started(&["relay", "--config", config.to_str().unwrap()]);
    let route = first_line(&mut relay.0);
    let (key, at) = route.split_once('@').unwrap();
    (relay, key.to_owned(), at.rsplit_once(':').unwrap().1.parse().unwrap())
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn relays_are_found_by_name_over_either_kind_of_address_and_again_when_the_name_has_another() {
    let Some(hosts) = Hosts::new() else {
        return skip("relays_are_found_by_name", "a file of hosts of its own needs root");
    };
    let user = new_key(&hosts.path("user.key"));
    let relays = [("four", "127.0.0.1"), ("six", "::1"), ("later", "127.0.0.1")];
    let relays = relays.map(|relay| self::relay(hosts.0.path(), relay, &user));
    let named = |at: usize| {
        let (_, key, port) = &relays[at];
        format!("{key}@{}.test:{port}", ["four", "six", "later"][at])
    };
    // Each relay listens at one of its name's two addresses; the third name does not resolve yet.
    let known = "::1 four.test six.test\n127.0.0.1 four.test six.test\n";
    hosts.are(known);
    let mut server = started(&["bench", "server", "--port", "0", "--bind", "127.0.0.1", "--bind", "::1"]);
    let ticket = first_line(&mut server.0).split_whitespace().last().unwrap().to_owned();
    let (key, control) = (hosts.path("user.key"), hosts.path("bench.sock"));
    let args = ["bench", "client", &ticket, "--time", "60s", "--key", &key, "--control", &control];
    let routes = [0, 1].map(named);
    let _bench = hosts.start(&[&args[..], &["--relay", &routes[0], "--relay", &routes[1]]].concat());
    let ask = |words: &[&str]| {
        let asked = hosts.command(PROGRAM, &[&["path"], words, &["--json", "--control", &control]].concat());
        let asked = { asked }.output().unwrap();
        (asked.status.success(), String::from_utf8_lossy(&asked.stdout).into_owned())
    };
    let through = |key: &str| {
        let (worked, told) = ask(&["list"]);
        let paths: Vec<Value> = if worked { serde_json::from_str(&told).unwrap() } else { Vec::new() };
        let is_it = |path: &Value| path["relays"][0] == key && path["state"] == "active";
        paths.iter().any(is_it).then_some(())
    };
    for (_, key, _) in &relays[..2] {
        until("a path through a relay at one of its name's addresses", || through(key));
    }
    let (_, key, port) = &relays[2];
    let (worked, told) = ask(&["add", &named(2)]);
    assert!(!worked && told.contains("it is tried on"), "{told}");
    // First, an address where no relay listens.
    hosts.are(&format!("{known}127.0.0.9 later.test\n"));
    std::thread::sleep(Duration::from_secs(1));
    hosts.are(&format!("{known}127.0.0.1 later.test\n"));
    until("a path through the one whose name has its address now", || through(key));
    // The relay's address works as well as its name.
    let (worked, told) = ask(&["add", &format!("{key}@127.0.0.1:{port}")]);
    assert!(!worked && told.contains("kept already"), "{told}");
    let (worked, told) = ask(&["remove", &named(2)]);
    assert!(worked && through(key).is_none(), "{told}");
}

#[test]
fn a_relay_registers_with_a_controller_by_its_name_once_that_has_an_address() {
    let Some(hosts) = Hosts::new() else {
        return skip("a_relay_registers_by_name", "a file of hosts of its own needs root");
    };
    let relay = new_key(&hosts.path("relay.key"));
    let text = format!(
        "key = \"c.key\"\nport = 0\naddresses = [\"127.0.0.1\"]\n\n[store]\nmemory = true\n\n[[relay]]\nkey = \"{relay}\"\n"
    );
    fs::write(hosts.path("c.toml"), text).unwrap();
    let mut controller = started(&["controller", "--config", &hosts.path("c.toml")]);
    let mut printed = BufReader::new(controller.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let [at, signs] = [(); 2].map(|()| printed.next().unwrap().trim().to_owned());
    let (key, port) = (at.split_once('@').unwrap().0, at.rsplit_once(':').unwrap().1);
    let text = format!(
        "key = \"relay.key\"\nport = 0\naddresses = [\"127.0.0.1\"]\ncontrol = \"relay.sock\"\n\n[[controller]]\nat = \"{key}@controller.test:{port}\"\nsigns = \"{signs}\"\n"
    );
    fs::write(hosts.path("relay.toml"), text).unwrap();
    let mut relay = hosts.start(&["relay", "--config", &hosts.path("relay.toml")]);
    let socket = hosts.path("relay.sock");
    let told = || {
        let asked = program(&["relay", "status", "--json", "--control", &socket]).output().unwrap();
        let status: Value = serde_json::from_slice(&asked.stdout).ok()?;
        Some(status["controllers"][0].clone())
    };
    let why = until("a reason", || told().filter(|told| told.to_string().contains("resolved")));
    assert!(why.to_string().contains("controller.test"), "{why}");
    hosts.are("127.0.0.1 controller.test\n");
    until("registered", || told().filter(|told| told["registered"] == true));
    relay.0.kill().unwrap();
    let mut log = String::new();
    relay.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("not registered: ") && log.contains(" registered controller="), "{log}");
}

#[test]
fn a_silent_name_server_keeps_nobody_waiting() {
    let Some(hosts) = Hosts::new() else {
        return skip("a_silent_name_server", "a name server of its own needs root");
    };
    // A resolver that accepts queries and never answers.
    let Ok(_silent) = std::net::UdpSocket::bind("127.0.0.77:53") else {
        return skip("a_silent_name_server", "a name server's port needs root");
    };
    fs::write(hosts.path("nsswitch.conf"), "hosts: dns\n").unwrap();
    fs::write(hosts.path("resolv.conf"), "nameserver 127.0.0.77\n").unwrap();
    let named = ["one", "two", "three"]
        .map(|name| format!("{}@{name}.silent.test:4600", new_key(&hosts.path(&format!("{name}.key")))));
    let mut server = started(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]);
    let ticket = first_line(&mut server.0).split_whitespace().last().unwrap().to_owned();
    let control = hosts.path("bench.sock");
    let args = [
        "bench",
        "client",
        &ticket,
        "--time",
        "60s",
        "--control",
        &control,
        "--key",
        &hosts.path("user.key"),
    ];
    new_key(&hosts.path("user.key"));
    let mut bench = hosts.start(&[&args[..], &["--relay", &named[0], "--relay", &named[1]]].concat());
    let ask = |words: &[&str]| {
        let begin = Instant::now();
        let asked = program(&[&["path"], words, &["--control", &control]].concat()).output().unwrap();
        let told = String::from_utf8_lossy(&asked.stderr).into_owned();
        (asked.status.success(), told, begin.elapsed())
    };
    // The machine may be busy, so what may be repeated has several attempts.
    let ask_within = |seconds: u64, words: &[&str]| {
        let is_quick = |asked: &(bool, String, Duration)| asked.2 < Duration::from_secs(seconds);
        let quick = (0..4).map(|_| ask(words)).find(is_quick);
        let asked = quick.unwrap_or_else(|| ask(words));
        assert!(is_quick(&asked), "{words:?}: {asked:?}");
        (asked.0, asked.1)
    };
    until("it answers", || ask(&["list"]).0.then_some(()));
    let (worked, told, _) = ask(&["add", &named[2]]);
    assert!(!worked && told.contains("it is tried on"), "{told}");
    let (worked, told) = ask_within(2, &["add", &named[1]]);
    assert!(!worked && told.contains("kept already"), "{told}");
    let (worked, told, took) = ask(&["remove", &named[2]]);
    // A look-up is given up after five seconds.
    let soon = Duration::from_millis(4_800);
    assert!(worked && took < soon, "{took:?} {told}");
    let by_address = named[0].replace("one.silent.test", "127.0.0.9");
    let (worked, told) = ask_within(4, &["remove", &by_address]);
    assert!(!worked && told.contains("was named or added"), "{told}");

    let begin = Instant::now();
    Command::new("kill").args(["-TERM", &bench.0.id().to_string()]).status().unwrap();
    bench.0.wait().unwrap();
    assert!(begin.elapsed() < soon, "{:?}", begin.elapsed());
}
