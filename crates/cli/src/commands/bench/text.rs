//! Formats a test as text: a row for each interval, then the totals and the paths, in at most `columns` characters.

use anabranch_wire::Rate;

use crate::report::{BenchPath, Interval, Measured, WithoutPath};
use crate::ui::paint::Paint;
use crate::ui::snapshot::PathLine;
use crate::ui::width::fit;
use crate::ui::{human, render};

/// The headings over [`interval_row`]s.
pub fn heading(columns: usize) -> String {
    cells(["time", "received", "rate"].map(str::to_owned), columns)
}

pub fn interval_row(interval: &Interval, columns: usize) -> String {
    row(interval.t_s, &interval.measured, columns)
}

/// The paths at the end of an interval.
pub fn path_rows(paths: &[BenchPath], columns: usize) -> String {
    let all: u64 = paths.iter().map(|path| path.bytes).sum();
    let lines: Vec<PathLine> = paths.iter().map(|path| line(path, all)).collect();
    render::path_lines_within(&lines, Paint::OFF, columns).into_iter().map(|line| line + "\n").collect()
}

/// The whole test.
pub fn end_rows(end: &Measured, columns: usize) -> String {
    let (total, rule) = (row(end.seconds, end, columns), "─".repeat(43.min(columns.saturating_sub(2))));
    let paths = path_rows(&end.paths, columns);
    format!("  {rule}\n{total}\n{paths}  longest silence {:.0} ms\n", end.longest_gap_ms)
}

/// Relays that gave no path.
pub fn without_path_rows(relays: &[WithoutPath]) -> String {
    let row = |none: &WithoutPath| format!("  no path through {}: {}\n", none.relay, none.why);
    relays.iter().map(row).collect()
}

fn row(until_s: f64, measured: &Measured, columns: usize) -> String {
    let time = format!("{:.2} – {until_s:.2} s", until_s - measured.seconds);
    let rate = Rate::from_mbit(measured.goodput_mbit_s).to_string();
    cells([time, human::bytes(measured.bytes), rate], columns)
}

/// A row with wide gaps, or with narrow ones on a narrow terminal.
fn cells([time, received, rate]: [String; 3], columns: usize) -> String {
    match columns {
        45.. => format!("  {time:>15}  {received:>10}  {rate:>14}\n"),
        _ => fit(&format!("{time:>15} {received:>9} {rate:>12}"), columns) + "\n",
    }
}

fn line(path: &BenchPath, all: u64) -> PathLine {
    PathLine {
        label: format!("{} → {}", path.path, path.remote.ip()),
        rate_mbit_s: path.rate_mbit_s,
        rtt_ms: path.rtt_ms,
        loss: path.loss,
        share: (all > 0).then(|| path.bytes as f64 / all as f64),
        state: path.state,
        why: path.why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::snapshot::PathState;
    use crate::ui::width::width;

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
        let text = heading(80) + &interval_row(&interval, 80) + &end_rows(&end, 80);
        let expected = "             time    received            rate
    1.00 – 2.00 s     11.8 MB     94.4 Mbit/s
  ───────────────────────────────────────────
   0.00 – 10.00 s      118 MB     94.4 Mbit/s

  wlan0 → 203.0.113.9   94.4 Mbit/s  rtt  12.0 ms  loss  0.1 %  ██████ 100 %
  longest silence 12 ms
";
        assert_eq!(text, expected);
        let narrow = heading(40) + &interval_row(&interval, 40) + &end_rows(&end, 40);
        let expected = "           time  received         rate
  1.00 – 2.00 s   11.8 MB  94.4 Mbit/s
  ──────────────────────────────────────
 0.00 – 10.00 s    118 MB  94.4 Mbit/s

  wlan…113.9   94.4 Mbit/s  ██████ 100 %
  longest silence 12 ms
";
        assert_eq!(narrow, expected);
        for columns in 25..80 {
            let all = heading(columns) + &interval_row(&interval, columns) + &end_rows(&end, columns);
            assert!(all.lines().all(|line| width(line) <= columns), "{columns}: {all}");
        }
    }
}
