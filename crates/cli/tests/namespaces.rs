//! `bench` between two network namespaces joined by links of 50, 30 and 20 Mbit/s. Needs root; otherwise it reports a
//! skipped test.
//!
//! Real-time measurements get three attempts, since the machine may be busy during one of them. Tests of
//! rates and gaps take turns.
#![cfg(target_os = "linux")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::netns::{CEILING, Machines, START_S, Side, three_links, three_links_shared};
use common::programs::{PROGRAM, Running};
use common::within_three_attempts;
use serde_json::Value;

/// Runs a test from near to far with these client options; returns its report.
fn bench(machine: impl Fn(Side) -> Command, options: &[&str]) -> Value {
    let mut server =
        Running::start(machine(Side::Far).args(["bench", "server", "--once"]).stdin(Stdio::null()));
    let mut line = String::new();
    BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ticket = line.split_whitespace().last().expect("the line to paste").to_owned();
    let mut client = machine(Side::Near);
    client.args(["bench", "client", &ticket, "--json"]).args(options).stdin(Stdio::null());
    let output = client.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (code, errors) = server.end();
    assert_eq!(code, Some(0), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn intervals(report: &Value) -> impl Iterator<Item = &Value> {
    report["intervals"].as_array().unwrap().iter()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

/// Goodput in Mbit/s over the intervals between two moments.
fn goodput(report: &Value, from_s: f64, to_s: f64) -> f64 {
    let inside = |interval: &&Value| {
        let end = number(interval, "t_s");
        end - number(interval, "seconds") >= from_s - 0.01 && end <= to_s + 0.01
    };
    let (bytes, seconds) = intervals(report).filter(inside).fold((0.0, 0.0), |(bytes, seconds), interval| {
        (bytes + number(interval, "bytes"), seconds + number(interval, "seconds"))
    });
    bytes * 8e-6 / seconds
}

/// Checks that each link has one path between its own addresses, and that no other path was tried. On a busy machine a
/// path may be late.
fn check_paths(machines: &Machines, report: &Value) -> Result<(), String> {
    let without_port = |path: &Value, key: &str| {
        let text = path[key].as_str().expect("an address");
        text.parse::<std::net::SocketAddr>().expect("an address").ip()
    };
    for interval in intervals(report).filter(|interval| number(interval, "t_s") >= START_S) {
        let paths = interval["paths"].as_array().unwrap();
        let mut found: Vec<_> =
            paths.iter().map(|path| (without_port(path, "local"), without_port(path, "remote"))).collect();
        found.sort();
        let pair = |link| (machines.address(Side::Near, link), machines.address(Side::Far, link));
        if found != [0, 1, 2].map(pair) {
            return Err(interval.to_string());
        }
    }
    Ok(())
}

/// Checks for at least 0.985 of the links' capacity after start-up.
fn check_rate(report: &Value) -> Result<String, String> {
    let rate = goodput(report, START_S, f64::INFINITY);
    let found = format!("{rate:.2} Mbit/s");
    if rate >= 0.985 * CEILING { Ok(found) } else { Err(found) }
}

#[test]
fn bench_finds_three_paths_by_itself_and_fills_them() {
    let Some((machines, _turn)) = three_links("bench_finds_three_paths_by_itself_and_fills_them") else {
        return;
    };
    within_three_attempts("bench_finds_three_paths_by_itself", || {
        let report = bench(|side| machines.command(side, PROGRAM), &["--time", "6s"]);
        check_paths(&machines, &report)?;
        check_rate(&report)
    });
}

#[test]
fn bench_does_so_without_root_and_with_two_default_routes() {
    let Some((machines, _turn)) = three_links("bench_does_so_without_root") else { return };
    machines.add_two_default_routes().unwrap();
    within_three_attempts("bench_does_so_without_root", || {
        let report = bench(|side| machines.command_as_nobody(side, PROGRAM), &["--time", "5s", "--reverse"]);
        check_paths(&machines, &report)?;
        check_rate(&report)
    });
}

#[test]
fn a_link_that_swallows_everything_is_missed_for_200_ms_at_most_and_taken_back() {
    let Some((machines, _turn)) = three_links("a_link_that_swallows_everything") else { return };
    within_three_attempts("a_link_that_swallows_everything_is_missed_for_200_ms_at_most", || {
        let report = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(3_000));
                machines.blackhole(0).unwrap();
                thread::sleep(Duration::from_millis(2_000));
                machines.restore(0).unwrap();
            });
            let options = ["--time", "9s", "--interval", "250ms"];
            bench(|side| machines.command(side, PROGRAM), &options)
        });
        let gaps = intervals(&report).map(|interval| number(interval, "longest_gap_ms"));
        let gap = gaps.fold(0.0, f64::max);
        let (without, again) = (goodput(&report, 3.75, 4.5), goodput(&report, 7.5, 9.0));
        let right = gap <= 200.0 && without >= 0.8 * 0.5 * CEILING && again >= 0.95 * CEILING;
        let found = format!("silent for {gap:.0} ms, then {without:.1} Mbit/s, in the end {again:.1} Mbit/s");
        if right { Ok(found) } else { Err(found) }
    });
}

#[test]
fn a_link_that_goes_and_comes_is_one_row_with_all_bytes_sent() {
    a_link_that_goes_and_comes_is_one_row("a_link_that_goes_and_comes_is_one_row_at_the_sender", false);
}

#[test]
fn a_link_that_goes_and_comes_is_one_row_with_all_bytes_received() {
    a_link_that_goes_and_comes_is_one_row("a_link_that_goes_and_comes_is_one_row_at_the_receiver", true);
}

/// No rate is measured, so the links are slow, and both directions are tested side by side.
fn a_link_that_goes_and_comes_is_one_row(test: &str, reverse: bool) {
    let Some((machines, _turn)) = three_links_shared(test) else { return };
    (0..3).for_each(|link| machines.shape(link, 10).unwrap());
    // On a busy machine, any path's acknowledgements may be late at the final report.
    within_three_attempts(test, || {
        let report = bench_while_a_link_goes(&machines, reverse);
        let rows = report["end"]["paths"].as_array().unwrap();
        check_rows(&machines, &report, rows)?;
        let active = rows.iter().all(|row| row["state"] == "active");
        let found = format!("reverse {reverse}: {rows:?}");
        if active { Ok(found) } else { Err(found) }
    });
}

/// Runs a bench in which the first link goes down twice.
fn bench_while_a_link_goes(machines: &Machines, reverse: bool) -> Value {
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(1_500));
            for pause in [1_500, 700] {
                machines.set_link((Side::Far, 0), false).unwrap();
                thread::sleep(Duration::from_millis(pause));
                machines.set_link((Side::Far, 0), true).unwrap();
                thread::sleep(Duration::from_millis(700));
            }
        });
        let options = ["--time", "8s", "--reverse"];
        let options = if reverse { &options[..] } else { &options[..2] };
        bench(|side| machines.command(side, PROGRAM), options)
    })
}

/// Checks that there is one row per pair of addresses, and that the rows add up to all bytes.
fn check_rows(machines: &Machines, report: &Value, rows: &[Value]) -> Result<(), String> {
    let host = |row: &Value, key: &str| {
        let address = row[key].as_str().unwrap_or_else(|| panic!("no {key} in {row}"));
        address.parse::<std::net::SocketAddr>().unwrap().ip()
    };
    let mut pairs: Vec<_> = rows.iter().map(|row| (host(row, "local"), host(row, "remote"))).collect();
    pairs.sort();
    let pair = |link| (machines.address(Side::Near, link), machines.address(Side::Far, link));
    let sum: f64 = rows.iter().map(|row| number(row, "bytes")).sum();
    let whole = number(&report["end"], "bytes");
    let is_right = pairs == [0, 1, 2].map(pair) && (0.99 * whole..1.05 * whole).contains(&sum);
    if is_right { Ok(()) } else { Err(format!("{sum} of {whole}: {rows:#?}")) }
}

#[test]
fn paths_that_only_the_server_can_open_are_opened_by_it() {
    let Some((machines, _turn)) = three_links("paths_that_only_the_server_can_open") else { return };
    machines.wall(1).unwrap();
    machines.wall(2).unwrap();
    within_three_attempts("paths_that_only_the_server_can_open_are_opened_by_it", || {
        let report = bench(|side| machines.command(side, PROGRAM), &["--time", "8s"]);
        let rate = goodput(&report, 6.0, 8.0);
        let found = format!("{rate:.2} Mbit/s in the end");
        if rate >= 0.95 * CEILING { Ok(found) } else { Err(found) }
    });
}
