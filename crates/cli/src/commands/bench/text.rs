//! Formats a test as text: a row for each interval, then the totals and the paths.

use anabranch_wire::Rate;

use crate::report::{BenchPath, Interval, Measured, WithoutPath};
use crate::ui::paint::Paint;
use crate::ui::snapshot::PathLine;
use crate::ui::{human, render};

/// The headings over [`interval_row`]s.
pub fn heading() -> String {
    format!("  {:>15}  {:>10}  {:>14}\n", "time", "received", "rate")
}

/// One interval.
pub fn interval_row(interval: &Interval) -> String {
    row(interval.t_s, &interval.measured)
}

/// The paths at the end of an interval.
pub fn path_rows(paths: &[BenchPath]) -> String {
    let all: u64 = paths.iter().map(|path| path.bytes).sum();
    let lines: Vec<PathLine> = paths.iter().map(|path| line(path, all)).collect();
    render::path_lines(&lines, Paint::OFF).into_iter().map(|line| line + "\n").collect()
}

/// The whole test.
pub fn end_rows(end: &Measured) -> String {
    let total = row(end.seconds, end);
    let paths = path_rows(&end.paths);
    format!("  {}\n{total}\n{paths}  longest silence {:.0} ms\n", "─".repeat(43), end.longest_gap_ms)
}

/// Relays that gave no path.
pub fn without_path_rows(relays: &[WithoutPath]) -> String {
    let row = |none: &WithoutPath| format!("  no path through {}: {}\n", none.relay, none.why);
    relays.iter().map(row).collect()
}

fn row(until_s: f64, measured: &Measured) -> String {
    let time = format!("{:.2} – {until_s:.2} s", until_s - measured.seconds);
    let rate = Rate::from_mbit(measured.goodput_mbit_s).to_string();
    format!("  {time:>15}  {:>10}  {rate:>14}\n", human::bytes(measured.bytes))
}

fn line(path: &BenchPath, all: u64) -> PathLine {
    PathLine {
        label: format!("{} → {}", path.path, path.remote.ip()),
        rate_mbit_s: path.rate_mbit_s,
        rtt_ms: path.rtt_ms,
        loss: path.loss,
        share: if all == 0 { 0.0 } else { path.bytes as f64 / all as f64 },
        state: path.state,
        why: path.why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::snapshot::PathState;

    #[test]
    fn rows_stand_in_columns_under_their_headings() {
        let path = BenchPath {
            path: "wlan0".into(),
            local: None,
            remote: "203.0.113.9:4433".parse().unwrap(),
            bytes: 118_000_000,
            rate_mbit_s: 94.4,
            rtt_ms: Some(12.0),
            loss: Some(0.001),
            state: PathState::Active,
            why: None,
        };
        let measured = |seconds, bytes, paths| Measured {
            seconds,
            bytes,
            goodput_mbit_s: 94.4,
            longest_gap_ms: 12.3,
            paths,
        };
        let interval = Interval { t_s: 2.0, measured: measured(1.0, 11_800_000, Vec::new()) };
        let end = measured(10.0, 118_000_000, vec![path]);
        let text = heading() + &interval_row(&interval) + &end_rows(&end);
        let expected = "             time    received            rate
    1.00 – 2.00 s     11.8 MB     94.4 Mbit/s
  ───────────────────────────────────────────
   0.00 – 10.00 s      118 MB     94.4 Mbit/s

  wlan0 → 203.0.113.9   94.4 Mbit/s  rtt  12.0 ms  loss  0.1 %  ██████ 100 %
  longest silence 12 ms
";
        assert_eq!(text, expected);
    }
}
