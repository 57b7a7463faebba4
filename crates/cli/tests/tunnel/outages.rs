//! Outages of links and of the server, which a download and a ping outlive.
//!
//! The ignored tests are measurements, printed for the notebook. They take minutes and a quiet machine.

use std::fs::File;
use std::time::Instant;

use super::*;

/// Sends bytes without end to each caller on port 5402.
const SOURCE: &str = "
import socket, threading
def send(caller):
    try:
        while True:
            caller.sendall(bytes(16384))
    except OSError:
        pass
service = socket.create_server(('', 5402))
print('ready', flush=True)
while True:
    threading.Thread(target=send, args=service.accept()[:1], daemon=True).start()
";

/// One TCP connection and one ping through a tunnel.
pub struct Users {
    _source: Running,
    download: Running,
    _ping: Running,
    scratch: Scratch,
}

impl Users {
    pub fn new(machines: &Machines) -> Self {
        let scratch = Scratch::new();
        let mut source = Running::start(machines.command(Side::Far, "python3").args(["-c", SOURCE]));
        assert_eq!(source.line(), "ready", "{}", source.told());
        let script = format!("exec dd bs=16384 of=/dev/null < /dev/tcp/{PUBLIC}/5402");
        let download = Running::start(machines.command(Side::Near, "bash").args(["-c", &script]));
        let mut ping = machines.command(Side::Near, "ping");
        let answers = File::create(scratch.path("answers")).unwrap();
        let ping = Running::start_into(ping.args(["-n", "-i", "0.2", INSIDE]), answers);
        Self { _source: source, download, _ping: ping, scratch }
    }

    /// Bytes that the download's program has read.
    pub fn downloaded(&self) -> Option<u64> {
        let counts = std::fs::read_to_string(format!("/proc/{}/io", self.download.child.id())).ok()?;
        counts.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
    }

    fn answers(&self) -> usize {
        std::fs::read_to_string(self.scratch.path("answers")).unwrap().matches("bytes from").count()
    }

    fn assert_ping_goes_on(&self, when: &str) {
        let before = self.answers();
        wait_for(&format!("an answer {when}"), || self.answers() > before + 2);
    }

    fn assert_both_go_on(&self, when: &str) {
        self.assert_ping_goes_on(when);
        let before = self.downloaded().expect("a download");
        let goes_on = || self.downloaded().is_some_and(|bytes| bytes > before + (1 << 20));
        wait_for(&format!("more of the download {when}"), goes_on);
    }
}

/// Lets paths and interfaces fail, one kind after the other.
fn outlive_links(machines: &Machines, users: &Users) {
    users.assert_both_go_on("at first");
    machines.blackhole(0).unwrap();
    users.assert_both_go_on("without the fastest path");
    machines.restore(0).unwrap();
    users.assert_both_go_on("with all paths");

    (0..3).for_each(|link| machines.blackhole(link).unwrap());
    sleep(Duration::from_secs(6));
    (0..3).for_each(|link| machines.restore(link).unwrap());
    users.assert_both_go_on("after silence of all paths");

    machines.unplug(0).unwrap();
    users.assert_both_go_on("without an interface");
    machines.plug(0, common::netns::RATES[0]).unwrap();
    users.assert_both_go_on("with the interface back");
}

#[test]
fn a_download_and_a_ping_outlive_outages() {
    let test = "a_download_and_a_ping_outlive_outages";
    let Some((machines, _turn)) = machines(test, &["python3"]) else { return };
    let mut tunnel = Tunnel::up(&machines, &[]);
    let users = Users::new(&machines);
    outlive_links(&machines, &users);
    // The server itself ended the connections of the stream lane.
    tunnel.server.take().unwrap().kill();
    tunnel.start_server();
    users.assert_ping_goes_on("of the restarted server");
    drop((users, tunnel));

    let mut tunnel = Tunnel::up(&machines, &["--no-streams"]);
    let users = Users::new(&machines);
    outlive_links(&machines, &users);
    tunnel.server.take().unwrap().kill();
    tunnel.start_server();
    users.assert_both_go_on("of the restarted server");
}

/// Pings the far machine through the tunnel for so many seconds, while `work` runs; returns the longest gap between two
/// answers in milliseconds.
fn longest_gap(machines: &Machines, seconds: u32, work: impl FnOnce()) -> f64 {
    let count = (seconds * 50).to_string();
    let words = ["-D", "-n", "-i", "0.02", "-W", "1", "-c", &count, INSIDE];
    let ping = machines.command(Side::Near, "ping").args(words).stdout(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_secs(2));
    work();
    let output = ping.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = |line: &str| line.strip_prefix('[')?.split_once(']')?.0.parse::<f64>().ok();
    let answers: Vec<f64> = text.lines().filter(|line| line.contains("bytes from")).filter_map(at).collect();
    answers.windows(2).map(|two| (two[1] - two[0]) * 1e3).fold(0.0, f64::max)
}

/// The rates in Mbit/s of each tenth of a second of one download, while `work` runs.
fn rates(tunnel: &Tunnel<'_>, seconds: u32, work: impl FnOnce()) -> Vec<f64> {
    let mut server = iperf_server(tunnel.machines, &["-1", "-p", "5301"]);
    let seconds = seconds.to_string();
    let ask = ["-c", PUBLIC, "-p", "5301", "-R", "-t", &seconds, "-i", "0.1", "-J"];
    let client =
        tunnel.machines.command(Side::Near, "iperf3").args(ask).stdout(Stdio::piped()).spawn().unwrap();
    work();
    let output = client.wait_with_output().unwrap();
    let _ = server.child.kill();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let intervals = report["intervals"].as_array().cloned().unwrap_or_default();
    let rate =
        |interval: &serde_json::Value| interval["sum"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6;
    intervals.iter().map(rate).collect()
}

/// Seconds until this holds.
fn lasts(what: &str, holds: impl Fn() -> bool) -> f64 {
    let begin = Instant::now();
    wait_for(what, holds);
    begin.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a measurement: cargo test --workspace --test tunnel -- --ignored --nocapture outages"]
fn outages_of_links() {
    let test = "outages_of_links";
    let Some((machines, _turn)) = alone(test, &["iperf3"]) else { return };
    for options in [&[][..], &["--no-streams"]] {
        let tunnel = Tunnel::up(&machines, options);
        let named = options.join(" ");
        for link in 0..3 {
            let gap = longest_gap(&machines, 6, || machines.blackhole(link).unwrap());
            machines.restore(link).unwrap();
            println!("{named} link {link} silent: longest gap of a ping {gap:.0} ms");
            sleep(Duration::from_secs(8));
        }
        let begin = 60;
        let rates = rates(&tunnel, 12, || {
            sleep(Duration::from_millis(begin * 100));
            machines.blackhole(0).unwrap();
        });
        machines.restore(0).unwrap();
        let after = |from: usize, to: usize| {
            let part = rates.get(from..to).unwrap_or_default();
            part.iter().sum::<f64>() / part.len().max(1) as f64
        };
        let begin = begin as usize;
        let full = rates.iter().skip(begin + 2).position(|rate| *rate >= 0.9 * 47.2);
        println!(
            "{named} link 0 silent at 6 s: {:.1} Mbit/s before, then tenths {:.0?}",
            after(30, 58),
            rates.get(begin - 2..begin + 16)
        );
        println!(
            "{named} 0.9 of the other links' sum {full:?} tenths after 6.2 s; {:.1} Mbit/s from 8 s on",
            after(80, 118)
        );
        sleep(Duration::from_secs(8));

        let gap = longest_gap(&machines, 8, || {
            machines.set_link((Side::Near, 0), false).unwrap();
            sleep(Duration::from_secs(2));
            machines.set_link((Side::Near, 0), true).unwrap();
        });
        let paths = || {
            let status = tunnel.status(Side::Near);
            let paths = status["peers"][0]["paths"].as_array().cloned().unwrap_or_default();
            paths
                .iter()
                .filter(|path| path["state"].as_str().is_some_and(|state| state.starts_with("active")))
                .count()
        };
        let back = lasts("three paths", || paths() == 3);
        println!("{named} interface down for 2 s: gap {gap:.0} ms; all paths back {back:.1} s later");
    }
}

#[test]
#[ignore = "a measurement: cargo test --workspace --test tunnel -- --ignored --nocapture outages"]
fn outages_of_everything() {
    let test = "outages_of_everything";
    let Some((machines, _turn)) = alone(test, &["iperf3"]) else { return };
    for options in [&[][..], &["--no-streams"]] {
        let mut tunnel = Tunnel::up(&machines, options);
        let named = options.join(" ");
        let mut again = 0.0;
        let rates = rates(&tunnel, 90, || {
            sleep(Duration::from_secs(5));
            (0..3).for_each(|link| machines.blackhole(link).unwrap());
            sleep(Duration::from_secs(60));
            (0..3).for_each(|link| machines.restore(link).unwrap());
            again = lasts("an answer", || tunnel.ping(1) > 0);
        });
        let last = rates.iter().rev().take(50).sum::<f64>() / 50.0;
        println!(
            "{named} all silent for 60 s: an answer {again:.1} s later; the TCP connection at {last:.1} Mbit/s in the last 5 s"
        );
        tunnel.server.take().unwrap().kill();
        tunnel.start_server();
        let back = lasts("an answer from the restarted server", || tunnel.ping(1) > 0);
        println!("{named} server killed and started: an answer {back:.1} s after it listens");
    }
}

#[test]
#[ignore = "a measurement: cargo test --workspace --test tunnel -- --ignored --nocapture outages"]
fn outages_end_with_the_guides_two_commands() {
    let test = "outages_end_with_the_guides_two_commands";
    let Some((machines, _turn)) = alone(test, &[]) else { return };
    for _ in 0..5 {
        let begin = Instant::now();
        let tunnel = Tunnel::served(&machines, first(), &[]);
        let served = begin.elapsed().as_secs_f64();
        let _client = tunnel.spawn_client(&[]);
        wait_for("an answer of the Internet", || tunnel.ping(1) > 0);
        println!(
            "{served:.2} s to the ticket, {:.2} s to an answer through the tunnel",
            begin.elapsed().as_secs_f64()
        );
    }
}
