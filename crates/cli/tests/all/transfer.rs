//! `send` and `receive` as two processes on one machine, both undisturbed and with one of them killed.
#![cfg(unix)]

use crate::common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::programs::{
    PROGRAM, Running, Scratch, Sender, errors, last_event, noise, program, receive, wait_for, wait_for_part,
};

/// Large enough to kill the program in mid-transfer, small enough for a test.
const LARGE: usize = 64 << 20;
const MIB: u64 = 1 << 20;

/// A slow sender of a large file, so that a busy machine has time for the test's events: it takes over four seconds.
fn slow_sender(file: &Path) -> Sender {
    Sender::start(&[file.to_str().unwrap(), "--rate", "120Mbit/s"])
}

#[test]
fn a_second_receiver_does_not_look_for_a_sender_that_one_was_enough_for() {
    let scratch = Scratch::in_memory();
    let file = scratch.file("from/film", 6 << 20, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "--once", "--rate", "10Mbit/s"]);
    let start = |to: &str| {
        let to = scratch.text(to);
        Running::start(&mut program(&["receive", "--yes", sender.ticket.as_str(), to.as_str()]))
    };
    let first = start("to/first");
    wait_for_part(&scratch.path("to/first"), MIB);
    let second = start("to/second");
    let (code, told) = first.end();
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = second.end();
    assert!(code == Some(4) && told.contains("opens nothing here any more"), "{code:?} {told}");
}

#[test]
fn a_directory_arrives_as_it_was_sent_and_once_is_enough() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("from/photos/2026")).unwrap();
    let script = scratch.file("from/photos/make.sh", 3_000, 1);
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o750)).unwrap();
    scratch.file("from/photos/2026/large.jpg", 3_000_000, 2);
    scratch.file("from/photos/empty", 0, 3);

    let sender = Sender::start(&[&scratch.text("from/photos"), "--once"]);
    let received = receive(&[&sender.ticket, &scratch.text("to")]);
    assert!(received.status.success(), "{}", errors(&received));
    assert!(errors(&received).contains("received 3 files, 3.00 MB in "), "{}", errors(&received));

    let (code, told) = sender.running.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains(" has it all: 3 files"), "{told}");
    for name in ["photos/make.sh", "photos/2026/large.jpg", "photos/empty"] {
        let [sent, arrived] = ["from", "to"].map(|end| scratch.path(end).join(name));
        assert!(std::fs::read(&sent).unwrap() == std::fs::read(&arrived).unwrap(), "{name}");
    }
    assert_eq!(scratch.path("to/photos/make.sh").metadata().unwrap().permissions().mode() & 0o777, 0o750);
}

#[cfg(target_os = "linux")]
#[test]
fn extended_attributes_arrive_when_both_ends_ask_for_them() {
    let scratch = Scratch::new();
    let file = scratch.file("from/a", 3, 1);
    let set =
        std::process::Command::new("setfattr").args(["-n", "user.tag", "-v", "red"]).arg(&file).status();
    if !set.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: setfattr fails");
    }
    let from = file.to_str().unwrap();
    let sender = Sender::start(&[from, "--once"]);
    assert!(receive(&[&sender.ticket, &scratch.text("to/bare"), "--xattrs"]).status.success());
    let (_, told) = sender.running.end();
    assert!(told.contains("the extended attributes of a are left out; `--xattrs` sends them"), "{told}");

    let sender = Sender::start(&[from, "--xattrs"]);
    let received = receive(&[&sender.ticket, &scratch.text("to/left")]);
    let note = "the extended attributes of a are left out; `--xattrs` keeps them";
    assert!(errors(&received).contains(note), "{}", errors(&received));
    assert!(receive(&[&sender.ticket, &scratch.text("to/kept"), "--xattrs"]).status.success());
    for (place, is_there) in [("bare", false), ("left", false), ("kept", true)] {
        let arrived = scratch.path("to").join(place).join("a");
        let shown = std::process::Command::new("getfattr").arg("-d").arg(&arrived).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&shown.stdout).contains("user.tag=\"red\""), is_there, "{place}");
    }
}

#[test]
fn hard_links_are_kept_when_the_receiver_asks_for_them_and_counted_otherwise() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("from/d")).unwrap();
    let file = scratch.file("from/d/a", 3, 1);
    std::fs::hard_link(&file, scratch.path("from/d/b")).unwrap();
    let sender = Sender::start(&[&scratch.text("from/d"), "--once"]);
    let received = receive(&[&sender.ticket, &scratch.text("to/kept"), "-H"]);
    assert!(errors(&received).contains("1 of the files is a hard link"), "{}", errors(&received));
    let (_, told) = sender.running.end();
    assert!(told.contains("the offer has 1 hard link"), "{told}");
    let sender = Sender::start(&[&scratch.text("from/d")]);
    let received = receive(&[&sender.ticket, &scratch.text("to/copied")]);
    assert!(errors(&received).contains("`--hard-links` keeps them"), "{}", errors(&received));
    let names = |at: &str| std::os::unix::fs::MetadataExt::nlink(&scratch.path(at).metadata().unwrap());
    assert_eq!((names("to/kept/d/b"), names("to/copied/d/b")), (2, 1));
}

#[test]
fn standard_input_arrives_on_standard_output() {
    let data = noise(5_000_000, 4);
    let mut sender =
        Sender::start_as(program(&["send", "-", "--as", "src.tar", "--quiet"]).stdin(Stdio::piped()));
    let mut pipe = sender.stdin.take().unwrap();
    let copy = data.clone();
    let writer = std::thread::spawn(move || pipe.write_all(&copy));
    let received = receive(&[&sender.ticket, "-", "--quiet"]);
    writer.join().unwrap().unwrap();
    assert!(received.status.success(), "{}", errors(&received));
    assert!(received.stdout == data);
    assert_eq!(sender.running.end(), (Some(0), String::new()));
}

#[test]
fn several_receivers_are_served_at_once_and_each_gets_everything() {
    let scratch = Scratch::new();
    let file = scratch.file("from/film.mkv", 20_000_000, 5);
    let sender = Sender::start(&[file.to_str().unwrap()]);
    let places = ["to/a", "to/b", "to/c"];
    let receivers = places.map(|place| {
        Running::start(&mut program(&["receive", "--yes", &sender.ticket, &scratch.text(place), "-q"]))
    });
    for (receiver, place) in receivers.into_iter().zip(places) {
        assert_eq!(receiver.end(), (Some(0), String::new()), "{place}");
        let arrived = std::fs::read(scratch.path(place).join("film.mkv")).unwrap();
        assert!(arrived == std::fs::read(&file).unwrap(), "{place}");
    }
    // The sender learns a moment later that the last receiver is done.
    let done = |told: &str| told.matches(" has it all: 1 file, 20.0 MB").count();
    wait_for("the end of all three", || done(&sender.running.told()) == 3);
    sender.running.interrupt();
    let (code, told) = sender.running.end();
    assert_eq!((code, done(&told)), (Some(130), 3), "{told}");
    assert!(told.ends_with("stopped: the ticket opens nothing any more\n"), "{told}");
}

#[test]
fn a_sender_shows_the_total_of_those_it_serves_and_their_end() {
    let scratch = Scratch::new();
    let file = scratch.file("from/film.mkv", 3_000_000, 5);
    let events = std::fs::File::create(scratch.path("events")).unwrap();
    let sender = Running::start_into(&mut program(&["send", file.to_str().unwrap(), "--json"]), events);
    let events = || {
        let text = std::fs::read_to_string(scratch.path("events")).unwrap();
        // The last line may be incomplete.
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.collect::<Vec<serde_json::Value>>()
    };
    wait_for("the ticket", || std::fs::read_to_string(scratch.path("events")).unwrap().contains('\n'));
    let ticket = events()[0]["ticket"].as_str().unwrap().to_owned();
    for place in ["to/a", "to/b"] {
        let received = receive(&[&ticket, &scratch.text(place)]);
        assert!(received.status.success(), "{}", errors(&received));
    }
    wait_for("both ends", || events().iter().filter(|event| event["event"] == "done").count() == 2);
    sender.interrupt();
    let events = events();
    let progress: Vec<_> = events.iter().filter(|event| event["event"] == "progress").collect();
    assert!(progress.iter().all(|event| event["bytes"].as_u64() <= Some(3_000_000)), "{progress:?}");
    let before_the_end =
        events.windows(2).filter(|pair| pair[1]["event"] == "note" && pair[0]["event"] == "progress");
    let ends: Vec<_> = before_the_end.filter(|pair| pair[1].to_string().contains(" has it all")).collect();
    assert!(ends.len() == 2 && ends.iter().all(|pair| pair[0]["bytes"] == 3_000_000), "{events:?}");
}

#[test]
fn a_receiver_that_was_killed_goes_on_where_it_stopped() {
    let scratch = Scratch::new();
    let file = scratch.file("from/disk.img", LARGE, 6);
    let sender = slow_sender(&file);
    let receiver =
        Running::start(&mut program(&["receive", "--yes", &sender.ticket, &scratch.text("to"), "-q"]));
    wait_for_part(&scratch.path("to"), 8 * MIB);
    receiver.kill();
    assert!(!scratch.path("to/disk.img").exists(), "it was killed too late");

    let again = receive(&[&sender.ticket, &scratch.text("to"), "--json"]);
    assert!(again.status.success(), "{}", errors(&again));
    let done = last_event(&again);
    assert_eq!((&done["event"], &done["bytes"]), (&"done".into(), &LARGE.into()), "{done}");
    assert!(done["bytes_resumed"].as_u64().unwrap() >= 7 * MIB, "{done}");
    assert!(std::fs::read(scratch.path("to/disk.img")).unwrap() == std::fs::read(&file).unwrap());
}

#[test]
fn when_the_sender_is_killed_the_receiver_says_so_and_goes_on_with_the_next_ticket() {
    let scratch = Scratch::new();
    let file = scratch.file("from/disk.img", LARGE, 7);
    let to = scratch.text("to");
    let sender = slow_sender(&file);
    let words = ["receive", "--yes", &sender.ticket, &to, "-q", "--timeout", "1s", "--retry", "1s"];
    let receiver = Running::start(&mut program(&words));
    wait_for_part(&scratch.path("to"), 8 * MIB);
    sender.running.kill();
    let (code, told) = receiver.end();
    assert_eq!(code, Some(3), "{told}");
    assert!(told.starts_with("error: the other end fell silent on every path\n"), "{told}");
    assert!(told.contains("  the sender was not found again within 1 s: no answer from "), "{told}");
    assert!(told.contains("run the same command again"), "{told}");

    let sender = slow_sender(&file);
    let again = receive(&[&sender.ticket, &to, "--json"]);
    assert!(again.status.success(), "{}", errors(&again));
    assert!(last_event(&again)["bytes_resumed"].as_u64().unwrap() >= 7 * MIB, "{:?}", last_event(&again));
    assert!(std::fs::read(scratch.path("to/disk.img")).unwrap() == std::fs::read(&file).unwrap());
}

#[test]
fn when_every_path_is_lost_the_receiver_finds_the_sender_again_and_goes_on() {
    let scratch = Scratch::new();
    let file = scratch.file("from/disk.img", LARGE, 11);
    let sender = slow_sender(&file);
    let to = scratch.text("to");
    let words = ["receive", "--yes", &sender.ticket, &to, "--json", "--timeout", "3s", "--retry", "30s"];
    let events = std::fs::File::create(scratch.path("events")).unwrap();
    let receiver = Running::start_into(&mut program(&words), events);
    let events = || std::fs::read_to_string(scratch.path("events")).unwrap();
    wait_for_part(&scratch.path("to"), 8 * MIB);
    // A suspended machine that resumes after the receiver has given up the session.
    sender.running.signal("-STOP");
    wait_for("the loss", || events().contains("looking for the sender again for 30 s"));
    wait_for("an event while it waits", || events().contains("\"waiting\":true"));
    sender.running.signal("-CONT");
    let (code, told) = receiver.end();
    assert_eq!(code, Some(0), "{told}");
    let events = events();
    assert!(events.contains("the sender is there again"), "{events}");
    let done: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!((&done["event"], &done["bytes"]), (&"done".into(), &LARGE.into()), "{done}");
    assert_eq!(done["bytes_resumed"], 0, "all of it came in this run: {done}");
    assert!(std::fs::read(scratch.path("to/disk.img")).unwrap() == std::fs::read(&file).unwrap());
}

#[test]
fn ctrl_c_at_the_receiver_keeps_what_has_arrived_and_the_sender_serves_on() {
    let scratch = Scratch::new();
    let file = scratch.file("from/disk.img", LARGE, 8);
    let sender = slow_sender(&file);
    let receiver =
        Running::start(&mut program(&["receive", "--yes", &sender.ticket, &scratch.text("to"), "-q"]));
    wait_for_part(&scratch.path("to"), 8 * MIB);
    receiver.interrupt();
    let (code, told) = receiver.end();
    assert_eq!(code, Some(130), "{told}");
    assert!(told.starts_with("stopped: ") && told.contains(" of 67.1 MB are here\n"), "{told}");

    let again = receive(&[&sender.ticket, &scratch.text("to"), "--json"]);
    assert!(again.status.success(), "{}", errors(&again));
    assert!(last_event(&again)["bytes_resumed"].as_u64().unwrap() >= 4 * MIB, "{:?}", last_event(&again));
    sender.running.interrupt();
    let (_, told) = sender.running.end();
    let expected = " did not get it all: the other end stopped, saying \"interrupted by its user\"\n";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn ctrl_c_at_the_sender_is_told_to_the_receiver_at_once() {
    let scratch = Scratch::new();
    let file = scratch.file("from/disk.img", LARGE, 9);
    let sender = slow_sender(&file);
    let receiver =
        Running::start(&mut program(&["receive", "--yes", &sender.ticket, &scratch.text("to"), "-q"]));
    wait_for_part(&scratch.path("to"), 8 * MIB);
    sender.running.interrupt();
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(130), "{told}");
    assert!(told.contains("one receiver had not got it all"), "{told}");
    let (code, told) = receiver.end();
    assert_eq!(code, Some(3), "{told}");
    assert!(
        told.starts_with("error: the other end stopped\n  it said \"interrupted by its user\"\n"),
        "{told}"
    );
}

#[test]
fn a_rate_holds_for_all_receivers_together() {
    let scratch = Scratch::new();
    let file = scratch.file("from/film.mkv", 5_000_000, 12);
    let sender = Sender::start(&[file.to_str().unwrap(), "--rate", "40 Mbit/s"]);
    let start = Instant::now();
    let start_receiver = |to: &str| {
        Running::start(&mut program(&["receive", "--yes", &sender.ticket, &scratch.text(to), "-q"]))
    };
    for receiver in ["to", "and-to"].map(start_receiver) {
        assert_eq!(receiver.end(), (Some(0), String::new()));
    }
    let took = start.elapsed();
    assert!(took > Duration::from_millis(1_900), "80 Mbit took {took:?}");
}

#[test]
fn a_program_reads_the_ticket_and_the_outcome_as_json() {
    let scratch = Scratch::new();
    let file = scratch.file("from/a.bin", 1_000, 10);
    let out = std::fs::File::create(scratch.path("events")).unwrap();
    let mut sender = program(&["send", file.to_str().unwrap(), "--once", "--json"]);
    let mut sender = sender.stdout(out).spawn().unwrap();
    let events = || std::fs::read_to_string(scratch.path("events")).unwrap();
    wait_for("the ticket", || events().contains('\n'));
    let ticket: serde_json::Value = serde_json::from_str(events().lines().next().unwrap()).unwrap();
    assert_eq!((&ticket["event"], &ticket["expires_s"]), (&"ticket".into(), &86_400.0.into()));

    let received = receive(&[ticket["ticket"].as_str().unwrap(), &scratch.text("to"), "--json"]);
    let done = last_event(&received);
    assert_eq!((&done["event"], &done["verified"]), (&"done".into(), &true.into()), "{done}");
    assert!(sender.wait().unwrap().success());
    let last: serde_json::Value = serde_json::from_str(events().lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["files"]), (&"done".into(), &1.into()), "{last}");
}

#[test]
fn a_receiver_in_a_deleted_directory_says_so_before_anything_is_sent() {
    let scratch = Scratch::new();
    let file = scratch.file("from/a.bin", 1_000, 10);
    let sender = Sender::start(&[file.to_str().unwrap()]);
    let mut receiver = std::process::Command::new("sh");
    receiver.args(["-c", "mkdir gone && cd gone && rmdir ../gone && exec \"$@\"", "sh", PROGRAM]);
    receiver.args(["receive", "--yes", &sender.ticket]).current_dir(scratch.path("to"));
    let received = receiver.env_remove("ANABRANCH_KEY").output().unwrap();
    assert_eq!(received.status.code(), Some(1));
    assert!(errors(&received).contains("the current directory was deleted"), "{}", errors(&received));
}
