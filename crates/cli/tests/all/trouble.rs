//! The messages of `send` and `receive` on failure: each gives advice, and the exit code is the one that `--help` states.
#![cfg(unix)]

use crate::common;

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anabranch_secure::{NodeKey, TicketSecret};
use common::netns::Namespace;
use common::programs::{
    PROGRAM, Running, Scratch, Sender, errors, last_event, program, receive, wait_for, wait_for_part,
};
use common::skip;

/// Runs the command that follows in a terminal, and types Ctrl-C when it has drawn a rate.
const INTERRUPTED_IN_A_TERMINAL: &str = r#"
import fcntl, os, pty, struct, sys, termios
pid, end = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
text, typed = b"", False
try:
    while piece := os.read(end, 65536):
        text += piece
        if b"Mbit/s" in text and not typed:
            typed = os.write(end, b"\x03") == 1
except OSError:
    pass
sys.stdout.buffer.write(text)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// Checks that a receiver failed with this exit code and that its message contains these words.
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
    let words = [
        "no answer from ",
        " within 1 s",
        "tried   ",
        " → 127.0.0.1:",
        "another key",
        "a relay connects the two",
    ];
    assert_failed(&received, 3, &words);
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}

#[test]
fn text_that_is_no_ticket_is_told_from_a_damaged_one() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    assert_failed(&receive(&["hello"]), 2, &["this is not a ticket", "hint"]);
    let cut = &sender.ticket[..sender.ticket.len() - 3];
    assert_failed(&receive(&[cut]), 2, &["this ticket ", "copy the whole line"]);
    let bench = program(&["bench", "client", "hello"]).output().unwrap();
    assert_failed(&bench, 2, &["this is not a ticket"]);
}

#[test]
fn a_ticket_for_something_else_is_told_from_a_lost_connection() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let bench = program(&["bench", "client", &sender.ticket]).output().unwrap();
    assert_failed(&bench, 2, &["this is not the ticket of a bench server", "for `anabranch receive`"]);
    assert_eq!(String::from_utf8_lossy(&bench.stdout), "");

    let proxy = program(&["proxy", &sender.ticket, "--listen", "127.0.0.1:0"]).output().unwrap();
    assert_failed(&proxy, 3, &["the other end is not an exit", "`anabranch exit` printed"]);

    let exit = ["exit", "--port", "0", "--address", "127.0.0.1"];
    for (server, client) in [(&["bench", "server", "--port", "0"][..], "bench client"), (&exit, "proxy")] {
        let mut server = Running::start(
            program(server).env("XDG_RUNTIME_DIR", scratch.path("")).env("HOME", scratch.path("")),
        );
        let line = BufReader::new(server.child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let ticket = line.split_whitespace().last().unwrap();
        let received = receive(&[ticket, &scratch.text("to")]);
        if client != "proxy" {
            let proxy = program(&["proxy", ticket, "--listen", "127.0.0.1:0"]).output().unwrap();
            assert_failed(&proxy, 4, &["this ticket is for `anabranch bench client`"]);
        }
        let why = format!("this ticket is for `anabranch {client}`");
        assert_failed(&received, 4, &[&why, "print tickets for files"]);
    }
}

#[test]
fn an_expired_ticket_ends_what_is_under_way_after_a_notice_and_lets_no_one_in() {
    let scratch = Scratch::new();
    let file = scratch.file("from/large", 16 << 20, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "--expires", "6s", "--rate", "8Mbit/s"]);
    let (early, late) = (scratch.text("early"), scratch.text("late"));
    let words = ["receive", "--yes", &sender.ticket, &early];
    let running = Running::start(&mut program(&words));
    wait_for_part(Path::new(&early), 1);
    let (code, told) = running.end();
    assert_eq!(code, Some(4), "{told}");
    assert!(told.contains("it said \"the ticket has expired\""), "{told}");
    assert!(told.contains("what has arrived is kept"), "{told}");
    let received = receive(&[&sender.ticket, &late, "--timeout", "2s"]);
    assert!(matches!(received.status.code(), Some(3 | 4)), "{}", errors(&received));
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("the ticket expires in ") && told.contains("did not get it all"), "{told}");
}

#[test]
fn nothing_is_written_without_consent_and_the_offer_is_shown() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let to = scratch.text("fresh");
    let asked = program(&["receive", &sender.ticket, &to]).output().unwrap();
    assert_failed(
        &asked,
        2,
        &["the sender offers 1 file, 1.00 kB", "note.txt", "there is no terminal", "`--yes`"],
    );
    let events = program(&["receive", &sender.ticket, &to, "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&events.stdout);
    let line = text.lines().find(|line| line.contains("\"event\":\"offer\"")).unwrap();
    let offer: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&offer["files"], &offer["names"][0]["name"]), (&1.into(), &"note.txt".into()), "{text}");
    assert!(!scratch.path("fresh").exists());
    assert_failed(&receive(&[&sender.ticket, &to, "--max-size", "999"]), 4, &["more than the 999 bytes"]);
    assert!(receive(&[&sender.ticket, &to, "--max-size", "1000"]).status.success());
}

#[test]
fn hidden_names_are_refused_beside_other_files_unless_they_are_allowed() {
    let scratch = Scratch::new();
    let file = scratch.file("from/.profile", 10, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q"]);
    scratch.file("to/mine", 10, 2);
    let to = scratch.text("to");
    assert_failed(
        &receive(&[&sender.ticket, &to]),
        4,
        &["\".profile\", a hidden name", "nothing was written"],
    );
    assert!(receive(&[&sender.ticket, &to, "--hidden"]).status.success());
    assert!(receive(&[&sender.ticket, &scratch.text("new")]).status.success());
}

#[test]
fn a_ticket_comes_from_a_file_standard_input_or_the_environment_and_leaves_the_list_of_processes() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    std::fs::write(scratch.path("ticket"), format!("{}\n", sender.ticket)).unwrap();
    let from_file = receive(&[&format!("@{}", scratch.text("ticket")), &scratch.text("a")]);
    assert!(from_file.status.success(), "{}", errors(&from_file));
    let input = std::fs::File::open(scratch.path("ticket")).unwrap();
    let from_input = program(&["receive", "--yes", "-", &scratch.text("b")]).stdin(input).output().unwrap();
    assert!(from_input.status.success(), "{}", errors(&from_input));
    let mut command = program(&["receive", "--yes", &scratch.text("c")]);
    let from_variable = command.env("ANABRANCH_TICKET", &sender.ticket).output().unwrap();
    assert!(from_variable.status.success(), "{}", errors(&from_variable));

    let file = scratch.file("from/large", 8 << 20, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q", "--rate", "20Mbit/s"]);
    let to = scratch.text("d");
    let running = Running::start(&mut program(&["receive", "--yes", &sender.ticket, &to, "-q"]));
    wait_for_part(Path::new(&to), 1);
    #[cfg(target_os = "linux")]
    {
        let line = std::fs::read(format!("/proc/{}/cmdline", running.child.id())).unwrap();
        let line = String::from_utf8_lossy(&line);
        // Without another start of the program, which would take time.
        let stars = "*".repeat(sender.ticket.len());
        assert!(!line.contains("anabranch1") && line.split('\0').any(|word| word == stars), "{line}");
    }
    assert_eq!(running.end(), (Some(0), String::new()));
}

#[test]
fn a_closed_terminal_ends_a_transfer_as_a_request_to_stop_does() {
    let scratch = Scratch::new();
    let file = scratch.file("from/large", 16 << 20, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q", "--rate", "8Mbit/s"]);
    let to = scratch.text("to");
    let running = Running::start(&mut program(&["receive", "--yes", &sender.ticket, &to, "-q"]));
    // More than the first piece, which may be written but not counted yet.
    wait_for_part(Path::new(&to), 2 << 20);
    running.signal("-HUP");
    let (code, told) = running.end();
    assert_eq!(code, Some(130), "{told}");
    assert!(told.contains("what has arrived is kept"), "{told}");
}

#[test]
fn a_closed_terminal_ends_a_sender_as_a_request_to_stop_does() {
    let scratch = Scratch::new();
    let file = scratch.file("from/a", 100, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q"]);
    sender.running.signal("-HUP");
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(130), "{told}");
    assert!(told.contains("the ticket opens nothing any more"), "{told}");
}

/// The terminal writes `^C` below the drawing, so that lines drawn later would not replace the earlier ones.
#[test]
fn after_an_interrupt_in_a_terminal_nothing_is_drawn_over_the_last_lines() {
    let test = "after_an_interrupt_in_a_terminal";
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(test, "there is no python3");
    }
    let scratch = Scratch::new();
    let file = scratch.file("from/large", 16 << 20, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q", "--rate", "8Mbit/s"]);
    common::within_three_attempts(test, || {
        let mut terminal = Command::new("python3");
        terminal.args(["-c", INTERRUPTED_IN_A_TERMINAL, PROGRAM, "receive", "--yes", &sender.ticket]);
        let output = terminal.arg(scratch.text("to")).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some((_, after)) = text.split_once("^C") else { return Err(text) };
        // The sequence clears a line.
        let is_left = after.contains("stopped:") && !after.contains("\u{1b}[2K");
        if is_left && output.status.code() == Some(130) { Ok(String::new()) } else { Err(text) }
    });
}

#[test]
fn a_file_too_large_for_the_target_fails_alone() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("from/d")).unwrap();
    scratch.file("from/d/a-large", 3 << 20, 1);
    scratch.file("from/d/b-small", 1000, 2);
    let sender = Sender::start(&[&scratch.text("from/d"), "-q"]);
    // `ulimit -f` counts units of 512 bytes.
    let script = format!(
        "ulimit -f 2048 && exec '{PROGRAM}' receive --yes '{}' '{}'",
        sender.ticket,
        scratch.text("to")
    );
    let received = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_failed(
        &received,
        6,
        &["1 file was not transferred", "d/a-large: it is larger than files may be here"],
    );
    assert!(scratch.path("to/d/b-small").exists() && !scratch.path("to/d/a-large").exists());
}

#[test]
fn once_is_enough_when_a_receiver_has_every_file_that_can_be_read() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("from/d")).unwrap();
    scratch.file("from/d/good", 1000, 1);
    let name = std::ffi::OsStr::from_bytes(b"odd\xff");
    std::fs::write(scratch.path("from/d").join(name), b"its name cannot be sent").unwrap();
    let sender = Sender::start(&[&scratch.text("from/d"), "--once"]);
    let received = receive(&[&sender.ticket, &scratch.text("to")]);
    assert_failed(&received, 6, &["1 file was not transferred", "not UTF-8"]);
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(6), "{told}");
    assert!(told.contains("has all that can be read, 1 could not"), "{told}");
    assert!(told.contains("error: 1 file could not be read here\n  d/odd"), "{told}");
}

#[test]
fn once_lasts_until_the_receiver_has_chosen_what_to_do_with_taken_names() {
    let scratch = Scratch::new();
    ["from/d", "to/d"].iter().for_each(|name| std::fs::create_dir_all(scratch.path(name)).unwrap());
    scratch.file("from/d/good", 1000, 1);
    for at in 10..22 {
        scratch.file(&format!("from/d/taken{at}"), 1000, 2);
        scratch.file(&format!("to/d/taken{at}"), 10, 3);
    }
    let sender = Sender::start(&[&scratch.text("from/d"), "--once", "-v"]);
    let received = receive(&[&sender.ticket, &scratch.text("to")]);
    assert_failed(
        &received,
        6,
        &["12 files were not transferred", "d/taken10: something else has this name"],
    );
    let received = receive(&[&sender.ticket, &scratch.text("to"), "--overwrite"]);
    assert!(received.status.success(), "{}", errors(&received));
    assert_eq!(std::fs::metadata(scratch.path("to/d/taken10")).unwrap().len(), 1000);
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("did not get it all: the receiver lacks 12 files\n"), "{told}");
    assert!(told.contains("  d/taken10: the receiver says \"something else"), "{told}");
    assert!(told.contains("  and 2 more; `-v` names them"), "{told}");
    assert_eq!(told.matches("d/taken21: the receiver says").count(), 1, "only in the log: {told}");
}

#[test]
fn once_is_enough_when_the_receiver_can_never_hold_the_rest_and_the_sender_names_it() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("from/d")).unwrap();
    scratch.file("from/d/a-large", 3 << 20, 1);
    scratch.file("from/d/b-small", 1000, 2);
    let sender = Sender::start(&[&scratch.text("from/d"), "--once", "-q"]);
    let (to, ticket) = (scratch.text("to"), &sender.ticket);
    // `ulimit -f` counts units of 512 bytes.
    let script = format!("ulimit -f 2048 && exec '{PROGRAM}' receive --yes '{ticket}' '{to}'");
    let received = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_failed(&received, 6, &["d/a-large: it is larger than files may be here"]);
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(6), "{told}");
    assert!(
        told.contains("the receiver lacks 1 file\n  d/a-large: the receiver says \"it is larger"),
        "{told}"
    );
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
    assert_failed(
        &sent,
        1,
        &[&format!("UDP port {port}"), "is taken by another program", "hint", "0 for any"],
    );
    let sender = Sender::start(&[file.to_str().unwrap(), "--port", "0", "-q"]);
    assert!(receive(&[&sender.ticket, &scratch.text("to")]).status.success());
}

#[test]
fn a_name_or_an_address_from_outside_stands_first_in_the_ticket() {
    let scratch = Scratch::new();
    let file = scratch.file("from/note.txt", 10, 1);
    let words = [file.to_str().unwrap(), "-q", "--address", "203.0.113.9:7", "--address", "localhost:8"];
    let sender = Sender::start(&words);
    let ticket = sender.ticket_with(|ticket| ticket.addresses.truncate(2));
    let ticket: anabranch_secure::Ticket = ticket.parse().unwrap();
    assert_eq!(ticket.addresses[0], "203.0.113.9:7".parse().unwrap());
    assert!(ticket.addresses[1].ip().is_loopback() && ticket.addresses[1].port() == 8, "{ticket:?}");
    // The machine's own addresses are tried next.
    assert!(receive(&[&sender.ticket, &scratch.text("to")]).status.success());
    let unknown = program(&["send", file.to_str().unwrap(), "--address", "no-such-name.invalid:7"]).output();
    assert_failed(&unknown.unwrap(), 1, &["cannot find the address of no-such-name.invalid:7", "hint"]);
}

#[test]
fn an_address_where_nobody_answers_is_given_up_in_time() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let elsewhere = sender.ticket_with(|ticket| ticket.addresses = vec![address]);
    let received = receive(&[&elsewhere, &scratch.text("to"), "--timeout", "1s"]);
    let message = format!("error: no answer from {address} within 1 s\n");
    let tried = format!("tried   127.0.0.1 → {address}");
    assert_failed(&received, 3, &[&message, &tried, "hint", "behind a router", "a relay connects the two"]);
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
    let mut sender = Sender::start_as(command.arg("send").arg(&file));
    let receive = |ticket: &str| {
        let words = ["receive", "--yes", ticket, &scratch.text("to")];
        namespace.command(PROGRAM).args(words).output().unwrap()
    };
    let received = receive(&sender.ticket);
    assert!(received.status.success(), "{}", errors(&received));
    let far = sender.ticket_with(|ticket| ticket.addresses = vec!["203.0.113.9:4433".parse().unwrap()]);
    let words = ["no route to 203.0.113.9:4433", "hint", "is the network up", "a relay connects the two"];
    assert_failed(&receive(&far), 3, &words);
    sender.running.child.kill().unwrap();
    let (_, told) = sender.running.end();
    assert!(told.contains("warning: no network is up: only programs on this very machine"), "{told}");
}

/// Runs `anabranch receive` where `to` is a file system of 8 MiB.
fn receive_on_small_disk(ticket: &str, to: &str) -> Output {
    let script =
        format!("mount -t tmpfs -o size=8m none '{to}' && exec '{PROGRAM}' receive --yes '{ticket}' '{to}'");
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
    assert_failed(
        &received,
        1,
        &["cannot write stdin: ", "no stream may fill the disk", "nothing is kept", "`anabranch send` again"],
    );
    let (code, told) = sender.running.end();
    assert_eq!(code, Some(4), "{told}");
    assert!(told.contains("the other end stopped\n  it said \"cannot write stdin: "), "{told}");
    assert!(told.contains("hint    standard input can be received only once"), "{told}");
}

/// Two directories of the share are one directory at the receiver, as if its file system ignored case.
#[test]
fn of_two_names_that_are_one_file_here_the_first_stays_and_the_second_is_reported() {
    if !can_mount() {
        return skip("of_two_names_that_are_one_file_here", "mounting needs root");
    }
    let scratch = Scratch::new();
    for directory in ["from/d/A", "from/d/a", "to/d/A", "to/d/a"] {
        std::fs::create_dir_all(scratch.path(directory)).unwrap();
    }
    let first = scratch.file("from/d/A/x", 1_000, 1);
    scratch.file("from/d/a/x", 1_001, 2);
    scratch.file("to/d/A/x", 1_002, 3);
    let sender = Sender::start(&[&scratch.text("from/d"), "-q"]);
    let to = scratch.text("to");
    let script = format!(
        "mount --bind '{to}/d/A' '{to}/d/a' && exec '{PROGRAM}' receive --yes --overwrite '{}' '{to}'",
        sender.ticket
    );
    let received = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    assert_failed(&received, 6, &["1 file was not transferred", "d/a/x: the file system here does not tell"]);
    assert_eq!(std::fs::read(first).unwrap(), std::fs::read(scratch.path("to/d/A/x")).unwrap());
}

#[test]
fn who_comes_second_to_a_stream_gets_nothing_and_costs_the_first_nothing() {
    let scratch = Scratch::new();
    let file = scratch.file("from/large", 16 << 20, 1);
    let input = std::fs::File::open(&file).unwrap();
    let sender = Sender::start_as(program(&["send", "-", "-q", "--rate", "24Mbit/s"]).stdin(input));
    let (first, second) = (scratch.text("first"), scratch.text("second"));
    let running = Running::start(&mut program(&["receive", "--yes", &sender.ticket, &first, "-q"]));
    wait_for_part(Path::new(&first), 1);
    let late = receive(&[&sender.ticket, &second, "-q"]);
    assert_failed(&late, 4, &["once"]);
    let (code, told) = running.end();
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(std::fs::metadata(format!("{first}/stdin")).unwrap().len(), 16 << 20);
    assert_eq!(sender.running.end().0, Some(0));
}

#[test]
fn a_reader_that_leaves_before_all_has_come_is_a_failure() {
    let scratch = Scratch::new();
    let file = scratch.file("from/large", 16 << 20, 1);
    let sender = Sender::start(&[file.to_str().unwrap(), "-q"]);
    let mut receiver = Running::start(&mut program(&["receive", "--yes", &sender.ticket, "-"]));
    let mut start = [0; 1000];
    receiver.child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let (code, told) = receiver.end();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("error: cannot write the output: broken pipe\n"), "{told}");
    assert!(told.contains("run the same command again to get all of it"), "{told}");
    assert!(!told.contains("received 1 file"), "{told}");

    let mut receiver =
        Running::start(&mut program(&["receive", "--yes", &sender.ticket, &scratch.text("to"), "--json"]));
    drop(receiver.child.stdout.take());
    let (code, told) = receiver.end();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("error: cannot write the events: broken pipe\n"), "{told}");
}

#[cfg(target_os = "linux")]
#[test]
fn standard_input_that_could_not_be_written_is_not_said_to_be_kept() {
    let scratch = Scratch::new();
    let file = scratch.file("from/large", 16 << 20, 1);
    for to_stdout in [true, false] {
        let input = std::fs::File::open(&file).unwrap();
        let source = if to_stdout { Stdio::from(input) } else { Stdio::null() };
        let path = if to_stdout { "-" } else { file.to_str().unwrap() };
        let sender = Sender::start_as(program(&["send", path, "-q"]).stdin(source));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let received = Running::start_into(&mut program(&["receive", "--yes", &sender.ticket, "-"]), full);
        let (code, told) = received.end();
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("error: cannot write the output: no space left on device\n"), "{told}");
        let hint = if to_stdout {
            "start `anabranch send` again there"
        } else {
            "run the same command again to get all"
        };
        assert!(told.contains(hint) && !told.contains("is kept:"), "{told}");
    }
}

#[test]
fn a_file_that_changes_while_it_is_sent_fails_alone() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("from/d")).unwrap();
    scratch.file("from/d/a-large", 24 << 20, 2);
    let changing = scratch.file("from/d/z-changing", 5_000_000, 3);
    let sender = Sender::start(&[&scratch.text("from/d"), "-q", "--rate", "50Mbit/s"]);
    let receiver =
        Running::start(&mut program(&["receive", "--yes", &sender.ticket, &scratch.text("to"), "-q"]));
    wait_for("the directory", || scratch.path("to/d").exists());
    wait_for_part(&scratch.path("to/d"), 1 << 20);
    std::fs::write(changing, b"something else").unwrap();
    let (code, told) = receiver.end();
    assert_eq!(code, Some(6), "{told}");
    assert!(
        told.starts_with("error: 1 file was not transferred\n  d/z-changing: the sender says \"it changed"),
        "{told}"
    );
    assert!(scratch.path("to/d/a-large").exists() && !scratch.path("to/d/z-changing").exists());
}

#[test]
fn what_vanished_at_the_sender_is_told_by_its_name_in_the_share_and_the_rest_arrives() {
    let scratch = Scratch::new();
    let gone = scratch.file("from/gone.txt", 1_000, 1);
    let stays = scratch.file("from/stays.txt", 1_000, 2);
    let sender = Sender::start(&[gone.to_str().unwrap(), stays.to_str().unwrap(), "-q"]);
    std::fs::remove_file(&gone).unwrap();
    let received = receive(&[&sender.ticket, &scratch.text("to"), "-q"]);
    let expected = "error: 1 file was not transferred\n  \
                      gone.txt: the sender says \"it is no longer there on the sender; ask for it to be offered again\"\n";
    assert_eq!((received.status.code(), errors(&received).as_str()), (Some(6), expected));
    assert!(scratch.path("to/stays.txt").exists());
}

#[test]
fn what_is_left_out_is_told_at_both_ends() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("from/d")).unwrap();
    scratch.file("from/d/file", 1_000, 1);
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path("from/d/socket")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", scratch.path("from/d/link")).unwrap();
    let sender = Sender::start(&[&scratch.text("from/d"), "--once"]);
    let received = receive(&[&sender.ticket, &scratch.text("to")]);
    assert!(received.status.success(), "{}", errors(&received));
    let (_, sent) = sender.running.end();
    for told in [sent, errors(&received)] {
        assert!(told.contains("d/socket is left out: it is neither a file"), "{told}");
        assert!(told.contains("d/link is left out: it is a link that leads out of the share"), "{told}");
        assert!(told.contains("2 left out, which cannot be sent"), "{told}");
    }
    let sender = Sender::start(&[&scratch.text("from/d"), "--once", "-q"]);
    let done = last_event(&receive(&[&sender.ticket, &scratch.text("to"), "--json"]));
    assert_eq!(done["left_out"], 2, "{done}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_whose_name_cannot_be_sent_is_missed_at_the_receiver() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("from/d")).unwrap();
    let odd = scratch.path("from/d").join(std::ffi::OsStr::from_bytes(b"caf\xe9.txt"));
    std::fs::write(&odd, b"content").unwrap();
    let alone = program(&["send", &scratch.text("from/d")]).output().unwrap();
    let why = "d/caf\u{fffd}.txt is left out: its name is not UTF-8\n";
    assert_failed(&alone, 1, &["nothing of what was named can be sent\n", why, "hint"]);
    assert_eq!(String::from_utf8_lossy(&alone.stdout), "", "a ticket that opens nothing");

    scratch.file("from/d/file", 1_000, 1);
    let sender = Sender::start(&[&scratch.text("from/d"), "-q"]);
    let received = receive(&[&sender.ticket, &scratch.text("to"), "-q"]);
    assert_failed(
        &received,
        6,
        &["1 file was not transferred\n", "d/caf\u{fffd}.txt: the sender says \"its name is not UTF-8"],
    );
    assert!(scratch.path("to/d/file").exists());
}

#[test]
fn an_offer_of_which_nothing_can_be_read_is_refused_at_once() {
    let scratch = Scratch::new();
    scratch.open_to_all();
    let secret = scratch.file("from/secret", 2, 1);
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::create_dir(scratch.path("from/shut")).unwrap();
    std::fs::set_permissions(scratch.path("from/shut"), PermissionsExt::from_mode(0o000)).unwrap();
    for (name, why) in
        [("from/secret", "  secret: the sender may not read it\n"), ("from/shut", "  shut is left out")]
    {
        let Some(mut command) = as_nobody(&["send", &scratch.text(name)]) else {
            return skip("an_offer_of_which_nothing_can_be_read", "running as another user needs root");
        };
        let sent = command.output().unwrap();
        assert_failed(
            &sent,
            1,
            &["nothing of what was named can be sent\n", why, "hint", "make it readable"],
        );
        assert_eq!(String::from_utf8_lossy(&sent.stdout), "", "a ticket that opens nothing");
    }
}

#[test]
fn a_link_in_the_place_of_an_unfinished_file_is_named_as_what_to_remove() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    std::os::unix::fs::symlink("/etc/passwd", scratch.path("to/.note.txt.anabranch-part")).unwrap();
    let received = receive(&[&sender.ticket, &scratch.text("to"), "-q"]);
    let why = "  note.txt: .note.txt.anabranch-part in the same directory is in the way and is not a file; remove it";
    assert_failed(&received, 6, &[why]);
}

/// The program as an unprivileged user; root would bypass permissions.
fn as_nobody(words: &[&str]) -> Option<Command> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
    command.arg(PROGRAM).args(words).stdin(Stdio::null());
    let mut probe = Command::new("setpriv");
    let probe = probe.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", PROGRAM, "--version"]);
    probe.output().is_ok_and(|tried| tried.status.success()).then_some(command)
}

#[test]
fn a_tunnel_that_is_started_without_root_says_how_to_start_it() {
    let scratch = Scratch::new();
    scratch.open_to_all();
    let Some(mut command) = as_nobody(&["tunnel", "serve", "--port", "0"]) else {
        return skip("a_tunnel_that_is_started_without_root", "running as another user needs root");
    };
    command.env("HOME", scratch.path("to")).env_remove("XDG_CONFIG_HOME").env_remove("ANABRANCH_KEY");
    let output = command.output().unwrap();
    assert_failed(&output, 1, &["a tunnel needs root", "hint    run it with `sudo`"]);
}

#[test]
fn a_file_that_may_not_be_read_is_noted_before_it_is_offered() {
    let scratch = Scratch::new();
    scratch.open_to_all();
    let file = scratch.file("from/secret", 1_000, 1);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o000)).unwrap();
    let other = scratch.file("from/other", 1_000, 2);
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o644)).unwrap();
    let Some(mut command) = as_nobody(&["send", file.to_str().unwrap(), other.to_str().unwrap()]) else {
        return skip("a_file_that_may_not_be_read_is_noted", "running as another user needs root");
    };
    let sender = Sender::start_as(&mut command);
    let received = receive(&[&sender.ticket, &scratch.text("to"), "-q"]);
    assert_failed(&received, 6, &["  secret: the sender says \"the sender may not read it; "]);
    sender.running.interrupt();
    let (_, told) = sender.running.end();
    assert!(told.contains("warning: this file cannot be sent: secret: the sender may not read it"), "{told}");
}

#[test]
fn a_target_that_may_not_be_written_is_refused_before_the_sender_is_asked() {
    let scratch = Scratch::new();
    scratch.open_to_all();
    std::fs::set_permissions(scratch.path("to"), PermissionsExt::from_mode(0o555)).unwrap();
    std::fs::create_dir(scratch.path("from/d")).unwrap();
    (0..5).for_each(|at| drop(scratch.file(&format!("from/d/{at}"), 10, at)));
    let sender = Sender::start(&[&scratch.text("from/d"), "-q"]);
    for target in ["to", "to/new/directory"] {
        let Some(mut command) = as_nobody(&["receive", "--yes", &sender.ticket, &scratch.text(target)])
        else {
            return skip("a_target_that_may_not_be_written_is_refused", "running as another user needs root");
        };
        let received = command.output().unwrap();
        let expected =
            format!("error: cannot write to the directory {}: permission denied\n", scratch.text("to"));
        assert_failed(&received, 1, &[&expected, "hint", "ls -ld"]);
        assert_eq!(errors(&received).lines().count(), 2, "{}", errors(&received));
    }
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
    assert_failed(&received, 6, &["photos"]);
    assert_eq!(std::fs::read_dir(scratch.path("outside")).unwrap().count(), 0);
}

#[test]
fn a_target_that_is_a_file_is_named() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    let place = scratch.file("to/plain-file", 1, 1);
    let received = receive(&[&sender.ticket, place.to_str().unwrap()]);
    assert_failed(&received, 1, &["plain-file is a file", "hint", "name a directory"]);
    assert!(Path::new(&place).is_file());
}

#[test]
fn a_file_that_is_already_there_with_other_content_stays_and_is_named() {
    let scratch = Scratch::new();
    let sender = small_offer(&scratch);
    std::fs::write(scratch.path("to/note.txt"), b"mine").unwrap();
    let received = receive(&[&sender.ticket, &scratch.text("to")]);
    assert_failed(&received, 6, &["1 file was not transferred", "note.txt: "]);
    assert_eq!(std::fs::read(scratch.path("to/note.txt")).unwrap(), b"mine");
    let received = receive(&[&sender.ticket, &scratch.text("to"), "--rename"]);
    assert!(received.status.success(), "{}", errors(&received));
    assert!(scratch.path("to/note (1).txt").exists());
}

#[test]
fn a_used_up_cap_is_named_keeps_what_arrived_and_lasts_over_commands() {
    let scratch = Scratch::new();
    let (big, home) = (scratch.file("big", 12_000_000, 1), scratch.path("state"));
    let sender = Sender::start(&[big.to_str().unwrap()]);
    let receive = |cap: &str, to: &str| {
        let mut receiver = program(&["receive", &sender.ticket, &scratch.text(to), "--yes"]);
        receiver.args(["--timeout", "4s", "--retry", "4s", "--path-rule", &format!("*=metered:{cap}")]);
        let begin = Instant::now();
        let output = receiver.env("XDG_STATE_HOME", &home).stdin(Stdio::null()).output().unwrap();
        (output, begin.elapsed())
    };
    let (first, took) = receive("4MB/15", "to");
    let text = errors(&first);
    assert!(text.contains("the cap of 4.00 MB for * is used up until day 15 of the month"), "{text}");
    assert!(text.contains("what has arrived is kept") && took.as_secs_f64() > 2.0, "{took:?}: {text}");
    assert!(text.contains(" of 4.00 MB left for * until day 15"), "{text}");
    // Another command has nothing left, and one with a larger cap goes on.
    let (second, _) = receive("4MB/15", "elsewhere");
    assert_failed(&second, 3, &["the cap of 4.00 MB for * is used up"]);
    let (third, _) = receive("30MB/15", "to");
    assert!(third.status.success(), "{}", errors(&third));
    assert!(errors(&third).contains("had been received before"), "{}", errors(&third));
    assert_eq!(std::fs::read(scratch.path("to").join("big")).unwrap(), std::fs::read(&big).unwrap());
}

#[test]
fn a_used_up_cap_of_the_sender_ends_the_transfer_and_is_named_at_both_ends() {
    let scratch = Scratch::new();
    let big = scratch.file("big", 12_000_000, 1);
    let sender = Sender::start(&[big.to_str().unwrap(), "--path-rule", "*=primary:4MB"]);
    let received = receive(&[&sender.ticket, &scratch.text("to"), "--retry", "1s"]);
    let cap = "the cap of 4.00 MB for * is used up";
    assert_failed(
        &received,
        3,
        &["the other end has used up its data caps", cap, "what has arrived is kept"],
    );
    wait_for("the sender's note", || sender.running.told().contains(cap));
}

#[test]
fn a_used_up_cap_ends_a_test_and_is_named_at_both_ends() {
    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let test = ["bench", "client", &ticket, "--time", "5m", "--path-rule", "*=primary:4MB"];
    let client = program(&test).output().unwrap();
    let cap = "the cap of 4.00 MB for * is used up";
    assert_failed(&client, 3, &[cap]);
    wait_for("the server's note", || server.told().contains(cap));
}

#[test]
fn a_test_whose_time_ends_while_a_used_up_cap_holds_it_up_names_the_cap() {
    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    // Shorter than the patience with caps.
    let test = ["bench", "client", &ticket, "--reverse", "--time", "2s", "--path-rule", "*=primary:1MB"];
    assert_failed(&program(&test).output().unwrap(), 3, &["the cap of 1.00 MB for * is used up"]);
}

#[test]
fn an_interrupted_test_prints_what_it_has_measured() {
    let mut server = Running::start(program(&["bench", "server"]).stdin(Stdio::null()));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let mut client = program(&["bench", "client", &ticket, "--time", "1m", "--interval", "200ms", "--json"]);
    client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // On a busy machine two seconds may be too few.
    for seconds in [2, 10, 40] {
        let client = client.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(seconds));
        assert!(Command::new("kill").args(["-INT", &client.id().to_string()]).status().unwrap().success());
        let output = client.wait_with_output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        let report: serde_json::Value =
            serde_json::from_str(report.lines().next().unwrap_or_default()).unwrap_or_default();
        let measured = report["intervals"].as_array().is_some_and(|intervals| intervals.len() > 1);
        if measured && output.status.code() == Some(130) {
            return;
        }
        eprintln!("after {seconds} s: {:?} {report}", output.status);
    }
    panic!("it does not print what it has measured, see above");
}

#[test]
fn a_bench_server_does_not_report_the_test_of_a_client_that_was_killed_as_complete() {
    let mut server = Running::start(&mut program(&["bench", "server", "--port", "0", "--bind", "127.0.0.1"]));
    let ticket = server.line().split_whitespace().last().unwrap().to_owned();
    let words = ["bench", "client", &ticket, "--time", "3s", "--interval", "200ms"];
    let mut client = Running::start(&mut program(&words));
    // The heading and the first interval.
    client.line();
    client.line();
    client.kill();
    // After the test's end and the time for a farewell.
    wait_for("the report of a loss", || server.told().contains(": lost during the test, after "));
}
