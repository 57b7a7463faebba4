//! Shows the progress of a transfer: one line for each path and one for the whole.
//!
//! A command passes a [`ProgressSnapshot`] several times a second; [`Progress`] decides whether and how to show it. A
//! terminal redraws on every snapshot, a log gets a line every few seconds, and a program gets an event every half
//! second. [`Pace`] measures rates. Time comes from the snapshots, so this module reads no clock.

use std::io::{self, Write};

use anabranch_wire::{Rate, Span};
use indicatif::{ProgressBar, ProgressStyle};

use super::pace::Pace;
use super::paint::Paint;
use super::screen::{SCREEN, keep_drawing};
use super::snapshot::{ProgressSnapshot, Total};
use super::width::{Size, fit, wrap};
use super::{Mode, out, render};
use crate::report::Event;

/// Time between plain lines.
const LINE_EVERY: Span = Span::from_secs(5);
/// Time between JSON events.
const EVENT_EVERY: Span = Span::from_millis(500);

/// Shows the progress of one transfer.
pub struct Progress {
    view: View,
    paint: Paint,
    pace: Pace,
    /// When the next line or event is due; `None` before the first snapshot.
    next_at: Option<Span>,
}

enum View {
    Bars(Bars),
    Lines(Box<dyn Write + Send>),
    Events(Box<dyn Write + Send>),
    Nothing,
}

impl Progress {
    /// Shows progress in `mode`: drawings and lines go to standard error, events to `events`.
    pub fn new(mode: Mode, paint: Paint, events: out::Stream) -> Self {
        let view = match mode {
            Mode::Terminal => View::Bars(Bars::default()),
            Mode::Lines => View::Lines(Box::new(io::stderr())),
            Mode::Json => View::Events(events.writer()),
            Mode::Quiet => View::Nothing,
        };
        Self { view, paint, pace: Pace::default(), next_at: None }
    }

    /// Takes a snapshot and shows it if an update is due.
    pub fn update(&mut self, snapshot: &ProgressSnapshot) -> io::Result<()> {
        let total = self.pace.total(snapshot);
        match &mut self.view {
            View::Bars(bars) => bars.draw(&total, snapshot, (self.paint, Size::of_stderr())),
            View::Nothing => {}
            View::Lines(_) | View::Events(_) if self.next_at.is_some_and(|at| snapshot.elapsed < at) => {}
            // The first snapshot has no rate yet, so the first line waits one interval.
            View::Lines(_) if self.next_at.is_none() => self.next_at = Some(snapshot.elapsed + LINE_EVERY),
            View::Lines(_) => {
                self.next_at = Some(snapshot.elapsed + LINE_EVERY);
                self.say(&render::plain_line(&total, &snapshot.paths, snapshot.several_receivers()));
            }
            View::Events(writer) => {
                self.next_at = Some(snapshot.elapsed + EVENT_EVERY);
                writer.write_all(out::json_line(&event(snapshot, &total)).as_bytes())?;
                writer.flush()?;
            }
        }
        Ok(())
    }

    /// Reports one event: a path fell silent, a receiver arrived.
    pub fn note(&mut self, message: &str) -> io::Result<()> {
        match &mut self.view {
            View::Bars(bars) => {
                bars.say(&wrap(&crate::errors::printable(message), Size::of_stderr().columns));
            }
            View::Lines(_) => self.say(message),
            View::Events(writer) => {
                writer.write_all(out::json_line(&Event::Note { message }).as_bytes())?;
                writer.flush()?;
            }
            View::Nothing => {}
        }
        Ok(())
    }

    /// Shows the last state at once and leaves it on the screen. The next update starts a new display.
    pub fn finish(&mut self, snapshot: &ProgressSnapshot) -> io::Result<()> {
        self.next_at = Some(Span::ZERO);
        self.update(snapshot)?;
        if let View::Bars(bars) = &mut self.view {
            bars.leave();
        }
        (self.pace, self.next_at) = (Pace::default(), None);
        Ok(())
    }

    /// Draws no more, and leaves the last lines on the screen. For an interrupt: a terminal writes `^C` and moves the
    /// cursor, so that a drawing would be one line too low.
    pub fn freeze(&mut self) {
        if let View::Bars(bars) = &mut self.view {
            bars.freeze();
            self.view = View::Nothing;
        }
    }

    fn say(&mut self, line: &str) {
        if let View::Lines(writer) = &mut self.view {
            // A transfer continues even if its progress cannot be written.
            let _ = writeln!(writer, "{}", crate::errors::printable(line));
        }
    }
}

fn event<'a>(snapshot: &'a ProgressSnapshot, total: &Total) -> Event<'a> {
    let rate = total.rate.map_or(0.0, Rate::as_mbit);
    // Unlike a line, an event has every digit of the paths' rates.
    let of_paths: f64 = snapshot.paths.iter().map(|path| path.rate_mbit_s).sum();
    Event::Progress {
        t_s: snapshot.elapsed.as_secs_f64(),
        bytes: snapshot.bytes_done,
        bytes_total: snapshot.bytes_total,
        rate_mbit_s: rate.min(of_paths),
        eta_s: total.outlook.eta_s(),
        stalled_s: total.outlook.stalled_s(),
        waiting: snapshot.waiting,
        paths: &snapshot.paths,
        receivers: snapshot.receivers.iter().map(Into::into).collect(),
    }
}

/// Lines that redraw themselves at the bottom of a terminal: the paths, then the total. They are one bar, so that all
/// change at the same time.
#[derive(Default)]
struct Bars(Option<ProgressBar>);

impl Bars {
    fn draw(&mut self, total: &Total, snapshot: &ProgressSnapshot, look: (Paint, Size)) {
        let frame = frame(total, snapshot, look);
        self.0.get_or_insert_with(|| SCREEN.add(block())).set_message(frame);
    }

    fn say(&self, message: &str) {
        // A transfer continues even if its progress cannot be written.
        let _ = SCREEN.println(message);
    }

    /// Leaves the last lines on the screen as text, so that later drawing does not overwrite them.
    fn leave(&mut self) {
        if let Some(bar) = self.0.take() {
            SCREEN.remove(&bar);
            self.say(&bar.message());
        }
    }

    fn freeze(&mut self) {
        if let Some(bar) = self.0.take() {
            keep_drawing();
            SCREEN.remove(&bar);
        }
    }
}

/// All lines, the total last.
fn frame(total: &Total, snapshot: &ProgressSnapshot, (paint, size): (Paint, Size)) -> String {
    let mut lines = lines_above_total(snapshot, paint, size);
    lines.push(render::total_line(total, paint, size.columns));
    lines.join("\n")
}

/// One line for each receiver if there are several, else one for each path; as many as the terminal has room for.
fn lines_above_total(snapshot: &ProgressSnapshot, paint: Paint, size: Size) -> Vec<String> {
    let (paths, receivers) = (&snapshot.paths, snapshot.several_receivers());
    let (count, what) =
        if receivers.is_empty() { (paths.len(), "paths") } else { (receivers.len(), "receivers") };
    // One row stays free for the cursor, and one for the total.
    let room = size.rows.saturating_sub(2);
    let shown = if count <= room { count } else { room.saturating_sub(1) };
    let mut lines = match receivers.is_empty() {
        true => render::path_lines_within(&paths[..shown], paint, size.columns),
        false => render::receiver_lines(&receivers[..shown], paint, size.columns),
    };
    if shown < count {
        lines.push(fit(&format!("  and {} more {what}", count - shown), size.columns));
    }
    lines
}

/// Lines of text that already fit.
fn block() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new_spinner().with_style(style)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::ui::pace::Meter;
    use crate::ui::snapshot::{Outlook, PathLine, PathState, ReceiverLine};

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Page {
        fn lines(&self) -> Vec<String> {
            let bytes = self.0.lock().unwrap().clone();
            String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
        }
    }

    fn shown(view: impl FnOnce(Box<dyn Write + Send>) -> View) -> (Progress, Page) {
        let page = Page::default();
        let view = view(Box::new(page.clone()));
        (Progress { view, paint: Paint::OFF, pace: Pace::default(), next_at: None }, page)
    }

    /// A transfer of 100 MB at 1 MB every 100 ms.
    fn at(tenths: u64) -> ProgressSnapshot {
        let paths = vec![PathLine {
            label: "wlan0".into(),
            rate_mbit_s: 80.0,
            rtt_ms: None,
            loss: Some(0.0),
            share: Some(1.0),
            state: PathState::Active,
            why: None,
        }];
        ProgressSnapshot {
            elapsed: Span::from_millis(100 * tenths),
            bytes_done: tenths * 1_000_000,
            bytes_resumed: 0,
            bytes_moved: tenths * 1_000_000,
            bytes_total: Some(100_000_000),
            waiting: false,
            paths,
            receivers: Vec::new(),
        }
    }

    #[test]
    fn a_log_gets_a_line_every_five_seconds_and_one_at_the_end() {
        let (mut progress, page) = shown(View::Lines);
        for tenths in 0..100 {
            progress.update(&at(tenths)).unwrap();
        }
        progress.finish(&at(100)).unwrap();
        let lines = page.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0], "50.0 MB of 100 MB (50 %), 80.0 Mbit/s, 5 s left; wlan0 80.0 Mbit/s 100 %");
        assert!(lines[1].starts_with("100 MB of 100 MB (100 %)"), "{lines:?}");
    }

    #[test]
    fn a_program_gets_two_events_a_second_that_it_can_parse() {
        let (mut progress, page) = shown(View::Events);
        for tenths in 0..=20 {
            progress.update(&at(tenths)).unwrap();
        }
        progress.note("eth0 fell silent").unwrap();
        let events: Vec<serde_json::Value> =
            page.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events.len(), 6);
        assert_eq!(events[4]["event"], "progress");
        assert_eq!(events[4]["t_s"], 2.0);
        assert_eq!(events[4]["bytes"], 20_000_000);
        assert_eq!(events[4]["paths"][0]["path"], "wlan0");
        assert_eq!(events[4]["paths"][0]["state"], "active");
        assert_eq!(events[4]["paths"][0]["rtt_ms"], serde_json::Value::Null);
        assert_eq!(events[5]["event"], "note");
    }

    #[test]
    fn bytes_of_an_earlier_attempt_are_not_speed() {
        let (mut progress, _) = shown(View::Lines);
        progress.pace.total(&at(0));
        let resumed = |moved: u64, tenths: u64| ProgressSnapshot {
            bytes_done: 60_000_000 + moved,
            bytes_resumed: 60_000_000,
            bytes_moved: moved,
            ..at(tenths)
        };
        assert_eq!(progress.pace.total(&resumed(0, 200)).outlook, Outlook::Comparing);
        assert_eq!(progress.pace.total(&resumed(0, 201)).rate, None);
        progress.pace.total(&resumed(100_000, 202));
        let total = progress.pace.total(&resumed(1_100_000, 212));
        assert_eq!(total.rate, Some(Rate::from_mbit(8.0)), "the time of comparing does not count");
        assert_eq!(total.outlook, Outlook::Left(38.9));
    }

    #[test]
    fn holes_shorten_the_time_left_and_are_not_speed() {
        let (mut progress, _) = shown(View::Lines);
        for tenths in 0..=20 {
            let total = progress.pace.total(&ProgressSnapshot { bytes_moved: tenths * 1_000, ..at(tenths) });
            if tenths == 20 {
                assert_eq!((total.rate, total.outlook), (Some(Rate::from_mbit(0.08)), Outlook::Left(8.0)));
            }
        }
    }

    #[test]
    fn a_silence_is_told_and_no_time_promised_in_it() {
        let (mut progress, page) = shown(View::Events);
        for tenths in 0..=20 {
            progress.update(&at(tenths)).unwrap();
        }
        let stalled = |tenths: u64| ProgressSnapshot { elapsed: Span::from_millis(100 * tenths), ..at(20) };
        for tenths in 21..50 {
            let Outlook::Left(eta) = progress.pace.total(&stalled(tenths)).outlook else {
                panic!("at {tenths}")
            };
            assert!(eta < 60.0, "{eta}");
        }
        assert_eq!(progress.pace.total(&stalled(70)).outlook, Outlook::Stalled(5.0));
        progress.update(&stalled(70)).unwrap();
        progress.update(&ProgressSnapshot { waiting: true, ..stalled(80) }).unwrap();
        let events: Vec<serde_json::Value> =
            page.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [.., stalled, waiting] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&stalled["stalled_s"], &stalled["eta_s"]), (&5.0.into(), &serde_json::Value::Null));
        assert_eq!((&stalled["waiting"], &waiting["waiting"]), (&false.into(), &true.into()));
    }

    #[test]
    fn after_a_pause_of_either_end_the_time_left_is_that_of_the_new_rate() {
        let (mut progress, _) = shown(View::Lines);
        // Where this end pauses, there are no snapshots meanwhile.
        for (first, last) in [(21, 0), (21, 620)] {
            progress.pace = Pace::default();
            for tenths in 0..=20 {
                progress.pace.total(&at(tenths));
            }
            for tenths in first..=last {
                progress.pace.total(&ProgressSnapshot { elapsed: at(tenths).elapsed, ..at(20) });
            }
            for more in 1..=60 {
                let now = ProgressSnapshot { elapsed: at(620 + more).elapsed, ..at(20 + more) };
                match progress.pace.total(&now).outlook {
                    Outlook::Unknown => assert!(more <= 4, "nothing after {more} tenths"),
                    Outlook::Left(eta) => {
                        let wanted = (80 - more) as f64 / 10.0;
                        assert!((eta - wanted).abs() < 0.5, "{eta} s instead of {wanted} s");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_block_that_takes_long_to_arrive_is_no_silence() {
        let (mut progress, _) = shown(View::Lines);
        for tenths in 0..=90 {
            let block = ProgressSnapshot { bytes_done: 0, bytes_moved: tenths * 10_000, ..at(tenths) };
            let total = progress.pace.total(&block);
            if tenths > 10 {
                assert_eq!((total.rate, total.outlook), (Some(Rate::from_mbit(0.8)), Outlook::Left(1_000.0)));
            }
        }
    }

    #[test]
    fn after_its_end_a_display_begins_anew() {
        let (mut progress, page) = shown(View::Lines);
        progress.update(&at(0)).unwrap();
        progress.finish(&at(100)).unwrap();
        let next = ProgressSnapshot { bytes_moved: 0, ..at(101) };
        progress.update(&next).unwrap();
        let total = progress.pace.total(&ProgressSnapshot { bytes_moved: 1_000_000, ..at(111) });
        assert!(total.rate < Some(Rate::from_mbit(9.0)), "{total:?}");
        assert_eq!(page.lines().len(), 1);
    }

    #[test]
    fn the_rate_follows_a_change_within_a_few_seconds_and_ignores_repeated_moments() {
        let mut meter = Meter::default();
        let mut bytes = 0;
        for second in 0..10 {
            bytes += 1_000_000;
            meter.sample(Span::from_secs(second), bytes);
        }
        let steady = meter.sample(Span::from_secs(9), bytes + 1_000_000_000);
        assert_eq!(steady, Some(Rate::from_mbit(8.0)));
        for second in 10..20 {
            meter.sample(Span::from_secs(second), bytes);
        }
        assert_eq!(meter.sample(Span::from_secs(20), bytes), Some(Rate::ZERO), "a stall shows");
    }

    #[test]
    fn the_whole_is_never_shown_faster_than_its_paths_together_and_not_while_nothing_comes() {
        let (mut progress, _) = shown(View::Lines);
        for tenths in 0..10 {
            progress.pace.total(&at(tenths));
        }
        // Many bytes that waited for an earlier one become content at once.
        let burst = ProgressSnapshot { bytes_moved: 60_000_000, ..at(10) };
        assert_eq!(progress.pace.total(&burst).rate, Some(Rate::from_mbit(80.0)));
        let silent = ProgressSnapshot { elapsed: Span::from_secs(5), ..burst };
        let total = progress.pace.total(&silent);
        assert_eq!((total.rate, total.outlook), (None, Outlook::Stalled(4.0)));
    }

    #[test]
    fn the_whole_is_not_faster_than_the_rounded_rates_of_its_paths_together() {
        let (mut progress, _) = shown(View::Lines);
        progress.pace.total(&at(0));
        let mut two = at(10);
        two.paths.push(two.paths[0].clone());
        (two.paths[0].rate_mbit_s, two.paths[1].rate_mbit_s) = (9.44, 18.74);
        assert_eq!(progress.pace.total(&two).rate, Some(Rate::from_mbit(28.1)), "9.4 and 18.7 are shown");
        (two.paths[0].rate_mbit_s, two.paths[1].rate_mbit_s) = (0.04, 0.03);
        two.elapsed = Span::from_millis(1_100);
        assert_eq!(progress.pace.total(&two).rate, Some(Rate::from_mbit(0.07)), "a slow path counts");
        let mut at_once = |rates: (f64, f64)| {
            (two.paths[0].rate_mbit_s, two.paths[1].rate_mbit_s) = rates;
            two.elapsed += Span::from_millis(100);
            two.bytes_moved += 1_000_000_000;
            let total = progress.pace.total(&two);
            (total.rate.unwrap().to_string(), serde_json::to_value(event(&two, &total)).unwrap())
        };
        assert_eq!(at_once((1_044.0, 1_044.0)).0, "2.08 Gbit/s", "1.04 and 1.04 are shown");
        assert_eq!(at_once((996.0, 999.0)).0, "1.99 Gbit/s", "more would be 2 Gbit/s");
        let (line, event) = at_once((9.46, 18.76));
        assert_eq!(line, "28.3 Mbit/s", "9.5 and 18.8 are shown");
        assert!(event["rate_mbit_s"].as_f64().unwrap() <= 9.46 + 18.76, "{event}");
    }

    #[test]
    fn before_half_a_second_there_is_no_rate() {
        let (mut progress, _) = shown(View::Lines);
        for tenths in 0..4 {
            assert_eq!(progress.pace.total(&at(tenths)).rate, None);
        }
        assert_eq!(progress.pace.total(&at(4)).rate, Some(Rate::from_mbit(80.0)));
    }

    #[test]
    fn a_stalled_or_endless_transfer_promises_no_time() {
        let (mut progress, _) = shown(View::Lines);
        progress.pace.total(&at(0));
        let nothing = ProgressSnapshot { bytes_done: 0, bytes_moved: 0, ..at(10) };
        assert_eq!(progress.pace.total(&nothing).outlook, Outlook::Unknown, "no rate");
        let unknown = ProgressSnapshot { bytes_total: None, ..at(20) };
        assert_eq!(progress.pace.total(&unknown).outlook, Outlook::Unknown, "no length");
    }

    #[test]
    fn quiet_shows_nothing_and_a_vanished_reader_is_reported() {
        let (mut progress, page) = shown(|_| View::Nothing);
        progress.finish(&at(1)).unwrap();
        assert!(page.lines().is_empty());

        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut progress, _) = shown(|_| View::Events(Box::new(Gone)));
        assert!(progress.update(&at(1)).is_err());
    }

    #[test]
    fn every_frame_fits_the_terminal() {
        let mut snapshot = at(3);
        snapshot.paths[0].label = "enp0s31f6 → 2001:db8:1234:5678::9 by fra-1".into();
        snapshot.paths = vec![snapshot.paths[0].clone(); 70];
        let mut total = Pace::default().total(&snapshot);
        total.rate = Some(Rate::from_mbit(940.0));
        for (columns, rows) in [(80, 24), (40, 10), (200, 60)] {
            for outlook in
                [Outlook::Left(7_200.0), Outlook::Comparing, Outlook::Stalled(70.0), Outlook::Waiting]
            {
                total.outlook = outlook;
                let frame = frame(&total, &snapshot, (Paint::ON, Size { columns, rows }));
                // The cursor stands below.
                assert_eq!(frame.lines().count(), rows - 1, "{frame}");
                assert!(frame.lines().all(|line| crate::ui::width::width(line) <= columns), "{frame}");
            }
        }
    }

    #[test]
    fn each_of_several_receivers_has_a_line_and_those_without_room_are_counted() {
        let one = |number, bytes_done| ReceiverLine {
            number,
            address: format!("192.0.2.{number}"),
            total: Total {
                bytes_done,
                bytes_total: Some(100_000_000),
                rate: Some(Rate::from_mbit(8.0)),
                outlook: Outlook::Left(60.0),
            },
        };
        let receivers = (1..=20).map(|n| one(n, n * 1_000_000)).collect();
        let snapshot = ProgressSnapshot { receivers, ..at(3) };
        let size = Size { columns: 80, rows: 24 };
        let lines = lines_above_total(&snapshot, Paint::OFF, size);
        assert_eq!(lines.len(), 20);
        assert!(lines[1].starts_with("  2: 192.0.2.2    "), "{lines:#?}");
        assert!(lines[1].ends_with("  2 %  2.00 MB of 100 MB  8.0 Mbit/s  1 min left"), "{lines:#?}");
        assert!(lines[19].contains(" 20 %"), "{lines:#?}");
        let small = Size { columns: 40, rows: 10 };
        let lines = lines_above_total(&snapshot, Paint::OFF, small);
        assert_eq!((lines.len(), lines[7].as_str()), (8, "  and 13 more receivers"));
        assert!(lines.iter().all(|line| crate::ui::width::width(line) <= 40), "{lines:#?}");
        for columns in 1..40 {
            let narrow = lines_above_total(&snapshot, Paint::OFF, Size { columns, rows: 24 });
            assert!(narrow.iter().all(|line| crate::ui::width::width(line) <= columns), "{narrow:#?}");
        }
        let (mut progress, _) = shown(View::Lines);
        let total = progress.pace.total(&snapshot);
        let plain = render::plain_line(&total, &snapshot.paths, &snapshot.receivers);
        assert!(plain.contains("; 1: 192.0.2.1 1 %, 2: 192.0.2.2 2 %, "), "{plain}");
        assert!(plain.ends_with(" 8 %, and 12 more receivers"), "{plain}");
        let alone = ProgressSnapshot { receivers: vec![one(1, 5)], ..at(3) };
        assert!(lines_above_total(&alone, Paint::OFF, size)[0].starts_with("  wlan0 "), "its paths");
        let event = serde_json::to_value(event(&snapshot, &total)).unwrap();
        let expected = serde_json::json!({
            "receiver": 20, "address": "192.0.2.20", "bytes": 20_000_000, "bytes_total": 100_000_000,
            "rate_mbit_s": 8.0, "eta_s": 60.0, "stalled_s": null,
        });
        assert_eq!((event["receivers"].as_array().unwrap().len(), &event["receivers"][19]), (20, &expected));
    }
}
