//! One kept ticket of `send --name`: many receivers, a sender that is killed and one that is stopped, and a revocation.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::programs::{
    Running, Scratch, errors, has_part, noise, program, receive, wait_for, wait_for_part,
};

const RECEIVERS: usize = 20;
const LEN: usize = 3 << 20;

/// The program with a state directory and a key of its own.
fn own(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = program(words);
    command.env("XDG_STATE_HOME", scratch.path("state")).env("XDG_CONFIG_HOME", scratch.path("config"));
    command
}

/// A slow sender of the file, and its ticket. All receivers together need twelve seconds, so whatever follows comes before
/// the end on a busy machine too.
fn send(scratch: &Scratch, file: &str) -> (Running, String) {
    let words = ["send", file, "--name", "crowd", "--rate", "40Mbit/s"];
    let mut sender = Running::start(&mut own(scratch, &words));
    let ticket = sender.line();
    (sender, ticket)
}

/// Waits until this receiver has so many bytes of the file, or all of it.
fn wait_for_bytes(place: &Path, len: u64) {
    wait_for("bytes of the file", || has_part(place, len) || place.join("film").exists());
}

fn start_receiver(ticket: &str, to: &str) -> Running {
    Running::start(&mut program(&["receive", "--yes", ticket, to, "--timeout", "2s"]))
}

#[test]
fn receivers_of_a_kept_ticket_outlast_restarts_of_the_sender_and_end_when_it_is_revoked() {
    let scratch = Scratch::in_memory();
    let file = scratch.file("from/film", LEN, 1);
    let file = file.to_str().unwrap();
    let places: Vec<PathBuf> = (0..RECEIVERS).map(|number| scratch.path(&format!("to/{number}"))).collect();
    let (sender, ticket) = send(&scratch, file);
    let receivers: Vec<Running> =
        places.iter().map(|place| start_receiver(&ticket, place.to_str().unwrap())).collect();
    wait_for_bytes(&places[0], 1 << 20);
    sender.kill();
    let (sender, again) = send(&scratch, file);
    assert_eq!(ticket, again, "after it was killed");
    wait_for_bytes(&places[0], 2 << 20);
    sender.signal("-TERM");
    let (code, told) = sender.end();
    assert!(code == Some(130) && told.contains("offers the ticket `crowd` again"), "{code:?} {told}");
    let (sender, again) = send(&scratch, file);
    assert_eq!(ticket, again, "after it was stopped");
    for (receiver, place) in receivers.into_iter().zip(&places) {
        let (code, told) = receiver.end();
        assert_eq!(code, Some(0), "{told}");
        assert!(std::fs::read(place.join("film")).unwrap() == noise(LEN, 1), "{}", place.display());
    }

    let late: Vec<Running> = (0..RECEIVERS)
        .map(|number| start_receiver(&ticket, &scratch.text(&format!("to/late-{number}"))))
        .collect();
    wait_for_part(&scratch.path("to/late-0"), 1 << 20);
    assert!(own(&scratch, &["ticket", "revoke", "crowd"]).status().unwrap().success());
    let new = receive(&[&ticket, &scratch.text("to/new")]);
    // On a busy machine the sender may have ended before: 3, no answer.
    assert!(matches!(new.status.code(), Some(3 | 4)), "{}", errors(&new));
    for receiver in late {
        let (code, told) = receiver.end();
        let said = told.contains("the ticket or key opens nothing here any more");
        assert!(code == Some(4) && said && told.contains("ask for another ticket"), "{code:?} {told}");
    }
    // The name is free again.
    let (other, new) = send(&scratch, file);
    assert_ne!(ticket, new);
    assert_eq!(sender.end().0, Some(0));
    drop(other);
}
