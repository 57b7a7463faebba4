//! `fetch` against servers on loopback, killed and resumed; through an exit; and between two namespaces joined by three links.
#![cfg(target_os = "linux")]

mod common;
#[path = "../../fetch/tests/common/server.rs"]
mod server;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::netns::{Machines, Side, run, three_links};
use common::programs::{Running, Scratch, errors, last_event, program};
use common::within_three_attempts;
use server::{Response, Server, noise};

const SIZE: usize = 6_000_000;

/// A server of this content at this rate for each connection.
fn steady(content: &[u8], rate: usize) -> Server {
    let content = content.to_vec();
    Server::start(move |request| {
        let response = Response::right(request, &content).with("ETag", "\"x\"");
        Response { rate: Some(rate), ..response }
    })
}

fn fetch(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = program(&[&["fetch"], words].concat());
    command.current_dir(scratch.path("to")).env("HOME", scratch.path("to")).env_remove("XDG_CONFIG_HOME");
    command
}

fn output(scratch: &Scratch, words: &[&str]) -> Output {
    fetch(scratch, words).output().unwrap()
}

/// Names in the folder to which files are fetched.
fn names(scratch: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.path("to")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn is_content(file: &Path, content: &[u8]) -> bool {
    std::fs::read(file).unwrap() == content
}

#[test]
fn a_file_is_fetched_over_two_addresses_and_reported() {
    let (scratch, content) = (Scratch::new(), noise(SIZE, 1));
    let server = Server::right(&content);
    let url = server.url("/some/file.bin?x=1");
    let fetched = output(&scratch, &[&url, "--via", "127.0.0.2,127.0.0.3", "--json"]);
    assert!(fetched.status.success(), "{}", errors(&fetched));
    assert!(is_content(&scratch.path("to/file.bin"), &content));
    let event = last_event(&fetched);
    assert_eq!((&event["event"], &event["bytes"]), (&"done".into(), &SIZE.into()));
    let progress = String::from_utf8(fetched.stdout).unwrap();
    assert!(progress.contains("\"127.0.0.2\"") && progress.contains("\"127.0.0.3\""), "{progress}");
    let again = output(&scratch, &[&url]);
    assert_eq!(again.status.code(), Some(1));
    assert!(errors(&again).contains("exists already"), "{}", errors(&again));
    assert!(output(&scratch, &[&url, "--force"]).status.success());
    assert_eq!(names(&scratch), ["file.bin"]);
}

#[test]
fn failures_have_their_exit_codes() {
    let (scratch, content) = (Scratch::new(), noise(1000, 2));
    let server = Server::start(move |request| match &*request.path {
        "/right" => Response::right(request, &content),
        _ => Response::new(404, b"no"),
    });
    let missing = output(&scratch, &[&server.url("/missing")]);
    assert_eq!(missing.status.code(), Some(4), "{}", errors(&missing));
    assert!(errors(&missing).contains("404"));
    let checksum = format!("sha-256={}", "0".repeat(64));
    let corrupt = output(&scratch, &[&server.url("/right"), "--checksum", &checksum]);
    assert_eq!(corrupt.status.code(), Some(5), "{}", errors(&corrupt));
    assert_eq!(output(&scratch, &["ssh://host/file"]).status.code(), Some(2));
    assert_eq!(output(&scratch, &[&server.url("/right"), "--via", "none0"]).status.code(), Some(2));
    std::fs::write(scratch.path("list"), format!("{}\n{}\n", server.url("/right"), server.url("/missing")))
        .unwrap();
    let some = output(&scratch, &["-i", &scratch.text("list")]);
    assert_eq!(some.status.code(), Some(6), "{}", errors(&some));
    assert_eq!(names(&scratch), ["right"]);
}

#[test]
fn an_interrupted_download_says_so_and_goes_on_later() {
    let (scratch, content) = (Scratch::new(), noise(SIZE, 3));
    let server = steady(&content, 1_000_000);
    let running = Running::start(&mut fetch(&scratch, &[&server.url("/file"), "--connections", "1"]));
    std::thread::sleep(Duration::from_millis(2000));
    running.interrupt();
    let (code, text) = running.end();
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("go on"), "{text}");
    let fetched = output(&scratch, &[&server.url("/file"), "--json"]);
    assert!(last_event(&fetched)["bytes_resumed"].as_u64().unwrap() > 500_000, "{:?}", last_event(&fetched));
    assert!(is_content(&scratch.path("to/file"), &content));
}

/// Kills a download at these moments, in milliseconds after the last kill, until it is complete.
fn kill_at(moments: impl Iterator<Item = u64>) {
    let (scratch, content) = (Scratch::in_memory(), noise(SIZE, 4));
    let server = steady(&content, 400_000);
    let (url, file) = (server.url("/file"), scratch.path("to/file"));
    let (mut killed, mut complete) = (0, 0);
    for moment in moments {
        let running = Running::start(&mut fetch(&scratch, &[&url, "--via", "127.0.0.2,127.0.0.3"]));
        std::thread::sleep(Duration::from_millis(moment));
        running.kill();
        killed += 1;
        if file.exists() {
            assert!(is_content(&file, &content), "a half-written file has the final name");
            complete += 1;
            assert!(output(&scratch, &[&url]).status.code().is_some_and(|code| code <= 1));
            assert_eq!(names(&scratch), ["file"]);
            std::fs::remove_file(&file).unwrap();
        }
    }
    if !file.exists() {
        let fetched = output(&scratch, &[&url]);
        assert!(fetched.status.success(), "{}", errors(&fetched));
    }
    assert!(is_content(&file, &content));
    assert_eq!(names(&scratch), ["file"]);
    common::say(&format!("killed {killed} times, {complete} times when it was complete"));
}

/// Moments that look random.
fn moments(count: usize, most: u64, seed: u64) -> impl Iterator<Item = u64> {
    noise(8 * count, seed)
        .chunks(8)
        .map(|bytes| u64::from(bytes[0]) * most / 256)
        .collect::<Vec<_>>()
        .into_iter()
}

#[test]
fn a_download_that_is_killed_is_resumed_and_right() {
    kill_at(moments(6, 2000, 5));
}

#[test]
#[ignore = "takes minutes: 50 kills"]
fn a_download_that_is_killed_fifty_times_is_resumed_and_right() {
    kill_at(moments(50, 3000, 6));
}

#[test]
fn a_download_goes_through_an_exit() {
    let (scratch, content) = (Scratch::new(), noise(SIZE, 7));
    let server = Server::right(&content);
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let words = ["exit", "--port", &port, "--address", "127.0.0.1", "--allow", "127.0.0.1"];
    let mut exit = program(&words);
    exit.env("HOME", scratch.path("from"))
        .env("XDG_RUNTIME_DIR", scratch.path("from"))
        .env_remove("XDG_CONFIG_HOME");
    let mut exit = Running::start(&mut exit);
    let line = exit.line();
    let ticket = line.strip_prefix("anabranch proxy ").expect("a line for clients");
    // The exit resolves the name.
    let url = format!("http://localhost:{}/file", server.port);
    let fetched = output(&scratch, &[&url, "--exit", ticket, "--json"]);
    assert!(fetched.status.success(), "{}", errors(&fetched));
    assert!(is_content(&scratch.path("to/file"), &content));
    let progress = String::from_utf8_lossy(&fetched.stdout);
    assert!(progress.contains("\"path\":\"exit\""), "{progress}");
}

/// The server of the tests between namespaces: this test program serves a file when it is told so.
#[test]
#[ignore = "part of other tests"]
fn serves_a_file_for_other_tests() {
    let Ok(size) = std::env::var("ANABRANCH_TEST_SERVE") else { return };
    let content = noise(size.parse().unwrap(), 8);
    let _server = Server::start_at("0.0.0.0:8080", move |request| Response::right(request, &content));
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Starts the server on the far machine, at an address that all links lead to.
fn serve_far(machines: &Machines, size: usize) -> Running {
    for (side, namespace) in [Side::Near, Side::Far].map(|side| (side, machines.namespace_name(side))) {
        if side == Side::Far {
            run("ip", &format!("-n {namespace} address add 10.99.0.1/32 dev lo")).unwrap();
            continue;
        }
        for link in 0..3 {
            let (name, gateway) = (Machines::interface(link), machines.address(Side::Far, link));
            let route =
                format!("-n {namespace} route add default via {gateway} dev {name} metric {}", 100 + link);
            run("ip", &route).unwrap();
        }
    }
    let mut command = machines.command(Side::Far, std::env::current_exe().unwrap().to_str().unwrap());
    command.args(["--ignored", "--exact", "serves_a_file_for_other_tests"]);
    command.env("ANABRANCH_TEST_SERVE", size.to_string());
    Running::start(&mut command)
}

#[test]
fn a_download_runs_at_the_sum_of_three_links() {
    let size = 60_000_000;
    within_three_attempts("fetch over three links", || {
        let Some((machines, _turn)) = three_links("fetch over three links") else {
            return Ok("skipped".into());
        };
        let (scratch, _server) = (Scratch::in_memory(), serve_far(&machines, size));
        std::thread::sleep(Duration::from_millis(500));
        let target = scratch.text("to/file");
        let words = ["fetch", "http://10.99.0.1:8080/file", "-o", &target, "--json"];
        let mut command = machines.command(Side::Near, common::programs::PROGRAM);
        command.args(words).env("HOME", scratch.path("to"));
        let begin = Instant::now();
        let fetched = command.output().unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        assert!(fetched.status.success(), "{}", errors(&fetched));
        assert!(is_content(Path::new(&target), &noise(size, 8)));
        // Payload of full packets over TCP on links of 100 Mbit/s together.
        let ceiling = 100.0 * 1448.0 / 1514.0;
        let rate = size as f64 * 8.0 / 1e6 / seconds;
        let found = format!("{rate:.1} of {ceiling:.1} Mbit/s");
        if rate >= 0.9 * ceiling { Ok(found) } else { Err(found) }
    });
}
