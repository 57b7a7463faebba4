//! `anabranch demo`: two nodes and three slow paths inside this process, to see what it is all about.

use std::fmt::Write as _;

use clap::Args;

use crate::args::OUTPUT;
use crate::report::DemoReport;
use crate::ui::human;
use crate::ui::paint::Paint;
use crate::values;

/// The smallest file with which the steady state lasts long enough to be measured.
const SIZE_MIN: u64 = 4 << 20;

const EXAMPLES: &str = "\
Examples:
  anabranch demo                  no root, and nothing leaves this machine
  anabranch demo --size 128MiB    a longer look
  anabranch demo --json | jq .failover_gap_ms";

/// Watch a file cross three paths at once while one of them is cut
///
/// Two nodes inside this process talk over real UDP sockets on the loopback interface, through modelled links of
/// 50, 30 and 20 Mbit/s with round-trip times of 10, 30 and 60 ms. First a file crosses all three; then another
/// does, and half-way the fastest path falls silent.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Size of the file
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = demo_size)]
    pub size: u64,
    /// The result as JSON instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn demo_size(text: &str) -> Result<u64, String> {
    let size = values::size(text)?;
    if size < SIZE_MIN { Err("must be at least 4MiB, or there is nothing to see".into()) } else { Ok(size) }
}

/// The result for people.
#[must_use]
pub fn summary(report: &DemoReport, paint: Paint) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String, note: String| {
        let _ = writeln!(text, "  {name:<20}{:>14}   {}", value, paint.dim(&note));
    };
    row("best path alone", mbit(report.best_single_mbit_s), String::new());
    let share =
        format!("{:.0} % of the paths' sum, {}", report.share_of_sum() * 100.0, mbit(report.sum_mbit_s));
    row("all paths together", mbit(report.multipath_mbit_s), share);
    row(
        "longest silence",
        format!("{:.0} ms", report.failover_gap_ms),
        "when the fastest path was cut half-way".into(),
    );
    let verdict = if report.verified {
        paint.green("every byte arrived as it was sent")
    } else {
        paint.red("what arrived is not what was sent")
    };
    let _ = writeln!(text, "  two files of {}: {verdict}", human::bytes(report.bytes));
    text
}

fn mbit(rate: f64) -> String {
    format!("{rate:.1} Mbit/s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn the_file_is_as_large_as_asked_but_not_too_small_to_measure() {
        assert_eq!(parse::<DemoArgs>(&[]).unwrap().size, 32 << 20);
        assert_eq!(parse::<DemoArgs>(&["--size", "1GB"]).unwrap().size, 1_000_000_000);
        assert!(parse::<DemoArgs>(&["--size", "1kB"]).is_err());
    }

    #[test]
    fn the_summary_tells_the_sum_the_gap_and_the_verdict() {
        let report = DemoReport {
            bytes: 33_554_432,
            paths: Vec::new(),
            best_single_mbit_s: 47.6,
            multipath_mbit_s: 93.1,
            sum_mbit_s: 95.0,
            failover_gap_ms: 83.4,
            verified: true,
        };
        let expected = "  \
  best path alone        47.6 Mbit/s   
  all paths together     93.1 Mbit/s   98 % of the paths' sum, 95.0 Mbit/s
  longest silence              83 ms   when the fastest path was cut half-way
  two files of 33.6 MB: every byte arrived as it was sent
";
        assert_eq!(summary(&report, Paint::OFF), expected);
        assert!(
            summary(&DemoReport { verified: false, ..report }, Paint::OFF).contains("is not what was sent")
        );
    }
}
