//! A wall clock that jumps while the program runs (`common::clock`): a ticket still expires on time, and a transfer is
//! unaffected.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

use crate::common;

use std::time::{Duration, Instant};

use common::clock::WallClock;
use common::programs::{Running, Scratch, Sender, errors, has_part, program, receive, wait_for};
use common::skip;

const HOUR: i64 = 3_600;
const YEAR: i64 = 365 * 24 * HOUR;

fn clock(test: &str, scratch: &Scratch) -> Option<WallClock> {
    WallClock::new(scratch).map_err(|why| skip(test, &why)).ok()
}

/// Starts `anabranch send` of a small file under this clock.
fn sender(scratch: &Scratch, clock: &WallClock, expires: &str) -> Sender {
    let file = scratch.file("from/note.txt", 1_000, 1);
    let mut command = program(&["send", file.to_str().unwrap(), "--expires", expires]);
    Sender::start_as(clock.command(&mut command))
}

#[test]
fn a_clock_that_is_set_forward_past_the_end_closes_the_ticket_at_once() {
    let scratch = Scratch::new();
    let Some(clock) = clock("a_clock_that_is_set_forward", &scratch) else { return };
    let sender = sender(&scratch, &clock, "1h");
    let before = receive(&[&sender.ticket, &scratch.text("to")]);
    assert!(before.status.success(), "{}", errors(&before));
    clock.set_off(2 * HOUR);
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("the ticket has expired"), "{told}");
}

#[test]
fn a_clock_that_is_set_back_does_not_keep_the_ticket_open() {
    let scratch = Scratch::new();
    let Some(clock) = clock("a_clock_that_is_set_back", &scratch) else { return };
    let start = Instant::now();
    let sender = sender(&scratch, &clock, "2s");
    clock.set_off(-24 * HOUR);
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("the ticket has expired"), "{told}");
    let lasted = start.elapsed();
    assert!(lasted > Duration::from_millis(1_500) && lasted < Duration::from_secs(20), "{lasted:?}");
}

#[test]
fn a_transfer_does_not_notice_that_both_clocks_jump() {
    let scratch = Scratch::new();
    let Some(clock) = clock("a_transfer_does_not_notice", &scratch) else { return };
    let file = scratch.file("from/disk.img", 64 << 20, 2);
    let mut command =
        program(&["send", file.to_str().unwrap(), "-q", "--rate", "120Mbit/s", "--expires", "200000h"]);
    let sender = Sender::start_as(clock.command(&mut command));
    let mut command = program(&["receive", "--yes", &sender.ticket, &scratch.text("to"), "-q"]);
    let receiver = Running::start(clock.command(&mut command));
    for (arrived, off) in [(4, 10 * YEAR), (12, -YEAR), (24, 0)] {
        let to = scratch.path("to");
        wait_for("bytes of the file", || has_part(&to, arrived << 20) || to.join("disk.img").exists());
        clock.set_off(off);
    }
    assert_eq!(receiver.end(), (Some(0), String::new()));
    assert!(std::fs::read(scratch.path("to/disk.img")).unwrap() == std::fs::read(&file).unwrap());
}
