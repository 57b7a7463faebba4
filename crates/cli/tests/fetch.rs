//! `fetch` against servers on loopback, killed and resumed; through an exit; and between two namespaces joined by three links.
#![cfg(target_os = "linux")]

mod common;
#[path = "../../fetch/tests/common/server.rs"]
mod server;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::netns::{Machines, Side, run, three_links};
use common::programs::{Running, Scratch, errors, last_event, program, wait_for};
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
    let again = output(&scratch, &["-i", &scratch.text("list")]);
    assert!(!errors(&again).contains("exists already"), "{}", errors(&again));
    std::fs::write(scratch.path("list"), server.url("/right")).unwrap();
    let again = output(&scratch, &["-i", &scratch.text("list")]);
    assert!(again.status.success(), "{}", errors(&again));
    std::os::unix::fs::symlink("/dev/null", scratch.path("to/null")).unwrap();
    let device = output(&scratch, &[&server.url("/right"), "--force", "-o", "null"]);
    assert!(errors(&device).contains("not a regular file"), "{}", errors(&device));
}

/// Bytes that are kept, by the journal of a download.
fn kept(journal: &Path) -> u64 {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let journal: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let origins = journal["origins"].as_array().into_iter().flatten();
    let ranges = origins.flat_map(|origin| origin[1].as_array().into_iter().flatten());
    let end = |range: &serde_json::Value, at: usize| range[at].as_u64().unwrap_or_default();
    ranges.map(|range| end(range, 1).saturating_sub(end(range, 0))).sum()
}

#[test]
fn an_interrupted_download_says_so_and_goes_on_later() {
    let (scratch, content) = (Scratch::new(), noise(SIZE, 3));
    let server = steady(&content, 1_000_000);
    let running = Running::start(&mut fetch(&scratch, &[&server.url("/file"), "--connections", "1"]));
    wait_for("half a megabyte", || kept(&scratch.path("to/.file.anabranch-fetch")) > 500_000);
    running.interrupt();
    let (code, text) = running.end();
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("go on"), "{text}");
    let fetched = output(&scratch, &[&server.url("/file"), "--json"]);
    assert!(last_event(&fetched)["bytes_resumed"].as_u64().unwrap() > 500_000, "{:?}", last_event(&fetched));
    assert!(is_content(&scratch.path("to/file"), &content));
}

#[test]
fn a_cap_holds_for_all_files_of_a_list() {
    let (scratch, content) = (Scratch::new(), noise(SIZE, 10));
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let server = Server::start(move |request| {
        let response = Response::right(request, &content);
        if request.from.ip() == std::net::IpAddr::from([127, 0, 0, 3]) {
            counted.fetch_add(response.body.len(), Ordering::SeqCst);
        }
        Response { rate: Some(4_000_000), ..response }
    });
    std::fs::write(scratch.path("list"), format!("{}\n{}\n", server.url("/a"), server.url("/b"))).unwrap();
    let rule = "from:127.0.0.3=primary:2MB";
    let words = ["-i", &scratch.text("list"), "--via", "127.0.0.2,127.0.0.3", "--path-rule", rule];
    let fetched = output(&scratch, &words);
    assert!(fetched.status.success(), "{}", errors(&fetched));
    let sent = sent.load(Ordering::SeqCst);
    assert!((1_000_000..=2_000_000).contains(&sent), "{sent} bytes");
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

    // A fetch that fails leaves no session at the exit either.
    let failed = output(&scratch, &["http://10.0.0.1/file", "--exit", ticket]);
    assert!(!failed.status.success());
    let clients = || {
        let mut status = program(&["exit", "status", "--json", "--port", &port]);
        status.env("HOME", scratch.path("from")).env("XDG_RUNTIME_DIR", scratch.path("from"));
        let output = status.output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["clients"].clone()
    };
    // Sessions whose other end says nothing would stay for two minutes.
    wait_for("the exit to have no client", || clients().as_array().is_some_and(Vec::is_empty));
}

/// The server of the tests between namespaces: this test program serves a file when a variable is set.
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

/// Gives the far machine addresses that all links lead to; both machines then send by source address.
fn join(machines: &Machines) {
    let (near, far) = (machines.namespace_name(Side::Near), machines.namespace_name(Side::Far));
    for last in 1..=3 {
        run("ip", &format!("-n {far} address add 10.99.0.{last}/32 dev lo")).unwrap();
    }
    for link in 0..3 {
        let (name, gateway) = (Machines::interface(link), machines.address(Side::Far, link));
        let (own, table) = (machines.address(Side::Near, link), 100 + link);
        for line in [
            format!("-n {near} route add default via {gateway} dev {name} metric {table}"),
            format!("-n {near} route add default via {gateway} dev {name} table {table}"),
            format!("-n {near} rule add from {own} lookup {table}"),
        ] {
            run("ip", &line).unwrap();
        }
    }
}

/// Starts the server of this test program on the far machine.
fn serve_far(machines: &Machines, size: usize) -> Running {
    join(machines);
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
        wait_for("the server", || {
            let words = ["2", "bash", "-c", "exec 3<>/dev/tcp/10.99.0.1/8080"];
            let mut connect = machines.command(Side::Near, "timeout");
            connect.args(words).stderr(Stdio::null()).status().unwrap().success()
        });
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

/// The size in MB of the file that programs are compared with.
fn compared_mb() -> usize {
    std::env::var("ANABRANCH_TEST_MB").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

/// Runs a program on the near machine, and returns its seconds and its standard error.
fn timed(machines: &Machines, folder: &Path, words: &[String]) -> (f64, String) {
    let mut command = machines.command(Side::Near, &words[0]);
    command.args(&words[1..]).current_dir(folder).env("HOME", folder);
    let begin = Instant::now();
    let ended = command.output().unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    assert!(
        ended.status.success(),
        "{words:?}: {} {}",
        errors(&ended),
        String::from_utf8_lossy(&ended.stdout)
    );
    (seconds, errors(&ended))
}

#[test]
#[ignore = "takes minutes; needs nginx, aria2 and curl"]
fn is_compared_with_aria2_and_curl_over_three_links() {
    let size = compared_mb() * 1_000_000;
    let Some((machines, _turn)) = three_links("comparison") else { return };
    join(&machines);
    let scratch = Scratch::in_memory();
    let content = noise(size, 9);
    std::fs::write(scratch.path("from/file"), &content).unwrap();
    scratch.open_to_all();
    let config = format!(
        "daemon off; worker_processes 1; pid {0}/pid; error_log {0}/errors; events {{}}\n\
         http {{ access_log off; sendfile on; server {{ listen 8080; root {0}/from; }} }}\n",
        scratch.text("")
    );
    std::fs::write(scratch.path("nginx.conf"), config).unwrap();
    let mut nginx = machines.command(Side::Far, "nginx");
    let nginx = Running::start(nginx.args(["-c", &scratch.text("nginx.conf")]));
    std::thread::sleep(Duration::from_secs(1));
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let aria2 = text(&["aria2c", "-q", "-x16", "-s16", "--file-allocation=none", "-o", "got"]);
    let aria2 = [aria2, vec!["--multiple-interface=path0,path1,path2".to_owned()]].concat();
    let small = [&aria2[..], &["-k1M".to_owned()]].concat();
    let fetch = text(&[common::programs::PROGRAM, "fetch", "-v", "-o", "got", "--force"]);
    let curl = text(&["curl", "-s", "--interface", "path0", "-o", "got"]);
    let programs = [("fetch", fetch), ("aria2", aria2), ("aria2 -k1M", small), ("curl", curl)];
    for (last_rate, mirrors) in [(20, 1), (20, 3), (2, 1), (2, 3)] {
        machines.shape(2, last_rate).unwrap();
        let ceiling = f64::from(80 + last_rate) * 1448.0 / 1514.0;
        let urls: Vec<_> = (1..=mirrors).map(|last| format!("http://10.99.0.{last}:8080/file")).collect();
        for (name, words) in &programs {
            let urls = if *name == "curl" { &urls[..1] } else { &urls };
            let words = [&words[..], urls].concat();
            let (seconds, log) = timed(&machines, &scratch.path("to"), &words);
            assert!(is_content(&scratch.path("to/got"), &content), "{name}");
            std::fs::remove_file(scratch.path("to/got")).unwrap();
            let rate = size as f64 * 8.0 / 1e6 / seconds;
            let last = log.lines().find(|line| line.contains("last=")).unwrap_or_default();
            let last = last
                .split("last=")
                .nth(1)
                .unwrap_or_default()
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned();
            let share = rate / ceiling;
            common::say(&format!(
                "50/30/{last_rate}, {mirrors} mirrors, {name}: {seconds:.1} s, {rate:.1} Mbit/s, {share:.3} of the sum {last}"
            ));
        }
    }
    nginx.kill();
}
