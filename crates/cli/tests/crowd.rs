//! A crowd of receivers at one `anabranch send`: some request nothing, others request everything and read none of it.
//!
//! `CROWD` sets their number, `CROWD_STALLED` how many of them request. Ignored tests, for root, do the same to a sender and to
//! a relay in a control group of 64 MiB.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_net::{Config, Endpoint, EndpointConfig, Session, Stream, Target, Ticket};
use anabranch_secure::NodeKey;
use anabranch_wire::Span;
use common::programs::{PROGRAM, Running, Scratch, Sender, errors, new_key, receive};
use common::say;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const FILE: usize = 64 << 20;

/// Reads a number from the environment.
fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A receiver that greets, and requests the whole file if it is to stall.
async fn join(
    endpoint: &Endpoint,
    ticket: &Ticket,
    stalls: bool,
) -> Option<(Session, Stream, Option<Stream>)> {
    let credential = Some((ticket.share, ticket.secret.clone()));
    let target = Target { credential, ..Target::new(ticket.node, ticket.addresses.clone()) };
    let config = Config {
        connect_timeout: Span::from_secs(10),
        idle_timeout: Span::from_secs(120),
        keep_alive: Some(Span::from_secs(30)),
        ..Config::default()
    };
    let session = endpoint.connect(&target, config).await.ok()?;
    let mut control = session.open_stream().await.ok()?;
    control.write_all(b"\x01\0\0\0\x06ANBT\0\x04").await.ok()?;
    if !stalls {
        return Some((session, control, None));
    }
    let mut data = session.open_stream().await.ok()?;
    let blocks = (FILE >> 20) as u64;
    let fetch = [&[0x10, 0, 0, 0, 21][..], &[0; 12], &blocks.to_be_bytes(), &[1]].concat();
    data.write_all(&fetch).await.ok()?;
    Some((session, control, Some(data)))
}

/// Memory of a process in MiB: resident now, and the peak.
fn memory(process: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    (field("VmRSS:").unwrap_or(0) / 1024, field("VmHWM:").unwrap_or(0) / 1024)
}

/// Fetches the file; returns the rate in MB/s.
fn fetch(sender: &Sender, scratch: &Scratch, to: &str) -> f64 {
    let start = Instant::now();
    let received = receive(&[&sender.ticket, &scratch.text(to), "-q"]);
    assert!(received.status.success(), "{}", errors(&received));
    FILE as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// All of a crowd that were let in, `stalled` of which request the file and read none of it.
async fn gather(ticket: &Ticket, crowd: usize, stalled: usize) -> Vec<(Session, Stream, Option<Stream>)> {
    let (mut endpoints, mut present) = (Vec::new(), Vec::new());
    for number in 0..crowd.div_ceil(250).max(1) {
        let key = NodeKey::from_random([number as u8 + 1; 32]);
        endpoints.push(Endpoint::bind(EndpointConfig::new(key)).await.unwrap());
    }
    for number in 0..crowd {
        let endpoint = &endpoints[number % endpoints.len()];
        if let Some(one) = join(endpoint, ticket, number < stalled).await {
            present.push(one);
        }
    }
    // Sessions keep their endpoints alive.
    tokio::time::sleep(Duration::from_secs(1)).await;
    std::mem::forget(endpoints);
    present
}

#[test]
fn a_crowd_of_receivers_neither_shuts_out_an_honest_one_nor_takes_the_senders_memory() {
    let (crowd, stalled) = (number("CROWD", 120), number("CROWD_STALLED", 40));
    let scratch = Scratch::new();
    let file = scratch.file("from/film", FILE, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q"]);
    let ticket: Ticket = sender.ticket.parse().unwrap();
    let mut rates = ["alone", "alone-2", "alone-3"].map(|to| fetch(&sender, &scratch, to));
    rates.sort_by(f64::total_cmp);
    let alone = rates[1];

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let present = runtime.block_on(gather(&ticket, crowd, stalled));
    // The machine may be busy during some attempts.
    let mut among: f64 = 0.0;
    for attempt in 0..9 {
        among = among.max(fetch(&sender, &scratch, &format!("among-{attempt}")));
        if among > alone / 4.0 {
            break;
        }
    }
    let (now, most) = memory(sender.running.child.id());
    say(&format!(
        "{} of {crowd} receivers, {stalled} of them stalled: {alone:.0} MB/s alone, {among:.0} among them; the sender's \
         memory is {now} MiB, {most} at most",
        present.len()
    ));
    assert!(present.len() >= crowd * 9 / 10, "{} of {crowd} were let in", present.len());
    assert!(most <= 256, "{most} MiB");
    assert!(among > alone / 4.0, "{among} MB/s instead of {alone}, on a busy machine");
}

/// A control group of 64 MiB, of version 1 or 2. Removed when it is dropped, after its processes.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    const LIMIT: u64 = 64 << 20;

    fn new(name: &str) -> Self {
        let tree = Path::new("/sys/fs/cgroup");
        let (parent, limit) = match tree.join("memory").is_dir() {
            true => (tree.join("memory"), "memory.limit_in_bytes"),
            false => (tree.to_owned(), "memory.max"),
        };
        let group = parent.join(format!("anabranch-{name}-{}", std::process::id()));
        fs::create_dir(&group).expect("root makes control groups");
        fs::write(group.join(limit), Self::LIMIT.to_string()).expect("the memory controller");
        Self(group)
    }

    /// The program in this group from its first moment, since it reads its limits when it starts.
    fn program(&self, words: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display());
        command
            .arg("-c")
            .arg(script)
            .arg(PROGRAM)
            .args(words)
            .env_remove("ANABRANCH_KEY")
            .stdin(Stdio::null());
        command
    }

    /// How many processes the system has killed in it, and the most memory that it used in MiB.
    fn kills_and_peak(&self) -> (u64, u64) {
        let read = |name: &str| fs::read_to_string(self.0.join(name)).unwrap_or_default();
        let events = read("memory.events") + &read("memory.oom_control");
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        let peak = (read("memory.max_usage_in_bytes") + &read("memory.peak")).trim().parse().unwrap_or(0_u64);
        (kills.expect("the group counts kills"), peak >> 20)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that was just killed takes a moment to leave.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
#[ignore = "needs root, for a control group: cargo test -p anabranch --test crowd -- --ignored --nocapture"]
fn a_sender_in_64_mebibytes_serves_an_honest_receiver_among_a_thousand_of_which_200_stall() {
    let (crowd, stalled) = (number("CROWD", 1_000), number("CROWD_STALLED", 200));
    let scratch = Scratch::new();
    let file = scratch.file("from/film", FILE, 1);
    let group = MemoryGroup::new("sender");
    let mut command = group.program(&["send", file.to_str().unwrap(), "-q"]);
    let sender = Sender::start_as(&mut command);
    let ticket: Ticket = sender.ticket.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let present = runtime.block_on(gather(&ticket, crowd, stalled));
    // Each of them keeps its place for ten seconds.
    std::thread::sleep(Duration::from_secs(11));
    let rate = fetch(&sender, &scratch, "among");
    let (kills, peak) = group.kills_and_peak();
    let (now, most) = memory(sender.running.child.id());
    let open = present.iter().filter(|(session, ..)| session.close_reason().is_none()).count();
    say(&format!(
        "{} of {crowd} receivers were let in, {open} are left, {stalled} stalled: {rate:.0} MB/s for an honest one; the sender \
         holds {now} MiB, {most} at most, its group {peak} MiB at most",
        present.len()
    ));
    assert_eq!(kills, 0);
}

#[test]
#[ignore = "needs root, for a control group: cargo test -p anabranch --test crowd -- --ignored --nocapture"]
fn a_relay_in_64_mebibytes_refuses_most_of_20_000_sessions_and_is_not_killed() {
    const KEYS: u8 = 200;
    let scratch = Scratch::new();
    let (key, config) = (scratch.text("relay.key"), scratch.text("relay.toml"));
    new_key(&key);
    let mut text = format!("key = \"{key}\"\nport = 0\n");
    for number in 1..=KEYS {
        let user = NodeKey::from_random([number; 32]).public();
        text.push_str(&format!("[[user]]\nkey = \"{user}\"\n"));
    }
    fs::write(&config, text).unwrap();
    let group = MemoryGroup::new("relay");
    let mut relay = Running::start(&mut group.program(&["relay", "--config", &config]));
    let mut lines = BufReader::new(relay.child.stdout.take().expect("asked for")).lines();
    let line = lines.find_map(|line| line.ok().filter(|line| line.contains('@'))).expect("its address");
    let (node, addresses) = line.trim().split_once('@').unwrap();
    let addresses = addresses.split(',').filter_map(|address| address.parse().ok()).collect();
    let target = Target::new(node.parse().unwrap(), addresses);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (open, busy, other) = runtime.block_on(ask(&target, KEYS, number("CROWD_SESSIONS", 20_000)));
    let (kills, peak) = group.kills_and_peak();
    say(&format!(
        "{open} sessions open, {busy} refused as busy, {other} failed; the relay's group took {peak} MiB at most"
    ));
    assert_eq!((kills, relay.child.try_wait().unwrap()), (0, None));
    assert!(open <= 512 && busy > other, "{open} {busy} {other}");
}

/// Opens sessions, 64 at a time. Returns how many are open in the end, were refused as busy, and failed otherwise.
async fn ask(target: &Target, keys: u8, sessions: usize) -> (usize, usize, usize) {
    let mut endpoints = Vec::new();
    for number in 1..=keys {
        let config = EndpointConfig::new(NodeKey::from_random([number; 32]));
        endpoints.push(Arc::new(Endpoint::bind(config).await.unwrap()));
    }
    let gate = Arc::new(Semaphore::new(64));
    let mut attempts = JoinSet::new();
    for number in 0..sessions {
        let permit = gate.clone().acquire_owned().await.unwrap();
        let (endpoint, target) = (endpoints[number % endpoints.len()].clone(), target.clone());
        attempts.spawn(async move {
            let _permit = permit;
            let config = Config { keep_alive: Some(Span::from_secs(10)), ..Config::default() };
            endpoint.connect(&target, config).await
        });
    }
    let (mut held, mut busy, mut other) = (Vec::new(), 0, 0);
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap() {
            Ok(session) => held.push(session),
            Err(error) if error.to_string().contains("no room") => busy += 1,
            Err(_) => other += 1,
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let open = held.iter().filter(|session| session.close_reason().is_none()).count();
    (open, busy, other + held.len() - open)
}
