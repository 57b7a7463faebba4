//! `send` and `receive` between two machines with three networks: namespaces joined by links of 50, 30 and
//! 20 Mbit/s. Needs root; says so where there is none.
#![cfg(target_os = "linux")]

mod common;

use std::process::Command;
use std::time::Duration;

use common::netns::{Machines, Side};
use common::programs::{PROGRAM, Running, Scratch, Sender, errors, last_event, wait_for_part};
use common::skip;

/// The links' rates in Mbit/s.
const RATES: [u32; 3] = [50, 30, 20];
/// What three links of these rates carry of payload in full packets, in Mbit/s.
const CEILING: f64 = 94.4;

fn machines(test: &str) -> Option<Machines> {
    Machines::new(&RATES).map_err(|why| skip(test, &why)).ok()
}

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

fn words<'a>(command: &'a mut Command, words: &[&str]) -> &'a mut Command {
    command.args(words)
}

#[test]
fn a_directory_crosses_three_links_at_the_sum_of_their_rates() {
    let Some(machines) = machines("a_directory_crosses_three_links") else { return };
    let scratch = Scratch::new();
    let from = directory(&scratch);
    let sender = Sender::start_as(words(&mut machines.command(Side::Near, PROGRAM), &["send", &from, "-q"]));
    let mut receiver = machines.command(Side::Far, PROGRAM);
    let received = words(&mut receiver, &["receive", &sender.ticket, &scratch.text("to"), "--json"]).output();
    let received = received.unwrap();
    assert!(received.status.success(), "{}", errors(&received));

    let done = last_event(&received);
    let rate = done["goodput_mbit_s"].as_f64().unwrap();
    // The start counts here, and the machine may be busy; `anabranch bench` measures the steady state.
    assert!(rate > 0.6 * CEILING, "{done}");
    let sent = [0, 1, 2].map(|link| machines.bytes_sent(Side::Near, link).unwrap());
    let sum: u64 = sent.iter().sum();
    for (bytes, rate) in sent.iter().zip(RATES) {
        let share = *bytes as f64 / sum as f64;
        assert!((share - f64::from(rate) / 100.0).abs() < 0.1, "{sent:?}");
    }
}

#[test]
fn it_works_without_root_and_with_two_default_routes_as_well() {
    let Some(machines) = machines("it_works_without_root_and_with_two_default_routes") else { return };
    machines.add_two_default_routes().unwrap();
    let scratch = Scratch::new();
    let from = directory(&scratch);
    let mut sender = machines.command_as_nobody(Side::Near, PROGRAM);
    let sender = Sender::start_as(words(&mut sender, &["send", &from, "-q"]));
    let mut receiver = machines.command_as_nobody(Side::Far, PROGRAM);
    let received = words(&mut receiver, &["receive", &sender.ticket, &scratch.text("to"), "-q"]).output();
    let received = received.unwrap();
    assert!(received.status.success(), "{}", errors(&received));
    for link in 0..3 {
        let bytes = machines.bytes_sent(Side::Near, link).unwrap();
        assert!(bytes > 1_000_000, "link {link} carried {bytes} bytes");
    }
}

#[test]
fn a_transfer_goes_on_when_a_link_falls_silent_and_uses_it_again_when_it_is_back() {
    let Some(machines) = machines("a_transfer_goes_on_when_a_link_falls_silent") else { return };
    let scratch = Scratch::new();
    let file = scratch.file("from/film.mkv", 30_000_000, 4);
    let file = file.to_str().unwrap();
    let sender = Sender::start_as(words(&mut machines.command(Side::Near, PROGRAM), &["send", file, "-q"]));
    let mut receiver = machines.command(Side::Far, PROGRAM);
    let words = words(&mut receiver, &["receive", &sender.ticket, &scratch.text("to"), "-q"]);
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
