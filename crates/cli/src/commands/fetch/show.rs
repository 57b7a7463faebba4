//! Progress of a download: one line for each source.

use std::io;
use std::time::Instant;

use anabranch_fetch::{Progress, Snapshot, SourceStatus};
use anabranch_wire::{Rate, Span};

use crate::carrier::REDRAW;
use crate::ui::pace::Meter;
use crate::ui::snapshot::{PathLine, PathState, ProgressSnapshot};

/// Draws the progress of one download after the other.
pub(super) struct Display {
    display: crate::ui::progress::Progress,
    begin: Instant,
    /// The rates of the sources, over the same time as the total's.
    meters: Vec<Meter>,
}

impl Display {
    pub(super) fn new(display: crate::ui::progress::Progress) -> Self {
        Self { display, begin: Instant::now(), meters: Vec::new() }
    }

    /// Draws until the display cannot be written.
    pub(super) async fn run(&mut self, progress: &Progress) -> io::Error {
        (self.begin, self.meters) = (Instant::now(), Vec::new());
        let mut tick = tokio::time::interval(REDRAW);
        loop {
            tick.tick().await;
            let snapshot = progress.take();
            if let Err(error) = self.draw(&snapshot, false) {
                return error;
            }
        }
    }

    /// Draws the last state.
    pub(super) fn finish(&mut self, progress: &Progress) -> io::Result<()> {
        self.draw(&progress.take(), true)
    }

    /// Draws no more.
    pub(super) fn freeze(&mut self) {
        self.display.freeze();
    }

    fn draw(&mut self, snapshot: &Snapshot, is_last: bool) -> io::Result<()> {
        for note in &snapshot.notes {
            self.display.note(note)?;
        }
        let nanos = u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let elapsed = Span::from_nanos(nanos);
        self.meters.resize_with(snapshot.sources.len(), Meter::default);
        let rate = |(meter, source): (&mut Meter, &SourceStatus)| {
            let rate = meter.sample(elapsed, source.bytes).filter(|_| source.is_ready);
            rate.unwrap_or(Rate::ZERO).as_mbit()
        };
        let rates: Vec<f64> = self.meters.iter_mut().zip(&snapshot.sources).map(rate).collect();
        let total: f64 = rates.iter().sum();
        let lines = snapshot.sources.iter().zip(rates).map(|(source, rate)| line(source, (rate, total)));
        let shown = ProgressSnapshot {
            elapsed,
            bytes_done: snapshot.bytes,
            bytes_resumed: snapshot.resumed,
            bytes_moved: snapshot.bytes.saturating_sub(snapshot.resumed),
            bytes_total: snapshot.size,
            waiting: false,
            paths: lines.collect(),
            receivers: Vec::new(),
        };
        if is_last { self.display.finish(&shown) } else { self.display.update(&shown) }
    }
}

fn line(source: &SourceStatus, (rate, total): (f64, f64)) -> PathLine {
    let state = match (source.is_ready && source.why.is_none(), source.bytes) {
        (true, _) => PathState::Active,
        (false, 0) => PathState::Validating,
        (false, _) => PathState::Failed,
    };
    PathLine {
        label: source.label.clone(),
        rate_mbit_s: rate,
        rtt_ms: None,
        loss: None,
        share: (total > 0.0).then(|| rate / total),
        state,
        why: source.why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_waited_for_says_why() {
        let state = |is_ready, why: Option<&str>, bytes| {
            let source =
                SourceStatus { is_ready, why: why.map(str::to_owned), bytes, ..SourceStatus::default() };
            line(&source, (0.0, 0.0)).state
        };
        assert_eq!(state(true, None, 5), PathState::Active);
        assert_eq!(state(true, Some("no bytes for 5 s"), 5), PathState::Failed);
        assert_eq!(state(false, Some("no answer so far"), 0), PathState::Validating);
    }
}
