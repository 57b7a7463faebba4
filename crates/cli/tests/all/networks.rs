//! `send` and `receive` between two network namespaces joined by links of 50, 30 and 20 Mbit/s. Needs root; otherwise it
//! reports a skipped test. Rates get three attempts, all printed, since the machine may be busy during one of them. The
//! tests take turns.
#![cfg(target_os = "linux")]

use crate::common;

use std::process::{Command, Output};
use std::time::Duration;

use common::netns::{CEILING, RATES, START_S, Side, three_links, three_links_shared};
use common::programs::{PROGRAM, Running, Scratch, Sender, errors, wait_for_part};
use common::within_three_attempts;
use serde_json::Value;

/// A directory of several files, 24 MB in all.
fn directory(scratch: &Scratch) -> String {
    std::fs::create_dir_all(scratch.path("from/photos/more")).unwrap();
    for (seed, len) in [(1, 12_000_000), (2, 9_000_000), (3, 3_000_000)] {
        scratch.file(&format!("from/photos/more/{seed}.jpg"), len, seed);
    }
    for seed in 10..60 {
        scratch.file(&format!("from/photos/{seed}.txt"), 2_000, seed);
    }
    scratch.open_to_all();
    scratch.text("from/photos")
}

/// A directory of many small files, 84 MB in all: seven seconds on these links. Progress counts verified blocks of files,
/// so small files give fine steps.
fn many_files(scratch: &Scratch) -> String {
    std::fs::create_dir(scratch.path("from/many")).unwrap();
    for seed in 0..640 {
        scratch.file(&format!("from/many/{seed}"), 128 << 10, seed);
    }
    scratch.text("from/many")
}

/// The steady rate of verified data in Mbit/s, from the receiver's events: from the first event after 2 s to the last
/// before 97 % of the data.
fn steady_rate(received: &Output) -> f64 {
    let text = String::from_utf8_lossy(&received.stdout);
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    let progress: Vec<_> = events
        .filter(|event| event["event"] == "progress")
        .map(|event| {
            let number = |key: &str| event[key].as_f64().unwrap_or_default();
            (number("t_s"), number("bytes"), number("bytes_total"))
        })
        .collect();
    let first = progress.iter().find(|(at, ..)| *at >= START_S).expect("it lasts longer");
    let last = progress.iter().rfind(|(_, bytes, all)| *bytes < 0.97 * all).expect("it takes a while");
    (last.1 - first.1) * 8e-6 / (last.0 - first.0)
}

fn words<'a>(command: &'a mut Command, words: &[&str]) -> &'a mut Command {
    command.args(words)
}

#[test]
fn a_directory_crosses_three_links_at_the_sum_of_their_rates() {
    let Some((machines, _turn)) = three_links("a_directory_crosses_three_links") else { return };
    let scratch = Scratch::in_memory();
    let from = many_files(&scratch);
    within_three_attempts("a_directory_crosses_three_links", || {
        let _ = std::fs::remove_dir_all(scratch.path("to"));
        let before = [0, 1, 2].map(|link| machines.bytes_sent(Side::Near, link).unwrap());
        let sender =
            Sender::start_as(words(&mut machines.command(Side::Near, PROGRAM), &["send", &from, "-q"]));
        let mut receiver = machines.command(Side::Far, PROGRAM);
        let words =
            words(&mut receiver, &["receive", "--yes", &sender.ticket, &scratch.text("to"), "--json"]);
        let received = words.output().unwrap();
        assert!(received.status.success(), "{}", errors(&received));

        let rate = steady_rate(&received);
        let sent = [0, 1, 2].map(|link| machines.bytes_sent(Side::Near, link).unwrap() - before[link]);
        let sum: u64 = sent.iter().sum();
        let shares = sent.map(|bytes| bytes as f64 / sum as f64);
        let fair =
            shares.iter().zip(RATES).all(|(share, rate)| (share - f64::from(rate) / 100.0).abs() < 0.05);
        let found = format!("{rate:.2} Mbit/s, shares {shares:.3?}");
        if rate >= 0.985 * CEILING && fair { Ok(found) } else { Err(found) }
    });
}

#[test]
fn it_works_without_root_and_with_two_default_routes_as_well() {
    let Some((machines, _turn)) = three_links_shared("it_works_without_root_and_with_two_default_routes")
    else {
        return;
    };
    machines.add_two_default_routes().unwrap();
    let scratch = Scratch::new();
    let from = directory(&scratch);
    let mut sender = machines.command_as_nobody(Side::Near, PROGRAM);
    let sender = Sender::start_as(words(&mut sender, &["send", &from, "-q"]));
    let mut receiver = machines.command_as_nobody(Side::Far, PROGRAM);
    let received =
        words(&mut receiver, &["receive", "--yes", &sender.ticket, &scratch.text("to"), "-q"]).output();
    let received = received.unwrap();
    assert!(received.status.success(), "{}", errors(&received));
    for link in 0..3 {
        let bytes = machines.bytes_sent(Side::Near, link).unwrap();
        assert!(bytes > 1_000_000, "link {link} carried {bytes} bytes");
    }
}

#[test]
fn a_transfer_goes_on_when_a_link_falls_silent_and_uses_it_again_when_it_is_back() {
    let Some((machines, _turn)) = three_links_shared("a_transfer_goes_on_when_a_link_falls_silent") else {
        return;
    };
    let scratch = Scratch::new();
    let file = scratch.file("from/film.mkv", 50_000_000, 4);
    let file = file.to_str().unwrap();
    let sender = Sender::start_as(words(&mut machines.command(Side::Near, PROGRAM), &["send", file, "-q"]));
    let mut receiver = machines.command(Side::Far, PROGRAM);
    let words = words(&mut receiver, &["receive", "--yes", &sender.ticket, &scratch.text("to"), "-q"]);
    let receiver = Running::start(words);
    wait_for_part(&scratch.path("to"), 4 << 20);
    machines.blackhole(0).unwrap();
    std::thread::sleep(Duration::from_millis(1_000));
    machines.restore(0).unwrap();
    let carried = machines.bytes_sent(Side::Near, 0).unwrap();
    assert_eq!(receiver.end(), (Some(0), String::new()));
    assert!(std::fs::read(scratch.path("to/film.mkv")).unwrap() == std::fs::read(file).unwrap());
    let after = machines.bytes_sent(Side::Near, 0).unwrap() - carried;
    assert!(after > 1_000_000, "the restored link carried {after} bytes");
}

#[test]
fn a_transfer_goes_on_by_itself_after_all_links_were_silent_for_longer_than_its_session_lives() {
    let Some((machines, _turn)) = three_links_shared("a_transfer_goes_on_by_itself_after_all_links") else {
        return;
    };
    let scratch = Scratch::new();
    let file = scratch.file("from/film.mkv", 30_000_000, 4);
    let file = file.to_str().unwrap();
    let sender = Sender::start_as(words(&mut machines.command(Side::Near, PROGRAM), &["send", file, "-q"]));
    let mut receiver = machines.command(Side::Far, PROGRAM);
    let to = scratch.text("to");
    let options = ["receive", "--yes", &sender.ticket, &to, "-q", "--timeout", "1s", "--retry", "40s"];
    let receiver = Running::start(words(&mut receiver, &options));
    wait_for_part(&scratch.path("to"), 4 << 20);
    (0..3).for_each(|link| machines.blackhole(link).unwrap());
    std::thread::sleep(Duration::from_secs(3));
    (0..3).for_each(|link| machines.restore(link).unwrap());
    assert_eq!(receiver.end(), (Some(0), String::new()));
    assert!(std::fs::read(scratch.path("to/film.mkv")).unwrap() == std::fs::read(file).unwrap());
}
