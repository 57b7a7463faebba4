//! `anabranch relay` as people run it: configuration file, signals, Unix socket, and the commands that use them.

#![cfg(unix)]

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::programs::{new_key, program, wait_for};
use common::within_three_attempts;
use serde_json::Value;
use tempfile::TempDir;

/// Kills the program when the test ends.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(args: &[&str]) -> Command {
    let mut command = program(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    command
}

/// The first line that a program prints.
pub fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// A server for `bench client`, and its ticket.
fn bench_server() -> (Running, String) {
    let words = ["bench", "server", "--port", "0", "--bind", "127.0.0.1"];
    let mut server = Running(run(&words).spawn().unwrap());
    let ticket = first_line(&mut server.0).split_whitespace().last().unwrap().to_owned();
    (server, ticket)
}

fn configure(dir: &TempDir, user: &str) -> std::path::PathBuf {
    let file = dir.path().join("relay.toml");
    let text = format!(
        "key = \"relay.key\"\nport = 0\naddresses = [\"127.0.0.2\"]\nnext_hops = [\"loopback\", \"private\"]\n\
         control = \"relay.sock\"\n\n[[user]]\nname = \"test\"\nkey = \"{user}\"\n"
    );
    fs::write(&file, text).unwrap();
    file
}

fn ask(dir: &TempDir, what: &str) -> Value {
    let socket = dir.path().join("relay.sock");
    let asked = run(&["relay", what, "--json", "--control", socket.to_str().unwrap()]).output().unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    serde_json::from_slice(&asked.stdout).unwrap()
}

fn wait_for_end(child: &mut Child, patience: Duration) -> std::process::ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(begin.elapsed() < patience, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_configured_relay_carries_a_bench_and_a_transfer_and_drains_when_told_to_end() {
    let dir = TempDir::new().unwrap();
    let key = dir.path().join("user.key");
    let config = configure(&dir, &new_key(key.to_str().unwrap()));
    let mut relay = Running(run(&["relay", "--config", config.to_str().unwrap()]).spawn().unwrap());
    let route = first_line(&mut relay.0);
    assert!(route.starts_with("ab1") && route.contains("@127.0.0.2:"), "{route}");

    let (_server, ticket) = bench_server();
    let key = key.to_str().unwrap();
    let words = ["bench", "client", &ticket, "--time", "2s", "--json", "--relay", &route, "--key", key];
    // On a busy machine the path may come too late for a short test.
    wait_for("a bench with a path through the relay", || {
        let bench = run(&words).output().unwrap();
        assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
        let report: Value = serde_json::from_slice(&bench.stdout).unwrap();
        report["without_path"] == serde_json::json!([])
    });
    let status = ask(&dir, "status");
    assert!(status["forwarded_packets"].as_u64().unwrap() > 10, "{status}");

    let (file, copy) = (dir.path().join("file"), dir.path().join("copy"));
    fs::write(&file, vec![42; 300_000]).unwrap();
    fs::create_dir(&copy).unwrap();
    let send = run(&["send", "--once", "--relay", &route, "--key", key, file.to_str().unwrap()]);
    let mut send = Running({ send }.spawn().unwrap());
    let ticket = first_line(&mut send.0);
    let received = run(&["receive", "--yes", &ticket, copy.to_str().unwrap()]).output().unwrap();
    assert!(received.status.success(), "{}", String::from_utf8_lossy(&received.stderr));
    assert_eq!(fs::read(copy.join("file")).unwrap().len(), 300_000);

    // Rules of the sender apply to paths that a receiver opens through the sender's relay.
    for (rule, arrives) in [("relay:*=backup", true), ("relay:*=never", false)] {
        let words = ["send", "--relay", &route, "--key", key, "--path-rule", rule, file.to_str().unwrap()];
        let mut send = Running(run(&words).spawn().unwrap());
        let ticket = first_line(&mut send.0);
        let through = ["--path-rule", "to:127.0.0.2=primary", "--path-rule", "*=never"];
        let target = dir.path().join(rule);
        let receive = ["receive", "--yes", &ticket, target.to_str().unwrap(), "--retry", "0s"];
        let received = run(&[&receive[..], &through].concat()).output().unwrap();
        let told = String::from_utf8_lossy(&received.stderr);
        assert_eq!(received.status.success(), arrives, "{rule}: {told}");
    }

    let kill =
        |signal: &str| Command::new("kill").args([signal, &relay.0.id().to_string()]).status().unwrap();
    assert!(kill("-HUP").success());
    assert_eq!(ask(&dir, "status")["draining"], false);
    assert!(kill("-TERM").success());
    assert!(wait_for_end(&mut relay.0, Duration::from_secs(60)).success());
    let mut told = String::new();
    relay.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains("configuration read again: 1 user\n"), "{told}");
}

#[test]
fn a_path_through_a_relay_is_added_and_removed_while_data_flow() {
    let dir = TempDir::new().unwrap();
    let key = dir.path().join("user.key");
    let config = configure(&dir, &new_key(key.to_str().unwrap()));
    let mut relay = Running(run(&["relay", "--config", config.to_str().unwrap()]).spawn().unwrap());
    let route = first_line(&mut relay.0);
    let (_server, ticket) = bench_server();
    let socket = dir.path().join("bench.sock");
    let (key, control) = (key.to_str().unwrap(), socket.to_str().unwrap());
    let bench = ["bench", "client", &ticket, "--time", "5m", "--json", "--key", key, "--control", control];
    let mut bench = Running(run(&bench).spawn().unwrap());
    let path = |words: &[&str]| {
        run(&[&["path"], words, &["--json", "--control", control]].concat()).output().unwrap()
    };
    let paths = |words: &[&str]| -> Vec<Value> {
        let answer = path(words);
        assert!(answer.status.success(), "{answer:?}");
        serde_json::from_slice(&answer.stdout).unwrap()
    };
    let relayed = |paths: &[Value]| -> Vec<Value> {
        let relayed = paths.iter().filter(|path| path["relays"][0].is_string() && path["state"] == "active");
        relayed.map(|path| path["id"].clone()).collect()
    };
    while !socket.exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(relayed(&paths(&["list"])).len(), 0);
    let begin = Instant::now();
    let added = paths(&["add", &route]);
    let took = begin.elapsed();
    let [id] = &relayed(&added)[..] else { panic!("{added:?}") };
    let forwarded = || ask(&dir, "status")["forwarded_packets"].as_u64().unwrap();
    while forwarded() <= 10 {
        assert!(begin.elapsed() < Duration::from_secs(30), "the relay forwards nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let begin = Instant::now();
    let removed = paths(&["remove", &id.to_string()]);
    println!("added in {took:?}, removed in {:?}", begin.elapsed());
    assert_eq!(relayed(&removed).len(), 0, "{removed:?}");
    let direct = paths(&["list"])[0]["id"].to_string();
    let refused = path(&["remove", &direct]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stdout).contains("not one through relays"), "{refused:?}");
    let pid = bench.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(wait_for_end(&mut bench.0, Duration::from_secs(30)).code(), Some(130));
}

#[test]
fn a_relay_that_does_not_list_the_users_key_is_told_about_with_what_to_do() {
    let dir = TempDir::new().unwrap();
    let [own, other] = ["user.key", "other.key"].map(|name| dir.path().join(name));
    let public = new_key(own.to_str().unwrap());
    let config = configure(&dir, &new_key(other.to_str().unwrap()));
    let mut relay = Running(run(&["relay", "--config", config.to_str().unwrap()]).spawn().unwrap());
    let route = first_line(&mut relay.0);
    let (_server, ticket) = bench_server();
    let key = own.to_str().unwrap();
    let words = ["bench", "client", &ticket, "--time", "2s", "--relay", &route, "--key", key];
    // On a busy machine the relay may answer too late for a short test.
    wait_for("the advice", || {
        let bench = run(&words).output().unwrap();
        let said = String::from_utf8_lossy(&bench.stderr);
        let times = said.matches("`[[user]]`").count();
        assert!(bench.status.success() && times <= 1, "{said}");
        times == 1 && said.contains(&format!("key = \"{public}\""))
    });
}

#[test]
fn a_relay_that_gave_no_path_is_told_with_what_a_bench_measured_however_short_it_was() {
    let dir = TempDir::new().unwrap();
    let own = dir.path().join("user.key");
    let (key, other) = (own.to_str().unwrap(), dir.path().join("other.key"));
    new_key(key);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let route = format!("{}@{}", new_key(other.to_str().unwrap()), silent.local_addr().unwrap());
    let (_server, ticket) = bench_server();
    let bench = ["bench", "client", &ticket, "--time", "1s", "--relay", &route, "--key", key];
    let told = run(&bench).output().unwrap();
    let said = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && said.contains(&format!("no path through {route}: no answer")), "{said}");
    let told = run(&[&bench[..], &["--json"]].concat()).output().unwrap();
    let report: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(report["without_path"][0]["relay"], route, "{report}");
    assert!(report["without_path"][0]["why"].as_str().unwrap().contains("running there"), "{report}");
}

#[test]
fn a_signal_ends_a_sender_at_once_while_it_waits_for_its_relay() {
    let dir = TempDir::new().unwrap();
    let [own, other, file] = ["user.key", "other.key", "note"].map(|name| dir.path().join(name));
    let key = own.to_str().unwrap();
    new_key(key);
    fs::write(&file, "x").unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let route = format!("{}@{}", new_key(other.to_str().unwrap()), silent.local_addr().unwrap());
    let words = ["send", file.to_str().unwrap(), "--relay", &route, "--key", key];
    let mut sender = Running(run(&words).spawn().unwrap());
    silent.recv_from(&mut [0; 2_000]).expect("it calls the relay");
    let pid = sender.0.id().to_string();
    // Shells start programs in the background with SIGINT ignored.
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    // Sooner than it gives up the relay.
    wait_for_end(&mut sender.0, Duration::from_secs(8));
}

#[test]
fn a_mistake_in_the_configuration_is_told_with_its_line() {
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("relay.toml");
    fs::write(&config, "key = \"relay.key\"\nprot = 4600\n").unwrap();
    let mut relay = run(&["relay", "--config", config.to_str().unwrap()]).spawn().unwrap();
    let status = wait_for_end(&mut relay, Duration::from_secs(30));
    let mut said = String::new();
    relay.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("relay.toml:2") && said.contains("did you mean `port`"), "{said}");
}

/// Runs the demo once and checks its result.
fn demo() -> Result<String, String> {
    let output = run(&["demo", "--relays", "--json", "--size", "24MiB"]).output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("no {key} in {report}"));
    assert_eq!((&report["verified"], report["paths"].as_array().unwrap().len()), (&Value::Bool(true), 4));
    // More than the sum would mean that data bypassed the links.
    let share = number("multipath_mbit_s") / number("sum_mbit_s");
    let right = (0.93..1.05).contains(&share) && number("failover_gap_ms") <= number("failover_bound_ms");
    if right { Ok(report.to_string()) } else { Err(report.to_string()) }
}

#[test]
fn relays_and_a_direct_path_give_the_sum_of_their_rates_and_a_killed_relay_is_bridged() {
    within_three_attempts("relays_and_a_direct_path_give_the_sum", demo);
}
