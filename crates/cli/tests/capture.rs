//! A transfer that is captured, and what the capture tells.
#![cfg(unix)]

mod common;

use std::os::unix::fs::PermissionsExt;

use common::programs::{Scratch, Sender, errors, program, receive};

#[test]
fn a_captured_transfer_is_sealed_until_its_keys_are_used() {
    let scratch = Scratch::new();
    let file = scratch.file("from/film.mkv", 2_000_000, 5);
    let (capture, keys) = (scratch.text("bad.pcapng"), scratch.text("bad.keys"));
    let sender = Sender::start(&[file.to_str().unwrap(), "--once", "--quiet"]);
    let to = scratch.text("to");
    let received = receive(&[&sender.ticket, &to, "--capture", &capture, "--capture-keys", &keys]);
    assert!(received.status.success(), "{}", errors(&received));
    let mode = scratch.path("bad.keys").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let told = |words: &[&str]| {
        let output = program(&[&["capture"], words].concat()).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let (sealed, opened) = (told(&[&capture]), told(&[&capture, "--keys", &keys]));
    assert_eq!(sealed.lines().count(), opened.lines().count());
    assert!(sealed.lines().count() > 1_400 && sealed.contains(" sealed, "), "{sealed}");
    assert!(!sealed.contains("STREAM") && sealed.contains(", Init\n") && sealed.contains(", InitAck\n"));
    assert!(opened.contains("STREAM 0 ") && opened.contains("ACK path 0 ") && !opened.contains(" sealed, "));
}

#[test]
fn mistakes_with_captures_are_explained() {
    let scratch = Scratch::new();
    let file = scratch.file("notes.txt", 100, 1);
    let output = program(&["capture", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors(&output).contains("is no capture") && errors(&output).contains("editcap"),
        "{}",
        errors(&output)
    );
    let output = program(&["receive", "abc", "--capture-keys", "x"]).output().unwrap();
    assert!(errors(&output).contains("--capture <FILE>"), "{}", errors(&output));

    let (capture, there) = (scratch.text("new.pcapng"), file.to_str().unwrap());
    let send =
        |keys| program(&["send", there, "--capture", &capture, "--capture-keys", keys]).output().unwrap();
    assert!(errors(&send(there)).contains("another name"), "{}", errors(&send(there)));
    assert!(errors(&send(&capture)).contains("in one file"), "{}", errors(&send(&capture)));
    assert!(!scratch.path("new.pcapng").exists() && file.metadata().unwrap().len() == 100);
}
