//! Turns progress into text: pure functions from values to strings.

use std::time::Duration;

use anabranch_transfer::Summary;
use anabranch_wire::{Rate, Span};

use super::human;
use super::paint::Paint;
use super::snapshot::{Outlook, PathLine, PathState, ReceiverLine, Total};
use super::width::{fit, width};
use crate::errors::printable;

/// The widest label shown; longer ones lose their middle.
const LABEL_MAX: usize = 34;
/// The narrowest width to which a label shrinks to make room for other columns.
const LABEL_MIN: usize = 10;
/// Most receivers in a plain line.
const MOST_IN_LINE: usize = 8;
/// The width of the total's bar in characters, on a wide terminal.
const BAR_WIDTH: usize = 24;
/// Its width on a narrow terminal.
const SHORT_BAR: usize = 8;
/// The width of the bar for a path's share.
const SHARE_WIDTH: usize = 6;

/// One line per path with aligned columns: label, rate, RTT, loss, share; or its state if it carries nothing. In at most this
/// many characters: loss, RTT and bars give way to label, rate and share.
pub fn path_lines_within(paths: &[PathLine], paint: Paint, columns: usize) -> Vec<String> {
    let fits = |lines: &[String]| lines.iter().all(|line| width(line) <= columns);
    for shown in Columns::EACH {
        for label in [LABEL_MAX, (LABEL_MAX + LABEL_MIN) / 2, LABEL_MIN] {
            let lines = lines_with(paths, paint, (shown, label));
            if fits(&lines) {
                return lines;
            }
        }
    }
    let narrowest = lines_with(paths, paint, (Columns::FEWEST, LABEL_MIN));
    narrowest.iter().map(|line| fit(line, columns)).collect()
}

/// The optional columns of a path.
#[derive(Clone, Copy, Debug)]
struct Columns {
    rtt: bool,
    loss: bool,
    bar: bool,
}

impl Columns {
    const ALL: Self = Self { rtt: true, loss: true, bar: true };
    const FEWEST: Self = Self { rtt: false, loss: false, bar: false };
    /// Every layout, from most columns to fewest.
    const EACH: [Self; 4] =
        [Self::ALL, Self { loss: false, ..Self::ALL }, Self { bar: true, ..Self::FEWEST }, Self::FEWEST];
}

fn lines_with(paths: &[PathLine], paint: Paint, (shown, label_max): (Columns, usize)) -> Vec<String> {
    let labels: Vec<String> = paths.iter().map(|path| label(&path.label, label_max)).collect();
    let widest = labels.iter().map(|label| width(label)).max().unwrap_or(0);
    let line = |(label, path): (&String, &PathLine)| {
        let gap = " ".repeat(widest - width(label));
        format!("  {label}{gap}  {}", columns(path, paint, shown))
    };
    labels.iter().zip(paths).map(line).collect()
}

fn columns(path: &PathLine, paint: Paint, shown: Columns) -> String {
    let mut numbers = format!("{:>12}", rate(path.rate_mbit_s));
    if shown.rtt {
        let rtt = path.rtt_ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1} ms"));
        numbers += &format!("  rtt {rtt:>8}");
    }
    if shown.loss {
        numbers += &path.loss.map_or_else(String::new, |loss| format!("  loss {:>4.1} %", loss * 100.0));
    }
    match path.state {
        PathState::Active => {
            if let Some(share) = path.share.map(|share| share.clamp(0.0, 1.0)) {
                let bar = if shown.bar { bar(share, SHARE_WIDTH) + " " } else { String::new() };
                numbers += &format!("  {bar}{:>3.0} %", share * 100.0);
            }
            let why = path.why.as_ref().map_or_else(String::new, |why| format!("  {}", paint.dim(why)));
            numbers + &why
        }
        PathState::Suspect => {
            format!("{numbers}  {}", paint.yellow(reason(path, "acknowledgements overdue")))
        }
        PathState::Failed => format!("{numbers}  {}", paint.red(reason(path, "silent"))),
        PathState::Validating => paint.dim(reason(path, "validating")),
        PathState::Closing => paint.dim("closing"),
        PathState::Standby => format!("{numbers}  {}", paint.dim(reason(path, "standby"))),
        PathState::Closed => format!("{numbers}  {}", paint.dim("closed")),
    }
}

/// Why a path is idle: its own reason if it has one, else `usual`.
fn reason<'a>(path: &'a PathLine, usual: &'a str) -> &'a str {
    path.why.as_deref().unwrap_or(usual)
}

/// The line for the whole transfer, in at most this many columns: bar, percentage, bytes, rate, time left.
pub fn total_line(total: &Total, paint: Paint, columns: usize) -> String {
    let rate = total.rate.map_or_else(String::new, |rate| format!("  {}", paint.bold(&rate.to_string())));
    let expected = outlook(total).map_or_else(String::new, |expected| format!("  {expected}"));
    let Some(bytes_total) = total.bytes_total else {
        return fit(&format!("  {}{rate}{expected}", human::bytes(total.bytes_done)), columns);
    };
    let fraction = total.fraction().unwrap_or(1.0);
    let percent = format!("{:>3.0} %", (fraction * 100.0).floor());
    let bytes = format!("  {} of {}", human::bytes(total.bytes_done), human::bytes(bytes_total));
    let bar = |width| format!("{} ", paint.green(&bar(fraction, width)));
    let forms = [
        format!("  {}{percent}{bytes}{rate}{expected}", bar(BAR_WIDTH)),
        format!("  {}{percent}{bytes}{rate}{expected}", bar(SHORT_BAR)),
        format!("  {}{percent}{rate}{expected}", bar(SHORT_BAR)),
        format!("  {percent}{rate}{expected}"),
        format!("  {percent}{expected}"),
    ];
    let fitting = forms.iter().find(|form| width(form) <= columns);
    fitting.cloned().unwrap_or_else(|| fit(&forms[4], columns))
}

/// One line for each receiver, in at most this many columns: its number and address, then as [`total_line`].
pub fn receiver_lines(receivers: &[ReceiverLine], paint: Paint, columns: usize) -> Vec<String> {
    let label_max = (columns / 3).clamp(LABEL_MIN, LABEL_MAX);
    let labels: Vec<String> = receivers.iter().map(|one| label(&one.label(), label_max)).collect();
    let widest = labels.iter().map(|label| width(label)).max().unwrap_or(0);
    let line = |(label, one): (&String, &ReceiverLine)| {
        let gap = " ".repeat(widest - width(label));
        let left = columns.saturating_sub(2 + widest);
        fit(&format!("  {label}{gap}{}", total_line(&one.total, paint, left)), columns)
    };
    labels.iter().zip(receivers).map(line).collect()
}

/// The time left, in words.
fn outlook(total: &Total) -> Option<String> {
    match total.outlook {
        Outlook::Unknown => None,
        Outlook::Left(seconds) => Some(format!("{} left", human::seconds(seconds))),
        Outlook::Comparing => Some("comparing with existing files".into()),
        Outlook::Stalled(seconds) => Some(format!("stalled for {}", human::seconds(seconds))),
        Outlook::Waiting => Some("looking for the other end".into()),
    }
}

/// The whole progress in one line without colours, for log files and dumb terminals.
pub fn plain_line(total: &Total, paths: &[PathLine], receivers: &[ReceiverLine]) -> String {
    let mut line = human::bytes(total.bytes_done);
    if let (Some(bytes), Some(fraction)) = (total.bytes_total, total.fraction()) {
        line += &format!(" of {} ({:.0} %)", human::bytes(bytes), (fraction * 100.0).floor());
    }
    if let Some(rate) = total.rate {
        line += &format!(", {rate}");
    }
    if let Some(expected) = outlook(total) {
        line += &format!(", {expected}");
    }
    let mut each: Vec<String> = if receivers.is_empty() {
        paths.iter().map(plain_path).collect()
    } else {
        receivers.iter().take(MOST_IN_LINE).map(plain_receiver).collect()
    };
    if receivers.len() > MOST_IN_LINE {
        each.push(format!("and {} more receivers", receivers.len() - MOST_IN_LINE));
    }
    if each.is_empty() { line } else { line + "; " + &each.join(", ") }
}

fn plain_receiver(one: &ReceiverLine) -> String {
    let done = one.total.fraction();
    let done = done.map_or_else(
        || human::bytes(one.total.bytes_done),
        |fraction| format!("{:.0} %", (fraction * 100.0).floor()),
    );
    format!("{} {done}", label(&one.label(), LABEL_MAX))
}

fn plain_path(path: &PathLine) -> String {
    let label = label(&path.label, LABEL_MAX);
    // A rate that counts in the total is shown in every state.
    let rated = || {
        if path.rate_mbit_s > 0.0 { format!("{label} {}", rate(path.rate_mbit_s)) } else { label.clone() }
    };
    match path.state {
        PathState::Active => match path.share {
            Some(share) => format!("{label} {} {:.0} %", rate(path.rate_mbit_s), share * 100.0),
            None => label,
        },
        PathState::Suspect => format!("{} suspect", rated()),
        PathState::Failed | PathState::Validating if path.why.is_some() => {
            format!("{} ({})", rated(), reason(path, ""))
        }
        PathState::Failed => format!("{} silent", rated()),
        PathState::Validating => format!("{label} validating"),
        PathState::Closing => format!("{label} closing"),
        PathState::Standby => format!("{} standby ({})", rated(), reason(path, "kept for when others fail")),
        PathState::Closed => format!("{label} closed"),
    }
}

/// The sender's warning if the receiver has names that a crash may undo.
pub fn unsynced(summary: &Summary) -> Option<String> {
    let noun = if summary.unsynced == 1 { "directory" } else { "directories" };
    let count = summary.unsynced;
    (count > 0).then(|| {
        format!("  its disk had no room to sync {count} {noun}, where a crash may undo the new names")
    })
}

/// The summary of a finished transfer.
pub fn summary(summary: &Summary, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let moved = summary.bytes.saturating_sub(summary.resumed);
    // Holes cost no time, so they are no speed.
    let crossed = moved.min(summary.moved);
    let rate = Rate::from_bytes_in(crossed, Span::from_secs_f64(seconds));
    let files = human::count(summary.files, "file");
    let kept = match summary.unchecked {
        0 => format!("{} there already", human::count(summary.skipped, "file")),
        unchecked => {
            format!("{} there already ({unchecked} not compared)", human::count(summary.skipped, "file"))
        }
    };
    let changes = [summary.files, summary.removed, summary.updated, summary.missed];
    if changes == [0; 4] && summary.skipped > 0 {
        return format!("nothing new: {kept}");
    }
    let mut text = format!("{files}, {} in {seconds:.1} s", human::bytes(summary.bytes));
    if crossed > 0 || summary.bytes == 0 {
        text += &format!(" ({rate})");
    }
    if summary.resumed > 0 && moved == 0 {
        text += "; all of it had been received before";
    } else if summary.resumed > 0 {
        text += &format!("; {} of it had been received before", human::bytes(summary.resumed));
    }
    if summary.skipped > 0 {
        text += &format!("; {kept}");
    }
    if summary.hard_links > 0 {
        let are = if summary.hard_links == 1 { "is a hard link" } else { "are hard links" };
        text += &format!("; {} of the files {are}", summary.hard_links);
    }
    if summary.removed > 0 {
        text += &format!("; {} removed", summary.removed);
    }
    match summary.updated {
        0 => {}
        1 => text += "; 1 link, mode or time set",
        updated => text += &format!("; {updated} links, modes or times set"),
    }
    if summary.missed > 0 {
        text += &format!("; {} could not be read", human::count(summary.missed, "file"));
    }
    if summary.left_out > 0 {
        text += &format!("; {} left out, which cannot be sent", summary.left_out);
    }
    text
}

/// A bar of `width` characters, filled in eighths of a character; the rest is dotted.
pub fn bar(fraction: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (fraction.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let (full, part) = (eighths / 8, eighths % 8);
    let rest = width - full - usize::from(part > 0);
    format!("{}{}{}", "█".repeat(full), EIGHTHS[part], "·".repeat(rest))
}

/// A rate, or nothing if it is unknown.
fn rate(mbit_s: f64) -> String {
    if mbit_s > 0.0 { Rate::from_mbit(mbit_s).to_string() } else { "–".into() }
}

/// The label without control characters, shortened in the middle if longer than `most`.
fn label(text: &str, most: usize) -> String {
    let safe = printable(text);
    let length = safe.chars().count();
    if length <= most {
        return safe;
    }
    let (head, tail) = (most / 2 - 1, most / 2);
    let start: String = safe.chars().take(head).collect();
    let end: String = safe.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(label: &str, rate_mbit_s: f64, state: PathState) -> PathLine {
        PathLine {
            label: label.into(),
            rate_mbit_s,
            rtt_ms: Some(10.25),
            loss: Some(0.004),
            share: Some(0.5),
            state,
            why: None,
        }
    }

    fn total(bytes_done: u64, bytes_total: Option<u64>) -> Total {
        Total { bytes_done, bytes_total, rate: Some(Rate::from_mbit(94.3)), outlook: Outlook::Left(72.0) }
    }

    fn path_lines(paths: &[PathLine], paint: Paint) -> Vec<String> {
        path_lines_within(paths, paint, usize::MAX)
    }

    #[test]
    fn paths_stand_in_aligned_columns() {
        let paths =
            [path("wlan0", 48.1, PathState::Active), path("eth0 → fra-1", 2800.0, PathState::Suspect)];
        let lines = path_lines(&paths, Paint::OFF);
        assert_eq!(lines[0], "  wlan0          48.1 Mbit/s  rtt  10.2 ms  loss  0.4 %  ███···  50 %");
        assert_eq!(
            lines[1],
            "  eth0 → fra-1   2.80 Gbit/s  rtt  10.2 ms  loss  0.4 %  acknowledgements overdue"
        );
    }

    #[test]
    fn before_any_path_has_a_rate_none_has_a_share() {
        let first = PathLine { share: None, ..path("wlan0", 0.0, PathState::Active) };
        let lines = path_lines(std::slice::from_ref(&first), Paint::OFF);
        assert_eq!(lines[0], "  wlan0             –  rtt  10.2 ms  loss  0.4 %");
        assert_eq!(plain_line(&total(5, None), &[first], &[]), "5 B, 94.3 Mbit/s, 1 min 12 s left; wlan0");
    }

    #[test]
    fn a_receiver_that_sees_no_losses_shows_none() {
        let receiving = PathLine { loss: None, ..path("wlan0", 48.1, PathState::Active) };
        let lines = path_lines(&[receiving], Paint::OFF);
        assert_eq!(lines[0], "  wlan0   48.1 Mbit/s  rtt  10.2 ms  ███···  50 %");
    }

    #[test]
    fn every_state_of_a_path_is_told_in_words_or_by_a_bar() {
        for (state, word) in [
            (PathState::Validating, "validating"),
            (PathState::Closing, "closing"),
            (PathState::Active, "50 %"),
            (PathState::Suspect, "overdue"),
            (PathState::Failed, "silent"),
            (PathState::Standby, "standby"),
            (PathState::Closed, "closed"),
        ] {
            assert!(path_lines(&[path("a", 1.0, state)], Paint::OFF)[0].contains(word), "{state:?}");
        }
    }

    #[test]
    fn an_idle_path_says_why_and_so_does_one_that_stands_in() {
        let because = |state, why: &str| PathLine { why: Some(why.into()), ..path("a", 1.0, state) };
        let idle = because(PathState::Standby, "its 500.0 MB are used up");
        assert!(
            path_lines(std::slice::from_ref(&idle), Paint::OFF)[0].ends_with("  its 500.0 MB are used up")
        );
        let line = plain_line(&total(5, None), &[idle], &[]);
        assert!(line.ends_with("a 1.0 Mbit/s standby (its 500.0 MB are used up)"), "{line}");
        let stands_in = because(PathState::Active, "stands in: no better path works");
        assert!(path_lines(&[stands_in], Paint::OFF)[0].ends_with("50 %  stands in: no better path works"));
    }

    #[test]
    fn the_total_tells_how_much_how_fast_and_how_long() {
        assert_eq!(
            total_line(&total(412_000_000, Some(1_240_000_000)), Paint::OFF, 100),
            "  ████████················  33 %  412 MB of 1.24 GB  94.3 Mbit/s  1 min 12 s left"
        );
    }

    #[test]
    fn every_line_fits_the_terminal_and_the_rate_stays_as_long_as_it_can() {
        let mut paths = [
            path("enp0s31f6 → 2001:db8:1234:5678::9 by fra-1", 948.1, PathState::Active),
            path("日本語の回線", 2800.0, PathState::Suspect),
            path("wwan0", 0.0, PathState::Standby),
        ];
        paths[2].why = Some("its 500.0 MB are used up, and it is kept for when all others fail".into());
        for columns in 10..=120 {
            for paint in [Paint::OFF, Paint::ON] {
                for line in path_lines_within(&paths, paint, columns) {
                    assert!(width(&line) <= columns, "{columns}: {line:?}");
                }
                let line = total_line(&total(412_000_000, Some(1_240_000_000)), paint, columns);
                assert!(width(&line) <= columns, "{columns}: {line:?}");
            }
        }
        let narrow = path_lines_within(&paths[..1], Paint::OFF, 40);
        assert!(narrow[0].contains("948.1 Mbit/s") && narrow[0].ends_with("50 %"), "{narrow:?}");
        assert!(total_line(&total(1, Some(3)), Paint::OFF, 40).contains("94.3 Mbit/s  1 min 12 s left"));
    }

    #[test]
    fn a_transfer_of_unknown_length_shows_no_bar() {
        let unknown = Total { outlook: Outlook::Unknown, ..total(412_000_000, None) };
        assert_eq!(total_line(&unknown, Paint::OFF, 100), "  412 MB  94.3 Mbit/s");
        let stalled = Total { outlook: Outlook::Stalled(7.0), rate: None, ..unknown };
        assert_eq!(total_line(&stalled, Paint::OFF, 100), "  412 MB  stalled for 7 s");
    }

    #[test]
    fn a_transfer_that_waits_says_for_whom_and_one_of_which_all_was_there_has_no_rate() {
        let waiting = Total { outlook: Outlook::Waiting, ..total(5, Some(10)) };
        assert!(total_line(&waiting, Paint::OFF, 100).ends_with("looking for the other end"));
        assert!(plain_line(&waiting, &[], &[]).ends_with(", looking for the other end"));
        let sparse = Summary { files: 1, bytes: 1_000_000_000, moved: 1_000_000, ..Summary::default() };
        assert_eq!(summary(&sparse, Duration::from_secs(1)), "1 file, 1.00 GB in 1.0 s (8.0 Mbit/s)");
        let resumed = Summary { files: 1, bytes: 10, resumed: 10, ..Summary::default() };
        let told = summary(&resumed, Duration::from_secs(1));
        assert_eq!(told, "1 file, 10 B in 1.0 s; all of it had been received before");
        let copy = Summary { skipped: 2, updated: 1, ..Summary::default() };
        let told = summary(&copy, Duration::from_secs(1));
        assert!(told.ends_with("; 2 files there already; 1 link, mode or time set"), "{told}");
        let told = [0, 1, 2].map(|count| unsynced(&Summary { unsynced: count, ..Summary::default() }));
        let [None, Some(one), Some(two)] = told else { panic!("{told:?}") };
        assert!(one.contains(" sync 1 directory, ") && two.contains(" sync 2 directories, "));
    }

    #[test]
    fn one_hundred_per_cent_is_shown_only_when_all_is_there() {
        assert!(total_line(&total(999, Some(1000)), Paint::OFF, 100).contains(" 99 %"));
        assert!(total_line(&total(1000, Some(1000)), Paint::OFF, 100).contains("100 %"));
        assert!(
            total_line(&total(0, Some(0)), Paint::OFF, 100).contains("100 %"),
            "an empty file is all there"
        );
    }

    #[test]
    fn a_plain_line_tells_all_without_drawing() {
        let mut paths = [path("wlan0", 48.1, PathState::Active), path("eth0", 0.0, PathState::Failed)];
        let line = |paths: &[PathLine]| plain_line(&total(412_000_000, Some(1_240_000_000)), paths, &[]);
        let whole = "412 MB of 1.24 GB (33 %), 94.3 Mbit/s, 1 min 12 s left; ";
        assert_eq!(line(&paths), format!("{whole}wlan0 48.1 Mbit/s 50 %, eth0 silent"));
        paths[1] = path("eth0", 46.2, PathState::Suspect);
        assert_eq!(line(&paths), format!("{whole}wlan0 48.1 Mbit/s 50 %, eth0 46.2 Mbit/s suspect"));
        for state in [PathState::Failed, PathState::Validating] {
            paths[1] = PathLine { why: Some("the server answers 500".into()), ..path("eth0", 0.0, state) };
            assert!(line(&paths).ends_with(", eth0 (the server answers 500)"));
        }
        assert_eq!(plain_line(&total(5, None), &[], &[]), "5 B, 94.3 Mbit/s, 1 min 12 s left");
    }

    #[test]
    fn a_bar_is_always_as_wide_as_it_should_be() {
        for step in 0..=1000 {
            assert_eq!(bar(f64::from(step) / 1000.0, 24).chars().count(), 24, "{step}");
        }
        assert_eq!(bar(0.5, 4), "██··");
        assert_eq!(bar(7.0, 2), "██");
        assert_eq!(bar(f64::NAN, 2), "··");
    }

    #[test]
    fn a_long_or_hostile_label_is_cut_and_made_visible() {
        let long = label(&"x".repeat(100), LABEL_MAX);
        assert_eq!(long.chars().count(), LABEL_MAX);
        assert!(long.contains('…'));
        assert_eq!(label("a\u{7}", LABEL_MAX), "a\\u{7}");
    }
}
