//! What `send` and `receive` say when something stands in the way: a message with what to do, and the exit code
//! that `--help` states.
#![cfg(unix)]

mod common;

use std::io::Write;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anabranch_secure::{NodeKey, TicketSecret};
use common::netns::Namespace;
use common::programs::{
    PROGRAM, Running, Scratch, Sender, errors, program, receive, wait_for, wait_for_part,
};
use common::skip;

/// Checks that a receiver failed with this exit code and these words.
fn assert_failed(output: &Output, code: i32, words: &[&str]) {
    let told = errors(output);
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert!(told.starts_with("error: ") || told.contains("\nerror: "), "{told}");
    for word in words {
        assert!(told.contains(word), "no {word:?} in {told}");
    }
}

fn small_offer(scratch: &Scratch) -> Sender {
    let file = scratch.file("from/note.txt", 1_000, 1);
    Sender::start(&[file.to_str().unwrap(), "-q"])
}

#[test]
fn a_ticket_whose_secret_was_changed_opens_nothing() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let forged = sender.ticket_with(|ticket| ticket.secret = TicketSecret::from_random([7; 16]));
    let received = receive(&[&forged, &scratch.text("to")]);
    assert_failed(&received, 4, &["not to this ticket", "hint", "ask for a new ticket"]);
}

#[test]
fn a_ticket_for_another_share_is_refused() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let other = sender.ticket_with(|ticket| ticket.share.0 ^= 1);
    let received = receive(&[&other, &scratch.text("to")]);
    assert_failed(&received, 4, &["the ticket is unknown, expired or revoked"]);
}

#[test]
fn a_ticket_for_another_key_gets_no_answer_and_tells_what_was_tried() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let other = sender.ticket_with(|ticket| ticket.node = NodeKey::from_random([9; 32]).public());
    let start = Instant::now();
    let received = receive(&[&other, &scratch.text("to"), "--timeout", "1s"]);
    assert_failed(&received, 3, &["nobody answered at ", " within 1 s", "tried   ", " → 127.0.0.1:", "hint"]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn text_that_is_no_ticket_is_told_from_a_damaged_one() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    assert_failed(&receive(&["hello"]), 1, &["this is not a ticket", "hint"]);
    let cut = &sender.ticket[..sender.ticket.len() - 3];
    assert_failed(&receive(&[cut]), 1, &["this ticket ", "copy the whole line"]);
}

#[test]
fn an_expired_ticket_is_refused_while_those_let_in_before_are_served_to_the_end() {
    let scratch = Scratch::new();
    let mut command = program(&["send", "-", "--expires", "1s", "-q"]);
    let mut sender = Sender::start_as(command.stdin(Stdio::piped()));
    let mut pipe = sender.stdin.take().unwrap();
    pipe.write_all(b"first part, ").unwrap();
    let early = Running::start(&mut program(&["receive", &sender.ticket, &scratch.text("to"), "-q"]));
    std::thread::sleep(Duration::from_millis(1_500));

    let late = receive(&[&sender.ticket, &scratch.text("to")]);
    assert_failed(&late, 4, &["the node refused: the ticket is unknown, expired or revoked"]);
    pipe.write_all(b"second part").unwrap();
    drop(pipe);
    assert_eq!(early.end(), (Some(0), String::new()));
    assert_eq!(std::fs::read(scratch.path("to/stdin")).unwrap(), b"first part, second part");
    assert_eq!(sender.running.end(), (Some(0), String::new()));
}

#[test]
fn a_sender_whose_ticket_expires_ends_and_the_ticket_is_known_to_be_expired() {
    let scratch = Scratch::new();
    let file = scratch.file("from/note.txt", 1_000, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "--expires", "500ms"]);
    let ticket = sender.ticket_with(|ticket| ticket.expires = Some(1_600_000_000));
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("the ticket has expired"), "{told}");
    let received = receive(&[&ticket, &scratch.text("to"), "--timeout", "1s"]);
    assert_failed(&received, 4, &["the ticket expired ", " ago", "ask for a new ticket"]);
}

#[test]
fn the_senders_clock_decides_when_a_ticket_expires_not_the_receivers() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let seen_by_a_wrong_clock = sender.ticket_with(|ticket| ticket.expires = Some(1));
    let received = receive(&[&seen_by_a_wrong_clock, &scratch.text("to")]);
    assert!(received.status.success(), "{}", errors(&received));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let scratch = Scratch::new();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let file = scratch.file("from/note.txt", 10, 1);
    let sent = program(&["send", file.to_str().unwrap(), "--port", &port]).output().unwrap();
    assert_failed(&sent, 1, &[&format!("UDP port {port}"), "is taken by another program", "hint"]);
}

#[test]
fn an_address_where_nobody_answers_is_given_up_in_time() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let elsewhere = sender.ticket_with(|ticket| ticket.addresses = vec![address]);
    let received = receive(&[&elsewhere, &scratch.text("to"), "--timeout", "1s"]);
    let message = format!("error: nobody answered at {address} within 1 s\n");
    assert_failed(&received, 3, &[&message, &format!("tried   127.0.0.1 → {address}"), "hint"]);
}

#[test]
fn without_any_network_one_machine_still_reaches_itself_and_nothing_else() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return skip("without_any_network_one_machine_still_reaches_itself", &why),
    };
    let scratch = Scratch::new();
    let file = scratch.file("from/note.txt", 100_000, 1);
    let mut command = namespace.command(PROGRAM);
    let sender = Sender::start_as(command.arg("send").arg(&file));
    let receive = |ticket: &str| {
        let words = ["receive", ticket, &scratch.text("to")];
        namespace.command(PROGRAM).args(words).output().unwrap()
    };
    let received = receive(&sender.ticket);
    assert!(received.status.success(), "{}", errors(&received));
    let far = sender.ticket_with(|ticket| ticket.addresses = vec!["203.0.113.9:4433".parse().unwrap()]);
    assert_failed(&receive(&far), 3, &["no route to 203.0.113.9:4433", "hint", "is the network up"]);
}

/// Runs `anabranch receive` where `to` is a file system of 8 MiB.
fn receive_on_small_disk(ticket: &str, to: &str) -> Output {
    let script =
        format!("mount -t tmpfs -o size=8m none '{to}' && exec '{PROGRAM}' receive '{ticket}' '{to}'");
    Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap()
}

fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "sh", "-c", "mount -t tmpfs none /mnt"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

#[test]
fn a_disk_that_is_too_small_is_told_before_and_one_that_fills_up_when_it_does() {
    if !can_mount() {
        return skip("a_disk_that_is_too_small_is_told", "mounting needs root");
    }
    let scratch = Scratch::new();
    let file = scratch.file("from/large", 16 << 20, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q"]);
    let received = receive_on_small_disk(&sender.ticket, &scratch.text("to"));
    assert_failed(&received, 1, &["not enough space in ", "bytes needed", "nothing was written"]);

    let input = std::fs::File::open(&file).unwrap();
    let sender = Sender::start_as(program(&["send", "-", "-q"]).stdin(input));
    let received = receive_on_small_disk(&sender.ticket, &scratch.text("to"));
    assert_failed(&received, 1, &["the disk is full while writing ", "hint", "free some space"]);
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(4), "{told}");
    assert!(told.contains("the other end stopped: the disk is full"), "{told}");
}

#[test]
fn a_file_that_changes_while_it_is_sent_fails_alone() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("from/d")).unwrap();
    scratch.file("from/d/a-large", 96 << 20, 2);
    let changing = scratch.file("from/d/z-changing", 5_000_000, 3);
    let sender = Sender::start(&[&scratch.text("from/d"), "-q"]);
    let receiver = Running::start(&mut program(&["receive", &sender.ticket, &scratch.text("to"), "-q"]));
    wait_for("the directory", || scratch.path("to/d").exists());
    wait_for_part(&scratch.path("to/d"), 1 << 20);
    std::fs::write(changing, b"something else").unwrap();
    let (code, told) = receiver.end();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.starts_with("error: 1 file was not transferred\n  d/z-changing: it changed"), "{told}");
    assert!(scratch.path("to/d/a-large").exists() && !scratch.path("to/d/z-changing").exists());
}

#[test]
fn a_link_in_the_target_does_not_lead_the_receiver_out_of_it() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("from/photos")).unwrap();
    scratch.file("from/photos/a.jpg", 1_000, 1);
    std::fs::create_dir(scratch.path("outside")).unwrap();
    std::os::unix::fs::symlink(scratch.path("outside"), scratch.path("to/photos")).unwrap();
    let sender = Sender::start(&[&scratch.text("from/photos"), "-q"]);
    let received = receive(&[&sender.ticket, &scratch.text("to")]);
    assert_failed(&received, 1, &["photos"]);
    assert_eq!(std::fs::read_dir(scratch.path("outside")).unwrap().count(), 0);
}

#[test]
fn a_target_that_may_not_be_written_is_named() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    // A file where a directory is wanted stops root as well.
    let place = scratch.file("to/plain-file", 1, 1);
    let received = receive(&[&sender.ticket, place.to_str().unwrap()]);
    assert_failed(&received, 1, &["cannot open the target directory", "plain-file"]);
    assert!(Path::new(&place).is_file());
}

#[test]
fn a_file_that_is_already_there_with_other_content_stays_and_is_named() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    std::fs::write(scratch.path("to/note.txt"), b"mine").unwrap();
    let received = receive(&[&sender.ticket, &scratch.text("to")]);
    assert_failed(&received, 1, &["1 file was not transferred", "note.txt: "]);
    assert_eq!(std::fs::read(scratch.path("to/note.txt")).unwrap(), b"mine");
    let received = receive(&[&sender.ticket, &scratch.text("to"), "--rename"]);
    assert!(received.status.success(), "{}", errors(&received));
    assert!(scratch.path("to/note (1).txt").exists());
}
