//! A captured transfer, and what the capture contains.
#![cfg(unix)]

use crate::common;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use common::programs::{Scratch, Sender, errors, program, receive};
use serde_json::Value;

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
    assert!(
        opened.contains("STREAM 0 ")
            && opened.contains("ACK path 0 ")
            && !opened.contains(" sealed, ")
            && !opened.contains('{')
    );

    let written = told(&[&capture, "--keys", &keys, "--qlog", &scratch.text("bad.sqlog")]);
    let all = records(&scratch);
    let packets = all.iter().map(|(_, records)| records.len() - 1).sum::<usize>();
    assert_eq!(packets, opened.lines().filter(|line| line.contains(" fsn ")).count());
    assert!(written.starts_with(&format!("{packets} packets in {} files", all.len())), "{written}");
    for (name, records) in &all {
        // `receive` is the client, and it captured.
        assert!(name.starts_with("bad-session-1-path") && name.ends_with("-client.sqlog"), "{name}");
        assert_eq!(records[0]["trace"]["vantage_point"]["type"], "client");
        let times: Vec<f64> = records[1..].iter().map(|record| record["time"].as_f64().unwrap()).collect();
        assert!(times.is_sorted(), "{name}");
    }
    let frames = |event: &str, kind: &str| {
        let of_event = all.iter().flat_map(|(_, records)| records).filter(|record| record["name"] == event);
        let frames = of_event.flat_map(|record| record["data"]["frames"].as_array().unwrap());
        frames.filter(|frame| frame["frame_type"] == kind).cloned().collect::<Vec<_>>()
    };
    let came: u64 = frames("transport:packet_received", "stream")
        .iter()
        .map(|frame| frame["length"].as_u64().unwrap())
        .sum();
    assert!(came > 2_000_000 && !frames("transport:packet_sent", "ack").is_empty(), "{came}");
}

#[test]
fn tcpdump_reads_captures_with_several_interfaces() {
    if std::process::Command::new("tcpdump").arg("--version").output().is_err() {
        return common::skip("tcpdump_reads_captures", "there is no tcpdump");
    }
    let scratch = Scratch::new();
    let (scenario, trace) = (scratch.text("run.toml"), scratch.text("run.pcapng"));
    let link = |name: &str| format!("[[link]]\nname = \"{name}\"\nrate = \"1 Mbit/s\"\ndelay = \"5 ms\"\n");
    let flow = "[[flow]]\nname = \"f\"\npaths = [\"a\", \"b\"]\n";
    std::fs::write(&scenario, format!("duration = \"1 s\"\n{}{}{flow}", link("a"), link("b"))).unwrap();
    let run = program(&["sim", "run", &scenario, "--trace", &trace]).output().unwrap();
    assert!(run.status.success(), "{}", errors(&run));
    let read = std::process::Command::new("tcpdump").args(["-n", "-r", &trace]).output().unwrap();
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(read.status.success(), "{}", errors(&read));
    for path in 0..2 {
        let packet = format!("IP 10.0.0.{path}.1000 > 10.128.0.{path}.443: UDP");
        assert!(text.matches(&packet).count() > 100, "too few of {packet}");
    }
}

/// The qlog files of a folder, by name.
fn records(scratch: &Scratch) -> Vec<(String, Vec<Value>)> {
    let files = std::fs::read_dir(scratch.path("")).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "sqlog"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let records = text.split('\u{1e}').skip(1).map(|record| serde_json::from_str(record).unwrap());
        (path.file_name().unwrap().to_string_lossy().into_owned(), records.collect())
    };
    files.map(read).collect()
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
    let output = program(&["receive", "--yes", "abc", "--capture-keys", "x"]).output().unwrap();
    assert!(errors(&output).contains("--capture <FILE>"), "{}", errors(&output));

    let output = program(&["capture", file.to_str().unwrap(), "--qlog", "x.sqlog"]).output().unwrap();
    assert!(errors(&output).contains("--keys <FILE>"), "{}", errors(&output));

    let (capture, there) = (scratch.text("new.pcapng"), file.to_str().unwrap());
    let send =
        |keys| program(&["send", there, "--capture", &capture, "--capture-keys", keys]).output().unwrap();
    assert!(errors(&send(there)).contains("another name"), "{}", errors(&send(there)));
    assert!(errors(&send(&capture)).contains("in one file"), "{}", errors(&send(&capture)));
    assert!(!scratch.path("new.pcapng").exists() && file.metadata().unwrap().len() == 100);
}
