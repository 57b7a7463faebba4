//! The second decoder, `docs/reference/vectors/decoder.py`, agrees with this implementation: on the test vectors, on the
//! corpora, and on mutations of them. It was written from `docs/reference/protocol.md` alone.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anabranch_wire::{Header, decode_frames, decode_params};
use bytes::Bytes;

use super::inputs::inputs;
use super::mutate::Mutator;

const MUTATIONS: usize = 3_000;

/// Runs the decoder; `None`, with the reason, where there is no Python.
fn decoder(words: &[&str], input: &str) -> Option<Output> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/vectors/decoder.py");
    let mut python = Command::new("python3");
    python.arg("-B").arg(script).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match python.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("skipped: python3 does not start ({error})");
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

fn assert_agrees(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn is_of_a_transfer(bytes: &[u8]) -> bool {
    bytes.split_first().is_some_and(|(kind, body)| anabranch_transfer::check_message(*kind, body))
}

/// Lines with inputs and the verdicts of this implementation.
fn verdicts() -> String {
    type Accepts = fn(&[u8]) -> bool;
    let kinds: [(&str, &str, Accepts); 4] = [
        ("header", "header", |bytes| Header::decode(bytes).is_ok()),
        ("frames", "packet", |bytes| decode_frames(Bytes::copy_from_slice(bytes)).is_ok()),
        ("params", "params", |bytes| decode_params(bytes).is_ok()),
        ("transfer", "transfer", is_of_a_transfer),
    ];
    let mut lines = String::new();
    for (target, kind, accepts) in kinds {
        let (known, mut mutator) = (inputs(target), Mutator::new(41));
        let mutations: Vec<_> = (0..MUTATIONS).map(|_| mutator.next(&known)).collect();
        for input in known.iter().chain(&mutations) {
            let digits: String = input.iter().fold(String::new(), |mut digits, byte| {
                write!(digits, "{byte:02x}").unwrap();
                digits
            });
            let digits = if digits.is_empty() { "-" } else { &digits };
            let verdict = if accepts(input) { "ok" } else { "refused" };
            writeln!(lines, "{kind} {digits} {verdict}").unwrap();
        }
    }
    lines
}

#[test]
fn a_second_decoder_agrees_on_every_vector() {
    if let Some(output) = decoder(&[], "") {
        assert_agrees(&output);
    }
}

#[test]
fn a_second_decoder_agrees_on_the_corpora_and_their_mutations() {
    let lines = verdicts();
    let Some(output) = decoder(&["--verdicts"], &lines) else { return };
    assert_agrees(&output);
    let accepted = lines.lines().filter(|line| line.ends_with("ok")).count();
    assert!(accepted > 500 && accepted < lines.lines().count() - 500, "both verdicts come up: {accepted}");
    // A difference is found: one verdict turned round.
    let wrong = lines.replacen(" ok\n", " refused\n", 1);
    assert!(!decoder(&["--verdicts"], &wrong).unwrap().status.success());
}
